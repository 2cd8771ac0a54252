"""Deduplication and windows that come out once, of DataFrames: batches, and streams of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.frames import streamed

import watersmeet as ws

pytestmark = pytest.mark.spark

CLICKS = "id INT, page STRING, t TIMESTAMP"


def test_rows_of_dataframes_come_out_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        (1, "b", "2026-03-01 10:00:30"), (1, "a", "2026-03-01 10:00:05"), (2, "c", "2026-03-01 10:01:00"),
        (1, "d", "2026-03-01 10:10:05"), (1, "e", "2026-03-01 10:10:06"), (None, "f", "2026-03-01 10:10:06"),
    ]  # fmt: skip
    clicks = spark.createDataFrame(rows, "id INT, page STRING, t STRING").coalesce(1)
    clicks = clicks.selectExpr("id", "page", "timestamp(t) AS t")
    first = ws.deduplicate(clicks, on="id", within="10 minutes", first="time", time="t")
    assert {row.page for row in first.collect()} == {"a", "c", "e", "f"}
    counted = ws.sql(
        "SELECT STREAM window(t, '10 minutes').end AS until, count(*) AS n FROM clicks "
        "GROUP BY window(t, '10 minutes')",
        clicks=clicks,
    )
    assert [(row.until.minute, row.n) for row in counted.orderBy("until").collect()] == [(10, 3), (20, 3)]
    stream = streamed(tmp_path / "in", [clicks.limit(3), clicks.subtract(clicks.limit(3))])
    at_once = ws.deduplicate(stream.withWatermark("t", "1 minute"), on=["id"], within="10 minutes")
    chained = ws.sql(
        "SELECT STREAM window_end AS until, count(*) AS n "
        "FROM TABLE(TUMBLE(TABLE c, DESCRIPTOR(t), INTERVAL '1' MINUTE)) GROUP BY window_start, window_end",
        c=at_once,
    )
    for name, frame in (("at_once", at_once), ("chained", chained)):
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(tmp_path / name))
            .option("checkpointLocation", str(tmp_path / f"{name}.checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    pages = {row.page for row in spark.read.parquet(str(tmp_path / "at_once")).collect()}
    assert pages == {"b", "c", "f"}
    done = spark.read.parquet(str(tmp_path / "chained"))
    assert [(row.until.minute, row.n) for row in done.orderBy("until").collect()] == [(1, 1), (2, 1)]
