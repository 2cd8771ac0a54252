"""Avro through a real broker and a registry: what comes in, what goes out, schemas that change, and refusals."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession
from tests.registry import Registry, registry

from watersmeet.cli.check import spark_refusals
from watersmeet.cli.script import open_script
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.queries import read_script
from watersmeet.spark.run.running import run_script

topics = pytest.importorskip("faults.topics", reason="confluent-kafka is not installed", exc_type=ImportError)

pytestmark = pytest.mark.spark

_NUMBERS = count(1)
FIRST = {
    "type": "record", "name": "shop.Order", "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "count", "type": "int"},
    ],
}  # fmt: skip
# A field is new and has a default, one has another name, one a wider type, and two stand in another order.
SECOND = {
    "type": "record", "name": "shop.Order", "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "number", "type": "long", "aliases": ["id"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "count", "type": "long"},
        {"name": "currency", "type": "string", "default": "EUR"},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}  # fmt: skip
COLUMNS = "number BIGINT, price DECIMAL(11,2), at TIMESTAMP, count BIGINT, currency STRING, tags ARRAY<STRING>"


@pytest.fixture
def topic(kafka: str) -> str:
    """The name of a topic that is not there yet."""
    return f"avro-{next(_NUMBERS)}"


@pytest.fixture
def registry_server() -> Iterator[Registry]:
    with registry("me:hunter22") as made:
        yield made


def encode(schema: Any, row: Any, number: int | None) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return (b"" if number is None else b"\0" + number.to_bytes(4, "big")) + out.getvalue()


def order(number: int, name: str = "id", **more: Any) -> dict[str, Any]:
    at = datetime(2026, 3, 2, 10, number, tzinfo=UTC)
    return {name: number, "price": Decimal(f"{number}.50"), "at": at, "count": number, **more}


def options(registry_server: Registry) -> str:
    return (
        f", value.format 'avro', schema.registry.url '{registry_server.url}', schema.registry.user 'me', "
        "schema.registry.password '${env:REGISTRY_PASSWORD}'"
    )


def source(kafka: str, topic: str, more: str, columns: str = COLUMNS) -> str:
    told = f"kafka.bootstrap.servers '{kafka}', subscribe '{topic}', startingOffsets 'earliest'{more}"
    return f"CREATE STREAM orders ({columns}) USING kafka OPTIONS ({told});\n"


def run(spark: SparkSession, text: str, folder: Path) -> None:
    run_script(read_script(text), spark=spark, storage=folder / "storage", trigger="available_now")


def refusal_of(spark: SparkSession, text: str, folder: Path) -> Refusal:
    with pytest.raises(WatersmeetError) as raised:
        run(spark, text, folder)
    return raised.value.refusals[0]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.rglob("*.json")) for line in file.read_text().splitlines()]


def test_values_of_several_schemas_are_read_and_written_while_schemas_are_new(
    spark: SparkSession,
    kafka: str,
    topic: str,
    registry_server: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "hunter22")
    topics.create(kafka, topic, 1)
    first, second = registry_server.add(f"{topic}-value", FIRST), registry_server.add(f"{topic}-value", SECOND)
    values = [encode(FIRST, order(1), first), encode(SECOND, order(2, "number", currency="USD", tags=["x"]), second)]
    broken = [values[0][:-1], b"text", b"\0\0\0\x03\xe7abc", values[1] + b"\0"]
    topics.send(kafka, topic, [topics.Record(None, value) for value in (*values, *broken)])
    text = source(kafka, topic, options(registry_server)) + (
        f"CREATE SINK out USING kafka OPTIONS (kafka.bootstrap.servers '{kafka}', topic '{topic}-out', partitions '1', "
        f"delivery 'exactly_once'{options(registry_server)});\n"
        f"CREATE SINK bad USING json OPTIONS (path '{tmp_path / 'bad'}');\n"
        "INSERT INTO out SELECT STREAM * FROM orders MALFORMED INTO bad;"
    )
    run(spark, text, tmp_path)
    # A schema that was not there when the query was planned the last time: with a field more.
    third_schema = {**SECOND, "fields": [{"name": "new", "type": "double"}, *SECOND["fields"]]}
    third = registry_server.add("elsewhere", third_schema)
    row = order(3, "number", currency="GBP", tags=[], new=0.5)
    topics.send(kafka, topic, [topics.Record(None, encode(third_schema, row, third))])
    run(spark, text, tmp_path)

    found = topics.read(kafka, f"{topic}-out")
    (made,) = registry_server.subjects[f"{topic}-out-value"]
    schema = fastavro.parse_schema(json.loads(registry_server.schemas[made - 1]["schema"]))
    assert all(record.value[:5] == b"\0" + made.to_bytes(4, "big") for record in found)
    read = [fastavro.schemaless_reader(io.BytesIO(record.value[5:]), schema) for record in found]
    assert read == [
        order(1, "number", currency="EUR", tags=[]), order(2, "number", currency="USD", tags=["x"]),
        order(3, "number", currency="GBP", tags=[]),
    ]  # fmt: skip
    reasons = {(row["place"].rsplit(" ", 1)[1], row["reason"]) for row in rows_of(tmp_path / "bad")}
    assert reasons == {
        ("2", f"its bytes are not a value of schema {first}"), ("3", "it does not begin with the number of a schema"),
        ("4", "schema 999: the registry does not have it"), ("5", f"its bytes are not a value of schema {second}"),
    }  # fmt: skip


@pytest.mark.smoke
def test_a_table_goes_to_avro_and_comes_back(
    spark: SparkSession,
    kafka: str,
    topic: str,
    registry_server: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "hunter22")
    # All have one schema, and no number.
    schema = {"type": "record", "name": "Stock", "fields": [
        {"name": "id", "type": "int"}, {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
    ]}  # fmt: skip
    file = tmp_path / "stock.avsc"
    file.write_text(json.dumps(schema))
    topics.create(kafka, topic, 1)
    rows = [(1, date(2026, 3, 2)), (2, None), (1, date(1950, 1, 1))]
    sent = [topics.Record(str(n).encode(), encode(schema, {"id": n, "day": day}, None)) for n, day in rows]
    topics.send(kafka, topic, [*sent, topics.Record(b"2", None)])
    table = (
        "CREATE TABLE stock (id INT, day DATE, PRIMARY KEY (id)) USING kafka OPTIONS (kafka.bootstrap.servers "
        f"'{kafka}', subscribe '{topic}', startingOffsets 'earliest', value.format 'avro', "
    )
    run(
        spark,
        f"{table} avro.schema '${{file:{file}}}');\n"
        f"CREATE SINK out USING kafka OPTIONS (kafka.bootstrap.servers '{kafka}', topic '{topic}-out', partitions '1', "
        f"changes 'upsert'{options(registry_server)});\n"
        "INSERT INTO out SELECT TABLE id, day FROM stock;",
        tmp_path,
    )
    (record,) = [record for record in topics.read(kafka, f"{topic}-out") if record.value is not None]
    made = fastavro.parse_schema(json.loads(registry_server.schemas[0]["schema"]))
    assert record.key == b"1"
    read = fastavro.schemaless_reader(io.BytesIO(record.value[5:]), made)
    assert read == {"id": 1, "day": date(1950, 1, 1)}


def test_keys_come_and_go_in_avro(
    spark: SparkSession,
    kafka: str,
    topic: str,
    registry_server: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "hunter22")
    # The key of a table is a number of its own, that of a stream a record.
    count = {"type": "record", "name": "Count", "fields": [{"name": "n", "type": "int"}]}
    place = {"type": "record", "name": "Place", "fields": [
        {"name": "id", "type": "int"}, {"name": "region", "type": ["null", "string"]},
    ]}  # fmt: skip
    value, whole, record = (
        registry_server.add("count", count),
        registry_server.add(f"{topic}-key", '"long"'),
        registry_server.add("places", place),
    )
    topics.create(kafka, topic, 1)
    topics.create(kafka, f"{topic}-seen", 1)
    keys = [encode("long", n, whole) for n in (1, 2)]
    sent = [(keys[0], 5), (keys[1], 6), (keys[0], None), (None, 8), (keys[1][:-1], 9), (keys[1], 7)]
    records = [topics.Record(key, n and encode(count, {"n": n}, value)) for key, n in sent]
    topics.send(kafka, topic, records)
    named = [encode(place, {"id": n, "region": region}, record) for n, region in ((7, "north"), (8, None))]
    topics.send(kafka, f"{topic}-seen", [topics.Record(key, encode(count, {"n": 1}, value)) for key in named])
    avro = f"{options(registry_server)}, key.format 'avro'"
    read = f"kafka.bootstrap.servers '{kafka}', startingOffsets 'earliest', schema.registry.subject 'count'"
    write = f"USING kafka OPTIONS (kafka.bootstrap.servers '{kafka}', partitions '1'"
    text = f"""
    CREATE TABLE stock (id BIGINT, n INT, PRIMARY KEY (id))
        USING kafka OPTIONS ({read}, subscribe '{topic}', malformed 'drop'{avro});
    CREATE STREAM seen (_key STRUCT<region: STRING, id: INT>, n INT)
        USING kafka OPTIONS ({read}, subscribe '{topic}-seen', schema.registry.key.subject 'places'{avro});
    CREATE SINK left_over {write}, topic '{topic}-out', changes 'upsert'{avro});
    CREATE SINK regions {write}, topic '{topic}-regions'{avro});
    INSERT INTO left_over SELECT TABLE id, n FROM stock;
    INSERT INTO regions SELECT STREAM _key.id AS id, _key.region AS region, n FROM seen GROUP BY id, region;
    """
    run(spark, text, tmp_path)

    def decode(name: str, part: str, bytes_: bytes | None) -> Any:
        (number,) = registry_server.subjects[f"{topic}-{name}-{part}"]
        schema = fastavro.parse_schema(json.loads(registry_server.schemas[number - 1]["schema"]))
        if bytes_ is None:
            return None
        assert bytes_[:5] == b"\0" + number.to_bytes(4, "big")
        return fastavro.schemaless_reader(io.BytesIO(bytes_[5:]), schema)

    def decode_topic(name: str) -> list[tuple[Any, Any]]:
        found = topics.read(kafka, f"{topic}-{name}")
        return [(decode(name, "key", one.key), decode(name, "value", one.value)) for one in found]

    assert decode_topic("out") == [(2, {"id": 2, "n": 7})]
    (number,) = registry_server.subjects[f"{topic}-out-key"]
    assert json.loads(registry_server.schemas[number - 1]["schema"]) == "long"
    assert sorted(decode_topic("regions"), key=str) == [
        ({"id": 7, "region": "north"}, {"id": 7, "region": "north", "n": 1}),
        ({"id": 8, "region": None}, {"id": 8, "region": None, "n": 1}),
    ]


ROW = {
    "type": "record", "name": "Value", "fields": [
        {"name": "id", "type": "int"},
        {"name": "price", "type": ["null", {
            "type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2,
            "connect.name": "org.apache.kafka.connect.data.Decimal",
        }], "default": None},
        {"name": "made", "type": ["null", {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}]},
        {"name": "seen", "type": {"type": "long", "connect.name": "io.debezium.time.Timestamp"}},
        {"name": "sold", "type": {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}},
        {"name": "day", "type": {"type": "int", "connect.name": "io.debezium.time.Date"}},
    ],
}  # fmt: skip
ENVELOPE = {
    "type": "record", "name": "Envelope", "namespace": "shop.public.parts", "fields": [
        {"name": "before", "type": ["null", ROW], "default": None}, {"name": "after", "type": ["null", "Value"]},
        {"name": "source", "type": {"type": "record", "name": "Source", "fields": [{"name": "lsn", "type": "long"}]}},
        {"name": "op", "type": "string"}, {"name": "ts_ms", "type": ["null", "long"]},
    ],
}  # fmt: skip


def test_debezium_in_avro_is_followed(
    spark: SparkSession,
    kafka: str,
    topic: str,
    registry_server: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "hunter22")
    number = registry_server.add(f"{topic}-value", ENVELOPE)
    topics.create(kafka, topic, 1)

    def row(n: int, price: str | None) -> dict[str, Any]:
        at = 1_772_445_600_000_000 + 1000 * n
        made = None if price is None else at
        cost = None if price is None else Decimal(price)
        return {"id": n, "price": cost, "made": made, "seen": at // 1000, "sold": "2026-03-02T10:00:00Z", "day": n}

    def change(op: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> bytes:
        envelope = {"before": before, "after": after, "source": {"lsn": 1}, "op": op, "ts_ms": None}
        return encode(ENVELOPE, envelope, number)

    values = [
        change("r", None, row(1, "1.50")), change("c", None, row(2, None)), change("c", None, row(3, "3.00")),
        change("u", row(1, "1.50"), row(1, "-99.25")), change("d", row(3, "3.00"), None), None, b"broken",
    ]  # fmt: skip
    topics.send(kafka, topic, [topics.Record(b"k", value) for value in values])
    columns = "id INT, price DECIMAL(9,2), made TIMESTAMP, seen TIMESTAMP, sold TIMESTAMP, day DATE, PRIMARY KEY (id)"
    text = source(kafka, topic, f", malformed 'drop'{options(registry_server)}", columns)
    table = text.replace("CREATE STREAM", "CREATE TABLE").rstrip(";\n") + " CHANGES FROM debezium;"
    sink = f"CREATE SINK out USING json OPTIONS (path '{tmp_path / 'out'}', changes 'snapshot');"
    run(spark, f"{table} {sink} INSERT INTO out SELECT TABLE * FROM orders;", tmp_path)
    day = "2026-03-02T10:00:00"
    found = sorted(rows_of(tmp_path / "out"), key=lambda one: one["id"])
    assert found == [
        {
            "id": 1, "price": -99.25, "made": f"{day}.001Z", "seen": f"{day}.001Z", "sold": f"{day}.000Z",
            "day": "1970-01-02",
        },
        {"id": 2, "seen": f"{day}.002Z", "sold": f"{day}.000Z", "day": "1970-01-03"},
    ]  # fmt: skip
    other = table.replace("day DATE", "night DATE")
    found = refusal_of(spark, f"{other} {sink} INSERT INTO out SELECT TABLE * FROM orders;", tmp_path / "other")
    assert found.condition == "AVRO_SCHEMA" and "its rows have no `night`" in found.message


def test_schemas_that_do_not_fit_are_refused_before_the_start(
    spark: SparkSession,
    kafka: str,
    topic: str,
    registry_server: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "hunter22")
    topics.create(kafka, topic, 1)
    select = f"CREATE SINK j USING json OPTIONS (path '{tmp_path / 'j'}'); INSERT INTO j SELECT STREAM * FROM orders;"

    def refusal_for(more: str, columns: str = COLUMNS, rest: str = select) -> Refusal:
        return refusal_of(spark, source(kafka, topic, more, columns) + rest, tmp_path)

    found = refusal_for(options(registry_server))
    assert found.condition == "AVRO_SCHEMA" and f"`{topic}-value`" in found.message
    assert "schema.registry.subject" in found.hint
    registry_server.add(f"{topic}-value", SECOND)
    found = refusal_for(options(registry_server), "number BIGINT, colour STRING")
    assert found.condition == "AVRO_SCHEMA" and "no `colour`" in found.message and "`currency`" in found.hint
    found = refusal_for(options(registry_server), "number INT")
    assert "`number`: it is long, not INT" in found.message and found.place is not None
    found = refusal_for(options(registry_server).replace("'me'", "'you'"))
    assert found.condition == "REGISTRY_UNREACHABLE" and "401 (Unauthorized)" in found.message
    assert "hunter22" not in str(WatersmeetError([found]))
    found = refusal_for(options(registry_server).replace(registry_server.url, "http://127.0.0.1:9"))
    assert found.condition == "REGISTRY_UNREACHABLE" and "refused" in found.message

    registry_server.closed.add(f"{topic}-out-value")
    target = f"CREATE SINK out USING kafka OPTIONS (kafka.bootstrap.servers '{kafka}', topic '{topic}-out'"
    into = f"{target}, partitions '1'{options(registry_server)}); INSERT INTO out SELECT STREAM "
    found = refusal_for(options(registry_server), rest=f"{into} * FROM orders;")
    assert found.condition == "AVRO_SCHEMA" and "incompatible" in found.message
    found = refusal_for(options(registry_server), rest=f"{into} number AS `the number` FROM orders;")
    assert found.condition == "AVRO_SCHEMA" and "`the number`" in found.message
    found = refusal_for(", value.format 'avro'")
    assert found.condition == "WRONG_OPTION" and "avro.schema" in found.hint
    found = refusal_for(
        options(registry_server), rest=f"{target}, value.format 'avro'); INSERT INTO out SELECT STREAM * FROM orders;"
    )
    assert found.condition == "WRONG_OPTION" and "schema.registry.url" in found.hint


def test_a_column_that_select_gains_gives_the_subject_a_schema_that_fits(
    spark: SparkSession,
    kafka: str,
    topic: str,
    registry_server: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "hunter22")
    (tmp_path / "in").mkdir()

    def prepare_sink(columns: str) -> None:
        text = f"""
            CREATE STREAM orders (number BIGINT, place STRING) USING json OPTIONS (path '{tmp_path}/in');
            CREATE SINK out USING kafka OPTIONS (
                kafka.bootstrap.servers '{kafka}', topic '{topic}-new', partitions '1'{options(registry_server)}
            );
            INSERT INTO out SELECT STREAM {columns} FROM orders;
        """
        run_script(read_script(text), spark=spark, storage=tmp_path / columns[-5:], trigger="available_now")

    prepare_sink("number")
    prepare_sink("number, place")
    versions = registry_server.subjects[f"{topic}-new-value"]
    assert [field["name"] for field in json.loads(registry_server.schemas[versions[-1] - 1]["schema"])["fields"]] == [
        "number", "place",
    ]  # fmt: skip
    with pytest.raises(WatersmeetError, match=r"AVRO_SCHEMA.*the field `one` is new and has no default") as caught:
        prepare_sink("number, place, 1 AS one")
    assert "`nullif(n, -1) AS n`" in str(caught.value.refusals[0].hint)
    assert len(versions) == 2
    prepare_sink("number, place, nullif(1, -1) AS one")
    assert len(versions) == 3


def test_a_deep_check_makes_no_topic_and_registers_no_schema(
    spark: SparkSession,
    kafka: str,
    topic: str,
    registry_server: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "hunter22")
    topics.create(kafka, topic, 1)
    registry_server.add(f"{topic}-value", SECOND)
    told = f"kafka.bootstrap.servers '{kafka}', topic '{topic}-out', partitions '1'{options(registry_server)}"
    text = source(kafka, topic, options(registry_server)) + f"CREATE SINK out USING kafka OPTIONS ({told}); "
    file = tmp_path / "checked.sql"

    def conditions(select: str) -> list[str]:
        file.write_text(f"{text} INSERT INTO out SELECT STREAM {select} FROM orders;")
        found = spark_refusals(open_script(file, "absolute"), spark, tmp_path / "storage", tmp_path)
        return [refusal.condition for refusal in found]

    assert conditions("*") == []
    assert conditions("number AS `the number`") == ["AVRO_SCHEMA"]
    assert [*registry_server.subjects] == [f"{topic}-value"]
    # It would be refused if the topic were there.
    topics.create(kafka, f"{topic}-out", 1)
