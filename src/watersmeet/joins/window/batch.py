"""One batch of a window join in one shard: what arrives, how long rows live, what comes out, what stays."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.matching import HIGHEST, Ints
from watersmeet.joins.core.operator import LEFT, RIGHT, Emission, Marks, Report, StateOverflowError, Store
from watersmeet.joins.state.layout import as_int64
from watersmeet.joins.window.lives import Lives, lives
from watersmeet.joins.window.meet import NO_PORT, Facing, Found, Ports, Positions, face, joined, pieces, stretches
from watersmeet.joins.window.rows import NO_ROWS, Kept, Window
from watersmeet.joins.window.state import State, load, save, save_unchanged

if TYPE_CHECKING:
    from watersmeet.joins.core.port import Port
    from watersmeet.joins.window.operator import WindowJoin


@dataclass(frozen=True)
class Arrivals:
    """The new rows of each port in order of arrival, and by trigger the port and the order value of each.

    The first and the last trigger are no arrivals and have no port; an order value that is not known is HIGHEST.
    """

    new: tuple[Window, Window]
    ports: Ports
    orders: Ints


def stream(
    join: WindowJoin, store: Store, arrivals: Mapping[int, pa.Table], marks: Marks
) -> Iterator[pa.Table | Emission]:
    """Process one batch of one shard (the definition is in `window`): joined rows as they come, last the emission."""
    before, windows = load(store, join.kept)
    state = before.hearing(marks)
    windows = tuple(_clocked(window, state) for window in windows)
    arrived = arrive(join, arrivals, state)
    if _is_idle(join, state, windows, arrived):
        save_unchanged(store, state, windows)
        yield Emission(report=Report(state=tuple(map(len, windows)), partitions=state.partitions))
        return
    both = _live(join, state, windows, arrived)
    keep_within_limit(join, both)
    facing = face(both)
    emission = yield from emit(join, facing, arrived)
    inserted = [len(new) > 0 for new in arrived.new]
    after = replace(
        state,
        number=state.number + len(arrived.ports) - 2,
        suspended=tuple(paused and not new for paused, new in zip(state.suspended, inserted, strict=True)),
        partitions=emission.report.partitions,
    )
    save(store, after, tuple(_staying(side) for side in facing), join.kept)
    yield emission


def _clocked(window: Window, state: State) -> Window:
    """The window's rows, those inserted before there was a clock at the first that came."""
    if state.first_clock is None:
        return window
    return replace(window, clocks=np.where(window.clocks == HIGHEST, state.first_clock, window.clocks))


def _is_idle(join: WindowJoin, state: State, windows: tuple[Window, ...], arrived: Arrivals) -> bool:
    """Whether nothing arrives and nothing leaves, as in most shards of a small batch."""
    if len(arrived.ports) > 2 or (join.max_rows is not None and sum(map(len, windows)) > join.max_rows):
        return False
    if state.clock is None:
        return True
    for spec, window, suspended in zip(join.windows, windows, state.suspended, strict=True):
        may_evict = spec.kind == "time" and not suspended and len(window)
        if may_evict and state.clock - int(window.clocks.min()) > spec.size:
            return False
    return True


def arrive(join: WindowJoin, arrivals: Mapping[int, pa.Table], state: State) -> Arrivals:
    """Number the arrivals of the batch."""
    tables = [_in_order(side, arrivals.get(port)) for port, side in enumerate(join.sides)]
    orders = np.concatenate([order for _, order in tables])
    sizes = [len(order) for _, order in tables]
    ports = np.repeat(np.array([LEFT, RIGHT], np.int8), sizes)
    merged = np.arange(len(ports))
    if join.interleaved and join.left.order is not None and join.right.order is not None:
        # The left rows stand first, and stay so among equals.
        merged = np.argsort(orders, kind="stable")
    numbers = np.empty(len(ports), np.int64)
    numbers[merged] = state.number + np.arange(len(ports))
    left, right = (
        NO_ROWS if table is None else _new(join.sides[port], join.kept[port], table, own, state)
        for port, ((table, _), own) in enumerate(zip(tables, np.split(numbers, sizes[:1]), strict=True))
    )
    none = np.array([NO_PORT], np.int8)
    unknown = np.array([HIGHEST])
    return Arrivals(
        (left, right),
        np.concatenate([none, ports[merged], none]),
        np.concatenate([unknown, orders[merged], unknown]),
    )


def _in_order(side: Port, table: pa.Table | None) -> tuple[pa.RecordBatch | None, Ints]:
    """The rows of a port in order of arrival, and their order values."""
    if table is None or not table.num_rows:
        return None, np.empty(0, np.int64)
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise RuntimeError("a shard's batch holds more than 2 GiB in one column; use more shards or smaller batches")
    if side.order is None:
        size: int = table.num_rows
        return batches[0], np.full(size, HIGHEST)
    order = as_int64(batches[0].column(side.order))
    if (order[1:] >= order[:-1]).all():
        return batches[0], order
    positions = np.argsort(order, kind="stable")
    return batches[0].take(pa.array(positions)), order[positions]


def _new(side: Port, kept: Kept, batch: pa.RecordBatch, numbers: Ints, state: State) -> Window:
    size: int = batch.num_rows
    codes = np.zeros(size, np.int64) if side.code is None else as_int64(batch.column(side.code))
    clocks = np.full(size, HIGHEST if state.clock is None else state.clock)
    table = batch.select(list(kept.columns))
    return Window(table, numbers, codes, ~side.alive(batch), clocks, np.zeros(size, np.bool_), np.full(size, -1))


def _live(join: WindowJoin, state: State, windows: tuple[Window, ...], arrived: Arrivals) -> tuple[Lives, Lives]:
    both: list[Lives] = []
    for port, spec in enumerate(join.windows):
        old = len(windows[port])
        rows = windows[port].followed_by(arrived.new[port])
        count = len(arrived.ports) - 2
        clock, suspended = state.clock, state.suspended[port]
        both.append(lives(spec, rows, old, state.number, count, clock=clock, suspended=suspended))
    return both[LEFT], both[RIGHT]


def keep_within_limit(join: WindowJoin, both: tuple[Lives, Lives]) -> None:
    """End the oldest rows if more would stay than may, or refuse the batch."""
    stay = [side.stay for side in both]
    kept = [int(np.count_nonzero(own)) for own in stay]
    if join.max_rows is None or sum(kept) <= join.max_rows:
        return
    if join.overflow == "fail":
        raise StateOverflowError((kept[LEFT], kept[RIGHT]), join.max_rows)
    numbers = np.concatenate([side.rows.numbers[own] for side, own in zip(both, stay, strict=True)])
    last = np.partition(numbers, sum(kept) - join.max_rows - 1)[sum(kept) - join.max_rows - 1]
    for side, own in zip(both, stay, strict=True):
        side.ends[own & (side.rows.numbers <= last)] = side.forever - 1


def emit(join: WindowJoin, facing: tuple[Facing, Facing], arrived: Arrivals) -> Generator[pa.Table, None, Emission]:
    """Gives the joined rows of the batch piece by piece, and returns the rest of what comes out."""
    unmatched: list[tuple[int, pa.Table]] = []
    matches, padded = 0, [0, 0]
    for pairs, alone in pieces(join, facing, stretches(facing, arrived.ports)):
        matches += len(pairs.triggers)
        result = pairs
        for port, side in enumerate(join.sides):
            mine = alone.where(alone.lacks == 1 - port)
            padded[port] += len(mine.triggers)
            if side.unmatched and len(mine.triggers):
                positions = (mine.left, mine.right)[port]
                columns = [facing[port].column(name, positions) for name in side.unmatched]
                unmatched.append((port, pa.Table.from_arrays(columns, names=list(side.unmatched))))
        own_output = np.array([not side.unmatched for side in reversed(join.sides)])
        alone = alone.where(own_output[alone.lacks])
        if len(alone.triggers):
            result = joined(pairs, alone)
            result = result.take(np.argsort(result.triggers, kind="stable"))
        if len(result.triggers):
            yield _table(join, facing, result, arrived)
    both = [side.lives for side in facing]
    report = Report(
        rows=tuple(len(new) for new in arrived.new),
        matched=matches,
        padded=tuple(padded),
        state=tuple(int(np.count_nonzero(side.stay)) for side in both),
        dropped=tuple(side.count_dropped() for side in both),
        partitions=tuple(side.count_partitions() for side in both),
    )
    return Emission(report=report, unmatched=tuple(unmatched))


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
        pa.array(orders, mask=orders == HIGHEST),
        pa.array(seq),
        pa.array(last),
    ]


def _staying(side: Facing) -> Window:
    """What is in the window after the batch, and who of it has matched by now."""
    matched = np.empty_like(side.matched)
    matched[side.order] = side.matched
    rows = replace(side.lives.rows, matched=matched)
    return rows if side.lives.stay.all() else rows.take(side.lives.stay)
