"""What joins of two changing tables have in common: which pairs of rows are a match, and what a step works with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.changes import WEIGHT, Gathering
from watersmeet.joins.core.condition import Condition
from watersmeet.joins.core.identity import Identity
from watersmeet.joins.core.matching import Ints, Pairs, Stretches
from watersmeet.joins.core.operator import LEFT, RIGHT, Emission, Marks, Overflow, Store
from watersmeet.joins.core.port import Port
from watersmeet.joins.core.shard import Shard
from watersmeet.joins.core.two_sided import LEFT_ONLY, TwoSided, verified
from watersmeet.joins.state.budget import Budget
from watersmeet.joins.state.layout import Layout, Over, Rows
from watersmeet.joins.state.table import BUDGET, Table, keep_within, table_layout, weighted

SPINES = ("left", "right")
"""What the spine of each side is called."""


def stored(port: Port) -> tuple[str, ...]:
    """What is stored of a table. What never matches is stored only where a delete will not say what it was."""
    further = (*port.keys, *port.upsert_key, *([] if port.dead is None else [port.dead])) if port.upsert_key else ()
    return tuple(dict.fromkeys((*port.needed, *further)))


@dataclass(frozen=True)
class TableJoin(TwoSided):
    """A join of two tables that change. Its result is a table, too: what comes out of a batch are its changes.

    ``condition`` is whatever must hold besides equal keys. ``settled``: a key column of each side, a time, by which its
    rows are settled, which is also the name of its mark: once both marks have passed a key, its rows are forgotten.
    ``budget`` is for tests: no result depends on it.
    """

    condition: Condition | None = None
    budget: Budget = BUDGET
    settled: tuple[str, str] | None = None

    @property
    def settling(self) -> tuple[str, ...]:
        """Those of a key, of both sides."""
        return self.settled or ()

    @property
    def null_key_spines(self) -> tuple[tuple[str, str], ...]:
        """The sides that keep rows with NULL keys: preserved ones whose key is its own code, and that follow upserts.

        A hash of several keys is never NULL, and of a side that follows weights no row is stored that never matches.
        """
        return tuple(
            (spine, str(side.code))
            for spine, side, is_preserved in zip(SPINES, self.sides, self.preserved, strict=True)
            if is_preserved and side.exact and side.upsert_key
        )

    @property
    def extra(self) -> tuple[str, ...]:
        """The weight of a change."""
        return (WEIGHT,)

    @property
    def identity(self) -> Identity:
        """What of the join decides what its state means."""
        names = self.canonical
        return self.identified(
            (layout.columns for layout in self.layouts),
            kind=self.kind,
            condition=names.condition(self.condition),
        )

    @cached_property
    def layouts(self) -> tuple[Layout, Layout]:
        """What is stored of each side."""
        left, right = (table_layout(stored(side), side.code) for side in self.sides)
        if self.settled is None:
            return (left, right)
        return (replace(left, times=self.settled[:1]), replace(right, times=self.settled[1:]))

    def over(self, marks: Marks) -> tuple[Over, Over] | None:
        """Which rows of each side are settled on both sides, by these marks."""
        if self.settled is None or any(name not in marks for name in self.settled):
            return None
        mark = min(marks[name] for name in self.settled)
        return (Over(self.settled[LEFT], mark), Over(self.settled[RIGHT], mark))

    def limited(self, max_rows: int | None, overflow: Overflow) -> Self:
        """The join that keeps at most so many rows. A table has no rows to spare: more of them are always an error."""
        return replace(self, max_rows=max_rows)

    @property
    def shows_pairs(self) -> bool:
        """Whether pairs come out, and not the left side only."""
        return self.kind not in LEFT_ONLY

    def meets(self, sums: Ints) -> Ints:
        """1 for a row that comes out alone, or in a semi join at all, given the weight of what it matches; else 0."""
        return ((sums != 0) if self.kind == "semi" else (sums == 0)).astype(np.int64)

    def by_code(self, left: Rows, right: Rows, size: int) -> Iterator[Pairs]:
        """The matches among rows sorted by code, at most ``size`` at once: positions in left, positions in right."""
        is_left = len(left) <= len(right)
        probe, build = (left.codes, right.codes) if is_left else (right.codes, left.codes)
        start, stop = np.searchsorted(build, probe, "left"), np.searchsorted(build, probe, "right")
        some = np.flatnonzero(start < stop)
        for found in Stretches(some, start[some], stop[some]).pieces(size):
            pairs = verified(
                self.sides, self.condition, left, right, found if is_left else Pairs(found.build, found.probe)
            )
            if pairs.probe.size:
                yield pairs

    def joined(self, left: Rows, right: Rows, found: Pairs) -> pa.Table:
        """The changes that pairs make: their weights multiply."""
        mine = left.table.select(list(self.left.columns)).take(pa.array(found.probe)).columns
        theirs = right.table.select(list(self.right.columns)).take(pa.array(found.build)).columns
        return self.changes(mine, theirs, left.weights[found.probe] * right.weights[found.build])

    def alone(self, port: int, rows: Rows, weights: Ints) -> pa.Table:
        """The changes that rows of a port make without a partner, so many times each."""
        some = np.flatnonzero(weights)
        mine = rows.table.select(list(self.sides[port].columns)).take(pa.array(some)).columns
        nulls = [pa.nulls(some.size)] * len(self.sides[1 - port].columns)
        return self.changes(*((mine, nulls) if port == LEFT else (nulls, mine)), weights[some])

    def changes(self, left: list[pa.Array], right: list[pa.Array], weights: Ints) -> pa.Table:
        """Changes of the result from the columns of both sides."""
        names = [*self.left.columns, *self.right.columns, WEIGHT]
        return pa.Table.from_arrays([*left, *right, pa.array(weights)], names=names)


@dataclass(frozen=True)
class Tables:
    """The two tables of a join during a step."""

    join: TableJoin
    shard: Shard
    tables: tuple[Table, Table]
    out: Gathering

    @staticmethod
    def of(join: TableJoin, store: Store, marks: Marks) -> Tables:
        """The tables in a shard."""
        shard = Shard(join, store, marks)
        over = join.over(shard.after.received) or (None, None)
        left, right = (
            Table.of(shard.state, name, layout, join.budget, one)
            for name, layout, one in zip(SPINES, join.layouts, over, strict=True)
        )
        return Tables(join, shard, (left, right), Gathering((*join.left.columns, *join.right.columns)))

    def arrived(self, port: int, table: pa.Table) -> tuple[Rows, Rows]:
        """The changes of a table, consolidated, and of those that are not stored, the ones that can never match."""
        self.shard.tally.rows[port] += table.num_rows
        side, kept = self.join.sides[port], self.tables[port]
        if side.upsert_key:
            return kept.upserted(table, side.upsert_key), kept.layout.nothing
        alive = side.alive(table)
        if alive.all():
            return kept.rows(table), kept.layout.nothing
        dead = weighted(kept.layout, table.filter(pa.array(~alive)))
        return kept.rows(table.filter(pa.array(alive))), dead

    def never_matched(self, port: int, rows: Rows) -> Iterator[pa.Table]:
        """What comes out of rows of a port that can never match: alone at once, or nothing."""
        if len(rows) and self.join.tracked[port]:
            yield from self.alone(port, rows, rows.weights * self.join.meets(np.zeros(len(rows), np.int64)))

    def alone(self, port: int, rows: Rows, weights: Ints) -> Iterator[pa.Table]:
        """Rows of a port without a partner, so many times each."""
        table = self.join.alone(port, rows, weights)
        if self.join.kind == "semi":
            self.shard.tally.matched += table.num_rows
        else:
            self.shard.tally.padded[port] += table.num_rows
        yield from self.out.add(table)

    def pairs(self, left: Rows, right: Rows, found: Pairs, left_sums: Ints, right_sums: Ints) -> Iterator[pa.Table]:
        """The changes that pairs make; and add to each row's sum what it matches."""
        if self.join.tracked[LEFT]:
            np.add.at(left_sums, found.probe, right.weights[found.build])
        if self.join.tracked[RIGHT]:
            np.add.at(right_sums, found.build, left.weights[found.probe])
        if self.join.shows_pairs:
            self.shard.tally.matched += int(found.probe.size)
            yield from self.out.add(self.join.joined(left, right, found))

    def finish(self, changes: Sequence[Rows]) -> Iterator[pa.Table | Emission]:
        """Store the changes and hand out the rest."""
        over = self.join.over(self.shard.after.received)
        for table, rows, one in zip(self.tables, changes, over or (None, None), strict=True):
            table.spine.add(rows)
            table.spine.forget(one)
        keep_within(self.tables, self.join.max_rows)
        yield from self.out.rest()
        yield self.shard.close({} if over is None else {one.time: one.mark for one in over})
