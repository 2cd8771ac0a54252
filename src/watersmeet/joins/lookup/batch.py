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
from watersmeet.joins.core.operator import LEFT, LOADED, NOW, Emission, Marks, StateOverflowError, Store
from watersmeet.joins.core.shard import Shard
from watersmeet.joins.core.two_sided import verified
from watersmeet.joins.state.budget import Budget
from watersmeet.joins.state.format import Block
from watersmeet.joins.state.layout import Rows
from watersmeet.joins.state.spine import Spine, State
from watersmeet.joins.state.table import Table, chunked

if TYPE_CHECKING:
    from watersmeet.joins.lookup.operator import LookupJoin

WAITING = Budget()
"""Rows leave one by one, as their table rows come, and the oldest in between: runs of about one size become one."""

HELD = Budget(block=8_192, largest=8_192, chunk=ROWS_PER_PIECE)
"""Rows that are held back leave all at once: only short runs of them are worth merging."""

NUMBER, ARRIVED = "#number", "#arrived"
"""int64 columns: a row's place in the order of arrival, and the clock then; `LOWEST` before there was one."""

_FIRST = "first"
"""Among the numbers of the directory: the first clock there ever was."""


@dataclass(frozen=True)
class Lookup:
    """What a step works with: the shard, the table, the rows that wait for it, those held back until it is loaded."""

    join: LookupJoin
    shard: Shard
    table: Table
    waiting: Spine
    held: Spine

    @staticmethod
    def of(join: LookupJoin, store: Store, marks: Marks) -> Lookup:
        """What there is in a shard."""
        shard = Shard(join, store, marks)
        table = Table.of(shard.state, "table", join.table_layout, join.budget)
        waiting = shard.state.spine("waiting", join.waiting_layout, WAITING)
        return Lookup(join, shard, table, waiting, shard.state.spine("held", join.held_layout, HELD))

    @property
    def kept(self) -> tuple[int, int]:
        """How many rows of each port are kept."""
        streamed, stored = len(self.waiting) + len(self.held), len(self.table)
        return (streamed, stored) if self.join.stream_port == LEFT else (stored, streamed)


def stream(
    join: LookupJoin, store: Store, arrivals: Mapping[int, pa.Table], marks: Marks
) -> Iterator[pa.Table | Emission]:
    """Process one batch of one shard: joined rows as they come, last the emission with the rest."""
    step = Lookup.of(join, store, marks)
    shard, held = step.shard, step.held
    clock, first = _clocks(shard, marks.get(NOW, int(LOWEST)))
    if join.retention is not None and first < clock - join.retention:
        _forget_before(step.waiting, clock - join.retention)
    gained = _changed(step, arrivals[join.table]) if join.table in arrivals else np.zeros(0, np.int64)
    yield from _show_again(step, gained)
    is_loaded = not join.load_first or shard.after.received.get(LOADED, 0) > 0
    if is_loaded:
        for rows in held.merged():
            yield from _answered(step, pa.Table.from_batches([rows.table]).drop_columns([NUMBER]), clock)
        for block in held.blocks:
            held.drop(block)
    if join.stream_port in arrivals:
        table = _in_order(arrivals[join.stream_port])
        shard.tally.rows[join.stream_port] += table.num_rows
        if is_loaded:
            yield from _answered(step, table, clock)
        else:
            held.add(join.held_layout.rows(_numbered(held, table)))
    _limit(step)
    numbers = {} if first == LOWEST else {_FIRST: first}
    yield shard.close(shard.held_back(join.stream_side.times, held), kept=step.kept, numbers=numbers)


def forget_waiting(join: LookupJoin, store: Store) -> None:
    """Forget all rows that wait."""
    state = State(store, join.canonical)
    waiting = state.spine("waiting", join.waiting_layout, WAITING)
    for block in waiting.blocks:
        waiting.drop(block)
    state.save()


def _clocks(shard: Shard, now: int) -> tuple[int, int]:
    """The clock, which never goes back, and the first there was; `LOWEST` as long as there is none."""
    known = shard.state.directory
    clock = max(now, known.active.get(NOW, now))
    if clock > LOWEST:
        shard.active = {**shard.active, NOW: clock}
    return clock, known.numbers.get(_FIRST, clock)


def _changed(step: Lookup, table: pa.Table) -> Ints:
    """Apply the changes of the table; gives the codes of the rows that it gained."""
    side = step.join.sides[step.join.table]
    step.shard.tally.rows[step.join.table] += table.num_rows
    alive = side.alive(table)
    if side.upsert_key:
        # A row that can never match takes away the one that it replaces, and need not be stored.
        op = pa.array(np.where(alive & (table.column(OP).to_numpy() > 0), 1, -1).astype(np.int8))
        table = table.set_column(table.column_names.index(OP), OP, op)
        changes = step.table.upserted(table, side.upsert_key)
    else:
        changes = step.table.rows(table.filter(pa.array(alive)))
    step.table.spine.add(changes)
    return np.unique(changes.codes[changes.weights > 0])


def _show_again(step: Lookup, codes: Ints) -> Iterator[pa.Table]:
    """Show the rows that wait and now meet something, for which the table gained rows of these codes."""
    for block, positions in _waiting_for(step.waiting, codes):
        met = yield from _meet(step, step.waiting.read(block).take(positions))
        leaving = np.zeros(block.rows, np.bool_)
        leaving[positions] = met
        step.waiting.remove(block, leaving)


def _in_order(table: pa.Table) -> pa.Table:
    """Rows in the order of delivery."""
    if POSITION not in table.column_names:
        return table
    return table.take(pa.array(np.argsort(table.column(POSITION).to_numpy(), kind="stable")))


def _answered(step: Lookup, table: pa.Table, clock: int) -> Iterator[pa.Table]:
    """Look up stream rows, in the order of arrival; what meets nothing is padded, and may wait."""
    join = step.join
    alive = join.stream_side.alive(table)
    clocks = pa.array(np.full(table.num_rows, clock))
    rows = join.waiting_layout.rows(_numbered(step.waiting, table).append_column(ARRIVED, clocks))
    asking = np.flatnonzero(alive)
    asking = asking[stable_order(rows.codes[asking])]
    met = np.zeros(len(rows), np.bool_)
    met[asking] = yield from _meet(step, rows.take(asking))
    if join.preserves and not met.all():
        alone = rows.where(~met)
        step.shard.tally.padded[join.stream_port] += len(alone)
        yield _joined(join, alone, None)
    if join.reemits:
        step.waiting.add(rows.where(alive & ~met))


def _meet(step: Lookup, rows: Rows) -> Generator[pa.Table, None, Bools]:
    """What the table has for rows in the order of their codes; returns which of them meet something."""
    met = np.zeros(len(rows), np.bool_)
    codes = np.unique(rows.codes)
    for some in chunked(codes, step.table.counts(codes), step.join.budget.chunk):
        first, last = int(some[0]), int(some[-1])
        start = int(np.searchsorted(rows.codes, first, "left"))
        asking = rows.codes[start : int(np.searchsorted(rows.codes, last, "right"))]
        none = np.zeros(asking.size, np.int64)
        for found in step.table.parts(some):
            times = np.zeros(len(found), np.int64)
            for piece in stretches(found.codes, times, asking, none, none).pieces(ROWS_PER_PIECE):
                pairs = _verified(step.join, rows, found, Pairs(piece.probe + start, piece.build))
                if pairs.probe.size:
                    met[pairs.probe] = True
                    step.shard.tally.matched += int(pairs.probe.size)
                    yield _joined(step.join, rows.take(pairs.probe), found.take(pairs.build))
    return met


def _verified(join: LookupJoin, rows: Rows, found: Rows, pairs: Pairs) -> Pairs:
    """The pairs whose keys are equal and for which the condition holds, each as often as the table has its row."""
    pairs = verified((join.stream_side, join.sides[join.table]), join.condition, rows, found, pairs)
    times = np.maximum(found.weights[pairs.build], 0)
    return pairs if (times == 1).all() else Pairs(np.repeat(pairs.probe, times), np.repeat(pairs.build, times))


def _joined(join: LookupJoin, rows: Rows, found: Rows | None) -> pa.Table:
    """Rows of the result: stream rows, each beside a table row or alone."""
    shown = join.sides[join.table].columns
    mine = rows.table.select(list(join.stream_side.columns)).columns
    theirs = [pa.nulls(len(rows))] * len(shown) if found is None else found.table.select(list(shown)).columns
    left, right = (mine, theirs) if join.stream_port == LEFT else (theirs, mine)
    return pa.Table.from_arrays([*left, *right], names=[*join.left.columns, *join.right.columns])


def _limit(step: Lookup) -> None:
    """Keep no more rows than the shard may: rows that wait are forgotten, the table is not."""
    limit, most = step.join.max_rows, step.join.waiting
    if most is not None:
        _forget(step, len(step.waiting) - most)
    if limit is None or sum(step.kept) <= limit:
        return
    step.table.spine.compact()
    _forget(step, min(len(step.waiting), step.shard.excess(step.kept)))
    if sum(step.kept) > limit:
        raise StateOverflowError(step.kept, limit)


def _forget(step: Lookup, rows: int) -> None:
    if rows > 0:
        _forget_first(step.waiting, rows)
        step.shard.tally.dropped[step.join.stream_port] += rows


def _numbered(spine: Spine, table: pa.Table) -> pa.Table:
    """Rows in the order of arrival with their numbers, which follow those of the spine."""
    first = 1 + max((block.highest[NUMBER] for block in spine.blocks), default=0)
    return table.append_column(NUMBER, pa.array(np.arange(first, first + table.num_rows)))


def _waiting_for(spine: Spine, codes: Ints) -> Iterator[tuple[Block, Ints]]:
    """The rows that wait for these codes (sorted, each once): blocks, and positions in each."""
    for block in spine.blocks:
        first = np.searchsorted(codes, block.lowest_code, "left")
        if first == np.searchsorted(codes, block.highest_code, "right"):
            continue
        stored = spine.read(block).codes
        found = np.minimum(np.searchsorted(codes, stored), codes.size - 1)
        positions = np.flatnonzero((codes[found] == stored) & spine.left(block))
        if positions.size:
            yield block, positions


def _forget_before(spine: Spine, limit: int, column: str = ARRIVED) -> None:
    """Forget the rows that came before that clock, or number."""
    for block in spine.blocks:
        if block.highest[column] < limit:
            spine.drop(block)
        elif block.lowest[column] < limit:
            spine.remove(block, spine.read(block).times[column] < limit)


def _forget_first(spine: Spine, rows: int) -> None:
    """Forget so many rows, at least one, the first to have come."""
    numbers = np.zeros(0, np.int64)
    for block in sorted(spine.blocks, key=lambda block: block.lowest[NUMBER]):
        if np.count_nonzero(numbers < block.lowest[NUMBER]) >= rows:
            break
        numbers = np.concatenate([numbers, spine.read(block).times[NUMBER][spine.left(block)]])
    _forget_before(spine, int(np.partition(numbers, rows - 1)[rows - 1]) + 1, NUMBER)
