"""``python -m bench.codecs``: our Avro and Protobuf decoders compared with fastavro and protobuf, on the same records.

Both sides get an Arrow array of bytes and return the same Arrow struct, which is compared before anything is measured.
The libraries decode a record at a time into Python objects, and Arrow columns are built from these, in the quicker of
two ways: from whole records, or from a list of values per column. Our decoders also separate malformed records; the
libraries do not have to. fastavro reads times as numbers, which is quicker than its ``datetime`` objects.

All contenders of a workload take turns in one process. A figure is the median of the turns, in nanoseconds per record.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import google.protobuf
import pyarrow as pa
from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal import api_implementation
from google.protobuf.message_factory import GetMessageClass
from rich.console import Console
from rich.table import Table

from watersmeet.codec.avro_schema import read_schema
from watersmeet.codec.avro_values import AvroDecoder
from watersmeet.formats.protobuf.descriptor import read_messages
from watersmeet.formats.protobuf.values import ProtobufDecoder

BOUND = 2.0
"""A codec of our own stays if it is at least this many times as fast as the library."""
SIZES = (100, 1_000, 10_000)
"""Records of a batch. Spark hands a worker 10,000 rows at a time unless it is configured otherwise."""

_AT = pa.timestamp("us", "UTC")
_PLACE = pa.struct([("lat", pa.float64()), ("lon", pa.float64())])
_ADDRESS = pa.struct([("street", pa.string()), ("zip", pa.string()), ("place", _PLACE)])
_LINE = pa.struct([("item", pa.string()), ("pieces", pa.int64()), ("price", pa.float64())])
FLAT = pa.struct([
    ("id", pa.int64()), ("customer", pa.string()), ("amount", pa.float64()), ("at", _AT),
    ("note", pa.string()), ("pieces", pa.int64()),
])  # fmt: skip
NESTED = pa.struct([("id", pa.int64()), ("at", _AT), ("address", _ADDRESS), ("lines", pa.list_(_LINE))])
OPTIONAL = frozenset({"note", "pieces", "address"})
"""Columns that one record in four leaves out; of ``pieces``, only those of a flat record."""

Decode = Callable[[Any], Any]


@dataclass(frozen=True)
class Contender:
    """A way to decode; ``is_ours``: by this tree."""

    name: str
    is_ours: bool
    decode: Decode


@dataclass(frozen=True)
class Workload:
    """Encoded records, and the contenders that decode them; the first one is ours."""

    codec: str
    shape: str
    values: Any
    contenders: tuple[Contender, ...]


@dataclass(frozen=True)
class CodecFigure:
    """The nanoseconds per record of a workload: ours, and the quickest way with the library."""

    codec: str
    shape: str
    records: int
    ours: float
    library: float
    library_way: str

    @property
    def factor(self) -> float:
        """The factor by which the library takes longer."""
        return self.library / self.ours


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all workloads and print the factors."""
    parser = argparse.ArgumentParser("python -m bench.codecs", description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=[*SIZES])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    figures = [measure(workload, options.repeat) for size in options.sizes for workload in workloads(size)]
    if options.json:
        print(json.dumps([vars(figure) | {"factor": figure.factor} for figure in figures]))
        return
    console = Console()
    console.print(_table(figures))
    python = ".".join(map(str, sys.version_info[:3]))
    versions = f"fastavro {fastavro.__version__}, protobuf {google.protobuf.__version__} ({api_implementation.Type()})"
    console.print(f"Python {python}, pyarrow {pa.__version__}, {versions}", style="dim")


def _table(figures: Sequence[CodecFigure]) -> Table:
    table = Table("codec", "records", box=None)
    for name in ("in a batch", "ours, ns", "library, ns", "factor"):
        table.add_column(name, justify="right")
    table.add_column("the library's quickest way")
    for figure in figures:
        shown = (f"{figure.records:,}", f"{figure.ours:,.0f}", f"{figure.library:,.0f}", f"{figure.factor:.2f}")
        table.add_row(figure.codec, figure.shape, *shown, figure.library_way)
    return table


def measure(workload: Workload, repeat: int) -> CodecFigure:
    """Decode in turns, after all contenders have given the same columns."""
    expected = workload.contenders[0].decode(workload.values)
    for contender in workload.contenders[1:]:
        assert contender.decode(workload.values).equals(expected), f"{workload.codec}: {contender.name} differs"
    seconds: dict[str, list[float]] = {contender.name: [] for contender in workload.contenders}
    # Short batches are decoded several times in a turn, so that the clock is fine enough.
    times = max(1, 2_000 // len(workload.values))
    for turn in range(repeat):
        start = turn % len(workload.contenders)
        for contender in (*workload.contenders[start:], *workload.contenders[:start]):
            began = time.perf_counter()
            for _ in range(times):
                contender.decode(workload.values)
            seconds[contender.name].append((time.perf_counter() - began) / times)
    medians = {
        name: statistics.median(times_taken) * 1e9 / len(workload.values) for name, times_taken in seconds.items()
    }
    ours = next(contender.name for contender in workload.contenders if contender.is_ours)
    quickest = min((name for name in medians if name != ours), key=lambda name: medians[name])
    size = len(workload.values)
    return CodecFigure(workload.codec, workload.shape, size, medians[ours], medians[quickest], quickest)


def workloads(size: int) -> Iterator[Workload]:
    """Flat and nested records of both codecs."""
    records = {"flat": _flat_records(size), "nested": _records_with_lists(size)}
    for shape, wanted in (("flat", FLAT), ("nested", NESTED)):
        yield _avro(shape, wanted, records[shape])
    for shape, wanted in (("flat", FLAT), ("nested", NESTED)):
        yield _protobuf(shape, wanted, records[shape])


def _flat_records(size: int) -> list[dict[str, Any]]:
    die = random.Random(7)
    return [
        {
            "id": die.randrange(1, 10**9),
            "customer": f"customer-{die.randrange(100_000)}",
            "amount": die.random() * 100,
            "at": 1_767_225_600_000_000 + number * 1_000 + die.randrange(10**9),
            "note": None if die.random() < 0.25 else "leave it at the door" * die.randrange(1, 3),
            "pieces": None if die.random() < 0.25 else die.randrange(1, 300),
        }
        for number in range(size)
    ]


def _records_with_lists(size: int) -> list[dict[str, Any]]:
    die = random.Random(8)
    return [
        {
            "id": record["id"],
            "at": record["at"],
            "address": None if die.random() < 0.25 else {
                "street": f"{die.randrange(1, 200)} Main Street",
                "zip": f"{die.randrange(10_000, 99_999)}",
                "place": {"lat": die.uniform(0.1, 90), "lon": die.uniform(0.1, 180)},
            },
            "lines": [
                {"item": f"item-{die.randrange(1_000)}", "pieces": die.randrange(1, 9), "price": die.random() + 0.01}
                for _ in range(die.randrange(6))
            ],
        }
        for record in _flat_records(size)
    ]  # fmt: skip


def _avro(shape: str, wanted: Any, records: list[dict[str, Any]]) -> Workload:
    schema = _avro_type(wanted, shape, has_logical=True)
    # Without logical types it gives numbers and not objects.
    plain: Any = fastavro.parse_schema(_avro_type(wanted, shape, has_logical=False))
    values = pa.array([_avro_bytes(plain, record) for record in records], pa.binary())
    decoder = AvroDecoder(read_schema(json.dumps(schema)), wanted)

    def read(values: Any) -> list[Any]:
        return [fastavro.schemaless_reader(BytesIO(value), plain, None) for value in values.to_pylist()]

    contenders = (
        Contender("ours", True, lambda values: decoder.rows(values).values),
        Contender("whole records", False, lambda values: pa.array(read(values), wanted)),
        Contender("by column", False, lambda values: _columns(read(values), wanted)),
    )
    return Workload("avro", shape, values, contenders)


def _columns(records: list[Any], wanted: Any) -> Any:
    arrays = [pa.array([record[field.name] for record in records], field.type) for field in wanted]
    return pa.StructArray.from_arrays(arrays, fields=[*wanted])


def _avro_bytes(schema: Any, record: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()


def _avro_type(type_: Any, name: str, *, has_logical: bool) -> Any:
    if pa.types.is_struct(type_):
        fields: list[Any] = []
        for field in type_:
            inner = _avro_type(field.type, f"{name}_{field.name}", has_logical=has_logical)
            fields.append({"name": field.name, "type": ["null", inner] if _is_optional(name, field) else inner})
        return {"type": "record", "name": name, "fields": fields}
    if pa.types.is_list(type_):
        return {"type": "array", "items": _avro_type(type_.value_type, f"{name}_element", has_logical=has_logical)}
    if pa.types.is_timestamp(type_):
        return {"type": "long", "logicalType": "timestamp-micros"} if has_logical else "long"
    return {pa.int64(): "long", pa.float64(): "double", pa.string(): "string"}[type_]


def _is_optional(shape: str, field: Any) -> bool:
    return field.name in OPTIONAL and shape in ("flat", "nested")


def _protobuf(shape: str, wanted: Any, records: list[dict[str, Any]]) -> Workload:
    files = _descriptor_set()
    pool: Any = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    message: Any = GetMessageClass(pool.FindMessageTypeByName(f"bench.{shape.capitalize()}"))
    values = pa.array([_fill(message(), record).SerializeToString() for record in records], pa.binary())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.desc"
        path.write_bytes(files.SerializeToString())
        decoder = ProtobufDecoder(read_messages(str(path), f"bench.{shape.capitalize()}"), wanted)

    parse = message.FromString
    as_dict, as_columns = (_flat_dict, _flat_columns) if shape == "flat" else (_dict_with_lists, _columns_with_lists)
    contenders = (
        Contender("ours", True, lambda values: decoder.rows(values).values),
        Contender(
            "whole records", False,
            lambda values: pa.array([as_dict(parse(value)) for value in values.to_pylist()], wanted),
        ),
        Contender("by column", False, lambda values: as_columns([parse(value) for value in values.to_pylist()])),
    )  # fmt: skip
    return Workload("protobuf", shape, values, contenders)


def _micros(moment: Any) -> int:
    return moment.seconds * 1_000_000 + moment.nanos // 1_000


def _flat_dict(message: Any) -> dict[str, Any]:
    return {
        "id": message.id,
        "customer": message.customer,
        "amount": message.amount,
        "at": _micros(message.at),
        "note": message.note if message.HasField("note") else None,
        "pieces": message.pieces if message.HasField("pieces") else None,
    }


def _flat_columns(messages: list[Any]) -> Any:
    columns: list[list[Any]] = [
        [message.id for message in messages],
        [message.customer for message in messages],
        [message.amount for message in messages],
        [_micros(message.at) for message in messages],
        [message.note if message.HasField("note") else None for message in messages],
        [message.pieces if message.HasField("pieces") else None for message in messages],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, FLAT, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=[*FLAT])


def _dict_with_lists(message: Any) -> dict[str, Any]:
    return {
        "id": message.id,
        "at": _micros(message.at),
        "address": _address_dict(message.address) if message.HasField("address") else None,
        "lines": _line_dicts(message.lines),
    }


def _address_dict(address: Any) -> dict[str, Any]:
    place = address.place
    return {"street": address.street, "zip": address.zip, "place": {"lat": place.lat, "lon": place.lon}}


def _line_dicts(lines: Any) -> list[dict[str, Any]]:
    return [{"item": line.item, "pieces": line.pieces, "price": line.price} for line in lines]


def _columns_with_lists(messages: list[Any]) -> Any:
    addresses = [message.address if message.HasField("address") else None for message in messages]
    lines = [line for message in messages for line in message.lines]
    starts = [0]
    for message in messages:
        starts.append(starts[-1] + len(message.lines))
    elements = pa.StructArray.from_arrays(
        [
            pa.array([line.item for line in lines], pa.string()),
            pa.array([line.pieces for line in lines], pa.int64()),
            pa.array([line.price for line in lines], pa.float64()),
        ],
        fields=[*_LINE],
    )
    arrays = [
        pa.array([message.id for message in messages], pa.int64()),
        pa.array([_micros(message.at) for message in messages], _AT),
        pa.array([None if address is None else _address_dict(address) for address in addresses], _ADDRESS),
        pa.ListArray.from_arrays(pa.array(starts, pa.int32()), elements).cast(NESTED.field("lines").type),
    ]
    return pa.StructArray.from_arrays(arrays, fields=[*NESTED])


def _fill(message: Any, record: dict[str, Any]) -> Any:
    """A message with the values of a record."""
    for name, value in record.items():
        match value:
            case None:
                continue
            case dict():
                _fill(getattr(message, name), value)
            case list():
                for element in value:
                    _fill(getattr(message, name).add(), element)
            case int() if name == "at":
                message.at.seconds, message.at.nanos = value // 1_000_000, value % 1_000_000 * 1_000
            case _:
                setattr(message, name, value)
    return message


def _descriptor_set() -> Any:
    """The descriptors that protoc would generate for the messages."""
    made: Any = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(made.file.add())
    file = made.file.add(name="bench.proto", package="bench", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    _declare(file, "Place", _PLACE)
    _declare(file, "Address", _ADDRESS)
    _declare(file, "Line", _LINE)
    _declare(file, "Flat", FLAT)
    _declare(file, "Nested", NESTED)
    return made


def _declare(file: Any, name: str, type_: Any) -> None:
    message = file.message_type.add(name=name)
    messages = {"place": ".bench.Place", "address": ".bench.Address", "lines": ".bench.Line"}
    kinds = {pa.int64(): "INT64", pa.float64(): "DOUBLE", pa.string(): "STRING"}
    for number, column in enumerate(type_, 1):
        field = message.field.add(name=column.name, number=number, label=3 if pa.types.is_list(column.type) else 1)
        if column.type == _AT or column.name in messages:
            field.type, field.type_name = 11, messages.get(column.name, ".google.protobuf.Timestamp")
            continue
        field.type = field.Type.Value(f"TYPE_{kinds[column.type]}")
        if _is_optional(name.lower(), column):
            field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{column.name}")


if __name__ == "__main__":
    main()
