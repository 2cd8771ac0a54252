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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.changes import WEIGHT, consolidated, joined_tables, row_codes
from watersmeet.joins.core.condition import same
from watersmeet.joins.core.identity import Identity
from watersmeet.joins.core.matching import LOWEST, Bools, Ints
from watersmeet.joins.core.operator import Emission, Family, Marks, Store
from watersmeet.joins.core.order import First, Order, ranks_of
from watersmeet.joins.core.port import Port
from watersmeet.joins.core.shard import Shard
from watersmeet.joins.group.members import BUDGET, NUMBER, put_together
from watersmeet.joins.state.layout import NO_MARK, Layout, Over, Rows, as_int64, one_batch, together
from watersmeet.joins.state.spine import Spine
from watersmeet.joins.state.table import Table, keep_within, unweighted
from watersmeet.joins.top.of_groups import changed, negated

CODE, ARRIVAL = "#code", "#arrival"


@dataclass(frozen=True)
class Top(Family):
    """The first rows in an order, ready to run: one port.

    The emission has the ``columns``, then ``#weight``: 1 for a row that the table has now, -1 for one it no longer has.

    - ``order``: what rows are ordered by, the first first; ``limit``: how many are shown
    - ``changes``: arrivals carry ``#weight``
    - ``position``: the column that says in which order the rows of a batch were delivered; None: they are in that order
    - ``by``: the columns that make a group; none: all rows are one
    - ``code``: an int64 column that is equal wherever those are; None: it is computed
    - ``ties``: rows that are equal in the order have one place
    - ``settled``: the one of ``by``, a time, by which rows of a table are settled, which is also the name of its mark
    - ``settles``: under which names that mark is handed on

    >>> from watersmeet.testing import MemoryStore
    >>> top, store = Top(("v",), (Order("v", descending=True),), 1), MemoryStore()
    >>> for values in ([3, 5], [4], [9]):
    ...     print([table.to_pylist() for table in top.step(store, {0: pa.table({"v": values})}, {}).rows])
    [[{'v': 5, '#weight': 1}]]
    []
    [[{'v': 5, '#weight': -1}, {'v': 9, '#weight': 1}]]
    """

    name: ClassVar[str] = "top"

    columns: tuple[str, ...]
    order: tuple[Order, ...]
    limit: int
    changes: bool = False
    position: str | None = None
    by: tuple[str, ...] = ()
    code: str | None = None
    ties: bool = False
    settled: str | None = None
    settles: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.settled is not None and (not self.changes or self.settled not in self.by):
            raise ValueError("what is settled are groups of a table")

    def step(self, store: Store, arrivals: Mapping[int, pa.Table], marks: Marks) -> Emission:
        """Process one batch of one shard (see the module's definition)."""
        shard = Shard(self, store, marks)
        number = int(shard.state.directory.numbers.get("number", 0))
        if self.by:
            return self._step_by(shard, arrivals.get(0), number)
        shown = shard.state.spine("shown", self.layout)
        kept = self._kept(shard)
        arrived = arrivals.get(0)
        changes: tuple[pa.Table, ...] = ()
        if arrived is not None and arrived.num_rows:
            new = self._arrived(arrived, number)
            shard.tally.rows[0], number = arrived.num_rows, number + arrived.num_rows
            changes = self._changed(shown, self._candidates(kept, shown.rows(), new))
        keep_within([kept], self.max_rows)
        shard.tally.matched = sum(table.num_rows for table in changes)
        size = len(kept) if self.changes else len(shown)
        return shard.close({}, changes, (size,), {"number": number})

    def _step_by(self, shard: Shard, arrived: pa.Table | None, number: int) -> Emission:
        """A batch of the first rows of each group."""
        over = None if self.settled is None else Over(self.settled, shard.after.received.get(self.settled, NO_MARK))
        kept = self._kept(shard, over)
        shown = int(shard.state.directory.numbers.get("shown", 0))
        changes: tuple[pa.Table, ...] = ()
        if arrived is not None and arrived.num_rows:
            changes, grown = changed(self, kept, self._arrived(arrived, number), self._sorted, over)
            shard.tally.rows[0], number, shown = arrived.num_rows, number + arrived.num_rows, shown + grown
        kept.spine.forget(over)
        keep_within([kept], self.max_rows)
        shard.tally.matched = sum(table.num_rows for table in changes)
        size = len(kept) if self.changes else shown
        marks = {} if over is None or over.mark == NO_MARK else dict.fromkeys(self.settles, over.mark)
        return shard.close(marks, changes, (size,), {"number": number, "shown": shown})

    def _kept(self, shard: Shard, over: Over | None = None) -> Table:
        def alive(rows: Rows, is_oldest: bool) -> Rows:
            rows = rows if over is None else rows.where(over.left(rows))
            return put_together(rows, is_whole=is_oldest)

        return Table(shard.state.spine("rows", self.layout, BUDGET, alive))

    def _arrived(self, table: pa.Table, number: int) -> Rows:
        """Arrivals in the order of their codes, numbered in that of arrival."""
        further = [name for name in (self.position, self.code) if name is not None and name not in self._read]
        read = one_batch(table.select([*self._read, *further]))
        weights = (
            as_int64(one_batch(table.select([WEIGHT])).column(0)) if self.changes else np.ones(len(read), np.int64)
        )
        if self.position is not None:
            order = np.argsort(as_int64(read.column(self.position)), kind="stable")
            read, weights = read.take(pa.array(order)), weights[order]
        numbers = np.where(weights > 0, number + np.arange(len(weights)), LOWEST)
        codes = row_codes(read, self.by or self._read) if self.code is None else as_int64(read.column(self.code))
        apart = [pa.array(numbers)] if self._tells_apart else []
        made = [*apart, pa.array(codes), pa.array(weights), pa.array(numbers)]
        columns = [*(read.column(name) for name in self._read), *made]
        return self.layout.sorted(self.layout.rows(pa.table(columns, names=list(self.layout.written))))

    def _candidates(self, kept: Table, shown: Rows, new: Rows) -> Rows:
        """Rows among which the first are."""
        if not self.changes:
            return together([shown, new])
        kept.spine.add(put_together(new, is_whole=False))
        codes = np.unique(new.codes)
        touched = put_together(kept.stored(codes))
        is_touched = np.isin(shown.codes, codes)
        before, rest = shown.where(is_touched), shown.where(~is_touched)
        if int(shown.weights.sum()) < self.limit or not self._worse(before, touched):
            # All rows are shown, or none of those that are has lost its place.
            return together([rest, touched])
        return together(list(kept.spine.merged()) or [touched])

    def _worse(self, before: Rows, after: Rows) -> bool:
        """Whether a row that was shown is there less often, or stands further behind."""
        if not len(before):
            return False
        # What is shown of a row may be less than there is of it.
        both = put_together(self.layout.merged([negated(before), after]))
        has_moved = ~np.isin(before.beside[NUMBER], after.beside[NUMBER])
        return bool((both.weights < 0).any() or has_moved.any())

    def _changed(self, spine: Spine, candidates: Rows) -> tuple[pa.Table, ...]:
        """Let the first of the candidates be shown; gives what changes."""
        rows = candidates.where(candidates.weights > 0)
        rows = rows.take(self._sorted(rows))
        weights = self.shown_of(rows, np.cumsum(rows.weights) - rows.weights, np.zeros(len(rows), np.bool_))
        after = rows.with_beside(**{WEIGHT: weights}).where(weights > 0)
        before = spine.rows()
        for block in spine.blocks:
            spine.drop(block)
        spine.add(self.layout.sorted(after))
        tables = [unweighted(part).select([*self.columns, WEIGHT]) for part in (negated(before), after) if len(part)]
        found = consolidated(joined_tables(tables), self.columns) if tables else None
        return (found,) if found is not None and found.num_rows else ()

    def shown_of(self, rows: Rows, before: Ints, is_first: Bools) -> Ints:
        """How often each of these rows is shown; so many are ``before`` it; ``is_first``: another group begins."""
        if not self.ties or not len(rows):
            return np.clip(self.limit - before, 0, rows.weights)
        begins = is_first.copy()
        begins[:1] = True
        for by in self.order:
            column = rows.table.column(by.column)
            begins[1:] |= ~same(column.slice(1), column.slice(0, len(rows) - 1))
        place = before[np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))]
        return np.where(place < self.limit, rows.weights, 0)

    def _sorted(self, rows: Rows) -> Ints:
        keys = [ranks_of(rows.table.column(by.column), by) for by in self.order] if len(rows) else []
        return np.lexsort((rows.beside[NUMBER], *reversed(keys)))

    @cached_property
    def _read(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.columns, *(by.column for by in self.order), *self.by)))

    @property
    def _tells_apart(self) -> bool:
        """Whether equal rows are kept as several, since each has its place."""
        return bool(self.by) and not self.changes

    @cached_property
    def layout(self) -> Layout:
        """What is stored of a row."""
        apart = (ARRIVAL,) if self._tells_apart else ()
        times = () if self.settled is None else (self.settled,)
        return Layout((*self._read, *apart, CODE), times, code=CODE, numbers=(WEIGHT, NUMBER))

    @property
    def settling(self) -> tuple[str, ...]:
        """That of what makes a group."""
        return () if self.settled is None else (self.settled,)

    @property
    def asks(self) -> First:
        """The rows that it shows."""
        return First(self.by, self.order, self.limit)

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
        names = self.canonical
        order = [[names.canonical(by.column), by.descending, by.nulls_last] for by in self.order]
        # Left out where there are none, as in identities from before there were groups.
        by = {"by": names.listed(self.by)} if self.by else {}
        by |= {"ties": True} if self.ties else {}
        return self.identified([self._read], order=order, limit=self.limit, changes=self.changes, **by)
