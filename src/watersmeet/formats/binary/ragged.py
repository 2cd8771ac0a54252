"""Bytes of rows that are written: those of all rows one after the other, and where each row ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.formats.binary import SchemaError


@dataclass(frozen=True)
class Ragged:
    """The bytes of rows. ``ends`` begins with 0 and has the end of each row."""

    data: Any
    ends: Any

    @property
    def lengths(self) -> Any:
        """How many bytes each row has."""
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
    """Where rows of those lengths end."""
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
    """The bytes of texts, or of bytes, of which none is NULL."""
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
