"""The lookup join: joins each row of a stream with the rows that a table has for its key at that moment.

Definition. One port is a stream, the other a table, which changes. A stream row matches every row that the table has
when the stream row is processed, if their keys are equal (NULL never is), both fulfil their own predicates and the rest
of the condition is true; a table row of weight n counts n times, one of weight 0 or less not at all. The event times of
the rows do not matter, and a stream row is never late.

A batch is one instant of a shard:

1. The changes of the table are applied: those of a batch come before its stream rows, whatever their order.
2. Rows that *wait* (see 5) and now have matches are emitted with all of them and stop waiting.
3. With ``load_first``, and until the watermark `LOADED` arrives, new stream rows are held back, in order of arrival.
   The batch that brings it looks up all of them, as if they arrived with it.
4. The new stream rows are looked up, each once. One without a match is emitted padded if the join preserves the
   stream. A SEMI JOIN emits each row with a match once instead of its pairs, an ANTI JOIN each row without one.
5. With ``late_table="reemit"`` a padded row waits, unless it can never match (NULL key, own predicate not true): for
   at most ``retention`` by the wall clock, inclusive, and as one of at most ``waiting`` rows; the oldest rows are
   dropped first. Rows that arrived before there was a clock count as having arrived with the first one. A row that has
   matched is never looked up again. Where a state continues with another ``late_table``, waiting rows are dropped, or
   rows wait that arrive from then on.

In an INNER, SEMI or ANTI JOIN no row waits. The watermarks of the result are those of the stream, held back by
held-back rows; waiting rows do not hold them back, so a re-emitted row may be late for a join further on.

See `definition` for the same, one row at a time.

`STATE_SCHEMA` describes what a state holds: the table, and stream rows that wait or are held back.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.changes import OP, POSITION, ROWS_PER_PIECE
from watersmeet.operators.core.condition import Condition
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import LOWEST, Bools, Ints, Pairs, stable_order, stretches
from watersmeet.operators.core.operator import (
    LEFT,
    LOADED,
    NOW,
    RIGHT,
    Emission,
    Port,
    StateOverflowError,
    StateStore,
    Watermarks,
)
from watersmeet.operators.state.format import StateBlock
from watersmeet.operators.state.layout import Budget, KeyedRows, RowLayout, rows_per_piece
from watersmeet.operators.state.shard import LEFT_ONLY, Shard, TwoSided, verify_pairs
from watersmeet.operators.state.spine import ShardState, Spine
from watersmeet.operators.state.state_schema import UNTIL_REPLACED, ShardInspector, SpineSchema, StateSchema
from watersmeet.operators.state.table import BUDGET, StateTable, chunk_codes, table_layout

LookupKind = Literal["inner", "left", "right", "semi", "anti"]
"""The treatment of a stream row without a match. ``inner``: it is dropped. ``left``, ``right``, for the stream's side:
it is emitted padded. ``semi`` emits each row that has a match once, ``anti`` each row that has none, and neither shows
columns of the table; the stream is on their left.
"""

LateTable = Literal["reemit", "ignore"]
"""Whether a padded stream row is emitted again once its table row arrives."""


@dataclass(frozen=True)
class LookupJoinOperator(TwoSided):
    """A lookup join, ready to run.

    - ``left``, ``right``: the ports of the sides; only the stream's ``times`` matter, and no row is late
    - ``table``: the port of the table. The keys of the join follow from its ``upsert_key``, if it has one, so that the
      old and the new row of a primary key reach the same shard
    - ``condition``: the condition besides equal keys
    - ``late_table``, ``retention`` (microseconds of wall clock), ``waiting`` (rows): see the module; None: no limit
    - ``load_first``: stream rows are held back until `LOADED` arrives
    - ``max_rows``, ``overflow``: the limit on stored rows of table and stream; only waiting rows are ever dropped

    The rows of a port were delivered in the order of ``#position`` or, without that column, in the order they have.

    >>> from watersmeet.tools.testing import MemoryStore
    >>> orders, customers = (Port((f"{s}.k", f"{s}.v"), (), (f"{s}.k",), f"{s}.k", exact=True) for s in "oc")
    >>> join, store = LookupJoinOperator("left", orders, customers), MemoryStore()
    >>> [table] = join.step(store, {0: pa.table({"o.k": [7], "o.v": ["Keyboard"]})}, {}).rows
    >>> table.to_pylist()
    [{'o.k': 7, 'o.v': 'Keyboard', 'c.k': None, 'c.v': None}]
    >>> [table] = join.step(store, {1: pa.table({"c.k": [7], "c.v": ["John"], "#weight": [1]})}, {}).rows
    >>> table.to_pylist()
    [{'o.k': 7, 'o.v': 'Keyboard', 'c.k': 7, 'c.v': 'John'}]
    """

    name: ClassVar[str] = "lookup"

    kind: LookupKind
    table: int = RIGHT
    condition: Condition | None = None
    late_table: LateTable = "reemit"
    retention: int | None = None
    waiting: int | None = None
    load_first: bool = False
    budget: Budget = BUDGET

    def __post_init__(self) -> None:
        if self.kind not in ("inner", *(("left", "semi", "anti"), ("right",))[self.stream_port]):
            raise ValueError(f"a {self.kind} join would preserve the table, which the other side looks up")

    @property
    def stream_port(self) -> int:
        """The port of the stream."""
        return 1 - self.table

    @property
    def stream_side(self) -> Port:
        """The port of the stream."""
        return self.ports[self.stream_port]

    def stream(
        self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
    ) -> Iterator[pa.Table | Emission]:
        """Process one batch of one shard (see the module's definition)."""
        return stream(self, store, arrivals, watermarks)

    def take_over(self, store: StateStore, was: Identity) -> None:
        """Continue with the state of a join with another ``late_table``: with ``ignore``, drop the waiting rows."""
        if not self.can_reemit:
            clear_waiting(self, store)

    @property
    def ports_to_preload(self) -> tuple[int, ...]:
        """The table, if stream rows are held back until it is caught up."""
        return (self.table,) if self.load_first else ()

    @property
    def ports_in_arrival_order(self) -> frozenset[int]:
        """A table of upserts; and the stream, if rows that wait are dropped, the first ones first."""
        is_limited = self.can_reemit and (self.waiting is not None or self.max_rows is not None)
        return super().ports_in_arrival_order.union((self.stream_port,) if is_limited else ())

    @property
    def arrival_rule(self) -> str:
        """The reason why the order of arrivals matters."""
        return "a row is looked up in the table as it is when the row arrives"

    @property
    def watermark_dependencies(self) -> tuple[str, ...]:
        """None: what times rows have does not matter."""
        return ()

    @property
    def is_outer(self) -> bool:
        """Whether stream rows without a match are emitted padded."""
        return self.kind in ("left", "right")

    @property
    def can_reemit(self) -> bool:
        """Whether padded rows wait for their table row."""
        return self.is_outer and self.late_table == "reemit"

    @property
    def needs_clock(self) -> bool:
        """Whether the wall clock matters: it ends the wait of rows, and detects idle sources."""
        return bool(self.idle) or (self.can_reemit and self.retention is not None)

    @property
    def identity(self) -> Identity:
        """The part of the join that determines the meaning of its state; held-back rows do not."""
        names = self.canonical_names
        return self.make_identity(
            (side.input_columns for side in self.ports),
            kind=self.kind,
            table=self.table,
            late_table=self.late_table,
            condition=names.condition(self.condition),
        )

    def for_shards(self, shards: int) -> Self:
        """The join as it runs in each of several shards: each gets its share of the limits."""
        waiting = None if self.waiting is None else -(-self.waiting // shards)
        return replace(super().for_shards(shards), waiting=waiting)

    @cached_property
    def table_layout(self) -> RowLayout:
        """The layout of a table row: the columns of result, match and condition, and its primary key."""
        side = self.ports[self.table]
        return table_layout((*side.input_columns, *side.upsert_key), side.code)

    @cached_property
    def wait_layout(self) -> RowLayout:
        """The layout of a waiting stream row, by code."""
        side = self.stream_side
        return RowLayout((*side.input_columns, NUMBER, ARRIVED), (NUMBER, ARRIVED), NUMBER, side.code)

    @cached_property
    def hold_layout(self) -> RowLayout:
        """The layout of a held-back stream row, in order of arrival."""
        side = self.stream_side
        dead = () if side.dead is None else (side.dead,)
        columns = tuple(dict.fromkeys((*side.input_columns, *side.keys, *side.times, *dead)))
        return RowLayout((*columns, NUMBER), (NUMBER, *side.times), code=NUMBER)


# One batch of a lookup join in one shard: apply the table's changes, re-emit waiting rows, look up new rows.
#
# Waiting rows are numbered in the order in which they were looked up, and the clock never goes back, so the rows that
# are dropped, by age or by count, are always the oldest.


WAITING = Budget()
"""Rows leave one by one, as their table rows arrive, with the oldest dropped in between: runs of similar size merge."""

HELD = Budget(block=8_192, largest=8_192, chunk=ROWS_PER_PIECE)
"""Held-back rows leave all at once: only short runs are worth merging."""

NUMBER, ARRIVED = "#number", "#arrived"
"""int64 columns: a row's place in the order of arrival, and the clock then; `LOWEST` before there was one."""

_FIRST = "first"
"""A number of the directory: the clock of the first batch that had one."""


@dataclass(frozen=True)
class LookupState:
    """The state of a step: the shard, the table, the waiting rows, and those held back until the table is loaded."""

    join: LookupJoinOperator
    shard: Shard
    table: StateTable
    waiting: Spine
    held: Spine

    @staticmethod
    def of(join: LookupJoinOperator, store: StateStore, watermarks: Watermarks) -> LookupState:
        """Open the state of a shard."""
        shard = Shard(join, store, watermarks)
        table = StateTable.of(shard.state, "table", join.table_layout, join.budget)
        waiting = shard.state.spine("waiting", join.wait_layout, WAITING)
        return LookupState(join, shard, table, waiting, shard.state.spine("held", join.hold_layout, HELD))

    @property
    def row_counts(self) -> tuple[int, int]:
        """The stored rows of each port."""
        streamed, stored = len(self.waiting) + len(self.held), len(self.table)
        return (streamed, stored) if self.join.stream_port == LEFT else (stored, streamed)


def stream(
    join: LookupJoinOperator, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
) -> Iterator[pa.Table | Emission]:
    """Process one batch of one shard: yield joined rows piece by piece, and the emission last."""
    step = LookupState.of(join, store, watermarks)
    shard, held = step.shard, step.held
    clock, first = _clocks(shard, watermarks.get(NOW, int(LOWEST)))
    if join.retention is not None and first < clock - join.retention:
        _drop_before(step.waiting, clock - join.retention)
    gained = _apply_changes(step, arrivals[join.table]) if join.table in arrivals else np.zeros(0, np.int64)
    yield from _reemit_matches(step, gained)
    is_loaded = not join.load_first or shard.watermarks_after.received.get(LOADED, 0) > 0
    if is_loaded:
        for rows in held.merge_runs():
            yield from _look_up(step, pa.Table.from_batches([rows.table]).drop_columns([NUMBER]), clock)
        for block in held.blocks:
            held.drop(block)
    if join.stream_port in arrivals:
        table = _sort_by_position(arrivals[join.stream_port])
        shard.counters.rows[join.stream_port] += table.num_rows
        if is_loaded:
            yield from _look_up(step, table, clock)
        else:
            held.add(join.hold_layout.rows(_add_numbers(held, table)))
    _enforce_limits(step)
    numbers = {} if first == LOWEST else {_FIRST: first}
    yield shard.close(
        shard.hold_back_watermarks(join.stream_side.times, held), state_rows=step.row_counts, numbers=numbers
    )


def clear_waiting(join: LookupJoinOperator, store: StateStore) -> None:
    """Drop all waiting rows."""
    state = ShardState(store, join.canonical_names)
    waiting = state.spine("waiting", join.wait_layout, WAITING)
    for block in waiting.blocks:
        waiting.drop(block)
    state.save()


def _clocks(shard: Shard, now: int) -> tuple[int, int]:
    """The clock, which never goes back, and the first clock; `LOWEST` before the first."""
    directory = shard.state.directory
    clock = max(now, directory.active.get(NOW, now))
    if clock > LOWEST:
        shard.active = {**shard.active, NOW: clock}
    return clock, directory.numbers.get(_FIRST, clock)


def _apply_changes(step: LookupState, table: pa.Table) -> Ints:
    """Apply the changes of the table; returns the codes of the rows that it gained."""
    side = step.join.ports[step.join.table]
    step.shard.counters.rows[step.join.table] += table.num_rows
    alive = side.can_match(table)
    if side.upsert_key:
        # A row that can never match deletes the row it replaces, and is not stored.
        op = pa.array(np.where(alive & (table.column(OP).to_numpy() > 0), 1, -1).astype(np.int8))
        table = table.set_column(table.column_names.index(OP), OP, op)
        changes = step.table.upsert_changes(table, side.upsert_key)
    else:
        changes = step.table.rows(table.filter(pa.array(alive)))
    step.table.spine.add(changes)
    return np.unique(changes.codes[changes.weights > 0])


def _reemit_matches(step: LookupState, codes: Ints) -> Iterator[pa.Table]:
    """Emit the waiting rows that match, after the table gained rows of these codes; they stop waiting."""
    for block, positions in _find_waiting(step.waiting, codes):
        matched = yield from _find_matches(step, step.waiting.select(block, positions))
        removed = np.zeros(block.rows, np.bool_)
        removed[positions] = matched
        step.waiting.remove(block, removed)


def _sort_by_position(table: pa.Table) -> pa.Table:
    """Rows in the order of delivery."""
    if POSITION not in table.column_names:
        return table
    return table.take(pa.array(np.argsort(table.column(POSITION).to_numpy(), kind="stable")))


def _look_up(step: LookupState, table: pa.Table, clock: int) -> Iterator[pa.Table]:
    """Look up stream rows, in order of arrival; unmatched ones are padded, and may wait."""
    join = step.join
    alive = join.stream_side.can_match(table)
    clocks = pa.array(np.full(table.num_rows, clock))
    rows = join.wait_layout.rows(_add_numbers(step.waiting, table).append_column(ARRIVED, clocks))
    probes = np.flatnonzero(alive)
    probes = probes[stable_order(rows.codes[probes])]
    matched = np.zeros(len(rows), np.bool_)
    matched[probes] = yield from _find_matches(step, rows.take(probes))
    is_shown = matched if join.kind == "semi" else ~matched
    if join.kind != "inner" and is_shown.any():
        if join.is_outer or join.kind == "anti":
            step.shard.counters.padded[join.stream_port] += int(np.count_nonzero(is_shown))
        yield _join_rows(join, rows.where(is_shown), None)
    if join.can_reemit:
        step.waiting.add(rows.where(alive & ~matched))


def _find_matches(step: LookupState, rows: KeyedRows) -> Generator[pa.Table, None, Bools]:
    """Yield the matches of rows sorted by code; returns which rows have one."""
    matched = np.zeros(len(rows), np.bool_)
    codes = np.unique(rows.codes)
    for stretch in chunk_codes(codes, step.table.counts(codes), step.join.budget.chunk):
        first, last = int(stretch[0]), int(stretch[-1])
        start = int(np.searchsorted(rows.codes, first, "left"))
        probe_codes = rows.codes[start : int(np.searchsorted(rows.codes, last, "right"))]
        zeros = np.zeros(probe_codes.size, np.int64)
        for table_rows in step.table.find_parts(stretch):
            times = np.zeros(len(table_rows), np.int64)
            size = rows_per_piece(rows, table_rows)
            for piece in stretches(table_rows.codes, times, probe_codes, zeros, zeros).pieces(size):
                pairs = _filter_pairs(step.join, rows, table_rows, Pairs(piece.probe + start, piece.build))
                if pairs.probe.size:
                    matched[pairs.probe] = True
                    step.shard.counters.matched += int(pairs.probe.size)
                    if step.join.kind not in LEFT_ONLY:
                        yield _join_rows(step.join, rows.take(pairs.probe), table_rows.take(pairs.build))
    return matched


def _filter_pairs(join: LookupJoinOperator, rows: KeyedRows, table_rows: KeyedRows, pairs: Pairs) -> Pairs:
    """The pairs with equal keys for which the condition holds, each repeated by the weight of its table row."""
    pairs = verify_pairs((join.stream_side, join.ports[join.table]), join.condition, rows, table_rows, pairs)
    counts = np.maximum(table_rows.weights[pairs.build], 0)
    return pairs if (counts == 1).all() else Pairs(np.repeat(pairs.probe, counts), np.repeat(pairs.build, counts))


def _join_rows(join: LookupJoinOperator, rows: KeyedRows, table_rows: KeyedRows | None) -> pa.Table:
    """Rows of the result: stream rows with their table rows, or padded."""
    shown = join.ports[join.table].columns
    mine = rows.table.select(list(join.stream_side.columns)).columns
    theirs = [pa.nulls(len(rows))] * len(shown) if table_rows is None else table_rows.table.select(list(shown)).columns
    left, right = (mine, theirs) if join.stream_port == LEFT else (theirs, mine)
    return pa.Table.from_arrays([*left, *right], names=[*join.left.columns, *join.right.columns])


def _enforce_limits(step: LookupState) -> None:
    """Enforce the limits: waiting rows are dropped, table rows never."""
    limit, most = step.join.max_rows, step.join.waiting
    if most is not None:
        _drop_overflow(step, len(step.waiting) - most)
    if limit is None or sum(step.row_counts) <= limit:
        return
    step.table.spine.compact()
    _drop_overflow(step, min(len(step.waiting), step.shard.excess(step.row_counts)))
    if sum(step.row_counts) > limit:
        raise StateOverflowError(step.row_counts, limit)


def _drop_overflow(step: LookupState, rows: int) -> None:
    if rows > 0:
        _drop_oldest(step.waiting, rows)
        step.shard.counters.dropped[step.join.stream_port] += rows


def _add_numbers(spine: Spine, table: pa.Table) -> pa.Table:
    """Rows in order of arrival with their numbers, which continue those of the spine."""
    first = 1 + max((block.highest[NUMBER] for block in spine.blocks), default=0)
    return table.append_column(NUMBER, pa.array(np.arange(first, first + table.num_rows)))


def _find_waiting(spine: Spine, codes: Ints) -> Iterator[tuple[StateBlock, Ints]]:
    """The rows that wait for these codes (sorted, distinct): blocks, and positions in each."""
    for block in spine.blocks:
        first = np.searchsorted(codes, block.lowest_code, "left")
        if first == np.searchsorted(codes, block.highest_code, "right"):
            continue
        stored = spine.index(block).codes
        nearest = np.minimum(np.searchsorted(codes, stored), codes.size - 1)
        positions = np.flatnonzero((codes[nearest] == stored) & spine.live_mask(block))
        if positions.size:
            yield block, positions


def _drop_before(spine: Spine, limit: int, column: str = ARRIVED) -> None:
    """Drop the rows that arrived before that clock, or number."""
    for block in spine.blocks:
        if block.highest[column] < limit:
            spine.drop(block)
        elif block.lowest[column] < limit:
            spine.remove(block, spine.index(block).times[column] < limit)


def _drop_oldest(spine: Spine, rows: int) -> None:
    """Drop this many of the oldest rows, at least one."""
    numbers = np.zeros(0, np.int64)
    for block in sorted(spine.blocks, key=lambda block: block.lowest[NUMBER]):
        if np.count_nonzero(numbers < block.lowest[NUMBER]) >= rows:
            break
        numbers = np.concatenate([numbers, spine.index(block).times[NUMBER][spine.live_mask(block)]])
    _drop_before(spine, int(np.partition(numbers, rows - 1)[rows - 1]) + 1, NUMBER)


def spine(identity: Identity, name: str) -> SpineSchema:
    """The rows of the table, or of the stream."""
    table = int(identity["table"])
    if name == "table":
        return SpineSchema(table, UNTIL_REPLACED, "weights")
    if name == "held":
        return SpineSchema(1 - table, "until the table is loaded")
    return SpineSchema(1 - table, "until a table row arrives, or a limit on time or rows is reached")


def numbers(identity: Identity, parts: Sequence[Mapping[str, Any]], look: ShardInspector) -> Mapping[str, Any]:
    """The first clock of all."""
    clocks = [part["first"] for part in parts if "first" in part]
    return {"first": min(clocks)} if clocks else {}


STATE_SCHEMA = StateSchema(("lookup",), spine, numbers=numbers)
