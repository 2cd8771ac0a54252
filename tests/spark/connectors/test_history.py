"""Streams with a history: files until a time or an offset, then the stream, as one source with one watermark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.metrics.progress import Progress
from watersmeet.queries import read_script
from watersmeet.spark.run.running import Trigger, run_script
from watersmeet.spark.run.watching import Listeners

pytestmark = pytest.mark.spark

Row = tuple[int, str | None]
"""An order: its number, and its time."""


def time(minute: int) -> str:
    """A minute of the day on which history ends at noon."""
    return f"2026-03-01 {11 + minute // 60:02}:{minute % 60:02}:00"


def write_history(spark: SparkSession, folder: Path, rows: Sequence[Row]) -> None:
    """One more file of the history."""
    frame = spark.createDataFrame(rows, "id BIGINT, t STRING").withColumn("t", F.col("t").cast("timestamp"))
    frame.coalesce(1).write.mode("append").parquet(str(folder))


def write_live(folder: Path, rows: Sequence[Row]) -> None:
    """One more file of the stream."""
    folder.mkdir(exist_ok=True)
    lines = (json.dumps({"id": id_, "t": t}) + "\n" for id_, t in rows)
    (folder / f"{len(list(folder.iterdir()))}.json").write_text("".join(lines))


def script(folder: Path, using: str, until: str = "2026-03-01 12:00:00", more: str = "", name: str = "seen") -> str:
    """Pairs of orders at most ten minutes apart, and orders without one."""
    return f"""
    CREATE STREAM orders (id BIGINT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 2 MINUTES)
    {using}
    AFTER parquet OPTIONS (path '{folder}/history', until '{until}', maxFilesPerTrigger 1{more});
    CREATE SINK {name} USING json OPTIONS (path '{folder}/{name}');
    INSERT INTO {name} SELECT STREAM a.id, b.id AS next FROM orders a LEFT JOIN orders b
    ON a.id + 1 = b.id AND b.t BETWEEN a.t AND a.t + INTERVAL 10 MINUTES;
    """


def run(spark: SparkSession, folder: Path, text: str, trigger: Trigger, stop_after: int = 99) -> list[Progress]:
    """Run a script; what was reported, at most of so many batches."""
    reported: list[Progress] = []
    listeners = Listeners(on_progress=reported.append, is_interrupted=lambda: len(reported) >= stop_after)
    try:
        run_script(read_script(text), spark=spark, storage=folder / "storage", trigger=trigger, listeners=listeners)
    except KeyboardInterrupt:
        assert len(reported) >= stop_after
    return reported


def pairs(folder: Path, name: str = "seen") -> list[tuple[int, int | None]]:
    """What the sink has."""
    lines = [json.loads(line) for file in (folder / name).glob("*.json") for line in file.read_text().splitlines()]
    return sorted((line["id"], line.get("next")) for line in lines)


def test_a_history_is_read_to_its_end_and_then_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    # Both sides have orders 5 to 9: those before noon are of the history, the others of the stream.
    rows = [(n, time(52 + 2 * n)) for n in range(12)]
    for file in (rows[:3], rows[3:6], rows[6:10]):
        write_history(spark, tmp_path / "history", file)
    write_live(tmp_path / "live", rows[2:])
    text = script(tmp_path, f"USING json OPTIONS (path '{tmp_path}/live')")
    first = run(spark, tmp_path, text, "continuous", stop_after=1)
    assert first[0].phase == "history"
    second = run(spark, tmp_path, text, "available_now")
    assert {batch.phase for batch in second} == {"history", ""}
    # A file that comes later is not read, and the stream goes on.
    write_history(spark, tmp_path / "history", [(99, time(30))])
    write_live(tmp_path / "live", [(12, time(76))])
    # Past its history the query no longer needs the declaration, nor the files.
    shutil.rmtree(tmp_path / "history")
    third = run(spark, tmp_path, f"{text.partition('AFTER')[0]};{text.partition(';')[2]}", "end")
    assert [batch.phase for batch in third] == [""] * len(third)
    assert pairs(tmp_path) == [(n, n + 1 if n < 12 else None) for n in range(13)]
    assert sum(batch.late for batch in (*first, *second, *third)) == 0


def test_a_new_query_reads_the_history_beside_one_that_is_past_it(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    topics = pytest.importorskip("faults.topics", reason="confluent-kafka is not installed", exc_type=ImportError)
    topics.create(kafka, "orders-with-a-past", 2)
    rows: list[Row] = [(n, time(52 + 2 * n)) for n in range(10)]
    for file in (rows[:3], [*rows[3:7], (50, None)]):
        write_history(spark, tmp_path / "history", file)
    topics.send_rows(kafka, "orders-with-a-past", [{"id": n, "t": t} for n, t in rows[2:8]], 0)
    topics.send_rows(kafka, "orders-with-a-past", [{"id": 60, "t": None}], 1)
    options = f"kafka.bootstrap.servers '{kafka}', subscribe 'orders-with-a-past', value.format 'json'"
    text = script(tmp_path, f"USING kafka OPTIONS ({options}, malformed 'drop')")
    first = run(spark, tmp_path, text, "available_now")
    # One row of the history has no time: it is counted. The one of the topic counts like any other.
    assert (sum(b.malformed for b in first), sum(b.rows_in for b in first)) == (1, 9)
    topics.send_rows(kafka, "orders-with-a-past", [{"id": n, "t": t} for n, t in rows[8:]], 1)
    later = "CREATE SINK later" + text.partition("CREATE SINK seen")[2].replace("seen", "later")
    both = run(spark, tmp_path, text + later, "end")
    assert {(b.query, b.phase) for b in both} == {("seen", ""), ("later", "history"), ("later", "")}
    expected = [*((n, n + 1 if n < 9 else None) for n in range(10)), (60, None)]
    assert pairs(tmp_path, "seen") == pairs(tmp_path, "later") == expected


def test_a_history_until_offsets_takes_each_record_once(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    topics = pytest.importorskip("faults.topics", reason="confluent-kafka is not installed", exc_type=ImportError)
    topics.create(kafka, "archived", 2)
    for partition in (0, 1):
        topics.send_rows(kafka, "archived", [{"id": 10 * partition + n} for n in range(4)], partition)
    # The archive has all records of the topic, also those from the seam on; times say nothing here.
    archived = [(10 * p + n, p, n) for p in (0, 1) for n in range(4)]
    spark.createDataFrame(archived, "id BIGINT, _partition INT, _offset BIGINT").write.parquet(f"{tmp_path}/history")
    start = json.dumps({"archived": {"0": 2, "1": 3}})
    text = f"""
    CREATE STREAM archived (id BIGINT, _partition INT, _offset BIGINT) USING kafka OPTIONS (
      kafka.bootstrap.servers '{kafka}', subscribe 'archived', value.format 'json', startingOffsets '{start}'
    ) AFTER parquet OPTIONS (path '{tmp_path}/history', until 'offsets');
    CREATE SINK seen USING json OPTIONS (path '{tmp_path}/seen');
    INSERT INTO seen SELECT STREAM id FROM archived;
    """
    run(spark, tmp_path, text, "available_now")
    assert [id_ for id_, _ in pairs(tmp_path)] == [0, 1, 2, 3, 10, 11, 12, 13]
