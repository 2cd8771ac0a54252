"""What a process knows of the queries that it has built: as long as they may start, and not for ever."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.frames import run_all, streamed

import watersmeet as ws
from watersmeet.spark.run import starts

pytestmark = pytest.mark.spark


def test_queries_that_can_start_no_more_are_forgotten(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = starts.KnownQueries(most=2)
    monkeypatch.setattr(starts, "_queries", known)
    rows = spark.sql("SELECT 1 AS id, TIMESTAMP'2024-01-01 12:00:00' AS t")
    left, right = (streamed(tmp_path / name, [rows]).withWatermark("t", "1 hour") for name in ("left", "right"))

    def joined(left: DataFrame, right: DataFrame) -> DataFrame:
        return ws.join(left, right, "left.id = right.id", within="1 hour")

    first = joined(left, right)
    for _ in range(3):
        joined(left, right)
    derived = joined(left, right).selectExpr("left_id")
    gc.collect()
    joined(rows, rows)
    assert len(known) <= 3, "the one whose result lives, and the newest"
    for name, result in (("first", first), ("derived", derived)):
        run_all(result, tmp_path / name)
        assert (tmp_path / name / "watersmeet.json").is_file(), name
