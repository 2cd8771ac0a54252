"""One batch of a window join in one shard: what arrives, how long rows live, what comes out, what stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.matching import HIGHEST, Bools, Ints
from watersmeet.joins.core.operator import LEFT, NOW, RIGHT, RUN, Emission, StateStore, Watermarks
from watersmeet.joins.core.shard import Shard
from watersmeet.joins.state.budget import Budget
from watersmeet.joins.state.layout import KeyedRows, as_int64, to_record_batch
from watersmeet.joins.state.spine import ShardState, Spine
from watersmeet.joins.window.lives import (
    CLOCK,
    DEAD,
    MATCHED,
    NUMBER,
    EvictionPlan,
    WindowRows,
    insertion_clocks,
    plan_evictions,
)
from watersmeet.joins.window.meet import (
    NO_PORT,
    OutputRows,
    Ports,
    Positions,
    SortedSide,
    concat_output,
    find_probe_ranges,
    join_pieces,
    sort_sides,
)

if TYPE_CHECKING:
    from watersmeet.joins.core.port import Port
    from watersmeet.joins.window.operator import WindowJoinOperator

BUDGET = Budget(merge_at=6, in_order=True, sparse=4)
"""Only neighbours become one, so that the rows of all runs are in order of arrival."""
NARROWED = "narrowed"


@dataclass(frozen=True)
class WindowProgress:
    """What a shard knows between two batches besides its rows.

    - ``number``: the number of the next arrival
    - ``clock``, ``first_clock``: the clock of the last batch, and the first there ever was
    - ``run``: the run of the query that wrote it; ``suspended``: per port, whether time evicts nothing for now
    - ``partitions``: how many partitions the window of each port has
    - ``narrowed``: windows may be smaller than when their rows were stored; only known between a change of them and
      the next step
    """

    number: int = 0
    clock: int | None = None
    first_clock: int | None = None
    run: int | None = None
    suspended: Sequence[bool] = (False, False)
    partitions: Sequence[int] = (0, 0)
    narrowed: bool = False

    @property
    def numbers(self) -> dict[str, Any]:
        """What is kept."""
        return {name: value for name, value in vars(self).items() if name != NARROWED or value}

    def with_clock(self, watermarks: Watermarks) -> WindowProgress:
        """The same once the clock and the run of this batch are known."""
        run, now = watermarks.get(RUN, self.run), watermarks.get(NOW)
        restarted = self.run is not None and run != self.run
        suspended = (True, True) if restarted else self.suspended
        if now is None:
            return replace(self, run=run, suspended=suspended)
        clock = now if self.clock is None else max(now, self.clock)
        first = clock if self.first_clock is None else self.first_clock
        return replace(self, run=run, suspended=suspended, clock=clock, first_clock=first)

    def with_arrivals(self, arrivals: WindowArrivals, partitions: Sequence[int]) -> WindowProgress:
        """The same after the arrivals of this batch."""
        suspended = tuple(paused and not len(new) for paused, new in zip(self.suspended, arrivals.new, strict=True))
        number = self.number + arrivals.count
        return replace(self, number=number, suspended=suspended, partitions=partitions, narrowed=False)


@dataclass(frozen=True)
class WindowArrivals:
    """The new rows of each port in order of arrival, and by trigger the port and the order value of each.

    The first and the last trigger are no arrivals and have no port. ``ordered``: whether an order value is known.
    """

    new: tuple[KeyedRows, ...]
    ports: Ports
    orders: Ints
    ordered: Bools

    @property
    def count(self) -> int:
        """How many rows arrive."""
        return len(self.ports) - 2


def stream(
    join: WindowJoinOperator, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
) -> Iterator[pa.Table | Emission]:
    """Process one batch of one shard (the definition is in `operator`): joined rows as they come, last the emission."""
    # Windows know no event time: of the marks, only the clock and the run count.
    shard = Shard(join, store, {})
    progress = WindowProgress(**shard.state.directory.numbers).with_clock(watermarks)
    spines = [
        shard.state.spine(name, layout, BUDGET) for name, layout in zip(("left", "right"), join.layouts, strict=True)
    ]
    numbered = _number_arrivals(join, arrivals, progress)
    if not _is_idle(join, progress, spines, numbered):
        evictions = _plan_evictions(join, progress, spines, numbered)
        sides = sort_sides(_evict_overflow(shard, evictions))
        yield from _emit_rows(join, shard, sides, numbered)
        for port, spine in enumerate(spines):
            side = sides[port].evictions
            spine.retain(side.stay, **({MATCHED: sides[port].has_matched} if join.is_preserved[port] else {}))
            shard.counters.rows[port] = len(numbered.new[port])
            shard.counters.dropped[port] = side.count_dropped()
        progress = progress.with_arrivals(numbered, [side.evictions.count_partitions() for side in sides])
    yield shard.close({}, numbers=progress.numbers, partitions=tuple(progress.partitions))


def narrow(join: WindowJoinOperator, store: StateStore) -> None:
    """Note that the next step has to look for rows beyond the windows."""
    state = ShardState(store, join.canonical_names)
    state.save(numbers={**state.directory.numbers, NARROWED: True})


def _is_idle(
    join: WindowJoinOperator, progress: WindowProgress, spines: Sequence[Spine], arrivals: WindowArrivals
) -> bool:
    """Whether nothing arrives and nothing leaves, as in most shards of a small batch: then nothing is read."""
    if arrivals.count or progress.narrowed or (join.max_rows is not None and sum(map(len, spines)) > join.max_rows):
        return False
    for spec, spine, suspended in zip(join.windows, spines, progress.suspended, strict=True):
        if spec.kind == "time" and progress.clock is not None and not suspended:
            edges = [edge for block in spine.blocks for edge in (block.lowest[CLOCK], block.highest[CLOCK])]
            if (progress.clock - insertion_clocks(np.array(edges, np.int64), progress.first_clock) > spec.size).any():
                return False
    return True


def _number_arrivals(
    join: WindowJoinOperator, arrivals: Mapping[int, pa.Table], progress: WindowProgress
) -> WindowArrivals:
    """Number the arrivals of the batch."""
    tables = [_sort_arrivals(side, arrivals.get(port)) for port, side in enumerate(join.sides)]
    orders = np.concatenate([order for _, order, _ in tables])
    ordered = np.concatenate([known for _, _, known in tables])
    sizes = [len(order) for _, order, _ in tables]
    ports = np.repeat(np.array([LEFT, RIGHT], np.int8), sizes)
    arrival_order = np.arange(len(ports))
    if join.interleaved and join.left.order is not None and join.right.order is not None:
        # The left rows stand first, and stay so among equals.
        arrival_order = _stable_order(orders, ordered)
    numbers = np.empty(len(ports), np.int64)
    numbers[arrival_order] = progress.number + np.arange(len(ports))
    new = tuple(
        join.layouts[port].empty_rows if table is None else _make_rows(join, port, table, own, progress)
        for port, ((table, _, _), own) in enumerate(zip(tables, np.split(numbers, sizes[:1]), strict=True))
    )
    return WindowArrivals(
        new,
        np.pad(ports[arrival_order], 1, constant_values=NO_PORT),
        np.pad(orders[arrival_order], 1),
        np.pad(ordered[arrival_order], 1),
    )


def _sort_arrivals(side: Port, table: pa.Table | None) -> tuple[pa.RecordBatch | None, Ints, Bools]:
    """The rows of a port in order of arrival, their order values, and which of these are known."""
    if table is None or not table.num_rows:
        return None, np.empty(0, np.int64), np.empty(0, np.bool_)
    batch = to_record_batch(table)
    if side.order is None:
        size: int = batch.num_rows
        return batch, np.full(size, HIGHEST), np.zeros(size, np.bool_)
    column = batch.column(side.order)
    order, has_order = as_int64(column), column.is_valid().to_numpy(zero_copy_only=False)
    positions = _stable_order(order, has_order)
    if (positions[1:] > positions[:-1]).all():
        return batch, order, has_order
    return batch.take(pa.array(positions)), order[positions], has_order[positions]


def _stable_order(values: Ints, has_value: Bools) -> Ints:
    """The positions that put order values in order, those that are not known last; equal ones keep their order."""
    if (values[1:] >= values[:-1]).all() and (has_value[:-1] >= has_value[1:]).all():
        return np.arange(values.size)
    # A value that is not known is the highest number, which a value may be.
    positions = np.argsort(values, kind="stable")
    return positions if has_value.all() else positions[np.argsort(~has_value[positions], kind="stable")]


def _make_rows(
    join: WindowJoinOperator, port: int, batch: pa.RecordBatch, numbers: Ints, progress: WindowProgress
) -> KeyedRows:
    """Arrivals of a port as they are kept."""
    layout, size = join.layouts[port], batch.num_rows
    clock = pa.array(np.full(size, HIGHEST if progress.clock is None else progress.clock))
    own = {NUMBER: pa.array(numbers), DEAD: pa.array(~join.sides[port].can_match(batch)), CLOCK: clock}
    columns = [own[name] if name in own else batch.column(name) for name in layout.run_columns]
    rows = layout.rows(pa.RecordBatch.from_arrays(columns, names=list(layout.run_columns)))
    return rows.with_attributes(**{name: np.zeros(size, np.bool_) for name, _ in layout.notes})


def _plan_evictions(
    join: WindowJoinOperator, progress: WindowProgress, spines: Sequence[Spine], arrivals: WindowArrivals
) -> tuple[EvictionPlan, EvictionPlan]:
    """The rows of each window with the new ones behind them, and how long they live."""
    both: list[EvictionPlan] = []
    for port, (spec, spine) in enumerate(zip(join.windows, spines, strict=True)):
        old = len(spine)
        spine.add(arrivals.new[port])
        rows = WindowRows.of(spine.rows(), join.sides[port].code, progress.first_clock)
        clock, suspended, narrowed = progress.clock, progress.suspended[port], progress.narrowed
        both.append(
            plan_evictions(
                spec, rows, old, progress.number, arrivals.count, clock=clock, suspended=suspended, narrowed=narrowed
            )
        )
    return both[LEFT], both[RIGHT]


def _evict_overflow(shard: Shard, both: tuple[EvictionPlan, EvictionPlan]) -> tuple[EvictionPlan, EvictionPlan]:
    """The same with the oldest rows ended if more would stay than may, or the batch is refused."""
    excess = shard.excess([int(np.count_nonzero(side.stay)) for side in both])
    if not excess:
        return both
    numbers = np.concatenate([side.rows.numbers[side.stay] for side in both])
    last = np.partition(numbers, excess - 1)[excess - 1]
    left, right = (
        replace(side, ends=np.where(side.stay & (side.rows.numbers <= last), side.forever - 1, side.ends))
        for side in both
    )
    return left, right


def _emit_rows(
    join: WindowJoinOperator, shard: Shard, sides: tuple[SortedSide, SortedSide], arrivals: WindowArrivals
) -> Iterator[pa.Table]:
    """The joined rows of the batch piece by piece; rows with an output of their own are set apart."""
    moments = [side.arrival_times(join) for side in sides]
    for pairs, unmatched in join_pieces(join, sides, find_probe_ranges(sides, arrivals.ports)):
        shard.counters.matched += len(pairs.triggers)
        shard.counters.record_delays(moments[LEFT], pairs.left, moments[RIGHT], pairs.right)
        result = pairs
        for port, side in enumerate(join.sides):
            mine = unmatched.where(unmatched.lacks == 1 - port)
            shard.counters.padded[port] += len(mine.triggers)
            if side.unmatched and len(mine.triggers):
                positions = (mine.left, mine.right)[port]
                columns = [sides[port].column(name, positions) for name in side.unmatched]
                shard.counters.unmatched.append((port, pa.Table.from_arrays(columns, names=list(side.unmatched))))
        own_output = np.array([not side.unmatched for side in reversed(join.sides)])
        unmatched = unmatched.where(own_output[unmatched.lacks])
        if len(unmatched.triggers):
            result = concat_output(pairs, unmatched)
            result = result.take(np.argsort(result.triggers, kind="stable"))
        if len(result.triggers):
            yield _result_table(join, sides, result, arrivals)


def _result_table(
    join: WindowJoinOperator, sides: tuple[SortedSide, SortedSide], rows: OutputRows, arrivals: WindowArrivals
) -> pa.Table:
    """Rows of the result: the columns of both sides, then the extra ones."""
    columns: list[pa.Array] = []
    for port, positions in ((LEFT, rows.left), (RIGHT, rows.right)):
        missing = rows.lacks == port
        mask = missing if missing.any() else None
        columns += [sides[port].column(name, positions, mask) for name in join.sides[port].columns]
    if join.padded_column is not None:
        columns.append(pa.array(rows.lacks))
    if join.punctuated:
        columns += _punctuation(rows.triggers, arrivals)
    names = [*join.left.columns, *join.right.columns, *join.extra]
    return pa.Table.from_arrays(columns, names=names)


def _punctuation(triggers: Positions, arrivals: WindowArrivals) -> list[pa.Array]:
    """The port and order value of each row's trigger, the row's number within it, and whether it is the last."""
    ports, orders = arrivals.ports[triggers], arrivals.orders[triggers]
    last = np.append(triggers[1:] != triggers[:-1], True)
    first = np.flatnonzero(np.append(True, last[:-1]))
    numbers = np.arange(len(triggers))
    seq = numbers - np.repeat(first, np.diff(np.append(first, len(triggers))))
    return [
        pa.array(ports, mask=ports == NO_PORT),
        pa.array(orders, mask=~arrivals.ordered[triggers]),
        pa.array(seq),
        pa.array(last),
    ]
