"""One batch of a window join in one shard: what arrives, how long rows live, what comes out, what stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.matching import HIGHEST, Bools, Ints
from watersmeet.joins.core.operator import LEFT, NOW, RIGHT, RUN, Emission, Marks, Store
from watersmeet.joins.core.shard import Shard
from watersmeet.joins.state.budget import Budget
from watersmeet.joins.state.layout import Rows, as_int64, one_batch
from watersmeet.joins.state.spine import Spine, State
from watersmeet.joins.window.lives import CLOCK, DEAD, MATCHED, NUMBER, Lives, Window, inserted, lives
from watersmeet.joins.window.meet import NO_PORT, Facing, Found, Ports, Positions, face, joined, pieces, stretches

if TYPE_CHECKING:
    from watersmeet.joins.core.port import Port
    from watersmeet.joins.window.operator import WindowJoin

BUDGET = Budget(merge_at=6, in_order=True, sparse=4)
"""Only neighbours become one, so that the rows of all runs are in order of arrival."""
NARROWED = "narrowed"


@dataclass(frozen=True)
class Known:
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
    def told(self) -> dict[str, Any]:
        """What is kept."""
        return {name: value for name, value in vars(self).items() if name != NARROWED or value}

    def hearing(self, marks: Marks) -> Known:
        """The same once the clock and the run of this batch are known."""
        run, now = marks.get(RUN, self.run), marks.get(NOW)
        restarted = self.run is not None and run != self.run
        suspended = (True, True) if restarted else self.suspended
        if now is None:
            return replace(self, run=run, suspended=suspended)
        clock = now if self.clock is None else max(now, self.clock)
        first = clock if self.first_clock is None else self.first_clock
        return replace(self, run=run, suspended=suspended, clock=clock, first_clock=first)

    def after(self, arrived: Arrivals, partitions: Sequence[int]) -> Known:
        """The same after the arrivals of this batch."""
        suspended = tuple(paused and not len(new) for paused, new in zip(self.suspended, arrived.new, strict=True))
        number = self.number + arrived.count
        return replace(self, number=number, suspended=suspended, partitions=partitions, narrowed=False)


@dataclass(frozen=True)
class Arrivals:
    """The new rows of each port in order of arrival, and by trigger the port and the order value of each.

    The first and the last trigger are no arrivals and have no port. ``ordered``: whether an order value is known.
    """

    new: tuple[Rows, ...]
    ports: Ports
    orders: Ints
    ordered: Bools

    @property
    def count(self) -> int:
        """How many rows arrive."""
        return len(self.ports) - 2


def stream(
    join: WindowJoin, store: Store, arrivals: Mapping[int, pa.Table], marks: Marks
) -> Iterator[pa.Table | Emission]:
    """Process one batch of one shard (the definition is in `operator`): joined rows as they come, last the emission."""
    # Windows know no event time: of the marks, only the clock and the run count.
    shard = Shard(join, store, {})
    known = Known(**shard.state.directory.numbers).hearing(marks)
    spines = [
        shard.state.spine(name, layout, BUDGET) for name, layout in zip(("left", "right"), join.layouts, strict=True)
    ]
    arrived = _arrived(join, arrivals, known)
    if not _is_idle(join, known, spines, arrived):
        both = _live(join, known, spines, arrived)
        facing = face(_within_limit(shard, both))
        yield from _emitted(join, shard, facing, arrived)
        for port, spine in enumerate(spines):
            side = facing[port].lives
            spine.keep(side.stay, **({MATCHED: facing[port].has_matched} if join.preserved[port] else {}))
            shard.tally.rows[port] = len(arrived.new[port])
            shard.tally.dropped[port] = side.count_dropped()
        known = known.after(arrived, [side.lives.count_partitions() for side in facing])
    yield shard.close({}, numbers=known.told, partitions=tuple(known.partitions))


def narrow(join: WindowJoin, store: Store) -> None:
    """Note that the next step has to look for rows beyond the windows."""
    state = State(store, join.canonical)
    state.save(numbers={**state.directory.numbers, NARROWED: True})


def _is_idle(join: WindowJoin, known: Known, spines: Sequence[Spine], arrived: Arrivals) -> bool:
    """Whether nothing arrives and nothing leaves, as in most shards of a small batch: then nothing is read."""
    if arrived.count or known.narrowed or (join.max_rows is not None and sum(map(len, spines)) > join.max_rows):
        return False
    for spec, spine, suspended in zip(join.windows, spines, known.suspended, strict=True):
        if spec.kind == "time" and known.clock is not None and not suspended:
            edges = [edge for block in spine.blocks for edge in (block.lowest[CLOCK], block.highest[CLOCK])]
            if (known.clock - inserted(np.array(edges, np.int64), known.first_clock) > spec.size).any():
                return False
    return True


def _arrived(join: WindowJoin, arrivals: Mapping[int, pa.Table], known: Known) -> Arrivals:
    """Number the arrivals of the batch."""
    tables = [_in_order(side, arrivals.get(port)) for port, side in enumerate(join.sides)]
    orders = np.concatenate([order for _, order, _ in tables])
    ordered = np.concatenate([known for _, _, known in tables])
    sizes = [len(order) for _, order, _ in tables]
    ports = np.repeat(np.array([LEFT, RIGHT], np.int8), sizes)
    merged = np.arange(len(ports))
    if join.interleaved and join.left.order is not None and join.right.order is not None:
        # The left rows stand first, and stay so among equals.
        merged = _order(orders, ordered)
    numbers = np.empty(len(ports), np.int64)
    numbers[merged] = known.number + np.arange(len(ports))
    new = tuple(
        join.layouts[port].nothing if table is None else _new(join, port, table, own, known)
        for port, ((table, _, _), own) in enumerate(zip(tables, np.split(numbers, sizes[:1]), strict=True))
    )
    return Arrivals(
        new,
        np.pad(ports[merged], 1, constant_values=NO_PORT),
        np.pad(orders[merged], 1),
        np.pad(ordered[merged], 1),
    )


def _in_order(side: Port, table: pa.Table | None) -> tuple[pa.RecordBatch | None, Ints, Bools]:
    """The rows of a port in order of arrival, their order values, and which of these are known."""
    if table is None or not table.num_rows:
        return None, np.empty(0, np.int64), np.empty(0, np.bool_)
    batch = one_batch(table)
    if side.order is None:
        size: int = batch.num_rows
        return batch, np.full(size, HIGHEST), np.zeros(size, np.bool_)
    column = batch.column(side.order)
    order, known = as_int64(column), column.is_valid().to_numpy(zero_copy_only=False)
    positions = _order(order, known)
    if (positions[1:] > positions[:-1]).all():
        return batch, order, known
    return batch.take(pa.array(positions)), order[positions], known[positions]


def _order(values: Ints, known: Bools) -> Ints:
    """The positions that put order values in order, those that are not known last; equal ones keep their order."""
    if (values[1:] >= values[:-1]).all() and (known[:-1] >= known[1:]).all():
        return np.arange(values.size)
    # A value that is not known is the highest number, which a value may be.
    positions = np.argsort(values, kind="stable")
    return positions if known.all() else positions[np.argsort(~known[positions], kind="stable")]


def _new(join: WindowJoin, port: int, batch: pa.RecordBatch, numbers: Ints, known: Known) -> Rows:
    """Arrivals of a port as they are kept."""
    layout, size = join.layouts[port], batch.num_rows
    clock = pa.array(np.full(size, HIGHEST if known.clock is None else known.clock))
    own = {NUMBER: pa.array(numbers), DEAD: pa.array(~join.sides[port].alive(batch)), CLOCK: clock}
    columns = [own[name] if name in own else batch.column(name) for name in layout.written]
    rows = layout.rows(pa.RecordBatch.from_arrays(columns, names=list(layout.written)))
    return rows.with_beside(**{name: np.zeros(size, np.bool_) for name, _ in layout.notes})


def _live(join: WindowJoin, known: Known, spines: Sequence[Spine], arrived: Arrivals) -> tuple[Lives, Lives]:
    """The rows of each window with the new ones behind them, and how long they live."""
    both: list[Lives] = []
    for port, (spec, spine) in enumerate(zip(join.windows, spines, strict=True)):
        old = len(spine)
        spine.add(arrived.new[port])
        rows = Window.of(spine.rows(), join.sides[port].code, known.first_clock)
        clock, suspended, narrowed = known.clock, known.suspended[port], known.narrowed
        both.append(
            lives(spec, rows, old, known.number, arrived.count, clock=clock, suspended=suspended, narrowed=narrowed)
        )
    return both[LEFT], both[RIGHT]


def _within_limit(shard: Shard, both: tuple[Lives, Lives]) -> tuple[Lives, Lives]:
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


def _emitted(join: WindowJoin, shard: Shard, facing: tuple[Facing, Facing], arrived: Arrivals) -> Iterator[pa.Table]:
    """The joined rows of the batch piece by piece; rows with an output of their own are set apart."""
    moments = [side.moments(join) for side in facing]
    for pairs, alone in pieces(join, facing, stretches(facing, arrived.ports)):
        shard.tally.matched += len(pairs.triggers)
        shard.tally.met(moments[LEFT], pairs.left, moments[RIGHT], pairs.right)
        result = pairs
        for port, side in enumerate(join.sides):
            mine = alone.where(alone.lacks == 1 - port)
            shard.tally.padded[port] += len(mine.triggers)
            if side.unmatched and len(mine.triggers):
                positions = (mine.left, mine.right)[port]
                columns = [facing[port].column(name, positions) for name in side.unmatched]
                shard.tally.unmatched.append((port, pa.Table.from_arrays(columns, names=list(side.unmatched))))
        own_output = np.array([not side.unmatched for side in reversed(join.sides)])
        alone = alone.where(own_output[alone.lacks])
        if len(alone.triggers):
            result = joined(pairs, alone)
            result = result.take(np.argsort(result.triggers, kind="stable"))
        if len(result.triggers):
            yield _table(join, facing, result, arrived)


def _table(join: WindowJoin, facing: tuple[Facing, Facing], found: Found, arrived: Arrivals) -> pa.Table:
    """Rows of the result: the columns of both sides, then the extra ones."""
    columns: list[pa.Array] = []
    for port, positions in ((LEFT, found.left), (RIGHT, found.right)):
        missing = found.lacks == port
        mask = missing if missing.any() else None
        columns += [facing[port].column(name, positions, mask) for name in join.sides[port].columns]
    if join.padded_column is not None:
        columns.append(pa.array(found.lacks))
    if join.punctuated:
        columns += _punctuation(found.triggers, arrived)
    names = [*join.left.columns, *join.right.columns, *join.extra]
    return pa.Table.from_arrays(columns, names=names)


def _punctuation(triggers: Positions, arrived: Arrivals) -> list[pa.Array]:
    """The port and order value of each row's trigger, the row's number within it, and whether it is the last."""
    ports, orders = arrived.ports[triggers], arrived.orders[triggers]
    last = np.append(triggers[1:] != triggers[:-1], True)
    first = np.flatnonzero(np.append(True, last[:-1]))
    numbers = np.arange(len(triggers))
    seq = numbers - np.repeat(first, np.diff(np.append(first, len(triggers))))
    return [
        pa.array(ports, mask=ports == NO_PORT),
        pa.array(orders, mask=~arrived.ordered[triggers]),
        pa.array(seq),
        pa.array(last),
    ]
