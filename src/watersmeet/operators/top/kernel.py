"""Top-N: rows or changes in, the changes of a table with at most n rows out.

Definition. Rows are ordered by some columns, ascending or descending, NULLs first or last; NaN is greater than any
number. Among equal rows the earlier arrival comes first. The table shows the first n rows, or the first n of each
group: rows whose group columns are equal, NULL to NULL, NaN to NaN. With ties, rows that are equal in the order share
one rank, the number of rows before all of them: all of them are shown or none, however many there are. Dense ranks
count the different values before them instead. The first rows may be skipped, and the rank, which begins with 1, may be
a column of the result: a row whose rank changes is then retracted and shown again.

Rows of a stream are never retracted, so only the shown ones are stored. Input with weights is a changelog: a row counts
as often as its weight says, a negative weight retracts rows, and all rows are stored, since any of them may move up
when a shown one is retracted. Equal rows then share one rank, that of the last of them to arrive.

Rows of a stream may be grouped by the start or end of a window: rows whose window ends at or before the watermark known
before the batch are late, dropped and counted, and after the batch, the groups whose window has ended are dropped from
the state. Where rows of a table become final by a group column, rows at or before its watermark no longer change: after
each batch, the groups that the watermark has passed are dropped from the state. The rows that they show remain valid.

A batch emits the changes of the table. Where the result is a stream (``emit`` is ``"final"``), it emits the rows of the
groups that the batch closes, once and without weights; the watermark of the result is just behind them. See
`definition`, one row at a time.

`STATE_SCHEMA` describes what a state holds: the shown rows and, for a changelog, all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.operators.core.changes import WEIGHT, concat_tables, consolidate_changes, key_ids
from watersmeet.operators.core.condition import null_safe_equal
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import HIGHEST, Bools, Ints, as_int64, stable_order
from watersmeet.operators.core.operator import Emission, Emit, Port, StateStore, StreamOperator, Watermarks
from watersmeet.operators.core.order import SortColumn, TopN, are_least, ranks_of
from watersmeet.operators.core.watermarks import delay_watermark
from watersmeet.operators.state.layout import (
    NO_WATERMARK,
    FinalityBound,
    KeyedRows,
    RowLayout,
    concat_rows,
)
from watersmeet.operators.state.shard import EndCounts, Shard, ends_after, rows_to_close
from watersmeet.operators.state.spine import Spine
from watersmeet.operators.state.state_schema import (
    UNTIL_REPLACED,
    ExpiryTimes,
    ShardInspector,
    SpineSchema,
    StateSchema,
)
from watersmeet.operators.state.table import (
    ARRIVAL,
    BUDGET,
    CODE,
    NUMBER,
    StateTable,
    enforce_limit,
    live_rows,
    merge_equal_rows,
    number_changes,
    to_changes,
)


@dataclass(frozen=True)
class TopNOperator(StreamOperator):
    """Top-N, ready to run: one port.

    The emission has the ``columns``, then ``#weight``: 1 for an inserted row, -1 for a retracted one.

    - ``order``: the sort columns, most significant first; ``limit``: the number of rows shown
    - ``changes``: arrivals carry ``#weight``
    - ``position``: the column with the delivery order of a batch's rows; None: they are in that order
    - ``by``: the group columns; empty: all rows are one group
    - ``code``: an int64 column that is equal wherever the group columns are; None: it is computed
    - ``ties``: rows that are equal in the order share one rank; ``is_dense``: the next rank is one more
    - ``offset``: ranks up to this one are not shown; ``number``: the column with the rank, between ``columns`` and
      ``#weight``; None: it is not shown
    - ``final_key``: the time column of ``by`` by which groups become final. Of a table it is also the name of its
      watermark; of a stream it is ``before_end`` the end of a window that the watermark of ``time`` closes
    - ``finality_outputs``: the names under which that watermark is emitted, each with its delay
    - ``emit``: the changes of the table, or the rows of each group once, when it closes, without ``#weight``

    >>> from watersmeet.tools.testing import MemoryStore
    >>> top, store = TopNOperator(("v",), (SortColumn("v", descending=True),), 1), MemoryStore()
    >>> for values in ([3, 5], [4], [9]):
    ...     print([table.to_pylist() for table in top.step(store, {0: pa.table({"v": values})}, {}).rows])
    [[{'v': 5, '#weight': 1}]]
    []
    [[{'v': 5, '#weight': -1}, {'v': 9, '#weight': 1}]]
    """

    name: ClassVar[str] = "top"

    columns: tuple[str, ...]
    order: tuple[SortColumn, ...]
    limit: int
    changes: bool = False
    position: str | None = None
    by: tuple[str, ...] = ()
    code: str | None = None
    ties: bool = False
    final_key: str | None = None
    finality_outputs: tuple[tuple[str, int], ...] = ()
    time: str | None = None
    before_end: int = 0
    emit: Emit = "changes"
    offset: int = 0
    number: str | None = None
    is_dense: bool = False

    def __post_init__(self) -> None:
        if self.emit == "final" and self.time is None:
            raise ValueError("groups that are emitted once are closed by the watermark of an event time")
        is_timed = self.time is not None
        if self.final_key not in (*self.by, None) or is_timed != (self.final_key is not None and not self.changes):
            raise ValueError("what is settled are groups of a table, or of windows of a stream")

    def step(self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks) -> Emission:
        """Process one batch of one shard (see the module's definition)."""
        shard = Shard(self, store, watermarks)
        number = int(shard.state.directory.numbers.get("number", 0))
        if self.by:
            return self._step_groups(shard, arrivals.get(0), number)
        shown = shard.state.spine("shown", self.layout)
        stored = self._open_table(shard)
        arrived = arrivals.get(0)
        changes: tuple[pa.Table, ...] = ()
        if arrived is not None and arrived.num_rows:
            new = self._make_rows(arrived, number)
            shard.counters.rows[0], number = arrived.num_rows, number + arrived.num_rows
            changes = self._update_shown(shown, self._candidates(stored, shown.rows(), new))
        enforce_limit([stored], self.max_rows)
        shard.counters.matched = sum(table.num_rows for table in changes)
        size = len(stored) if self.changes else len(shown)
        return shard.close({}, changes, (size,), {"number": number})

    def _step_groups(self, shard: Shard, arrived: pa.Table | None, number: int) -> Emission:
        """A batch of the first rows of each group."""
        finality, watermark = self._finality_bound(shard)
        stored = self._open_table(shard, finality)
        counts, is_counted = self._count_shown(shard)
        changes: tuple[pa.Table, ...] = ()
        if arrived is not None and arrived.num_rows:
            shard.counters.rows[0] = arrived.num_rows
            new = self._drop_late_rows(shard, self._make_rows(arrived, number))
            number += arrived.num_rows
            stays = finality if self.emit == "changes" else None
            changes, shown = update_groups(self, stored, new, self._argsort, stays)
            counts = counts.with_changes(*(self._ends_of_shown(shown)))
        if self.emit == "final" and finality is not None:
            changes = self._final_rows(shard, stored.spine, finality, counts)
        stored.spine.expire(finality)
        if not is_counted:
            counts = self._count_ends(stored)
        if self.time is not None:
            counts = counts.open_after(watermark)
        enforce_limit([stored], self.max_rows)
        shard.counters.matched = sum(table.num_rows for table in changes)
        size = len(stored) if self.changes else counts.total
        watermarks = (
            {}
            if watermark == NO_WATERMARK
            # A time of a stream may still come when it is at the watermark, and a row of a closed group may not.
            else {
                name: delay_watermark(watermark, behind - (self.emit == "final"))
                for name, behind in self.finality_outputs
            }
        )
        numbers = {"number": number, "shown": counts.total, **({} if self.time is None else counts.numbers)}
        return shard.close(watermarks, changes, (size,), numbers)

    def _final_rows(
        self, shard: Shard, spine: Spine, finality: FinalityBound, counts: EndCounts
    ) -> tuple[pa.Table, ...]:
        """The rows of the groups that close with this batch."""
        before = shard.watermarks_before.received.get(str(self.time), NO_WATERMARK)
        before = before if before == NO_WATERMARK else delay_watermark(before, self.before_end)
        closed = rows_to_close(spine, finality, before, counts, self.before_end)
        if closed is None:
            return ()
        rows = merge_equal_rows(closed)
        rows = rows.take(np.repeat(np.arange(len(rows)), rows.weights))
        table = self.number_rows(rows).drop_columns([WEIGHT])
        return (table,) if table.num_rows else ()

    def _finality_bound(self, shard: Shard) -> tuple[FinalityBound | None, int]:
        """The bound that says which groups close with this batch, and the watermark that it follows from."""
        if self.final_key is None:
            return None, NO_WATERMARK
        watermark = shard.watermarks_after.received.get(self.time or self.final_key, NO_WATERMARK)
        mark = watermark if watermark == NO_WATERMARK else delay_watermark(watermark, self.before_end)
        return FinalityBound(self.final_key, mark), watermark

    def _drop_late_rows(self, shard: Shard, rows: KeyedRows) -> KeyedRows:
        """The rows whose windows were open before the batch; counts the others."""
        if self.time is None:
            return rows
        is_open = self._ends(rows) > shard.watermarks_before.received.get(self.time, NO_WATERMARK)
        shard.counters.late[0] = len(rows) - int(is_open.sum())
        return rows.where(is_open)

    def _ends(self, rows: KeyedRows) -> Ints:
        """The ends of the windows of some rows; the highest number without."""
        if self.time is None:
            return np.full(len(rows), HIGHEST)
        return ends_after(rows.times[str(self.final_key)], self.before_end)

    def _ends_of_shown(self, shown: tuple[KeyedRows, KeyedRows]) -> tuple[Ints, Ints]:
        """The ends of the rows that were shown and that are, and by how much there are more of them."""
        before, after = shown
        return np.concatenate([self._ends(before), self._ends(after)]), np.concatenate([-before.weights, after.weights])

    def _count_shown(self, shard: Shard) -> tuple[EndCounts, bool]:
        """The number of shown rows by the end of their windows, and whether the state was written with these ends."""
        numbers = shard.state.directory.numbers
        if self.time is None:
            return EndCounts({int(HIGHEST): int(numbers.get("shown", 0))}), True
        counts = EndCounts.of(numbers)
        return counts, int(HIGHEST) not in counts.counts and ("groups" in numbers or not numbers.get("shown"))

    def _count_ends(self, stored: StateTable) -> EndCounts:
        """The same, counted from the state, which is rewritten without the rows whose windows have ended."""
        stored.spine.compact()
        counts = EndCounts()
        for rows in stored.spine.merge_runs():
            counts = counts.with_changes(self._ends(rows), rows.weights)
        return counts

    def _open_table(self, shard: Shard, finality: FinalityBound | None = None) -> StateTable:
        def alive(rows: KeyedRows, is_oldest: bool) -> KeyedRows:
            rows = rows if finality is None else rows.where(finality.is_open(rows))
            return merge_equal_rows(rows, is_whole=is_oldest)

        return StateTable(shard.state.spine("rows", self.layout, BUDGET, alive))

    def _make_rows(self, table: pa.Table, number: int) -> KeyedRows:
        """Arrivals sorted by code, numbered in order of arrival."""
        by = self.by or self._input_columns
        if not self.changes and WEIGHT in table.schema.names:
            table = table.drop_columns([WEIGHT])
        return number_changes(table, self.layout, number, by=by, code=self.code, position=self.position)

    def _candidates(self, stored: StateTable, shown: KeyedRows, new: KeyedRows) -> KeyedRows:
        """Rows that include the new top-N."""
        if not self.changes:
            return concat_rows([shown, new])
        stored.spine.add(merge_equal_rows(new, is_whole=False))
        codes = np.unique(new.codes)
        touched = merge_equal_rows(stored.read_rows(codes))
        is_touched = np.isin(shown.codes, codes)
        before, rest = shown.where(is_touched), shown.where(~is_touched)
        if int(shown.weights.sum()) < self.limit or not self._is_demoted(before, touched):
            # All rows are shown, or no shown row has lost its rank.
            return concat_rows([rest, touched])
        return concat_rows(list(stored.spine.merge_runs()) or [touched])

    def _is_demoted(self, before: KeyedRows, after: KeyedRows) -> bool:
        """Whether a shown row has less weight now, or a lower rank."""
        if not len(before):
            return False
        # The shown weight of a row may be less than its stored weight.
        both = merge_equal_rows(self.layout.merge([negate(before), after]))
        has_moved = ~np.isin(before.attributes[NUMBER], after.attributes[NUMBER])
        return bool((both.weights < 0).any() or has_moved.any())

    def _update_shown(self, spine: Spine, candidates: KeyedRows) -> tuple[pa.Table, ...]:
        """Show the first of the candidates; returns the changes."""
        rows = candidates.where(candidates.weights > 0)
        rows = rows.take(self._argsort(rows))
        weights = self.visible_weights(rows, np.cumsum(rows.weights) - rows.weights, np.zeros(len(rows), np.bool_))
        after = rows.with_attributes(**{WEIGHT: weights}).where(weights > 0)
        before = spine.rows()
        for block in spine.blocks:
            spine.drop(block)
        spine.add(self.layout.sort(after))
        return self.difference(before, after)

    def difference(self, before: KeyedRows, after: KeyedRows) -> tuple[pa.Table, ...]:
        """The changes from some shown rows to others."""
        parts = [(self.number_rows(rows), sign) for rows, sign in ((before, -1), (after, 1)) if len(rows)]
        tables = [
            table.set_column(table.num_columns - 1, WEIGHT, pc.multiply(table.column(WEIGHT), pa.scalar(sign)))
            for table, sign in parts
        ]
        changes = consolidate_changes(concat_tables(tables), self.visible_columns) if tables else None
        return (changes,) if changes is not None and changes.num_rows else ()

    def number_rows(self, rows: KeyedRows) -> pa.Table:
        """The rows as they are shown, with their weights: with their ranks, and without those that are skipped."""
        if self.number is None and not self.offset:
            return to_changes(rows).select([*self.columns, WEIGHT])
        groups = key_ids(rows.table, self.by) if self.by else np.zeros(len(rows), np.int64)
        order = self._argsort(rows)
        order = order[stable_order(groups[order])]
        rows, groups = rows.take(order), groups[order]
        before = np.cumsum(rows.weights) - rows.weights
        is_first = np.append(True, groups[1:] != groups[:-1])[: len(rows)]
        starts = np.flatnonzero(is_first)
        before -= np.repeat(before[starts], np.diff(np.append(starts, len(rows))))
        copies = np.repeat(np.arange(len(rows)), rows.weights)
        if self.ties:
            ranks = self._ranks_of_ties(rows, before, is_first)[copies]
        else:
            # Equal rows stand as one, and each has a number.
            starts_of_rows = np.cumsum(rows.weights) - rows.weights
            ranks = before[copies] + np.arange(copies.size) - starts_of_rows[copies]
        is_shown = ranks >= self.offset
        table = pa.Table.from_batches([rows.table.take(pa.array(copies[is_shown]))]).select(list(self.columns))
        if self.number is not None:
            table = table.append_column(self.number, pa.array(ranks[is_shown] + 1, pa.int32()))
        return table.append_column(WEIGHT, pa.array(np.ones(table.num_rows, np.int64)))

    def _ranks_of_ties(self, rows: KeyedRows, before: Ints, is_first: Bools) -> Ints:
        """For each of the sorted rows how many rows precede all its equals, or how many different ones."""
        begins = is_first.copy()
        begins[:1] = True
        for by in self.order:
            column = rows.table.column(by.column)
            begins[1:] |= ~null_safe_equal(column.slice(1), column.slice(0, len(rows) - 1))
        places = np.arange(len(rows))
        if not self.is_dense:
            return before[np.maximum.accumulate(np.where(begins, places, 0))]
        numbers = np.cumsum(begins)
        return numbers - numbers[np.maximum.accumulate(np.where(is_first, places, 0))]

    def visible_weights(self, rows: KeyedRows, before: Ints, is_first: Bools) -> Ints:
        """The shown weight of each row, given the weight ``before`` it; ``is_first``: a new group begins."""
        if not self.ties or not len(rows):
            return np.clip(self.limit - before, 0, rows.weights)
        return np.where(self._ranks_of_ties(rows, before, is_first) < self.limit, rows.weights, 0)

    def _argsort(self, rows: KeyedRows) -> Ints:
        keys = [ranks_of(rows.table.column(by.column), by) for by in self.order] if len(rows) else []
        return np.lexsort((rows.attributes[NUMBER], *reversed(keys)))

    @cached_property
    def _input_columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.columns, *(by.column for by in self.order), *self.by)))

    @property
    def _needs_arrival(self) -> bool:
        """Whether equal rows are stored separately, since each has its own rank."""
        return bool(self.by) and not self.changes

    @cached_property
    def layout(self) -> RowLayout:
        """The layout of the stored rows."""
        arrival = (ARRIVAL,) if self._needs_arrival else ()
        times = () if self.final_key is None else (self.final_key,)
        return RowLayout((*self._input_columns, *arrival, CODE), times, code=CODE, numbers=(WEIGHT, NUMBER))

    @property
    def finality_marks(self) -> tuple[str, ...]:
        """The watermark of the final group column."""
        return () if self.final_key is None or self.time is not None else (self.final_key,)

    @property
    def top_n(self) -> TopN | None:
        """The top-N that it reads; None: a row may be in it however many precede it."""
        return None if self.is_dense else TopN(self.by, self.order, self.limit)

    @property
    def ports_in_arrival_order(self) -> frozenset[int]:
        """The only port: among equal rows the first ones are shown, unless ties share a rank."""
        return frozenset() if self.position is None else frozenset({0})

    @property
    def ports(self) -> tuple[Port]:
        """The only port."""
        return (Port(self.columns, () if self.time is None else (self.time,), self.by, self.code),)

    @property
    def extra(self) -> tuple[str, ...]:
        """The rank, if it is shown, and the weight of a change."""
        return (*self.visible_columns[len(self.columns) :], *((WEIGHT,) if self.emit == "changes" else ()))

    def extra_types(self, schemas: Sequence[pa.Schema]) -> tuple[pa.DataType, ...]:
        """The types of the rank and of a weight."""
        return tuple(pa.int32() if name == self.number else pa.int64() for name in self.extra)

    @property
    def visible_columns(self) -> tuple[str, ...]:
        """The columns of the result."""
        return self.columns if self.number is None else (*self.columns, self.number)

    @property
    def identity(self) -> Identity:
        """The part of the operator that determines the meaning of its state."""
        names = self.canonical_names
        order = [[names.canonical(by.column), by.descending, by.nulls_last] for by in self.order]
        # Omitted without groups, so that identities from before groups existed stay equal.
        by = {"by": names.canonical_list(self.by)} if self.by else {}
        by |= {"ties": True} if self.ties else {}
        by |= {"dense": True} if self.is_dense else {}
        by |= {"offset": self.offset} if self.offset else {}
        by |= {"number": True} if self.number is not None else {}
        if self.time is not None:
            by |= {"window": [names.canonical(str(self.final_key)), self.before_end]}
        by |= {} if self.emit == "changes" else {"emit": self.emit}
        return self.make_identity([self._input_columns], order=order, limit=self.limit, changes=self.changes, **by)


# One batch of a top-N per group: only the groups that the batch touches are read.
#
# For a stream, the state holds the first rows of each group with their arrival numbers, which distinguish equal rows;
# for a changelog, it holds all rows. The rows that a group showed before the batch follow from these.


def update_groups(
    top: TopNOperator,
    table: StateTable,
    new: KeyedRows,
    argsort: Callable[[KeyedRows], Ints],
    finality: FinalityBound | None = None,
) -> tuple[tuple[pa.Table, ...], tuple[KeyedRows, KeyedRows]]:
    """Apply arrivals; returns the changes, and the rows shown before and after in the groups that they touch.

    ``argsort`` gives the order in which rows of a group are ranked; ``finality``: rows whose group is final after this
    batch are not stored.
    """
    stored_runs = table.read_rows(np.unique(new.codes))
    stored = live_rows(stored_runs)
    before = _top_rows(top, stored, argsort)
    if top.changes:
        after = _top_rows(top, live_rows(table.layout.merge([stored_runs, new])), argsort)
        table.spine.add(merge_equal_rows(new if finality is None else new.where(finality.is_open(new)), is_whole=False))
    else:
        after = _top_rows(top, table.layout.merge([stored, new]), argsort)
        difference = merge_equal_rows(table.layout.merge([negate(stored), table.layout.sort(after)]))
        table.spine.add(difference if finality is None else difference.where(finality.is_open(difference)))
    return top.difference(before, after), (before, after)


def negate(rows: KeyedRows) -> KeyedRows:
    """The same rows with negated weights."""
    return rows.with_attributes(**{WEIGHT: -rows.weights})


def _top_rows(top: TopNOperator, rows: KeyedRows, argsort: Callable[[KeyedRows], Ints]) -> KeyedRows:
    """The first rows of each group, with the weight that is shown."""
    if not len(rows):
        return rows
    groups = key_ids(rows.table, top.by)
    if top.limit == 1:
        # Rows that are outranked by the first sort column need not be sorted.
        is_candidate = are_least(ranks_of(rows.table.column(top.order[0].column), top.order[0]), groups)
        rows, groups = rows.where(is_candidate), groups[is_candidate]
    order = argsort(rows)
    order = order[stable_order(groups[order])]
    rows, groups = rows.take(order), groups[order]
    before = np.cumsum(rows.weights) - rows.weights
    is_first = np.append(True, groups[1:] != groups[:-1])
    starts = np.flatnonzero(is_first)
    before -= np.repeat(before[starts], np.diff(np.append(starts, len(groups))))
    weights = top.visible_weights(rows, before, is_first)
    return rows.with_attributes(**{WEIGHT: weights}).where(weights > 0)


def spine(identity: Identity, name: str) -> SpineSchema:
    """The rows that are shown, or all rows."""
    if "window" in identity:
        (port,), window = identity["ports"], identity["window"]
        return SpineSchema(
            0, "until the watermark reaches the end of the window", "weights", partial(_until, port, window)
        )
    return SpineSchema(0, "until other rows rank before them" if name == "shown" else UNTIL_REPLACED, "weights")


def _until(port: Mapping[str, Any], window: tuple[str, int], rows: pa.RecordBatch) -> ExpiryTimes:
    key, before_end = window
    # A window closes when the watermark reaches its end, not when it passes it.
    return {port["times"][0]: ends_after(as_int64(rows.column(key)), before_end) - 1}


def numbers(identity: Identity, parts: Sequence[Mapping[str, Any]], look: ShardInspector) -> Mapping[str, Any]:
    """The next arrival number of all shards, and the number of shown rows: at most ``limit`` per group."""
    rows = look.rows("rows", spine(identity, "rows"))
    shown = 0
    if rows is not None and len(rows):
        weights = as_int64(rows.table.column(WEIGHT))
        _, groups = np.unique(key_ids(rows.table, tuple(identity["by"])), return_inverse=True)
        counts = np.bincount(groups, weights).astype(np.int64)
        # With ties, the number of shown rows has no upper limit.
        shown = int((counts if identity.get("ties") else np.minimum(counts, int(identity["limit"]))).sum())
    ends = {"groups": [[int(HIGHEST), shown]]} if "window" in identity and shown else {}
    # The ends of windows are counted again with the next batch.
    return {"number": max(int(part.get("number", 0)) for part in parts), "shown": shown, **ends}


STATE_SCHEMA = StateSchema(("top",), spine, numbers=numbers)
