"""A table in one shard: a spine of weighted rows, whose sum is the table.

A row that was inserted in one run and retracted in another is not in the table. Equal rows have equal codes, so rows
that cancel out share a code. All runs are merged when the smaller ones together hold as much as the largest, so the
state holds at most about twice the rows of the table.

A timeline holds rows that wait for their time: a spine of short runs in the order of time. Rows that leave it in one
batch are near each other in time, so a batch rewrites about as much as it touches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.changes import (
    OP,
    POSITION,
    WEIGHT,
    first_positions,
    group_rows,
    key_ids,
    row_codes,
    row_ids,
)
from watersmeet.operators.core.matching import HIGHEST, LOWEST, Bools, Ints, Stretches, as_int64
from watersmeet.operators.core.operator import StateOverflowError
from watersmeet.operators.state.format import StateBlock
from watersmeet.operators.state.layout import (
    Budget,
    FinalityBound,
    KeyedRows,
    NoteKind,
    RowLayout,
    concat_rows,
    split_by_hash,
    to_record_batch,
)
from watersmeet.operators.state.spine import ShardState, Spine

BUDGET = Budget(block=262_144, balanced=True, chunk=262_144)
"""Codes are hashes, so a batch of changes touches every block of a large table: the fixed cost of a block must be small
against the batch, so blocks are few and large.
"""
CODE, NUMBER = "#code", "#number"
"""The code of a row, and the place in the order of arrival of the last row that made this one."""
ARRIVAL = "#arrival"
"""The same place as a value of the row, by which equal rows differ."""


def table_layout(columns: Sequence[str], code: str | None, *notes: tuple[str, NoteKind]) -> RowLayout:
    """The layout of a table: rows that agree in all ``columns`` are one row with a larger weight."""
    return RowLayout(tuple(dict.fromkeys(columns)), code=code, numbers=(WEIGHT,), notes=notes)


def with_weights(layout: RowLayout, table: pa.Table | pa.RecordBatch) -> KeyedRows:
    """The table's columns as rows in the order they have; without a column `WEIGHT` each has weight one.

    >>> with_weights(table_layout(["k"], "k"), pa.table({"k": [7, 8], "v": ["a", "b"]})).weights.tolist()
    [1, 1]
    """
    if WEIGHT not in table.schema.names:
        table = table.append_column(WEIGHT, pa.array(np.ones(table.num_rows, np.int64)))
    return layout.rows(table)


def to_changes(rows: KeyedRows) -> pa.Table:
    """The rows as a table of changes, with `WEIGHT`."""
    return pa.Table.from_batches([rows.table]).append_column(WEIGHT, pa.array(rows.weights))


def consolidate_rows(rows: KeyedRows, is_oldest: bool = True) -> KeyedRows:
    """Rows sorted by code with equal ones consolidated, without those of weight zero.

    >>> layout = table_layout(["k", "v"], "k")
    >>> changes = pa.table({"k": [1, 2, 2], "v": ["a", "b", "b"], WEIGHT: [1, 1, -1]})
    >>> consolidate_rows(with_weights(layout, changes)).table.to_pylist()
    [{'k': 1, 'v': 'a'}]
    """
    codes = rows.codes
    shared = np.zeros(codes.size, np.bool_)
    is_same = codes[1:] == codes[:-1]
    shared[1:] |= is_same
    shared[:-1] |= is_same
    if not shared.any():
        return rows.where(rows.weights != 0)
    # Only rows of one code can be equal, and with most keys a code has one row.
    many = np.flatnonzero(shared)
    shared_rows = rows.take(many)
    first, totals = group_rows(pa.Table.from_batches([shared_rows.table]), shared_rows.weights)
    weights = np.where(shared, 0, rows.weights)
    weights[many[first]] = totals
    return rows.with_attributes(**{WEIGHT: weights}).where(weights != 0)


@dataclass(frozen=True)
class StateTable:
    """Reads and changes of a table."""

    spine: Spine

    @staticmethod
    def of(
        state: ShardState, name: str, layout: RowLayout, budget: Budget = BUDGET, finality: FinalityBound | None = None
    ) -> StateTable:
        """Open the table of that name in a shard; ``finality``: its final rows are dropped."""

        def alive(rows: KeyedRows, is_oldest: bool) -> KeyedRows:
            return consolidate_rows(rows if finality is None else rows.where(finality.is_open(rows)), is_oldest)

        return StateTable(state.spine(name, layout, budget, alive, _hashes))

    def __len__(self) -> int:
        return len(self.spine)

    @property
    def layout(self) -> RowLayout:
        """The layout of its rows."""
        return self.spine.layout

    def rows(self, table: pa.Table) -> KeyedRows:
        """Consolidated changes, sorted by code."""
        return consolidate_rows(self.layout.sort(with_weights(self.layout, table)))

    def find_rows(self, codes: Ints) -> KeyedRows:
        """The rows of these codes (sorted, distinct), consolidated and sorted by code."""
        return consolidate_rows(self.read_rows(codes))

    def find_parts(self, codes: Ints) -> Iterator[KeyedRows]:
        """The same in parts: a code with more rows than fit in memory is read in several."""
        if codes.size != 1 or int(self.counts(codes)[0]) <= self.spine.budget.chunk:
            yield self.find_rows(codes)
            return
        code = int(codes[0])
        runs = [
            [part for block in run for part in self.spine.rows_between(block, code, code)] for run in self.spine.runs
        ]
        runs = [run for run in runs if run]
        if len(runs) == 1:
            # A run has each row once.
            yield from runs[0]
            return
        for group in split_by_hash([part for run in runs for part in run], self.spine.budget.chunk, _hashes):
            yield consolidate_rows(self.layout.merge(group))

    def read_rows(self, codes: Ints) -> KeyedRows:
        """The stored rows of these codes (sorted, distinct), sorted by code: equal rows may occur more than once."""
        parts: list[KeyedRows] = []
        for block, start, stop in self._locate_codes(codes):
            parts += self._rows_of_codes(block, codes[start:stop])
        return self.layout.merge(parts) if parts else self.layout.empty_rows

    def counts(self, codes: Ints) -> Ints:
        """An upper bound on the rows of each of these codes (sorted, distinct).

        If the bounds in the directory are low enough they are used, so that no block is read.
        """
        located, counts = list(self._locate_codes(codes)), np.zeros(codes.size, np.int64)
        for block, start, stop in located:
            counts[start:stop] += block.most
        if int(counts.sum()) <= self.spine.budget.chunk:
            return counts
        counts[:] = 0
        for block, start, stop in located:
            stored, part = self.spine.index(block).codes, codes[start:stop]
            counts[start:stop] += np.searchsorted(stored, part, "right") - np.searchsorted(stored, part, "left")
        return counts

    def _rows_of_codes(self, block: StateBlock, codes: Ints) -> list[KeyedRows]:
        """The stored rows of these codes (sorted, distinct) as one part, or an empty list."""
        rows, positions, probes = self.spine.find(block, codes)
        if positions is not None:
            return [rows] if len(rows) else []
        return _rows_of_codes(rows, codes if probes is None else codes[probes])

    def _locate_codes(self, codes: Ints) -> Iterator[tuple[StateBlock, int, int]]:
        """The blocks that may hold rows of these sorted codes, with the slice of the codes that each may hold."""
        for run in self.spine.runs if codes.size else ():
            starts = np.searchsorted(codes, np.array([block.lowest_code for block in run]), "left")
            stops = np.searchsorted(codes, np.array([block.highest_code for block in run]), "right")
            for number in np.flatnonzero(starts < stops):
                yield run[number], int(starts[number]), int(stops[number])

    def upsert_changes(self, table: pa.Table, key: Sequence[str]) -> KeyedRows:
        """The changes that upserts and deletes by key make: -old, +new, consolidated; empty where both are equal.

        ``table`` has the columns, `OP`, and `POSITION` (without: rows are in order of delivery). The last of several
        changes of one key counts. A row's code must follow from its key. The table itself is not changed.
        """
        if not table.num_rows:
            return self.layout.empty_rows
        names, ids = table.schema.names, key_ids(table, key)
        is_placed = POSITION in names
        order = np.argsort(table.column(POSITION).to_numpy(), kind="stable") if is_placed else np.arange(len(table))
        last = np.full(table.num_rows, -1)
        # numpy applies several assignments to one place in order, so the last wins.
        last[ids[order]] = order
        latest = table.take(pa.array(np.sort(last[last >= 0])))
        new = with_weights(self.layout, latest.select(list(self.layout.columns)))
        old = self._replaceable(new, key)
        both = concat_rows([new, old])
        keys = key_ids(both.table, key)
        replaced = np.flatnonzero(np.isin(keys[len(new) :], keys[: len(new)])) + len(new)
        inserted = np.flatnonzero(latest.column(OP).to_numpy() > 0)
        weights = np.where(np.arange(len(both)) < len(new), both.weights, -both.weights)
        changes = both.with_attributes(**{WEIGHT: weights}).take(np.concatenate([replaced, inserted]))
        return consolidate_rows(self.layout.sort(changes))

    def _replaceable(self, new: KeyedRows, key: Sequence[str]) -> KeyedRows:
        """The rows that these may replace; where all codes fit in memory, also other rows of their codes."""
        codes, size = np.unique(new.codes), self.spine.budget.chunk
        counts = self.counts(codes)
        if int(counts.max()) <= size:
            return self.find_rows(codes)
        hashes = np.unique(row_codes(new.table, key))
        parts = [
            part.where(np.isin(row_codes(part.table, key), hashes))
            for chunk in chunk_codes(codes, counts, size)
            for part in self.find_parts(chunk)
        ]
        return concat_rows(parts)


def _hashes(rows: KeyedRows) -> Ints:
    return row_codes(rows.table, rows.table.schema.names)


def chunk_codes(codes: Ints, counts: Ints, size: int) -> Iterator[Ints]:
    """Codes in ranges of about ``size`` rows each; a code with more rows is a range of its own.

    >>> [part.tolist() for part in chunk_codes(np.array([3, 5, 8, 9]), np.array([2, 2, 9, 0]), 4)]
    [[3, 5], [8], [9]]
    """
    if codes.size:
        before, large = (np.cumsum(counts) - counts) // size, counts > size
        yield from np.split(codes, np.flatnonzero((np.diff(before) > 0) | large[1:] | large[:-1]) + 1)


def enforce_limit(tables: Sequence[StateTable], max_rows: int | None) -> None:
    """Fail if tables hold more rows than the limit; rows that cancel out do not count, so they are merged first."""
    if max_rows is None or sum(map(len, tables)) <= max_rows:
        return
    sizes = tuple(sum(map(len, table.spine.merge_runs())) for table in tables)
    if sum(sizes) > max_rows:
        raise StateOverflowError(sizes, max_rows)
    for table in tables:
        table.spine.compact()


def _rows_of_codes(rows: KeyedRows, codes: Ints) -> list[KeyedRows]:
    """The rows of these codes as one part, or an empty list; both are sorted."""
    start = np.searchsorted(rows.codes, codes, "left")
    # Most codes miss most runs, which the first search shows: only the hits need the second.
    start = start[rows.codes[np.minimum(start, rows.codes.size - 1)] == codes]
    if not start.size:
        return []
    stop = np.searchsorted(rows.codes, rows.codes[start], "right")
    total = int((stop - start).sum())
    if total == start.size:
        return [rows.take(start)]
    return [rows.take(pairs.build) for pairs in Stretches(start, start, stop).pieces(total)]


def number_changes(
    arrived: pa.Table, layout: RowLayout, number: int, *, by: Sequence[str], code: str | None, position: str | None
) -> KeyedRows:
    """Changes sorted by code, numbered from ``number`` on in the order of ``position``; without weights each has one.

    ``code``: the column with the code of the columns ``by``; None: it is computed. A layout that has `ARRIVAL` stores
    that number also as a column, so that equal rows differ.
    """
    table = arrived
    if position is not None:
        order = np.argsort(arrived.column(position).to_numpy(), kind="stable")
        table = arrived.take(pa.array(order))
    read = to_record_batch(table)
    size = len(read)
    weights = as_int64(read.column(WEIGHT)) if WEIGHT in table.schema.names else np.ones(size, np.int64)
    numbers = np.where(weights > 0, number + np.arange(size), LOWEST)
    codes = np.zeros(size, np.int64)
    if by:
        codes = row_codes(read, by) if code is None else as_int64(read.column(code))
    made = {ARRIVAL: numbers, CODE: codes, WEIGHT: weights, NUMBER: numbers}
    names = list(layout.run_columns)
    columns = [pa.array(made[name]) if name in made else read.column(name) for name in names]
    return layout.sort(layout.rows(pa.table(columns, names=names)))


def live_rows(stored: KeyedRows) -> KeyedRows:
    """The rows that are in the table, of all that were stored of some codes."""
    rows = merge_equal_rows(stored)
    return rows.where(rows.weights > 0)


TIMELINE_BUDGET = Budget(block=8_192, smallest_tier=4_096, smallest_at=9, largest=4_096, sparse=1)
"""A block of the remaining rows replaces one that rows leave; blocks that are at most half full merge in time."""


@dataclass(frozen=True)
class Timeline:
    """Rows in the order of time during a step. Its runs may overlap."""

    spine: Spine

    @staticmethod
    def of(state: ShardState, name: str, layout: RowLayout) -> Timeline:
        """The rows of that name; the layout has a time and no code."""
        return Timeline(state.spine(name, layout, TIMELINE_BUDGET))

    def __len__(self) -> int:
        return len(self.spine)

    @property
    def layout(self) -> RowLayout:
        """The layout of the rows."""
        return self.spine.layout

    def add(self, rows: KeyedRows) -> None:
        """Add rows, in any order."""
        rows, size = self.layout.sort(rows), self.spine.budget.block
        # Each block is a separate run, so that blocks that have become short can be merged one by one.
        for start in range(0, len(rows), size):
            self.spine.add(rows.slice(start, start + size))

    def times(self, low: int = int(LOWEST), high: int = int(HIGHEST)) -> Ints:
        """The times of the rows within ``low`` and ``high``, both included, in any order."""
        parts = [np.zeros(0, np.int64)]
        for _, rows in self.blocks_within(low, high):
            times = self._times(rows)
            parts.append(times[np.searchsorted(times, low, "left") : np.searchsorted(times, high, "right")])
        return np.concatenate(parts)

    def has(self, times: Ints) -> Bools:
        """A mask of these ascending times: those that occur in the stored rows."""
        present = np.zeros(times.size, np.bool_)
        for block, rows in self._blocks_in_range(times):
            time = self.layout.sort_time
            first = np.searchsorted(times, block.lowest[time], "left")
            beyond = np.searchsorted(times, block.highest[time], "right")
            present[first:beyond] |= _is_among(times[first:beyond], self._times(rows))
        return present

    def remove_at(self, times: Ints) -> KeyedRows:
        """Remove the rows of these ascending times; returns them in the order of time."""
        removed = [self._remove(*each, _is_among(self._times(each[1]), times)) for each in self._blocks_in_range(times)]
        return self.layout.sort(concat_rows(removed)) if removed else self.layout.empty_rows

    def blocks_within(self, low: int, high: int) -> Iterator[tuple[StateBlock, KeyedRows]]:
        """The blocks that have times within ``low`` and ``high``, both included, with all their rows."""
        time = self.layout.sort_time
        for block in self.spine.blocks:
            if block.lowest[time] <= high and block.highest[time] >= low:
                yield block, self.spine.read(block)

    def _remove(self, block: StateBlock, rows: KeyedRows, evicted: Bools) -> KeyedRows:
        self.spine.remove(block, evicted)
        return rows.where(evicted)

    def _blocks_in_range(self, times: Ints) -> Iterator[tuple[StateBlock, KeyedRows]]:
        return self.blocks_within(int(times[0]), int(times[-1])) if times.size else iter(())

    def _times(self, rows: KeyedRows) -> Ints:
        return rows.times[self.layout.sort_time]


def _is_among(values: Ints, ascending: Ints) -> Bools:
    """A mask of the values that occur among others, which are ascending."""
    if not ascending.size:
        return np.zeros(values.size, np.bool_)
    return ascending[np.minimum(np.searchsorted(ascending, values), ascending.size - 1)] == values


def merge_equal_rows(rows: KeyedRows, *, is_whole: bool = True) -> KeyedRows:
    """Rows in the order of their codes with equal ones as one: their weights added, and the last number.

    Those of weight zero are gone, if these are all the rows there are. If not, they say where a row came last that went
    and came again in between.
    """
    if len(rows) < 2:
        return rows.where(rows.weights != 0) if is_whole else rows
    is_repeat = rows.codes[1:] == rows.codes[:-1]
    shared = np.append(is_repeat, False) | np.append(False, is_repeat)
    weights, numbers = rows.weights.copy(), rows.attributes[NUMBER].copy()
    positions, first = np.flatnonzero(shared), np.zeros(0, np.int64)
    if positions.size:
        repeated = rows.table.take(pa.array(positions))
        # The code follows from other columns.
        ids = row_ids(repeated.drop_columns([CODE]) if repeated.num_columns > 1 else repeated)
        first = first_positions(ids)
        totals, last = np.zeros(first.size, np.int64), np.full(first.size, LOWEST)
        np.add.at(totals, ids, weights[positions])
        np.maximum.at(last, ids, numbers[positions])
        weights[positions] = 0
        weights[positions[first]], numbers[positions[first]] = totals, last
    is_retained = weights != 0 if is_whole else ~shared
    if not is_whole:
        is_retained[positions[first]] = True
    return rows.with_attributes(**{WEIGHT: weights, NUMBER: numbers}).where(is_retained)
