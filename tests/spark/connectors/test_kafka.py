"""Against a real broker: what is read from topics and written to them, refusals, and batches that are repeated."""

from __future__ import annotations

import json
import os
import re
import struct
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import typer
from pyspark.sql import DataFrame, SparkSession

from watersmeet.catalog import Sink
from watersmeet.cli.demo import make_streams, run_kafka_demo
from watersmeet.cli.run import Cluster
from watersmeet.cli.servers import Broker
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.metrics.progress import Progress
from watersmeet.queries import analyze, read_script
from watersmeet.spark.connectors.sinks import SinkTarget
from watersmeet.spark.run.running import Trigger, run_script
from watersmeet.spark.run.watching import Listeners
from watersmeet.tools.advise.arrivals import disorder, numbers_of, sample_source
from watersmeet.tools.trace import questions

topics = pytest.importorskip("faults.topics", reason="confluent-kafka is not installed", exc_type=ImportError)
Record = topics.Record

pytestmark = pytest.mark.spark

_NUMBERS = count(1)


@pytest.fixture
def topic(kafka: str) -> str:
    """The name of a topic that is not there yet."""
    return f"topic-{next(_NUMBERS)}"


def run(spark: SparkSession, text: str, folder: Path, trigger: Trigger = "available_now") -> list[Progress]:
    seen: list[Progress] = []
    run_script(
        read_script(text),
        spark=spark,
        storage=folder / "storage",
        trigger=trigger,
        listeners=Listeners(on_progress=seen.append),
    )
    return seen


def refusal_of(spark: SparkSession, text: str, folder: Path) -> Refusal:
    with pytest.raises(WatersmeetError) as raised:
        run(spark, text, folder)
    return raised.value.refusals[0]


def source(kafka: str, topic: str, more: str = "", columns: str = "id BIGINT, n INT", name: str = "events") -> str:
    options = f"kafka.bootstrap.servers '{kafka}', subscribe '{topic}', startingOffsets 'earliest'{more}"
    return f"CREATE STREAM {name} ({columns}) USING kafka OPTIONS ({options});\n"


def sink(kafka: str, topic: str, more: str = "", name: str = "result") -> str:
    options = f"kafka.bootstrap.servers '{kafka}', topic '{topic}', value.format 'json'{more}"
    return f"CREATE SINK {name} USING kafka OPTIONS ({options});\n"


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.rglob("*.json")) for line in file.read_text().splitlines()]


def test_malformed_values_and_keys_are_reported_with_their_place(
    spark: SparkSession, kafka: str, topic: str, tmp_path: Path
) -> None:
    topics.create(kafka, topic, 2)
    key = (7).to_bytes(8, "big")
    topics.send(kafka, topic, [
        Record(key, b'{"id": 1, "n": 1}', 0),
        Record(key, b"garbage", 0),
        Record(key, b'{"id": 2, "n": "many"}', 1),
        Record(b"abc", b'{"id": 3, "n": 3}', 1),
    ])  # fmt: skip
    declared = source(kafka, topic, ", value.format 'json', key.format 'long'")
    sinks = "".join(
        f"CREATE SINK {name} USING json OPTIONS (path '{tmp_path}/{name}');\n" for name in ("result", "unread")
    )
    query = "INSERT INTO result SELECT STREAM e._key, e.id, e.n FROM events e"
    seen = run(spark, f"{declared}{sinks}{query} MALFORMED INTO unread;", tmp_path)
    assert rows_of(tmp_path / "result") == [{"_key": 7, "id": 1, "n": 1}]
    assert sum(one.malformed for one in seen) == 3
    assert Counter((row["place"], row["reason"], row["value"]) for row in rows_of(tmp_path / "unread")) == Counter([
        (f"{topic}, partition 0, offset 1", "it is not a JSON object of that form", "garbage"),
        (f"{topic}, partition 1, offset 0", "`n` is INT and the text has many", '{"id": 2, "n": "many"}'),
        (f"{topic}, partition 1, offset 1", "its key is a long of 8 bytes and has 3", '{"id": 3, "n": 3}'),
    ])  # fmt: skip
    found = refusal_of(spark, f"{declared}{sinks}{query};".replace("/result'", "/other'"), tmp_path / "other")
    assert f"{topic}, partition " in found.message and "malformed 'drop'" in found.hint
    dropped = f"{declared}{sinks}{query};".replace("key.format", "malformed 'drop', key.format")
    run(spark, dropped.replace("/result'", "/third'"), tmp_path / "dropped")
    assert rows_of(tmp_path / "third") == [{"_key": 7, "id": 1, "n": 1}]


def test_stored_keys_are_written_and_topics_made(spark: SparkSession, kafka: str, topic: str, tmp_path: Path) -> None:
    topics.create(kafka, topic)
    topics.send_rows(kafka, topic, [{"id": id_, "n": id_ % 3} for id_ in range(9)])
    declared = source(kafka, topic, ", value.format 'json'")
    made = sink(kafka, f"{topic}-out", ", partitions '3', replication '1'")
    run(
        spark,
        f"{declared}{made}INSERT INTO result SELECT STREAM e.id, e.n FROM events e STORE KEY AS string;",
        tmp_path,
    )
    found = topics.read(kafka, f"{topic}-out")
    assert [one.key for one in found] == [None] * 9, "no key was asked for"
    keyed = "SELECT STREAM e.id AS _key, e.n FROM events e STORE KEY AS string"
    made = sink(kafka, f"{topic}-keyed", ", partitions '3'")
    run(spark, f"{declared}{made}INSERT INTO result {keyed};", tmp_path / "keyed")
    found = topics.read(kafka, f"{topic}-keyed")
    assert sorted((one.key, one.row["n"]) for one in found) == [(str(i).encode(), i % 3) for i in range(9)]
    assert len({one.partition for one in found}) > 1
    headers = [dict(one.headers) for one in found]
    assert {one["watersmeet.batch"] for one in headers} == {b"0"}
    assert len({one["watersmeet.position"] for one in headers}) == 9


def test_topics_and_servers_that_are_not_there(spark: SparkSession, kafka: str, topic: str, tmp_path: Path) -> None:
    begun = time.monotonic()
    declared = source(kafka, topic, ", value.format 'json'")
    shown = "CREATE SINK result USING noop;\n"
    query = "INSERT INTO result SELECT STREAM e.id, e.n FROM events e;"
    found = refusal_of(spark, f"{declared}{shown}{query}", tmp_path)
    assert (found.condition, found.message) == ("UNKNOWN_TOPIC", f"Kafka has no topic `{topic}` at {kafka}.")
    topics.create(kafka, topic)
    topics.send_rows(kafka, topic, [{"id": 1, "n": 1}])
    found = refusal_of(spark, f"{declared}{sink(kafka, f'{topic}-none')}{query}", tmp_path / "second")
    assert (found.condition, found.message) == ("UNKNOWN_TOPIC", f"Kafka has no topic `{topic}-none` at {kafka}.")
    found = refusal_of(spark, f"{declared.replace(kafka, '127.0.0.1:1')}{shown}{query}", tmp_path / "third")
    assert found.condition == "BROKER_UNREACHABLE"
    assert time.monotonic() - begun < 40


def test_a_broker_that_does_not_start_says_why(tmp_path: Path) -> None:
    made = Broker(Path("/bin/ls"), [], tmp_path, 1)
    with pytest.raises(WatersmeetError, match="BROKER_NOT_STARTED"):
        made.start()


def test_of_two_who_write_for_one_checkpoint_the_later_one_does(
    spark: SparkSession, kafka: str, topic: str, tmp_path: Path
) -> None:
    from watersmeet.spark.connectors.kafka import Transactions

    topics.create(kafka, topic)
    out = Sink("out", "kafka", {"kafka.bootstrap.servers": kafka, "topic": topic, "value.format": "json"})
    one, other = (Transactions(SinkTarget(out, "q", tmp_path / "checkpoint"), topic) for _ in range(2))
    batch = spark.range(3)
    one.write(batch, 0)
    other.write(batch, 0)
    other.write(batch, 1)
    with pytest.raises(WatersmeetError, match=r"TOPIC_NOT_WRITTEN.*fenced"):
        one.write(batch, 2)
    # Begun again it is the later one, and knows what there is.
    one.write(batch, 1)
    one.write(batch, 2)
    assert sorted(found.row["id"] for found in topics.read(kafka, topic)) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.fixture
def in_files(tmp_path: Path) -> Iterator[str]:
    """A source of three batches with two rows each."""
    folder = tmp_path / "in"
    folder.mkdir()
    for batch in range(3):
        rows = ({"id": batch * 2 + i, "n": batch} for i in range(2))
        file = folder / f"{batch}.json"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        # Spark takes files in the order of their times.
        os.utime(file, (1_700_000_000 + batch, 1_700_000_000 + batch))
    yield f"CREATE STREAM events (id BIGINT, n INT) USING json OPTIONS (path '{folder}', maxFilesPerTrigger '1');\n"


def test_a_batch_is_written_once_whenever_it_fails(
    spark: SparkSession, kafka: str, topic: str, tmp_path: Path, in_files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from watersmeet.spark.connectors.kafka import Transactions

    write, send = Transactions.write, Transactions._send

    def fail_after(self: Transactions, batch: DataFrame, number: int) -> None:
        write(self, batch, number)
        if number == 0:
            raise RuntimeError("killed between the transaction and Spark's commit")

    def fail_within(self: Transactions, producer: Any, batch: DataFrame, number: int) -> None:
        if number == 1:
            producer.begin_transaction()
            for _ in range(2):
                producer.produce(self.topic, b'{"id": -1}')
            producer.flush()
            raise RuntimeError("killed within the transaction")
        send(self, producer, batch, number)

    made = sink(kafka, topic, ", delivery 'exactly_once', partitions '2'")
    text = f"{in_files}{made}INSERT INTO result SELECT STREAM e.id, e.n FROM events e;"
    monkeypatch.setattr(Transactions, "write", fail_after)
    assert "killed between" in refusal_of(spark, text, tmp_path).message
    assert sorted(one.row["id"] for one in topics.read(kafka, topic)) == [0, 1]
    monkeypatch.setattr(Transactions, "write", write)
    monkeypatch.setattr(Transactions, "_send", fail_within)
    # No one is left who would end the transaction.
    monkeypatch.setattr(Transactions, "_give_up", lambda self: setattr(self, "_producer", None))
    assert "killed within" in refusal_of(spark, text, tmp_path).message
    monkeypatch.setattr(Transactions, "_send", send)
    run(spark, text, tmp_path)
    assert sorted(one.row["id"] for one in topics.read(kafka, topic)) == [0, 1, 2, 3, 4, 5]
    # Kafka forgets the groups of those who are silent for long.
    for name in ("2", ".2.crc"):
        (tmp_path / "storage" / "checkpoints" / "result" / "commits" / name).unlink(missing_ok=True)
    topics.forget_groups(kafka, "watersmeet-result-")
    found = refusal_of(spark, text, tmp_path)
    expected = Refusal("BATCH_NOT_KNOWN", {"topic": topic, "number": "2", "name": "result"})
    assert expected.message in found.message and found.hint == expected.hint
    run(spark, text.replace("exactly_once", "at_least_once"), tmp_path)
    assert sorted(one.row["id"] for one in topics.read(kafka, topic)) == [0, 1, 2, 3, 4, 4, 5, 5]


SOURCE = """CREATE STREAM scans (v STRING, _topic STRING, _partition INT, _offset BIGINT, _timestamp TIMESTAMP,
    _headers ARRAY<STRUCT<key: STRING, value: BINARY>>) USING kafka OPTIONS (
    kafka.bootstrap.servers '{kafka}', subscribePattern '{topic}-.*', value.format 'raw', {start});
CREATE SINK result USING json OPTIONS (path '{folder}/result');
INSERT INTO result SELECT STREAM v, _key, _topic AS topic, _partition AS part, _offset AS o,
    unix_millis(_timestamp) AS t, array_join(transform(_headers, h -> concat(h.key, '=', string(h.value))), ',') AS h
FROM scans;
"""


def test_metadata_of_records_can_be_named_and_a_query_begins_at_the_given_place(
    spark: SparkSession, kafka: str, topic: str, tmp_path: Path
) -> None:
    for name in "ab":
        topics.create(kafka, f"{topic}-{name}")
        records = [
            Record(b"k", f"{name}{i}".encode(), 0, 1_700_000_000_000 + i * 1000, (("n", str(i).encode()),))
            for i in range(3)
        ]
        topics.send(kafka, f"{topic}-{name}", records)

    def rows_from(start: str, folder: str) -> list[dict[str, Any]]:
        place = tmp_path / folder
        run(spark, SOURCE.format(kafka=kafka, topic=topic, start=start, folder=place), place)
        return sorted(rows_of(place / "result"), key=lambda row: row["v"])

    everything = rows_from("startingOffsets 'earliest'", "all")
    assert [row["v"] for row in everything] == ["a0", "a1", "a2", "b0", "b1", "b2"]
    told = {"topic": f"{topic}-b", "part": 0, "o": 1, "t": 1_700_000_001_000, "h": "n=1", "_key": "k", "v": "b1"}
    assert everything[4] == told
    assert [row["v"] for row in rows_from("startingTimestamp '1700000001500'", "time")] == ["a2", "b2"]
    offsets = json.dumps({f"{topic}-a": {"0": 1}, f"{topic}-b": {"0": -1}})
    assert [row["v"] for row in rows_from(f"startingOffsets '{offsets}'", "offsets")] == ["a1", "a2"]


def test_every_partition_has_a_watermark_of_its_own(
    spark: SparkSession, kafka: str, topic: str, tmp_path: Path
) -> None:
    topics.create(kafka, topic, 2)
    watermark = ", value.format 'json', maxOffsetsPerTrigger '2'"
    columns = "id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0"
    declared = source(kafka, topic, watermark, columns)
    # One partition is far ahead of the other.
    for number in range(3):
        topics.send_rows(kafka, topic, [{"id": number, "t": 1000 + number}], 0)
        topics.send_rows(kafka, topic, [{"id": number, "t": number}], 1)
    query = f"""{declared}CREATE SINK result USING json OPTIONS (path '{tmp_path}/result');
        INSERT INTO result SELECT STREAM a.id, a.t, b.t AS u FROM events a JOIN events b WITHIN 5 ON a.id = b.id;"""
    seen = run(spark, query, tmp_path)
    assert sum(one.late for one in seen) == 0 and len(seen) > 2
    # Of six records a batch takes two.
    assert [one.backlog[topic] for one in seen[:3]] == [4, 2, 0]
    assert sorted((row["id"], row["t"]) for row in rows_of(tmp_path / "result")) == sorted(
        (number, t) for number in range(3) for t in (number, 1000 + number)
    )
    script = read_script(query)
    [asked] = questions.find_queries(script, analyze(script), tmp_path / "storage", "", None)
    read = questions.read(spark, asked)
    found, told = questions.summary(read), read.build_lineage()
    assert (found.counts["rows in"], found.counts["matched"], found.counts["late"]) == (12, 12, 0)
    assert len(told.matches) == sum(one.matched for one in seen)
    assert {one.where for one in told.arrivals} == {
        f"{topic}, partition {partition}, offset {offset}" for partition in (0, 1) for offset in range(3)
    }
    assert len({one.batch for one in told.arrivals}) == 3 and found.unknown == ()


@pytest.mark.parametrize("split", ["minPartitions '7'", "maxRecordsPerPartition '90'"])
def test_ranges_of_a_partition_stay_in_the_order_of_their_offsets(
    spark: SparkSession, kafka: str, topic: str, tmp_path: Path, split: str
) -> None:
    topics.create(kafka, topic, 2)
    records = [(number % 5, json.dumps({"id": number % 5, "n": number}).encode()) for number in range(1_000)]
    topics.send(kafka, topic, [Record(None, value, key % 2) for key, value in records])
    declared = source(kafka, topic, f", value.format 'json', {split}", "id BIGINT, n INT, PRIMARY KEY (id)")
    result = f"CREATE SINK result USING json OPTIONS (path '{tmp_path}/result', changes 'log');\n"
    query = "INSERT INTO result SELECT TABLE e.id, e.n FROM events e;"
    run(spark, declared.replace("CREATE STREAM", "CREATE TABLE") + result + query, tmp_path)
    assert {row["id"]: row["n"] for row in rows_of(tmp_path / "result")} == {key: 995 + key for key in range(5)}
    assert len(rows_of(tmp_path / "result")) == 5


def test_the_page_on_kafka_says_what_happens(
    spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "kafka.md").read_text("utf-8")
    parts = dict(re.findall(r"^```((?:json )?\w+)\n(.*?)^```$", page[: page.index("## The connector")], re.M | re.S))
    for name in ("orders", "payments"):
        topics.create(kafka, name, 2)
        topics.send_rows(kafka, name, map(json.loads, parts[f"json {name}"].splitlines()))
    monkeypatch.setenv("KAFKA", kafka)
    run(spark, parts["sql"], tmp_path, "end")
    found = topics.read(kafka, "paid")
    assert sorted((one.row for one in found), key=lambda row: row["id"]) == [
        json.loads(line) for line in parts["json paid"].splitlines()
    ]


@pytest.mark.smoke
def test_keys_come_out_as_they_went_in(spark: SparkSession, kafka: str, topic: str, tmp_path: Path) -> None:
    values = [0, 1, -1, 2**31 - 1, -(2**31), 12]
    rows = "".join(f'{{"k": {value}}}\n' for value in values)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.json").write_text(rows)
    text = f"CREATE STREAM events (k BIGINT) USING json OPTIONS (path '{tmp_path}/in');\n"
    for format_ in ("int", "long", "double", "string"):
        more = f", partitions '1', key.format '{format_}'"
        text += sink(kafka, f"{topic}-{format_}", more, format_)
        text += f"INSERT INTO {format_} SELECT STREAM k AS _key, k FROM events;\n"
    run(spark, text, tmp_path)
    for format_, form in (("int", ">i"), ("long", ">q"), ("double", ">d")):
        found = topics.read(kafka, f"{topic}-{format_}")
        assert [one.key for one in found] == [struct.pack(form, value) for value in values]
        assert [one.row["k"] for one in found] == values
    assert [one.key for one in topics.read(kafka, f"{topic}-string")] == [str(value).encode() for value in values]


@pytest.mark.skipif(os.environ.get("WATERSMEET_CASES") != "all", reason="`make cases` runs it")
@pytest.mark.usefixtures("kafka")
def test_the_demo_over_kafka_agrees_with_the_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        run_kafka_demo(tmp_path / "demo", Cluster(master="local[2]"), make_streams(orders=6000), seconds=1)
    shown = capsys.readouterr().out
    assert ended.value.exit_code == 0, shown
    assert shown.count("✓") == 3 and "All pairs are correct." in shown


def test_advice_takes_each_partition_by_itself(spark: SparkSession, kafka: str, topic: str) -> None:
    """Records of one partition are in order, though those of the other are far behind them."""
    topics.create(kafka, topic, 2)
    rows = [{"id": n, "t": 1000 + 10 * n} for n in range(40)]
    topics.send_rows(kafka, topic, rows[20:], 0)
    topics.send_rows(kafka, topic, rows[:20], 1)
    text = source(kafka, topic, ", value.format 'json'", "id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0")
    script = read_script(text)
    found = sample_source(spark, script, script.sources[0], 100)
    assert found.order.startswith("the order of their partitions") and found.is_all
    times, there = numbers_of(found.column("t"))
    assert there.sum() == 40 and found.partition is not None and set(found.partition) == {0, 1}
    assert disorder(times, there, found.partition).is_ordered
    assert sample_source(spark, script, script.sources[0], 10).rows.num_rows == 10
