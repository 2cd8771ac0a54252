"""Groups, top-N and the end of input without SQL, and what of Spark cannot stand behind a result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import watersmeet as ws

pytestmark = pytest.mark.spark

CLICKS = "page STRING, n INT, t TIMESTAMP"
FIRST = [("home", 1, "2024-01-01 08:01:00"), ("cart", 2, "2024-01-01 08:02:00"), ("home", 3, "2024-01-01 08:50:00")]
SECOND = [("home", 4, "2024-01-01 09:05:00"), ("cart", 5, "2024-01-01 09:06:00")]


def stream(
    spark: SparkSession, folder: Path, *batches: Sequence[tuple[object, ...]], lag: str = "1 minute"
) -> DataFrame:
    """A stream of files of clicks, with an event time."""
    add(spark, folder, *batches)
    clicks = spark.readStream.schema(CLICKS).option("maxFilesPerTrigger", "1").json(str(folder))
    return clicks.withWatermark("t", lag)


def add(spark: SparkSession, folder: Path, *batches: Sequence[tuple[object, ...]]) -> None:
    """Add a file of clicks for each batch."""
    folder.mkdir(exist_ok=True)
    for rows in batches:
        made = spark.createDataFrame(rows, "page STRING, n INT, t STRING")
        text = "\n".join(row.value for row in made.selectExpr("to_json(struct(*)) AS value").collect())
        (folder / f"{len(list(folder.iterdir()))}.json").write_text(text)


def texts(frame: DataFrame) -> list[str]:
    """Rows as text, in the order of the text."""
    return sorted(" ".join(str(value) for value in row) for row in frame.collect())


def test_groups_and_their_first_rows_come_out_at_the_end_of_input(spark: SparkSession, tmp_path: Path) -> None:
    clicks, end = stream(spark, tmp_path / "clicks", FIRST, SECOND), ws.input_end(spark=spark)
    hourly = ws.group(clicks, "page", aggregates={"clicks": "count(*)", "total": "sum(n)"}, window="1 hour")
    best = ws.top(hourly, 1, "total DESC", by="window_end", emit="stream", watermarks=end)
    writer = best.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    ws.finish(writer, end)
    # The last hour is not over when the input ends.
    assert texts(
        spark.read.parquet(str(tmp_path / "out")).selectExpr("hour(window_start)", "page", "clicks", "total")
    ) == [
        "8 home 2 4",
        "9 cart 1 5",
    ]


def test_a_finished_query_is_started_again(spark: SparkSession, tmp_path: Path) -> None:
    for ended, rows in ((False, FIRST), (True, SECOND), (True, FIRST)):
        # Each program has a folder of its own in which it declares the end, and the one before may be gone.
        clicks, end = stream(spark, tmp_path / "clicks", rows), ws.input_end(spark=spark)
        counts = ws.group(clicks, "page", aggregates={"n": "count(*)"}, window="1 hour", emit="stream", watermarks=end)
        writer = counts.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        ws.finish(writer.option("checkpointLocation", str(tmp_path / "checkpoint")), end)
        total = texts(spark.read.parquet(str(tmp_path / "out")).selectExpr("page", "n"))
        if not ended:
            first = total
        # Rows behind the end are late.
        assert total == first
    assert first


def test_a_running_query_is_finished(spark: SparkSession, tmp_path: Path) -> None:
    end, left = ws.input_end(tmp_path / "end", spark), stream(spark, tmp_path / "left", FIRST)
    right = stream(spark, tmp_path / "right", SECOND)
    joined = ws.join(left, right, on="page", within="1 minute", how="left", watermarks=end)
    query = joined.writeStream.format("memory").queryName("finished").start()
    ws.finish(query, end)
    assert not query.isActive
    assert texts(spark.table("finished").selectExpr("page", "left_n", "right_n")) == [
        "cart 2 None",
        "home 1 None",
        "home 3 None",
    ]
    with pytest.raises(ws.WatersmeetError, match="it has stopped"):
        ws.finish(query, end)
    with pytest.raises(ws.WatersmeetError, match="it is not what `ws"):
        ws.finish(query, left)


def test_groups_of_batches(spark: SparkSession, tmp_path: Path) -> None:
    add(spark, tmp_path / "rows", FIRST, SECOND)
    rows = spark.read.schema(CLICKS).json(str(tmp_path / "rows"))
    counts = ws.group(rows, ["page"], aggregates={"clicks": "count(*)"}, having="count(*) > 2")
    assert texts(counts.select("page", "clicks")) == ["home 3"]
    sessions = ws.group(rows, "page", aggregates={"clicks": "count(*)"}, gap="20 minutes", time="t")
    assert texts(sessions.selectExpr("page", "clicks", "minute(window_start)")) == [
        "cart 1 2", "cart 1 6", "home 1 1", "home 2 50",
    ]  # fmt: skip
    sliding = ws.group(rows, (), aggregates={"clicks": "count(*)"}, window="1 hour", slide="30 minutes", time="t")
    assert texts(sliding.selectExpr("date_format(window_start, 'HH:mm')", "clicks")) == [
        "07:30 2", "08:00 3", "08:30 3", "09:00 2",
    ]  # fmt: skip
    assert texts(ws.top(rows, 2, "n DESC", time="t").select("page", "n")) == ["cart 5", "home 4"]
    assert texts(ws.top(rows, 1, "n", by="page", time="t").select("page", "n")) == ["cart 2", "home 1"]


def test_arguments_that_do_not_fit(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([], CLICKS)
    for wrong, words in (
        (lambda: ws.group(rows, "page", aggregates={}), "expected one or more"),
        (lambda: ws.group(rows, "page", aggregates={"a": "count(*)"}, slide="1 hour"), "no window that slides"),
        (lambda: ws.group(rows, "page", aggregates={"a": "count(*)"}, window="1 hour"), "no event time"),
        (lambda: ws.group(rows, aggregates={"a": "count(*)"}, window="1 hour", gap="1 hour"), "a session has no other"),
        (lambda: ws.group(rows, aggregates={"a": "count(*)"}, gap=5, time="t"), "expected a duration above 0"),
        (lambda: ws.group(rows, "pages", aggregates={"a": "count(*)"}), "`pages`"),
        (lambda: ws.group(rows, aggregates={"a": "count("}), "ws.group"),
        (lambda: ws.top(rows, 0, "n"), "at least 1"),
        (lambda: ws.top(rows, 1, "nn"), "`nn`"),
    ):
        with pytest.raises(ws.WatersmeetError, match=words):
            wrong()


def test_a_watermark_of_sparks_behind_a_result_is_refused_at_the_start(spark: SparkSession, tmp_path: Path) -> None:
    left, right = stream(spark, tmp_path / "left", FIRST), stream(spark, tmp_path / "right", SECOND)
    joined = ws.join(left, right, on="page", within="1 hour", how="left").select("page", "left_t", "left_n")
    grouped = joined.withWatermark("left_t", "1 minute").groupBy("page").count()
    with pytest.raises(ws.WatersmeetError, match="`withWatermark` on `left_t` is behind a Watersmeet result"):
        grouped.writeStream.format("noop").outputMode("update").start()
    # Without `withWatermark` behind it, any query starts.
    query = joined.writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
