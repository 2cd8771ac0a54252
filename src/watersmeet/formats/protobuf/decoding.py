"""Rows out of messages of Protobuf, a field of all rows at a time.

A field may come anywhere, several times, or not at all. Of one that can be there once the last counts, and messages
that come several times are one, as Protobuf says. A field without presence that is left out has its default: its writer
may have left out a 0. Any other that is left out is NULL, unless its message gives it a default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.formats.binary import Reader, SchemaError, add_padding, reader_of, spark_type_name
from watersmeet.formats.protobuf.descriptor import (
    BYTES,
    DURATION,
    TIMESTAMP,
    WRAPPERS,
    Fields,
    Messages,
    ProtoField,
    ProtoMessage,
    fields_of,
)
from watersmeet.formats.protobuf.values import (
    MOMENT,
    Scalars,
    check_type,
    default_of,
    durations,
    elements_of,
    timestamps,
    wire_of,
)


@dataclass(frozen=True)
class DecodedMessages:
    """Values of rows as a struct of columns, and which rows have malformed bytes."""

    values: Any
    bad: Any


@dataclass(frozen=True)
class ProtobufDecoder:
    """Decodes rows: the message type, and the requested Arrow type.

    The constructor raises a `SchemaError` for a type that cannot be read. Columns that the message lacks are NULL: the
    caller knows whether they come from elsewhere; nested fields must exist.
    """

    messages: Messages
    wanted: Any

    def __post_init__(self) -> None:
        self.rows(pa.array([b""]))

    def rows(self, values: Any) -> DecodedMessages:
        """Rows out of their bytes."""
        reader = reader_of(values)
        return DecodedMessages(self._message(self.messages.root_message, self.wanted, reader), reader.bad)

    def _message(self, message: ProtoMessage, wanted: Any, reader: Reader) -> Any:
        """Messages as structs."""
        fields_read = fields_of(reader)
        for field in message.fields:
            if field.is_required:
                counts = np.bincount(
                    fields_read.messages[fields_read.numbers == field.number], minlength=len(reader.ends)
                )
                reader.fail(np.flatnonzero(counts == 0))
        columns: list[Any] = []
        for column in wanted:
            field = message.field(column.name)
            if field is None and wanted is not self.wanted:
                raise SchemaError(f"{message.name} has no `{column.name}`")
            if field is None:
                columns.append(pa.nulls(len(reader.ends), column.type))
                continue
            try:
                columns.append(
                    self._column(field, column.type, reader, fields_read.where(fields_read.numbers == field.number))
                )
            except SchemaError as error:
                raise SchemaError(f"`{field.name}`: {error}") from error
        fields = [field.with_nullable(True) for field in wanted]
        return pa.StructArray.from_arrays(columns, fields=fields)

    def _column(self, field: ProtoField, wanted: Any, reader: Reader, fields: Fields) -> Any:
        """A field of messages as a column."""
        inner = self.messages.by_name.get(field.message)
        if inner is None:
            return self._scalars(field, wanted, reader, fields)
        if field.kind == "group":
            raise SchemaError("it is a group, which a column cannot be")
        fields = fields.where(fields.wires == BYTES)
        if inner.is_entry:
            return self._map(inner, wanted, reader, fields)
        if not field.is_repeated:
            return self._single(inner, wanted, reader, fields)
        _check_kind(wanted, "is_list", "repeated")
        fields = fields.where(np.argsort(fields.messages, kind="stable"))
        values = self._within(inner, wanted.value_type, reader, fields.messages, fields.starts, fields.ends)
        return _lists(wanted, fields.messages, len(reader.ends), values)

    def _scalars(self, field: ProtoField, wanted: Any, reader: Reader, fields: Fields) -> Any:
        count = len(reader.ends)
        if field.is_repeated:
            _check_kind(wanted, "is_list", "repeated")
            check_type(field, wanted.value_type)
            elements = elements_of(field, reader, fields)
            values = Scalars(field, wanted.value_type).array(reader, elements)
            return _lists(wanted, elements.messages, count, values)
        check_type(field, wanted)
        places = np.flatnonzero(fields.wires == wire_of(field.kind))
        last = np.full(count, -1)
        last[fields.messages[places]] = places
        has = last >= 0
        values = Scalars(field, wanted).array(reader, fields.where(last[has]))
        default = default_of(field, wanted)
        return _spread(values, has).fill_null(default) if default.is_valid else _spread(values, has)

    def _single(
        self, inner: ProtoMessage, wanted: Any, reader: Reader, fields: Fields, *, is_always: bool = False
    ) -> Any:
        """A message within each message; ``is_always``: a missing one is read as empty."""
        count = len(reader.ends)
        times = np.bincount(fields.messages, minlength=count)
        has = times > 0
        if times.max(initial=0) > 1:
            reader_in, starts, ends = _merge_messages(reader, fields, times)
        else:
            reader_in, starts, ends = reader, np.zeros(count, np.int64), np.zeros(count, np.int64)
            starts[fields.messages], ends[fields.messages] = fields.starts, fields.ends
        if is_always:
            has = np.ones(count, bool)
        owners = np.flatnonzero(has)
        values = self._within(inner, wanted, reader_in, owners, starts[has], ends[has])
        if reader_in is not reader:
            reader.fail(np.flatnonzero(reader_in.bad))
        return _spread(values, has)

    def _within(self, inner: ProtoMessage, wanted: Any, reader: Reader, owners: Any, starts: Any, ends: Any) -> Any:
        """Messages that lie in others; one that is bad makes the other bad."""
        inside = reader.within(starts, ends)
        values = self._from_message(inner, wanted, inside)
        reader.fail(owners[inside.bad])
        return values

    def _from_message(self, inner: ProtoMessage, wanted: Any, inside: Reader) -> Any:
        """Messages as their Arrow values: some are timestamps, durations or wrappers of a single field."""
        if pa.types.is_struct(wanted):
            return self._message(inner, wanted, inside)
        if inner.name in WRAPPERS:
            return self._message(inner, pa.struct([("value", wanted)]), inside).field(0)
        if inner.name == TIMESTAMP and pa.types.is_timestamp(wanted) and wanted.tz is not None:
            return timestamps(inside, self._message(inner, MOMENT, inside)).cast(wanted)
        if inner.name == DURATION and pa.types.is_duration(wanted):
            return durations(inside, self._message(inner, MOMENT, inside)).cast(wanted)
        raise SchemaError(f"it is the message {inner.name}, not {spark_type_name(wanted)}")

    def _map(self, entry: ProtoMessage, wanted: Any, reader: Reader, entries: Fields) -> Any:
        """Maps. Of several entries with the same key the last counts."""
        _check_kind(wanted, "is_map", "a map")
        entries = entries.where(np.argsort(entries.messages, kind="stable"))
        inside = reader.within(entries.starts, entries.ends)
        parts = fields_of(inside)
        key, value = entry.fields
        keys = self._scalars(key, wanted.key_type, inside, parts.where(parts.numbers == key.number))
        of_value = parts.where(parts.numbers == value.number)
        inner = self.messages.by_name.get(value.message)
        if inner is None:
            values = self._scalars(value, wanted.item_type, inside, of_value)
        else:
            of_value = of_value.where(of_value.wires == BYTES)
            values = self._single(inner, wanted.item_type, inside, of_value, is_always=True)
        reader.fail(entries.messages[inside.bad])
        codes = np.asarray(keys.dictionary_encode().indices).astype(np.int64)
        both = entries.messages * (codes.max(initial=0) + 1) + codes
        last_places = np.sort(len(both) - 1 - np.unique(both[::-1], return_index=True)[1])
        offsets = _offsets(entries.messages[last_places], len(reader.ends))
        chosen = pa.array(last_places)
        return pa.MapArray.from_arrays(offsets, keys.take(chosen), values.take(chosen)).cast(wanted)


def _merge_messages(reader: Reader, fields: Fields, times: Any) -> tuple[Reader, Any, Any]:
    """Messages whose bytes are those of several one after the other, which is how Protobuf puts messages together."""
    fields = fields.where(np.argsort(fields.messages, kind="stable"))
    lengths = fields.ends - fields.starts
    before = np.cumsum(lengths) - lengths
    data = reader.data[np.repeat(fields.starts - before, lengths) + np.arange(lengths.sum())]
    ends = np.concatenate([[0], np.cumsum(lengths)])[np.cumsum(times)].astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    return Reader(add_padding(data), starts, ends), starts, ends


def _check_kind(wanted: Any, is_: str, kind: str) -> None:
    if not getattr(pa.types, is_)(wanted):
        raise SchemaError(f"it is {kind}, not {spark_type_name(wanted)}")


def _spread(values: Any, has: Any) -> Any:
    """Values of the rows that have one, and NULL in the others."""
    return values.take(pa.array(np.cumsum(has) - 1, mask=~has))


def _offsets(messages: Any, count: int) -> Any:
    return pa.array(np.concatenate([[0], np.cumsum(np.bincount(messages, minlength=count))]).astype(np.int32))


def _lists(wanted: Any, messages: Any, count: int, values: Any) -> Any:
    """Lists of elements, which lie in the order of their messages."""
    return pa.ListArray.from_arrays(_offsets(messages, count), values).cast(wanted)
