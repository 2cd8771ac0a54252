"""Joins of two changing tables: which pairs of rows match, the merge join over equal keys, and the nested-loop join.

`STATE_SCHEMA` describes what a state holds: the rows of both tables.

The nested-loop join takes any condition and is updated incrementally. Definition: that of `changelog`, without keys.
Without keys, every change must be compared with every row of the other side:

1. Changes that cancel out within the batch are removed first.
2. L x dR: the stored left side is read once, block by block; dL x R likewise, and dL x dR.
3. Where unmatched rows matter, each stored row has a note with the sum of the weights of its matches. 2 gives how the
   sum changes. When it changes from zero, the row is no longer unmatched, and vice versa.

Invariants. The sum of a row covers the whole other side, also when the row is stored twice with weights that cancel
out; so blocks may be processed one by one. At most `PAIRS_AT_ONCE` pairs are compared at a time.

One shard sees all pairs of its rows: one side may be spread over shards if the other goes to all of them. It must be
the left one where left rows are emitted unmatched or in a semi join, the right one where right rows are. Where both
are, there is one shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.changes import WEIGHT, ChangeBuffer, row_codes
from watersmeet.operators.core.condition import Condition, null_safe_equal_at
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import Ints, Pairs, Stretches
from watersmeet.operators.core.operator import LEFT, RIGHT, Emission, Overflow, Port, StateStore, Watermarks
from watersmeet.operators.state.layout import Budget, FinalityBound, KeyedRows, NoteKind, RowLayout, rows_per_piece
from watersmeet.operators.state.shard import LEFT_ONLY, Shard, TwoSided, verify_pairs
from watersmeet.operators.state.state_schema import UNTIL_REPLACED, SpineSchema, StateSchema
from watersmeet.operators.state.table import BUDGET, StateTable, chunk_codes, enforce_limit, table_layout, with_weights

SPINES = ("left", "right")
"""The name of the spine of each side."""


def state_columns(port: Port) -> tuple[str, ...]:
    """The stored columns of a table. Rows that never match are stored only where deletes carry no values (upserts)."""
    further = (*port.keys, *port.upsert_key, *([] if port.dead is None else [port.dead])) if port.upsert_key else ()
    return tuple(dict.fromkeys((*port.input_columns, *further)))


@dataclass(frozen=True)
class TableJoinOperator(TwoSided):
    """A join of two changing tables, whose result is a table: a batch emits its changes.

    ``condition`` is the condition besides equal keys. ``final_keys``: a time column among the keys of each side by
    which its rows become final; also the name of its watermark: once both watermarks have passed a key, its rows are
    dropped. ``budget`` is for tests: no result depends on it.
    """

    condition: Condition | None = None
    budget: Budget = BUDGET
    final_keys: tuple[str, str] | None = None

    @property
    def finality_marks(self) -> tuple[str, ...]:
        """The watermark names of the final keys of both sides."""
        return self.final_keys or ()

    @property
    def null_key_spines(self) -> tuple[tuple[str, str], ...]:
        """The sides that store rows with NULL keys: preserved sides of upserts whose key is its own code.

        A hash of several keys is never NULL, and a side with weights does not store rows that never match.
        """
        return tuple(
            (spine, str(side.code))
            for spine, side, is_preserved in zip(SPINES, self.ports, self.is_preserved, strict=True)
            if is_preserved and side.exact and side.upsert_key
        )

    @property
    def extra(self) -> tuple[str, ...]:
        """The weight of a change."""
        return (WEIGHT,)

    @property
    def identity(self) -> Identity:
        """The part of the join that determines the meaning of its state."""
        names = self.canonical_names
        return self.make_identity(
            (layout.columns for layout in self.layouts),
            kind=self.kind,
            condition=names.condition(self.condition),
        )

    @cached_property
    def layouts(self) -> tuple[RowLayout, RowLayout]:
        """The layout of each side's state."""
        left, right = (table_layout(state_columns(side), side.code) for side in self.ports)
        if self.final_keys is None:
            return (left, right)
        return (replace(left, times=self.final_keys[:1]), replace(right, times=self.final_keys[1:]))

    def finality_bounds(self, watermarks: Watermarks) -> tuple[FinalityBound, FinalityBound] | None:
        """The bounds up to which rows are final on both sides, by these watermarks; None: not known."""
        if self.final_keys is None or any(name not in watermarks for name in self.final_keys):
            return None
        watermark = min(watermarks[name] for name in self.final_keys)
        return (FinalityBound(self.final_keys[LEFT], watermark), FinalityBound(self.final_keys[RIGHT], watermark))

    def with_limit(self, max_rows: int | None, overflow: Overflow) -> Self:
        """The join with a limit on its state; as no row can be dropped, exceeding it is always an error."""
        return replace(self, max_rows=max_rows)

    @property
    def shows_pairs(self) -> bool:
        """Whether the result has pairs, and not only rows of the left side."""
        return self.kind not in LEFT_ONLY

    def output_flags(self, sums: Ints) -> Ints:
        """1 where a row is emitted by itself, given the total weight of its matches; else 0."""
        return ((sums != 0) if self.kind == "semi" else (sums == 0)).astype(np.int64)

    def find_matches(self, left: KeyedRows, right: KeyedRows, size: int) -> Iterator[Pairs]:
        """The matches among rows sorted by code, at most ``size`` at once: positions in left and right."""
        is_left = len(left) <= len(right)
        probe, build = (left.codes, right.codes) if is_left else (right.codes, left.codes)
        start, stop = np.searchsorted(build, probe, "left"), np.searchsorted(build, probe, "right")
        hits = np.flatnonzero(start < stop)
        for candidates in Stretches(hits, start[hits], stop[hits]).pieces(size):
            pairs = verify_pairs(
                self.ports,
                self.condition,
                left,
                right,
                candidates if is_left else Pairs(candidates.build, candidates.probe),
            )
            if pairs.probe.size:
                yield pairs

    def join_rows(self, left: KeyedRows, right: KeyedRows, pairs: Pairs) -> pa.Table:
        """The changes that pairs contribute: their weights multiply."""
        mine = left.table.select(list(self.left.columns)).take(pa.array(pairs.probe)).columns
        theirs = right.table.select(list(self.right.columns)).take(pa.array(pairs.build)).columns
        return self.make_changes(mine, theirs, left.weights[pairs.probe] * right.weights[pairs.build])

    def pad_rows(self, port: int, rows: KeyedRows, weights: Ints) -> pa.Table:
        """The padded changes that rows of a port contribute, with these weights."""
        positions = np.flatnonzero(weights)
        mine = rows.table.select(list(self.ports[port].columns)).take(pa.array(positions)).columns
        nulls = [pa.nulls(positions.size)] * len(self.ports[1 - port].columns)
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
        """Open the tables of a shard."""
        shard = Shard(join, store, watermarks)
        finality = join.finality_bounds(shard.watermarks_after.received) or (None, None)
        left, right = (
            StateTable.of(shard.state, name, layout, join.budget, bound)
            for name, layout, bound in zip(SPINES, join.layouts, finality, strict=True)
        )
        return JoinTables(join, shard, (left, right), ChangeBuffer((*join.left.columns, *join.right.columns)))

    def split_arrivals(self, port: int, table: pa.Table) -> tuple[KeyedRows, KeyedRows]:
        """The consolidated changes of a table, and those that can never match and are not stored."""
        self.shard.counters.rows[port] += table.num_rows
        side, state_table = self.join.ports[port], self.tables[port]
        if side.upsert_key:
            return state_table.upsert_changes(table, side.upsert_key), state_table.layout.empty_rows
        alive = side.can_match(table)
        if alive.all():
            return state_table.rows(table), state_table.layout.empty_rows
        dead = with_weights(state_table.layout, table.filter(pa.array(~alive)))
        return state_table.rows(table.filter(pa.array(alive))), dead

    def emit_dead(self, port: int, rows: KeyedRows) -> Iterator[pa.Table]:
        """The changes for rows of a port that can never match: padded at once, or none."""
        if len(rows) and self.join.tracks_matches[port]:
            yield from self.emit_unmatched(
                port, rows, rows.weights * self.join.output_flags(np.zeros(len(rows), np.int64))
            )

    def emit_unmatched(self, port: int, rows: KeyedRows, weights: Ints) -> Iterator[pa.Table]:
        """Rows of a port without a match, with these weights."""
        table = self.join.pad_rows(port, rows, weights)
        if self.join.kind == "semi":
            self.shard.counters.matched += table.num_rows
        else:
            self.shard.counters.padded[port] += table.num_rows
        yield from self.output.add(table)

    def emit_pairs(
        self, left: KeyedRows, right: KeyedRows, pairs: Pairs, left_sums: Ints, right_sums: Ints
    ) -> Iterator[pa.Table]:
        """The changes that pairs contribute; adds the weight of each match to the sums of both rows."""
        if self.join.tracks_matches[LEFT]:
            np.add.at(left_sums, pairs.probe, right.weights[pairs.build])
        if self.join.tracks_matches[RIGHT]:
            np.add.at(right_sums, pairs.build, left.weights[pairs.probe])
        if self.join.shows_pairs:
            self.shard.counters.matched += int(pairs.probe.size)
            yield from self.output.add(self.join.join_rows(left, right, pairs))

    def finish(self, changes: Sequence[KeyedRows]) -> Iterator[pa.Table | Emission]:
        """Store the changes; yields buffered output and the emission."""
        finality = self.join.finality_bounds(self.shard.watermarks_after.received)
        for table, rows, bound in zip(self.tables, changes, finality or (None, None), strict=True):
            table.spine.add(rows)
            table.spine.expire(bound)
        enforce_limit(self.tables, self.join.max_rows)
        yield from self.output.flush()
        yield self.shard.close({} if finality is None else {bound.time: bound.mark for bound in finality})


# One batch of a changelog join in one shard: split the changes, join them with the state, emit.


_T = TypeVar("_T")


def stream(
    join: TableJoinOperator, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
) -> Iterator[pa.Table | Emission]:
    """Process one batch of one shard: yield the changes of the result piece by piece, and the emission last."""
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
    """The stored changes that may match, and those that never can: the latter exist with upserts only."""
    if not join.ports[port].upsert_key:
        return rows, rows.slice(0, 0)
    alive = join.ports[port].can_match(rows.table)
    return rows.where(alive), rows.where(~alive)


def _join_changes(tables: JoinTables, new: Sequence[KeyedRows]) -> Iterator[pa.Table]:
    """The changes of the result, by ranges of codes."""
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
    """The changes of the result for these changes, which hold all codes of a range."""
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
    """A value of this port, with that of the other."""
    return (mine, both[RIGHT]) if port == LEFT else (both[LEFT], mine)


def _join_pairs(tables: JoinTables, both: Sequence[KeyedRows], sums: Sequence[Ints]) -> Iterator[pa.Table]:
    """The changes that the pairs of these rows contribute; adds the weight of each match to the sums of both rows."""
    (left, right), (left_sums, right_sums) = both, sums
    if not len(left) or not len(right):
        return
    if not tables.join.shows_pairs:
        left_sums += _match_weights(tables.join, LEFT, left, right)
        return
    for pairs in tables.join.find_matches(left, right, rows_per_piece(left, right)):
        yield from tables.emit_pairs(left, right, pairs, left_sums, right_sums)


def _update_unmatched(tables: JoinTables, port: int, rows: KeyedRows, shifts: Ints) -> Iterator[pa.Table]:
    """The changes for stored rows whose match sums change: some become unmatched, others stop being so."""
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
    side = tables.join.ports[port]
    for rows in tables.tables[port].find_parts(codes):
        yield rows.where(side.can_match(rows.table)) if side.upsert_key else rows


def _match_weights(join: TableJoinOperator, port: int, rows: KeyedRows, others: KeyedRows) -> Ints:
    """For each row of a port, the total weight of its matches among rows of the other."""
    if not len(others):
        return np.zeros(len(rows), np.int64)
    if join.condition is None and _has_exact_codes(join, port, rows, others):
        totals = np.concatenate([[0], np.cumsum(others.weights)])
        start, stop = (np.searchsorted(others.codes, rows.codes, edge) for edge in ("left", "right"))
        return totals[stop] - totals[start]
    sums = np.zeros(len(rows), np.int64)
    left, right = (rows, others) if port == LEFT else (others, rows)
    for pairs in join.find_matches(left, right, rows_per_piece(left, right)):
        mine, theirs = pairs if port == LEFT else (pairs.build, pairs.probe)
        np.add.at(sums, mine, others.weights[theirs])
    return sums


def _has_exact_codes(join: TableJoinOperator, port: int, rows: KeyedRows, others: KeyedRows) -> bool:
    """Whether equal codes mean equal keys among these rows: nearly always, as codes are 64-bit hashes."""
    if join.left.exact:
        return True
    mine, theirs = (
        [part.table.column(name) for name in join.ports[side].keys] for side, part in ((port, rows), (1 - port, others))
    )
    first = np.searchsorted(others.codes, rows.codes, "left")
    has_match = np.flatnonzero(first < np.searchsorted(others.codes, rows.codes, "right"))
    # For each of the others, the first row with its code.
    first_of_code = np.searchsorted(others.codes, others.codes, "left")
    return bool(
        null_safe_equal_at(mine, has_match, theirs, first[has_match]).all()
        and null_safe_equal_at(theirs, np.arange(len(others)), theirs, first_of_code).all()
    )


def _slice_codes(rows: KeyedRows, low: int, high: int) -> KeyedRows:
    return rows.slice(int(np.searchsorted(rows.codes, low, "left")), int(np.searchsorted(rows.codes, high, "right")))


# The changelog join: the join of two tables by equal keys, updated incrementally.
#
# Definition. A table is a bag of rows; its changes are rows with weights. A left row l and a right row r match when
# their keys are equal (NULL never is), neither is dead, and the rest of the condition is true. J(L, R) has the pair (l,
# r) L(l) * R(r) times, and every row of a preserved side padded, with its own weight, if the weights of the rows that
# match it add up to zero. A semi join has the left rows for which they do not, an anti join those for which they do. A
# batch emits J(L + dL, R + dR) - J(L, R). See `definition` for the same, slow and obvious.
#
# How the kernel avoids joining whole tables again:
#
# 1. The pairs are dL x (R + dR) and L x dR. So a change reads the rows it may match, and not its own side.
# 2. Whether a row is emitted unmatched depends on the sum of the weights it matches. For a new row, 1 gives that sum.
#    For a stored one, 1 gives the change of its sum; only where it is not zero, the kernel computes the sum before.
#
# The kernel is linear in the rows of a change's own side, so a row stored once with weight 2 equals one stored twice
# with weight 1.
#
# Invariant. Only rows of one code match, so a batch is processed by ranges of codes whose stored rows fit in memory;
# the rows of a single code that do not fit are read in parts.


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
        """Process one batch of one shard: yield the changes of the result piece by piece, and the emission last."""
        return stream(self, store, arrivals, watermarks)


def spine(identity: Identity, name: str) -> SpineSchema:
    """The rows of a side."""
    return SpineSchema(("left", "right").index(name), UNTIL_REPLACED, "weights")


STATE_SCHEMA = StateSchema(("merge", "block-nested"), spine)


CODE = "#code"
"""A hash by which the rows of a side are stored: of the upsert key, or of the whole row."""

SUMS = "sums"
"""The note of a row: the sum of the weights of its matches."""

_SUMS_NOTE: tuple[str, NoteKind] = (SUMS, "number")

PAIRS_AT_ONCE = 1_048_576


@dataclass(frozen=True)
class NestedLoopJoinOperator(TableJoinOperator):
    """A join of two tables by a condition only, ready to run. Its sides have no ``keys`` and no ``code``.

    >>> from watersmeet.operators.core.condition import Apply, ColumnRef
    >>> from watersmeet.operators.core.operator import Port
    >>> from watersmeet.tools.testing import MemoryStore
    >>> condition = Apply("<", (ColumnRef("a"), ColumnRef("b")))
    >>> join, store = NestedLoopJoinOperator("left", Port(("a",)), Port(("b",)), condition), MemoryStore()
    >>> join.step(store, {0: pa.table({"a": [1]})}, {}).rows[0].to_pylist()
    [{'a': 1, 'b': None, '#weight': 1}]
    >>> sorted(join.step(store, {1: pa.table({"b": [5]})}, {}).rows[0].column("#weight").to_pylist())
    [-1, 1]
    """

    name: ClassVar[str] = "block-nested"

    @cached_property
    def layouts(self) -> tuple[RowLayout, RowLayout]:
        """The layout of each side's state, with match sums where they are needed."""
        left, right = (
            table_layout((*state_columns(side), CODE), CODE, *([_SUMS_NOTE] if tracked else []))
            for side, tracked in zip(self.ports, self.tracks_matches, strict=True)
        )
        return left, right

    def stream(
        self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
    ) -> Iterator[pa.Table | Emission]:
        """The changes of the result as they come, and last the emission with the rest."""
        tables = JoinTables.of(self, store, watermarks)
        changes = [layout.empty_rows for layout in self.layouts]
        for port, table in arrivals.items():
            side = self.ports[port]
            # In canonical order, so that equal rows have equal codes whatever the order of the result is.
            hashed = sorted(side.upsert_key or state_columns(side), key=self.canonical_names.canonical)
            coded = table.append_column(CODE, pa.array(row_codes(table, hashed)))
            changes[port], dead = tables.split_arrivals(port, coded)
            yield from tables.emit_dead(port, dead)
        sums = [np.zeros(len(rows), np.int64) for rows in changes]
        yield from _compare_changes(self, tables, changes, sums)
        for port in (LEFT, RIGHT):
            if self.tracks_matches[port]:
                yield from tables.emit_unmatched(
                    port, changes[port], changes[port].weights * self.output_flags(sums[port])
                )
                changes[port] = changes[port].with_attributes(**{SUMS: sums[port]})
        yield from tables.finish(changes)

    def product(self, left: KeyedRows, right: KeyedRows) -> Iterator[Pairs]:
        """The matches among all pairs of these rows, some at a time."""
        width = max(1, min(len(right), PAIRS_AT_ONCE))
        height = max(1, PAIRS_AT_ONCE // width)
        for top in range(0, len(left), height):
            rows = np.arange(top, min(top + height, len(left)))
            for start in range(0, len(right), width):
                columns = np.arange(start, min(start + width, len(right)))
                pairs = Pairs(np.repeat(rows, columns.size), np.tile(columns, rows.size))
                pairs = verify_pairs(self.ports, self.condition, left, right, pairs)
                if pairs.probe.size:
                    yield pairs


def _compare_changes(
    join: NestedLoopJoinOperator, tables: JoinTables, changes: Sequence[KeyedRows], sums: Sequence[Ints]
) -> Iterator[pa.Table]:
    """The changes of the result: all changes, then the stored rows of each side with the changes of the other."""
    yield from _compare_pairs(join, tables, changes, sums)
    for port in (LEFT, RIGHT):
        spine = tables.tables[port].spine
        for block in spine.blocks if len(changes[1 - port]) else ():
            rows = spine.read(block)
            shifts = np.zeros(len(rows), np.int64)
            pair, added = [rows, rows], [shifts, shifts]
            pair[1 - port], added[1 - port] = changes[1 - port], sums[1 - port]
            yield from _compare_pairs(join, tables, pair, added)
            if SUMS in rows.attributes and shifts.any():
                before = rows.attributes[SUMS]
                yield from tables.emit_unmatched(
                    port, rows, rows.weights * (join.output_flags(before + shifts) - join.output_flags(before))
                )
                spine.annotate(block, SUMS, before + shifts)


def _compare_pairs(
    join: NestedLoopJoinOperator, tables: JoinTables, rows: Sequence[KeyedRows], sums: Sequence[Ints]
) -> Iterator[pa.Table]:
    """The changes that the pairs of these rows contribute; adds the weight of each match to the sums of both rows."""
    alive = [_live_positions(join, port, rows[port]) for port in (LEFT, RIGHT)]
    for piece in join.product(rows[LEFT].take(alive[LEFT]), rows[RIGHT].take(alive[RIGHT])):
        pairs = Pairs(alive[LEFT][piece.probe], alive[RIGHT][piece.build])
        yield from tables.emit_pairs(rows[LEFT], rows[RIGHT], pairs, sums[LEFT], sums[RIGHT])


def _live_positions(join: NestedLoopJoinOperator, port: int, rows: KeyedRows) -> Ints:
    """The positions of rows that may match; where a side has no upsert key, no others get here."""
    side = join.ports[port]
    return np.flatnonzero(side.can_match(rows.table)) if side.upsert_key else np.arange(len(rows))
