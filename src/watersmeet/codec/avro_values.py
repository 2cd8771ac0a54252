"""Primitive Avro values: how they are stored, and their Arrow values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.codec.avro_schema import AvroField, AvroSchema, AvroType, split_null
from watersmeet.codec.binary import Reader, Rows, SchemaError, reader_of, spark_type_name

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
