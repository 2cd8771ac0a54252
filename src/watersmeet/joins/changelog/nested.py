"""The nested join: the join of two tables by any condition, kept up to date while they change.

Definition: that of `changelog`, without keys. Nothing tells which rows may match, so every change meets every row of
the other side:

1. What cancels out within the batch is gone before anything is looked at.
2. L x dR: the stored left side is read once, block by block; dL x R likewise, and dL x dR.
3. Where it matters whether rows match at all, each stored row keeps beside it the sum of the weights of what it
   matches. 2 gives how the sum changes. From zero to another value, the row no longer comes out alone, and back.

Invariants. The sum beside a row is that over the whole other side, also when the row is stored twice with weights that
cancel out; so what is stored may be taken block by block. At most `PAIRS_AT_ONCE` pairs are looked at at a time.

One shard sees all pairs of its rows: one side may be spread over shards if the other goes to all of them, and if it is
the left one where left rows come out alone or in a semi join, the right one where right rows do. Where both do, there
is one shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.joins.changelog.batch import limit, report
from watersmeet.joins.changelog.table_join import TableJoin, table_layout
from watersmeet.joins.core.changes import Gathering, row_codes
from watersmeet.joins.core.matching import Ints, Pairs
from watersmeet.joins.core.operator import LEFT, RIGHT, Emission, Marks, Store
from watersmeet.joins.state.table_rows import TableLayout, TableRows
from watersmeet.joins.state.table_state import TableState, upserted

CODE = "#code"
"""A hash by which the rows of a side are stored: of the upsert key, or of the whole row."""

PAIRS_AT_ONCE = 1_048_576


@dataclass(frozen=True)
class NestedJoin(TableJoin):
    """A join of two tables by a condition alone, ready to run. Its sides have no ``keys`` and no ``code``.

    >>> from watersmeet.joins.core.condition import Apply, Column
    >>> from watersmeet.joins.core.port import Port
    >>> from watersmeet.testing import MemoryStore
    >>> condition = Apply("<", (Column("a"), Column("b")))
    >>> join, store = NestedJoin("left", Port(("a",)), Port(("b",)), condition), MemoryStore()
    >>> join.step(store, {0: pa.table({"a": [1]})}, {}).rows[0].to_pylist()
    [{'a': 1, 'b': None, '#weight': 1}]
    >>> sorted(join.step(store, {1: pa.table({"b": [5]})}, {}).rows[0].column("#weight").to_pylist())
    [-1, 1]
    """

    name: ClassVar[str] = "block-nested"

    @cached_property
    def layouts(self) -> tuple[TableLayout, TableLayout]:
        """What is stored of each side."""
        left, right = ((*table_layout(side).columns, CODE) for side in self.sides)
        return (TableLayout(left, CODE), TableLayout(right, CODE))

    def stream(self, store: Store, arrivals: Mapping[int, pa.Table], marks: Marks) -> Iterator[pa.Table | Emission]:
        """The changes of the result as they come, and last the emission with the rest."""
        batch = NestedBatch(self, store)
        for port, table in arrivals.items():
            yield from batch.admit(port, table)
        yield from batch.meet()
        yield from batch.finish()

    def product(self, left: TableRows, right: TableRows) -> Iterator[Pairs]:
        """The matches among all pairs of these rows, some at a time."""
        width = max(1, min(len(right), PAIRS_AT_ONCE))
        height = max(1, PAIRS_AT_ONCE // width)
        for top in range(0, len(left), height):
            rows = np.arange(top, min(top + height, len(left)))
            for start in range(0, len(right), width):
                columns = np.arange(start, min(start + width, len(right)))
                found = Pairs(np.repeat(rows, columns.size), np.tile(columns, rows.size))
                if self.condition is not None:
                    found = found.where(self.holding(self.condition, left, right, found))
                if found.probe.size:
                    yield found


class NestedBatch:
    """A step in progress: `admit` for each port, then `meet`, then `finish`.

    ``changes`` are all changes of a port, ``new`` those of them that may match, and ``sums`` what these match.
    """

    def __init__(self, join: NestedJoin, store: Store) -> None:
        self.join = join
        self.states = [
            TableState(store, name, layout, join.sizes, summed=tracked)
            for name, layout, tracked in zip(("left", "right"), join.layouts, join.tracked, strict=True)
        ]
        self.changes = [layout.nothing for layout in join.layouts]
        self.sums = [np.zeros(0, np.int64), np.zeros(0, np.int64)]
        self.out = Gathering((*join.left.columns, *join.right.columns))
        self.rows, self.padded = [0, 0], [0, 0]
        self.matched = 0

    def admit(self, port: int, table: pa.Table) -> Iterator[pa.Table]:
        """Take in the changes of a table; what can never match comes out alone at once, or never."""
        self.rows[port] += table.num_rows
        side, layout = self.join.sides[port], self.join.layouts[port]
        table = table.append_column(CODE, pa.array(row_codes(table, side.upsert_key or table_layout(side).columns)))
        if side.upsert_key:
            changes = upserted(self.states[port], table, side.upsert_key)
        else:
            rows, alive = layout.rows(table), side.alive(table)
            changes = layout.consolidated(rows.where(alive))
            dead = rows.where(~alive)
            if len(dead) and self.join.tracked[port]:
                yield from self.emit_alone(port, dead, dead.weights * self.join.meets(np.zeros(len(dead), np.int64)))
        self.changes[port] = changes
        self.sums[port] = np.zeros(len(changes), np.int64)

    def meet(self) -> Iterator[pa.Table]:
        """The changes of the result: the stored rows of each side with the changes of the other, then all changes."""
        left, right = self.changes
        yield from self.pair(left, right, self.sums[LEFT], self.sums[RIGHT])
        for port in (LEFT, RIGHT):
            if not len(self.changes[1 - port]):
                continue
            for entry, rows in self.states[port].stored():
                shifts = np.zeros(len(rows), np.int64)
                if port == LEFT:
                    yield from self.pair(rows, right, shifts, self.sums[RIGHT])
                else:
                    yield from self.pair(left, rows, self.sums[LEFT], shifts)
                if rows.sums is not None and shifts.any():
                    turned = self.join.meets(rows.sums + shifts) - self.join.meets(rows.sums)
                    yield from self.emit_alone(port, rows, rows.weights * turned)
                    self.states[port].put_sums(entry, rows.sums + shifts)

    def pair(self, left: TableRows, right: TableRows, left_sums: Ints, right_sums: Ints) -> Iterator[pa.Table]:
        """The changes that the pairs of these rows make; and add to each row's sum what it matches."""
        join, alive = self.join, [self.alive(port, rows) for port, rows in enumerate((left, right))]
        for piece in join.product(left.take(alive[LEFT]), right.take(alive[RIGHT])):
            found = Pairs(alive[LEFT][piece.probe], alive[RIGHT][piece.build])
            if join.tracked[LEFT]:
                np.add.at(left_sums, found.probe, right.weights[found.build])
            if join.tracked[RIGHT]:
                np.add.at(right_sums, found.build, left.weights[found.probe])
            if join.shows_pairs:
                self.matched += int(found.probe.size)
                yield from self.out.add(join.joined(left, right, found))

    def alive(self, port: int, rows: TableRows) -> Ints:
        """The positions of rows that may match; where a side has no upsert key, no others get here."""
        side = self.join.sides[port]
        return np.flatnonzero(side.alive(rows.table)) if side.upsert_key else np.arange(len(rows))

    def emit_alone(self, port: int, rows: TableRows, weights: Ints) -> Iterator[pa.Table]:
        """Rows of a port without a partner, so many times each."""
        table = self.join.alone(port, rows, weights)
        if self.join.kind == "semi":
            self.matched += table.num_rows
        else:
            self.padded[port] += table.num_rows
        yield from self.out.add(table)

    def finish(self) -> Iterator[pa.Table | Emission]:
        """Store the changes, with what they match beside them, and hand out the rest."""
        for port in (LEFT, RIGHT):
            changes, sums = self.changes[port], self.sums[port]
            if self.join.tracked[port]:
                yield from self.emit_alone(port, changes, changes.weights * self.join.meets(sums))
                changes = replace(changes, sums=sums)
            self.states[port].apply(changes)
        limit(self.states, self.join.max_rows)
        for state in self.states:
            state.save()
        yield from self.out.rest()
        yield Emission(report=report(self.states, self.rows, self.matched, self.padded))
