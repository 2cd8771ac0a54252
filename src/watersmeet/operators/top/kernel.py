"""The first n rows in an order: rows or changes in, the changes of a table with at most n rows out.

Definition. Rows are ordered by values of theirs, ascending or descending, NULLs first or last; NaN is greater than any
number. Among equals the one that came earlier goes first. The table shows the first n of the rows that are there, or of
each group of them: rows whose group columns are equal, NULL to NULL, NaN to NaN. With ties, rows that are equal in the
order have one place, the number of rows before all of them: all of them are shown or none, however many there are.

Rows of a stream stay for good, so that only those that are shown need be kept. Input that has weights is a changelog: a
row counts as often as its weight says, a negative weight takes rows away, and all rows are kept, since any of them may
come up when one that is shown leaves. Equal rows then stand together, where the last of them arrived.

Where the rows of a table are settled by a column that makes groups, those at or before its mark change no more: a batch
is one instant, and with it groups are forgotten that its marks have passed. What they show stands.

What comes out of a batch is how the table has changed with it. See `definition`, one row at a time.

`STATE_SCHEMA` describes what a state holds: the rows that are shown and, of a table, all others too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.changes import WEIGHT, concat_tables, consolidate_changes, key_ids, row_codes
from watersmeet.operators.core.condition import null_safe_equal
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import LOWEST, Bools, Ints, as_int64, stable_order
from watersmeet.operators.core.operator import Emission, Port, StateStore, StreamOperator, Watermarks
from watersmeet.operators.core.order import SortColumn, TopN, are_least, ranks_of
from watersmeet.operators.group.members import BUDGET, NUMBER, merge_equal_rows
from watersmeet.operators.state.layout import (
    NO_WATERMARK,
    FinalityBound,
    KeyedRows,
    RowLayout,
    concat_rows,
    to_record_batch,
)
from watersmeet.operators.state.shard import Shard
from watersmeet.operators.state.spine import Spine
from watersmeet.operators.state.state_schema import UNTIL_REPLACED, ShardInspector, SpineSchema, StateSchema
from watersmeet.operators.state.table import StateTable, enforce_limit, to_changes

if TYPE_CHECKING:
    from watersmeet.operators.state.layout import FinalityBound, KeyedRows


CODE, ARRIVAL = "#code", "#arrival"


@dataclass(frozen=True)
class TopNOperator(StreamOperator):
    """The first rows in an order, ready to run: one port.

    The emission has the ``columns``, then ``#weight``: 1 for a row that the table has now, -1 for one it no longer has.

    - ``order``: what rows are ordered by, the first first; ``limit``: how many are shown
    - ``changes``: arrivals carry ``#weight``
    - ``position``: the column that says in which order the rows of a batch were delivered; None: they are in that order
    - ``by``: the columns that make a group; none: all rows are one
    - ``code``: an int64 column that is equal wherever those are; None: it is computed
    - ``ties``: rows that are equal in the order have one place
    - ``final_key``: the one of ``by``, a time, by which rows of a table are settled, which is also the name of its mark
    - ``finality_outputs``: under which names that mark is handed on

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
    finality_outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.final_key is not None and (not self.changes or self.final_key not in self.by):
            raise ValueError("what is settled are groups of a table")

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
        finality = (
            None
            if self.final_key is None
            else FinalityBound(self.final_key, shard.after.received.get(self.final_key, NO_WATERMARK))
        )
        stored = self._open_table(shard, finality)
        shown = int(shard.state.directory.numbers.get("shown", 0))
        changes: tuple[pa.Table, ...] = ()
        if arrived is not None and arrived.num_rows:
            changes, growth = update_groups(self, stored, self._make_rows(arrived, number), self._argsort, finality)
            shard.counters.rows[0], number, shown = arrived.num_rows, number + arrived.num_rows, shown + growth
        stored.spine.expire(finality)
        enforce_limit([stored], self.max_rows)
        shard.counters.matched = sum(table.num_rows for table in changes)
        size = len(stored) if self.changes else shown
        watermarks = (
            {}
            if finality is None or finality.mark == NO_WATERMARK
            else dict.fromkeys(self.finality_outputs, finality.mark)
        )
        return shard.close(watermarks, changes, (size,), {"number": number, "shown": shown})

    def _open_table(self, shard: Shard, finality: FinalityBound | None = None) -> StateTable:
        def alive(rows: KeyedRows, is_oldest: bool) -> KeyedRows:
            rows = rows if finality is None else rows.where(finality.is_open(rows))
            return merge_equal_rows(rows, is_whole=is_oldest)

        return StateTable(shard.state.spine("rows", self.layout, BUDGET, alive))

    def _make_rows(self, table: pa.Table, number: int) -> KeyedRows:
        """Arrivals in the order of their codes, numbered in that of arrival."""
        other_columns = [
            name for name in (self.position, self.code) if name is not None and name not in self._input_columns
        ]
        read = to_record_batch(table.select([*self._input_columns, *other_columns]))
        weights = (
            as_int64(to_record_batch(table.select([WEIGHT])).column(0))
            if self.changes
            else np.ones(len(read), np.int64)
        )
        if self.position is not None:
            order = np.argsort(as_int64(read.column(self.position)), kind="stable")
            read, weights = read.take(pa.array(order)), weights[order]
        numbers = np.where(weights > 0, number + np.arange(len(weights)), LOWEST)
        codes = (
            row_codes(read, self.by or self._input_columns) if self.code is None else as_int64(read.column(self.code))
        )
        arrival = [pa.array(numbers)] if self._needs_arrival else []
        made = [*arrival, pa.array(codes), pa.array(weights), pa.array(numbers)]
        columns = [*(read.column(name) for name in self._input_columns), *made]
        return self.layout.sort(self.layout.rows(pa.table(columns, names=list(self.layout.run_columns))))

    def _candidates(self, stored: StateTable, shown: KeyedRows, new: KeyedRows) -> KeyedRows:
        """Rows among which the first are."""
        if not self.changes:
            return concat_rows([shown, new])
        stored.spine.add(merge_equal_rows(new, is_whole=False))
        codes = np.unique(new.codes)
        touched = merge_equal_rows(stored.read_rows(codes))
        is_touched = np.isin(shown.codes, codes)
        before, rest = shown.where(is_touched), shown.where(~is_touched)
        if int(shown.weights.sum()) < self.limit or not self._is_demoted(before, touched):
            # All rows are shown, or none of those that are has lost its place.
            return concat_rows([rest, touched])
        return concat_rows(list(stored.spine.merge_runs()) or [touched])

    def _is_demoted(self, before: KeyedRows, after: KeyedRows) -> bool:
        """Whether a row that was shown is there less often, or stands further behind."""
        if not len(before):
            return False
        # What is shown of a row may be less than there is of it.
        both = merge_equal_rows(self.layout.merge([negate(before), after]))
        has_moved = ~np.isin(before.attributes[NUMBER], after.attributes[NUMBER])
        return bool((both.weights < 0).any() or has_moved.any())

    def _update_shown(self, spine: Spine, candidates: KeyedRows) -> tuple[pa.Table, ...]:
        """Let the first of the candidates be shown; gives what changes."""
        rows = candidates.where(candidates.weights > 0)
        rows = rows.take(self._argsort(rows))
        weights = self.visible_weights(rows, np.cumsum(rows.weights) - rows.weights, np.zeros(len(rows), np.bool_))
        after = rows.with_attributes(**{WEIGHT: weights}).where(weights > 0)
        before = spine.rows()
        for block in spine.blocks:
            spine.drop(block)
        spine.add(self.layout.sort(after))
        tables = [to_changes(part).select([*self.columns, WEIGHT]) for part in (negate(before), after) if len(part)]
        changes = consolidate_changes(concat_tables(tables), self.columns) if tables else None
        return (changes,) if changes is not None and changes.num_rows else ()

    def visible_weights(self, rows: KeyedRows, before: Ints, is_first: Bools) -> Ints:
        """How often each of these rows is shown; so many are ``before`` it; ``is_first``: another group begins."""
        if not self.ties or not len(rows):
            return np.clip(self.limit - before, 0, rows.weights)
        begins = is_first.copy()
        begins[:1] = True
        for by in self.order:
            column = rows.table.column(by.column)
            begins[1:] |= ~null_safe_equal(column.slice(1), column.slice(0, len(rows) - 1))
        place = before[np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))]
        return np.where(place < self.limit, rows.weights, 0)

    def _argsort(self, rows: KeyedRows) -> Ints:
        keys = [ranks_of(rows.table.column(by.column), by) for by in self.order] if len(rows) else []
        return np.lexsort((rows.attributes[NUMBER], *reversed(keys)))

    @cached_property
    def _input_columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.columns, *(by.column for by in self.order), *self.by)))

    @property
    def _needs_arrival(self) -> bool:
        """Whether equal rows are kept as several, since each has its place."""
        return bool(self.by) and not self.changes

    @cached_property
    def layout(self) -> RowLayout:
        """What is stored of a row."""
        arrival = (ARRIVAL,) if self._needs_arrival else ()
        times = () if self.final_key is None else (self.final_key,)
        return RowLayout((*self._input_columns, *arrival, CODE), times, code=CODE, numbers=(WEIGHT, NUMBER))

    @property
    def finality_marks(self) -> tuple[str, ...]:
        """That of what makes a group."""
        return () if self.final_key is None else (self.final_key,)

    @property
    def top_n(self) -> TopN:
        """The rows that it shows."""
        return TopN(self.by, self.order, self.limit)

    @property
    def ports_in_arrival_order(self) -> frozenset[int]:
        """The one there is: of equal rows the first ones are shown, unless ties share a place."""
        return frozenset() if self.position is None else frozenset({0})

    @property
    def sides(self) -> tuple[Port]:
        """The one there is."""
        return (Port(self.columns, keys=self.by, code=self.code),)

    @property
    def extra(self) -> tuple[str, ...]:
        """How often a row comes or goes."""
        return (WEIGHT,)

    @property
    def identity(self) -> Identity:
        """What of it decides what its state means."""
        names = self.canonical_names
        order = [[names.canonical(by.column), by.descending, by.nulls_last] for by in self.order]
        # Left out where there are none, as in identities from before there were groups.
        by = {"by": names.canonical_list(self.by)} if self.by else {}
        by |= {"ties": True} if self.ties else {}
        return self.make_identity([self._input_columns], order=order, limit=self.limit, changes=self.changes, **by)


# One batch of the first rows of each group: only groups that it touches are looked at.
#
# Of a stream a group's first rows are kept, each with its place in the order of arrival, which tells equal rows
# apart; of a table all its rows, as in a table. What the group showed before the batch follows from what was kept.


def update_groups(
    top: TopNOperator,
    table: StateTable,
    new: KeyedRows,
    argsort: Callable[[KeyedRows], Ints],
    finality: FinalityBound | None = None,
) -> tuple[tuple[pa.Table, ...], int]:
    """Take arrivals in; gives what changes, and by how much the number of rows that are shown does.

    ``argsort`` tells the order of rows in which those of a group stand as they compete; ``finality``: which of them
    need not be kept, since their group is settled with this batch.
    """
    stored_runs = table.read_rows(np.unique(new.codes))
    stored = _live_rows(stored_runs)
    before = _top_rows(top, stored, argsort)
    if top.changes:
        after = _top_rows(top, _live_rows(table.layout.merge([stored_runs, new])), argsort)
        table.spine.add(merge_equal_rows(new if finality is None else new.where(finality.is_open(new)), is_whole=False))
    else:
        after = _top_rows(top, table.layout.merge([stored, new]), argsort)
        difference = merge_equal_rows(table.layout.merge([negate(stored), table.layout.sort(after)]))
        table.spine.add(difference)
    tables = [to_changes(part).select([*top.columns, WEIGHT]) for part in (negate(before), after) if len(part)]
    changes = consolidate_changes(concat_tables(tables), top.columns) if tables else None
    growth = int(after.weights.sum() - before.weights.sum())
    return ((changes,) if changes is not None and changes.num_rows else ()), growth


def negate(rows: KeyedRows) -> KeyedRows:
    """Rows that go."""
    return rows.with_attributes(**{WEIGHT: -rows.weights})


def _live_rows(stored: KeyedRows) -> KeyedRows:
    rows = merge_equal_rows(stored)
    return rows.where(rows.weights > 0)


def _top_rows(top: TopNOperator, rows: KeyedRows, argsort: Callable[[KeyedRows], Ints]) -> KeyedRows:
    """The first rows of each group, as often as they are shown."""
    if not len(rows):
        return rows
    groups = key_ids(rows.table, top.by)
    if top.limit == 1:
        # What another row of its group is before, by what counts first, need not be sorted.
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
    return SpineSchema(0, "until other rows rank before them" if name == "shown" else UNTIL_REPLACED, "weights")


def numbers(identity: Identity, parts: Sequence[Mapping[str, Any]], look: ShardInspector) -> Mapping[str, Any]:
    """The next arrival of all, and how many rows are shown: of each group as many as may be."""
    rows = look.rows("rows", spine(identity, "rows"))
    shown = 0
    if rows is not None and len(rows):
        weights = as_int64(rows.table.column(WEIGHT))
        _, groups = np.unique(key_ids(rows.table, tuple(identity["by"])), return_inverse=True)
        counts = np.bincount(groups, weights).astype(np.int64)
        # With ties there is no number of rows that are shown at most.
        shown = int((counts if identity.get("ties") else np.minimum(counts, int(identity["limit"]))).sum())
    return {"number": max(int(part.get("number", 0)) for part in parts), "shown": shown}


STATE_SCHEMA = StateSchema(("top",), spine, numbers=numbers)
