"""Messages of Protobuf into rows and back, a column at a time.

The package ``protobuf`` parses messages, and Arrow columns are built of the result. A field without presence that is
left out has its default: its writer may have left out a 0. Any other that is left out is NULL, unless its message gives
it a default. Moments and durations are messages of seconds and nanoseconds. Spark counts microseconds, so smaller parts
are cut off.

A column is written as the field of its name. NULL omits a field; a reader of a field without presence then sees its
default and cannot distinguish the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import attrgetter
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

_WHOLE, _LONG = (pa.int32(), pa.int64()), (pa.int64(),)
_READ_AS: Mapping[str, tuple[Any, ...]] = {
    "int32": _WHOLE, "sint32": _WHOLE, "sfixed32": _WHOLE, "uint32": _LONG, "fixed32": _LONG, "int64": _LONG,
    "sint64": _LONG, "sfixed64": _LONG, "uint64": (UNSIGNED,), "fixed64": (UNSIGNED,), "bool": (pa.bool_(),),
    "float": (pa.float32(), pa.float64()), "double": (pa.float64(),), "string": (pa.string(),),
    "bytes": (pa.binary(),), "enum": (pa.string(), pa.int32()),
}  # fmt: skip
"""The Arrow types that each field type can be read as: only those that can hold all of its values."""
_MICROS, _NANOS = 1_000_000, 1_000_000_000
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999."""
_SECONDS_OF_A_DURATION = 315_576_000_000


@dataclass(frozen=True)
class DecodedMessages:
    """Values of rows as a struct of columns, and which of the rows have bytes that are not such a message."""

    values: Any
    bad: Any


@dataclass(frozen=True)
class ParsedMessages:
    """Messages, each of a row, or within it; ``bad`` has a place per row, and is set for rows that are broken."""

    parsed: Sequence[Any]
    rows: Any
    bad: Any

    def fail(self, broken: Any) -> None:
        """Set the rows of some messages as bad, by a mask or by their places."""
        if len(broken):
            self.bad[self.rows[broken]] = True

    def within(self, parsed: Sequence[Any], chosen: Any) -> ParsedMessages:
        """Messages that lie in chosen ones of these."""
        return ParsedMessages(parsed, self.rows[chosen], self.bad)


Convert = Callable[[ParsedMessages], Any]
"""Makes an Arrow array of messages: a value of each."""


@dataclass(frozen=True)
class ProtobufDecoder:
    """The description by which rows are read: the message that they are, and the Arrow type that is requested.

    Making one refuses types that cannot be read so, with a `SchemaError`. Columns that the message does not have are
    NULL, since they may come from the key of a record; within columns a missing field is refused.
    """

    messages: Messages
    wanted: Any

    def __post_init__(self) -> None:
        self._struct(self.messages.root_message, self.wanted)

    def rows(self, values: Any) -> DecodedMessages:
        """Rows out of their bytes."""
        from google.protobuf.message import DecodeError

        made = message_class(self.messages.files, self.messages.root)
        parse, is_checked = made.FromString, self.messages.has_required
        bad = np.zeros(len(values), bool)
        parsed: list[Any] = []
        for place, value in enumerate(values.to_pylist()):
            try:
                message = parse(value or b"")
                bad[place] = is_checked and not message.IsInitialized()
            except DecodeError:
                bad[place], message = True, made()
            parsed.append(message)
        convert = self._struct(self.messages.root_message, self.wanted)
        return DecodedMessages(convert(ParsedMessages(parsed, np.arange(len(parsed)), bad)), bad)

    def _struct(self, message: ProtoMessage, wanted: Any) -> Convert:
        """The function that decodes messages into structs."""
        columns: list[Convert] = []
        for column in wanted:
            field = message.field(column.name)
            if field is None and wanted is not self.wanted:
                raise SchemaError(f"{message.name} has no `{column.name}`")
            if field is None:
                columns.append(_nulls(column.type))
                continue
            try:
                columns.append(self._column(field, column.type))
            except SchemaError as error:
                raise SchemaError(f"`{field.name}`: {error}") from error
        fields = [field.with_nullable(True) for field in wanted]
        return lambda messages: pa.StructArray.from_arrays([column(messages) for column in columns], fields=fields)

    def _column(self, field: ProtoField, wanted: Any) -> Convert:
        """The function that decodes a field into a column."""
        inner = self.messages.by_name.get(field.message)
        if field.kind == "group":
            raise SchemaError("it is a group, which a column cannot be")
        if inner is not None and inner.is_entry:
            return self._map(field, inner, wanted)
        if field.is_repeated:
            return self._list(field, inner, wanted)
        name, get = field.name, attrgetter(field.name)
        if inner is None:
            make = scalar_array(field, wanted)
            if field.default is not None:
                return lambda messages: make(messages, map(get, messages.parsed))
            return lambda messages: make(messages, (get(m) if m.HasField(name) else None for m in messages.parsed))
        convert = self._from_message(inner, wanted)

        def read(messages: ParsedMessages) -> Any:
            has = np.fromiter((m.HasField(name) for m in messages.parsed), bool, len(messages.parsed))
            inside = [get(messages.parsed[place]) for place in np.flatnonzero(has).tolist()]
            values = convert(messages.within(inside, has))
            return values.take(pa.array(np.cumsum(has) - 1, mask=~has))

        return read

    def _list(self, field: ProtoField, inner: ProtoMessage | None, wanted: Any) -> Convert:
        _check_kind(wanted, "is_list", "repeated")
        get = attrgetter(field.name)
        convert = (
            _elements(scalar_array(field, wanted.value_type))
            if inner is None
            else self._from_message(inner, wanted.value_type)
        )

        def read(messages: ParsedMessages) -> Any:
            lists = [get(m) for m in messages.parsed]
            counts = np.fromiter(map(len, lists), np.int64, len(lists))
            owners = np.repeat(np.arange(len(lists)), counts)
            elements = convert(messages.within([*chain.from_iterable(lists)], owners))
            return pa.ListArray.from_arrays(_offsets(counts), elements).cast(wanted)

        return read

    def _map(self, field: ProtoField, entry: ProtoMessage, wanted: Any) -> Convert:
        """Maps in the order of their keys: a parsed map has none, and the same bytes must give the same value."""
        _check_kind(wanted, "is_map", "a map")
        key, value = entry.fields
        inner = self.messages.by_name.get(value.message)
        keys = _elements(scalar_array(key, wanted.key_type))
        values = (
            _elements(scalar_array(value, wanted.item_type))
            if inner is None
            else self._from_message(inner, wanted.item_type)
        )
        get = attrgetter(field.name)

        def read(messages: ParsedMessages) -> Any:
            maps = [get(m) for m in messages.parsed]
            counts = np.fromiter(map(len, maps), np.int64, len(maps))
            owners = np.repeat(np.arange(len(maps)), counts)
            names = [sorted(entries) for entries in maps]
            items = [entries[name] for entries, own in zip(maps, names, strict=True) for name in own]
            key_array = keys(messages.within([*chain.from_iterable(names)], owners))
            return pa.MapArray.from_arrays(_offsets(counts), key_array, values(messages.within(items, owners))).cast(
                wanted
            )

        return read

    def _from_message(self, inner: ProtoMessage, wanted: Any) -> Convert:
        """The function that decodes messages into values: timestamps, durations and wrappers become plain values."""
        if pa.types.is_struct(wanted):
            return self._struct(inner, wanted)
        if inner.name in WRAPPERS:
            return self._column(inner.fields[0], wanted)
        if inner.name == TIMESTAMP and pa.types.is_timestamp(wanted) and wanted.tz is not None:
            return lambda messages: timestamps(messages).cast(wanted)
        if inner.name == DURATION and pa.types.is_duration(wanted):
            return lambda messages: durations(messages).cast(wanted)
        raise SchemaError(f"it is the message {inner.name}, not {spark_type_name(wanted)}")


@lru_cache(64)
def message_class(files: bytes, name: str) -> Any:
    """The class of a message out of a descriptor set."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool: Any = DescriptorPool()
    parsed: Any = FileDescriptorSet.FromString(files)
    for file in parsed.file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))


def scalar_array(field: ProtoField, wanted: Any) -> Callable[[ParsedMessages, Iterable[Any]], Any]:
    """The function that builds an Arrow array from one value of a field per message; None becomes NULL."""
    if wanted not in _READ_AS[field.kind]:
        raise SchemaError(
            f"it is {field.kind}, read as {spark_type_name(_READ_AS[field.kind][0])}, not {spark_type_name(wanted)}"
        )
    if field.kind == "enum" and wanted == pa.string():
        # Of several names of a number the first; a number that has none is shown as it is, as in Protobuf's JSON.
        names = {None: None, **dict(reversed(field.symbols))}
        return lambda messages, values: pa.array([names.get(v, str(v)) for v in values], wanted)
    if field.kind != "string":
        return lambda messages, values: pa.array([*values], wanted)

    def read_texts(messages: ParsedMessages, values: Iterable[Any]) -> Any:
        # In proto2 a string may be any bytes; those that are not a text are left as bytes.
        texts = [*values]
        broken = [place for place, text in enumerate(texts) if isinstance(text, bytes)]
        for place in broken:
            texts[place] = ""
        messages.fail(broken)
        return pa.array(texts, wanted)

    return read_texts


def _elements(make: Callable[[ParsedMessages, Iterable[Any]], Any]) -> Convert:
    """The function that builds an array of elements that are plain values."""
    return lambda messages: make(messages, messages.parsed)


def _nulls(type_: Any) -> Convert:
    return lambda messages: pa.nulls(len(messages.parsed), type_)


def _check_kind(wanted: Any, predicate: str, kind: str) -> None:
    if not getattr(pa.types, predicate)(wanted):
        raise SchemaError(f"it is {kind}, not {spark_type_name(wanted)}")


def _offsets(counts: Any) -> Any:
    return pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))


def timestamps(messages: ParsedMessages) -> Any:
    """Moments; a message that is out of the years that Protobuf has is bad."""
    seconds, nanos = _seconds_and_nanos(messages)
    bad = (seconds < _FIRST_SECOND) | (seconds > _LAST_SECOND) | (nanos < 0) | (nanos >= _NANOS)
    return _to_micros(messages, seconds, nanos // 1000, bad).cast(pa.timestamp("us", "UTC"))


def durations(messages: ParsedMessages) -> Any:
    """Durations; a message of which one part is positive and the other negative is bad."""
    seconds, nanos = _seconds_and_nanos(messages)
    # Not by the absolute value: that of the smallest number is negative.
    bad = (seconds < -_SECONDS_OF_A_DURATION) | (seconds > _SECONDS_OF_A_DURATION) | (np.abs(nanos) >= _NANOS)
    bad |= np.sign(seconds) * np.sign(nanos) < 0
    return _to_micros(messages, seconds, np.sign(nanos) * (np.abs(nanos) // 1000), bad).cast(pa.duration("us"))


def _seconds_and_nanos(messages: ParsedMessages) -> tuple[Any, Any]:
    parts = (np.fromiter((getattr(m, name) for m in messages.parsed), np.int64) for name in ("seconds", "nanos"))
    seconds, nanos = parts
    return seconds, nanos


def _to_micros(messages: ParsedMessages, seconds: Any, micros: Any, bad: Any) -> Any:
    messages.fail(bad)
    return pa.array(np.where(bad, 0, seconds) * _MICROS + np.where(bad, 0, micros))


VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
"""The wire types of values; 3 and 4 are those of groups, which are not written."""
FIXED: Mapping[str, str] = {
    "fixed32": "<u4", "sfixed32": "<i4", "float": "<f4", "fixed64": "<u8", "sfixed64": "<i8", "double": "<f8",
}  # fmt: skip
"""The types that always have the same number of bytes, as numpy calls them."""

MOMENT = pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())])
_SMALL = (pa.int8(), pa.int16(), pa.int32())
_LARGE = (*_SMALL, pa.int64())
_WRITTEN_FROM: Mapping[str, tuple[Any, ...]] = {
    "int32": _SMALL, "sint32": _SMALL, "sfixed32": _SMALL, "uint32": _LARGE, "fixed32": _LARGE, "int64": _LARGE,
    "sint64": _LARGE, "sfixed64": _LARGE, "uint64": (*_LARGE, UNSIGNED), "fixed64": (*_LARGE, UNSIGNED),
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
