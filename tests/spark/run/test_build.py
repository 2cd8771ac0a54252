"""What a process knows of the queries that it has built: as long as they may start, and not for ever."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.frames import run_all, stream_files

import watersmeet as ws
from watersmeet.spark.run import starts

pytestmark = pytest.mark.spark


def test_queries_that_can_start_no_more_are_forgotten(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = starts.KnownQueries(most=2)
    monkeypatch.setattr(starts, "_queries", known)
    rows = spark.sql("SELECT 1 AS id, TIMESTAMP'2024-01-01 12:00:00' AS t")
    left, right = (stream_files(tmp_path / name, [rows]).withWatermark("t", "1 hour") for name in ("left", "right"))

    def join(left: DataFrame, right: DataFrame) -> DataFrame:
        return ws.join(left, right, "left.id = right.id", within="1 hour")

    first = join(left, right)
    for _ in range(3):
        join(left, right)
    derived = join(left, right).selectExpr("left_id")
    gc.collect()
    join(rows, rows)
    assert len(known) <= 3, "the one whose result lives, and the newest"
    for name, result in (("first", first), ("derived", derived)):
        run_all(result, tmp_path / name)
        assert (tmp_path / name / "watersmeet.json").is_file(), name
