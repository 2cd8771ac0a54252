"""Rows into messages of Protobuf, a column at a time.

A column is written as the field of its name. NULL omits a field; a reader of a field without presence then sees its
default and cannot distinguish the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.codec.binary import (
    Ragged,
    SchemaError,
    bytes_of,
    concat_parts,
    constant,
    ends_of,
    floats,
    spark_type_name,
    varints,
    zigzag_encode,
)
from watersmeet.formats.protobuf.descriptor import (
    DURATION,
    TIMESTAMP,
    UNSIGNED,
    WRAPPERS,
    Messages,
    ProtoField,
    ProtoMessage,
)

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
"""The wire types of values; 3 and 4 are those of groups, which are not written."""
FIXED: Mapping[str, str] = {
    "fixed32": "<u4", "sfixed32": "<i4", "float": "<f4", "fixed64": "<u8", "sfixed64": "<i8", "double": "<f8",
}  # fmt: skip
"""The types that always have the same number of bytes, as numpy calls them."""

MOMENT = pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())])
_MICROS = 1_000_000
_SHORT = (pa.int8(), pa.int16(), pa.int32())
_LONG = (*_SHORT, pa.int64())
_WRITTEN_FROM: Mapping[str, tuple[Any, ...]] = {
    "int32": _SHORT, "sint32": _SHORT, "sfixed32": _SHORT, "uint32": _LONG, "fixed32": _LONG, "int64": _LONG,
    "sint64": _LONG, "sfixed64": _LONG, "uint64": (*_LONG, UNSIGNED), "fixed64": (*_LONG, UNSIGNED),
    "bool": (pa.bool_(),), "float": (pa.float32(),), "double": (pa.float32(), pa.float64()), "string": (pa.string(),),
    "bytes": (pa.binary(),), "enum": (pa.string(),),
}  # fmt: skip
"""The Arrow types that each field type can be written from."""


class ValueOfNoFieldError(SchemaError):
    """A value that its field has no room or no name for."""


@dataclass(frozen=True)
class ProtobufEncoder:
    """Writes rows of an Arrow type as a message. Making one refuses what cannot be written, with a `SchemaError`."""

    messages: Messages
    type: Any

    def __post_init__(self) -> None:
        self._record(self.messages.root_message, pa.array([], self.type))

    def rows(self, values: Any) -> Any:
        """Structs as an array of their bytes; NULL stays NULL."""
        has = np.asarray(values.is_valid())
        return self._record(self.messages.root_message, values.filter(values.is_valid())).array(has)

    def _record(self, message: ProtoMessage, rows: Any) -> Ragged:
        """Structs without NULLs as messages."""
        columns = {field.name.lower() for field in rows.type}
        for field in message.fields:
            if field.is_required and field.name.lower() not in columns:
                raise SchemaError(f"{message.name} requires `{field.name}`, but no column has that name")
        parts: list[Ragged] = []
        for column, arrow_field in zip(rows.flatten(), rows.type, strict=True):
            field = message.field(arrow_field.name)
            if field is None:
                raise SchemaError(f"{message.name} has no `{arrow_field.name}`")
            try:
                parts.append(self._field(field, column, is_nullable=arrow_field.nullable))
            except ValueOfNoFieldError:
                raise
            except SchemaError as error:
                raise SchemaError(f"`{arrow_field.name}`: {error}") from error
        return concat_parts([constant(b"", len(rows)), *parts])

    def _field(self, field: ProtoField, column: Any, *, is_nullable: bool = True) -> Ragged:
        """A column as a field: its number with each value, and nothing where that is NULL."""
        if field.is_required and is_nullable:
            raise SchemaError("the message requires it, but the column may be NULL")
        inner = self.messages.by_name.get(field.message)
        if inner is not None and inner.is_entry:
            return self._map(field, inner, column)
        if field.is_repeated:
            return self._list(field, column)
        has = np.asarray(column.is_valid())
        return self._with_tags(field, column.drop_null()).spread(has)

    def _with_tags(self, field: ProtoField, column: Any) -> Ragged:
        """Values without NULLs, each after the tag of its field."""
        if field.kind == "group":
            raise SchemaError("it is a group, which a column cannot be")
        inner = self.messages.by_name.get(field.message)
        if inner is not None:
            return _with_lengths(field, self._as_message(inner, column))
        wire = wire_of(field.kind)
        values = self._values(field, column)
        return _with_lengths(field, values) if wire == BYTES else concat_parts([_tag(field, wire, len(column)), values])

    def _as_message(self, inner: ProtoMessage, column: Any) -> Ragged:
        """Values as messages: structs, timestamps, durations and wrappers."""
        type_ = column.type
        if pa.types.is_struct(type_):
            return self._record(inner, column)
        if inner.name in WRAPPERS:
            return self._field(inner.fields[0], column)
        is_moment = inner.name == TIMESTAMP and pa.types.is_timestamp(type_) and type_.tz is not None
        if is_moment or (inner.name == DURATION and pa.types.is_duration(type_)):
            return self._record(inner, parts_of(column).cast(MOMENT))
        raise SchemaError(f"it is {spark_type_name(type_)}, but the field is the message {inner.name}")

    def _values(self, field: ProtoField, column: Any) -> Ragged:
        if column.type not in _WRITTEN_FROM[field.kind]:
            raise SchemaError(f"it is {spark_type_name(column.type)}, but the field is {field.kind}")
        if field.kind in FIXED:
            return floats(pa.array(_numbers(field, column)).cast(pa.from_numpy_dtype(np.dtype(FIXED[field.kind]))))
        if wire_of(field.kind) == BYTES:
            return bytes_of(column)
        numbers = _numbers(field, column)
        if field.kind in ("sint32", "sint64"):
            return varints(zigzag_encode(numbers))
        # A number below 0 has all 64 places, whatever its type.
        return varints(numbers if numbers.dtype == np.uint64 else numbers.astype(np.int64).view(np.uint64))

    def _list(self, field: ProtoField, column: Any) -> Ragged:
        """Lists: numbers packed behind one number of the field, all others one by one."""
        if not pa.types.is_list(column.type):
            raise SchemaError(f"it is {spark_type_name(column.type)}, but the field is repeated")
        elements = _without_null(field, column.flatten())
        counts = np.asarray(pc.fill_null(pc.list_value_length(column), 0)).astype(np.int64)
        if field.message or wire_of(field.kind) == BYTES:
            written = self._with_tags(field, elements)
            return Ragged(written.data, written.ends[ends_of(counts)])
        written = self._values(field, elements)
        inside = Ragged(written.data, written.ends[ends_of(counts)])
        has = counts > 0
        return _with_lengths(field, Ragged(inside.data, ends_of(inside.lengths[has]))).spread(has)

    def _map(self, field: ProtoField, entry: ProtoMessage, column: Any) -> Ragged:
        if not pa.types.is_map(column.type):
            raise SchemaError(f"it is {spark_type_name(column.type)}, but the field is a map")
        filled = column.filter(column.is_valid())
        counts = np.zeros(len(column), np.int64)
        counts[np.asarray(column.is_valid())] = np.diff(np.asarray(filled.offsets))
        first, length = (filled.offsets[0].as_py(), counts.sum()) if len(filled) else (0, 0)
        keys, values = (part.slice(first, length) for part in (filled.keys, filled.items))
        parts = zip(entry.fields, (keys, _without_null(field, values)), strict=True)
        written = _with_lengths(
            field, concat_parts([self._with_tags(entry_field, values) for entry_field, values in parts])
        )
        return Ragged(written.data, written.ends[ends_of(counts)])


def _tag(field: ProtoField, wire: int, rows: int) -> Ragged:
    tag = varints(np.array([field.number << 3 | wire], np.uint64))
    return constant(tag.data.tobytes(), rows)


def _with_lengths(field: ProtoField, values: Ragged) -> Ragged:
    """Bytes behind the number of their field and how many they are."""
    lengths = values.lengths
    return concat_parts([_tag(field, BYTES, len(lengths)), varints(lengths.astype(np.uint64)), values])


def _without_null(field: ProtoField, elements: Any) -> Any:
    if elements.null_count:
        raise ValueOfNoFieldError(f"an element of `{field.name}` is NULL, which Protobuf cannot represent")
    return elements


def _numbers(field: ProtoField, column: Any) -> Any:
    """Numbers of a field, also of an enum; of those without a sign none is below 0 or too large."""
    if field.kind == "enum":
        return _of_symbols(field, column)
    if not field.kind.startswith(("uint", "fixed")):
        return np.asarray(column)
    largest = 2 ** int(field.kind[-2:]) - 1
    wide = column.cast(UNSIGNED)
    least, most = (pa.scalar(number, UNSIGNED) for number in (0, largest))
    wrong = column.filter(pc.or_(pc.less(wide, least), pc.greater(wide, most)))
    if len(wrong):
        raise ValueOfNoFieldError(f"`{field.name}` is {field.kind} but gets {wrong[0].as_py()}")
    if field.kind.endswith("32"):
        return np.asarray(column.cast(pa.int64())).astype(np.uint64)
    digits = np.frombuffer(wide.buffers()[1] or b"", np.uint64)[wide.offset * 2 : (wide.offset + len(wide)) * 2]
    return digits[::2].copy()


def _of_symbols(field: ProtoField, column: Any) -> Any:
    """The numbers of an enum by their names; a number without a name is written as is."""
    numbers_by_name = {name: number for number, name in field.symbols}
    encoded = column.dictionary_encode()
    numbers = np.zeros(len(encoded.dictionary), np.int64)
    for place, name in enumerate(encoded.dictionary.to_pylist()):
        if name not in numbers_by_name and not name.lstrip("-").isdecimal():
            raise ValueOfNoFieldError(f"`{field.name}` has no `{name}`")
        numbers[place] = numbers_by_name[name] if name in numbers_by_name else int(name)
    return numbers[np.asarray(encoded.indices)]


def wire_of(kind: str) -> int:
    """The wire type of values of a type."""
    if kind in FIXED:
        return FOUR if FIXED[kind].endswith("4") else EIGHT
    return BYTES if kind in ("string", "bytes") else VARINT


def parts_of(column: Any) -> Any:
    """Moments or durations as the messages that they are; a moment has no negative nanoseconds."""
    micros = np.asarray(column.cast(pa.int64()))
    if pa.types.is_duration(column.type):
        seconds = np.sign(micros) * (np.abs(micros) // _MICROS)
    else:
        seconds = micros // _MICROS
    nanos = ((micros - seconds * _MICROS) * 1000).astype(np.int32)
    return pa.StructArray.from_arrays([pa.array(seconds), pa.array(nanos)], names=["seconds", "nanos"])
