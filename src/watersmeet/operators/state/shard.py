"""The frame around a step of one shard: what every family does before and after rows are matched.

A family opens a `Shard`, which separates late rows, matches and expires rows in its own way, asks how many rows exceed
the limit, and closes the shard with its results.

Joins of a left and a right side share their kinds and the check of candidates against the whole condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.operators.core.condition import Condition, holds, null_safe_equal
from watersmeet.operators.core.matching import (
    HIGHEST,
    LOWEST,
    Bools,
    Histogram,
    Ints,
    Pairs,
    as_int64,
    build_histogram,
    distances,
    sample_stride,
)
from watersmeet.operators.core.operator import (
    END_OF_INPUT,
    HISTOGRAMS,
    LEFT,
    SUMMED_PORT_COUNTERS,
    Emission,
    Port,
    StateOverflowError,
    StateStore,
    StepReport,
    StreamOperator,
    Watermarks,
)
from watersmeet.operators.core.routing import COPY
from watersmeet.operators.core.watermarks import Bound, WatermarkState, derive_watermarks, with_partitions
from watersmeet.operators.state.layout import FinalityBound, KeyedRows, RowLayout
from watersmeet.operators.state.spine import ShardState, Spine

LATE_COLUMN, LATE_BY = "#late_column", "#late_by"
"""The columns added to a late row: the watermark it missed, and by how much (NULL: its side had ended)."""

Positions = npt.NDArray[np.int32] | npt.NDArray[np.int64]
"""Positions of rows, in the integer width that the family uses."""
FEW_MATCHES = 256
"""Fewer matches than this are collected before they are counted: the cost of counting is mostly fixed."""
EXAMPLES = 3
"""The number of late rows per port that are reported as examples, even without a side output."""


class StepCounters:
    """The counters of a step, per port, and the rows of side outputs."""

    def __init__(self, ports: int) -> None:
        self.rows, self.late, self.padded, self.dropped = ([0] * ports for _ in range(4))
        self.matched = 0
        self.late_rows: list[tuple[int, pa.Table]] = []
        self.unmatched: list[tuple[int, pa.Table]] = []
        self._pending_lengths: list[npt.NDArray[np.uint64]] = []
        self._delays: Histogram | None = None
        self.lateness: Histogram | None = None
        self.too_late: list[pa.Table] = []

    def record_delays(self, times: Ints, rows: Positions, others: Ints, other_rows: Positions) -> None:
        """Record the delays of matched rows: of one side at these positions, and of the other."""
        step = sample_stride(rows.size)
        if rows.size:
            lengths = distances(times[rows[::step]], others[other_rows[::step]])
            if step == 1 and rows.size < FEW_MATCHES:
                self._pending_lengths.append(lengths)
            else:
                self._add_delays(build_histogram(lengths, rows.size / lengths.size))

    @property
    def delays(self) -> Histogram | None:
        """The histogram of the delays between matched rows; None: no matches."""
        if self._pending_lengths:
            self._add_delays(build_histogram(np.concatenate(self._pending_lengths)))
            self._pending_lengths = []
        return self._delays

    def _add_delays(self, counts: Histogram) -> None:
        self._delays = counts if self._delays is None else self._delays + counts

    def record_lateness(self, by: pa.Array) -> None:
        """Record by how much rows were late; NULL where their side had ended."""
        amounts = by.drop_null()
        if len(amounts):
            lengths = amounts.to_numpy(zero_copy_only=False)[:: sample_stride(len(amounts))]
            counts = build_histogram(lengths, len(amounts) / lengths.size)
            self.lateness = counts if self.lateness is None else self.lateness + counts


class Shard:
    """A step of one shard: its state, its watermarks before and after the batch, and its counters.

    ``bounds`` determine when rows expire; ``waits``: which column waits for which, if that differs; ``slowest``:
    whether columns also wait for each other (see `derive_watermarks`).
    """

    def __init__(
        self,
        operator: StreamOperator,
        store: StateStore,
        watermarks: Watermarks,
        bounds: Sequence[Bound] = (),
        waits: Sequence[Bound] | None = None,
        *,
        slowest: bool = False,
    ) -> None:
        self.operator = operator
        self.state = ShardState(store, operator.canonical_names)
        directory = self.state.directory
        self.watermarks_before = WatermarkState.of(directory.received, bounds)
        waits = bounds if waits is None else waits
        unions, idle = with_partitions(operator.unions, operator.idle, {*watermarks, *directory.received})
        derived, self.active = derive_watermarks(
            watermarks, unions, idle, waits, directory.received, directory.active, slowest=slowest
        )
        self.watermarks_after = self.watermarks_before.merge(derived, bounds)
        self.counters = StepCounters(len(operator.ports))

    def detect_late_rows(self, port: int, table: pa.Table, times: Mapping[str, Ints]) -> Bools:
        """A mask of the arrivals of a port that are late; counts all arrivals, and sends late ones to the side output.

        ``times`` are the watermarked columns of the table. Where there is one row per window, only the row of the last
        window counts. A copy of a row with a skewed key does not count.
        """
        window = self.operator.ports[port].window
        is_copy = table.column(COPY).to_numpy() if COPY in table.column_names else None
        self.counters.rows[port] += table.num_rows if is_copy is None else int((~is_copy).sum())
        if window is None:
            late = is_late = self.watermarks_before.is_late(times, table.num_rows)
        else:
            ends = as_int64(table.column(window.end).combine_chunks())
            is_late = self.watermarks_before.is_late({**times, window.time: ends - 1}, table.num_rows)
            late = is_late & window.is_last(times[window.time], ends)
        if is_copy is not None:
            late = late & ~is_copy
        if late.any():
            self.counters.late[port] += int(late.sum())
            missed = self.watermarks_before.lateness(
                {name: values[late] for name, values in times.items()}, int(late.sum())
            )
            time_name = self.operator.ports[port].time_name
            missed = missed if time_name is None else (pa.repeat(pa.scalar(time_name), int(late.sum())), missed[1])
            self.counters.record_lateness(missed[1])
            examples = np.flatnonzero(late)[:EXAMPLES]
            reasons = [column.slice(0, len(examples)) for column in missed]
            shown = table.take(pa.array(examples))
            self.counters.too_late.append(
                shown.append_column(LATE_COLUMN, reasons[0]).append_column(LATE_BY, reasons[1])
            )
            self.emit_late_rows(port, table, late, *missed)
        return is_late

    def admit_rows(
        self, port: int, table: pa.Table, layout: RowLayout, side: Port | None = None
    ) -> tuple[KeyedRows, KeyedRows]:
        """The arrivals of a port that are not late: those that may match, and those that never can.

        ``side`` replaces the operator's port in deciding which can.
        """
        side, rows = side or self.operator.ports[port], layout.rows(table)
        row_times = rows.times
        times = {c: row_times[c] if c in row_times else as_int64(table.column(c).combine_chunks()) for c in side.times}
        late = self.detect_late_rows(port, table, times)
        alive = side.can_match(table, side.time, *side.ends)
        return rows.where(alive & ~late), rows.where(~(alive | late))

    def emit_late_rows(self, port: int, table: pa.Table, late: Bools, column: pa.Array, by: pa.Array) -> None:
        """Send late rows to the port's side output, if it has one, with the watermark each missed and by how much."""
        columns = self.operator.ports[port].late
        if columns:
            shown = table.select(list(columns)).filter(pa.array(late))
            shown = shown.append_column(LATE_COLUMN, column).append_column(LATE_BY, by)
            self.counters.late_rows.append((port, shown))

    def excess(self, state_rows: Sequence[int]) -> int:
        """The number of rows to drop so that the shard stays within its limit; fails if overflow is an error."""
        limit = self.operator.max_rows
        if limit is None or sum(state_rows) <= limit:
            return 0
        if self.operator.overflow == "fail":
            raise StateOverflowError(tuple(state_rows), limit)
        return sum(state_rows) - limit

    def choose_overflow(self, times: Sequence[Ints], state_rows: Sequence[int]) -> list[Bools]:
        """Masks of the rows to drop, for several lots with these times, for the shard to stay within its limit."""
        all_times = np.concatenate(times)
        chosen = np.zeros(all_times.size, np.bool_)
        chosen[np.argsort(all_times, kind="stable")[: self.excess(state_rows)]] = True
        return np.split(chosen, np.cumsum([part.size for part in times])[:-1])

    @property
    def spine_sizes(self) -> tuple[int, ...]:
        """The number of rows in each spine."""
        return tuple(len(spine) for spine in self.state.spines.values())

    def hold_back_watermarks(self, columns: Iterable[str], waiting: Spine) -> dict[str, int]:
        """The watermarks received for these columns, held back by waiting rows; they never fall."""
        emitted, watermarks = self.state.directory.emitted, dict[str, int]()
        for name in (name for name in columns if name in self.watermarks_after.received):
            watermark, earliest = self.watermarks_after.received[name], waiting.earliest(name)
            if earliest is not None:
                # As long as a row waits the result has not ended, not even in a column that is NULL there.
                watermark = min(watermark, earliest, END_OF_INPUT - 1)
            watermarks[name] = max(watermark, emitted.get(name, watermark))
        return watermarks

    def close(
        self,
        watermarks: Watermarks,
        rows: Iterable[pa.Table] = (),
        state_rows: Sequence[int] | None = None,
        numbers: Mapping[str, Any] | None = None,
        **report: Any,
    ) -> Emission:
        """Save the state; returns the emission with the remaining ``rows`` and the report of the step.

        ``state_rows`` are the stored rows per port; None: the sizes of the spines. ``numbers`` are the numbers that the
        family stores in the directory.
        """
        changes = {} if numbers is None else {"numbers": numbers}
        self.state.save(received=self.watermarks_after.received, emitted=watermarks, active=self.active, **changes)
        counters = self.counters
        counted = {name: tuple(getattr(counters, name)) for name in SUMMED_PORT_COUNTERS}
        histograms = {name: getattr(counters, name) for name in HISTOGRAMS}
        step_report = StepReport(
            **counted, **histograms, matched=counters.matched, watermarks=watermarks,
            state=tuple(self.spine_sizes if state_rows is None else state_rows),
            written=self.state.rows_written, stored=self.state.writes_by_spine, received=self.watermarks_after.received,
            too_late=tuple(counters.too_late), **report,
        )  # fmt: skip
        return Emission(tuple(rows), tuple(counters.late_rows), step_report, tuple(counters.unmatched))


Kind = Literal["inner", "left", "right", "full", "semi", "anti"]
"""``inner``: pairs. ``left``, ``right``, ``full``: pairs, and unmatched rows of the preserved sides, padded with NULLs.
``semi``: a left row once, at its first match. ``anti``: a left row once it can no longer match.
"""

PRESERVED: Mapping[Kind, tuple[bool, bool]] = {
    "inner": (False, False),
    "left": (True, False),
    "right": (False, True),
    "full": (True, True),
    "semi": (False, False),
    "anti": (True, False),
}
LEFT_ONLY: frozenset[Kind] = frozenset({"semi", "anti"})
"""The kinds whose result has only the left side."""


@dataclass(frozen=True)
class TwoSided(StreamOperator):
    """A join of two sides; ``left`` and ``right``: how their rows arrive."""

    kind: Kind
    left: Port
    right: Port

    @property
    def ports(self) -> tuple[Port, Port]:
        """Left and right, by port."""
        return (self.left, self.right)

    @property
    def is_preserved(self) -> tuple[bool, bool]:
        """Whether a port's unmatched rows are emitted."""
        return PRESERVED[self.kind]

    @property
    def tracks_matches(self) -> tuple[bool, bool]:
        """Whether the operator must know which rows of a port have matched."""
        return (True, False) if self.kind == "semi" else self.is_preserved

    def with_code(self, port: int) -> Self:
        """The same join, which also emits the code of that port's keys, for the next join."""
        side = self.ports[port]
        side_with_code = replace(side, columns=(*side.columns, str(side.code)))
        return replace(self, left=side_with_code) if port == LEFT else replace(self, right=side_with_code)


def verify_pairs(
    sides: tuple[Port, Port], condition: Condition | None, left: KeyedRows, right: KeyedRows, candidates: Pairs
) -> Pairs:
    """The candidates whose keys are equal and for which the condition holds."""
    if not sides[0].exact:
        for mine, theirs in zip(sides[0].keys, sides[1].keys, strict=True):
            values = left.table.column(mine).take(pa.array(candidates.probe))
            candidates = candidates.where(
                null_safe_equal(values, right.table.column(theirs).take(pa.array(candidates.build)))
            )
    if condition is None:
        return candidates
    ours = frozenset(left.table.schema.names)

    def column(name: str) -> pa.Array:
        rows, positions = (left, candidates.probe) if name in ours else (right, candidates.build)
        return rows.table.column(name).take(pa.array(positions))

    return candidates.where(holds(condition, column, len(candidates.probe)))


MOST_ENDS = 1_024
"""The number of different window ends that the directory counts exactly; every batch reads and writes it."""


@dataclass(frozen=True)
class EndCounts:
    """The number of groups by the end of their windows; ends are rounded up to a multiple of ``grain``.

    The grain is a power of two, and doubles until there are at most `MOST_ENDS` different ends: sessions have as many
    as there are sessions, and every batch writes all counts. Groups whose windows have ended are counted until their
    rounded end is reached, so that with a grain above 1 the total may be a little too high.
    """

    counts: Mapping[int, int] = field(default_factory=dict[int, int])
    grain: int = 1

    @staticmethod
    def of(numbers: Mapping[str, Any]) -> EndCounts:
        """The counts in the numbers of a directory; an older state has every end."""
        counts = EndCounts(dict[int, int](numbers.get("groups", ())), int(numbers.get("grain", 1)))
        return counts.coarsen(_grain_of(np.array(list(counts.counts), np.int64), counts.grain))

    @property
    def numbers(self) -> dict[str, Any]:
        """The counts as numbers of a directory."""
        return {"groups": sorted(self.counts.items()), **({"grain": self.grain} if self.grain > 1 else {})}

    @property
    def total(self) -> int:
        """The number of groups."""
        return sum(self.counts.values())

    def with_changes(self, ends: Ints, changes: Ints) -> EndCounts:
        """The same after changes of groups with these ends.

        >>> EndCounts({7: 2, 8: 1}).with_changes(np.array([8, 9]), np.array([-1, 1])).counts
        {7: 2, 9: 1}
        >>> EndCounts({8: 1}, grain=8).with_changes(np.array([3, 17]), np.array([1, 1])).counts
        {8: 2, 24: 1}
        """
        grain = _grain_of(np.concatenate([np.array(list(self.counts), np.int64), ends]), self.grain)
        # Few, which is why they are not sorted.
        encoded = pa.array(_round_up(ends, grain)).dictionary_encode()
        sums = np.bincount(encoded.indices, changes, len(encoded.dictionary)).astype(np.int64)
        after = dict(self.coarsen(grain).counts)
        for end, change in zip(encoded.dictionary.to_pylist(), sums.tolist(), strict=True):
            after[end] = after.get(end, 0) + change
        return EndCounts({end: number for end, number in after.items() if number}, grain)

    def coarsen(self, grain: int) -> EndCounts:
        """The same with ends rounded up to multiples of another grain, no smaller than its own."""
        if grain == self.grain:
            return self
        after: dict[int, int] = {}
        ends = _round_up(np.array(list(self.counts), np.int64), grain)
        for end, number in zip(ends.tolist(), self.counts.values(), strict=True):
            after[end] = after.get(end, 0) + number
        return EndCounts(after, grain)

    def may_close(self, mark: int, before_end: int) -> bool:
        """Whether a group may end at or before a time that is so long before the end.

        >>> EndCounts({20: 1, 30: 2}).may_close(9, 10), EndCounts({20: 1}).may_close(10, 10)
        (False, True)
        """
        # Where ends are not known, the highest number stands for them.
        first = min((end - self.grain + 1 if end < HIGHEST else int(LOWEST) for end in self.counts), default=None)
        return first is not None and (mark == END_OF_INPUT or first - before_end <= mark)

    def open_after(self, watermark: int) -> EndCounts:
        """The counts of windows that end after a watermark; without any left, ends are exact again.

        A group without an end, or with one that did not fit, is open until the end of input.
        """
        never = int(HIGHEST) - 1 if watermark < END_OF_INPUT else END_OF_INPUT + 1
        remaining = {end: number for end, number in self.counts.items() if end > watermark or end >= never}
        return EndCounts(remaining, self.grain if remaining else 1)


def rows_to_close(
    spine: Spine, finality: FinalityBound, closed_before: int, counts: EndCounts, before_end: int
) -> KeyedRows | None:
    """All stored rows that the bound closes and that had not closed before, sorted, the older first among equals.

    ``counts`` tells whether there may be any, without reading the state.
    """
    if finality.mark <= closed_before or not counts.may_close(finality.mark, before_end):
        return None
    parts: list[KeyedRows] = []
    for run in spine.runs:
        for block in run:
            lowest, highest = block.lowest.get(finality.time), block.highest.get(finality.time)
            if lowest is None or highest is None or lowest > finality.mark or highest <= closed_before:
                continue
            rows = spine.read(block)
            times = rows.times[finality.time]
            parts.append(rows.where(spine.live_mask(block) & (times > closed_before) & (times <= finality.mark)))
    return spine.layout.merge(parts) if parts else None


def ends_after(times: Ints, length: int) -> Ints:
    """The ends that are so long after some times; the highest number is left to what has no end.

    >>> ends_after(np.array([5, 2**63 - 1]), 10).tolist() == [15, 2**63 - 2]
    True
    """
    return np.minimum(times, HIGHEST - 1 - length) + length


def _grain_of(ends: Ints, grain: int) -> int:
    """The smallest grain from this one on with which few enough different ends are left."""
    ends = np.sort(ends)
    # With the largest grain there are six at most, the ends of 64 bits among them.
    while grain < 2**62 and np.count_nonzero(np.diff(_round_up(ends, grain))) >= MOST_ENDS:
        grain *= 2
    return grain


def _round_up(ends: Ints, grain: int) -> Ints:
    """Ends as the next multiples of a power of two; where these do not fit 64 bits, the highest but one.

    The highest number is the end of groups that never end, and stays.
    """
    if grain == 1:
        return ends
    less = grain - 1
    above = np.where(ends > HIGHEST - 1 - less, HIGHEST - 1, (ends + less) & ~np.int64(less))
    return np.where(ends == HIGHEST, ends, above)
