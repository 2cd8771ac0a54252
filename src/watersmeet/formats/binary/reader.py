"""The bytes of many rows, read a step at a time: every step reads the same thing of some of them.

A row whose bytes are none of what is read is noted as bad, and reads as nothing from there on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Rows = Any
"""Numbers of rows."""

_BYTES_OF_A_LONG = 10
BYTES_OF_A_DECIMAL = 16


class Reader:
    """The bytes of rows, where each of them is read next, where it ends, and which rows are bad.

    Whatever is read past the end of a row is read from the next one; ``data`` goes on behind the last one
    (`add_padding`). ``depth``: within how many values of types that may be within themselves it is.
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
        """Where the next bytes of each row begin, so many, and how many there are: none in a row that has too few."""
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
        """Bytes as texts; rows in which they are none are bad."""
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid:
            broken = np.array([not _is_text(value.as_py()) for value in values])
            self.fail(rows[broken])
            return pc.if_else(pa.array(broken), pa.scalar(b""), values).cast(pa.string())

    def decimals(self, rows: Rows, starts: Any, lengths: Any, precision: int, scale: int) -> Any:
        """Numbers whose digits are a whole number, its bytes from the highest on, the first of which has the sign."""
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
    """Bytes as a reader takes them: what is read past the end of the last row is read from what is added here."""
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
