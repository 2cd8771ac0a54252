"""One batch of a lookup join in one shard: the table changes, rows that waited are shown, new rows are looked up.

Rows that wait are numbered in the order in which they were looked up, and the clock never goes back, so whatever is
forgotten, by age or because too many wait, are the rows that came first.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.changes import OP, POSITION, ROWS_PER_PIECE
from watersmeet.joins.core.matching import LOWEST, Bools, Ints, Pairs, stable_order, stretches
from watersmeet.joins.core.operator import LEFT, LOADED, NOW, Emission, StateOverflowError, StateStore, Watermarks
from watersmeet.joins.core.shard import Shard
from watersmeet.joins.core.two_sided import verify_pairs
from watersmeet.joins.state.budget import Budget
from watersmeet.joins.state.format import StateBlock
from watersmeet.joins.state.layout import KeyedRows
from watersmeet.joins.state.spine import ShardState, Spine
from watersmeet.joins.state.table import StateTable, chunk_codes

if TYPE_CHECKING:
    from watersmeet.joins.lookup.operator import LookupJoinOperator

WAITING = Budget()
"""Rows leave one by one, as their table rows come, and the oldest in between: runs of about one size become one."""

HELD = Budget(block=8_192, largest=8_192, chunk=ROWS_PER_PIECE)
"""Rows that are held back leave all at once: only short runs of them are worth merging."""

NUMBER, ARRIVED = "#number", "#arrived"
"""int64 columns: a row's place in the order of arrival, and the clock then; `LOWEST` before there was one."""

_FIRST = "first"
"""Among the numbers of the directory: the first clock there ever was."""


@dataclass(frozen=True)
class LookupState:
    """What a step works with: the shard, the table, the rows that wait for it, those held back until it is loaded."""

    join: LookupJoinOperator
    shard: Shard
    table: StateTable
    waiting: Spine
    held: Spine

    @staticmethod
    def of(join: LookupJoinOperator, store: StateStore, watermarks: Watermarks) -> LookupState:
        """What there is in a shard."""
        shard = Shard(join, store, watermarks)
        table = StateTable.of(shard.state, "table", join.table_layout, join.budget)
        waiting = shard.state.spine("waiting", join.wait_layout, WAITING)
        return LookupState(join, shard, table, waiting, shard.state.spine("held", join.hold_layout, HELD))

    @property
    def row_counts(self) -> tuple[int, int]:
        """How many rows of each port are kept."""
        streamed, stored = len(self.waiting) + len(self.held), len(self.table)
        return (streamed, stored) if self.join.stream_port == LEFT else (stored, streamed)


def stream(
    join: LookupJoinOperator, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
) -> Iterator[pa.Table | Emission]:
    """Process one batch of one shard: joined rows as they come, last the emission with the rest."""
    step = LookupState.of(join, store, watermarks)
    shard, held = step.shard, step.held
    clock, first = _clocks(shard, watermarks.get(NOW, int(LOWEST)))
    if join.retention is not None and first < clock - join.retention:
        _drop_before(step.waiting, clock - join.retention)
    gained = _apply_changes(step, arrivals[join.table]) if join.table in arrivals else np.zeros(0, np.int64)
    yield from _reemit_matches(step, gained)
    is_loaded = not join.load_first or shard.after.received.get(LOADED, 0) > 0
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
    """Forget all rows that wait."""
    state = ShardState(store, join.canonical_names)
    waiting = state.spine("waiting", join.wait_layout, WAITING)
    for block in waiting.blocks:
        waiting.drop(block)
    state.save()


def _clocks(shard: Shard, now: int) -> tuple[int, int]:
    """The clock, which never goes back, and the first there was; `LOWEST` as long as there is none."""
    directory = shard.state.directory
    clock = max(now, directory.active.get(NOW, now))
    if clock > LOWEST:
        shard.active = {**shard.active, NOW: clock}
    return clock, directory.numbers.get(_FIRST, clock)


def _apply_changes(step: LookupState, table: pa.Table) -> Ints:
    """Apply the changes of the table; gives the codes of the rows that it gained."""
    side = step.join.sides[step.join.table]
    step.shard.counters.rows[step.join.table] += table.num_rows
    alive = side.can_match(table)
    if side.upsert_key:
        # A row that can never match takes away the one that it replaces, and need not be stored.
        op = pa.array(np.where(alive & (table.column(OP).to_numpy() > 0), 1, -1).astype(np.int8))
        table = table.set_column(table.column_names.index(OP), OP, op)
        changes = step.table.upsert_changes(table, side.upsert_key)
    else:
        changes = step.table.rows(table.filter(pa.array(alive)))
    step.table.spine.add(changes)
    return np.unique(changes.codes[changes.weights > 0])


def _reemit_matches(step: LookupState, codes: Ints) -> Iterator[pa.Table]:
    """Show the rows that wait and now meet something, for which the table gained rows of these codes."""
    for block, positions in _find_waiting(step.waiting, codes):
        matched = yield from _find_matches(step, step.waiting.read(block).take(positions))
        removed = np.zeros(block.rows, np.bool_)
        removed[positions] = matched
        step.waiting.remove(block, removed)


def _sort_by_position(table: pa.Table) -> pa.Table:
    """Rows in the order of delivery."""
    if POSITION not in table.column_names:
        return table
    return table.take(pa.array(np.argsort(table.column(POSITION).to_numpy(), kind="stable")))


def _look_up(step: LookupState, table: pa.Table, clock: int) -> Iterator[pa.Table]:
    """Look up stream rows, in the order of arrival; what meets nothing is padded, and may wait."""
    join = step.join
    alive = join.stream_side.can_match(table)
    clocks = pa.array(np.full(table.num_rows, clock))
    rows = join.wait_layout.rows(_add_numbers(step.waiting, table).append_column(ARRIVED, clocks))
    probes = np.flatnonzero(alive)
    probes = probes[stable_order(rows.codes[probes])]
    matched = np.zeros(len(rows), np.bool_)
    matched[probes] = yield from _find_matches(step, rows.take(probes))
    if join.is_outer and not matched.all():
        unmatched = rows.where(~matched)
        step.shard.counters.padded[join.stream_port] += len(unmatched)
        yield _join_rows(join, unmatched, None)
    if join.can_reemit:
        step.waiting.add(rows.where(alive & ~matched))


def _find_matches(step: LookupState, rows: KeyedRows) -> Generator[pa.Table, None, Bools]:
    """What the table has for rows in the order of their codes; returns which of them meet something."""
    matched = np.zeros(len(rows), np.bool_)
    codes = np.unique(rows.codes)
    for stretch in chunk_codes(codes, step.table.counts(codes), step.join.budget.chunk):
        first, last = int(stretch[0]), int(stretch[-1])
        start = int(np.searchsorted(rows.codes, first, "left"))
        probe_codes = rows.codes[start : int(np.searchsorted(rows.codes, last, "right"))]
        zeros = np.zeros(probe_codes.size, np.int64)
        for table_rows in step.table.find_parts(stretch):
            times = np.zeros(len(table_rows), np.int64)
            for piece in stretches(table_rows.codes, times, probe_codes, zeros, zeros).pieces(ROWS_PER_PIECE):
                pairs = _filter_pairs(step.join, rows, table_rows, Pairs(piece.probe + start, piece.build))
                if pairs.probe.size:
                    matched[pairs.probe] = True
                    step.shard.counters.matched += int(pairs.probe.size)
                    yield _join_rows(step.join, rows.take(pairs.probe), table_rows.take(pairs.build))
    return matched


def _filter_pairs(join: LookupJoinOperator, rows: KeyedRows, table_rows: KeyedRows, pairs: Pairs) -> Pairs:
    """The pairs whose keys are equal and for which the condition holds, each as often as the table has its row."""
    pairs = verify_pairs((join.stream_side, join.sides[join.table]), join.condition, rows, table_rows, pairs)
    counts = np.maximum(table_rows.weights[pairs.build], 0)
    return pairs if (counts == 1).all() else Pairs(np.repeat(pairs.probe, counts), np.repeat(pairs.build, counts))


def _join_rows(join: LookupJoinOperator, rows: KeyedRows, table_rows: KeyedRows | None) -> pa.Table:
    """Rows of the result: stream rows, each beside a table row or alone."""
    shown = join.sides[join.table].columns
    mine = rows.table.select(list(join.stream_side.columns)).columns
    theirs = [pa.nulls(len(rows))] * len(shown) if table_rows is None else table_rows.table.select(list(shown)).columns
    left, right = (mine, theirs) if join.stream_port == LEFT else (theirs, mine)
    return pa.Table.from_arrays([*left, *right], names=[*join.left.columns, *join.right.columns])


def _enforce_limits(step: LookupState) -> None:
    """Keep no more rows than the shard may: rows that wait are forgotten, the table is not."""
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
    """Rows in the order of arrival with their numbers, which follow those of the spine."""
    first = 1 + max((block.highest[NUMBER] for block in spine.blocks), default=0)
    return table.append_column(NUMBER, pa.array(np.arange(first, first + table.num_rows)))


def _find_waiting(spine: Spine, codes: Ints) -> Iterator[tuple[StateBlock, Ints]]:
    """The rows that wait for these codes (sorted, each once): blocks, and positions in each."""
    for block in spine.blocks:
        first = np.searchsorted(codes, block.lowest_code, "left")
        if first == np.searchsorted(codes, block.highest_code, "right"):
            continue
        stored = spine.read(block).codes
        nearest = np.minimum(np.searchsorted(codes, stored), codes.size - 1)
        positions = np.flatnonzero((codes[nearest] == stored) & spine.live_mask(block))
        if positions.size:
            yield block, positions


def _drop_before(spine: Spine, limit: int, column: str = ARRIVED) -> None:
    """Forget the rows that came before that clock, or number."""
    for block in spine.blocks:
        if block.highest[column] < limit:
            spine.drop(block)
        elif block.lowest[column] < limit:
            spine.remove(block, spine.read(block).times[column] < limit)


def _drop_oldest(spine: Spine, rows: int) -> None:
    """Forget so many rows, at least one, the first to have come."""
    numbers = np.zeros(0, np.int64)
    for block in sorted(spine.blocks, key=lambda block: block.lowest[NUMBER]):
        if np.count_nonzero(numbers < block.lowest[NUMBER]) >= rows:
            break
        numbers = np.concatenate([numbers, spine.read(block).times[NUMBER][spine.live_mask(block)]])
    _drop_before(spine, int(np.partition(numbers, rows - 1)[rows - 1]) + 1, NUMBER)
