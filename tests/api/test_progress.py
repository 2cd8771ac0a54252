"""`ws.progress` of a query that someone started, and `ws.explain` of what any call gave."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.frames import add_file, stream_files

import watersmeet as ws
from watersmeet import WatersmeetError
from watersmeet.tools.explain.query import Explanation

pytestmark = pytest.mark.spark


def rows(spark: SparkSession, *values: tuple[int, int]) -> DataFrame:
    """Rows of (id, minute)."""
    listed = ", ".join(str(value) for value in values)
    moment = "TIMESTAMP'2024-01-01 12:00:00Z' + make_dt_interval(0, 0, minute)"
    return spark.sql(f"SELECT id, {moment} AS t FROM VALUES {listed} AS r(id, minute)")


def minute(number: int) -> datetime:
    return datetime(2024, 1, 1, 12, number, tzinfo=UTC)


def test_progress_is_reported_as_values_also_after_an_empty_batch(spark: SparkSession, tmp_path: Path) -> None:
    a = stream_files(tmp_path / "a", [rows(spark, (1, 0), (2, 30), (1, 1), (3, 31))])
    b = stream_files(tmp_path / "b", [rows(spark, (1, 5), (9, 40), (9, 41))])
    joined = ws.join(
        a.withWatermark("t", "5 minutes"), b.withWatermark("t", "0 seconds"), "left.id = right.id",
        within="10 minutes", how="left", shards=1,
    )  # fmt: skip
    writer: Any = joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        query.processAllAvailable()
        so_far = ws.progress(query)
        assert (so_far.rows_in, so_far.sources, so_far.late) == (7, {"left": 4, "right": 3}, 0)
        add_file(tmp_path / "a", rows(spark, (4, 33), (5, 0)))
        # Spark adds batches without rows, in which no operator tells anything.
        query.processAllAvailable()
        again = ws.progress(query)
        assert any(not batch["numInputRows"] for batch in query.recentProgress)
    finally:
        query.stop()
    assert (again.rows_in, again.sources, again.late) == (9, {"left": 6, "right": 3}, 1)
    assert again.state_rows > 0 and again.state_bytes > 0 and again.seconds > 0
    lags = again.lags()
    assert lags and lags.keys() == again.watermarks.keys() and min(lags.values()).days > 300
    assert again.rates().rows_in >= 0 and again.malformed == 0


def test_the_slow_side_is_named(spark: SparkSession, tmp_path: Path) -> None:
    a = stream_files(tmp_path / "a", [rows(spark, (1, 0), (2, 30))])
    b = stream_files(tmp_path / "b", [rows(spark, (1, 5))])
    joined = ws.join(
        a.withWatermark("t", "0 seconds"), b.withWatermark("t", "0 seconds"), "left.id = right.id", within="10 minutes"
    )
    writer: Any = joined.writeStream.foreachBatch(lambda batch, number: print(batch.count()))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    so_far = ws.progress(query)
    assert so_far.slowest == ("right.t", 25 * 60_000_000)
    assert (so_far.rows_in, so_far.rows_out, so_far.matched) == (3, 1, 1)
    assert so_far.sources == {"left": 2, "right": 1}
    # The result waits for the slow side: a row of the left that meets one of minute 5 may be as early as this.
    assert so_far.watermarks["right.t"] == minute(5)


def test_frames_without_a_query_have_no_progress(spark: SparkSession) -> None:
    with pytest.raises(WatersmeetError, match="not a streaming query"):
        ws.progress(spark.range(1))  # type: ignore[arg-type]


def test_every_result_can_be_explained(spark: SparkSession) -> None:
    a, b = rows(spark, (1, 0)), rows(spark, (1, 5))
    times: dict[str, Any] = {"left_time": "t", "right_time": "t"}
    asked: dict[str, DataFrame] = {
        "interval join": ws.join(a, b, "id", within="1 hour", **times),
        "window join": ws.window_join(a, b, "id", left_window="COUNT 1", right_window="COUNT 1"),
        "sync": ws.sync_join(a, b, time="t"),
        "as-of join": ws.asof_join(a, b, "id", **times),
        "GROUP BY": ws.sql("SELECT TABLE a.id, count(*) AS n FROM a GROUP BY a.id", a=a),
    }
    for part, result in asked.items():
        shown = ws.explain(result)
        assert part.lower() in shown.lower(), part
        assert isinstance(shown, Explanation)
        assert shown.svg.startswith("<svg") and shown._repr_html_().startswith("<img ")
    with pytest.raises(WatersmeetError, match="not the result of a ws call"):
        ws.explain(a)
