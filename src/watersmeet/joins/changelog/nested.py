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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.joins.changelog.table_join import TableJoin, Tables, stored
from watersmeet.joins.core.changes import row_codes
from watersmeet.joins.core.matching import Ints, Pairs
from watersmeet.joins.core.operator import LEFT, RIGHT, Emission, Marks, Store
from watersmeet.joins.core.two_sided import verified
from watersmeet.joins.state.layout import Layout, NoteKind, Rows
from watersmeet.joins.state.table import table_layout

CODE = "#code"
"""A hash by which the rows of a side are stored: of the upsert key, or of the whole row."""

SUMS = "sums"
"""The note beside a row: the sum of the weights of what it matches."""

_SUMMED: tuple[str, NoteKind] = (SUMS, "number")

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
    def layouts(self) -> tuple[Layout, Layout]:
        """What is stored of each side; beside a row what it matches, where that matters."""
        left, right = (
            table_layout((*stored(side), CODE), CODE, *([_SUMMED] if tracked else []))
            for side, tracked in zip(self.sides, self.tracked, strict=True)
        )
        return left, right

    def stream(self, store: Store, arrivals: Mapping[int, pa.Table], marks: Marks) -> Iterator[pa.Table | Emission]:
        """The changes of the result as they come, and last the emission with the rest."""
        tables = Tables.of(self, store, marks)
        changes = [layout.nothing for layout in self.layouts]
        for port, table in arrivals.items():
            side = self.sides[port]
            # In an order of their own, so that equal rows have equal codes whatever the order of the result is.
            hashed = sorted(side.upsert_key or stored(side), key=self.canonical.canonical)
            coded = table.append_column(CODE, pa.array(row_codes(table, hashed)))
            changes[port], dead = tables.arrived(port, coded)
            yield from tables.never_matched(port, dead)
        sums = [np.zeros(len(rows), np.int64) for rows in changes]
        yield from _meet(self, tables, changes, sums)
        for port in (LEFT, RIGHT):
            if self.tracked[port]:
                yield from tables.alone(port, changes[port], changes[port].weights * self.meets(sums[port]))
                changes[port] = changes[port].with_beside(**{SUMS: sums[port]})
        yield from tables.finish(changes)

    def product(self, left: Rows, right: Rows) -> Iterator[Pairs]:
        """The matches among all pairs of these rows, some at a time."""
        width = max(1, min(len(right), PAIRS_AT_ONCE))
        height = max(1, PAIRS_AT_ONCE // width)
        for top in range(0, len(left), height):
            rows = np.arange(top, min(top + height, len(left)))
            for start in range(0, len(right), width):
                columns = np.arange(start, min(start + width, len(right)))
                found = Pairs(np.repeat(rows, columns.size), np.tile(columns, rows.size))
                found = verified(self.sides, self.condition, left, right, found)
                if found.probe.size:
                    yield found


def _meet(join: NestedJoin, tables: Tables, changes: Sequence[Rows], sums: Sequence[Ints]) -> Iterator[pa.Table]:
    """The changes of the result: all changes, then the stored rows of each side with the changes of the other."""
    yield from _pair(join, tables, changes, sums)
    for port in (LEFT, RIGHT):
        spine = tables.tables[port].spine
        for block in spine.blocks if len(changes[1 - port]) else ():
            rows = spine.read(block)
            shifts = np.zeros(len(rows), np.int64)
            pair, added = [rows, rows], [shifts, shifts]
            pair[1 - port], added[1 - port] = changes[1 - port], sums[1 - port]
            yield from _pair(join, tables, pair, added)
            if SUMS in rows.beside and shifts.any():
                before = rows.beside[SUMS]
                yield from tables.alone(port, rows, rows.weights * (join.meets(before + shifts) - join.meets(before)))
                spine.annotate(block, SUMS, before + shifts)


def _pair(join: NestedJoin, tables: Tables, rows: Sequence[Rows], sums: Sequence[Ints]) -> Iterator[pa.Table]:
    """The changes that the pairs of these rows make; and add to each row's sum what it matches."""
    alive = [_alive(join, port, rows[port]) for port in (LEFT, RIGHT)]
    for piece in join.product(rows[LEFT].take(alive[LEFT]), rows[RIGHT].take(alive[RIGHT])):
        found = Pairs(alive[LEFT][piece.probe], alive[RIGHT][piece.build])
        yield from tables.pairs(rows[LEFT], rows[RIGHT], found, sums[LEFT], sums[RIGHT])


def _alive(join: NestedJoin, port: int, rows: Rows) -> Ints:
    """The positions of rows that may match; where a side has no upsert key, no others get here."""
    side = join.sides[port]
    return np.flatnonzero(side.alive(rows.table)) if side.upsert_key else np.arange(len(rows))
