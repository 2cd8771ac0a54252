"""The rows of a window, and the trigger of the batch at which each is evicted.

The triggers of a batch are numbered: 0 is the passing of time before its arrivals, 1 to n are its arrivals, n + 1 is
the limit on all rows after them. A row *ends* at the trigger that evicts it, or at n + 2 if it stays: the later
arrivals that it matches have a trigger after its own and before its end. All of this depends on the windows alone, not
on matches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.changes import key_ids
from watersmeet.operators.core.matching import HIGHEST, LOWEST, Bools, Ints, as_int64, shift_times, stable_order
from watersmeet.operators.state.layout import KeyedRows, RowLayout

if TYPE_CHECKING:
    from watersmeet.operators.window.kernel import PartitionLimit, WindowSpec


MICROS_PER_SECOND = 1_000_000

NUMBER, CLOCK, DEAD = "#number", "#clock", "#dead"
"""The stored columns of a row besides its own: its arrival number, its insertion clock (the highest number: before
there was a clock), and whether it can never match.
"""

MATCHED = "matched"
"""The note that flags matched rows."""


@dataclass(frozen=True)
class WindowRows:
    """Rows of one side in order of arrival: those in its window, then new ones; without clocks if none matter."""

    table: pa.RecordBatch
    numbers: Ints
    codes: Ints
    dead: Bools
    clocks: Ints
    matched: Bools

    def __len__(self) -> int:
        return len(self.numbers)

    @staticmethod
    def of(rows: KeyedRows, code: str | None, first_clock: int | None) -> WindowRows:
        """These rows; those inserted before there was a clock get the first one."""
        table, zeros = rows.table, np.zeros(len(rows), np.int64)
        return WindowRows(
            table,
            rows.attributes[NUMBER],
            zeros if code is None else as_int64(table.column(code)),
            table.column(DEAD).to_numpy(zero_copy_only=False).astype(np.bool_),
            insertion_clocks(rows.times.get(CLOCK, zeros[:0]), first_clock),
            rows.attributes.get(MATCHED, zeros).astype(np.bool_),
        )


def window_layout(columns_stored: tuple[str, ...], *, clocked: bool, tracked: bool) -> RowLayout:
    """The layout of a side's state: in order of arrival, with clocks and match flags where they are needed."""
    times = (CLOCK,) if clocked else ()
    columns = (*columns_stored, DEAD, *times)
    return RowLayout(columns, times, numbers=(NUMBER,), notes=((MATCHED, "flag"),) if tracked else ())


def insertion_clocks(clocks: Ints, first_clock: int | None) -> Ints:
    """The times when rows with these clocks were inserted."""
    return clocks if first_clock is None else np.where(clocks == HIGHEST, first_clock, clocks)


@dataclass
class EvictionPlan:
    """The rows of one side during a step, ``old`` of them from before, and the trigger at which each ends.

    ``triggers`` are the rows' own triggers, below 1 for old rows; ``forever`` is the end of rows that stay;
    ``discarded`` rows leave with their partition; ``partitions`` are the rows' partition numbers, below
    ``partition_count``.
    """

    rows: WindowRows
    old: int
    forever: int
    triggers: Ints
    ends: Ints
    discarded: Bools
    partitions: Ints
    partition_count: int

    @property
    def stay(self) -> Bools:
        """A mask of the rows that are in the window after the batch."""
        return self.ends == self.forever

    def count_dropped(self) -> int:
        """The number of rows that leave with their partition, or because of the limit on rows."""
        return int(np.count_nonzero(self.discarded | (self.ends == self.forever - 1)))

    def count_partitions(self) -> int:
        """The number of partitions of the window after the batch."""
        return int(np.count_nonzero(np.bincount(self.partitions[self.stay])))


def plan_evictions(
    spec: WindowSpec,
    rows: WindowRows,
    old: int,
    base: int,
    arrivals: int,
    *,
    clock: int | None,
    suspended: bool,
    narrowed: bool,
) -> EvictionPlan:
    """The evictions of a window in a batch of this many arrivals, the first of which has the number ``base``.

    ``clock`` is that of the batch; None: there has never been one. ``narrowed``: old rows may be beyond the window.
    """
    forever = arrivals + 2
    triggers = rows.numbers - (base - 1)
    partitions, count = partition_numbers(rows.table, spec.partition, len(rows))
    ends, discarded = np.full(len(rows), forever), np.zeros(len(rows), np.bool_)
    evictions = EvictionPlan(rows, old, forever, triggers, ends, discarded, partitions, count)
    is_stored = _is_stored(spec, rows)
    evictions.ends[~is_stored] = np.maximum(triggers[~is_stored], 0)
    if spec.kind == "time" and clock is not None and not suspended:
        evictions.ends[:old][clock - rows.clocks[:old] > spec.size] = 0
        is_stored &= evictions.ends > 0
    if narrowed:
        _narrow(spec, evictions, is_stored)
        is_stored &= evictions.ends > 0
    if not is_stored[old:].any():
        return evictions
    if spec.kind != "time":
        _evict(spec, evictions, np.flatnonzero(is_stored), since=old)
    if spec.limit is not None:
        _discard(spec.limit, evictions, is_stored, clock)
    return evictions


def partition_numbers(table: pa.RecordBatch, columns: tuple[str, ...], size: int) -> tuple[Ints, int]:
    """A number per row, equal where all columns are equal as in GROUP BY, and how many numbers there are.

    >>> partition_numbers(pa.record_batch({"a": [7, None, 7, None], "b": ["x", "y", "x", "z"]}), ("a", "b"), 4)
    (array([0, 1, 0, 2]), 3)
    """
    if not columns:
        return np.zeros(size, np.int64), 1
    numbers = key_ids(table, columns)
    return numbers, int(numbers.max(initial=0)) + 1


def first_above(values: Ints, start: Ints, bound: Ints) -> Ints:
    """For each query, the first position from ``start`` on with a value above ``bound``, or the number of values.

    The search follows the maxima of blocks of 2, 4, 8.. values: up as long as the block to the right has nothing above
    the bound, then down into the first half that has.

    >>> first_above(np.array([5, 1, 3, 2, 9, 4]), np.array([1, 1, 5]), np.array([2, 3, 4])).tolist()
    [2, 4, 6]
    """
    levels = [values]
    while len(levels[-1]) > 1:
        padded = np.append(levels[-1], np.full(len(levels[-1]) & 1, LOWEST))
        levels.append(np.maximum(padded[0::2], padded[1::2]))
    top = len(levels) - 1
    position, level = start.copy(), np.zeros_like(start)
    climbing = np.arange(len(start))
    for depth in range(top):
        at = position[climbing]
        in_range = at < len(levels[depth])
        above = levels[depth][np.where(in_range, at, 0)] > bound[climbing]
        climbing = climbing[~(in_range & (at & 1 == 1) & above)]
        position[climbing] = (position[climbing] + 1) >> 1
        level[climbing] = depth + 1
    for depth in range(top, 0, -1):
        at = np.flatnonzero(level == depth)
        children = position[at] << 1
        below = levels[depth - 1][np.minimum(children, len(levels[depth - 1]) - 1)] <= bound[at]
        position[at] = children + below
        level[at] = depth - 1
    is_found = position < len(values)
    is_found[is_found] = values[position[is_found]] > bound[is_found]
    return np.where(is_found, position, len(values))


def _is_stored(spec: WindowSpec, rows: WindowRows) -> Bools:
    if not spec.has_state:
        return np.zeros(len(rows), np.bool_)
    if spec.column is None:
        return np.ones(len(rows), np.bool_)
    return rows.table.column(spec.column).is_valid().to_numpy(zero_copy_only=False)


def _narrow(spec: WindowSpec, evictions: EvictionPlan, is_stored: Bools) -> None:
    """End old rows that are beyond the current window before the arrivals."""
    rows = np.flatnonzero(is_stored[: evictions.old])
    if spec.kind != "time":
        _evict(spec, evictions, rows, since=0)
        evictions.ends[rows] = np.where(evictions.ends[rows] < evictions.forever, 0, evictions.forever)
        rows = rows[evictions.ends[rows] > 0]
    if spec.limit is None or spec.limit.kind == "age" or not rows.size:
        return
    last = np.full(evictions.partition_count, -1)
    last[evictions.partitions[rows]] = rows
    present = np.flatnonzero(last >= 0)
    present = present[np.argsort(last[present])]
    held = np.bincount(evictions.partitions[rows], minlength=evictions.partition_count)[present]
    sizes = np.ones_like(held) if spec.limit.kind == "count" else held
    # From the partition that was inserted into last on, as many as the limit has room for.
    beyond = np.zeros(evictions.partition_count, np.bool_)
    beyond[present[np.cumsum(sizes[::-1])[::-1] > spec.limit.size]] = True
    gone = rows[beyond[evictions.partitions[rows]]]
    evictions.ends[gone] = 0
    evictions.discarded[gone] = True


def _evict(spec: WindowSpec, evictions: EvictionPlan, stored: Ints, since: int) -> None:
    """Set the ends of rows that are evicted by insertions, from row ``since`` on, into their own partition."""
    order = stored[stable_order(evictions.partitions[stored])]
    partition = evictions.partitions[order]
    if spec.column is None:
        evicting = np.arange(len(order)) + spec.size
        candidates = np.arange(len(order))
    else:
        values = as_int64(evictions.rows.table.column(spec.column))[order]
        bound = shift_times(values, spec.size)
        highest = np.full(evictions.partition_count, LOWEST)
        new = order >= since
        np.maximum.at(highest, partition[new], values[new])
        # Most old rows outlast the batch: no new value in their partition is far enough above them.
        candidates = np.flatnonzero(highest[partition] > bound)
        evicting = first_above(values, candidates + 1, bound[candidates])
    in_range = evicting < len(order)
    candidates, evicting = candidates[in_range], evicting[in_range]
    same = partition[candidates] == partition[evicting]
    evictions.ends[order[candidates[same]]] = evictions.triggers[order[evicting[same]]]


def _discard(limit: PartitionLimit, evictions: EvictionPlan, is_stored: Bools, clock: int | None) -> None:
    """Set the ends of the rows whose partition is discarded before they are evicted."""
    if limit.kind == "age":
        if clock is not None:
            _discard_aged(limit.size, evictions, is_stored, clock)
        return
    partitions, visit, triggers, held = _visits(evictions, is_stored)
    if limit.kind == "count":
        ends = partition_limit_ends(partitions, limit.size)
    else:
        # Only arrivals evict here: the limit on all rows comes last.
        rows = np.flatnonzero(is_stored)
        evicted = rows[evictions.ends[rows] <= triggers[-1]]
        evicted = evicted[np.argsort(evictions.ends[evicted], kind="stable")]
        ends = row_limit_ends(
            partitions, held, np.searchsorted(triggers, evictions.ends[evicted]), visit[evicted], limit.size
        )
    # An arrival evicts before it discards.
    after = np.append(triggers, HIGHEST)[discard_visits(partitions, ends)][visit]
    gone = is_stored & (after < evictions.ends)
    evictions.ends[gone] = after[gone]
    evictions.discarded |= gone


def _discard_aged(age: int, evictions: EvictionPlan, is_stored: Bools, clock: int) -> None:
    old = np.flatnonzero(is_stored[: evictions.old])
    last = np.full(evictions.partition_count, HIGHEST)
    # Rows are in order of arrival, so the last assignment is that of the partition's last row.
    last[evictions.partitions[old]] = evictions.rows.clocks[old] // MICROS_PER_SECOND
    aged = last < clock // MICROS_PER_SECOND - age // MICROS_PER_SECOND
    gone = old[aged[evictions.partitions[old]]]
    evictions.ends[gone] = evictions.triggers[evictions.old :][is_stored[evictions.old :]][0]
    evictions.discarded[gone] = True


def _visits(evictions: EvictionPlan, is_stored: Bools) -> tuple[Ints, Ints, Ints, Ints]:
    """The visits of a window (see the comment below).

    Returns their partitions, per row the visit that brought it, per visit its trigger, and the number of rows that the
    visits of old partitions stand for.
    """
    old, new = np.flatnonzero(is_stored[: evictions.old]), evictions.old + np.flatnonzero(is_stored[evictions.old :])
    last = np.full(evictions.partition_count, -1)
    last[evictions.partitions[old]] = old
    present = np.flatnonzero(last >= 0)
    present = present[np.argsort(last[present])]
    partitions = np.concatenate([present, evictions.partitions[new]])
    place = np.zeros(evictions.partition_count, np.int64)
    place[present] = np.arange(len(present))
    visit = np.zeros(len(is_stored), np.int64)
    visit[old] = place[evictions.partitions[old]]
    visit[new] = len(present) + np.arange(len(new))
    triggers = np.concatenate([np.arange(len(present)) - len(present), evictions.triggers[new]])
    return partitions, visit, triggers, np.bincount(visit[old], minlength=len(present))[: len(present)]


# Which partitions a limit on partitions discards, and when.
#
# Both limits discard the partition that was least recently inserted into. The *visits* of a window are its insertions
# in order: first one for each partition it has, in the order of their last insertions, then one for each new row. The
# answer is, per visit, the visit at which its partition is discarded before it is visited again; if it is not, the
# number of visits.


def partition_limit_ends(partitions: Ints, limit: int) -> Ints:
    """The visits that end partitions if only ``limit`` partitions are stored; one number of ``partitions`` per visit.

    A partition is discarded when ``limit`` others have been visited since. A later visit k brings another partition
    exactly if the previous visit of its partition is not after the visit in question; every visit up to that one has
    such a previous visit, too. So the answer for visit i is a number of given rank among all visits whose previous
    visit is at most i.

    >>> partition_limit_ends(np.array([0, 1, 0, 2, 1]), 2).tolist()
    [5, 3, 4, 5, 5]
    """
    size = len(partitions)
    previous, following = _neighbours(partitions)
    by_previous = np.argsort(previous, kind="stable")
    visits = np.arange(size)
    visit_counts = np.searchsorted(previous[by_previous], visits, "right")
    rank = visits + limit
    queried = np.flatnonzero(visit_counts > rank)
    ends = np.full(size, size)
    ends[queried] = _select_by_rank(by_previous, visit_counts[queried], rank[queried])
    return np.where(following > ends, ends, size)


def row_limit_ends(partitions: Ints, held: Ints, evictor: Ints, evicted: Ints, limit: int) -> Ints:
    """The visits that end partitions if only ``limit`` rows are stored.

    ``held`` is the number of rows that each of the first visits stands for, those of partitions that the window already
    has. ``evictor`` are the visits that evict a row each, in order, ``evicted`` the visits that had brought those rows.

    Whether a partition is discarded depends on the sizes of all others, which depend on when they were discarded
    themselves: each visit needs the outcome of the one before, so this goes through the visits of the batch one by one.

    >>> row_limit_ends(np.array([0, 1, 0, 1]), np.array([2]), np.array([], int), np.array([], int), 3).tolist()
    [4, 2, 3, 4]
    """
    size, stored = len(partitions), len(held)
    ends = [size] * size
    names, killers, victims = partitions.tolist(), evictor.tolist(), evicted.tolist()
    recent: dict[int, int] = {name: visit for visit, name in enumerate(names[:stored])}
    rows: dict[int, int] = dict(zip(recent, held.tolist(), strict=True))
    start = dict.fromkeys(names, 0)
    total, at = sum(rows.values()), 0
    for visit in range(stored, size):
        name = names[visit]
        while at < len(killers) and killers[at] == visit:
            if victims[at] >= start[name]:
                rows[name] -= 1
                total -= 1
            at += 1
        recent.pop(name, None)
        recent[name] = visit
        rows[name] = rows.get(name, 0) + 1
        total += 1
        while total > limit:
            oldest = next(iter(recent))
            ends[recent.pop(oldest)] = visit
            total -= rows.pop(oldest)
            start[oldest] = visit + 1
    return np.array(ends, np.int64)


def discard_visits(partitions: Ints, ends: Ints) -> Ints:
    """Per visit, the first visit that discards its row: the next end in its partition, its own or a later one.

    >>> discard_visits(np.array([0, 1, 0, 1]), np.array([4, 2, 3, 4])).tolist()
    [3, 2, 3, 4]
    """
    size = len(partitions)
    order = stable_order(partitions)
    # One pass over all partitions: the numbers of a higher partition all lie above those of a lower one.
    floor = partitions[order] * np.int64(size + 1)
    suffix = np.minimum.accumulate((ends[order] + floor)[::-1])[::-1] - floor
    result = np.empty(size, np.int64)
    result[order] = suffix
    return result


def _neighbours(partitions: Ints) -> tuple[Ints, Ints]:
    """Per visit, the visits of the same partition before and after it: -1 without one, or the number of visits."""
    size = len(partitions)
    order = stable_order(partitions)
    same = partitions[order][1:] == partitions[order][:-1]
    previous, following = np.full(size, -1), np.full(size, size)
    previous[order[1:][same]] = order[:-1][same]
    following[order[:-1][same]] = order[1:][same]
    return previous, following


def _select_by_rank(values: Ints, prefix: Ints, rank: Ints) -> Ints:
    """For each query, the value of that rank (from 0) among the first ``prefix`` values: a wavelet matrix.

    The values are split by one bit at a time, highest first, each half in the order it had; counts of zeros locate a
    range of values in either half.

    >>> _select_by_rank(np.array([2, 0, 3, 1]), np.array([3, 3, 4]), np.array([0, 2, 1])).tolist()
    [0, 3, 1]
    """
    low, high, rank, result = np.zeros_like(prefix), prefix, rank, np.zeros_like(prefix)
    for bit in reversed(range(max(len(values) - 1, 0).bit_length())):
        is_one = (values >> bit) & 1 == 1
        zeros = np.concatenate([[0], np.cumsum(~is_one)])
        before, upto = zeros[low], zeros[high]
        is_zero = rank < upto - before
        low = np.where(is_zero, before, zeros[-1] + low - before)
        high = np.where(is_zero, upto, zeros[-1] + high - upto)
        rank = np.where(is_zero, rank, rank - (upto - before))
        result = np.where(is_zero, result, result | (1 << bit))
        values = np.concatenate([values[~is_one], values[is_one]])
    return result
