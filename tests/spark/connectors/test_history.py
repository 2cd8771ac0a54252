"""Streams with a history: files until a time or an offset, then the stream, as one source with one watermark."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from tests.test_docs import ROOT, blocks

from watersmeet.errors import WatersmeetError
from watersmeet.metrics.progress import Progress
from watersmeet.queries import read_script
from watersmeet.spark.private import introspection
from watersmeet.spark.run.prepare import StartOptions
from watersmeet.spark.run.running import Trigger, run_script
from watersmeet.spark.run.starts import Accepting
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


def run(
    spark: SparkSession,
    folder: Path,
    text: str,
    trigger: Trigger,
    stop_after: int = 99,
    accepting: Accepting = "refuse",
    on_progress: Callable[[Progress], None] = lambda batch: None,
) -> list[Progress]:
    """Run a script; what was reported, at most of so many batches."""
    reported: list[Progress] = []

    def take(batch: Progress) -> None:
        reported.append(batch)
        on_progress(batch)

    listeners = Listeners(on_progress=take, is_interrupted=lambda: len(reported) >= stop_after)
    options = StartOptions(accepting=accepting)
    try:
        run_script(
            read_script(text),
            spark=spark,
            storage=folder / "storage",
            trigger=trigger,
            listeners=listeners,
            options=options,
        )
    except KeyboardInterrupt:
        assert len(reported) >= stop_after
    return reported


def pairs(folder: Path, name: str = "seen") -> list[tuple[int, int | None]]:
    """What the sink has."""
    return sorted((row["id"], row.get("next")) for row in sink_rows(folder / name))


def sink_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a sink."""
    return [json.loads(line) for file in folder.glob("*.json") for line in file.read_text().splitlines()]


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


def test_a_history_that_looks_up_a_table_waits_for_the_table_only(spark: SparkSession, tmp_path: Path) -> None:
    for n in range(6):
        write_history(spark, tmp_path / "history", [(n, time(n))])
    write_live(tmp_path / "live", [(6, time(70))])
    write_live(tmp_path / "items", [(n, None) for n in range(7)])
    declared = script(tmp_path, f"USING json OPTIONS (path '{tmp_path}/live')").partition("INSERT")[0]
    text = f"""
    {declared}
    CREATE TABLE items (id BIGINT, PRIMARY KEY (id)) USING json OPTIONS (path '{tmp_path}/items');
    INSERT INTO seen SELECT STREAM o.id, i.id AS next FROM orders o JOIN items i ON o.id = i.id;
    """
    reported: list[Progress] = []
    listeners = Listeners(on_progress=reported.append, is_interrupted=lambda: sum(b.rows_out for b in reported) == 7)
    with pytest.raises(KeyboardInterrupt):
        run_script(
            read_script(text), spark=spark, storage=tmp_path / "storage", trigger="continuous", listeners=listeners
        )
    assert any(batch.phase and batch.rows_out for batch in reported)
    assert pairs(tmp_path) == [(n, n) for n in range(7)]


def test_a_history_is_read_by_a_new_query_of_a_running_script(
    spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of the guide, with a few rows of either side."""
    topics = pytest.importorskip("faults.topics", reason="confluent-kafka is not installed", exc_type=ImportError)
    monkeypatch.setenv("KAFKA", kafka)
    topics.create(kafka, "backfilled", 2)
    first, _, second = (
        text.replace("'/archive/", f"'{tmp_path}/")
        .replace("'/results/", f"'{tmp_path}/")
        .replace("'20'", "'1'")
        .replace("subscribe 'orders'", "subscribe 'backfilled'")
        for text in blocks(ROOT / "docs" / "howto" / "backfill.md", "sql")
    )
    first = first.replace("value.format 'json'", "value.format 'json', malformed 'drop'")

    # An order of 1 every ten minutes, two hours before midnight and after it; both sides have some of them.
    def order(n: int) -> dict[str, Any]:
        at = f"2026-02-28 {22 + n // 6}:{n % 6}0:00" if n < 12 else f"2026-03-01 0{n // 6 - 2}:{n % 6}0:00"
        return {"order_id": n, "item": "rug", "amount": 1.0, "at": at}

    no_time = {"order_id": 99, "item": "rug", "amount": 100.0, "at": None}
    columns = "order_id BIGINT, item STRING, amount DOUBLE, at STRING"
    for rows in (range(7), range(7, 15)):
        frame = spark.createDataFrame([[*order(n).values()] for n in rows] + [[*no_time.values()]], columns)
        frame = frame.withColumn("at", F.col("at").cast("timestamp"))
        frame.coalesce(1).write.mode("append").parquet(str(tmp_path / "orders"))
    topics.send_rows(kafka, "backfilled", map(order, range(9, 18)), 0)
    reported = run(spark, tmp_path, first, "available_now")
    # A row of the history without a time cannot be placed: it is counted.
    assert (sum(b.malformed for b in reported), sum(b.rows_in for b in reported)) == (2, 18)
    topics.send_rows(kafka, "backfilled", map(order, range(18, 24)), 1)
    both = run(spark, tmp_path, first + second, "end")
    assert {(b.query, b.phase) for b in both} == {("hourly", ""), ("largest", "history"), ("largest", "")}
    amounts = {name: [row["amount"] for row in sink_rows(tmp_path / name)] for name in ("hourly", "largest")}
    assert amounts == {"hourly": [6.0] * 4, "largest": [1.0] * 4}


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


@pytest.mark.parametrize("format_", ["csv", "json", "orc"])
def test_a_history_may_be_of_any_format_of_files(spark: SparkSession, tmp_path: Path, format_: str) -> None:
    """Those of Avro, Delta and Iceberg need a session of their own: tests/matrix."""
    rows = [(n, time(50 + 2 * n)) for n in range(8)]
    frame = spark.createDataFrame(rows[:6], "id BIGINT, t STRING").withColumn("t", F.col("t").cast("timestamp"))
    for ids in ((0, 1, 2), (3, 4, 5)):
        frame.where(F.col("id").isin(*ids)).coalesce(1).write.mode("append").format(format_).save(f"{tmp_path}/history")
    write_live(tmp_path / "live", rows[4:])
    text = script(tmp_path, f"USING json OPTIONS (path '{tmp_path}/live')").replace("AFTER parquet", f"AFTER {format_}")
    reported = run(spark, tmp_path, text, "end")
    assert {batch.phase for batch in reported} == {"history", ""}
    assert pairs(tmp_path) == [(n, n + 1 if n < 7 else None) for n in range(8)]


@pytest.mark.skipif(os.environ.get("WATERSMEET_CASES") != "all", reason="`make cases` runs it")
def test_a_state_is_rebuilt_from_its_history_and_its_stream(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(n, time(52 + 2 * n)) for n in range(12)]
    for file in (rows[:3], rows[3:6]):
        write_history(spark, tmp_path / "history", file)
    write_live(tmp_path / "live", rows[2:6])
    # Orders 0 to 3 are of the history, and pair with orders that come after it.
    text = script(tmp_path, f"USING json OPTIONS (path '{tmp_path}/live')")
    text = text.replace("a.id + 1 = b.id", "a.id + 6 = b.id").replace("10 MINUTES", "2 HOURS")
    full = text.replace("LEFT JOIN", "FULL JOIN")
    run(spark, tmp_path, text, "continuous", stop_after=1)
    # In the history, of which the first file was read.
    run(spark, tmp_path, full, "available_now", accepting="rebuild")
    # Past it, also without the declaration, and again from a checkpoint that was rebuilt.
    for edited, more in ((text, rows[6:9]), (full, rows[9:])):
        without = f"{edited.partition('AFTER')[0]};{edited.partition('2 MINUTES)')[2].partition(';')[2]}"
        write_live(tmp_path / "live", more)
        run(spark, tmp_path, without, "available_now", accepting="rebuild")
    found = [(row["id"], row["next"]) for row in sink_rows(tmp_path / "seen") if row.keys() == {"id", "next"}]
    assert sorted(found) == [(n, n + 6) for n in range(6)]
    next((tmp_path / "history").glob("part-*")).unlink()
    with pytest.raises(WatersmeetError, match="PAST_IS_GONE"):
        run(spark, tmp_path, without.replace("FULL", "LEFT"), "available_now", accepting="rebuild")


class Topic:
    """A topic whose first records can be deleted, as its retention does, and the script that reads it."""

    def __init__(self, kafka: str, name: str, folder: Path) -> None:
        self.topics = pytest.importorskip("faults.topics", reason="confluent-kafka is not installed")
        self.kafka, self.name, self.folder = kafka, name, folder
        self.topics.create(kafka, name, 2)

    def send(self, rows: Sequence[Row], partition: int = 0) -> None:
        """Add rows."""
        self.topics.send_rows(self.kafka, self.name, [{"id": id_, "t": t} for id_, t in rows], partition)

    def delete_before(self, offset: int, partition: int = 0) -> None:
        """Delete the records of a partition before an offset; -1: all."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient

        admin: Any = AdminClient({"bootstrap.servers": self.kafka})
        for done in admin.delete_records([TopicPartition(self.name, partition, offset)]).values():
            done.result()

    def script(self, more: str = "", until: str = "2026-03-01 12:00:00") -> str:
        """The script of the tests above, over the topic."""
        options = f"kafka.bootstrap.servers '{self.kafka}', subscribe '{self.name}', value.format 'json'{more}"
        return script(self.folder, f"USING kafka OPTIONS ({options})", until)


ACCEPTED = ", failOnDataLoss 'false'"


def refusal_of(spark: SparkSession, topic: Topic, text: str) -> tuple[str, str]:
    """The message and the hint with which a script is refused."""
    with pytest.raises(WatersmeetError) as raised:
        run(spark, topic.folder, text, "available_now")
    (refusal,) = raised.value.refusals
    assert refusal.condition == "HISTORY_GAP"
    return refusal.message, refusal.hint


def test_a_topic_that_lost_rows_of_its_own_time_is_refused(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    topic = Topic(kafka, "shortened", tmp_path)
    write_history(spark, tmp_path / "history", [(n, time(50 + n)) for n in range(4)])
    # One minute apart, from ten minutes before noon; the lag is two minutes.
    topic.send([(100 + n, time(50 + n)) for n in range(30)])
    topic.delete_before(7)
    with_accept = topic.script(ACCEPTED)
    run(spark, tmp_path, topic.script().replace("seen", "whole"), "available_now")
    # A row at 11:58 does not say that none of noon came before it, nor does one that has no time.
    topic.send([(0, None)], 1)
    topic.delete_before(8)
    message, hint = refusal_of(spark, topic, topic.script())
    assert (
        "partition 0 of shortened begins at offset 8, with a row of 2026-03-01 11:58:00, with rows up to 2 min"
        in message
    )
    assert hint.startswith("write an `until` after 2026-03-01 12:00:00 that the files reach; or, ")
    assert "add `failOnDataLoss 'false'` to the OPTIONS of USING kafka." in hint
    # What the hint says can be typed.
    run(spark, tmp_path, topic.script(until="2026-03-01 12:00:01").replace("seen", "later"), "available_now")
    topic.delete_before(-1)
    message, hint = refusal_of(spark, topic, topic.script())
    assert "partition 0 of shortened has lost all of its 30 records" in message and hint.startswith("choose a later")
    # Also where the start is chosen: of partition 1, nothing is left out.
    topic.send([(200 + n, time(70 + n)) for n in range(3)])
    message, _ = refusal_of(spark, topic, topic.script(", startingTimestamp '1'"))
    assert "partition 0 of shortened begins at offset 30, with a row of 2026-03-01 12:10:00" in message
    run(spark, tmp_path, with_accept, "available_now")
    assert (tmp_path / "storage" / "checkpoints" / "seen" / "history").is_file()


def test_a_topic_that_loses_rows_while_its_history_is_read_is_refused(
    spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(kafka, "expired", tmp_path)
    write_history(spark, tmp_path / "history", [(n, time(50 + n)) for n in range(4)])
    topic.send([(n, time(60 + n)) for n in range(4, 9)])
    with pytest.raises(WatersmeetError) as raised:
        run(spark, tmp_path, topic.script(), "available_now", on_progress=lambda batch: topic.delete_before(-1))
    assert [refusal.condition for refusal in raised.value.refusals] == ["HISTORY_GAP"]
    message, hint = refusal_of(spark, topic, topic.script())
    assert "partition 0 of expired has lost all of its 5 records" in message
    assert hint.startswith("start again with a new storage folder and a new sink; or, ")
    # Without Kafka's client in the JVM nothing is known: the query goes on, as it does when that is accepted.
    monkeypatch.setattr(introspection, "_DESERIALIZER", "none")
    reported = run(spark, tmp_path, topic.script(), "end")
    assert [batch.phase for batch in reported][-1] == ""


def test_a_topic_that_lost_offsets_before_its_seam_is_refused(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    topic = Topic(kafka, "cut", tmp_path)
    archived = [(n, 0, n) for n in range(4)]
    spark.createDataFrame(archived, "id BIGINT, _partition INT, _offset BIGINT").write.parquet(f"{tmp_path}/history")
    topic.send([(n, None) for n in range(8)])
    topic.delete_before(4)

    def text(first: int) -> str:
        start = json.dumps({"cut": {"0": first, "1": 0}})
        return f"""
        CREATE STREAM cut (id BIGINT, _partition INT, _offset BIGINT) USING kafka OPTIONS (
          kafka.bootstrap.servers '{kafka}', subscribe 'cut', value.format 'json', startingOffsets '{start}'
        ) AFTER parquet OPTIONS (path '{tmp_path}/history', until 'offsets');
        CREATE SINK seen USING json OPTIONS (path '{tmp_path}/seen');
        INSERT INTO seen SELECT STREAM id FROM cut;
        """

    message, hint = refusal_of(spark, topic, text(3))
    assert "partition 0 of cut begins at offset 4, not 3" in message
    assert """write `startingOffsets '{"cut": {"0": 4, "1": 0}}'`""" in hint
    run(spark, tmp_path, text(4), "available_now")
    assert [id_ for id_, _ in pairs(tmp_path)] == [*range(8)]


def test_a_row_on_both_sides_of_the_seam_counts_once_by_its_key(spark: SparkSession, tmp_path: Path) -> None:
    """The files round times, so that neither time nor offset tell which rows the topic repeats: a key does."""
    write_history(spark, tmp_path / "history", [(1, time(58)), (2, time(59))])
    write_live(tmp_path / "live", [(2, time(60)), (3, time(61)), (4, time(90))])
    declared = script(tmp_path, f"USING json OPTIONS (path '{tmp_path}/live')").partition("INSERT")[0]
    view = blocks(ROOT / "docs" / "howto" / "backfill.md", "sql")[1].replace("order_id", "id").replace("at)", "t)")
    run(spark, tmp_path, f"{declared} {view} INSERT INTO seen SELECT STREAM id FROM once;", "end")
    assert [id_ for id_, _ in pairs(tmp_path)] == [1, 2, 3, 4]
