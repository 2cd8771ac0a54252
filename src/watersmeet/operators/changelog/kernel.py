"""Joins of two changing tables: which pairs of rows match, and the merge join over equal keys.

`STATE_SCHEMA` describes what a state holds: the rows of both tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.changes import ROWS_PER_PIECE, WEIGHT, ChangeBuffer
from watersmeet.operators.core.condition import Condition, null_safe_equal_at
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import Ints, Pairs, Stretches
from watersmeet.operators.core.operator import LEFT, RIGHT, Emission, Overflow, Port, StateStore, Watermarks
from watersmeet.operators.state.layout import Budget, FinalityBound, KeyedRows, RowLayout
from watersmeet.operators.state.shard import LEFT_ONLY, Shard, TwoSided, verify_pairs
from watersmeet.operators.state.state_schema import UNTIL_REPLACED, SpineSchema, StateSchema
from watersmeet.operators.state.table import BUDGET, StateTable, chunk_codes, enforce_limit, table_layout, with_weights

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


# One batch of a changelog join in one shard: what changed, what it meets, what comes out.


_T = TypeVar("_T")


def stream(
    join: TableJoinOperator, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
) -> Iterator[pa.Table | Emission]:
    """Process one batch of one shard: the changes of the result as they come, last the emission with the rest."""
    tables = JoinTables.of(join, store, watermarks)
    changes = [layout.empty_rows for layout in join.layouts]
    new = list(changes)
    for port, table in arrivals.items():
        changes[port], dead = tables.split_arrivals(port, table)
        new[port], stored_dead = _split_dead(join, port, changes[port])
        for rows in (dead, stored_dead):
            yield from tables.emit_dead(port, rows)
    yield from _join_changes(tables, new)
    yield from tables.finish(changes)


def _split_dead(join: TableJoinOperator, port: int, rows: KeyedRows) -> tuple[KeyedRows, KeyedRows]:
    """Of changes that are stored, those that may match, and those that never can: there are any with upserts only."""
    if not join.sides[port].upsert_key:
        return rows, rows.slice(0, 0)
    alive = join.sides[port].can_match(rows.table)
    return rows.where(alive), rows.where(~alive)


def _join_changes(tables: JoinTables, new: Sequence[KeyedRows]) -> Iterator[pa.Table]:
    """The changes of the result, by stretches of codes."""
    join = tables.join
    codes = [np.unique(rows.codes) for rows in new]
    both = np.union1d(*codes)
    counts = np.zeros(both.size, np.int64)
    for port, table in enumerate(tables.tables):
        probe_codes = both if join.tracks_matches[1 - port] else codes[1 - port]
        if len(table) > join.budget.chunk:
            counts[np.searchsorted(both, probe_codes)] += table.counts(probe_codes)
    for stretch in chunk_codes(both, counts, join.budget.chunk):
        yield from _join_stretch(tables, [_slice_codes(rows, int(stretch[0]), int(stretch[-1])) for rows in new])


def _join_stretch(tables: JoinTables, new: Sequence[KeyedRows]) -> Iterator[pa.Table]:
    """The changes of the result that these changes make, which have all codes of a stretch."""
    sums = [np.zeros(len(rows), np.int64) for rows in new]
    yield from _join_pairs(tables, new, sums)
    for port in (RIGHT, LEFT):
        for old in _read_stored(tables, port, np.unique(new[1 - port].codes)):
            shifts = np.zeros(len(old), np.int64)
            yield from _join_pairs(tables, _by_port(port, old, new), _by_port(port, shifts, sums))
            if tables.join.tracks_matches[port]:
                yield from _update_unmatched(tables, port, old, shifts)
    for port in (LEFT, RIGHT):
        if tables.join.tracks_matches[port]:
            yield from tables.emit_unmatched(port, new[port], new[port].weights * tables.join.output_flags(sums[port]))


def _by_port(port: int, mine: _T, both: Sequence[_T]) -> tuple[_T, _T]:
    """What is of this port, with what is of the other."""
    return (mine, both[RIGHT]) if port == LEFT else (both[LEFT], mine)


def _join_pairs(tables: JoinTables, both: Sequence[KeyedRows], sums: Sequence[Ints]) -> Iterator[pa.Table]:
    """The changes that the pairs of these rows make; and add to each row's sum what it matches."""
    (left, right), (left_sums, right_sums) = both, sums
    if not len(left) or not len(right):
        return
    if not tables.join.shows_pairs:
        left_sums += _match_weights(tables.join, LEFT, left, right)
        return
    for pairs in tables.join.find_matches(left, right, ROWS_PER_PIECE):
        yield from tables.emit_pairs(left, right, pairs, left_sums, right_sums)


def _update_unmatched(tables: JoinTables, port: int, rows: KeyedRows, shifts: Ints) -> Iterator[pa.Table]:
    """What becomes of old rows whose sums change: some come out alone now, and some did but no longer do."""
    is_shifted = shifts != 0
    rows, shifts = rows.where(is_shifted), shifts[is_shifted]
    if not len(rows):
        return
    join = tables.join
    before = np.zeros(len(rows), np.int64)
    for others in _read_stored(tables, 1 - port, np.unique(rows.codes)):
        before += _match_weights(join, port, rows, others)
    output_changes = join.output_flags(before + shifts) - join.output_flags(before)
    yield from tables.emit_unmatched(port, rows, rows.weights * output_changes)


def _read_stored(tables: JoinTables, port: int, codes: Ints) -> Iterator[KeyedRows]:
    """The rows that a table had before the batch for these codes, in parts, without those that never match."""
    side = tables.join.sides[port]
    for rows in tables.tables[port].find_parts(codes):
        yield rows.where(side.can_match(rows.table)) if side.upsert_key else rows


def _match_weights(join: TableJoinOperator, port: int, rows: KeyedRows, others: KeyedRows) -> Ints:
    """For each of the rows of a port the weight of what it matches among rows of the other."""
    if not len(others):
        return np.zeros(len(rows), np.int64)
    if join.condition is None and _has_exact_codes(join, port, rows, others):
        totals = np.concatenate([[0], np.cumsum(others.weights)])
        start, stop = (np.searchsorted(others.codes, rows.codes, edge) for edge in ("left", "right"))
        return totals[stop] - totals[start]
    sums = np.zeros(len(rows), np.int64)
    left, right = (rows, others) if port == LEFT else (others, rows)
    for pairs in join.find_matches(left, right, ROWS_PER_PIECE):
        mine, theirs = pairs if port == LEFT else (pairs.build, pairs.probe)
        np.add.at(sums, mine, others.weights[theirs])
    return sums


def _has_exact_codes(join: TableJoinOperator, port: int, rows: KeyedRows, others: KeyedRows) -> bool:
    """Whether among these rows equal codes mean equal keys: nearly always so, as codes are hashes of 64 bits."""
    if join.left.exact:
        return True
    mine, theirs = (
        [part.table.column(name) for name in join.sides[side].keys] for side, part in ((port, rows), (1 - port, others))
    )
    first = np.searchsorted(others.codes, rows.codes, "left")
    has_match = np.flatnonzero(first < np.searchsorted(others.codes, rows.codes, "right"))
    # For each of the others, the first with its code.
    first_of_code = np.searchsorted(others.codes, others.codes, "left")
    return bool(
        null_safe_equal_at(mine, has_match, theirs, first[has_match]).all()
        and null_safe_equal_at(theirs, np.arange(len(others)), theirs, first_of_code).all()
    )


def _slice_codes(rows: KeyedRows, low: int, high: int) -> KeyedRows:
    return rows.slice(int(np.searchsorted(rows.codes, low, "left")), int(np.searchsorted(rows.codes, high, "right")))


# The changelog join: the join of two tables by equal keys, kept up to date while they change.
#
# Definition. A table is a bag of rows; its changes are rows with weights. A left row l and a right row r match when
# their keys are equal (NULL never is), both may match at all, and the rest of the condition is true. J(L, R) has the
# pair (l, r) L(l) * R(r) times, and every row of a preserved side padded, as often as it is there, if what it matches
# weighs nothing: the weights of the rows that match it add up to zero. A semi join has the left rows for which they
# do not, an anti join those for which they do. A batch gives J(L + dL, R + dR) - J(L, R). See `definition` for the
# same, slow and obvious.
#
# How it is found without joining whole tables again:
#
# 1. The pairs are dL x (R + dR) and L x dR. So a change reads what it may match, and not its own side. 2. Whether a
# row comes out alone depends on the sum of the weights it matches. For a new row that sum is known from 1. For an old
# one, 1 gives how its sum changes; only where it does, the sum it had is asked for.
#
# Everything is linear in the rows of the own side, so it makes no difference whether a row is stored once with weight
# 2 or twice with weight 1.
#
# Invariant. Only rows of one code match, so a batch is worked off by stretches of codes for which the stored rows fit
# in memory; where those of a single code do not, it meets them some at a time.


@dataclass(frozen=True)
class ChangelogJoinOperator(TableJoinOperator):
    """A join of two tables by equal keys, ready to run.

    >>> from watersmeet.operators.core.operator import Port
    >>> from watersmeet.tools.testing import MemoryStore
    >>> sides = [Port((f"{s}.k", f"{s}.v"), (), (f"{s}.k",), f"{s}.k", exact=True) for s in "lr"]
    >>> join, store = ChangelogJoinOperator("left", *sides), MemoryStore()
    >>> left, right = ({p: pa.table({f"{s}.k": [1], f"{s}.v": [s]})} for p, s in enumerate("lr"))
    >>> [list(change.values()) for table in join.step(store, left, {}).rows for change in table.to_pylist()]
    [[1, 'l', None, None, 1]]
    >>> [list(change.values()) for table in join.step(store, right, {}).rows for change in table.to_pylist()]
    [[1, 'l', 1, 'r', 1], [1, 'l', None, None, -1]]
    """

    name: ClassVar[str] = "merge"

    def stream(
        self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
    ) -> Iterator[pa.Table | Emission]:
        """The changes of the result as they come, and last the emission with the rest."""
        return stream(self, store, arrivals, watermarks)


def spine(identity: Identity, name: str) -> SpineSchema:
    """The rows of a side."""
    return SpineSchema(("left", "right").index(name), UNTIL_REPLACED, "weights")


STATE_SCHEMA = StateSchema(("merge", "block-nested"), spine)
