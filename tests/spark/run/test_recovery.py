"""A worker that is killed takes no row with it. Whole runs are killed in tests/test_faults.py."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.frames import run_all, stream_files

import watersmeet as ws

pytestmark = pytest.mark.spark


def test_a_task_whose_worker_was_killed_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    killed = tmp_path / "killed"

    def die_once(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            if not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    rows = spark.sql("SELECT 1 AS id, TIMESTAMP'2024-01-01 12:00:00' AS t")
    left, right = (stream_files(tmp_path / name, [rows]) for name in ("l", "r"))
    dying = left.mapInArrow(die_once, left.schema).withWatermark("t", "1 minute")
    joined = ws.join(dying, right.withWatermark("t", "1 minute"), "left.id = right.id", within="1 hour")
    assert sum(len(found) for found in run_all(joined, tmp_path / "checkpoint")) == 1
    assert killed.exists()
