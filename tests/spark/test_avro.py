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
def known() -> Iterator[Registry]:
    with registry("me:hunter22") as made:
        yield made


def written(schema: dict[str, Any], row: dict[str, Any], number: int | None) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return (b"" if number is None else b"\0" + number.to_bytes(4, "big")) + out.getvalue()


def order(number: int, name: str = "id", **more: Any) -> dict[str, Any]:
    at = datetime(2026, 3, 2, 10, number, tzinfo=UTC)
    return {name: number, "price": Decimal(f"{number}.50"), "at": at, "count": number, **more}


def options(known: Registry) -> str:
    return (
        f", value.format 'avro', schema.registry.url '{known.url}', schema.registry.user 'me', "
        "schema.registry.password '${env:REGISTRY_PASSWORD}'"
    )


def source(kafka: str, topic: str, more: str, columns: str = COLUMNS) -> str:
    told = f"kafka.bootstrap.servers '{kafka}', subscribe '{topic}', startingOffsets 'earliest'{more}"
    return f"CREATE STREAM orders ({columns}) USING kafka OPTIONS ({told});\n"


def run(spark: SparkSession, text: str, folder: Path) -> None:
    run_script(read_script(text), spark=spark, storage=folder / "storage", trigger="available_now")


def refused(spark: SparkSession, text: str, folder: Path) -> Refusal:
    with pytest.raises(WatersmeetError) as raised:
        run(spark, text, folder)
    return raised.value.refusals[0]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.rglob("*.json")) for line in file.read_text().splitlines()]


def test_values_of_several_schemas_are_read_and_written_while_schemas_are_new(
    spark: SparkSession, kafka: str, topic: str, known: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "hunter22")
    topics.create(kafka, topic, 1)
    first, second = known.add(f"{topic}-value", FIRST), known.add(f"{topic}-value", SECOND)
    values = [written(FIRST, order(1), first), written(SECOND, order(2, "number", currency="USD", tags=["x"]), second)]
    broken = [values[0][:-1], b"text", b"\0\0\0\x03\xe7abc", values[1] + b"\0"]
    topics.send(kafka, topic, [topics.Record(None, value) for value in (*values, *broken)])
    text = source(kafka, topic, options(known)) + (
        f"CREATE SINK out USING kafka OPTIONS (kafka.bootstrap.servers '{kafka}', topic '{topic}-out', partitions '1', "
        f"delivery 'exactly_once'{options(known)});\n"
        f"CREATE SINK bad USING json OPTIONS (path '{tmp_path / 'bad'}');\n"
        "INSERT INTO out SELECT STREAM * FROM orders MALFORMED INTO bad;"
    )
    run(spark, text, tmp_path)
    # A schema that was not there when the query was planned the last time: with a field more.
    third_schema = {**SECOND, "fields": [{"name": "new", "type": "double"}, *SECOND["fields"]]}
    third = known.add("elsewhere", third_schema)
    row = order(3, "number", currency="GBP", tags=[], new=0.5)
    topics.send(kafka, topic, [topics.Record(None, written(third_schema, row, third))])
    run(spark, text, tmp_path)

    found = topics.read(kafka, f"{topic}-out")
    (made,) = known.subjects[f"{topic}-out-value"]
    schema = fastavro.parse_schema(json.loads(known.schemas[made - 1]["schema"]))
    assert all(record.value[:5] == b"\0" + made.to_bytes(4, "big") for record in found)
    read = [fastavro.schemaless_reader(io.BytesIO(record.value[5:]), schema) for record in found]
    assert read == [
        order(1, "number", currency="EUR", tags=[]), order(2, "number", currency="USD", tags=["x"]),
        order(3, "number", currency="GBP", tags=[]),
    ]  # fmt: skip
    reasons = {(row["place"].rsplit(" ", 1)[1], row["reason"]) for row in rows_of(tmp_path / "bad")}
    assert reasons == {
        ("2", f"its bytes are no value of schema {first}"), ("3", "it does not begin with the number of a schema"),
        ("4", "schema 999: the registry does not have it"), ("5", f"its bytes are no value of schema {second}"),
    }  # fmt: skip


def test_a_table_goes_to_avro_and_comes_back(
    spark: SparkSession, kafka: str, topic: str, known: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    sent = [topics.Record(str(n).encode(), written(schema, {"id": n, "day": day}, None)) for n, day in rows]
    topics.send(kafka, topic, [*sent, topics.Record(b"2", None)])
    table = (
        "CREATE TABLE stock (id INT, day DATE, PRIMARY KEY (id)) USING kafka OPTIONS (kafka.bootstrap.servers "
        f"'{kafka}', subscribe '{topic}', startingOffsets 'earliest', value.format 'avro', "
    )
    run(
        spark,
        f"{table} avro.schema '${{file:{file}}}');\n"
        f"CREATE SINK out USING kafka OPTIONS (kafka.bootstrap.servers '{kafka}', topic '{topic}-out', partitions '1', "
        f"changes 'upsert'{options(known)});\n"
        "INSERT INTO out SELECT TABLE id, day FROM stock;",
        tmp_path,
    )
    (record,) = [record for record in topics.read(kafka, f"{topic}-out") if record.value is not None]
    made = fastavro.parse_schema(json.loads(known.schemas[0]["schema"]))
    assert record.key == b"1"
    read = fastavro.schemaless_reader(io.BytesIO(record.value[5:]), made)
    assert read == {"id": 1, "day": date(1950, 1, 1)}


def test_what_cannot_be_read_or_written_is_refused_before_the_start(
    spark: SparkSession, kafka: str, topic: str, known: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "hunter22")
    topics.create(kafka, topic, 1)
    select = f"CREATE SINK j USING json OPTIONS (path '{tmp_path / 'j'}'); INSERT INTO j SELECT STREAM * FROM orders;"

    def told(more: str, columns: str = COLUMNS, rest: str = select) -> Refusal:
        return refused(spark, source(kafka, topic, more, columns) + rest, tmp_path)

    found = told(options(known))
    assert found.condition == "AVRO_SCHEMA" and f"`{topic}-value`" in found.message
    assert "schema.registry.subject" in found.hint
    known.add(f"{topic}-value", SECOND)
    found = told(options(known), "number BIGINT, colour STRING")
    assert found.condition == "AVRO_SCHEMA" and "no `colour`" in found.message and "`currency`" in found.hint
    found = told(options(known), "number INT")
    assert "`number`: it is long, which is no INT" in found.message and found.place is not None
    found = told(options(known).replace("'me'", "'you'"))
    assert found.condition == "REGISTRY_UNREACHABLE" and "401 (Unauthorized)" in found.message
    assert "hunter22" not in str(WatersmeetError([found]))
    found = told(options(known).replace(known.url, "http://127.0.0.1:9"))
    assert found.condition == "REGISTRY_UNREACHABLE" and "refused" in found.message

    known.closed.add(f"{topic}-out-value")
    target = f"CREATE SINK out USING kafka OPTIONS (kafka.bootstrap.servers '{kafka}', topic '{topic}-out'"
    into = f"{target}, partitions '1'{options(known)}); INSERT INTO out SELECT STREAM "
    found = told(options(known), rest=f"{into} * FROM orders;")
    assert found.condition == "REGISTRY_UNREACHABLE" and "incompatible" in found.message
    found = told(options(known), rest=f"{into} number AS `the number` FROM orders;")
    assert found.condition == "AVRO_SCHEMA" and "`the number`" in found.message
    found = told(", value.format 'avro'")
    assert found.condition == "WRONG_OPTION" and "avro.schema" in found.hint
    found = told(options(known), rest=f"{target}, value.format 'avro'); INSERT INTO out SELECT STREAM * FROM orders;")
    assert found.condition == "WRONG_OPTION" and "schema.registry.url" in found.hint
