"""What joins of two changing tables have in common: their sides, their kinds, and which pairs of rows are a match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.changes import WEIGHT
from watersmeet.joins.core.condition import Condition
from watersmeet.joins.core.identity import Identity
from watersmeet.joins.core.matching import Ints, Pairs, Stretches
from watersmeet.joins.core.meeting import verified
from watersmeet.joins.core.operator import LEFT, Emission, Family, Marks, Overflow, Store, gathered
from watersmeet.joins.core.port import Port
from watersmeet.joins.interval.operator import LEFT_ONLY, TRACKED, Kind
from watersmeet.joins.state.budget import Budget
from watersmeet.joins.state.layout import Layout, Rows
from watersmeet.joins.state.table import BUDGET, table_layout


def stored(port: Port) -> tuple[str, ...]:
    """What is stored of a table. What never matches is stored only where a delete will not say what it was."""
    further = (*port.keys, *port.upsert_key, *([] if port.dead is None else [port.dead])) if port.upsert_key else ()
    return tuple(dict.fromkeys((*port.needed, *further)))


@dataclass(frozen=True)
class TableJoin(Family):
    """A join of two tables that change. Its result is a table, too: what comes out of a batch are its changes.

    ``condition`` is whatever must hold besides equal keys. ``budget`` is for tests: no result depends on it.
    """

    kind: Kind
    left: Port
    right: Port
    condition: Condition | None = None
    budget: Budget = BUDGET

    def stream(self, store: Store, arrivals: Mapping[int, pa.Table], marks: Marks) -> Iterator[pa.Table | Emission]:
        """The changes of the result as they come, and last the emission with the rest."""
        raise NotImplementedError

    def step(self, store: Store, arrivals: Mapping[int, pa.Table], marks: Marks) -> Emission:
        """Process one batch of one shard."""
        return gathered(self.stream(store, arrivals, marks))

    @property
    def may_split(self) -> bool:
        """A batch comes whole: what cancels out within it must not be seen."""
        return False

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
        return (table_layout(stored(self.left), self.left.code), table_layout(stored(self.right), self.right.code))

    def limited(self, max_rows: int | None, overflow: Overflow) -> Self:
        """The join that keeps at most so many rows. A table has no rows to spare: more of them are always an error."""
        return replace(self, max_rows=max_rows)

    @property
    def sides(self) -> tuple[Port, Port]:
        """Left and right, by port."""
        return (self.left, self.right)

    @property
    def tracked(self) -> tuple[bool, bool]:
        """Whether it matters for a port if its rows match at all, besides what they match."""
        return TRACKED[self.kind]

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
