"""Scalar Protobuf values: how they are stored, and their Arrow values.

Timestamps and durations are messages of seconds and nanoseconds. Spark counts microseconds, so smaller parts are cut
off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.formats.binary import Reader, SchemaError, spark_type_name, zigzag_decode
from watersmeet.formats.protobuf.descriptor import BYTES, EIGHT, FOUR, VARINT, Fields, ProtoField

UNSIGNED = pa.decimal128(20, 0)
"""A type that holds unsigned 64-bit integers."""
_WHOLE, _LONG = (pa.int32(), pa.int64()), (pa.int64(),)
_READ_AS: Mapping[str, tuple[Any, ...]] = {
    "int32": _WHOLE, "sint32": _WHOLE, "sfixed32": _WHOLE, "uint32": _LONG, "fixed32": _LONG, "int64": _LONG,
    "sint64": _LONG, "sfixed64": _LONG, "uint64": (UNSIGNED,), "fixed64": (UNSIGNED,), "bool": (pa.bool_(),),
    "float": (pa.float32(), pa.float64()), "double": (pa.float64(),), "string": (pa.string(),),
    "bytes": (pa.binary(),), "enum": (pa.string(), pa.int32()),
}  # fmt: skip
"""What each type may be read as: nothing that has no room for one of its values."""
FIXED: Mapping[str, str] = {
    "fixed32": "<u4", "sfixed32": "<i4", "float": "<f4", "fixed64": "<u8", "sfixed64": "<i8", "double": "<f8",
}  # fmt: skip
"""The types that always have the same number of bytes, as numpy calls them."""


def wire_of(kind: str) -> int:
    """The wire type of values of a type."""
    if kind in FIXED:
        return FOUR if FIXED[kind].endswith("4") else EIGHT
    return BYTES if kind in ("string", "bytes") else VARINT


def check_type(field: ProtoField, wanted: Any) -> None:
    """Refuse an Arrow type that values of a field are not read as."""
    if wanted not in _READ_AS[field.kind]:
        raise SchemaError(
            f"it is {field.kind}, read as {spark_type_name(_READ_AS[field.kind][0])}, not {spark_type_name(wanted)}"
        )


def default_of(field: ProtoField, wanted: Any) -> Any:
    """The value of a missing field."""
    if field.default is None or field.kind != "enum" or wanted != pa.string():
        return pa.scalar(field.default, wanted)
    return pa.scalar(_names(field).get(field.default, str(field.default)))


def _names(field: ProtoField) -> dict[int, str]:
    """The name of each number of an enum, of several the first."""
    return dict(reversed(field.symbols))


def elements_of(field: ProtoField, reader: Reader, fields: Fields) -> Fields:
    """The elements of repeated values in the order of their messages.

    Numbers may come one by one, or packed: the bytes of many behind one number of a field.
    """
    wire = wire_of(field.kind)
    own = np.flatnonzero(fields.wires == wire)
    packed = np.flatnonzero(fields.wires == BYTES) if wire != BYTES else np.zeros(0, np.int64)
    one_by_one = fields.where(own)
    if len(packed) == 0:
        return one_by_one.where(np.argsort(one_by_one.messages, kind="stable"))
    of, starts, ends, values = _unpack(field.kind, reader, fields.where(packed))
    inside = fields.where(packed[of])
    elements = Fields(
        np.concatenate([one_by_one.messages, inside.messages]),
        np.concatenate([one_by_one.numbers, inside.numbers]),
        np.concatenate([one_by_one.wires, inside.wires]),
        np.concatenate([one_by_one.values, values]),
        np.concatenate([one_by_one.starts, starts]),
        np.concatenate([one_by_one.ends, ends]),
    )
    return elements.where(np.lexsort((np.concatenate([own, packed[of]]), elements.messages)))


def _unpack(kind: str, reader: Reader, packed: Fields) -> tuple[Any, Any, Any, Any]:
    """Packed values: the field of each, where it begins and ends, and its value if it is a number."""
    lengths: Any = packed.ends - packed.starts
    if kind in FIXED:
        size = np.dtype(FIXED[kind]).itemsize
        reader.fail(packed.messages[lengths % size != 0])
        counts = lengths // size
        owner: Any = np.repeat(np.arange(len(lengths)), counts)
        turn: Any = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        begin: Any = packed.starts[owner] + turn * size
        return owner, begin, begin + size, np.zeros(len(owner), np.uint64)
    of_byte = np.repeat(np.arange(len(lengths)), lengths)
    places: Any = np.repeat(packed.starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))
    is_last = reader.data[places] < 0x80
    of: Any = of_byte[is_last]
    ends: Any = places[is_last] + 1
    is_first = np.diff(of, prepend=-1) != 0
    starts: Any = np.where(is_first, packed.starts[of], np.concatenate([ends[-1:], ends[:-1]]))
    # The last byte of all must be that of a number.
    whole = np.zeros(len(lengths), np.int64)
    np.maximum.at(whole, of, ends)
    reader.fail(packed.messages[(lengths > 0) & (whole != packed.ends)])
    inside = reader.within(starts, ends)
    values = inside.varints(np.arange(len(of)))
    reader.fail(packed.messages[of[inside.bad]])
    return of, starts, ends, values


@dataclass(frozen=True)
class Scalars:
    """Values of a field as an Arrow type, which it may be read as."""

    field: ProtoField
    wanted: Any

    def array(self, reader: Reader, fields: Fields) -> Any:
        """The values of fields, one of each."""
        kind = self.field.kind
        if kind in FIXED:
            dtype = np.dtype(FIXED[kind])
            bytes_ = reader.data[fields.starts[:, None] + np.arange(dtype.itemsize)]
            return self._numbers(np.ascontiguousarray(bytes_).view(dtype).reshape(len(fields.starts)))
        if wire_of(kind) == BYTES:
            values = reader.binaries(fields.starts, fields.ends - fields.starts)
            return reader.texts(fields.messages, values) if kind == "string" else values
        return self._numbers(_whole(kind, fields.values))

    def _numbers(self, values: Any) -> Any:
        if self.wanted == UNSIGNED:
            digits = np.zeros((len(values), 2), np.uint64)
            digits[:, 0] = values
            return pa.Decimal128Array.from_buffers(UNSIGNED, len(values), [None, pa.py_buffer(digits)])
        if self.field.kind == "enum" and self.wanted == pa.string():
            return self._symbols(values)
        return pa.array(values).cast(self.wanted)

    def _symbols(self, values: Any) -> Any:
        """The names of an enum; a number that has none is shown as it is, as in Protobuf's JSON."""
        names_by_number = _names(self.field)
        numbers, which = np.unique(values, return_inverse=True)
        names = pa.array([names_by_number.get(number, str(number)) for number in numbers.tolist()], pa.string())
        return names.take(pa.array(which))


def _whole(kind: str, values: Any) -> Any:
    """Numbers of variable length as those of a type; of one of 32 bits the others are cut off, as Protobuf does."""
    match kind:
        case "bool":
            return values != 0
        case "uint64":
            return values
        case "int64":
            return values.view(np.int64)
        case "sint64":
            return zigzag_decode(values)
        case "uint32":
            return values.astype(np.uint32).astype(np.int64)
        case "sint32":
            return zigzag_decode(values & np.uint64(0xFFFFFFFF)).astype(np.int32)
        case _:
            return values.astype(np.uint32).view(np.int32)


MOMENT = pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())])
_MICROS, _NANOS = 1_000_000, 1_000_000_000
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999."""
_SECONDS_OF_A_DURATION = 315_576_000_000


def timestamps(reader: Reader, parts: Any) -> Any:
    """Moments; a message that is out of the years that Protobuf has is bad."""
    seconds, nanos = _parts(parts)
    bad = (seconds < _FIRST_SECOND) | (seconds > _LAST_SECOND) | (nanos < 0) | (nanos >= _NANOS)
    return _to_micros(reader, seconds, nanos // 1000, bad).cast(pa.timestamp("us", "UTC"))


def durations(reader: Reader, parts: Any) -> Any:
    """Durations; a message whose parts have different signs is malformed."""
    seconds, nanos = _parts(parts)
    # Not by the absolute value: that of the smallest number is negative.
    bad = (seconds < -_SECONDS_OF_A_DURATION) | (seconds > _SECONDS_OF_A_DURATION) | (np.abs(nanos) >= _NANOS)
    bad |= np.sign(seconds) * np.sign(nanos) < 0
    return _to_micros(reader, seconds, np.sign(nanos) * (np.abs(nanos) // 1000), bad).cast(pa.duration("us"))


def parts_of(column: Any) -> Any:
    """Moments or durations as the messages that they are; a moment has no negative nanoseconds."""
    micros = np.asarray(column.cast(pa.int64()))
    if pa.types.is_duration(column.type):
        seconds = np.sign(micros) * (np.abs(micros) // _MICROS)
    else:
        seconds = micros // _MICROS
    nanos = ((micros - seconds * _MICROS) * 1000).astype(np.int32)
    return pa.StructArray.from_arrays([pa.array(seconds), pa.array(nanos)], names=["seconds", "nanos"])


def _parts(parts: Any) -> tuple[Any, Any]:
    return np.asarray(parts.field(0)), np.asarray(parts.field(1)).astype(np.int64)


def _to_micros(reader: Reader, seconds: Any, micros: Any, bad: Any) -> Any:
    reader.fail(np.flatnonzero(bad))
    return pa.array(np.where(bad, 0, seconds) * _MICROS + np.where(bad, 0, micros))
