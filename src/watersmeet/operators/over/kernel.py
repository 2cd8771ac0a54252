"""Window functions: each row of a stream or a table with values of the rows of its group before and behind it.

Definition. Groups are rows whose group columns are equal, where NULL equals NULL, NaN equals NaN and -0.0 equals 0.0.
The rows of a group are in an order, equal ones in the order of their arrival. A frame has so many rows before and
behind the current one ("rows"), or the rows whose time is so much earlier or later ("range"), with all peers: those
that are equal in the order. A frame without a limit begins or ends with the group. ``lag`` is the value so many rows
before, ``lead`` so many rows after. Ranks begin with 1: ``row_number`` counts rows; peers share a ``rank``, which
counts the rows before them, and a ``dense_rank``, which counts the different places before them.

Of a stream (`OverOperator`) the order is that of the event time. A row comes out once the watermark has passed its
time by ``wait``, so rows come out in the order of time, and all that can be in its frame has come. No frame reaches
further than to the current row, and ``lead`` only to a row that is at most ``wait`` later. Late rows are counted, and
so are, as dropped, rows without a time.

Of a table (`TableOverOperator`) the order is any. A batch emits the changes of the result: rows whose value of a
function changes are retracted and shown again. All rows are stored, and the groups that a batch touches are read.

See `definition`, one row at a time. Values are those of the aggregates of a grouping: sums are exact and rounded once,
so they do not depend on batches.

`STATE_SCHEMA` describes what a state holds: the rows of the table; or the rows that wait, and those rows before them
that frames still need. Of frames without a limit the last row of a group has the accumulators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.changes import WEIGHT, concat_tables, consolidate_changes, key_ids
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import Bools, Ints, as_int64, shift_times
from watersmeet.operators.core.operator import END_OF_INPUT, Emission, Port, StateStore, StreamOperator, Watermarks
from watersmeet.operators.core.order import SortColumn
from watersmeet.operators.over.frames import FrameFunction, Frames
from watersmeet.operators.state.by_time import EventTimeStage, last_passed, next_number, release_rows, rows_up_to
from watersmeet.operators.state.layout import FinalityBound, KeyedRows, RowLayout
from watersmeet.operators.state.shard import Shard
from watersmeet.operators.state.state_schema import UNTIL_REPLACED, SpineSchema, StateSchema
from watersmeet.operators.state.table import (
    BUDGET,
    CODE,
    NUMBER,
    StateTable,
    enforce_limit,
    live_rows,
    merge_equal_rows,
    number_changes,
)


@dataclass(frozen=True)
class OverOperator(EventTimeStage):
    """Window functions over a stream: one port, whose rows come out once, in the order of their time.

    The emission has the ``columns``, then the outputs of the ``functions``.

    - ``wait``: how long after its time a row waits for later rows, in the unit of the event time

    >>> from watersmeet.tools.testing import MemoryStore
    >>> total = FrameFunction("sum", ("v",), "s", "rows", 1)
    >>> over, store = OverOperator(("k", "v"), ("k",), "t", (total,)), MemoryStore()
    >>> for times, watermark in (([1, 2], 2), ([3], 9)):
    ...     arrivals = {0: pa.table({"k": ["a"] * len(times), "t": times, "v": times})}
    ...     print([table.to_pylist() for table in over.step(store, arrivals, {"t": watermark}).rows])
    [[{'k': 'a', 'v': 1, 's': 1}]]
    [[{'k': 'a', 'v': 2, 's': 3}, {'k': 'a', 'v': 3, 's': 5}]]
    """

    name: ClassVar[str] = "over"

    functions: tuple[FrameFunction, ...]
    wait: int = 0

    def step(self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks) -> Emission:
        """Process one batch of one shard."""
        shard = Shard(self, store, watermarks)
        new, numbers = self.admit(shard, arrivals.get(0))
        watermark = self.watermark(shard)
        # The next row to come out may be so much behind the watermark as rows wait.
        reach = self.reach + self.wait if self.reach >= 0 else self.reach
        finality = FinalityBound(self.time, last_passed(watermark, reach))
        before = StateTable(
            shard.state.spine("recent", self._before_layout, BUDGET, lambda rows, _: self._drop_unread(rows, finality))
        )
        waiting = self.open_waiting(shard)
        rows = release_rows(waiting, new, last_passed(watermark, self.wait))
        emitted: tuple[pa.Table, ...] = ()
        if len(rows):
            later = rows_up_to(waiting, last_passed(watermark, 0)) if self.wait else self.row_layout.empty_rows
            shown, read = self._evaluate(before, rows, later)
            emitted = (shown,)
            if self._is_read_again:
                before.spine.add(self._drop_unread(self._before_layout.sort(read), finality))
        before.spine.expire(finality if not self._keeps_last_rows or watermark == END_OF_INPUT else None)
        enforce_limit([before, StateTable(waiting)], self.max_rows)
        shard.counters.matched = len(rows)
        watermarks = self.output_watermarks(shard, self.wait)
        return shard.close(watermarks, emitted, (len(before) + len(waiting),), numbers)

    def _evaluate(self, before: StateTable, rows: KeyedRows, later: KeyedRows) -> tuple[pa.Table, KeyedRows]:
        """The rows with the values of the functions, and the same as they are kept for the frames of others."""
        stored = before.read_rows(np.unique(rows.codes)) if self._is_read_again else self._before_layout.empty_rows
        frames = Frames.of_stream((stored, rows, later), self.time, self.by, self.functions, self.wait)
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
        for function in self._null_skippers:
            places = np.flatnonzero(rows.table.column(function.columns[0]).is_valid())
            stay[places] |= _last_of_each(self._ids(rows)[places], function.rows_before)
        return rows.where(stay)

    def _ids(self, rows: KeyedRows) -> Ints:
        return key_ids(rows.table, self.by) if self.by else np.zeros(len(rows), np.int64)

    @cached_property
    def reach(self) -> int:
        """The distance behind a row up to which frames of ranges read rows; -1 without one."""
        return max((f.preceding for f in self.functions if f.unit == "range" and f.preceding is not None), default=-1)

    @cached_property
    def rows_before(self) -> int:
        """The number of rows of each group that are kept, whatever their time."""
        counted = (f for f in self.functions if not f.skips_nulls)
        return max((max(f.rows_before, int(f.has_accumulators)) for f in counted), default=0)

    @cached_property
    def _null_skippers(self) -> tuple[FrameFunction, ...]:
        """The functions that read the last rows of each group whose value is not NULL."""
        return tuple(f for f in self.functions if f.skips_nulls and f.rows_before)

    def keeps_rows_for(self, function: FrameFunction) -> bool:
        """Whether the rows that its functions still need are enough for another one, too."""
        stored = {name for own in self.functions for name in own.inputs_before}
        if function.has_accumulators:
            return function in self.functions
        if not stored.issuperset(function.inputs_before):
            return False
        if function.kind == "lead" or not function.preceding:
            return True
        if function.skips_nulls:
            same = (own for own in self._null_skippers if own.columns[:1] == function.columns[:1])
            return function.preceding <= max((own.rows_before for own in same), default=0)
        return function.preceding <= (self.rows_before if function.unit == "rows" else self.reach)

    @property
    def _keeps_last_rows(self) -> bool:
        """Whether rows of each group are kept whatever their time."""
        return self.rows_before > 0 or bool(self._null_skippers)

    @property
    def _is_read_again(self) -> bool:
        return self.reach >= 0 or self._keeps_last_rows

    @cached_property
    def _before_layout(self) -> RowLayout:
        inputs = (name for function in self.functions for name in function.inputs_before)
        accumulators = (function.accumulators for function in self.functions if function.has_accumulators)
        columns = tuple(dict.fromkeys((*self.by, *inputs, self.time, CODE, *accumulators)))
        return RowLayout(columns, (self.time,), sort_time=self.time, code=CODE)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The arguments of the functions."""
        return tuple(name for function in self.functions for name in function.columns)

    @property
    def extra(self) -> tuple[str, ...]:
        """The values of the functions."""
        return tuple(function.output for function in self.functions)

    def extra_types(self, schemas: Sequence[pa.Schema]) -> tuple[pa.DataType, ...]:
        """The types of the functions, from those of the arriving rows."""
        return function_types(self.functions, schemas[0])

    @property
    def aggregates(self) -> tuple[FrameFunction, ...]:
        """The columns that it computes itself, which have canonical names in identities."""
        return self.functions

    @property
    def arrival_rule(self) -> str:
        """The reason why the order of arrivals matters, if it does."""
        if all(f.unit == "range" and f.kind in _ORDERLESS for f in self.functions):
            return ""
        return "rows with the same event time are in the order of their arrival"

    @property
    def identity(self) -> Identity:
        """The part of the operator that determines the meaning of its state."""
        functions = sorted(function.describe(self.canonical_names.canonical_list) for function in self.functions)
        return self.make_identity([self.row_layout.columns], functions=functions, wait=self.wait)


_ORDERLESS = frozenset({"count", "count_if", "sum", "avg", "rank", "dense_rank"})
"""The functions whose value over a range does not depend on the order of its rows."""


@dataclass(frozen=True)
class TableOverOperator(StreamOperator):
    """Window functions over a table: one port, whose changes become those of the rows with the functions.

    The emission has the ``columns``, the outputs of the ``functions``, then ``#weight``: 1 for an inserted row, -1 for
    a retracted one.

    - ``columns``: what the emission shows of a row; ``by``: the group columns, NULL equal to NULL
    - ``order``: the sort columns, most significant first
    - ``position``: the column with the delivery order of a batch's rows; None: they are in that order
    - ``code``: an int64 column that is equal wherever the group columns are; None: it is computed

    >>> from watersmeet.tools.testing import MemoryStore
    >>> lag, store = FrameFunction("lag", ("v",), "l", "rows", 1), MemoryStore()
    >>> over = TableOverOperator(("v",), (lag,), (), (SortColumn("v"),))
    >>> for values in ([3, 5], [4]):
    ...     changes = pa.table({"v": values, "#weight": [1] * len(values)})
    ...     [emitted] = over.step(store, {0: changes}, {}).rows
    ...     print(sorted(map(tuple, map(dict.values, emitted.to_pylist())), key=str))
    [(3, None, 1), (5, 3, 1)]
    [(4, 3, 1), (5, 3, -1), (5, 4, 1)]
    """

    name: ClassVar[str] = "over"

    columns: tuple[str, ...]
    functions: tuple[FrameFunction, ...]
    by: tuple[str, ...]
    order: tuple[SortColumn, ...]
    code: str | None = None
    position: str | None = None

    def step(self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks) -> Emission:
        """Process one batch of one shard."""
        shard = Shard(self, store, watermarks)
        number = int(shard.state.directory.numbers.get("number", 0))
        stored = StateTable(
            shard.state.spine(
                "rows", self._layout, BUDGET, lambda rows, is_oldest: merge_equal_rows(rows, is_whole=is_oldest)
            )
        )
        arrived = arrivals.get(0)
        changes: tuple[pa.Table, ...] = ()
        if arrived is not None and arrived.num_rows:
            shard.counters.rows[0] = arrived.num_rows
            new = number_changes(arrived, self._layout, number, by=self.by, code=self.code, position=self.position)
            number += arrived.num_rows
            before = stored.read_rows(np.unique(new.codes))
            after = self._layout.merge([before, new])
            changes = self._difference(live_rows(before), live_rows(after))
            stored.spine.add(merge_equal_rows(new, is_whole=False))
        enforce_limit([stored], self.max_rows)
        shard.counters.matched = sum(table.num_rows for table in changes)
        return shard.close({}, changes, (len(stored),), {"number": number})

    def _difference(self, before: KeyedRows, after: KeyedRows) -> tuple[pa.Table, ...]:
        """The changes of the result from some rows to others, which are all rows of their groups."""
        tables = [self._evaluate(rows, sign) for rows, sign in ((before, -1), (after, 1)) if len(rows)]
        changes = consolidate_changes(concat_tables(tables), (*self.columns, *self.extra[:-1])) if tables else None
        return (changes,) if changes is not None and changes.num_rows else ()

    def _evaluate(self, rows: KeyedRows, sign: int) -> pa.Table:
        """The rows of some groups with the values of the functions, each with a weight."""
        frames = Frames.of_table(rows, self.by, self.order)
        shown = [frames.table.column(name) for name in self.columns]
        shown += [frames.evaluate(function)[0] for function in self.functions]
        weights = pa.array(np.full(frames.table.num_rows, sign))
        return pa.Table.from_arrays([*shown, weights], [*self.columns, *self.extra])

    @cached_property
    def _layout(self) -> RowLayout:
        inputs = (name for function in self.functions for name in function.columns)
        columns = dict.fromkeys((*self.columns, *inputs, *self.by, *(key.column for key in self.order), CODE))
        return RowLayout(tuple(columns), code=CODE, numbers=(WEIGHT, NUMBER))

    @property
    def extra(self) -> tuple[str, ...]:
        """The values of the functions, and the weight of a change."""
        return (*(function.output for function in self.functions), WEIGHT)

    def extra_types(self, schemas: Sequence[pa.Schema]) -> tuple[pa.DataType, ...]:
        """The types of the functions, from those of the arriving rows, and that of a weight."""
        return (*function_types(self.functions, schemas[0]), pa.int64())

    @property
    def aggregates(self) -> tuple[FrameFunction, ...]:
        """The columns that it computes itself, which have canonical names in identities."""
        return self.functions

    @property
    def ports_in_arrival_order(self) -> frozenset[int]:
        """The only port: rows that are equal in the order are in the order of their arrival."""
        return frozenset() if self.position is None else frozenset({0})

    @property
    def ports(self) -> tuple[Port]:
        """The only port."""
        return (Port(self.columns, (), self.by, self.code),)

    @property
    def identity(self) -> Identity:
        """The part of the operator that determines the meaning of its state."""
        names = self.canonical_names
        functions = sorted(function.describe(names.canonical_list) for function in self.functions)
        order = [[names.canonical(key.column), key.descending, key.nulls_last] for key in self.order]
        return self.make_identity([self._layout.columns], functions=functions, order=order)


def function_types(functions: Sequence[FrameFunction], schema: pa.Schema) -> tuple[pa.DataType, ...]:
    """The types of functions over the columns of a schema."""
    return tuple(
        function.type_of(tuple(schema.field(name).type for name in function.columns)) for function in functions
    )


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
    """The rows of a table; or the rows that frames still need, or that wait."""
    if "order" in identity:
        return SpineSchema(0, UNTIL_REPLACED, "weights")
    (port,) = identity["ports"]
    time, wait = port["times"][0], int(identity["wait"])
    if name == "waiting":
        until = "until the watermark has passed their time" + (" by the bound" if wait else "")
        return SpineSchema(0, until, expiry=lambda rows: {time: shift_times(as_int64(rows.column(time)), wait)})
    return SpineSchema(0, "until no frame of a later row reaches them")


STATE_SCHEMA = StateSchema(("over",), spine, numbers=next_number, gives_stream=lambda identity: "wait" in identity)
