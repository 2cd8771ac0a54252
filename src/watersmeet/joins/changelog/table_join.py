"""What joins of two changing tables have in common: which pairs of rows are a match, and what a step works with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.changes import WEIGHT, ChangeBuffer
from watersmeet.joins.core.condition import Condition
from watersmeet.joins.core.identity import Identity
from watersmeet.joins.core.matching import Ints, Pairs, Stretches
from watersmeet.joins.core.operator import LEFT, RIGHT, Emission, Overflow, StateStore, Watermarks
from watersmeet.joins.core.port import Port
from watersmeet.joins.core.shard import Shard
from watersmeet.joins.core.two_sided import LEFT_ONLY, TwoSided, verify_pairs
from watersmeet.joins.state.budget import Budget
from watersmeet.joins.state.layout import FinalityBound, KeyedRows, RowLayout
from watersmeet.joins.state.table import BUDGET, StateTable, enforce_limit, table_layout, with_weights

SPINES = ("left", "right")
"""What the spine of each side is called."""


def state_columns(port: Port) -> tuple[str, ...]:
    """What is stored of a table. What never matches is stored only where a delete will not say what it was."""
    further = (*port.keys, *port.upsert_key, *([] if port.dead is None else [port.dead])) if port.upsert_key else ()
    return tuple(dict.fromkeys((*port.input_columns, *further)))


@dataclass(frozen=True)
class TableJoinOperator(TwoSided):
    """A join of two tables that change. Its result is a table, too: what comes out of a batch are its changes.

    ``condition`` is whatever must hold besides equal keys. ``final_keys``: a key column of each side, a time, by which
    its rows are settled, which is also the name of its watermark: once both watermarks have passed a key, its rows are
    forgotten. ``budget`` is for tests: no result depends on it.
    """

    condition: Condition | None = None
    budget: Budget = BUDGET
    final_keys: tuple[str, str] | None = None

    @property
    def finality_marks(self) -> tuple[str, ...]:
        """Those of a key, of both sides."""
        return self.final_keys or ()

    @property
    def null_key_spines(self) -> tuple[tuple[str, str], ...]:
        """The sides that keep rows with NULL keys: preserved ones whose key is its own code, and that follow upserts.

        A hash of several keys is never NULL, and of a side that follows weights no row is stored that never matches.
        """
        return tuple(
            (spine, str(side.code))
            for spine, side, is_preserved in zip(SPINES, self.sides, self.is_preserved, strict=True)
            if is_preserved and side.exact and side.upsert_key
        )

    @property
    def extra(self) -> tuple[str, ...]:
        """The weight of a change."""
        return (WEIGHT,)

    @property
    def identity(self) -> Identity:
        """What of the join decides what its state means."""
        names = self.canonical_names
        return self.make_identity(
            (layout.columns for layout in self.layouts),
            kind=self.kind,
            condition=names.condition(self.condition),
        )

    @cached_property
    def layouts(self) -> tuple[RowLayout, RowLayout]:
        """What is stored of each side."""
        left, right = (table_layout(state_columns(side), side.code) for side in self.sides)
        if self.final_keys is None:
            return (left, right)
        return (replace(left, times=self.final_keys[:1]), replace(right, times=self.final_keys[1:]))

    def finality_bounds(self, watermarks: Watermarks) -> tuple[FinalityBound, FinalityBound] | None:
        """Which rows of each side are settled on both sides, by these marks."""
        if self.final_keys is None or any(name not in watermarks for name in self.final_keys):
            return None
        watermark = min(watermarks[name] for name in self.final_keys)
        return (FinalityBound(self.final_keys[LEFT], watermark), FinalityBound(self.final_keys[RIGHT], watermark))

    def with_limit(self, max_rows: int | None, overflow: Overflow) -> Self:
        """The join that keeps at most so many rows. A table has no rows to spare: more of them are always an error."""
        return replace(self, max_rows=max_rows)

    @property
    def shows_pairs(self) -> bool:
        """Whether pairs come out, and not the left side only."""
        return self.kind not in LEFT_ONLY

    def output_flags(self, sums: Ints) -> Ints:
        """1 for a row that comes out alone, or in a semi join at all, given the weight of what it matches; else 0."""
        return ((sums != 0) if self.kind == "semi" else (sums == 0)).astype(np.int64)

    def find_matches(self, left: KeyedRows, right: KeyedRows, size: int) -> Iterator[Pairs]:
        """The matches among rows sorted by code, at most ``size`` at once: positions in left, positions in right."""
        is_left = len(left) <= len(right)
        probe, build = (left.codes, right.codes) if is_left else (right.codes, left.codes)
        start, stop = np.searchsorted(build, probe, "left"), np.searchsorted(build, probe, "right")
        hits = np.flatnonzero(start < stop)
        for candidates in Stretches(hits, start[hits], stop[hits]).pieces(size):
            pairs = verify_pairs(
                self.sides,
                self.condition,
                left,
                right,
                candidates if is_left else Pairs(candidates.build, candidates.probe),
            )
            if pairs.probe.size:
                yield pairs

    def join_rows(self, left: KeyedRows, right: KeyedRows, pairs: Pairs) -> pa.Table:
        """The changes that pairs make: their weights multiply."""
        mine = left.table.select(list(self.left.columns)).take(pa.array(pairs.probe)).columns
        theirs = right.table.select(list(self.right.columns)).take(pa.array(pairs.build)).columns
        return self.make_changes(mine, theirs, left.weights[pairs.probe] * right.weights[pairs.build])

    def pad_rows(self, port: int, rows: KeyedRows, weights: Ints) -> pa.Table:
        """The changes that rows of a port make without a partner, so many times each."""
        positions = np.flatnonzero(weights)
        mine = rows.table.select(list(self.sides[port].columns)).take(pa.array(positions)).columns
        nulls = [pa.nulls(positions.size)] * len(self.sides[1 - port].columns)
        return self.make_changes(*((mine, nulls) if port == LEFT else (nulls, mine)), weights[positions])

    def make_changes(self, left: list[pa.Array], right: list[pa.Array], weights: Ints) -> pa.Table:
        """Changes of the result from the columns of both sides."""
        names = [*self.left.columns, *self.right.columns, WEIGHT]
        return pa.Table.from_arrays([*left, *right, pa.array(weights)], names=names)


@dataclass(frozen=True)
class JoinTables:
    """The two tables of a join during a step."""

    join: TableJoinOperator
    shard: Shard
    tables: tuple[StateTable, StateTable]
    output: ChangeBuffer

    @staticmethod
    def of(join: TableJoinOperator, store: StateStore, watermarks: Watermarks) -> JoinTables:
        """The tables in a shard."""
        shard = Shard(join, store, watermarks)
        finality = join.finality_bounds(shard.after.received) or (None, None)
        left, right = (
            StateTable.of(shard.state, name, layout, join.budget, bound)
            for name, layout, bound in zip(SPINES, join.layouts, finality, strict=True)
        )
        return JoinTables(join, shard, (left, right), ChangeBuffer((*join.left.columns, *join.right.columns)))

    def split_arrivals(self, port: int, table: pa.Table) -> tuple[KeyedRows, KeyedRows]:
        """The changes of a table, consolidated, and of those that are not stored, the ones that can never match."""
        self.shard.counters.rows[port] += table.num_rows
        side, state_table = self.join.sides[port], self.tables[port]
        if side.upsert_key:
            return state_table.upsert_changes(table, side.upsert_key), state_table.layout.empty_rows
        alive = side.can_match(table)
        if alive.all():
            return state_table.rows(table), state_table.layout.empty_rows
        dead = with_weights(state_table.layout, table.filter(pa.array(~alive)))
        return state_table.rows(table.filter(pa.array(alive))), dead

    def emit_dead(self, port: int, rows: KeyedRows) -> Iterator[pa.Table]:
        """What comes out of rows of a port that can never match: alone at once, or nothing."""
        if len(rows) and self.join.tracks_matches[port]:
            yield from self.emit_unmatched(
                port, rows, rows.weights * self.join.output_flags(np.zeros(len(rows), np.int64))
            )

    def emit_unmatched(self, port: int, rows: KeyedRows, weights: Ints) -> Iterator[pa.Table]:
        """Rows of a port without a partner, so many times each."""
        table = self.join.pad_rows(port, rows, weights)
        if self.join.kind == "semi":
            self.shard.counters.matched += table.num_rows
        else:
            self.shard.counters.padded[port] += table.num_rows
        yield from self.output.add(table)

    def emit_pairs(
        self, left: KeyedRows, right: KeyedRows, pairs: Pairs, left_sums: Ints, right_sums: Ints
    ) -> Iterator[pa.Table]:
        """The changes that pairs make; and add to each row's sum what it matches."""
        if self.join.tracks_matches[LEFT]:
            np.add.at(left_sums, pairs.probe, right.weights[pairs.build])
        if self.join.tracks_matches[RIGHT]:
            np.add.at(right_sums, pairs.build, left.weights[pairs.probe])
        if self.join.shows_pairs:
            self.shard.counters.matched += int(pairs.probe.size)
            yield from self.output.add(self.join.join_rows(left, right, pairs))

    def finish(self, changes: Sequence[KeyedRows]) -> Iterator[pa.Table | Emission]:
        """Store the changes and hand out the rest."""
        finality = self.join.finality_bounds(self.shard.after.received)
        for table, rows, bound in zip(self.tables, changes, finality or (None, None), strict=True):
            table.spine.add(rows)
            table.spine.expire(bound)
        enforce_limit(self.tables, self.join.max_rows)
        yield from self.output.flush()
        yield self.shard.close({} if finality is None else {bound.time: bound.mark for bound in finality})
