"""The interval join: joins rows whose event times lie within constant bounds of each other.

Definition. A left row l and a right row r are a pair of the result when their keys are equal (NULL never is), the time
bounds hold, the rest of the condition is true, and neither was late. See `definition` for the same in slow and obvious
steps.

A batch is one instant of a shard:

1. A new row is late if one of its times is below its column's watermark before the batch. It is dropped and counted,
   and never padded.
2. A new row that can never match (NULL key, NULL time, own predicate not true) is padded at once if its side is
   preserved.
3. The other new rows are matched with the stored rows of the other side, and with each other.
4. The watermarks of the batch are applied. Expired rows leave the state, new ones included; unmatched rows of a
   preserved side are emitted padded in this same batch.

A row expires once no row that is not late can satisfy its bounds. So an expired row may stay in its run until the whole
run is dropped, and all new rows of both sides may be matched, whether they arrive in one batch or in two.

`STATE_SCHEMA` describes what a state holds: rows of each side, until a watermark of the other side has passed
everything they can match.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.condition import Condition
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import (
    Bools,
    Ints,
    Pairs,
    Stretches,
    as_int64,
    reach,
    shares_a_code,
    shift_times,
    stretches,
)
from watersmeet.operators.core.operator import LEFT, RIGHT, Emission, Port, StateStore, Watermarks
from watersmeet.operators.core.watermarks import Bound, WatermarkState
from watersmeet.operators.state.format import StateBlock
from watersmeet.operators.state.layout import Budget, KeyedRows, RowLayout, rows_per_piece
from watersmeet.operators.state.shard import LEFT_ONLY, Shard, TwoSided, verify_pairs
from watersmeet.operators.state.spine import ShardState, Spine
from watersmeet.operators.state.state_schema import ExpiryTimes, SpineSchema, StateSchema

SIDES = ("left", "right")
"""The spines, by port."""


def spine(identity: Identity, name: str) -> SpineSchema:
    """The rows of a side."""
    port = SIDES.index(name)
    ends = [*limits_of(identity, port), *(limit for limit in end_limits_of(identity, port))]
    return SpineSchema(
        port,
        "until the watermark of the other side passes every time that can match",
        expiry=partial(_expiry_times, ends),
    )


def limits_of(identity: Identity, port: int) -> list[tuple[str, str, int]]:
    """The limits on a side's rows: a column, the watermark that expires it, and how far ahead that may be.

    Between the compared times the limit is taken from the range, which accounts for strict bounds.
    """
    times = [port_identity.get("time") for port_identity in identity["ports"]]
    low, high = identity["range"]
    exact = {(times[0], times[1]): high, (times[1], times[0]): -low}
    own = frozenset(identity["ports"][port]["times"])
    return [
        (column, other, exact.get((column, other), constant))
        for column, other, constant in identity["bounds"]
        if column in own
    ]


def end_limits_of(identity: Identity, port: int) -> Iterator[tuple[str, str, int]]:
    """The same for row ends: columns that the condition compares with a time of the other side."""
    others = frozenset(identity["ports"][1 - port].get("times", ()))
    stored = frozenset(identity["ports"][port]["stored"])
    condition = identity["condition"]
    parts = condition[1:] if condition and condition[0] == "and" else [condition]
    for part in parts:
        match part:
            case [("<" | "<=") as operator, low, {"column": end}] if end in stored:
                time, constant = _parse_shifted_time(low)
                if time in others and constant is not None:
                    yield end, time, -constant - (operator == "<")
            case _:
                pass


def _parse_shifted_time(part: Any) -> tuple[str, int | None]:
    """A time column and the constant added to it; None where the expression has another shape."""
    match part:
        case {"column": str(time)}:
            return time, 0
        case [("+" | "-") as operator, {"column": str(time)}, {"microseconds": value} | {"int": value}]:
            return time, int(value) * (1 if operator == "+" else -1)
        case _:
            return "", None


def _expiry_times(ends: list[tuple[str, str, int]], rows: pa.RecordBatch) -> ExpiryTimes:
    limits: dict[str, Ints] = {}
    for column, watermark, constant in ends:
        if column in rows.schema.names:
            until = shift_times(as_int64(rows.column(column)), constant)
            limits[watermark] = np.minimum(until, limits[watermark]) if watermark in limits else until
    return limits


STATE_SCHEMA = StateSchema(("interval",), spine, limits_of)


UNLIMITED = 2**63 - 1
"""The end of a range that no bound between the compared times limits; another pair of columns has the bound."""


@dataclass(frozen=True)
class IntervalJoinOperator(TwoSided):
    """An interval join, ready to run.

    The range matcher works on the compared times of the ports: ``lower <= right time - left time <= upper``. ``bounds``
    determine when rows expire, and ``end_bounds`` do the same for row ends: bounds whose column is one of the ``ends``
    of its port. ``condition`` is the rest of the condition; every bound and every expiry follows from the whole
    condition.
    """

    name: ClassVar[str] = "interval"

    lower: int
    upper: int
    bounds: tuple[Bound, ...]
    condition: Condition | None = None
    end_bounds: tuple[Bound, ...] = ()

    def stream(
        self, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
    ) -> Iterator[pa.Table | Emission]:
        """Process one batch of one shard (see the module's definition)."""
        return stream(self, store, arrivals, watermarks)

    def take_over(self, store: StateStore, was: Identity) -> None:
        """Continue with the state of a join with other bounds: rows that expired by the old ones are gone for good."""
        take_over(self, store, was)

    @property
    def can_split_batch(self) -> bool:
        """Whether the arrivals of a batch may be split over several steps, with the watermarks in the last.

        The result is the same, because watermarks determine which rows of the next batch are late and which rows expire
        at the end of this one; but a limit must see the whole batch.
        """
        return self.max_rows is None

    @property
    def identity(self) -> Identity:
        """The part of the join that determines the meaning of its state."""
        names = self.canonical_names
        return self.make_identity(
            (layout.columns for layout in self.layouts),
            kind=self.kind,
            range=[self.lower, self.upper],
            # The range or the condition already says whether bounds are strict, and the condition where rows end.
            bounds=sorted(
                [*names.canonical_list((bound.column, bound.other)), bound.constant] for bound in self.bounds
            ),
            condition=names.condition(self.condition),
        )

    @property
    def times(self) -> tuple[str, ...]:
        """The watermarked columns of the result."""
        return self.left.times if self.kind in LEFT_ONLY else (*self.left.times, *self.right.times)

    @property
    def waits(self) -> tuple[Bound, ...]:
        """The bounds between columns. A row end has no watermark, so the times of its side stand in for it."""
        pairs = ((side.times, bound) for side in self.ports for bound in self.end_bounds if bound.column in side.ends)
        return (*self.bounds, *(replace(bound, column=time) for times, bound in pairs for time in times))

    @property
    def watermark_dependencies(self) -> tuple[str, ...]:
        """The columns that bounds and row ends relate to each other."""
        named = (name for bound in self.waits for name in (bound.column, bound.other))
        return tuple(dict.fromkeys(named))

    def uniform_watermarks(self, uniform: frozenset[str]) -> frozenset[str]:
        """The columns held back by bounds only; a column without bounds follows the rows in each shard's state."""
        bounds = {column: [bound.other for bound in self.bounds if bound.column == column] for column in self.times}
        return frozenset(
            column for column, others in bounds.items() if others and uniform.issuperset((column, *others))
        )

    @cached_property
    def layouts(self) -> tuple[RowLayout, RowLayout]:
        """The layout of each side's state: the columns that the result, the match and the condition need, each once."""
        return (
            _layout(self.left, tracked=self.tracks_matches[LEFT]),
            _layout(self.right, tracked=self.tracks_matches[RIGHT]),
        )

    def span(self, port: int) -> tuple[int | None, int | None]:
        """The distance of the times of matching rows from those of ``port``; None: not bounded."""
        lower, upper = self._span
        if port == LEFT:
            return lower, upper
        return None if upper is None else -upper, None if lower is None else -lower

    @cached_property
    def _span(self) -> tuple[int | None, int | None]:
        bounded = {(bound.column, bound.other) for bound in self.bounds}
        times = (self.left.time, self.right.time)
        lower = None if self.lower == -UNLIMITED and times[::-1] not in bounded else self.lower
        upper = None if self.upper == UNLIMITED and times not in bounded else self.upper
        return lower, upper

    def reach(self, port: int, rows: KeyedRows) -> tuple[Ints, Ints]:
        """The first and last time of the other side that rows of ``port`` can match."""
        first, last = reach(rows.times[self.ports[port].time], *self.span(port))
        return first, self._latest_reach(port, rows, last)

    def pairs(
        self, left: KeyedRows, right: KeyedRows, probe: int, reach: tuple[Ints, Ints], probes: Ints | None = None
    ) -> Iterator[Pairs]:
        """The pairs of a left and a right row for which keys, bounds and condition hold, piece by piece.

        ``probe`` is the port of the probing rows, which have that ``reach``; ``probes``: the positions of those whose
        codes the other rows have, None: any may. In the result, ``probe`` holds positions in ``left`` and ``build``
        positions in ``right``.
        """
        probe_rows, build_rows = (left, right) if probe == LEFT else (right, left)
        build_times = build_rows.times[self.ports[1 - probe].time]
        if probes is None:
            spans = stretches(build_rows.codes, build_times, probe_rows.codes, *reach)
        else:
            low, high = (times[probes] for times in reach)
            spans = stretches(build_rows.codes, build_times, probe_rows.codes[probes], low, high)
            spans = Stretches(probes[spans.probe], spans.start, spans.stop)
        for piece in spans.pieces(rows_per_piece(left, right)):
            pairs = verify_pairs(
                self.ports, self.condition, left, right, piece if probe == LEFT else Pairs(piece.build, piece.probe)
            )
            if pairs.probe.size:
                yield pairs

    def _latest_reach(self, port: int, rows: KeyedRows, high: Ints) -> Ints:
        """The latest time of the other side that rows of ``port`` reach, no later than their own ends."""
        for bound in self.end_bounds:
            if bound.column in self.ports[port].ends and bound.other == self.ports[1 - port].time:
                # Shifting saturates at the lowest time; the condition rejects a match at it.
                high = np.minimum(high, shift_times(rows.times[bound.column], bound.constant - bound.strict))
        return high

    def can_meet(self, port: int, rows: KeyedRows, block: StateBlock) -> bool:
        """Whether new rows of ``port`` can match in a block of the other side, by its codes, times and ends."""
        if int(rows.codes[0]) > block.highest_code or int(rows.codes[-1]) < block.lowest_code:
            return False
        times = rows.times[self.left.time if port == LEFT else self.right.time]
        lower, upper = self.span(port)
        theirs = self.right.time if port == LEFT else self.left.time
        if lower is not None and int(times.min()) + lower > block.highest[theirs]:
            return False
        if upper is not None and block.lowest[theirs] > int(times.max()) + upper:
            return False
        # A block that was written before its ends counted does not know them.
        ends = ((block.highest.get(bound.column), bound) for bound in self.end_bounds if bound.other in rows.times)
        return all(end is None or end >= int(rows.times[bound.other].min()) - bound.constant for end, bound in ends)


def _layout(port: Port, *, tracked: bool) -> RowLayout:
    times = tuple(dict.fromkeys((*port.times, *port.ends)))
    columns = tuple(dict.fromkeys((*port.input_columns, *times)))
    return RowLayout(columns, times, port.time, port.code, notes=((MATCHED, "flag"),) if tracked else ())


# One batch of an interval join in one shard: admit new rows, match them with the state, expire, emit.


MATCHED = "matched"
"""The attribute that marks rows as matched."""

STRICT = "strict"
"""A number of the directory: rows have expired by strict bounds. In a state without it they lived one unit longer, so
rows at the limit itself have not been emitted yet.
"""

ROW_ENDS = "lives"
"""A number of the directory: rows have expired by the ends they carry. In a state without it only bounds expired rows.
The value is the first name of such ends. It is in stored states, so it stays.
"""

LIMITS_BEFORE_CHANGE = "before"
"""An entry of the directory's numbers: the limits by which rows expired before the bounds changed. Rows that the new
bounds expire at once have not been emitted yet.
"""

SPARSE = 2
"""A block of rows that carry their ends is rewritten once fewer than one row in this many is alive: rows of one time
may end at any time, and a single long-lived one would retain the others.
"""

FEW = 256
"""For at most this many new rows, the codes of a run are compared first, since most likely none matches."""

BUDGET = Budget(largest=250_000, sparse=1)
"""Runs grow to about a million rows by merging and no further, so that expired runs can be dropped whole."""


class StateSummary:
    """The rows per port that remain after a step, and the earliest time in each column."""

    def __init__(self) -> None:
        self.rows = [0, 0]
        self.earliest: dict[str, int] = {}

    def add(self, port: int, rows: int, lowest: Watermarks) -> None:
        """Add rows that remain."""
        self.rows[port] += rows
        for name, time in lowest.items():
            self.earliest[name] = min(time, self.earliest.get(name, time))


def stream(
    join: IntervalJoinOperator, store: StateStore, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
) -> Iterator[pa.Table | Emission]:
    """Process one batch of one shard: yield joined rows piece by piece, and the emission last."""
    bounds = (*join.bounds, *join.end_bounds)
    shard = Shard(join, store, watermarks, bounds, join.waits)
    numbers = {STRICT: any(bound.strict for bound in join.bounds), ROW_ENDS: bool(join.end_bounds)}
    stored = shard.state.directory.numbers
    if any(applies and not stored.get(number) for number, applies in numbers.items()):
        shard.watermarks_before = WatermarkState.of(shard.watermarks_before.received, _previous_bounds(join, stored))
    if LIMITS_BEFORE_CHANGE in stored:
        shard.watermarks_before = WatermarkState(
            shard.watermarks_before.received, join.canonical_names.from_canonical(stored[LIMITS_BEFORE_CHANGE])
        )
    spines = [
        shard.state.spine(name, layout, BUDGET, lambda rows, _: rows.where(_is_alive(shard, rows)))
        for name, layout in zip(("left", "right"), join.layouts, strict=True)
    ]
    new: dict[int, KeyedRows] = {}
    padded: list[pa.Table] = []
    for port, table in arrivals.items():
        new[port], dead = _admit_rows(join, shard, port, table)
        padded += _pad_rows(join, shard, port, dead)
    yield from _match_new_rows(join, shard, spines, new)
    summary = StateSummary()
    for port in (LEFT, RIGHT):
        for rows in _expire_blocks(join, shard, port, spines[port], summary):
            padded += _pad_rows(join, shard, port, rows)
    for port, rows in new.items():
        alive = _is_alive(shard, rows)
        padded += _pad_rows(join, shard, port, _select_unmatched(rows, ~alive))
        new[port] = rows = rows.where(alive)
        if len(rows):
            summary.add(port, len(rows), rows.lowest)
    for port, rows in _drop_overflow(join, shard, spines, new, summary):
        padded += _pad_rows(join, shard, port, rows)
    for port, rows in new.items():
        spines[port].add(rows)
    bounded = frozenset(bound.column for bound in join.bounds)
    windows = {side.window.time: side.window.size for side in join.ports if side.window is not None}
    emitted = shard.watermarks_after.output_watermarks(
        join.times, bounded, summary.earliest, shard.state.directory.emitted, windows
    )
    yield shard.close(emitted, padded, summary.rows, _expiry_flags(numbers, shard))


def take_over(join: IntervalJoinOperator, store: StateStore, was: Identity) -> None:
    """Remove rows that expired by the old bounds, even if the new ones would retain them, and note the old limits."""
    state = ShardState(store, join.canonical_names)
    numbers = state.directory.numbers
    limits = state.directory.numbers.get(LIMITS_BEFORE_CHANGE)
    if limits is None:
        ends = [*(limits_of(was, 0) + limits_of(was, 1) if numbers.get(STRICT) else map(tuple, was["bounds"]))]
        ends += [bound for port in (LEFT, RIGHT) for bound in end_limits_of(was, port)] if numbers.get(ROW_ENDS) else []
        received = join.canonical_names.to_canonical(state.directory.received)
        limits = WatermarkState.of(
            received, [Bound(column, other, constant) for column, other, constant in ends]
        ).limits
    before = WatermarkState({}, join.canonical_names.from_canonical(limits))
    for name, layout in zip(("left", "right"), join.layouts, strict=True):
        spine = state.spine(name, layout, BUDGET)
        for block in spine.blocks:
            if before.has_expired(block.lowest):
                rows = spine.index(block)
                spine.remove(block, before.is_expired(rows.times, len(rows)))
    state.save(numbers={**numbers, LIMITS_BEFORE_CHANGE: limits})


def _previous_bounds(join: IntervalJoinOperator, numbers: Mapping[str, int]) -> list[Bound]:
    """The bounds by which rows have expired up to now, given the numbers of the directory."""
    bounds = join.bounds if numbers.get(STRICT) else (replace(bound, strict=False) for bound in join.bounds)
    return [*bounds, *(join.end_bounds if numbers.get(ROW_ENDS) else ())]


def _expiry_flags(numbers: Mapping[str, bool], shard: Shard) -> dict[str, int]:
    """The directory numbers that say how rows have expired; empty before the first watermark, as no row has expired."""
    return {name: 1 for name, applies in numbers.items() if applies} if shard.watermarks_after.received else {}


def _admit_rows(join: IntervalJoinOperator, shard: Shard, port: int, table: pa.Table) -> tuple[KeyedRows, KeyedRows]:
    """The arrivals of a port that are in time: those that may match, sorted, and those that never can."""
    new, dead = shard.admit_rows(port, table, join.layouts[port])
    new = join.layouts[port].sort(new)
    if join.tracks_matches[port]:
        new = new.with_attributes(**{MATCHED: np.zeros(len(new), np.bool_)})
    return new, dead


def _match_new_rows(
    join: IntervalJoinOperator, shard: Shard, spines: Sequence[Spine], new: Mapping[int, KeyedRows]
) -> Iterator[pa.Table]:
    """Match the new rows with the state of the other side and with each other; yields the joined rows."""
    reach = {port: join.reach(port, rows) for port, rows in new.items()}
    for port, rows in new.items():
        spine = spines[1 - port]
        for block in spine.blocks if len(rows) else ():
            if not join.can_meet(port, rows, block):
                continue
            old, positions, probes = spine.find(block, rows.codes)
            if not len(old) or (probes is None and len(rows) <= FEW and not shares_a_code(old.codes, rows.codes)):
                continue
            matched = old.attributes.get(MATCHED)
            if matched is not None:
                old = old.with_attributes(**{MATCHED: matched.copy()})
            sides = (rows, old) if port == LEFT else (old, rows)
            yield from _join_rows(join, shard, *sides, port, reach[port], probes)
            if matched is not None and not np.array_equal(matched, old.attributes[MATCHED]):
                flags = old.attributes[MATCHED]
                if positions is not None:
                    flags = spine.note(block, MATCHED).copy()
                    flags[positions] = old.attributes[MATCHED]
                spine.annotate(block, MATCHED, flags)
    if len(new) == 2:
        yield from _join_rows(join, shard, new[LEFT], new[RIGHT], LEFT, reach[LEFT])


def _join_rows(
    join: IntervalJoinOperator,
    shard: Shard,
    left: KeyedRows,
    right: KeyedRows,
    probe: int,
    reach: tuple[Ints, Ints],
    probes: Ints | None = None,
) -> Iterator[pa.Table]:
    """The joined rows of two sets of rows; marks those that match. ``probes``: see `IntervalJoinOperator.pairs`."""
    times = left.times[join.left.time], right.times[join.right.time]
    for pairs in join.pairs(left, right, probe, reach, probes):
        shard.counters.record_delays(times[LEFT], pairs.probe, times[RIGHT], pairs.build)
        first = _mark_matched(left, pairs.probe)
        _mark_matched(right, pairs.build)
        if join.kind == "semi":
            shard.counters.matched += int(first.size)
            yield _result_table(join, _result_columns(join, LEFT, left).take(pa.array(first)).columns, [])
        elif join.kind != "anti":
            shard.counters.matched += int(pairs.probe.size)
            mine = _result_columns(join, LEFT, left).take(pa.array(pairs.probe))
            yield _result_table(
                join, mine.columns, _result_columns(join, RIGHT, right).take(pa.array(pairs.build)).columns
            )


def _mark_matched(rows: KeyedRows, positions: Ints) -> Ints:
    """Note that these rows have matched; returns those that had not before."""
    matched = rows.attributes.get(MATCHED)
    if matched is None:
        return positions[:0]
    first = np.unique(positions[~matched[positions]])
    matched[first] = True
    return first


def _expire_blocks(
    join: IntervalJoinOperator, shard: Shard, port: int, spine: Spine, summary: StateSummary
) -> Iterator[KeyedRows]:
    """Drop the blocks that have expired whole; yields expired rows of a preserved side that never matched."""
    for block in spine.blocks:
        if not shard.watermarks_after.has_expired(block.lowest) and all(
            end in block.lowest for end in join.ports[port].ends
        ):
            summary.add(port, block.rows, block.lowest)
            continue
        if join.is_preserved[port]:
            rows = spine.index(block)
            has_expired = ~_is_alive(shard, rows) & ~shard.watermarks_before.is_expired(rows.times, len(rows))
            yield spine.select(block, np.flatnonzero(has_expired & ~rows.attributes[MATCHED]))
        if shard.watermarks_after.has_expired(block.highest):
            spine.drop(block)
            continue
        rows = spine.index(block)
        alive = _is_alive(shard, rows)
        count = int(alive.sum())
        if count:
            summary.add(port, count, {name: int(times[alive].min()) for name, times in rows.times.items()})
        if count * SPARSE < block.rows if join.end_bounds else not count:
            spine.remove(block, ~alive)


def _drop_overflow(
    join: IntervalJoinOperator, shard: Shard, spines: Sequence[Spine], new: dict[int, KeyedRows], summary: StateSummary
) -> list[tuple[int, KeyedRows]]:
    """Drop the rows with the earliest times if ``max_rows`` is exceeded; returns those that never matched."""
    if not shard.excess(summary.rows):
        return []
    stored = [(port, block, spines[port].index(block)) for port in (LEFT, RIGHT) for block in spines[port].blocks]
    parts = [*stored, *((port, None, rows) for port, rows in new.items())]
    alive = [_is_alive(shard, rows) for _, _, rows in parts]
    times = [
        rows.times[join.ports[port].time][is_alive] for (port, _, rows), is_alive in zip(parts, alive, strict=True)
    ]
    oldest = shard.choose_overflow(times, summary.rows)
    alone: list[tuple[int, KeyedRows]] = []
    for (port, block, rows), among_alive, is_alive in zip(parts, oldest, alive, strict=True):
        if among_alive.any():
            drop = is_alive.copy()
            drop[is_alive] = among_alive
            shard.counters.dropped[port] += int(drop.sum())
            summary.rows[port] -= int(drop.sum())
            if block is None:
                alone.append((port, _select_unmatched(rows, drop)))
                new[port] = rows.where(is_alive & ~drop)
            else:
                matched = rows.attributes.get(MATCHED)
                if matched is not None:
                    alone.append((port, spines[port].select(block, np.flatnonzero(drop & ~matched))))
                spines[port].remove(block, ~is_alive | drop)
    return alone


def _is_alive(shard: Shard, rows: KeyedRows) -> Bools:
    """A mask of the rows that can still match."""
    return ~shard.watermarks_after.is_expired(rows.times, len(rows))


def _select_unmatched(rows: KeyedRows, evicted: Bools) -> KeyedRows:
    """The evicted rows that never matched; empty where matches are not tracked."""
    matched = rows.attributes.get(MATCHED)
    return rows.slice(0, 0) if matched is None else rows.where(evicted & ~matched)


def _pad_rows(join: IntervalJoinOperator, shard: Shard, port: int, rows: KeyedRows) -> list[pa.Table]:
    """Rows of a preserved side padded with NULLs for the other; an empty list without rows."""
    if not len(rows) or not join.is_preserved[port]:
        return []
    shard.counters.padded[port] += len(rows)
    mine, nulls = _result_columns(join, port, rows).columns, [pa.nulls(len(rows))] * len(join.ports[1 - port].columns)
    return [_result_table(join, *((mine, nulls) if port == LEFT else (nulls, mine)))]


def _result_table(join: IntervalJoinOperator, left: list[pa.Array], right: list[pa.Array]) -> pa.Table:
    """Rows of the result from the columns of both sides."""
    return pa.Table.from_arrays([*left, *right], names=[*join.left.columns, *join.right.columns])


def _result_columns(join: IntervalJoinOperator, port: int, rows: KeyedRows) -> pa.RecordBatch:
    return rows.table.select(list(join.ports[port].columns))
