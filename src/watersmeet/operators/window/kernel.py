"""The window join: a row is matched with the rows that are in the other side's window when it arrives.

Definition. Each side has a window. Arrivals are numbered consecutively across both sides. An arrival does, in this
order:

1. It *probes*: it matches every row in the opposite window, in any partition, if their keys are equal (NULL never
   is) and the rest of the condition is true.
2. It *is inserted* into its own window. The rows of a window are partitioned (NULL is a value like any other there); a
   window without PARTITION BY is one partition. Before the insertion the window evicts from the row's partition:

   - ``count`` n: the oldest row, if the partition has n. With n = 0 no row is ever stored
   - ``delta`` n: every row whose value is smaller than the new one by more than n. A row without a value probes but is
     never stored
   - ``time`` n: nothing; see below

   Only an insertion into the same window evicts. A row that is never stored leaves at its own arrival.
3. A limit on partitions discards whole partitions of its window: ``age`` right before an insertion, every partition
   whose last insertion is more than that many whole seconds ago, the new row's own included; ``count`` and ``rows``
   right after one, as long as there are more partitions or rows than that, the one least recently inserted into first,
   and the new row's own last.

The rows of a batch arrive in the order of their order column: with ``interleaved`` sides both columns use one sequence,
and among equal values the left row comes first; else all left rows of a batch come before its right rows.

The clock is that of the batch (`NOW`); it never goes back, and stands still in a batch that brings none. A row is
inserted at the clock of its batch, or at the first clock there ever is. At the start of a batch, before its arrivals, a
``time`` window evicts the rows that were inserted more than its size ago. After a restart (another `RUN`) it does not,
until a batch after the one that brings the next insertion into it.

Where a state continues with windows of other sizes, rows beyond the new ones also leave at the start of the next batch:
of a ``count`` window all but the last n of a partition, of a ``delta`` window those that a later row of their partition
would have evicted; then partitions beyond a limit on their number, or on their rows. Rows that have left do not come
back.

A row of a preserved side that leaves unmatched is emitted padded, or to a side output. Rows of discarded partitions are
dropped and counted instead, unless ``emit_discarded``. The end of the input evicts nothing.

Output is in the order of its *trigger*. First come the rows that time evicted, all in one trigger, then those of each
arrival: its matches in the order in which the stored rows arrived, then the rows that it evicts, oldest first. Last, in
a trigger without a port again, come the rows dropped by the limit on stored rows.

So a row is in its window for an interval of arrival numbers, from its own to that of the insertion that evicts it, and
two rows match when the number of the later lies in the interval of the earlier. See `definition` for the same, one row
at a time.

`STATE_SCHEMA` describes what a state holds: the rows in the window of each side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.changes import key_ids
from watersmeet.operators.core.condition import Condition
from watersmeet.operators.core.identity import CanonicalNames, Identity
from watersmeet.operators.core.matching import HIGHEST, Bools, Ints, as_int64
from watersmeet.operators.core.operator import LEFT, NOW, RIGHT, RUN, Emission, Port, StateStore, Watermarks
from watersmeet.operators.state.layout import Budget, KeyedRows, RowLayout, to_record_batch
from watersmeet.operators.state.shard import Shard, TwoSided
from watersmeet.operators.state.spine import ShardState, Spine
from watersmeet.operators.state.state_schema import ShardInspector, SpineRows, SpineSchema, StateSchema, UnevenError
from watersmeet.operators.window.eviction import (
    CLOCK,
    DEAD,
    MATCHED,
    NUMBER,
    EvictionPlan,
    WindowRows,
    insertion_clocks,
    plan_evictions,
    window_layout,
)
from watersmeet.operators.window.matching import (
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
    from watersmeet.operators.core.operator import Port


WindowKind = Literal["inner", "left", "right", "full"]
"""``inner``: only pairs. ``left``, ``right``, ``full``: also the rows of the preserved sides that are evicted
unmatched.
"""

TRIGGER_PORT, TRIGGER, SEQ, LAST = "_trigger_port", "_trigger", "_seq", "_last"
"""The trigger columns of a punctuated result: the port of the arrival (int8; NULL: evicted by time or by a limit), the
arrival's order value (int64), the row's number within the trigger from 0 (int64), and whether it is the trigger's last
row in the result (boolean).
"""


@dataclass(frozen=True)
class PartitionLimit:
    """The number of partitions that a window stores. A partition is discarded whole.

    - ``age``: ``size`` microseconds since the last insertion, in whole seconds
    - ``count``: ``size`` partitions, at least 1
    - ``rows``: ``size`` rows over all partitions, at least 1
    """

    kind: Literal["age", "count", "rows"]
    size: int

    def __post_init__(self) -> None:
        if self.size < (0 if self.kind == "age" else 1):
            raise ValueError(f"a limit on partitions cannot be {self.size}")


@dataclass(frozen=True)
class WindowSpec:
    """The retention of the window of a side.

    - ``kind``, ``size``: ``count`` of rows; ``delta`` between values of ``column``; ``time`` in microseconds
    - ``column``: for ``delta``, an integer, TIMESTAMP or DATE column; for the latter two, the size is in microseconds
    - ``partition``: the columns that determine a row's partition, of any type but nested ones; empty: one partition
    - ``limit``: the limit on partitions; None: all are stored
    """

    kind: Literal["count", "delta", "time"]
    size: int
    column: str | None = None
    partition: tuple[str, ...] = ()
    limit: PartitionLimit | None = None

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"a window cannot have the size {self.size}")
        if (self.column is None) == (self.kind == "delta"):
            raise ValueError("a delta window, and no other, has a column")

    @property
    def needs_clock(self) -> bool:
        """Whether the wall clock matters."""
        return self.kind == "time" or (self.limit is not None and self.limit.kind == "age")

    @property
    def has_state(self) -> bool:
        """Whether the window stores rows."""
        return self.kind != "count" or self.size > 0


@dataclass(frozen=True)
class WindowJoinOperator(TwoSided):
    """A window join, ready to run. Rows that are ``dead`` never match, but are stored, and evict.

    - ``windows``: the window of each port
    - ``condition``: the condition besides equal keys
    - ``interleaved``: both order columns use one sequence, so the arrivals of a batch are merged by them; else its left
      rows arrive before its right rows
    - ``padded_column``: the name of an int8 column of the result: -1 for a pair, else the port that is missing in the
      row
    - ``punctuated``: rows carry TRIGGER_PORT, TRIGGER, SEQ and LAST
    - ``emit_discarded``: rows of discarded partitions are emitted as if evicted
    """

    name: ClassVar[str] = "window"

    kind: WindowKind
    windows: tuple[WindowSpec, WindowSpec]
    condition: Condition | None = None
    interleaved: bool = True
    padded_column: str | None = None
    punctuated: bool = False
    emit_discarded: bool = False

    def stream(
        self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
    ) -> Iterator[pa.Table | Emission]:
        """Process one batch of one shard (see the module's definition)."""
        return stream(self, store, arrivals, watermarks)

    def take_over(self, store: StateStore, was: Identity) -> None:
        """Continue with the state of a join with other window sizes: the next step evicts the rows beyond them."""
        narrow(self, store)

    @property
    def ports_in_arrival_order(self) -> frozenset[int]:
        """Both: arrivals evict, and those that are equal in the order column keep their order."""
        return frozenset({LEFT, RIGHT})

    @property
    def arrival_rule(self) -> str:
        """What decides about the result."""
        return "a window holds the rows that arrived last"

    @property
    def extra(self) -> tuple[str, ...]:
        """The columns of the result after those of the sides."""
        padded = () if self.padded_column is None else (self.padded_column,)
        return (*padded, *((TRIGGER_PORT, TRIGGER, SEQ, LAST) if self.punctuated else ()))

    def extra_types(self, schemas: Sequence[pa.Schema]) -> tuple[pa.DataType, ...]:
        """Numbers of ports, places in the order of arrival and among the rows of a trigger, and whether it ends."""
        padded = () if self.padded_column is None else (pa.int8(),)
        return (*padded, *((pa.int8(), pa.int64(), pa.int64(), pa.bool_()) if self.punctuated else ()))

    @cached_property
    def state_columns(self) -> tuple[tuple[str, ...], ...]:
        """The stored columns of each side: those that the result, the match and the window need."""
        return tuple(_state_columns(side, window) for side, window in zip(self.ports, self.windows, strict=True))

    @cached_property
    def layouts(self) -> tuple[RowLayout, ...]:
        """The layout of each side's state."""
        return tuple(
            window_layout(stored, clocked=window.needs_clock, tracked=preserved)
            for stored, window, preserved in zip(self.state_columns, self.windows, self.is_preserved, strict=True)
        )

    @property
    def needs_clock(self) -> bool:
        """Whether the wall clock matters: to time windows and to the age of partitions."""
        return any(window.needs_clock for window in self.windows)

    @property
    def needs_run(self) -> bool:
        """Whether restarts matter: time windows pause after one."""
        return any(window.kind == "time" for window in self.windows)

    @property
    def is_by_clock(self) -> bool:
        """Whether the delay between two rows is measured by the clock; else by the number of arrivals between them."""
        return all(window.kind == "time" for window in self.windows)

    def is_partitioned(self, port: int) -> bool:
        """Whether the window of that port is partitioned, so that shards hold disjoint partitions."""
        return bool(self.windows[port].partition)

    @property
    def identity(self) -> Identity:
        """The part of the join that determines the meaning of its state; the columns of the result do not."""
        names = self.canonical_names
        return self.make_identity(
            self.state_columns,
            kind=self.kind,
            windows=[_window_identity(window, names) for window in self.windows],
            interleaved=self.interleaved,
            condition=names.condition(self.condition),
        )


def _state_columns(port: Port, window: WindowSpec) -> tuple[str, ...]:
    delta = () if window.column is None else (window.column,)
    return tuple(dict.fromkeys((*port.input_columns, *port.unmatched, *window.partition, *delta)))


def _window_identity(window: WindowSpec, names: CanonicalNames) -> Identity:
    return {
        "kind": window.kind,
        "size": window.size,
        "column": names.canonical_or_none(window.column),
        "partition": names.canonical_sorted(window.partition),
        "limit": None if window.limit is None else [window.limit.kind, window.limit.size],
    }


# One batch of a window join in one shard: number the arrivals, plan the evictions, emit, retain.


BUDGET = Budget(merge_at=6, in_order=True, sparse=4)
"""Only neighbouring runs are merged, so that the rows of all runs stay in order of arrival."""
NARROWED = "narrowed"


@dataclass(frozen=True)
class WindowProgress:
    """The state of a shard besides its rows.

    - ``number``: the number of the next arrival
    - ``clock``, ``first_clock``: the clock of the last batch, and of the first batch that had one
    - ``run``: the run of the query that wrote it; ``suspended``: per port, whether eviction by time is suspended
    - ``partitions``: the number of partitions in the window of each port
    - ``narrowed``: windows may be smaller than when their rows were stored; only set between such a change and the next
      step
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
        """The values that the directory stores."""
        return {name: value for name, value in vars(self).items() if name != NARROWED or value}

    def with_clock(self, watermarks: Watermarks) -> WindowProgress:
        """The same with the clock and the run of this batch."""
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

    The first and the last trigger are not arrivals and have no port. ``ordered``: whether an order value is known.
    """

    new: tuple[KeyedRows, ...]
    ports: Ports
    orders: Ints
    ordered: Bools

    @property
    def count(self) -> int:
        """The number of rows that arrive."""
        return len(self.ports) - 2


def stream(
    join: WindowJoinOperator, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
) -> Iterator[pa.Table | Emission]:
    """Process one batch of one shard: yield joined rows piece by piece, and the emission last."""
    # Windows do not use event time: of the watermarks, only the clock and the run are read.
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
    """Whether no row arrives or is evicted, as in most shards of a small batch: then the state is not read."""
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
    tables = [_sort_arrivals(side, arrivals.get(port)) for port, side in enumerate(join.ports)]
    orders = np.concatenate([order for _, order, _ in tables])
    ordered = np.concatenate([known for _, _, known in tables])
    sizes = [len(order) for _, order, _ in tables]
    ports = np.repeat(np.array([LEFT, RIGHT], np.int8), sizes)
    arrival_order = np.arange(len(ports))
    if join.interleaved and join.left.order is not None and join.right.order is not None:
        # The left rows come first, also among rows with equal order values.
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
    """The positions that sort order values, unknown ones last; the sort is stable."""
    if (values[1:] >= values[:-1]).all() and (has_value[:-1] >= has_value[1:]).all():
        return np.arange(values.size)
    # An unknown value is stored as the highest number, which a known value may also be.
    positions = np.argsort(values, kind="stable")
    return positions if has_value.all() else positions[np.argsort(~has_value[positions], kind="stable")]


def _make_rows(
    join: WindowJoinOperator, port: int, batch: pa.RecordBatch, numbers: Ints, progress: WindowProgress
) -> KeyedRows:
    """Arrivals of a port in the layout of the state."""
    layout, size = join.layouts[port], batch.num_rows
    clock = pa.array(np.full(size, HIGHEST if progress.clock is None else progress.clock))
    own = {NUMBER: pa.array(numbers), DEAD: pa.array(~join.ports[port].can_match(batch)), CLOCK: clock}
    columns = [own[name] if name in own else batch.column(name) for name in layout.run_columns]
    rows = layout.rows(pa.RecordBatch.from_arrays(columns, names=list(layout.run_columns)))
    return rows.with_attributes(**{name: np.zeros(size, np.bool_) for name, _ in layout.notes})


def _plan_evictions(
    join: WindowJoinOperator, progress: WindowProgress, spines: Sequence[Spine], arrivals: WindowArrivals
) -> tuple[EvictionPlan, EvictionPlan]:
    """The rows of each window followed by the new ones, with the trigger at which each is evicted."""
    both: list[EvictionPlan] = []
    for port, (spec, spine) in enumerate(zip(join.windows, spines, strict=True)):
        old = len(spine)
        spine.add(arrivals.new[port])
        rows = WindowRows.of(spine.rows(), join.ports[port].code, progress.first_clock)
        clock, suspended, narrowed = progress.clock, progress.suspended[port], progress.narrowed
        both.append(
            plan_evictions(
                spec, rows, old, progress.number, arrivals.count, clock=clock, suspended=suspended, narrowed=narrowed
            )
        )
    return both[LEFT], both[RIGHT]


def _evict_overflow(shard: Shard, both: tuple[EvictionPlan, EvictionPlan]) -> tuple[EvictionPlan, EvictionPlan]:
    """The same with the oldest rows evicted where ``max_rows`` is exceeded; fails the batch if the join says so."""
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
    """The joined rows of the batch, piece by piece; unmatched rows of a side with a side output go to that output."""
    moments = [side.arrival_times(join) for side in sides]
    for pairs, unmatched in join_pieces(join, sides, find_probe_ranges(sides, arrivals.ports)):
        shard.counters.matched += len(pairs.triggers)
        shard.counters.record_delays(moments[LEFT], pairs.left, moments[RIGHT], pairs.right)
        result = pairs
        for port, side in enumerate(join.ports):
            mine = unmatched.where(unmatched.lacks == 1 - port)
            shard.counters.padded[port] += len(mine.triggers)
            if side.unmatched and len(mine.triggers):
                positions = (mine.left, mine.right)[port]
                columns = [sides[port].column(name, positions) for name in side.unmatched]
                shard.counters.unmatched.append((port, pa.Table.from_arrays(columns, names=list(side.unmatched))))
        own_output = np.array([not side.unmatched for side in reversed(join.ports)])
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
        columns += [sides[port].column(name, positions, mask) for name in join.ports[port].columns]
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


def spine(identity: Identity, name: str) -> SpineSchema:
    """The rows of a side."""
    port = ("left", "right").index(name)
    window = identity["windows"][port]
    of = " in the same partition" if window["partition"] else ""
    match window["kind"]:
        case "count":
            ends = f"until {window['size']} later rows of their side{of} arrive"
        case "delta":
            ends = f"until a row of their side{of} arrives that differs by more than {window['size']}"
        case _:
            ends = f"for {window['size'] / 1_000_000:g} s by the clock"
    return SpineSchema(port, ends)


def numbers(identity: Identity, parts: Sequence[Mapping[str, Any]], look: ShardInspector) -> Mapping[str, Any]:
    """The directory numbers of several shards as those of one: rows are renumbered, and partitions counted."""
    first = parts[0]
    if any(part.get("run") != first.get("run") for part in parts):
        raise UnevenError("its shards are not all at the same batch")
    # One shard in which time evicts again is enough.
    suspended = [all(part["suspended"][port] for part in parts) for port in (0, 1)]
    clocks = {
        name: pick((part[name] for part in parts if part.get(name) is not None), default=None)
        for name, pick in (("clock", max), ("first_clock", min))
    }
    sides = [look.rows(name, spine(identity, name)) for name in ("left", "right")]
    partitions = [_partitions(rows, identity["windows"][port]["partition"]) for port, rows in enumerate(sides)]
    number = sum(0 if rows is None else len(rows) for rows in sides)
    return {**first, **clocks, "number": number, "suspended": suspended, "partitions": partitions}


def _partitions(rows: SpineRows | None, columns: Sequence[str]) -> int:
    """The number of partitions of rows; without partition columns, one."""
    if rows is None or not len(rows):
        return 0
    return len(np.unique(key_ids(rows.table, tuple(columns)))) if columns else 1


STATE_SCHEMA = StateSchema(("window",), spine, numbers=numbers, arrival="#number")
