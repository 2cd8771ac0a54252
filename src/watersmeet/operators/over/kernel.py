"""Window functions over a stream: each row once, with values of the rows of its group before it, by event time.

Definition. The rows of a group are in the order of their event time, those of one time in the order of their arrival.
Groups are rows whose group columns are equal, where NULL equals NULL, NaN equals NaN and -0.0 equals 0.0. A frame ends
at the current row: with "rows" it has so many rows before it too, with "range" all rows whose time is at most so much
earlier, and all of the same time. A frame without a limit begins with the group. ``lag`` is the value so many rows
before, ``lead`` so many rows after if that row is at most ``wait`` later.

A row comes out once the watermark has passed its time by ``wait``, so rows come out in the order of time, and all that
can be in its frame has come. Late rows are counted, and so are, as dropped, rows without a time. See `definition`, one
row at a time.

Values are those of the aggregates of a grouping: sums are exact and rounded once, so they do not depend on batches.

`STATE_SCHEMA` describes what a state holds: the rows that wait, and those rows before them that frames still need. Of
frames without a limit the last row of a group has the accumulators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

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
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import Bools, Ints, as_int64, distances, shift_times
from watersmeet.operators.core.operator import (
    END_OF_INPUT,
    Emission,
    Emit,
    Port,
    StateStore,
    StreamOperator,
    Watermarks,
)
from watersmeet.operators.core.watermarks import delay_watermark
from watersmeet.operators.state.layout import FinalityBound, KeyedRows, RowLayout
from watersmeet.operators.state.shard import Shard
from watersmeet.operators.state.state_schema import ShardInspector, SpineSchema, StateSchema
from watersmeet.operators.state.table import (
    BUDGET,
    CODE,
    NUMBER,
    TIMELINE_BUDGET,
    StateTable,
    enforce_limit,
    last_passed,
    release_rows,
    rows_up_to,
)

OFFSETS = ("lag", "lead")
"""The functions that give a value of another row, and have no frame."""


@dataclass(frozen=True)
class FrameFunction:
    """A function over the frame of each row: its SQL name, the columns it is applied to, and the result's name.

    - ``unit``: "rows" or "range", what the frame is counted in
    - ``preceding``: how far it reaches back, in rows or in the unit of the time; None: to the first row of the group.
      Of ``lag`` and ``lead``, which row it is; their second column, if any, is shown where there is no such row
    """

    function: str
    columns: tuple[str, ...]
    output: str
    unit: Literal["rows", "range"] = "range"
    preceding: int | None = None

    @property
    def kind(self) -> str:
        """The function's name among its synonyms."""
        return canonical_name(self.function) if is_aggregate(self.function) else self.function

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
        return types[0] if self.kind in OFFSETS else arrow_result(self.kind, types)

    def describe(self, names: Callable[[Sequence[str]], Sequence[str]]) -> list[str]:
        """The function, its columns and its frame as texts, with other names for the columns."""
        reach = "unbounded" if self.preceding is None else str(self.preceding)
        return [self.kind, *names(self.columns), f"{self.unit} {reach}"]


@dataclass(frozen=True)
class OverOperator(StreamOperator):
    """Window functions over a stream: one port, whose rows come out once, in the order of their time.

    - ``columns``: what the emission shows of a row, before the outputs of the ``functions``
    - ``by``: the group columns, NULL equal to NULL
    - ``time``: the event time, which is also the name of its watermark; ``wait`` is in its unit
    - ``wait``: how long after its time a row waits for later rows
    - ``outputs``: the names under which the watermark of the result is emitted
    - ``position``: the column with the delivery order of a batch's rows; None: they are in that order
    - ``code``: an int64 column that is equal wherever the group columns are; None: it is computed

    >>> from watersmeet.tools.testing import MemoryStore
    >>> total = FrameFunction("sum", ("v",), "s", "rows", 1)
    >>> over, store = OverOperator(("k", "v"), (total,), ("k",), "t"), MemoryStore()
    >>> for times, watermark in (([1, 2], 2), ([3], 9)):
    ...     arrivals = {0: pa.table({"k": ["a"] * len(times), "t": times, "v": times})}
    ...     print([table.to_pylist() for table in over.step(store, arrivals, {"t": watermark}).rows])
    [[{'k': 'a', 'v': 1, 's': 1}]]
    [[{'k': 'a', 'v': 2, 's': 3}, {'k': 'a', 'v': 3, 's': 5}]]
    """

    name: ClassVar[str] = "over"
    limit: ClassVar[int] = 0
    ties: ClassVar[bool] = False
    emit: ClassVar[Emit] = "final"

    columns: tuple[str, ...]
    functions: tuple[FrameFunction, ...]
    by: tuple[str, ...]
    time: str
    wait: int = 0
    code: str | None = None
    position: str | None = None
    outputs: tuple[str, ...] = ()

    def step(self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks) -> Emission:
        """Process one batch of one shard."""
        shard = Shard(self, store, watermarks)
        number = int(shard.state.directory.numbers.get("number", 0))
        new, arrived = shard.admit_timed_rows(
            arrivals.get(0), self._row_layout, self.time, number, by=self.by, code=self.code, position=self.position
        )
        watermark = shard.watermarks_after.received.get(self.time)
        finality = FinalityBound(self.time, last_passed(watermark, self.reach))
        before = StateTable(
            shard.state.spine("recent", self._before_layout, BUDGET, lambda rows, _: self._drop_unread(rows, finality))
        )
        waiting = shard.state.spine("waiting", self._row_layout, TIMELINE_BUDGET)
        rows = release_rows(waiting, new, last_passed(watermark, self.wait))
        emitted: tuple[pa.Table, ...] = ()
        if len(rows):
            later = rows_up_to(waiting, last_passed(watermark, 0)) if self.wait else self._row_layout.empty_rows
            shown, read = self._evaluate(before, rows, later)
            emitted = (shown,)
            if self._is_read_again:
                before.spine.add(self._drop_unread(self._before_layout.sort(read), finality))
        before.spine.expire(finality if not self.rows_before or watermark == END_OF_INPUT else None)
        enforce_limit([before, StateTable(waiting)], self.max_rows)
        shard.counters.matched = len(rows)
        shown_watermark = (
            {} if watermark is None else dict.fromkeys(self.outputs, delay_watermark(watermark, self.wait))
        )
        return shard.close(shown_watermark, emitted, (len(before) + len(waiting),), {"number": number + arrived})

    def _evaluate(self, before: StateTable, rows: KeyedRows, later: KeyedRows) -> tuple[pa.Table, KeyedRows]:
        """The rows with the values of the functions, and the same as they are kept for the frames of others."""
        stored = before.read_rows(np.unique(rows.codes)) if self._is_read_again else self._before_layout.empty_rows
        frames = _Frames.of(self, stored, rows, later)
        read = pa.Table.from_batches([rows.table])
        shown = [read.column(name) for name in self.columns]
        for function in self.functions:
            values, accumulators = frames.evaluate(function)
            shown.append(frames.in_order(values))
            if accumulators is not None:
                read = read.append_column(function.accumulators, frames.in_order(accumulators))
        names = [*self.columns, *(function.output for function in self.functions)]
        return pa.Table.from_arrays(shown, names), self._before_layout.rows(read)

    def _drop_unread(self, rows: KeyedRows, finality: FinalityBound) -> KeyedRows:
        """Those of some rows, sorted by code and time, that a frame may still need."""
        stay = rows.times[self.time] > finality.mark
        if self.rows_before and not stay.all():
            stay |= _last_of_each(self._ids(rows), self.rows_before)
        return rows.where(stay)

    def _ids(self, rows: KeyedRows) -> Ints:
        return key_ids(rows.table, self.by) if self.by else np.zeros(len(rows), np.int64)

    @cached_property
    def reach(self) -> int:
        """The distance behind the watermark up to which frames of ranges read rows; -1 without one."""
        return max((f.preceding for f in self.functions if f.unit == "range" and f.preceding is not None), default=-1)

    @cached_property
    def rows_before(self) -> int:
        """The number of rows of each group that are kept, whatever their time."""
        return max((max(f.rows_before, int(f.has_accumulators)) for f in self.functions), default=0)

    @property
    def _is_read_again(self) -> bool:
        return self.reach >= 0 or self.rows_before > 0

    @cached_property
    def _before_layout(self) -> RowLayout:
        inputs = (name for function in self.functions for name in function.inputs_before)
        accumulators = (function.accumulators for function in self.functions if function.has_accumulators)
        columns = tuple(dict.fromkeys((*self.by, *inputs, self.time, CODE, *accumulators)))
        return RowLayout(columns, (self.time,), sort_time=self.time, code=CODE)

    @cached_property
    def _row_layout(self) -> RowLayout:
        inputs = (name for function in self.functions for name in function.columns)
        columns = tuple(dict.fromkeys((*self.columns, *inputs, *self.by, self.time, CODE)))
        return RowLayout(columns, (self.time,), sort_time=self.time, code=CODE, numbers=(NUMBER,))

    @property
    def extra(self) -> tuple[str, ...]:
        """The values of the functions."""
        return tuple(function.output for function in self.functions)

    def extra_types(self, schemas: Sequence[pa.Schema]) -> tuple[pa.DataType, ...]:
        """The types of the functions, from those of the arriving rows."""
        return tuple(
            function.type_of(tuple(schemas[0].field(name).type for name in function.columns))
            for function in self.functions
        )

    @property
    def aggregates(self) -> tuple[FrameFunction, ...]:
        """The columns that it computes itself."""
        return self.functions

    @property
    def ports_in_arrival_order(self) -> frozenset[int]:
        """The only port: rows of one time are in the order of their arrival."""
        return frozenset({0})

    @property
    def arrival_rule(self) -> str:
        """The reason why the order of arrivals matters, if it does."""
        if all(f.unit == "range" and f.kind in _ORDERLESS for f in self.functions):
            return ""
        return "rows with the same event time are in the order of their arrival"

    @property
    def ports(self) -> tuple[Port]:
        """The only port."""
        return (Port(self.columns, (self.time,), self.by, self.code),)

    @property
    def identity(self) -> Identity:
        """The part of the operator that determines the meaning of its state."""
        functions = sorted(function.describe(self.canonical_names.canonical_list) for function in self.functions)
        return self.make_identity([self._row_layout.columns], functions=functions, wait=self.wait)


Column = pa.Array
"""A value per row."""

_ORDERLESS = frozenset({"count", "count_if", "sum", "avg"})
"""The functions whose value over a range does not depend on the order of its rows."""


@dataclass(frozen=True)
class _Frames:
    """The frames of the rows that come out, over all rows that these may read, sorted by group, time and arrival.

    - ``table``: the sorted rows: those read again, those that come out, and those behind them
    - ``stored``: the rows read again, as they were stored; ``last_stored``: by group the last of them, or -1
    - ``groups``, ``times``: of each sorted row; ``first``, ``beyond``: where its group begins and ends
    - ``fresh``: where the rows of its group begin that are not read again
    - ``at``: the sorted positions of the rows that come out; ``turn``: what puts these in the order of time
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
    wait: int

    @staticmethod
    def of(over: OverOperator, stored: KeyedRows, rows: KeyedRows, later: KeyedRows) -> _Frames:
        """The frames of ``rows``, which are in the order of time and arrival, as those ``later`` than them are."""
        parts = [stored, rows, later]
        names = tuple(dict.fromkeys((*over.by, *(name for f in over.functions for name in f.columns))))
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
        groups = key_ids(table, over.by) if over.by else np.zeros(sum(map(len, parts)), np.int64)
        times = np.concatenate([part.times[over.time] for part in parts])
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
        return _Frames(sorted_, stored.table, last_stored, groups, times, first, beyond, fresh, at, turn, over.wait)

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
        """The positions where the frames of the rows that come out begin and end; without a limit, from `fresh` on."""
        beyond = self.at + 1
        if function.unit == "range":
            is_peer = (self.groups[1:] == self.groups[:-1]) & (self.times[1:] == self.times[:-1])
            ends = np.append(np.flatnonzero(~is_peer) + 1, self.groups.size)
            beyond = ends[np.searchsorted(ends, self.at, "right")]
        if function.preceding is None:
            return self.fresh[self.at], beyond
        if function.unit == "rows":
            return np.maximum(self.at - function.preceding, self.first[self.at]), beyond
        low = _first_at_or_after(
            self.first[self.at], self.at, self.times, shift_times(self.times[self.at], -function.preceding)
        )
        return low, beyond

    def _offset(self, function: FrameFunction) -> Column:
        """The values of other rows, so many before or after."""
        by = function.preceding or 0
        column = self._column(function.columns[0])
        if function.kind == "lag":
            there = self.at - by
            has_row = there >= self.first[self.at]
        else:
            there = self.at + by
            has_row = there < self.beyond[self.at]
            there = np.where(has_row, there, self.at)
            has_row &= distances(self.times[there], self.times[self.at]) <= np.uint64(self.wait)
        values = column.take(pa.array(there, mask=~has_row))
        if len(function.columns) == 1:
            return values
        default = self._column(function.columns[1]).take(pa.array(self.at)).cast(column.type)
        return pc.if_else(pa.array(has_row), values, default)

    def _fold(
        self, function: FrameFunction, low: Ints, high: Ints, stored: Column | None
    ) -> tuple[Column, list[Column]]:
        """The values over frames, and the accumulators; ``stored`` are those of the rows before the frames."""
        old = None if stored is None else [stored.field(n) for n in range(stored.type.num_fields)]
        if old is not None and stored is not None:
            old = [pc.if_else(stored.is_valid(), part, pa.scalar(None, part.type)) for part in old]
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


def _first_at_or_after(first: Ints, last: Ints, times: Ints, bounds: Ints) -> Ints:
    """The first positions from ``first`` to ``last`` whose times, which ascend there, are at or after the bounds."""
    low, high = first.copy(), last.copy()
    while (is_open := low < high).any():
        middle = (low + high) >> 1
        is_before = times[middle] < bounds
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


def _last_of_each(ids: Ints, count: int) -> Bools:
    """A mask of the last rows of each id, so many of them.

    >>> _last_of_each(np.array([0, 1, 0, 0]), 2).tolist()
    [False, True, True, True]
    """
    order = np.argsort(ids, kind="stable")
    ends = np.cumsum(np.bincount(ids))[ids[order]] if ids.size else ids
    is_last = np.empty(ids.size, np.bool_)
    is_last[order] = ends - np.arange(ids.size) <= count
    return is_last


def spine(identity: Identity, name: str) -> SpineSchema:
    """The rows that frames still need, or the rows that wait."""
    (port,) = identity["ports"]
    time, wait = port["times"][0], int(identity["wait"])
    if name == "waiting":
        until = "until the watermark has passed their time" + (" by the bound" if wait else "")
        return SpineSchema(0, until, expiry=lambda rows: {time: shift_times(as_int64(rows.column(time)), wait)})
    return SpineSchema(0, "until no frame of a later row reaches them")


def numbers(identity: Identity, parts: Sequence[Mapping[str, Any]], look: ShardInspector) -> Mapping[str, Any]:
    """The next arrival number of all shards."""
    return {"number": max(int(part.get("number", 0)) for part in parts)}


STATE_SCHEMA = StateSchema(("over",), spine, numbers=numbers)
