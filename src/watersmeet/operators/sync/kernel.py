"""The sync join: joins the rows of two or more ports that have the same time.

Definition. A port's times increase: it has one row per time, and no row arrives after a watermark that has passed its
time. The result has one row for every time at which all ports have a row. So it is the inner join of the ports on their
times, independent of how the ports interleave and how their rows are cut into batches.

A batch is one instant of a shard:

1. A new row is *disorder* if its time is below its port's watermark before the batch, or if its port already had a row
   of that time, in this batch or before. Disorder is dropped and counted as late, or fails the batch. A row without a
   time is dropped and counted, too.
2. The times at which all ports now have a row are emitted, and their rows leave the state.
3. The watermarks of the batch are applied. A row expires once the watermark of another port has passed its time and
   that port has no row of it: the two can never match.

The state holds the rows that may still match, and the times of rows that have left, until the watermark of their own
port passes them: without these times, a second row of the same time would go undetected. The result's watermark is the
earliest of the ports' watermarks. See `definition` for the same, one row at a time.

Only equal times match, so rows may be sharded by their time.

`STATE_SCHEMA` describes what a state holds: rows whose time is not complete, and emitted times that could arrive again.
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
"""The policy for a row that is out of order. ``drop``: it is dropped and counted as late. ``error``: the batch fails.
"""


@dataclass(frozen=True)
class SyncJoinOperator(StreamOperator):
    """A sync join of two or more ports, ready to run; ``inputs``: how the rows of each port arrive.

    >>> from watersmeet.tools.testing import MemoryStore
    >>> join = SyncJoinOperator((Port(("a", "v"), ("a",)), Port(("b",), ("b",))))
    >>> store = MemoryStore()
    >>> join.step(store, {0: pa.table({"a": [1, 2], "v": ["x", "y"]})}, {"a": 2}).rows
    ()
    >>> join.step(store, {1: pa.table({"b": [2, 3]})}, {"b": 3}).rows[0].to_pylist()
    [{'a': 2, 'v': 'y', 'b': 2}]
    """

    name: ClassVar[str] = "sync"

    inputs: tuple[Port, ...]
    disorder: Disorder = "drop"

    def __post_init__(self) -> None:
        """Reject fewer than two ports."""
        if len(self.inputs) < 2:
            raise ValueError(f"a sync join has two ports or more, not {len(self.inputs)}")

    def step(self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks) -> Emission:
        """Process one batch of one shard (see the module's definition)."""
        return step(self, store, arrivals, watermarks)

    @property
    def ports_in_arrival_order(self) -> frozenset[int]:
        """All ports: among rows of equal time the first delivered counts."""
        return frozenset(range(len(self.ports)))

    @property
    def ports(self) -> tuple[Port, ...]:
        """Its inputs, by port."""
        return self.inputs

    @property
    def identity(self) -> Identity:
        """The part of the join that determines the meaning of its state; the treatment of disorder does not."""
        return self.make_identity(layout.columns for layout in self.layouts)

    @property
    def times(self) -> tuple[str, ...]:
        """The watermarked columns of the result."""
        return tuple(port.time for port in self.ports)

    @cached_property
    def waits(self) -> tuple[Bound, ...]:
        """The bounds between columns: each waits for all others. An idle one follows the slowest active one."""
        return tuple(Bound(column, other, 0) for column, other in permutations(self.times, 2))

    @cached_property
    def layouts(self) -> tuple[RowLayout, ...]:
        """The layout of each port's state."""
        return tuple(
            RowLayout(tuple(dict.fromkeys((*port.columns, port.time))), (port.time,), port.time) for port in self.ports
        )


# One batch of a sync join in one shard: admit rows, find the times they complete or close, emit.


class DisorderError(StepError):
    """Raised when a port's times do not increase and ``disorder`` is ``error``.

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
    """A port during a step: its waiting rows, the times of rows that have left, and its watermarks."""

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
        return PortLane(
            port,
            time,
            waiting,
            seen,
            shard.watermarks_before.received.get(time),
            shard.watermarks_after.received.get(time),
        )

    def has_passed(self, times: Ints) -> Bools:
        """A mask of the times that the port's watermark has passed."""
        if self.after is None or self.after == END_OF_INPUT:
            return np.full(times.size, self.after is not None)
        return times < self.after

    def remove(self, times: Ints) -> KeyedRows:
        """Remove the rows of these ascending times.

        Their times are remembered, unless a second row of such a time would be late anyway.
        """
        rows = self.waiting.remove_at(times)
        open_ = rows.where(~self.has_passed(rows.times[self.time]))
        self.seen.add(self.seen.layout.rows(open_.table))
        return rows

    def expire_seen(self) -> None:
        """Forget the times for which a second row would be late."""
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
    """Drop disorder and store the other rows as waiting; returns their ascending times."""
    rows = lane.waiting.layout.rows(table)
    times = rows.times[lane.time]
    timeless = table.column(lane.time).is_null().to_numpy()
    late = shard.watermarks_before.is_late(rows.times, len(rows))
    # A stable sort: among equal times the first delivered comes first, and wins.
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
        # A second row of a time is late by zero.
        by = np.where(late & ~timeless, distance_behind(lane.before or 0, times), 0)
        unknown = timeless | (late & (lane.before == END_OF_INPUT))
        column = pa.array([lane.time] * int(disorder.sum()), pa.string())
        shard.emit_late_rows(lane.port, table, disorder, column, pa.array(by[disorder], mask=unknown[disorder]))
    lane.waiting.add(rows.take(order[~again]))
    return ascending[~again]


def _times_to_check(lanes: Sequence[PortLane], new: Sequence[Ints]) -> Ints:
    """The times to check: those of new rows, and those that a watermark of this batch passes."""
    parts = [np.zeros(0, np.int64), *new]
    for lane in lanes:
        start = int(LOWEST) if lane.before is None else lane.before
        if lane.after is not None and start < lane.after:
            # The end of input passes all times.
            high = int(HIGHEST) if lane.after == END_OF_INPUT else lane.after - 1
            parts += [other.waiting.times(start, high) for other in lanes if other is not lane]
    # Parts are mostly ascending, which this sort sees; np.unique would not.
    times = np.sort(np.concatenate(parts), kind="stable")
    return times[np.diff(times, prepend=times[:1] - 1) != 0]


def _emit_complete(join: SyncJoinOperator, shard: Shard, lanes: Sequence[PortLane], touched: Ints) -> list[pa.Table]:
    """Remove the rows that are complete or can no longer match; returns the complete ones, joined."""
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
    """Enforce the limit: fail, or drop the rows with the earliest times."""
    sizes = [len(lane.waiting) for lane in lanes]
    if not shard.excess(sizes):
        return
    times = [lane.waiting.times() for lane in lanes]
    for lane, own, drop in zip(lanes, times, shard.choose_overflow(times, sizes), strict=True):
        evicted = np.sort(own[drop])
        shard.counters.dropped[lane.port] += evicted.size
        lane.remove(evicted)
        # Rows of other ports at such a time can no longer match, once the port's watermark has passed it.
        for other in lanes:
            other.remove(evicted[lane.has_passed(evicted)])


def spine(identity: Identity, name: str) -> SpineSchema:
    """The waiting rows of a port, or the times seen there."""
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
