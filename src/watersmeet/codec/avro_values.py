"""Avro rows into Arrow columns and back, a column at a time.

Decoding takes one field of all rows at a time. The position of a field is only known after those before it, so fields
are read in the order of the writer's schema, including unselected ones. The reader's schema has the aliases of selected
fields, and the defaults of fields that the writer did not have; values become the declared type.

An encoded column is `Ragged`: the bytes of all rows, and where each row begins. A record is its columns row by row; a
list is its elements, which are contiguous already. The schema of what is encoded is made of the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.codec.avro_schema import AvroField, AvroSchema, AvroType, field_of, is_name, split_null
from watersmeet.codec.binary import (
    Ragged,
    Reader,
    Rows,
    SchemaError,
    bytes_of,
    concat_parts,
    constant,
    ends_of,
    floats,
    reader_of,
    spark_type_name,
    varints,
    zigzag_encode,
)

Plan = Callable[[Reader, Rows], Any]
"""Reads a value of each of some rows into an array; None if the field is not selected."""

_DEEPEST = 100
"""The depth to which a type may be within itself, as in Protobuf: a deeper value would exceed the stack of Python."""


@dataclass(frozen=True)
class DecodedRecords:
    """Values of rows as a struct of columns, and which of the rows have bytes that do not fit the schema."""

    values: Any
    bad: Any


@dataclass(frozen=True)
class AvroDecoder:
    """Decodes the rows of a writer: its schema, the reader's if there is one, and the requested Arrow type.

    The constructor raises a `SchemaError` for a type that cannot be read.
    """

    writer: AvroSchema
    wanted: Any
    reader: AvroSchema | None = None

    def __post_init__(self) -> None:
        if self.writer.resolve(self.writer.type).kind != "record":
            raise SchemaError("it is not a record, so it has no columns")
        self.plan()

    def rows(self, values: Any, skip: int = 0) -> DecodedRecords:
        """Rows out of their bytes, behind the first ``skip`` of each."""
        reader = reader_of(values, skip)
        rows = np.arange(len(values))
        structs = self.plan()(reader, rows)
        reader.fail(rows[reader.at != reader.ends])
        return DecodedRecords(structs, reader.bad)

    def plan(self) -> Plan:
        """The function that decodes a row."""
        return self._plan_for(self.writer.type, self.wanted, None if self.reader is None else self.reader.type)

    def _plan_for(self, type_: AvroType, wanted: Any | None, like: AvroType | None) -> Plan:
        """Build the decoder of values into an Arrow type, or one that skips them; ``like``: the reader's type."""
        whole = self.writer.resolve(type_)
        if wanted is None and type_.kind == "ref":
            # A type may be within itself: how it is gone over is looked up only where there are rows that have it.
            return lambda reader, rows: self._skip_nested(whole, reader, rows) if len(rows) else None
        match whole.kind:
            case "record":
                return self._record(whole, wanted, self._reader_type(like, "record"))
            case "union":
                return self._union(whole, wanted, like)
            case "array" | "map":
                return self._collection(whole, wanted, self._reader_type(like, whole.kind))
            case _:
                read = value_reader(whole)
                if wanted is None:
                    return lambda reader, rows: read(reader, rows, False)
                meaning = make_converter(whole, wanted)
                return lambda reader, rows: meaning(reader, rows, read(reader, rows, True))

    def _skip_nested(self, type_: AvroType, reader: Reader, rows: Rows) -> None:
        """Go over values of a type that may be within itself; rows that nest it too deeply are bad."""
        if reader.depth == _DEEPEST:
            reader.fail(rows)
            return
        reader.depth += 1
        self._plan_for(type_, None, None)(reader, rows)
        reader.depth -= 1

    def _reader_type(self, like: AvroType | None, kind: str) -> AvroType | None:
        """The type in the reader's schema without NULL, if it is of that kind."""
        if like is None or self.reader is None:
            return None
        whole = self.reader.resolve(split_null(self.reader.resolve(like))[0])
        return whole if whole.kind == kind else None

    def _record(self, record: AvroType, wanted: Any | None, like: AvroType | None) -> Plan:
        if wanted is not None and not pa.types.is_struct(wanted):
            raise SchemaError(f"it is a record, not {spark_type_name(wanted)}")
        requested: dict[str, tuple[str, Any, AvroType | None]] = {}
        defaults: dict[str, Any] = {}
        for column in wanted or ():
            reader_field = None if like is None else field_of(like, column.name)
            writer_field = field_of(record, column.name, () if reader_field is None else reader_field.aliases)
            if writer_field is not None:
                requested[writer_field.name] = (
                    column.name,
                    column.type,
                    None if reader_field is None else reader_field.type,
                )
            elif reader_field is not None and self.reader is not None:
                defaults[column.name] = default_of(self.reader, reader_field, column.type)
        nobody = ("", None, None)
        plans = [(f.name, self._field_plan(f.name, f.type, *requested.get(f.name, nobody)[1:])) for f in record.fields]

        def read(reader: Reader, rows: Rows) -> Any:
            values = {name: plan(reader, rows) for name, plan in plans}
            if wanted is None:
                return None
            columns = {column: values[name] for name, (column, _, _) in requested.items()}
            columns |= {name: pa.repeat(value, len(rows)) for name, value in defaults.items()}
            arrays = [columns.get(field.name, pa.nulls(len(rows), field.type)) for field in wanted]
            return pa.StructArray.from_arrays(arrays, fields=[field.with_nullable(True) for field in wanted])

        return read

    def _field_plan(self, name: str, type_: AvroType, wanted: Any | None, like: AvroType | None) -> Plan:
        try:
            return self._plan_for(type_, wanted, like)
        except SchemaError as error:
            raise SchemaError(f"`{name}`: {error}") from error

    def _union(self, union: AvroType, wanted: Any | None, like: AvroType | None) -> Plan:
        if wanted is not None and split_null(union)[0].kind == "union":
            raise SchemaError("it is one of several types, which a column cannot be")
        plans = [None if branch.kind == "null" else self._plan_for(branch, wanted, like) for branch in union.inner]

        def read(reader: Reader, rows: Rows) -> Any:
            branches = reader.longs(rows)
            reader.fail(rows[(branches < 0) | (branches >= len(plans))])
            values = None if wanted is None else pa.nulls(len(rows), wanted)
            for number, plan in enumerate(plans):
                has = branches == number
                branch_values = None if plan is None else plan(reader, rows[has])
                if branch_values is not None and wanted is not None:
                    # The one branch that is not NULL.
                    values = branch_values.take(pa.array(np.cumsum(has) - 1, mask=~has))
            return values

        return read

    def _collection(self, type_: AvroType, wanted: Any | None, like: AvroType | None) -> Plan:
        """Elements of arrays and maps: blocks of them, each after its number, until one has none."""
        is_map = type_.kind == "map"
        if wanted is not None and not (pa.types.is_map(wanted) if is_map else pa.types.is_list(wanted)):
            raise SchemaError(f"its kind is {type_.kind}, not {spark_type_name(wanted)}")
        types: list[Any] = [None, None] if is_map else [None]
        if wanted is not None:
            types = [wanted.key_type, wanted.item_type] if is_map else [wanted.value_type]
        plans = [self._plan_for(type_.inner[0], types[-1], None if like is None else like.inner[0])]
        if is_map:
            plans.insert(0, self._plan_for(AvroType("string"), types[0], None))

        def read(reader: Reader, rows: Rows) -> Any:
            owners: list[Any] = []
            parts: list[list[Any]] = []
            blocks = np.arange(len(rows))
            while len(blocks):
                counts = _block(reader, rows[blocks])
                blocks, counts = blocks[counts != 0], counts[counts != 0]
                for turn in range(counts.max(initial=0)):
                    having = blocks[counts > turn]
                    parts.append([plan(reader, rows[having]) for plan in plans])
                    owners.append(having)
            return None if wanted is None else _lists(wanted, len(rows), owners, parts, types)

        return read


def _block(reader: Reader, rows: Rows) -> Any:
    """The number of elements in the next block of each row; a negative number means that the size follows."""
    counts = reader.longs(rows)
    sized = counts < 0
    if sized.any():
        reader.longs(rows[sized])
        counts = np.abs(counts)
    # An element has a byte at least, but for those that are nothing.
    broken = (counts < 0) | (counts > reader.ends[rows] - reader.at[rows])
    reader.fail(rows[broken])
    return np.where(broken, 0, counts)


def _lists(wanted: Any, rows: int, owners: list[Any], parts: list[list[Any]], types: list[Any]) -> Any:
    """Lists or maps out of elements, which were read one of each row at a time."""
    owner = np.concatenate(owners) if owners else np.zeros(0, np.int64)
    order = pa.array(np.argsort(owner, kind="stable"))
    counts = np.bincount(owner, minlength=rows)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    flat = [
        pa.concat_arrays([part[n] for part in parts]).take(order) if parts else pa.array([], type_)
        for n, type_ in enumerate(types)
    ]
    if pa.types.is_map(wanted):
        return pa.MapArray.from_arrays(offsets, *flat).cast(wanted)
    return pa.ListArray.from_arrays(offsets, flat[0]).cast(wanted)


ValueReader = Callable[[Reader, Rows, bool], Any]
"""Decodes a stored value of each row, or skips it if the values are not wanted."""
Converter = Callable[[Reader, Rows, Any], Any]
"""Converts stored values into values of the wanted type."""
_PROMOTED = {
    "int": (pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    "long": (pa.int64(), pa.float32(), pa.float64()),
    "float": (pa.float32(), pa.float64()),
    "double": (pa.float64(),),
    "boolean": (pa.bool_(),),
    "enum": (pa.string(),),
    "string": (pa.string(), pa.binary()),
    "bytes": (pa.binary(), pa.string()),
    "fixed": (pa.binary(),),
}
"""The Arrow types that a type may be read as, besides that of its logical type."""
_MILLIS = (2**63 - 1) // 1000
"""The most milliseconds, before and after 1970, that a number of microseconds has room for."""


def value_reader(type_: AvroType) -> ValueReader:
    """The function that reads the values of a type."""
    match type_.kind:
        case "null":
            return lambda reader, rows, wanted: pa.nulls(len(rows)) if wanted else None
        case "boolean":
            return _booleans
        case "int":
            return _ints
        case "long":
            return lambda reader, rows, wanted: pa.array(reader.longs(rows))
        case "float" | "double":
            return _floats("<f4" if type_.kind == "float" else "<f8")
        case "enum":
            return _enums(type_)
        case _:
            return _bytes(type_)


def _booleans(reader: Reader, rows: Rows, wanted: bool) -> Any:
    values = reader.read_fixed(rows, 1)[:, 0]
    reader.fail(rows[values > 1])
    return pa.array(values == 1)


def _ints(reader: Reader, rows: Rows, wanted: bool) -> Any:
    values = reader.longs(rows)
    reader.fail(rows[values != values.astype(np.int32)])
    return pa.array(values.astype(np.int32))


def _floats(of: str) -> ValueReader:
    size = np.dtype(of).itemsize
    return lambda reader, rows, wanted: pa.array(np.ascontiguousarray(reader.read_fixed(rows, size)).view(of)[:, 0])


def _enums(type_: AvroType) -> ValueReader:
    symbols = pa.array(type_.symbols, pa.string())

    def read(reader: Reader, rows: Rows, wanted: bool) -> Any:
        values = reader.longs(rows)
        broken = (values < 0) | (values >= len(symbols))
        reader.fail(rows[broken])
        return symbols.take(pa.array(values, mask=broken))

    return read


def _bytes(type_: AvroType) -> ValueReader:
    def read(reader: Reader, rows: Rows, wanted: bool) -> Any:
        lengths = np.full(len(rows), type_.size) if type_.kind == "fixed" else reader.longs(rows)
        starts, lengths = reader.spans(rows, lengths)
        if not wanted:
            return None
        if type_.logical == "decimal":
            return reader.decimals(rows, starts, lengths, type_.precision, type_.scale)
        values = reader.binaries(starts, lengths)
        return reader.texts(rows, values) if type_.kind == "string" else values

    return read


def make_converter(type_: AvroType, wanted: Any) -> Converter:
    """The function that converts values of a type to an Arrow type; `SchemaError` if they cannot be converted."""
    if type_.kind == "null":
        return lambda reader, rows, values: pa.nulls(len(rows), wanted)
    if type_.logical == "decimal":
        if pa.types.is_decimal(wanted) and _holds(wanted, type_):
            return lambda reader, rows, values: values.cast(wanted)
    elif (moment := _time_converter(type_, wanted)) is not None:
        return lambda reader, rows, values: moment(_in_range(reader, rows, values, type_.logical))
    elif wanted == pa.string() and type_.kind == "bytes":
        return lambda reader, rows, values: reader.texts(rows, values)
    elif wanted in _PROMOTED[type_.kind]:
        # As Avro promotes them: a number may lose digits that a float has no room for.
        return lambda reader, rows, values: values.cast(wanted, safe=False)
    elif type_.kind == "int" and wanted in (pa.int8(), pa.int16()):
        return lambda reader, rows, values: _narrow(reader, rows, np.asarray(values), wanted)
    type_name = f"{type_.kind} ({type_.logical})" if type_.logical else type_.kind
    raise SchemaError(f"it is {type_name}, not {spark_type_name(wanted)}")


def _in_range(reader: Reader, rows: Rows, numbers: Any, logical: str) -> Any:
    """Numbers that count a time; rows whose number Spark has no such time for are bad, and have 0 instead."""
    if logical.startswith("time-"):
        least, most = 0, (86_400_000 if logical.endswith("millis") else 86_400_000_000) - 1
    elif logical.endswith("millis"):
        least, most = -_MILLIS, _MILLIS
    else:
        return numbers
    values = np.asarray(numbers)
    broken = (values < least) | (values > most)
    reader.fail(rows[broken])
    return pa.array(np.where(broken, 0, values), numbers.type)


def _narrow(reader: Reader, rows: Rows, values: Any, wanted: Any) -> Any:
    """Numbers in a type with less room; rows whose number has none are bad."""
    narrow = values.astype(wanted.to_pandas_dtype())
    reader.fail(rows[narrow != values])
    return pa.array(narrow)


def _holds(wanted: Any, type_: AvroType) -> bool:
    """Whether a decimal type has room for the digits of another one, before and behind the point."""
    before = wanted.precision - wanted.scale
    return wanted.scale >= type_.scale and before >= type_.precision - type_.scale


def _time_converter(type_: AvroType, wanted: Any) -> Callable[[Any], Any] | None:
    """The conversion of numbers to times; None: the numbers are requested, or the type is not such a time."""
    logical = type_.logical
    unit = "ms" if logical.endswith("millis") else "us"
    if logical == "date" and pa.types.is_date32(wanted):
        return lambda values: values.cast(wanted)
    if logical.startswith("time-") and pa.types.is_time64(wanted):
        of = pa.time32(unit) if unit == "ms" else pa.time64(unit)
        return lambda values: values.cast(of).cast(wanted)
    if "timestamp" in logical and pa.types.is_timestamp(wanted) and logical.startswith("local") == (wanted.tz is None):
        return lambda values: values.cast(pa.timestamp(unit, wanted.tz)).cast(wanted)
    return None


def default_of(schema: AvroSchema, field: AvroField, wanted: Any) -> Any:
    """The default of a field that a writer did not have, of an Arrow type; NULL without one."""
    type_ = schema.resolve(split_null(schema.resolve(field.type))[0])
    if field.default is None:
        return pa.scalar(None, wanted)
    try:
        if type_.kind in ("bytes", "fixed"):
            # Bytes are written as the characters of these numbers.
            data = str(field.default).encode("latin-1")
            lengths, rows = np.array([len(data)]), np.arange(1)
            reader = reader_of(pa.array([data]))
            starts, lengths = reader.spans(rows, lengths)
            if type_.logical != "decimal":
                return pa.scalar(data, wanted)
            values = reader.decimals(rows, starts, lengths, type_.precision, type_.scale)
            return make_converter(type_, wanted)(reader, rows, values)[0]
        if type_.logical:
            number = pa.array([field.default], pa.int32() if type_.kind == "int" else pa.int64())
            moment = _time_converter(type_, wanted)
            return (number.cast(wanted) if moment is None else moment(number))[0]
        return pa.scalar(field.default, wanted)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaError(f"the default of `{field.name}` is not a {spark_type_name(wanted)}") from error


_PLAIN = {
    pa.bool_(): "boolean", pa.int8(): "int", pa.int16(): "int", pa.int32(): "int", pa.int64(): "long",
    pa.float32(): "float", pa.float64(): "double", pa.string(): "string", pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.time64("ns"): {"type": "long", "logicalType": "time-micros"},
}  # fmt: skip


def schema_of(fields: Sequence[Any], name: str) -> dict[str, Any]:
    """The schema of a record with Arrow fields, as JSON has it; `SchemaError` for what Avro has no type or name for.

    >>> schema_of([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int32())], "orders")["fields"]
    [{'name': 'id', 'type': 'long'}, {'name': 'n', 'type': ['null', 'int'], 'default': None}]
    """
    made: list[dict[str, Any]] = []
    for field in fields:
        if not is_name(field.name):
            raise SchemaError(f"`{field.name}` is not a name in Avro: names have letters, digits and _")
        type_ = _schema(field, f"{name}_{field.name}")
        made.append({"name": field.name, "type": type_, **({"default": None} if field.nullable else {})})
    return {"type": "record", "name": name, "fields": made}


def _schema(field: Any, name: str) -> Any:
    made = _of_type(field.type, name)
    return ["null", made] if field.nullable else made


def _of_type(type_: Any, name: str) -> Any:
    if type_ in _PLAIN:
        return _PLAIN[type_]
    if pa.types.is_timestamp(type_):
        return {"type": "long", "logicalType": "local-timestamp-micros" if type_.tz is None else "timestamp-micros"}
    if pa.types.is_decimal(type_):
        return {"type": "bytes", "logicalType": "decimal", "precision": type_.precision, "scale": type_.scale}
    if pa.types.is_struct(type_):
        return schema_of([*type_], name)
    if pa.types.is_list(type_):
        return {"type": "array", "items": _schema(type_.value_field, f"{name}_element")}
    if pa.types.is_map(type_) and type_.key_type == pa.string():
        return {"type": "map", "values": _schema(type_.item_field, f"{name}_value")}
    raise SchemaError(f"Avro has no type for {spark_type_name(type_)}")


def encode_rows(values: Any, header: bytes = b"") -> Any:
    """Structs as an array of their bytes, each behind the same first ones; NULL stays NULL."""
    has = values.is_valid()
    rows = values.filter(has)
    return concat_parts([constant(header, len(rows)), _record(rows)]).array(np.asarray(has))


def _record(rows: Any) -> Ragged:
    columns = [_nullable(column, field) for column, field in zip(rows.flatten(), rows.type, strict=True)]
    return concat_parts([constant(b"", len(rows)), *columns])


def _nullable(column: Any, field: Any) -> Ragged:
    """Values behind the number of their branch, where there may be none."""
    if not field.nullable:
        return _values(column)
    has = np.asarray(column.is_valid())
    return concat_parts([_longs(has.astype(np.int64)), _values(column.drop_null()).spread(has)])


def _values(column: Any) -> Ragged:
    """Encode values without NULLs."""
    type_ = column.type
    if pa.types.is_struct(type_):
        return _record(column)
    if pa.types.is_list(type_) or pa.types.is_map(type_):
        return _collection(column)
    if pa.types.is_decimal(type_):
        return _decimals(column)
    if type_ in (pa.string(), pa.binary()):
        inside = bytes_of(column)
        return concat_parts([_longs(inside.lengths), inside])
    if pa.types.is_boolean(type_):
        return Ragged(np.asarray(column.cast(pa.uint8())), np.arange(len(column) + 1))
    if pa.types.is_floating(type_):
        return floats(column)
    if pa.types.is_time64(type_):
        # Spark's times have nanoseconds; the rest of a microsecond is cut off.
        return _longs(np.asarray(column.cast(pa.int64())) // 1000)
    whole = column.cast(pa.int32()) if pa.types.is_date32(type_) else column
    return _longs(np.asarray(whole.cast(pa.int64())))


def _collection(column: Any) -> Ragged:
    """Lists and maps: the number of elements, then these, then the number of no more."""
    is_map = pa.types.is_map(column.type)
    counts = np.diff(np.asarray(column.offsets))
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    if is_map:
        keys, items = (part.slice(first, last - first) for part in (column.keys, column.items))
        elements = concat_parts([_values(keys), _nullable(items, column.type.item_field)])
    else:
        elements = _nullable(column.values.slice(first, last - first), column.type.value_field)
    inside = Ragged(elements.data, elements.ends[ends_of(counts)])
    return concat_parts([_nonzero(counts), inside, constant(b"\0", len(column))])


def _nonzero(counts: Any) -> Ragged:
    """Numbers that are not 0; nothing in the place of one that is."""
    return _longs(counts[counts > 0]).spread(counts > 0)


def _longs(values: Any) -> Ragged:
    """Numbers in as many bytes as they need."""
    return varints(zigzag_encode(values))


def _decimals(column: Any) -> Ragged:
    """The digits as a whole number, in as many bytes as it and its sign need, the highest first."""
    size = column.type.byte_width
    start = column.offset * size
    stored = np.frombuffer(column.buffers()[1] or b"", np.uint8)[start : start + len(column) * size]
    digits = stored.reshape(len(column), size)[:, ::-1]
    sign = np.where(digits[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    # A byte goes without saying if all up to it are the sign, and the next one shows it.
    shows = (digits[:, 1:] >= 0x80) == (sign > 0)
    needless = np.logical_and.accumulate((digits[:, :-1] == sign) & shows, axis=1).sum(axis=1)
    needed = np.arange(int(size)) >= needless[:, None]
    lengths = size - needless
    return concat_parts([_longs(lengths), Ragged(digits[needed], ends_of(lengths))])
