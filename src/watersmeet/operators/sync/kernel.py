"""The sync join: rows of two or more ports meet when all ports have a row of the same time.

Definition. A port's times increase: it has one row per time, and no row comes after a mark that has passed its time.
The result has one row for every time at which all ports have a row. So it is the inner join of the ports on their
times, whatever the interleaving of the ports and however their rows were cut into batches.

A batch is one instant of a shard:

1. A new row is *disorder* if its time is below the mark its port had received before the batch, or if its port already
   had a row of that time, in this batch or before. Disorder is dropped and counted as late, or fails the batch. A row
   without a time is dropped and counted, too.
2. The times at which all ports now have a row come out, and their rows leave.
3. The marks of the batch are folded in. A row leaves silently once the mark of another port has passed its time and
   that port has no row of it: the two can never meet.

What is kept: the rows that may still meet others, and the times of rows that have left, as long as the mark of their
own port has not passed them: only so can a second row of that time be told. The result's mark is the earliest of the
ports' marks. See `definition` for the same, one row at a time.

Nothing but equal times ever meets, so rows may be sharded by their time.

`STATE_SCHEMA` describes what a state holds: rows whose time is not complete, and times that were emitted and could come
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import permutations
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import HIGHEST, LOWEST, Bools, Ints, as_int64
from watersmeet.operators.core.operator import (
    END_OF_INPUT,
    Emission,
    Port,
    StateStore,
    StepError,
    StreamOperator,
    Watermarks,
)
from watersmeet.operators.core.watermarks import Bound, distance_behind
from watersmeet.operators.state.layout import KeyedRows, RowLayout
from watersmeet.operators.state.shard import Shard
from watersmeet.operators.state.state_schema import ExpiryTimes, SpineSchema, StateSchema
from watersmeet.operators.state.table import Timeline

__all__ = ["Disorder", "DisorderError", "SyncJoinOperator"]

Disorder = Literal["drop", "error"]
"""What becomes of a row that is not after the rows before it. ``drop``: it is dropped and counted as late. ``error``:
the batch fails."""


@dataclass(frozen=True)
class SyncJoinOperator(StreamOperator):
    """A sync join of two or more ports, ready to run.

    >>> from watersmeet.tools.testing import MemoryStore
    >>> join = SyncJoinOperator((Port(("a", "v"), ("a",)), Port(("b",), ("b",))))
    >>> store = MemoryStore()
    >>> join.step(store, {0: pa.table({"a": [1, 2], "v": ["x", "y"]})}, {"a": 2}).rows
    ()
    >>> join.step(store, {1: pa.table({"b": [2, 3]})}, {"b": 3}).rows[0].to_pylist()
    [{'a': 2, 'v': 'y', 'b': 2}]
    """

    name: ClassVar[str] = "sync"

    ports: tuple[Port, ...]
    disorder: Disorder = "drop"

    def __post_init__(self) -> None:
        """Refuse what is no join."""
        if len(self.ports) < 2:
            raise ValueError(f"a sync join has two ports or more, not {len(self.ports)}")

    def step(self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks) -> Emission:
        """Process one batch of one shard (see the module's definition)."""
        return step(self, store, arrivals, watermarks)

    @property
    def ports_in_arrival_order(self) -> frozenset[int]:
        """All: of rows of equal time the first delivered counts."""
        return frozenset(range(len(self.ports)))

    @property
    def sides(self) -> tuple[Port, ...]:
        """The ports."""
        return self.ports

    @property
    def identity(self) -> Identity:
        """What of the join decides what its state means; what becomes of disorder does not."""
        return self.make_identity(layout.columns for layout in self.layouts)

    @property
    def times(self) -> tuple[str, ...]:
        """The watermarked columns of the result."""
        return tuple(port.time for port in self.ports)

    @cached_property
    def waits(self) -> tuple[Bound, ...]:
        """Which column waits for which: each for all others. An idle one follows the slowest that is not idle."""
        return tuple(Bound(column, other, 0) for column, other in permutations(self.times, 2))

    @cached_property
    def layouts(self) -> tuple[RowLayout, ...]:
        """What is stored of each port's rows."""
        return tuple(
            RowLayout(tuple(dict.fromkeys((*port.columns, port.time))), (port.time,), port.time) for port in self.ports
        )


# One batch of a sync join in one shard: what is new, which times it completes or closes, what comes out.


class DisorderError(StepError):
    """Raised when a port's times do not increase and that is an error.

    ``port`` counts from 0, ``time`` is that of the offending row in ``column``: microseconds for TIMESTAMP and DATE.

    >>> DisorderError(0, "a.t", 1_000_000, is_temporal=True).parameters
    {'column': 'a.t', 'time': '1970-01-01 00:00:01'}
    """

    def __init__(self, port: int, column: str, time: int, *, is_temporal: bool = False) -> None:
        shown = str(np.datetime64(time, "us").astype("datetime64[s]")).replace("T", " ") if is_temporal else str(time)
        super().__init__("DISORDER", {"column": column, "time": shown})
        self.port = port
        self.time = time


@dataclass(frozen=True)
class PortLane:
    """A port during a step: its rows that wait, the times of those that have left, and its marks."""

    port: int
    time: str
    waiting: Timeline
    seen: Timeline
    before: int | None
    after: int | None

    @staticmethod
    def of(join: SyncJoinOperator, shard: Shard, port: int) -> PortLane:
        """The lane of a port in a shard."""
        time = join.ports[port].time
        waiting = Timeline.of(shard.state, f"waiting/{port}", join.layouts[port])
        seen = Timeline.of(shard.state, f"seen/{port}", RowLayout((time,), (time,), time))
        return PortLane(port, time, waiting, seen, shard.before.received.get(time), shard.after.received.get(time))

    def has_passed(self, times: Ints) -> Bools:
        """Which of these times the port's mark has passed."""
        if self.after is None or self.after == END_OF_INPUT:
            return np.full(times.size, self.after is not None)
        return times < self.after

    def remove(self, times: Ints) -> KeyedRows:
        """Let the rows of these times, which are ascending, leave.

        Their times are remembered, unless a second row of such a time would be late anyhow.
        """
        rows = self.waiting.remove_at(times)
        open_ = rows.where(~self.has_passed(rows.times[self.time]))
        self.seen.add(self.seen.layout.rows(open_.table))
        return rows

    def expire_seen(self) -> None:
        """Forget the times that a second row would be late for."""
        if self.after is not None:
            for block, rows in self.seen.blocks_within(int(LOWEST), self.after):
                self.seen.spine.remove(block, self.has_passed(rows.times[self.time]))


def step(
    join: SyncJoinOperator, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
) -> Emission:
    """Process one batch of one shard."""
    shard = Shard(join, store, watermarks, waits=join.waits, slowest=True)
    lanes = [PortLane.of(join, shard, port) for port in range(len(join.ports))]
    new = [_admit_rows(join, shard, lanes[port], arrivals[port]) for port in sorted(arrivals)]
    out = _emit_complete(join, shard, lanes, _times_to_check(lanes, new))
    for lane in lanes:
        lane.expire_seen()
    _enforce_limit(shard, lanes)
    received = [lane.after for lane in lanes if lane.after is not None]
    emitted = dict.fromkeys(join.times, min(received)) if len(received) == len(lanes) else {}
    return shard.close(emitted, out, [len(lane.waiting) for lane in lanes])


def _admit_rows(join: SyncJoinOperator, shard: Shard, lane: PortLane, table: pa.Table) -> Ints:
    """Set disorder apart and let the other rows wait; returns their times, which are ascending."""
    rows = lane.waiting.layout.rows(table)
    times = rows.times[lane.time]
    timeless = table.column(lane.time).is_null().to_numpy()
    late = shard.before.is_late(rows.times, len(rows))
    # Stable: of equal times the first delivered comes first, and wins.
    order = np.argsort(times, kind="stable")
    order = order[~(late | timeless)[order]]
    ascending = times[order]
    again = lane.waiting.has(ascending) | lane.seen.has(ascending)
    again[1:] |= ascending[1:] == ascending[:-1]
    disorder = late | timeless
    disorder[order[again]] = True
    shard.counters.rows[lane.port] += len(rows)
    shard.counters.late[lane.port] += int(disorder.sum())
    if join.disorder == "error" and (disorder & ~timeless).any():
        is_temporal = pa.types.is_temporal(table.schema.field(lane.time).type)
        time = int(times[np.argmax(disorder & ~timeless)])
        raise DisorderError(lane.port, lane.time, time, is_temporal=is_temporal)
    if disorder.any():
        # A second row of a time has missed its mark by nothing.
        by = np.where(late & ~timeless, distance_behind(lane.before or 0, times), 0)
        unknown = timeless | (late & (lane.before == END_OF_INPUT))
        column = pa.array([lane.time] * int(disorder.sum()), pa.string())
        shard.emit_late_rows(lane.port, table, disorder, column, pa.array(by[disorder], mask=unknown[disorder]))
    lane.waiting.add(rows.take(order[~again]))
    return ascending[~again]


def _times_to_check(lanes: Sequence[PortLane], new: Sequence[Ints]) -> Ints:
    """The times at which something may happen: those of new rows, and those that a mark of this batch passes."""
    parts = [np.zeros(0, np.int64), *new]
    for lane in lanes:
        start = int(LOWEST) if lane.before is None else lane.before
        if lane.after is not None and start < lane.after:
            # A mark at the end passes all there is.
            high = int(HIGHEST) if lane.after == END_OF_INPUT else lane.after - 1
            parts += [other.waiting.times(start, high) for other in lanes if other is not lane]
    # Parts are mostly ascending, which this sort sees; np.unique would not.
    times = np.sort(np.concatenate(parts), kind="stable")
    return times[np.diff(times, prepend=times[:1] - 1) != 0]


def _emit_complete(join: SyncJoinOperator, shard: Shard, lanes: Sequence[PortLane], touched: Ints) -> list[pa.Table]:
    """Let the rows leave that can meet nothing any more; gives those of the times that all ports have, joined."""
    there = np.stack([lane.waiting.has(touched) for lane in lanes])
    passed = np.stack([lane.has_passed(touched) for lane in lanes])
    complete: Bools = np.logical_and.reduce(there)
    evicted = touched[complete | (~there & passed).any(axis=0)]
    removed = [lane.remove(evicted) for lane in lanes]
    if not complete.any():
        return []
    shard.counters.matched += int(complete.sum())
    columns: list[pa.Array] = []
    for lane, port, rows in zip(lanes, join.ports, removed, strict=True):
        in_result = complete[np.searchsorted(touched, rows.times[lane.time])]
        columns += rows.where(in_result).table.select(list(port.columns)).columns
    return [pa.Table.from_arrays(columns, names=[name for port in join.ports for name in port.columns])]


def _enforce_limit(shard: Shard, lanes: Sequence[PortLane]) -> None:
    """Keep no more rows than the shard may: fail, or drop those with the earliest times."""
    sizes = [len(lane.waiting) for lane in lanes]
    if not shard.excess(sizes):
        return
    times = [lane.waiting.times() for lane in lanes]
    for lane, own, drop in zip(lanes, times, shard.choose_overflow(times, sizes), strict=True):
        evicted = np.sort(own[drop])
        shard.counters.dropped[lane.port] += evicted.size
        lane.remove(evicted)
        # Whatever else has such a time waits for a row that is gone, and for none that may come.
        for other in lanes:
            other.remove(evicted[lane.has_passed(evicted)])


def spine(identity: Identity, name: str) -> SpineSchema:
    """The rows of a port that wait, or the times that were seen there."""
    kind, _, number = name.partition("/")
    port = int(number)
    if kind == "seen":
        return SpineSchema(port, "until the watermark of their side passes their time")
    times = [port_identity["time"] for port_identity in identity["ports"]]
    if len(times) > 2:
        return SpineSchema(port, "until the watermark of a side without a match passes their time")
    return SpineSchema(
        port,
        "until the watermark of the other side passes their time",
        expiry=partial(_expiry_times, times[port], times[1 - port]),
    )


def _expiry_times(own: str, other: str, rows: pa.RecordBatch) -> ExpiryTimes:
    return {other: as_int64(rows.column(own))}


STATE_SCHEMA = StateSchema(("sync",), spine)
