"""Functions over frames: which rows each row looks at, and what it makes of them.

The rows are sorted once by group and order, so a frame is a pair of positions, and a value is a difference of two
prefixes, a maximum over a stretch, or a row to take. No function has a loop over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.operators.core.aggregate_values import (
    aggregate_values,
    normalize_nan,
    to_doubles,
    to_int64,
    value_ranks,
)
from watersmeet.operators.core.aggregates import arrow_result, canonical_name, function_of, is_aggregate
from watersmeet.operators.core.changes import concat_tables, key_ids
from watersmeet.operators.core.exact_sums import Limbs, carry, frame_sums, limbs_of
from watersmeet.operators.core.matching import Bools, Ints, distances, shift_times
from watersmeet.operators.core.order import SortColumn, ranks_of
from watersmeet.operators.state.layout import KeyedRows
from watersmeet.operators.state.table import NUMBER

OFFSETS = ("lag", "lead")
"""The functions that give a value of another row, and have no frame."""

RANKS = ("row_number", "rank", "dense_rank")
"""The functions that give the place of a row in the order."""

_IGNORING = " ignore nulls"


@dataclass(frozen=True)
class FrameFunction:
    """A function over the frame of each row: its SQL name, the columns it is applied to, and the result's name.

    - ``unit``: "rows" or "range", what the frame is counted in
    - ``preceding``: how far it reaches back, in rows or in the unit of the time; None: to the first row of the group.
      Of ``lag`` and ``lead``, which row it is; their second column, if any, is shown where there is no such row, and
      behind their name stands "ignore nulls" if only rows count whose value is not NULL
    - ``following``: how far it reaches ahead, less than zero if it ends before the row; None: to the last row
    """

    function: str
    columns: tuple[str, ...]
    output: str
    unit: Literal["rows", "range"] = "range"
    preceding: int | None = None
    following: int | None = 0

    @property
    def kind(self) -> str:
        """The function's name among its synonyms."""
        name = self.function.removesuffix(_IGNORING)
        return canonical_name(self.function) if is_aggregate(self.function) else name

    @property
    def skips_nulls(self) -> bool:
        """Whether rows count only where the value is not NULL, of LAG and LEAD; the row itself counts anyway."""
        return self.function.endswith(_IGNORING) and bool(self.preceding)

    @property
    def rows_before(self) -> int:
        """The number of rows before the current one that it reads, of a frame that is counted in rows."""
        return self.preceding or 0 if self.unit == "rows" and self.kind != "lead" else 0

    @property
    def inputs_before(self) -> tuple[str, ...]:
        """The columns that it reads of those rows, and of the ones in a range."""
        if self.preceding is None or self.kind == "lead":
            return ()
        return self.columns[:1] if self.kind == "lag" else self.columns

    @property
    def has_accumulators(self) -> bool:
        """Whether it depends on rows that are further back than any limit."""
        return self.preceding is None and self.kind != "last"

    @property
    def accumulators(self) -> str:
        """The column of its accumulators, a struct."""
        return f"{self.output}#accumulators"

    def type_of(self, types: tuple[pa.DataType, ...]) -> pa.DataType:
        """The type of its value, from those of its columns."""
        if self.kind in RANKS:
            return pa.int32()
        return types[0] if self.kind in OFFSETS else arrow_result(self.kind, types)

    @staticmethod
    def of(described: Sequence[str]) -> FrameFunction:
        """The function of a description; its output has no name.

        >>> FrameFunction.of(["sum", "v", "rows 3 to -1"])
        FrameFunction(function='sum', columns=('v',), output='', unit='rows', preceding=3, following=-1)
        """
        function, *columns, frame = described
        unit, reach, _, end = (*frame.split(), "to", "0")[:4]
        preceding, following = (None if amount == "unbounded" else int(amount) for amount in (reach, end))
        return FrameFunction(function, tuple(columns), "", "rows" if unit == "rows" else "range", preceding, following)

    def describe(self, names: Callable[[Sequence[str]], Sequence[str]]) -> list[str]:
        """The function, its columns and its frame as texts, with other names for the columns."""
        reach = "unbounded" if self.preceding is None else str(self.preceding)
        end = "" if self.following == 0 else " to " + ("unbounded" if self.following is None else str(self.following))
        return [f"{self.kind}{_IGNORING * self.skips_nulls}", *names(self.columns), f"{self.unit} {reach}{end}"]


Column = pa.Array
"""A value per row."""


@dataclass(frozen=True)
class Frames:
    """The frames of some rows over all that these may read, sorted by group, order and arrival.

    - ``table``: the sorted rows: those read again, those whose values are asked for, and those behind them
    - ``stored``: the rows read again, as they were stored; ``last_stored``: by group the last of them, or -1
    - ``groups``, ``times``: of each sorted row; rows of one time are peers. ``first``, ``beyond``: where its group
      begins and ends
    - ``fresh``: where the rows of its group begin that are not read again
    - ``at``: the sorted positions of the rows that are asked for; ``turn``: what puts these in the order of time
    - ``wait``: how much later a row may be that LEAD shows; None: however late
    """

    table: pa.Table
    stored: pa.RecordBatch
    last_stored: Ints
    groups: Ints
    times: Ints
    first: Ints
    beyond: Ints
    fresh: Ints
    at: Ints
    turn: Ints
    wait: int | None

    @staticmethod
    def of_stream(
        parts: Sequence[KeyedRows], time: str, by: tuple[str, ...], functions: Sequence[FrameFunction], wait: int
    ) -> Frames:
        """The frames of rows, the second of the parts; before them are those read again, behind them later ones.

        The parts are in the order of time and arrival.
        """
        stored, rows, _ = parts
        names = tuple(dict.fromkeys((*by, *(name for f in functions for name in f.columns))))
        kinds = [rows.table.schema.field(name).type for name in names]
        tables = [
            # Of a row that is read again only the columns are stored that a frame needs.
            pa.table(
                [
                    part.table.column(name) if name in part.table.schema.names else pa.nulls(len(part), kind)
                    for name, kind in zip(names, kinds, strict=True)
                ],
                names=list(names),
            )
            for part in parts
            if len(part)
        ]
        table = concat_tables(tables) if names else pa.table({})
        groups = key_ids(table, by) if by else np.zeros(sum(map(len, parts)), np.int64)
        times = np.concatenate([part.times[time] for part in parts])
        order = np.lexsort((times, groups))
        groups, times = groups[order], times[order]
        ends = np.cumsum(np.bincount(groups))
        beyond = ends[groups]
        first = (ends - np.bincount(groups))[groups]
        number_stored = np.bincount(groups[order < len(stored)], minlength=ends.size)
        fresh = first + number_stored[groups]
        has_stored = number_stored > 0
        last_stored = np.where(
            has_stored, order[np.maximum(np.concatenate([[0], ends[:-1]]) + number_stored - 1, 0)], -1
        )
        at = np.flatnonzero((order >= len(stored)) & (order < len(stored) + len(rows)))
        turn = np.argsort(order[at], kind="stable")
        sorted_ = table.take(pa.array(order)) if names else table
        return Frames(sorted_, stored.table, last_stored, groups, times, first, beyond, fresh, at, turn, wait)

    @staticmethod
    def of_table(rows: KeyedRows, by: tuple[str, ...], sort_keys: tuple[SortColumn, ...]) -> Frames:
        """The frames of all rows of some groups of a table, each as often as its weight says."""
        groups = key_ids(rows.table, by) if by else np.zeros(len(rows), np.int64)
        ranks = [ranks_of(rows.table.column(key.column), key) for key in sort_keys]
        order = np.lexsort((rows.attributes[NUMBER], *reversed(ranks), groups))
        order = np.repeat(order, rows.weights[order])
        groups = groups[order]
        is_next = np.zeros(order.size, np.bool_)
        for values in (groups, *(rank[order] for rank in ranks)):
            is_next[1:] |= values[1:] != values[:-1]
        ends = np.cumsum(np.bincount(groups))
        first = (ends - np.bincount(groups))[groups]
        table = pa.Table.from_batches([rows.table.take(pa.array(order))])
        nothing, everything = np.full(ends.size, -1), np.arange(order.size)
        return Frames(
            table, rows.table.slice(0, 0), nothing, groups, np.cumsum(is_next, dtype=np.int64), first, ends[groups],
            first, everything, everything, None,
        )  # fmt: skip

    def in_order(self, values: Column) -> Column:
        """Values of the rows that come out, in the order of time."""
        return values.take(pa.array(self.turn))

    def evaluate(self, function: FrameFunction) -> tuple[Column, Column | None]:
        """The values of a function for the rows that come out, and its accumulators behind the last row of a group."""
        if function.kind in OFFSETS:
            return self._offset(function), None
        low, high = self._bounds(function)
        if not function.has_accumulators:
            values, _ = self._fold(function, low, high, None)
            return values, None
        stored = None
        if function.accumulators in self.stored.schema.names and self.stored.num_rows:
            column = self.stored.column(function.accumulators)
            if not pa.types.is_null(column.type):
                of_group = self.last_stored[self.groups[self.at]]
                stored = column.take(pa.array(of_group, mask=of_group < 0))
        values, accumulators = self._fold(function, low, high, stored)
        behind = np.append(self.groups[self.at][1:] != self.groups[self.at][:-1], True)
        names = [str(number) for number in range(len(accumulators))]
        return values, pa.StructArray.from_arrays(accumulators, names, mask=pa.array(~behind))

    def _bounds(self, function: FrameFunction) -> tuple[Ints, Ints]:
        """The positions where the frames begin and end; without a limit, from `fresh` on."""
        first, beyond = self.first[self.at], self.beyond[self.at]
        preceding, following = function.preceding, function.following
        if function.unit == "rows":
            low = self.fresh[self.at] if preceding is None else self.at - preceding
            high = beyond if following is None else self.at + 1 + following
        else:
            low = self.fresh[self.at] if preceding is None else self._first_in_range(-preceding)
            high = self._end_of_peers() if following == 0 else beyond
            if following:
                high = self._first_in_range(following, is_behind=True)
        high = np.clip(high, first, beyond)
        return np.minimum(np.clip(low, first, beyond), high), high

    def _end_of_peers(self) -> Ints:
        """The positions behind the last row of the same group and time."""
        ends = np.append(np.flatnonzero(self._is_next[1:]) + 1, self.groups.size)
        return ends[np.searchsorted(ends, self.at, "right")]

    @cached_property
    def _is_next(self) -> Bools:
        """A mask of the rows that are of another group or time than the row before."""
        differs = (self.groups[1:] != self.groups[:-1]) | (self.times[1:] != self.times[:-1])
        return np.append(True, differs)[: self.groups.size]

    def _first_in_range(self, distance: int, *, is_behind: bool = False) -> Ints:
        """The positions of the first rows at or after a distance from the times, or behind it."""
        last = self.at if distance <= 0 and not is_behind else self.beyond[self.at]
        bounds = shift_times(self.times[self.at], distance)
        return _first_at_or_after(self.first[self.at], last, self.times, bounds, is_behind=is_behind)

    def _offset(self, function: FrameFunction) -> Column:
        """The values of other rows, so many before or after."""
        by = function.preceding or 0
        column = self._column(function.columns[0])
        places, own, behind = np.arange(self.groups.size), self.at, self.at + 1
        if function.skips_nulls:
            counts = column.is_valid().to_numpy(zero_copy_only=False)
            places, before = np.flatnonzero(counts), np.concatenate([[0], np.cumsum(counts)])
            own, behind = before[self.at], before[self.at + 1]
        number = own - by if function.kind == "lag" else behind + by - 1
        has_row = (number >= 0) & (number < places.size)
        there = places[np.where(has_row, number, 0)] if places.size else np.zeros(self.at.size, np.int64)
        has_row &= (there >= self.first[self.at]) & (there < self.beyond[self.at])
        if function.kind == "lead" and self.wait is not None:
            has_row &= distances(self.times[there], self.times[self.at]) <= np.uint64(self.wait)
        values = column.take(pa.array(there, mask=~has_row))
        if len(function.columns) == 1:
            return values
        default = self._column(function.columns[1]).take(pa.array(self.at)).cast(column.type)
        return pc.if_else(pa.array(has_row), values, default)

    def _rank(self, kind: str, before: Ints) -> tuple[Column, list[Column]]:
        """The places of rows, and the number of rows or of times up to each; ``before``: that of rows read again."""
        fresh = self.fresh[self.at]
        counts = self.at + 1 - fresh + before
        ranks = counts
        if kind == "rank":
            begins = np.maximum.accumulate(np.where(self._is_next, np.arange(self.groups.size), 0))
            # Rows of one time come out with one watermark, so none of them is read again.
            ranks = begins[self.at] + 1 - fresh + before
        elif kind == "dense_rank":
            numbers = np.cumsum(self._is_next)
            ranks = counts = numbers[self.at] - numbers[fresh] + 1 + before
        return pa.array(ranks).cast(pa.int32()), [pa.array(counts)]

    def _fold(
        self, function: FrameFunction, low: Ints, high: Ints, stored: Column | None
    ) -> tuple[Column, list[Column]]:
        """The values over frames, and the accumulators; ``stored`` are those of the rows before the frames."""
        old = None if stored is None else [stored.field(n) for n in range(stored.type.num_fields)]
        if old is not None and stored is not None:
            old = [pc.if_else(stored.is_valid(), part, pa.scalar(None, part.type)) for part in old]
        if function.kind in RANKS:
            return self._rank(function.kind, np.zeros(low.size, np.int64) if old is None else to_int64(old[0]))
        columns = [self._column(name) for name in function.columns]
        kind, name = function.kind, f"{function.function}() OVER"
        fold = function_of(kind).fold
        if fold == "count":
            counts = [_count(self._is_counted(columns, is_condition=kind == "count_if"), low, high, old, 0)]
            return aggregate_values(kind, None, counts, name), counts
        if fold == "sum":
            sums = _sums(columns[0], low, high, old)
            return aggregate_values(kind, columns[0].type, sums, name), sums
        if fold in ("least", "greatest"):
            best = _extremes(columns[0], low, high, None if old is None else old[0], is_least=fold == "least")
            return normalize_nan(best), [best]
        return self._end_of_frame(columns, low, high, old, is_first=fold == "first")

    def _end_of_frame(
        self, columns: list[Column], low: Ints, high: Ints, old: list[Column] | None, *, is_first: bool
    ) -> tuple[Column, list[Column]]:
        """The first or last value of frames, of the rows for which the second column, if any, is true."""
        column, size = columns[0], len(columns[0])
        there, has_row = (low if is_first else high - 1), low < high
        if len(columns) > 1:
            counts = _is_true(columns[1])
            places = np.arange(size)
            if is_first:
                following = np.minimum.accumulate(np.where(counts, places, size)[::-1])[::-1]
                there = following[np.minimum(there, size - 1)]
                has_row &= there < high
            else:
                there = np.maximum.accumulate(np.where(counts, places, -1))[there]
                has_row &= there >= low
        values = column.take(pa.array(np.where(has_row, there, 0), mask=~has_row))
        is_there = pa.array(has_row)
        if old is not None:
            goes_before = pc.fill_null(old[1], False)
            if not is_first:
                goes_before = pc.and_(goes_before, pc.invert(is_there))
            values = pc.if_else(goes_before, old[0].cast(column.type), values)
            is_there = pc.or_(is_there, goes_before)
        return values, [values, is_there]

    def _is_counted(self, columns: list[Column], *, is_condition: bool) -> Bools:
        is_counted = np.ones(self.groups.size, np.bool_)
        for column in columns:
            is_counted &= _is_true(column) if is_condition else column.is_valid().to_numpy(zero_copy_only=False)
        return is_counted

    def _column(self, name: str) -> Column:
        return self.table.column(name).combine_chunks()


def _is_true(column: Column) -> Bools:
    return column.cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)


def _first_at_or_after(first: Ints, last: Ints, times: Ints, bounds: Ints, *, is_behind: bool) -> Ints:
    """The first positions from ``first`` to ``last`` whose times, which ascend there, are at or after the bounds.

    ``is_behind``: they are after the bounds.
    """
    low, high = first.copy(), last.copy()
    while (is_open := low < high).any():
        middle = (low + high) >> 1
        value = times[np.minimum(middle, times.size - 1)]
        is_before = value <= bounds if is_behind else value < bounds
        low = np.where(is_open & is_before, middle + 1, low)
        high = np.where(is_open & ~is_before, middle, high)
    return low


def _count(is_counted: Bools, low: Ints, high: Ints, old: list[Column] | None, place: int) -> Column:
    """The numbers of rows within frames that count, and of those before."""
    counts = np.concatenate([[0], np.cumsum(is_counted)])
    before = 0 if old is None else to_int64(old[place])
    return pa.array(counts[high] - counts[low] + before)


def _sums(column: Column, low: Ints, high: Ints, old: list[Column] | None) -> list[Column]:
    """The accumulators of sums over frames: as the folds of a grouping have them."""
    count = _count(column.is_valid().to_numpy(zero_copy_only=False), low, high, old, 0)
    if not pa.types.is_floating(column.type):
        limbs = limbs_of(column)
        totals = np.concatenate([np.zeros((len(limbs), 1), np.int64), np.cumsum(limbs, axis=1)], axis=1)
        sums: Limbs = carry(totals[:, high] - totals[:, low])
        if old is not None:
            sums = carry(sums + np.stack([to_int64(part) for part in old[1:]]))
        return [count, *(pa.array(limb) for limb in sums)]
    values = to_doubles(column)
    kinds = (np.isnan(values), np.isposinf(values), np.isneginf(values))
    words = frame_sums(values, low, high, None if old is None else old[1])
    return [count, words, *(_count(mask, low, high, old, n) for n, mask in enumerate(kinds, start=2))]


def _extremes(column: Column, low: Ints, high: Ints, old: Column | None, *, is_least: bool) -> Column:
    """The least or greatest values of frames, and of those before; among equal values the last."""
    shift = 0
    if old is not None:
        column, shift = pa.concat_arrays([old.cast(column.type), column]), len(old)
    ranks = value_ranks(column, backwards=is_least)
    # The greatest rank counts; a NULL has none.
    ranks = np.where(
        column.is_valid().to_numpy(zero_copy_only=False), ranks.size - 1 - ranks if is_least else ranks, -1
    )
    best = maximum_of_frames(ranks[shift:], low, high)
    if old is not None:
        best = np.maximum(best, ranks[:shift])
    places = np.full(ranks.size + 1, 0)
    places[ranks] = np.arange(ranks.size)
    return column.take(pa.array(places[best], mask=best < 0))


def maximum_of_frames(values: Ints, low: Ints, high: Ints) -> Ints:
    """The greatest of the values from each ``low`` to before ``high``, none of them negative but -1; -1 for none.

    >>> maximum_of_frames(np.array([3, 1, 2, 0]), np.array([0, 1, 2]), np.array([1, 4, 2])).tolist()
    [3, 2, -1]
    """
    result = np.full(low.size, -1)
    level = np.frexp((high - low).astype(np.float64))[1] - 1
    for number in range(int(level.max(initial=-1)) + 1):
        at = np.flatnonzero((level == number) & (low < high))
        result[at] = np.maximum(values[low[at]], values[high[at] - (1 << number)])
        # The greatest of twice as many values from each on.
        values = np.maximum(values[: -(1 << number)], values[1 << number :])
    return result
