"""Protobuf a column at a time, against Google's own package, which reads and writes a message at a time."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from tests import protobuf_messages

from watersmeet.catalog import Source
from watersmeet.codec.binary import SchemaError
from watersmeet.formats.columns import NoColumnsError, columns_of
from watersmeet.formats.protobuf.descriptor import DescriptorError, read_messages
from watersmeet.formats.protobuf.values import ProtobufDecoder, ProtobufEncoder, ValueOfNoFieldError

ORDER = protobuf_messages.message_class("shop.Order")
STOCK = protobuf_messages.message_class("old.Stock")
UNSIGNED = pa.decimal128(20, 0)
TYPES = {
    "double": pa.float64(), "float": pa.float32(), "int64": pa.int64(), "uint64": UNSIGNED, "int32": pa.int32(),
    "fixed64": UNSIGNED, "fixed32": pa.int64(), "bool": pa.bool_(), "string": pa.string(), "bytes": pa.binary(),
    "uint32": pa.int64(), "sfixed32": pa.int32(), "sfixed64": pa.int64(), "sint32": pa.int32(), "sint64": pa.int64(),
}  # fmt: skip
LINE = pa.struct([("pieces", pa.int32()), ("item", pa.string())])
NESTED = pa.struct([("item", pa.string()), ("next", LINE)])
WANTED = pa.struct([
    *((f"a_{name}", type_) for name, type_ in TYPES.items()),
    *((f"many_{name}", pa.list_(type_)) for name, type_ in TYPES.items()),
    ("kind", pa.string()), ("kinds", pa.list_(pa.string())), ("line", NESTED), ("lines", pa.list_(LINE)),
    ("at", pa.timestamp("us", "UTC")), ("takes", pa.duration("us")), ("note", pa.string()), ("said", pa.int32()),
    ("counts", pa.map_(pa.string(), pa.int64())), ("parts", pa.map_(pa.int32(), LINE)),
])  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return protobuf_messages.write_descriptors(tmp_path_factory.mktemp("descriptors"))


def some(die: random.Random, kind: str) -> Any:
    def bits(size: int, *, signed: bool) -> int:
        least, most = (-(2 ** (size - 1)), 2 ** (size - 1) - 1) if signed else (0, 2**size - 1)
        return die.choice([0, 1, least, most, die.randrange(least, most), min(most, 127), min(most, 128)])

    match kind:
        case "double" | "float":
            return die.choice([0.0, -1.5, 1e10, 0.25])
        case "bool":
            return die.random() < 0.5
        case "string":
            return "ä€x" * die.randrange(3)
        case "bytes":
            return bytes(die.randrange(256) for _ in range(die.randrange(4)))
        case _:
            return bits(64 if kind.endswith("64") else 32, signed=not kind.startswith(("u", "fixed")))


def order(die: random.Random) -> Any:
    made = ORDER()
    for name in TYPES:
        if die.random() < 0.7:
            setattr(made, f"a_{name}", some(die, name))
        getattr(made, f"many_{name}").extend(some(die, name) for _ in range(die.randrange(4)))
    made.kind = die.choice([0, 1, 2, 9])
    made.kinds.extend(die.choice([0, 1, 2]) for _ in range(die.randrange(3)))
    if die.random() < 0.5:
        made.line.item, made.line.next.pieces = "outer", die.randrange(5)
        made.line.next.next.item = "nobody asks for it"
    for _ in range(die.randrange(3)):
        made.lines.add(item=some(die, "string"), pieces=some(die, "int32"))
    if die.random() < 0.7:
        made.at.seconds, made.at.nanos = die.randrange(-(10**9), 10**9), die.randrange(10**9)
    if die.random() < 0.7:
        sign = die.choice([1, -1])
        made.takes.seconds, made.takes.nanos = sign * die.randrange(10**6), sign * die.randrange(10**9)
    if die.random() < 0.5:
        made.note.value = some(die, "string")
    if die.random() < 0.5:
        made.said = die.choice([0, -3])
    for number in range(die.randrange(4)):
        made.counts[str(number)] = some(die, "int64")
        made.parts[number].item = some(die, "string")
    return made


def line(of: Any) -> dict[str, Any]:
    return {"pieces": of.pieces, "item": of.item}


def row_from_message(of: Any) -> dict[str, Any]:
    """What the columns must have, as Google's package tells it."""
    symbols = {number: name for name, number in protobuf_messages.KINDS}

    def plain(name: str, value: Any) -> Any:
        return Decimal(value) if name in ("uint64", "fixed64") else value

    nested = {"item": of.line.item, "next": line(of.line.next) if of.line.HasField("next") else None}
    micros = of.takes.seconds * 10**6 + int(of.takes.nanos / 1000)
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=of.at.seconds, microseconds=of.at.nanos // 1000)
    return {
        **{f"a_{name}": plain(name, getattr(of, f"a_{name}")) for name in TYPES},
        **{f"many_{name}": [plain(name, one) for one in getattr(of, f"many_{name}")] for name in TYPES},
        "kind": symbols.get(of.kind, str(of.kind)), "kinds": [symbols.get(one, str(one)) for one in of.kinds],
        "line": nested if of.HasField("line") else None, "lines": [line(one) for one in of.lines],
        "at": at if of.HasField("at") else None,
        "takes": timedelta(microseconds=micros) if of.HasField("takes") else None,
        "note": of.note.value if of.HasField("note") else None, "said": of.said if of.HasField("said") else None,
        "counts": sorted(of.counts.items()), "parts": sorted((number, line(one)) for number, one in of.parts.items()),
    }  # fmt: skip


def has_moments(of: Any) -> bool:
    """Whether a message has a moment and a duration as Protobuf defines them, of which its parser knows nothing."""
    at, takes = of.at, of.takes
    is_one = np.sign(takes.seconds) * np.sign(takes.nanos) >= 0
    is_short = abs(takes.seconds) <= 315_576_000_000 and abs(takes.nanos) < 10**9
    return 0 <= at.nanos < 10**9 and abs(at.seconds) < 10**10 and is_one and is_short


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose NaNs equal themselves. Of damaged entries of maps Google's package for Python keeps nothing."""
    numbers = {name: repr(row[name]) for name in row if name.endswith(("float", "double"))}
    return {**row, **numbers, "counts": None, "parts": None}


def in_order(row: dict[str, Any]) -> dict[str, Any]:
    """Maps have no order."""
    return {**row, **{name: sorted(row[name], key=lambda pair: pair[0]) for name in ("counts", "parts")}}


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_read_as_google_reads_them_and_damage_is_seen(seed: int, file: Path) -> None:
    die = random.Random(seed)
    rows = [order(die) for _ in range(200)]
    values = [row.SerializeToString() for row in rows]
    # Messages that are put together: of what can be there once the last counts, and messages become one.
    values += [a + b for a, b in zip(values, reversed(values), strict=True)]
    rows += [ORDER.FromString(value) for value in values[200:]]
    decoding = ProtobufDecoder(read_messages(str(file), "shop.Order"), WANTED)
    whole = decoding.rows(pa.array([b"cut off", *values]).slice(1))
    assert not whole.bad.any()
    assert [in_order(row) for row in whole.values.to_pylist()] == [row_from_message(row) for row in rows]
    assert len(decoding.rows(pa.array([], pa.binary())).values) == 0

    damaged = [bytearray(value) for value in values]
    for value in damaged:
        match die.randrange(3):
            case 0:
                del value[die.randrange(len(value)) :]
            case 1:
                value[die.randrange(len(value))] ^= 1 << die.randrange(8)
            case _:
                value[:] = bytes(die.randrange(256) for _ in range(die.randrange(40)))
    found = decoding.rows(pa.array([*map(bytes, damaged), *values]))
    assert not found.bad[400:].any(), "a broken row takes none of its neighbours along"
    assert [in_order(row) for row in found.values.slice(400).to_pylist()] == [row_from_message(row) for row in rows]
    assert found.bad[:400].sum() > 100
    for number, value in enumerate(damaged):
        try:
            read = ORDER.FromString(bytes(value))
        except DecodeError:
            # Only what is asked for is opened.
            assert found.bad[number] or rows[number].line.next.HasField("next")
        else:
            if has_moments(read):
                assert not found.bad[number]
                row, expected = found.values[number].as_py(), row_from_message(read)
                assert comparable(row) == comparable(expected)


def test_numbers_come_packed_or_one_by_one_and_defaults_stand_for_what_is_left_out(file: Path) -> None:
    messages = read_messages(str(file), "old.Stock")
    wanted = pa.struct([
        ("ID", pa.int64()), ("pieces", pa.int64()), ("place", pa.string()), ("packed", pa.list_(pa.int32())),
    ])  # fmt: skip
    # A group that no one knows, with another one and a number in it, then a field of another wire type.
    group = bytes([15 << 3 | 3, 15 << 3 | 3, 1 << 3, 5, 15 << 3 | 4, 15 << 3 | 4, 3 << 3, 1])
    stock = STOCK(id=5, packed=[1, -1])
    packed = bytes([4 << 3 | 2, 2, 8, 9]) + stock.SerializeToString() + group
    found = ProtobufDecoder(messages, wanted).rows(
        pa.array([stock.SerializeToString(), packed, b"", bytes([15 << 3 | 3, *stock.SerializeToString()])])
    )
    assert found.bad.tolist() == [False, False, True, True], "one lacks what it must have, one has no end"
    assert found.values.slice(0, 2).to_pylist() == [
        {"ID": 5, "pieces": 7, "place": None, "packed": [1, -1]},
        {"ID": 5, "pieces": 7, "place": None, "packed": [8, 9, 1, -1]},
    ]
    boxed = ProtobufDecoder(
        read_messages(str(file), "old.Box"), pa.struct([("stock", pa.struct([("id", pa.int64())]))])
    )
    inside = boxed.rows(pa.array([b"", bytes([1 << 3 | 2, 0]), bytes([1 << 3 | 2, 2, 1 << 3, 4])]))
    assert inside.bad.tolist() == [False, True, False], "what must be there must be there within"
    assert [inside.values[row].as_py()["stock"] for row in (0, 2)] == [None, {"id": 4}]


def test_bytes_of_proto2_that_are_not_a_text_make_a_row_bad(file: Path) -> None:
    decoding = ProtobufDecoder(read_messages(str(file), "old.Stock"), pa.struct([("place", pa.string())]))
    whole = STOCK(id=5, place="hill").SerializeToString()
    read = decoding.rows(pa.array([whole, whole.replace(b"hill", b"h\xffll"), whole]))
    assert read.bad.tolist() == [False, True, False]
    assert [read.values[row].as_py() for row in (0, 2)] == [{"place": "hill"}] * 2


@pytest.mark.parametrize(
    ("type_", "reason"),
    [
        (pa.struct([("a_uint32", pa.int32())]), "`a_uint32`: it is uint32, read as BIGINT, not INT"),
        (pa.struct([("many_int32", pa.int32())]), "`many_int32`: it is repeated, not INT"),
        (pa.struct([("lines", pa.list_(pa.struct([("item", pa.int32())])))]), "`lines`: `item`: it is string"),
        (pa.struct([("line", pa.struct([("size", pa.int32())]))]), "`line`: shop.Line has no `size`"),
        (pa.struct([("line", pa.string())]), "`line`: it is the message shop.Line, not STRING"),
        (pa.struct([("at", pa.timestamp("us"))]), "not TIMESTAMP_NTZ"),
    ],
)
def test_columns_that_a_message_has_otherwise_are_refused(type_: Any, reason: str, file: Path) -> None:
    with pytest.raises(SchemaError, match=reason):
        ProtobufDecoder(read_messages(str(file), "shop.Order"), type_)


@pytest.mark.parametrize("seed", range(2))
def test_google_reads_what_is_written(seed: int, file: Path) -> None:
    die = random.Random(seed)
    rows = [order(die) for _ in range(200)]
    messages = read_messages(str(file), "shop.Order")
    columns = ProtobufDecoder(messages, WANTED).rows(pa.array([row.SerializeToString() for row in rows])).values
    gaps = pa.array([die.random() < 0.1 for _ in rows])
    columns = pa.StructArray.from_arrays(columns.flatten(), fields=[*columns.type], mask=gaps).slice(3)
    found = ProtobufEncoder(messages, columns.type).rows(columns).to_pylist()
    assert [value is None for value in found] == gaps.to_pylist()[3:]
    kept = [(row, value) for row, value in zip(rows[3:], found, strict=True) if value is not None]
    assert [row_from_message(ORDER.FromString(value)) for _, value in kept] == [
        row_from_message(row) for row, _ in kept
    ]


def test_values_without_room_in_a_message_are_not_written(file: Path) -> None:
    messages = read_messages(str(file), "shop.Order")

    def wrong(name: str, type_: Any, value: Any = None) -> str:
        rows = pa.array([{name: value}], pa.struct([(name, type_)]))
        with pytest.raises(SchemaError) as raised:
            ProtobufEncoder(messages, rows.type).rows(rows)
        assert isinstance(raised.value, ValueOfNoFieldError) == (value is not None)
        return str(raised.value)

    assert wrong("a_int32", pa.int64()) == "`a_int32`: it is BIGINT, but the field is int32"
    assert wrong("colour", pa.string()) == "shop.Order has no `colour`"
    assert wrong("line", pa.struct([("size", pa.int32())])) == "`line`: shop.Line has no `size`"
    assert wrong("a_uint32", pa.int64(), -1) == "`a_uint32` is uint32 but gets -1"
    assert wrong("a_uint32", pa.int64(), 2**32) == "`a_uint32` is uint32 but gets 4294967296"
    assert wrong("a_fixed64", UNSIGNED, Decimal(2**64)) == f"`a_fixed64` is fixed64 but gets {2**64}"
    assert wrong("kind", pa.string(), "CHAIR") == "`kind` has no `CHAIR`"
    assert "an element of `many_int32` is NULL" in wrong("many_int32", pa.list_(pa.int32()), [1, None])
    old = read_messages(str(file), "old.Stock")
    with pytest.raises(SchemaError, match="the message requires it, but the column may be NULL"):
        ProtobufEncoder(old, pa.struct([("id", pa.int64())]))
    with pytest.raises(SchemaError, match="requires `id`, but no column has that name"):
        ProtobufEncoder(old, pa.struct([("pieces", pa.int32())]))


def test_columns_are_read_from_the_descriptor_and_what_is_wrong_with_it_is_reported(file: Path, tmp_path: Path) -> None:
    def source(message: str, path: Path = file) -> Source:
        options = {"value.format": "protobuf", "value.descriptor": str(path), "value.message": message}
        return Source("s", (), format="kafka", options=options)

    found = columns_of(source("old.Box"))
    assert [(one.name, one.type) for one in found.fields] == [
        ("stock", "STRUCT<id: BIGINT, pieces: INT, place: STRING, packed: ARRAY<INT>>")
    ]
    assert found.file == str(file)
    with pytest.raises(NoColumnsError, match=r"`next` of `shop.Line` contains itself"):
        columns_of(source("shop.Order"))
    broken, alone, none = tmp_path / "broken.pb", tmp_path / "alone.pb", tmp_path / "none.pb"
    broken.write_bytes(b"message Order {}")
    only = protobuf_messages.FILES.__class__(
        file=[one for one in protobuf_messages.FILES.file if one.name == "shop.proto"]
    )
    alone.write_bytes(only.SerializeToString())
    for path, message, reason in (
        (file, "shop.Oder", "has no message `shop.Oder`"), (broken, "shop.Order", "is not a descriptor set"),
        (alone, "shop.Order", "it imports google/protobuf/duration.proto"), (none, "shop.Order", "cannot be read"),
    ):  # fmt: skip
        with pytest.raises(DescriptorError, match=reason):
            read_messages(str(path), message)
