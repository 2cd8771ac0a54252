"""The layout of a spine: its columns, order and ranges, the rows in memory, and when runs are merged.

A budget limits the rows of a spine in one place and says which runs are merged. Where one code has more rows than fit
in memory, they are split into classes: rows that may be equal share a class, so each class can be merged separately.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.operators.core.changes import ROWS_PER_PIECE, WEIGHT, concat_tables
from watersmeet.operators.core.matching import LOWEST, Bools, Ints, as_int64, sort_order, stable_order

NoteKind = Literal["flag", "number"]

Values = npt.NDArray[Any]
"""A value per row: whole numbers (int64) or flags."""


@dataclass(frozen=True)
class KeyedRows:
    """Rows with their codes and times as numpy arrays, and the values that are not in the table.

    ``attributes`` has the layout's numbers, such as weights, and its notes, such as the flags of matched rows.
    """

    table: pa.RecordBatch
    codes: Ints
    times: Mapping[str, Ints]
    attributes: Mapping[str, Values] = field(default_factory=dict[str, Values])

    def __len__(self) -> int:
        return self.table.num_rows

    def take(self, positions: Ints) -> KeyedRows:
        """The rows at these positions, in that order."""
        return KeyedRows(
            self.table.take(pa.array(positions)),
            self.codes[positions],
            {name: values[positions] for name, values in self.times.items()},
            {name: values[positions] for name, values in self.attributes.items()},
        )

    def where(self, keep: Bools) -> KeyedRows:
        """The rows for which ``keep`` is true, in the same order."""
        if not keep.any():
            return self.slice(0, 0)
        return self if bool(keep.all()) else self.take(np.flatnonzero(keep))

    def slice(self, start: int, stop: int) -> KeyedRows:
        """The rows from ``start`` to before ``stop``, without copying them."""
        if start <= 0 and stop >= len(self):
            return self
        stop = min(stop, len(self))
        return KeyedRows(
            self.table.slice(start, stop - start),
            self.codes[start:stop],
            {name: values[start:stop] for name, values in self.times.items()},
            {name: values[start:stop] for name, values in self.attributes.items()},
        )

    def with_attributes(self, **values: Values) -> KeyedRows:
        """The same rows with other attributes."""
        return replace(self, attributes={**self.attributes, **values})

    @property
    def is_view(self) -> bool:
        """Whether all arrays next to the table are views of its memory."""
        arrays = (self.codes, *self.times.values(), *self.attributes.values())
        return not any(array.flags.owndata for array in arrays)

    @property
    def weights(self) -> Ints:
        """The weight of each row."""
        return self.attributes[WEIGHT]

    @property
    def lowest(self) -> dict[str, int]:
        """The earliest of each of the times."""
        return {name: int(values.min()) for name, values in self.times.items()}

    @property
    def highest(self) -> dict[str, int]:
        """The latest of each of the times."""
        return {name: int(values.max()) for name, values in self.times.items()}


NO_WATERMARK = int(LOWEST) - 1
"""The value of a missing watermark: below every time, which the lowest number is not."""


@dataclass(frozen=True)
class FinalityBound:
    """The watermark up to which (inclusive) rows are final by a time column, so that they are never read again."""

    time: str
    mark: int

    def is_open(self, rows: KeyedRows) -> Bools:
        """A mask of the rows that are not final."""
        return rows.times[self.time] > self.mark


@dataclass(frozen=True)
class RowLayout:
    """The layout of stored rows.

    - ``columns``: the stored columns
    - ``times``: columns available as int64, whose ranges are in the directory
    - ``sort_time``: runs are sorted by code, and within one code by this time; empty: by code only
    - ``code``: an int64 column, equal wherever the keys are; None: all rows have the same
    - ``numbers``: further int64 columns, written with the rows but held outside the table
    - ``notes``: values per row that may change, written separately
    - ``absent``: flag columns that blocks of an earlier version may lack: false there
    """

    columns: tuple[str, ...]
    times: tuple[str, ...] = ()
    sort_time: str = ""
    code: str | None = None
    numbers: tuple[str, ...] = ()
    notes: tuple[tuple[str, NoteKind], ...] = ()
    absent: tuple[str, ...] = ()

    @property
    def run_columns(self) -> tuple[str, ...]:
        """The columns of a run as written."""
        return (*self.columns, *self.numbers)

    def rows(self, table: pa.Table | pa.RecordBatch) -> KeyedRows:
        """The table's columns as rows, in the order they have."""
        batch = to_record_batch(table.select(list(self.run_columns)))
        attributes = {name: as_int64(batch.column(name)) for name in self.numbers}
        if self.numbers:
            batch = batch.select(list(self.columns))
        codes = np.zeros(batch.num_rows, np.int64) if self.code is None else as_int64(batch.column(self.code))
        return KeyedRows(batch, codes, {name: as_int64(batch.column(name)) for name in self.times}, attributes)

    def sort(self, rows: KeyedRows) -> KeyedRows:
        """The rows in the order of a run."""
        if self._is_sorted(rows):
            return rows
        if self.sort_time:
            return rows.take(sort_order(rows.codes, rows.times[self.sort_time]))
        return rows.take(stable_order(rows.codes))

    def _is_sorted(self, rows: KeyedRows) -> bool:
        before, after = rows.codes[:-1], rows.codes[1:]
        if not (before <= after).all():
            return False
        if not self.sort_time:
            return True
        times = rows.times[self.sort_time]
        return bool(((before < after) | (times[:-1] <= times[1:])).all())

    def merge(self, parts: Sequence[KeyedRows]) -> KeyedRows:
        """Several sorted parts as one; among equal rows those of earlier parts come first."""
        rows = concat_rows(parts)
        return self.sort(rows) if len(parts) > 1 else rows

    @cached_property
    def empty_rows(self) -> KeyedRows:
        """No rows; their columns have no types."""
        empty = pa.RecordBatch.from_arrays([pa.nulls(0)] * len(self.columns), names=list(self.columns))
        none = np.zeros(0, np.int64)
        flags = {name: none.astype(np.bool_) if kind == "flag" else none for name, kind in self.notes}
        return KeyedRows(empty, none, dict.fromkeys(self.times, none), dict.fromkeys(self.numbers, none) | flags)


def concat_rows(parts: Sequence[KeyedRows]) -> KeyedRows:
    """Concatenated parts, with the attributes that all of them have."""
    parts = [part for part in parts if len(part)] or list(parts[-1:])
    if len(parts) == 1:
        return parts[0]
    schema = parts[0].table.schema
    if all(part.table.schema.equals(schema) for part in parts):
        batch = to_record_batch(pa.Table.from_batches([part.table for part in parts]))
    else:
        # Parts may differ in type properties that do not change a value, such as the time zone of the session.
        batch = to_record_batch(concat_tables([pa.Table.from_batches([part.table]) for part in parts]))
    shared = [name for name in parts[0].attributes if all(name in part.attributes for part in parts)]
    return KeyedRows(
        batch,
        np.concatenate([part.codes for part in parts]),
        {name: np.concatenate([part.times[name] for part in parts]) for name in parts[0].times},
        {name: np.concatenate([part.attributes[name] for part in parts]) for name in shared},
    )


BYTES_PER_PIECE = 64 * 2**20
"""So many bytes of a result come out at once."""


def rows_per_piece(*sides: KeyedRows) -> int:
    """The number of rows of a result that come out at once, if each is made of a row of each side."""
    size = sum(rows.table.nbytes // max(1, len(rows)) for rows in sides)
    return max(1, min(ROWS_PER_PIECE, BYTES_PER_PIECE // max(1, size)))


def to_record_batch(table: pa.Table | pa.RecordBatch) -> pa.RecordBatch:
    """The table in one piece."""
    if isinstance(table, pa.RecordBatch):
        return table
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise RuntimeError("a shard's batch holds more than 2 GiB in one column; use more shards or smaller batches")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


@dataclass(frozen=True)
class Budget:
    """The limits by which runs are stored and merged: no result depends on it.

    - ``block``: rows of a block at most; one of many bytes has fewer
    - ``merge_at``: this many runs of similar size are merged: a row is rewritten once per size it passes through
    - ``smallest_tier``: runs of up to this many rows count as one size; ``smallest_at``: this many of these are merged
    - ``largest``: larger runs are not merged further, so that they can be dropped whole when they expire
    - ``balanced``: all runs are merged when the smaller ones together hold as much as the largest
    - ``in_order``: only neighbours are merged, as where the newest of several rows counts
    - ``sparse``: a run is rewritten when less than one row in this many is left; None: never
    - ``chunk``: the approximate number of rows in memory at once
    """

    block: int = 262_144
    merge_at: int = 4
    smallest_tier: int = 4_096
    smallest_at: int | None = None
    largest: int = sys.maxsize
    balanced: bool = False
    in_order: bool = False
    sparse: int | None = None
    chunk: int = sys.maxsize

    def merge_groups(self, rows: Sequence[int]) -> list[list[int]]:
        """The groups of runs to merge, given the size of each run, oldest first.

        >>> Budget(smallest_tier=1).merge_groups([9, 1, 1, 1, 1])
        [[1, 2, 3, 4]]
        >>> Budget(smallest_tier=1, balanced=True).merge_groups([3, 1, 1, 1])
        [[0, 1, 2, 3]]
        >>> Budget(smallest_tier=1, merge_at=2, in_order=True).merge_groups([1, 9, 1, 1])
        [[2, 3]]
        """
        if self.balanced and len(rows) > 1 and sum(rows) - max(rows) >= max(max(rows), self.smallest_tier):
            return [list(range(len(rows)))]
        groups = [[number] for number in range(len(rows))]
        while True:
            full = self._find_newest(rows, groups) if self.in_order else self._find_full_tier(rows, groups)
            if not full:
                return [group for group in groups if len(group) > 1]
            first = groups.index(full[0])
            groups = [group for group in groups if group not in full]
            groups.insert(min(first, len(groups)), [number for group in full for number in group])

    def _find_full_tier(self, rows: Sequence[int], groups: list[list[int]]) -> list[list[int]]:
        """Runs of similar size, if there are enough to merge."""
        tiers: dict[int, list[list[int]]] = {}
        for group in groups:
            size = sum(rows[number] for number in group)
            if size <= self.largest:
                tiers.setdefault(self._tier(size), []).append(group)
        return next(
            (members for tier, members in tiers.items() if len(members) >= self._merge_threshold(tier)),
            list[list[int]](),
        )

    def _find_newest(self, rows: Sequence[int], groups: list[list[int]]) -> list[list[int]]:
        """The newest runs that are not of a larger tier than the last, if there are enough to merge."""
        tiers = [self._tier(sum(rows[number] for number in group)) for group in groups]
        first = len(tiers)
        while first and tiers[first - 1] <= tiers[-1]:
            first -= 1
        return groups[first:] if tiers and len(tiers) - first >= self._merge_threshold(tiers[-1]) else []

    def _merge_threshold(self, tier: int) -> int:
        return self.smallest_at if tier == 0 and self.smallest_at is not None else max(2, self.merge_at)

    def _tier(self, rows: int) -> int:
        if rows <= self.smallest_tier:
            return 0
        return 1 + int(math.log(rows / self.smallest_tier, max(2, self.merge_at)))


Hash = Callable[[KeyedRows], Ints]
"""Computes a number per row that is equal where rows are equal."""


def split_to_fit(parts: Sequence[KeyedRows], high: int, size: int, hash_of: Hash | None) -> Iterator[list[KeyedRows]]:
    """Parts with codes up to ``high``, whose rows may be many: all at once, or those of ``high`` in classes.

    Each yielded list is to be merged separately; lower codes come first.
    """
    if hash_of is None or sum(map(len, parts)) <= 2 * size:
        yield list(parts)
        return
    split = [(part, int(np.searchsorted(part.codes, high, "left"))) for part in parts]
    yield [part.slice(0, edge) for part, edge in split]
    yield from split_by_hash([part.slice(edge, len(part)) for part, edge in split], size, hash_of)


def split_by_hash(parts: Sequence[KeyedRows], size: int, hash_of: Hash) -> Iterator[list[KeyedRows]]:
    """Parts of one code in classes of about ``size`` rows; equal rows are in one class."""
    parts = [part for part in parts if len(part)]
    classes = -(-sum(map(len, parts)) // size)
    numbers = [_class_numbers(hash_of(part), classes) for part in parts]
    for number in range(classes):
        yield [part.where(of == number) for part, of in zip(parts, numbers, strict=True)]


def _class_numbers(hashes: Ints, classes: int) -> Ints:
    """The class of each row, in few bytes: only this is held for all rows of the code."""
    return (hashes.view(np.uint64) % np.uint64(classes)).astype(np.min_scalar_type(classes))
