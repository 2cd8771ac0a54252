"""What messages have, field by field: numbers of fields with their values, in the order in which they were written.

A step reads the next field of all messages that have one left. What a field means is not known here, only its wire
type: a number, four or eight bytes, or as many bytes as it says. Groups, which nobody writes any more, are gone over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from watersmeet.formats.binary.reader import Reader

VARINT, EIGHT, BYTES, _OPENS, _CLOSES, FOUR = range(6)
"""The wire types."""
_LARGEST = (1 << 29) - 1
"""The largest number that a field can have."""


@dataclass(frozen=True)
class Fields:
    """Fields of messages, as arrays: each of a message, with its number and its wire type.

    ``values`` are those of numbers; the bytes of all others lie from ``starts`` to ``ends``.
    """

    messages: Any
    numbers: Any
    wires: Any
    values: Any
    starts: Any
    ends: Any

    def where(self, chosen: Any) -> Fields:
        """Those that are chosen, by a mask or by their places."""
        parts = (self.messages, self.numbers, self.wires, self.values, self.starts, self.ends)
        return Fields(*(part[chosen] for part in parts))


def fields_of(reader: Reader) -> Fields:
    """All fields of the messages that a reader has; a message that is none is bad."""
    steps = [_nothing()]
    depth = np.zeros(len(reader.ends), np.int64)
    rows = np.flatnonzero(reader.at < reader.ends)
    while len(rows):
        steps.append(_step(reader, rows, depth))
        rows = rows[reader.at[rows] < reader.ends[rows]]
    reader.fail(np.flatnonzero(depth != 0))
    names = ("messages", "numbers", "wires", "values", "starts", "ends")
    return Fields(*(np.concatenate([getattr(step, name) for step in steps]) for name in names))


def _nothing() -> Fields:
    none = np.zeros(0, np.int64)
    return Fields(none, none, none, np.zeros(0, np.uint64), none, none)


def _step(reader: Reader, rows: Any, depth: Any) -> Fields:
    """The next field of each of some messages."""
    tags = reader.varints(rows)
    numbers, wires = (tags >> np.uint64(3)).astype(np.int64), (tags & np.uint64(7)).astype(np.int64)
    reader.fail(rows[(numbers < 1) | (numbers > _LARGEST) | (wires > FOUR)])
    values = np.zeros(len(rows), np.uint64)
    is_number = wires == VARINT
    values[is_number] = reader.varints(rows[is_number])
    depth[rows] += (wires == _OPENS).astype(np.int64) - (wires == _CLOSES)
    reader.fail(rows[depth[rows] < 0])
    lengths = np.select([wires == EIGHT, wires == FOUR], [8, 4], 0)
    has_length = wires == BYTES
    sizes = reader.varints(rows[has_length])
    # More than there can be is no length, and would be below 0 as one.
    lengths[has_length] = np.where(sizes > np.uint64(len(reader.data)), -1, sizes.view(np.int64))
    starts, lengths = reader.spans(rows, lengths)
    is_field = (depth[rows] == 0) & (wires != _CLOSES) & ~reader.bad[rows]
    return Fields(rows, numbers, wires, values, starts, starts + lengths).where(is_field)
