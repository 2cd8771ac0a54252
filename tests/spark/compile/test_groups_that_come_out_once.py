"""Deduplication, windows that come out once and window functions, of DataFrames: batches, and streams of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.frames import rows_of, stream_files, types_of

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
    both = ws.deduplicate(
        clicks, on="id", within="10 minutes", first="time", time="t", duplicates="side_output"
    )  # fmt: skip
    assert both.columns == [*clicks.columns, "_duplicates"]
    assert {(row.page, row._duplicates and row._duplicates.page) for row in both.collect()} == {
        ("a", None), ("c", None), ("e", None), ("f", None), (None, "b"), (None, "d"),
    }  # fmt: skip
    counted = ws.sql(
        "SELECT STREAM window(t, '10 minutes').end AS until, count(*) AS n FROM clicks "
        "GROUP BY window(t, '10 minutes')",
        clicks=clicks,
    )
    assert [(row.until.minute, row.n) for row in counted.orderBy("until").collect()] == [(10, 3), (20, 3)]
    stream = stream_files(tmp_path / "in", [clicks.limit(3), clicks.subtract(clicks.limit(3))])
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


FUNCTIONS = """
    sum(i) OVER w AS total, sum(d) OVER (PARTITION BY k ORDER BY t ROWS 2 PRECEDING) AS exact,
    avg(d) OVER (PARTITION BY k ORDER BY t RANGE {three} PRECEDING) AS mean, count(*) OVER w AS n,
    min(x) OVER (PARTITION BY k ORDER BY t ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS least,
    max(s) OVER w AS most, first_value(s) OVER w AS first, last_value(x) OVER w AS last,
    sum(x) OVER (PARTITION BY k ORDER BY t RANGE BETWEEN {three} PRECEDING AND CURRENT ROW) AS near,
    lag(x, 2, -1D) OVER w AS before, lag(s) OVER w AS text, lead(i) OVER w AS next,
    avg(i) OVER w + count(x) OVER w AS both
"""


def test_window_functions_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Rows, types and nullability: Spark computes the same over a batch. No two times of a key are equal."""
    rows = spark.range(60).selectExpr(
        "nullif(id % 3, 2) AS k", "CAST(id * 7 % 11 - 3 AS INT) AS i", "CAST(id * 13 % 17 AS DECIMAL(6, 2)) / 4 AS d",
        "CASE id % 7 WHEN 0 THEN double('nan') WHEN 1 THEN -0D WHEN 2 THEN NULL ELSE id / 8 END AS x",
        "CASE WHEN id % 5 > 0 THEN CAST(id * 3 % 10 AS STRING) END AS s",
        "timestamp_seconds(1772359200 + id * 37 % 60) AS t",
    )  # fmt: skip
    three = "INTERVAL 3 SECONDS"
    sql = f"SELECT k, t AS at, {FUNCTIONS.format(three=three)} FROM rows WINDOW w AS (PARTITION BY k ORDER BY t)"
    rows.createOrReplaceTempView("rows")
    expected = spark.sql(sql)
    stream = stream_files(tmp_path / "in", [part.orderBy("t") for part in rows.randomSplit([0.5, 0.5], 3)])
    assert types_of(ws.sql(f"{sql} WITHIN 1 MINUTE", rows=rows.withWatermark("t", "1 minute"))) == types_of(expected)
    end = ws.input_end(tmp_path / "end", spark)
    windowed = ws.sql(f"{sql} WITHIN 1 MINUTE", rows=stream.withWatermark("t", "1 minute"), watermarks=end)
    writer = windowed.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    ws.finish(writer.option("checkpointLocation", str(tmp_path / "checkpoint")), end)
    assert rows_of(spark.read.parquet(str(tmp_path / "out"))) == rows_of(expected)
