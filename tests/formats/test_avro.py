"""Avro a column at a time, against fastavro, which reads and writes a row at a time."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import fastavro
import pyarrow as pa
import pytest

from watersmeet.catalog import Source
from watersmeet.codec.avro_schema import read_schema
from watersmeet.codec.avro_values import AvroDecoder, encode_rows, schema_of
from watersmeet.codec.binary import SchemaError
from watersmeet.formats import source_format

# All that a writer may have: also what no one can ask for, a type within itself and one of several.
NODE = {"type": "record", "name": "Node", "fields": [
    {"name": "v", "type": "int"}, {"name": "next", "type": ["null", "Node"]},
]}  # fmt: skip
WRITER: dict[str, Any] = {"type": "record", "name": "shop.Row", "fields": [
    {"name": "id", "type": "long"}, {"name": "n", "type": ["int", "null"]}, {"name": "s", "type": "string"},
    {"name": "node", "type": NODE},
    {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3}},
    {"name": "q", "type": {
        "type": "fixed", "name": "Q", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2,
    }},
    {"name": "f", "type": "float"}, {"name": "g", "type": "double"}, {"name": "b", "type": "boolean"},
    {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y"]}},
    {"name": "many", "type": {"type": "array", "items": ["null", "long"]}},
    {"name": "m", "type": {"type": "map", "values": "bytes"}},
    {"name": "st", "type": ["null", {"type": "record", "name": "In", "fields": [
        {"name": "p", "type": "string"}, {"name": "e", "type": "E"},
    ]}]},
    {"name": "mixed", "type": ["null", "string", "long", "Node"]},
]}  # fmt: skip
WANTED = pa.struct([
    ("st", pa.struct([("e", pa.string()), ("p", pa.string())])), ("ID", pa.int64()), ("n", pa.int64()),
    ("s", pa.string()), ("d", pa.decimal128(25, 4)), ("q", pa.decimal128(9, 2)), ("f", pa.float64()),
    ("g", pa.float64()), ("b", pa.bool_()), ("t", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")),
    ("day", pa.date32()), ("e", pa.string()), ("many", pa.list_(pa.int64())), ("m", pa.map_(pa.string(), pa.binary())),
    ("not_there", pa.int32()),
])  # fmt: skip


def some(die: random.Random, make: Callable[[], Any]) -> Any:
    return None if die.random() < 0.2 else make()


def writer_row(die: random.Random) -> dict[str, Any]:
    node = None
    for number in range(die.randrange(1, 4)):
        node = {"v": number, "next": node}
    return {
        "id": die.choice([0, -1, 63, 64, -65, 2**63 - 1, -(2**63), die.randrange(-(10**9), 10**9)]),
        "n": some(die, lambda: die.randrange(-(2**31), 2**31)), "s": "ä€" * die.randrange(4), "node": node,
        "d": Decimal(die.choice([0, -1, 127, -128, 128, die.randrange(-(10**19), 10**19)])).scaleb(-3),
        "q": Decimal(die.randrange(-(10**8), 10**8)).scaleb(-2), "f": die.randrange(100) / 4, "g": die.random(),
        "b": die.random() < 0.5, "t": datetime(1960, 1, 1, tzinfo=UTC) + timedelta(seconds=die.randrange(10**9)),
        "local": datetime(2026, 3, 2) + timedelta(microseconds=die.randrange(10**9)), "day": date(1950, 1, 1),
        "e": die.choice("XY"), "many": [some(die, lambda: die.randrange(99)) for _ in range(die.randrange(5))],
        "m": {str(n): b"\xff" * n for n in range(die.randrange(3))}, "st": some(die, lambda: {"p": "x", "e": "Y"}),
        "mixed": die.choice([None, "a", 7, node]),
    }  # fmt: skip


def one_by_one(schema: Any, rows: list[dict[str, Any]]) -> list[bytes]:
    found: list[bytes] = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        found.append(out.getvalue())
    return found


def as_wanted(row: dict[str, Any]) -> dict[str, Any]:
    told = {**row, "ID": row["id"], "not_there": None, "m": [*row["m"].items()]}
    return {field.name: told[field.name] for field in WANTED}


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_read_as_fastavro_reads_them_and_damage_is_seen(seed: int) -> None:
    die = random.Random(seed)
    schema = fastavro.parse_schema(WRITER)
    rows = [writer_row(die) for _ in range(300)]
    values = one_by_one(schema, rows)
    decoding = AvroDecoder(read_schema(json.dumps(WRITER)), WANTED)
    whole = decoding.rows(pa.array([b"12345" + value for value in values]).slice(2, 200), 5)
    assert not whole.bad.any()
    assert whole.values.to_pylist() == [as_wanted(row) for row in rows[2:202]]
    assert len(decoding.rows(pa.array([], pa.binary())).values) == 0

    damaged = [bytearray(value) for value in values]
    for value in damaged:
        match die.randrange(4):
            case 0:
                del value[die.randrange(len(value)) :]
            case 1:
                value += bytes(die.randrange(256) for _ in range(die.randrange(1, 4)))
            case 2:
                value[die.randrange(len(value))] ^= 1 << die.randrange(8)
            case _:
                value[:] = bytes(die.randrange(256) for _ in range(die.randrange(40)))
    found = decoding.rows(pa.array([*map(bytes, damaged), *values]))
    assert not found.bad[300:].any(), "a broken row takes none of its neighbours along"
    assert found.values.slice(300).to_pylist() == [as_wanted(row) for row in rows]
    assert found.bad[:300].sum() > 150
    for number in range(300):
        if not found.bad[number]:
            stream = io.BytesIO(bytes(damaged[number]))
            try:
                row = as_wanted(cast("dict[str, Any]", fastavro.schemaless_reader(stream, schema)))
            except OverflowError:  # a time that Python does not have
                continue
            assert stream.read() == b""
            # As texts, since NaN is not itself.
            (told,) = pa.array([row], WANTED).to_pylist()
            assert str(found.values[number].as_py()) == str(told)


ROWS = pa.struct([
    pa.field("id", pa.int64(), nullable=False), ("n", pa.int32()), ("small", pa.int8()), ("s", pa.string()),
    ("b", pa.binary()), ("d", pa.decimal128(38, 4)), ("x", pa.bool_()), ("f", pa.float32()), ("g", pa.float64()),
    ("t", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")), ("day", pa.date32()),
    ("m", pa.map_(pa.string(), pa.int64())), ("lists", pa.list_(pa.list_(pa.int64()))),
    ("st", pa.struct([("p", pa.int16()), ("q", pa.string())])),
])  # fmt: skip


def row_of(die: random.Random) -> dict[str, Any]:
    whole = writer_row(die)
    kept = {name: some(die, lambda name=name: whole[name]) for name in ("n", "s", "f", "g", "t", "local", "day")}
    digits = die.choice([0, -1, 127, 128, -128, -129, 255, 256, die.randrange(-(10**37), 10**37)])
    return {
        "id": whole["id"], **kept, "small": some(die, lambda: die.randrange(-128, 128)), "x": some(die, lambda: True),
        "b": some(die, lambda: b"\0\xff" * die.randrange(3)), "d": some(die, lambda: Decimal(digits).scaleb(-4)),
        "m": some(die, lambda: [(str(n), some(die, lambda: 2**40)) for n in range(die.randrange(3))]),
        "lists": some(die, lambda: [some(die, lambda: [None, 7, 8][: die.randrange(4)]) for _ in range(3)]),
        "st": some(die, lambda: {"p": some(die, lambda: -7), "q": some(die, lambda: "y")}),
    }  # fmt: skip


def test_times_out_of_range_and_values_that_are_too_deep_are_bad() -> None:
    def encode(number: int) -> bytes:
        return one_by_one("long", [number])[0]  # pyright: ignore[reportArgumentType]

    times = {"timestamp-millis": pa.timestamp("us", "UTC"), "local-timestamp-millis": pa.timestamp("us")}
    numbers = [2**63 - 1, 0, -(2**63), (2**63 - 1) // 1000, (2**63 - 1) // 1000 + 1, -(2**63 // 1000) - 1]
    for logical, wanted in times.items():
        field = {"name": "at", "type": {"type": "long", "logicalType": logical}}
        schema = read_schema(json.dumps({"type": "record", "name": "r", "fields": [field]}))
        found = AvroDecoder(schema, pa.struct([("at", wanted)])).rows(pa.array([encode(number) for number in numbers]))
        assert found.bad.tolist() == [True, False, True, False, True, True]
        assert found.values.field(0).cast(pa.int64()).to_pylist()[3] == (2**63 - 1) // 1000 * 1000
    fields = [{"name": "node", "type": NODE}, {"name": "id", "type": "long"}]
    schema = read_schema(json.dumps({"type": "record", "name": "r", "fields": fields}))
    nested = [b"\x02\x02" * depth + b"\x02\x00" + encode(7) for depth in (3, 90, 5_000)]
    found = AvroDecoder(schema, pa.struct([("id", pa.int64())])).rows(pa.array([*nested, nested[0]]))
    assert found.bad.tolist() == [False, False, True, False]
    assert found.values.field(0).to_pylist()[:2] == [7, 7]


def test_rows_that_are_written_are_read_by_fastavro_and_by_ourselves() -> None:
    die = random.Random(7)
    rows = [None if die.random() < 0.1 else row_of(die) for _ in range(400)]
    made = json.dumps(schema_of([*ROWS], "Row"))
    schema = fastavro.parse_schema(json.loads(made))
    for part in (pa.array(rows, ROWS), pa.array(rows, ROWS).slice(7, 100), pa.array([], ROWS)):
        found = encode_rows(part, b"12345")
        told = part.drop_null().to_pylist()
        plain = [{**row, "m": None if row["m"] is None else dict(row["m"])} for row in told]
        streams = [io.BytesIO(value.removeprefix(b"12345")) for value in found.drop_null().to_pylist()]
        assert [fastavro.schemaless_reader(stream, schema) for stream in streams] == plain
        assert not any(stream.read() for stream in streams)
        assert found.is_null().to_pylist() == part.is_null().to_pylist()
        again = AvroDecoder(read_schema(made), ROWS).rows(found.drop_null(), 5)
        assert not again.bad.any() and again.values.to_pylist() == told


def test_defaults_of_the_reader_replace_fields_that_the_writer_lacks() -> None:
    price = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    inner = {"type": "record", "name": "In", "fields": [{"name": "old", "type": "string"}]}
    writer = {"type": "record", "name": "R", "fields": [{"name": "st", "type": inner}]}
    later = [
        {"name": "new", "type": "string", "aliases": ["old"]}, {"name": "n", "type": "int", "default": 7},
        {"name": "d", "type": price, "default": "\xff"},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 1000},
        {"name": "list", "type": {"type": "array", "items": "int"}, "default": [1, 2]},
        {"name": "none", "type": ["null", "string"], "default": None},
    ]  # fmt: skip
    reader = {"type": "record", "name": "R", "fields": [{"name": "st", "type": {**inner, "fields": later}}]}
    types = [
        ("new", pa.string()), ("n", pa.int64()), ("d", pa.decimal128(5, 2)), ("t", pa.timestamp("us", "UTC")),
        ("list", pa.list_(pa.int32())), ("none", pa.string()),
    ]  # fmt: skip
    wanted = pa.struct([("st", pa.struct(types))])
    decoding = AvroDecoder(read_schema(json.dumps(writer)), wanted, read_schema(json.dumps(reader)))
    (row,) = decoding.rows(pa.array(one_by_one(fastavro.parse_schema(writer), [{"st": {"old": "x"}}]))).values
    assert row.as_py()["st"] == {
        "new": "x", "n": 7, "d": Decimal("-0.01"), "t": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "list": [1, 2],
        "none": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("type_", "wanted", "reason"),
    [
        ("string", pa.int32(), "`a`: it is string, not INT"),
        ("long", pa.int32(), "`a`: it is long, not INT"),
        ({"type": "long", "logicalType": "timestamp-micros"}, pa.timestamp("us"), ", not TIMESTAMP_NTZ"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, pa.decimal128(9, 3), "not DECIMAL"),
        (["int", "string"], pa.int32(), "one of several types"),
        ({"type": "array", "items": "int"}, pa.int32(), "its kind is array, not INT"),
    ],
)
def test_a_type_that_a_column_cannot_have_is_refused(type_: Any, wanted: Any, reason: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": type_}]}
    with pytest.raises(SchemaError, match=reason):
        AvroDecoder(read_schema(json.dumps(schema)), pa.struct([("a", wanted)]))


@pytest.mark.parametrize("text", ["{", '{"type": "record"}', '"Unknown"', '{"type": "enum", "name": "E"}', "7"])
def test_malformed_schemas_are_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        read_schema(text)


def test_places_of_schemas_do_not_change_a_state() -> None:
    options = {"subscribe": "a", "value.format": "avro", "schema.registry.url": "http://a", "avro.schema": "{}"}
    assert source_format(Source("s", (), format="kafka", options=options)).row_options == {
        "subscribe": "a", "value.format": "avro",
    }  # fmt: skip


def test_a_schema_may_refer_to_others() -> None:
    other = '{"type": "record", "name": "shop.Item", "fields": [{"name": "id", "type": "int"}]}'
    own = '{"type": "record", "name": "shop.Order", "fields": [{"name": "item", "type": "Item"}]}'
    schema = read_schema(own, other)
    wanted = pa.struct([("item", pa.struct([("id", pa.int32())]))])
    assert AvroDecoder(schema, wanted).rows(pa.array([b"\x0e"])).values.to_pylist() == [{"item": {"id": 7}}]
