"""Shared parts of the binary formats: the bytes of many rows, read and written a step at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class SchemaError(Exception):
    """A schema that is invalid or not supported, with the reason."""


@dataclass(frozen=True)
class Ragged:
    """The bytes of rows. ``ends`` begins with 0 and has the end of each row."""

    data: Any
    ends: Any

    @property
    def lengths(self) -> Any:
        """The number of bytes of each row."""
        return np.diff(self.ends)

    def spread(self, has: Any) -> Ragged:
        """The same for more rows: nothing in those that do not have it."""
        lengths = np.zeros(len(has), np.int64)
        lengths[has] = self.lengths
        return Ragged(self.data, ends_of(lengths))

    def array(self, has: Any) -> Any:
        """An array of the bytes; NULL in rows that do not have them."""
        if self.ends[-1] >= 2**31:
            raise SchemaError("the values of a batch have more than 2 GiB")
        buffers = [None, pa.py_buffer(self.ends.astype(np.int32)), pa.py_buffer(self.data)]
        made = pa.BinaryArray.from_buffers(pa.binary(), len(self.ends) - 1, buffers)
        return made.take(pa.array(np.cumsum(has) - 1, mask=~has))


def ends_of(lengths: Any) -> Any:
    """The ends of rows of those lengths."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def constant(value: bytes, rows: int) -> Ragged:
    """The same bytes for every row."""
    return Ragged(np.tile(np.frombuffer(value, np.uint8), rows), np.arange(rows + 1) * len(value))


def concat_parts(parts: list[Ragged]) -> Ragged:
    """The parts of each row one after the other."""
    lengths = np.stack([part.lengths for part in parts])
    ends = ends_of(lengths.sum(axis=0))
    data = np.empty(ends[-1], np.uint8)
    starts = ends[:-1].copy()
    for part, length in zip(parts, lengths, strict=True):
        data[np.repeat(starts - part.ends[:-1], length) + np.arange(part.ends[-1])] = part.data[: part.ends[-1]]
        starts += length
    return Ragged(data, ends)


def bytes_of(column: Any) -> Ragged:
    """The bytes of strings or binary values without NULLs."""
    _, offsets, data = column.cast(pa.large_binary()).buffers()
    places = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    return Ragged(np.frombuffer(data or b"", np.uint8)[places[0] : places[-1]], places - places[0])


def floats(column: Any) -> Ragged:
    """Numbers of a fixed size as they are stored."""
    data = np.ascontiguousarray(np.asarray(column))
    return Ragged(data.view(np.uint8), np.arange(len(column) + 1) * data.itemsize)


def zigzag_encode(values: Any) -> Any:
    """Numbers with their sign in the lowest place, so that small ones have few bytes."""
    values = values.astype(np.int64)
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def varints(values: Any) -> Ragged:
    """Numbers without a sign in as many bytes as they need, seven places in each, the lowest first."""
    place = np.arange(10, dtype=np.uint64)
    parts: Any = np.bitwise_and(values[:, None] >> (np.uint64(7) * place), np.uint64(0x7F))
    # The last byte is the highest that is not 0, or the first.
    lengths = np.where(parts > 0, place + np.uint64(1), np.uint64(1)).max(axis=1, initial=1).astype(np.int64)
    goes_on = place.astype(np.int64) < (lengths - 1)[:, None]
    parts[goes_on] |= np.uint64(0x80)
    return Ragged(parts[place.astype(np.int64) < lengths[:, None]].astype(np.uint8), ends_of(lengths))


Rows = Any
"""Numbers of rows."""

_BYTES_OF_A_LONG = 10
BYTES_OF_A_DECIMAL = 16


class Reader:
    """The bytes of rows, the read position and end of each, and which rows are malformed.

    Reads beyond the end of a row read the next one; ``data`` is padded behind the last one (`add_padding`). ``depth``:
    the nesting of recursive types.
    """

    def __init__(self, data: Any, starts: Any, ends: Any) -> None:
        self.data = data
        self.at, self.ends = starts.copy(), ends
        self.bad = np.zeros(len(starts), bool)
        self.depth = 0

    def fail(self, rows: Rows) -> None:
        """Note rows as bad; nothing is left of them."""
        self.bad[rows] = True
        self.at[rows] = self.ends[rows]

    def within(self, starts: Any, ends: Any) -> Reader:
        """A reader of other rows, which lie in the same bytes."""
        return Reader(self.data, starts, ends)

    def varints(self, rows: Rows) -> Any:
        """A number without a sign and of variable length of each row."""
        at, value = self.at[rows], np.zeros(len(rows), np.uint64)
        goes_on = np.ones(len(rows), bool)
        for place in range(_BYTES_OF_A_LONG):
            byte = self.data[at].astype(np.uint64)
            value |= np.where(goes_on, (byte & np.uint64(0x7F)) << np.uint64(7 * place), np.uint64(0))
            at = at + goes_on
            goes_on &= byte >= 0x80
            if not goes_on.any():
                break
            # A broken row must not be followed out of all rows.
            at = np.minimum(at, len(self.data) - 1)
        broken = goes_on | (at > self.ends[rows])
        self.at[rows] = at
        self.fail(rows[broken])
        value[broken] = 0
        return value

    def longs(self, rows: Rows) -> Any:
        """A number of variable length of each row, its sign in the lowest place."""
        return zigzag_decode(self.varints(rows))

    def spans(self, rows: Rows, lengths: Any) -> tuple[Any, Any]:
        """The places of the next bytes of each row, so many, and how many there are: none in a row that has too few."""
        starts = self.at[rows]
        broken = (lengths < 0) | (lengths > self.ends[rows] - starts)
        lengths = np.where(broken, 0, lengths)
        self.at[rows] = starts + lengths
        self.fail(rows[broken])
        return starts, lengths

    def read_fixed(self, rows: Rows, size: int) -> Any:
        """The next bytes of each row, as many of each, as a table of bytes."""
        starts, lengths = self.spans(rows, np.full(len(rows), size))
        inside = np.minimum(starts[:, None] + np.arange(size), len(self.data) - 1)
        return np.where(lengths[:, None] > 0, self.data[inside], np.uint8(0))

    def binaries(self, starts: Any, lengths: Any) -> Any:
        """An array of the bytes there."""
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        index = np.repeat(starts - offsets[:-1], lengths) + np.arange(int(offsets[-1]))
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(self.data[index])]
        return pa.BinaryArray.from_buffers(pa.binary(), len(lengths), buffers)

    def texts(self, rows: Rows, values: Any) -> Any:
        """Decode bytes as UTF-8; marks rows that cannot be decoded as bad."""
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid:
            broken = np.array([not _is_text(value.as_py()) for value in values])
            self.fail(rows[broken])
            return pc.if_else(pa.array(broken), pa.scalar(b""), values).cast(pa.string())

    def decimals(self, rows: Rows, starts: Any, lengths: Any, precision: int, scale: int) -> Any:
        """Decimals whose unscaled values are big-endian two's complement."""
        self.fail(rows[lengths > BYTES_OF_A_DECIMAL])
        lengths = np.minimum(lengths, BYTES_OF_A_DECIMAL)
        sign = np.where((lengths > 0) & (self.data[starts] >= 0x80), 0xFF, 0).astype(np.uint8)
        place = np.arange(BYTES_OF_A_DECIMAL)
        from_ = np.maximum((starts + lengths - 1)[:, None] - place, 0)
        digits = pa.py_buffer(np.ascontiguousarray(np.where(place < lengths[:, None], self.data[from_], sign[:, None])))
        values = pa.Decimal128Array.from_buffers(pa.decimal128(precision, scale), len(rows), [None, digits])
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            whole = pa.Decimal128Array.from_buffers(pa.decimal128(38, 0), len(rows), [None, digits])
            broken = np.array([abs(int(value.as_py())) >= 10**precision for value in whole], bool)
            self.fail(rows[broken])
            return pc.if_else(pa.array(broken), pa.scalar(None, values.type), values)
        return values


def reader_of(values: Any, skip: int = 0) -> Reader:
    """A reader of an array of bytes, behind the first ``skip`` of each."""
    flat = values.cast(pa.large_binary())
    _, offsets, data = flat.buffers()
    places = np.frombuffer(offsets, np.int64)[flat.offset : flat.offset + len(flat) + 1]
    ends = places[1:].copy()
    return Reader(add_padding(np.frombuffer(data or b"", np.uint8)), np.minimum(places[:-1] + skip, ends), ends)


def add_padding(data: Any) -> Any:
    """Padded bytes for a reader: reads beyond the end of the last row read the padding."""
    return np.concatenate([data, np.zeros(BYTES_OF_A_DECIMAL, np.uint8)])


def zigzag_decode(values: Any) -> Any:
    """Numbers whose sign is in the lowest place.

    >>> zigzag_decode(np.array([0, 1, 2, 3], np.uint64)).tolist()
    [0, -1, 1, -2]
    """
    return (values >> np.uint64(1)).view(np.int64) ^ -(values & np.uint64(1)).view(np.int64)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


_SPELLED = {
    pa.bool_(): "BOOLEAN", pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT",
    pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.string(): "STRING", pa.binary(): "BINARY", pa.date32(): "DATE",
    pa.time64("ns"): "TIME", pa.duration("us"): "INTERVAL DAY TO SECOND",
}  # fmt: skip


def spark_type_name(type_: Any) -> str:
    """An Arrow type as Spark writes it, as far as it has a short name.

    >>> spark_type_name(pa.int64()), spark_type_name(pa.decimal128(9, 2))
    ('BIGINT', 'DECIMAL(9,2)')
    """
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_):
        return "TIMESTAMP_NTZ" if type_.tz is None else "TIMESTAMP"
    nested = {pa.types.is_struct: "STRUCT", pa.types.is_list: "ARRAY", pa.types.is_map: "MAP"}
    return next((name for is_nested, name in nested.items() if is_nested(type_)), _SPELLED.get(type_, str(type_)))
