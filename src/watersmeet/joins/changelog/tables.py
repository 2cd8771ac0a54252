"""What a step of a join of two tables works with: the shard, its tables, and the changes on their way out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.changes import Gathering
from watersmeet.joins.core.matching import Ints, Pairs
from watersmeet.joins.core.operator import LEFT, RIGHT, Emission, Marks, Store
from watersmeet.joins.core.shard import Shard
from watersmeet.joins.state.layout import Rows
from watersmeet.joins.state.table import Table, keep_within, weighted

if TYPE_CHECKING:
    from watersmeet.joins.changelog.table_join import TableJoin


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
        left, right = (
            Table.of(shard.state, name, layout, join.budget)
            for name, layout in zip(("left", "right"), join.layouts, strict=True)
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
        for table, rows in zip(self.tables, changes, strict=True):
            table.spine.add(rows)
        keep_within(self.tables, self.join.max_rows)
        yield from self.out.rest()
        yield self.shard.close({})
