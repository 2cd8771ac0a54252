"""The matches in a batch of a window join, and the evicted unmatched rows, in output order.

Each side's rows are sorted by (code, arrival). The rows that an arrival matches are then a range of the other side:
equal code, arrived before, not evicted yet. Where rows of a code are evicted in another order than they arrived, the
range begins at the first row that is not evicted, and evicted rows within it are filtered out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.operators.core.condition import holds, null_safe_equal
from watersmeet.operators.core.matching import Bools, Ints, stable_order
from watersmeet.operators.core.operator import LEFT, RIGHT
from watersmeet.operators.window.eviction import EvictionPlan

if TYPE_CHECKING:
    from watersmeet.operators.window.kernel import WindowJoinOperator

ROWS_PER_PIECE = 250_000
"""The approximate number of candidates processed and emitted at a time: few enough for the processor's caches."""

Ports = npt.NDArray[np.int8]
Positions = npt.NDArray[np.int32]
"""Positions and triggers of output rows. A shard's window has fewer than 2**31 rows."""
NO_PORT = -1


@dataclass
class SortedSide:
    """One side, sorted by code and arrival. Positions are indices in this order.

    ``order`` is the row, in order of arrival, at each position; ``floors`` are numbers that differ more from code to
    code than triggers do. So ``arrived``, the row's own trigger, and ``latest``, the highest end among the rows of its
    code up to there, ascend over all positions when added to the floor.
    """

    evictions: EvictionPlan
    order: Ints
    floors: Ints
    arrived: Ints
    latest: Ints
    ends: Ints
    matched: Bools

    def __post_init__(self) -> None:
        self._sorted_table: pa.RecordBatch | None = None

    @cached_property
    def places(self) -> Ints:
        """The position of each row, in order of arrival."""
        places = np.empty_like(self.order)
        places[self.order] = np.arange(len(self.order))
        return places

    @cached_property
    def is_fifo(self) -> bool:
        """Whether rows of a code are evicted in the order in which they arrived."""
        return bool((self.latest == self.ends + self.floors).all())

    @property
    def has_matched(self) -> Bools:
        """A mask of the rows that have matched so far, in order of arrival."""
        return self.matched[self.places]

    def arrival_times(self, join: WindowJoinOperator) -> Ints:
        """The times when the rows arrived, by position: by the clock if both windows use it, else by arrival number."""
        rows = self.evictions.rows
        return (rows.clocks if join.is_by_clock else rows.numbers)[self.order]

    def sort_table(self) -> None:
        """Sort the table itself, which pays if many rows are read more than once."""
        self._sorted_table = self.evictions.rows.table.take(pa.array(self.order))

    def column(self, name: str, positions: Positions, missing: Bools | None = None) -> pa.Array:
        """A column of the rows at these positions; NULL where a row is missing."""
        table = self.evictions.rows.table
        if not table.num_rows:
            return pa.nulls(len(positions), table.column(name).type)
        if self._sorted_table is not None:
            return self._sorted_table.column(name).take(pa.array(positions, mask=missing))
        return table.column(name).take(pa.array(self.order[positions], mask=missing))


@dataclass(frozen=True)
class Triggers:
    """The triggers of a batch: the port of each, the position of the arrival there, and the range that it probes."""

    ports: Ports
    places: Positions
    low: Positions
    high: Positions


@dataclass(frozen=True)
class OutputRows:
    """Output rows: the trigger of each, its positions on both sides, and the missing port, if any."""

    triggers: Positions
    left: Positions
    right: Positions
    lacks: Ports

    def where(self, keep: Bools) -> OutputRows:
        """The rows for which ``keep`` is true."""
        if keep.all():
            return self
        return OutputRows(self.triggers[keep], self.left[keep], self.right[keep], self.lacks[keep])

    def take(self, order: Ints) -> OutputRows:
        """The rows in that order."""
        return OutputRows(self.triggers[order], self.left[order], self.right[order], self.lacks[order])


def sort_sides(plans: tuple[EvictionPlan, EvictionPlan]) -> tuple[SortedSide, SortedSide]:
    """Both sides sorted by one numbering of their codes; rows that can never match come last."""
    codes = pa.array(np.concatenate([plan.rows.codes for plan in plans])).dictionary_encode()
    numbers = codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    left, right = np.split(numbers, [len(plans[LEFT].rows)])
    count = len(codes.dictionary)
    return _sort_side(plans[LEFT], left, count), _sort_side(plans[RIGHT], right, count)


def find_probe_ranges(sides: tuple[SortedSide, SortedSide], ports: Ports) -> Triggers:
    """The range that each arrival probes: the positions from ``low`` up to ``high`` on the other side."""
    low, high, places = (np.zeros(len(ports), np.int32) for _ in range(3))
    for port in (LEFT, RIGHT):
        mine, other = sides[port], sides[1 - port]
        # In the order of the layout, so that each search begins where the one before ended.
        new = np.flatnonzero(mine.order >= mine.evictions.old)
        triggers = mine.evictions.triggers[mine.order[new]]
        places[triggers] = new
        alive = ~mine.evictions.rows.dead[mine.order[new]]
        triggers, probes = triggers[alive], mine.arrived[new[alive]]
        high[triggers] = np.searchsorted(other.arrived, probes, "right")
        low[triggers] = np.searchsorted(other.latest, probes, "right")
    return Triggers(ports, places, low, high)


def join_pieces(
    join: WindowJoinOperator, sides: tuple[SortedSide, SortedSide], triggers: Triggers
) -> Iterator[tuple[OutputRows, OutputRows]]:
    """The pairs, and the evicted unmatched rows, piece by piece in order of the triggers.

    Whether an evicted row is unmatched depends on all triggers before its end, so matches are recorded on the way.
    """
    counts = triggers.high - triggers.low
    for port in (LEFT, RIGHT):
        if counts[triggers.ports == 1 - port].sum() > len(sides[port].order):
            sides[port].sort_table()
    evicted = _find_evicted(join, sides)
    for start, stop in pairwise(_piece_edges(counts)):
        pairs = _filter_matches(join, sides, _candidates(sides, triggers, start, stop))
        for port, positions in ((LEFT, pairs.left), (RIGHT, pairs.right)):
            if join.is_preserved[port]:
                sides[port].matched[positions] = True
        first, beyond = (int(np.searchsorted(evicted.triggers, edge)) for edge in (start, stop))
        gone = evicted.take(np.arange(first, beyond))
        yield pairs, gone.where(~_has_matched(sides, gone))


def _piece_edges(counts: Positions) -> list[int]:
    """The cuts between triggers so that a piece has about the desired number of candidates; a trigger is never cut.

    >>> _piece_edges(np.array([0, 200_000, 100_000, 900_000, 10, 0], np.int32))
    [0, 3, 4, 6]
    """
    total = np.cumsum(counts, dtype=np.int64)
    full = np.arange(ROWS_PER_PIECE, int(total[-1]), ROWS_PER_PIECE)
    cuts = np.searchsorted(total, full) + 1
    return np.unique(np.concatenate([[0], cuts, [len(counts)]])).tolist()


def _sort_side(evictions: EvictionPlan, codes: Ints, count: int) -> SortedSide:
    codes = np.where(evictions.rows.dead, count, codes)
    order = stable_order(codes)
    floors = codes[order] * np.int64(evictions.forever + 1)
    # Rows from before the batch precede all of it: a trigger below 1 is equivalent to 0.
    arrived = np.maximum(evictions.triggers, 0)[order] + floors
    ends = evictions.ends[order]
    latest = np.maximum.accumulate(ends + floors)
    return SortedSide(evictions, order, floors, arrived, latest, ends, evictions.rows.matched[order])


def _candidates(sides: tuple[SortedSide, SortedSide], triggers: Triggers, start: int, stop: int) -> OutputRows:
    """The pairs of an arrival, at triggers from ``start`` up to ``stop``, and a row of equal code in the window."""
    counts = triggers.high[start:stop] - triggers.low[start:stop]
    shift = triggers.low[start:stop] - (np.cumsum(counts, dtype=np.int32) - counts)
    trigger = np.repeat(np.arange(start, stop, dtype=np.int32), counts)
    stored = np.arange(len(trigger), dtype=np.int32) + np.repeat(shift, counts)
    arriving = np.repeat(triggers.places[start:stop], counts)
    is_left = np.repeat(triggers.ports[start:stop] == LEFT, counts)
    left, right = np.where(is_left, arriving, stored), np.where(is_left, stored, arriving)
    candidates = OutputRows(trigger, left, right, np.full(len(trigger), NO_PORT, np.int8))
    if sides[LEFT].is_fifo and sides[RIGHT].is_fifo:
        return candidates
    ends = np.where(is_left, sides[RIGHT].ends[right], sides[LEFT].ends[left])
    return candidates.where(ends > trigger)


def _filter_matches(
    join: WindowJoinOperator, sides: tuple[SortedSide, SortedSide], candidates: OutputRows
) -> OutputRows:
    """The candidates with equal keys for which the condition holds."""
    if not len(candidates.triggers):
        return candidates
    if not join.left.exact:
        for mine, theirs in zip(join.left.keys, join.right.keys, strict=True):
            values = sides[LEFT].column(mine, candidates.left)
            candidates = candidates.where(null_safe_equal(values, sides[RIGHT].column(theirs, candidates.right)))
    if join.condition is None or not len(candidates.triggers):
        return candidates
    ours = frozenset(join.state_columns[LEFT])

    def column(name: str) -> pa.Array:
        return (
            sides[LEFT].column(name, candidates.left) if name in ours else sides[RIGHT].column(name, candidates.right)
        )

    return candidates.where(holds(join.condition, column, len(candidates.triggers)))


def _find_evicted(join: WindowJoinOperator, sides: tuple[SortedSide, SortedSide]) -> OutputRows:
    """The evicted rows of preserved sides that may be emitted, in output order."""
    parts: list[OutputRows] = []
    numbers: list[Ints] = []
    for port in (LEFT, RIGHT):
        evictions, places = sides[port].evictions, sides[port].places
        gone = ~evictions.stay & join.is_preserved[port]
        if not join.emit_discarded:
            gone &= ~evictions.discarded
        at, zeros = places[gone].astype(np.int32), np.zeros(np.count_nonzero(gone), np.int32)
        left, right = (at, zeros) if port == LEFT else (zeros, at)
        ends = evictions.ends[gone].astype(np.int32)
        parts.append(OutputRows(ends, left, right, np.full(len(at), 1 - port, np.int8)))
        numbers.append(evictions.rows.numbers[gone])
    evicted = concat_output(*parts)
    return evicted.take(np.lexsort((np.concatenate(numbers), evicted.triggers)))


def concat_output(first: OutputRows, second: OutputRows) -> OutputRows:
    """The rows of one, then of the other."""
    return OutputRows(
        np.concatenate([first.triggers, second.triggers]),
        np.concatenate([first.left, second.left]),
        np.concatenate([first.right, second.right]),
        np.concatenate([first.lacks, second.lacks]),
    )


def _has_matched(sides: tuple[SortedSide, SortedSide], unmatched: OutputRows) -> Bools:
    result = np.zeros(len(unmatched.triggers), np.bool_)
    for port, positions in ((LEFT, unmatched.left), (RIGHT, unmatched.right)):
        mine = unmatched.lacks == 1 - port
        result[mine] = sides[port].matched[positions[mine]]
    return result
