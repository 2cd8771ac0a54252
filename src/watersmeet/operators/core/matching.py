"""The range matcher: for every probe, the rows of a sorted run with an equal code and a time in the probe's range.

Invariants. A run is sorted by (code, time). The rows that one probe meets are then one contiguous stretch, so a match
is a pair of positions per probe, and the cost is that of binary searches plus the size of the answer.

Also here: histograms of lengths, such as how long rows waited. Each has 256 ranges, four to each power of two, so a
length is known to a quarter of itself, whatever its unit. Range 0 holds the length 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LOWEST = np.iinfo(np.int64).min
HIGHEST = np.iinfo(np.int64).max

COUNTED, RUNS = 4_096, 16
"""Fewer codes than that, or fewer stretches of codes in order, are sorted by comparing."""
FEW_WRONG = 16
"""So are all, if one in so many is in the wrong place after counting: a NULL among small keys is far from them."""


class Pairs(NamedTuple):
    """Positions of rows that may meet: ``probe[i]`` with ``build[i]``."""

    probe: Ints
    build: Ints

    def where(self, keep: Bools) -> Pairs:
        """Only the pairs for which ``keep`` is true."""
        return self if bool(keep.all()) else Pairs(self.probe[keep], self.build[keep])


def sort_order(codes: Ints, times: Ints) -> Ints:
    """The positions that put rows in the order of a run; rows with equal code and time keep the order they have.

    >>> sort_order(np.array([2, 1, 2]), np.array([5, 9, 3])).tolist()
    [1, 2, 0]
    """
    return _with_times_in_order(stable_order(codes), codes, times)


def stable_order(codes: Ints) -> Ints:
    """The positions that put codes, or other signed integers, in order; equal ones keep the order they have.

    numpy sorts numbers of 16 bits by counting, several times as quickly as it compares long ones, and sees runs that
    are in order already. So codes are sorted by the 32 bits in which they differ first; those few that have these in
    common are put right.

    >>> stable_order(np.array([2, 1, 2])).tolist()
    [1, 0, 2]
    """
    if codes.size < COUNTED or np.count_nonzero(codes[1:] < codes[:-1]) < RUNS:
        return np.argsort(codes, kind="stable")
    codes = codes.astype(np.int64, copy=False)
    lowest = codes.min()
    bits = (int(codes.max()) - int(lowest)).bit_length()
    # Modulo 2**64, so that it holds for any two codes.
    above = codes.view(np.uint64) - lowest.view(np.uint64)
    leading = (above >> np.uint64(max(bits - 32, 0))).astype(np.uint32)
    order = np.argsort(leading.astype(np.uint16), kind="stable")
    if bits > 16:
        order = order[np.argsort((leading[order] >> np.uint32(16)).astype(np.uint16), kind="stable")]
    return order if bits <= 32 else _with_rest_in_order(order, codes, leading)


def _with_rest_in_order(order: Ints, codes: Ints, leading: npt.NDArray[np.uint32]) -> Ints:
    """An order by the leading bits of codes, put right where codes that have these in common are not in order."""
    ordered = codes[order]
    is_wrong = ordered[1:] < ordered[:-1]
    if np.count_nonzero(is_wrong) > len(codes) // FEW_WRONG:
        return np.argsort(codes, kind="stable")
    if is_wrong.any():
        there = np.isin(leading[order], leading[order[1:][is_wrong]])
        rows = order[there]
        order[there] = rows[np.argsort(codes[rows], kind="stable")]
    return order


def _with_times_in_order(order: Ints, codes: Ints, times: Ints) -> Ints:
    """An order by code, then position, put right where rows of one code are not in the order of their times.

    Most codes have few rows, so this is several times faster than sorting by both.
    """
    sorted_codes, sorted_times = codes[order], times[order]
    is_same = sorted_codes[1:] == sorted_codes[:-1]
    is_wrong = is_same & (sorted_times[1:] < sorted_times[:-1])
    if not is_wrong.any():
        return order
    group = np.concatenate([[0], np.cumsum(~is_same)])
    wrong = np.zeros(int(group[-1]) + 1, np.bool_)
    wrong[group[1:][is_wrong]] = True
    there = wrong[group]
    rows = order[there]
    order[there] = rows[np.lexsort((times[rows], codes[rows]))]
    return order


def shift_times(times: Ints, by: int) -> Ints:
    """``times + by``, held at the ends of int64 instead of wrapping around.

    >>> shift_times(np.array([1, HIGHEST]), 5).tolist() == [6, HIGHEST]
    True
    """
    if not -HIGHEST <= by <= HIGHEST:
        most = HIGHEST if by > 0 else -HIGHEST
        return shift_times(shift_times(times, most), by - most)
    if by >= 0:
        return np.where(times > HIGHEST - by, HIGHEST, times + np.int64(by))
    return np.where(times < LOWEST - by, LOWEST, times + np.int64(by))


def reach(times: Ints, low: int | None, high: int | None) -> tuple[Ints, Ints]:
    """The first and last time from ``times + low`` to ``times + high``; None: there is no bound in that direction.

    Sums are those of whole numbers: they do not overflow. A range without any time of 64 bits is empty, so that its
    first time is after its last.

    >>> [part.tolist() for part in reach(np.array([5, HIGHEST]), 1, None)] == [[6, HIGHEST], [HIGHEST, LOWEST]]
    True
    """
    first = np.full(times.size, LOWEST) if low is None else shift_times(times, low)
    last = np.full(times.size, HIGHEST) if high is None else shift_times(times, high)
    is_outside = np.zeros(times.size, np.bool_)
    if low is not None and low > 0:
        is_outside |= times > HIGHEST - low
    if high is not None and high < 0:
        is_outside |= times < LOWEST - high
    if is_outside.any():
        first, last = np.where(is_outside, HIGHEST, first), np.where(is_outside, LOWEST, last)
    return first, last


def distances(times: Ints, others: Ints) -> npt.NDArray[np.uint64]:
    """The distances of times from others, whichever are later: up to 2**64 - 1, which a signed number does not hold.

    >>> distances(np.array([1, LOWEST]), np.array([3, HIGHEST])).tolist() == [2, 2**64 - 1]
    True
    """
    return (np.maximum(times, others) - np.minimum(times, others)).view(np.uint64)


class Stretches(NamedTuple):
    """The rows that probes meet: ``probe[i]`` meets rows ``start[i]`` to before ``stop[i]`` of the run."""

    probe: Ints
    start: Ints
    stop: Ints

    def pieces(self, size: int) -> Iterator[Pairs]:
        """The single pairs, at most ``size`` at once, so that many matches never take much memory.

        >>> found = Stretches(np.array([7, 8]), np.array([0, 1]), np.array([3, 2]))
        >>> [(piece.probe.tolist(), piece.build.tolist()) for piece in found.pieces(2)]
        [([7, 7], [0, 1]), ([7, 8], [2, 1])]
        """
        ends = np.cumsum(self.stop - self.start)
        total = int(ends[-1]) if ends.size else 0
        if total == ends.size and total <= size:
            # One row each, as with most keys: nothing to repeat.
            yield Pairs(self.probe, self.start)
            return
        for begin in range(0, total, size):
            end = min(begin + size, total)
            first, last = np.searchsorted(ends, [begin, end - 1], "right")
            part = slice(int(first), int(last) + 1)
            start, stop = self.start[part].copy(), self.stop[part].copy()
            # The piece may begin and end within a stretch.
            stop[-1] -= int(ends[last]) - end
            start[0] = int(self.stop[first]) - (int(ends[first]) - begin)
            yield _expand(self.probe[part], start, stop)


def match(codes: Ints, times: Ints, probe_codes: Ints, low: Ints, high: Ints) -> Pairs:
    """All pairs of a probe and a row of the run with equal codes and ``low <= time <= high``.

    >>> match(np.array([1, 1, 2]), np.array([10, 20, 10]), np.array([1]), np.array([15]), np.array([25]))
    Pairs(probe=array([0]), build=array([1]))
    """
    spans = stretches(codes, times, probe_codes, low, high)
    return _expand(spans.probe, spans.start, spans.stop)


def shares_a_code(codes: Ints, probe_codes: Ints) -> bool:
    """Whether any of the probes has the code of a row; codes are sorted.

    >>> shares_a_code(np.array([1, 4]), np.array([2, 4])), shares_a_code(np.array([1, 4]), np.array([2, 3]))
    (True, False)
    """
    first = np.searchsorted(codes, probe_codes, "left")
    return bool(codes.size and (codes[np.minimum(first, codes.size - 1)] == probe_codes).any())


def stretches(codes: Ints, times: Ints, probe_codes: Ints, low: Ints, high: Ints) -> Stretches:
    """For every probe that meets any, the stretch of rows with its code and ``low <= time <= high``."""
    first = np.searchsorted(codes, probe_codes, "left")
    # Most probes miss most runs, and a row's code tells a miss at once: the second search is for the others.
    probes = np.flatnonzero(codes[np.minimum(first, codes.size - 1)] == probe_codes) if codes.size else first[:0]
    first, beyond = first[probes], _beyond(codes, first[probes])
    low, high = low[probes], high[probes]
    part = np.flatnonzero((times[first] < low) | (times[beyond - 1] > high))
    if not part.size:
        # All rows of the codes, as with bounds that are wide compared with the lifetime of a code.
        return Stretches(probes, first, beyond)
    start, stop = first.copy(), beyond.copy()
    start[part] = _bisect(times, first[part], beyond[part], low[part], inclusive=True)
    stop[part] = _bisect(times, start[part], beyond[part], high[part], inclusive=False)
    nonempty = np.flatnonzero(start < stop)
    return Stretches(probes[nonempty], start[nonempty], stop[nonempty])


def _beyond(codes: Ints, first: Ints) -> Ints:
    """The positions after the last row of each code, by those of the first; most codes have one row."""
    beyond = first + 1
    more = np.flatnonzero(codes[np.minimum(beyond, codes.size - 1)] == codes[first])
    if more.size:
        beyond[more] = np.searchsorted(codes, codes[first[more]], "right")
    return beyond


def _bisect(times: Ints, first: Ints, beyond: Ints, bounds: Ints, *, inclusive: bool) -> Ints:
    """Per probe, the first position in ``first..beyond`` whose time is at or after (not inclusive: after) its bound.

    All probes halve their stretch at once; a probe that is done drops out, so one long stretch costs only itself.
    """
    result = first.copy()
    open_ = np.flatnonzero(first < beyond)
    low, high, bound = first[open_], beyond[open_], bounds[open_]
    while open_.size:
        middle = (low + high) >> 1
        before = times[middle] < bound if inclusive else times[middle] <= bound
        low = np.where(before, middle + 1, low)
        high = np.where(before, high, middle)
        done = low >= high
        if done.any():
            result[open_[done]] = low[done]
            going = ~done
            open_, low, high, bound = open_[going], low[going], high[going], bound[going]
    return result


def _expand(probes: Ints, start: Ints, stop: Ints) -> Pairs:
    """Stretches of rows, none of them empty, as single pairs."""
    counts = stop - start
    total = int(counts.sum())
    if total == probes.size:
        return Pairs(probes, start)
    offset_in_stretch = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return Pairs(np.repeat(probes, counts), np.repeat(start, counts) + offset_in_stretch)


MICROS_PER_DAY = 86_400_000_000


def as_int64(array: pa.Array) -> Ints:
    """An event time or code as int64: TIMESTAMP and DATE in microseconds, NULL as the highest value."""
    kind = array.type
    if pa.types.is_date32(kind):
        array = pc.multiply(array.cast(pa.int32()).cast(pa.int64()), pa.scalar(MICROS_PER_DAY, pa.int64()))
    elif pa.types.is_timestamp(kind):
        array = array.view(pa.int64())
    elif not pa.types.is_int64(kind):
        array = array.cast(pa.int64())
    if array.null_count:
        array = pc.fill_null(array, int(HIGHEST))
    return array.to_numpy(zero_copy_only=False)


RANGES = 256
SAMPLE = 4096
"""Of more lengths than that, some stand for all: it must cost next to nothing."""

Histogram = NDArray[np.float64]

_PARTS = 4
# A double has its exponent in front of its fraction: these bits together count the ranges.
_SHIFT, _ONE = np.int64(50), 1023 * _PARTS


def build_histogram(lengths: Ints | NDArray[np.uint64], weight: float = 1.0) -> Histogram:
    """The number of lengths in each range; a negative one is as long as its opposite.

    >>> [int(n) for n in np.flatnonzero(build_histogram(np.array([0, 1, 1, -4])))]
    [0, 1, 9]
    >>> build_histogram(np.array([1, 1]), 3.0)[1]
    np.float64(6.0)
    """
    bits = np.abs(lengths.astype(np.float64)).view(np.int64) >> _SHIFT
    numbers = np.clip(bits - _ONE + 1, 0, RANGES - 1)
    return np.bincount(numbers, minlength=RANGES).astype(np.float64) * np.float64(weight)


def sample_stride(count: int) -> int:
    """Every how many-th of so many is to be looked at.

    >>> sample_stride(10), sample_stride(10_000)
    (1, 3)
    """
    return -(-count // SAMPLE) or 1


def bucket_maximum(number: int) -> int:
    """The longest length that a range holds.

    >>> [bucket_maximum(number) for number in (0, 1, 9, 12)]
    [0, 1, 4, 7]
    """
    if number == 0:
        return 0
    power, part = divmod(number - 1, _PARTS)
    return max(2**power, -(-(2**power * (_PARTS + part + 1)) // _PARTS) - 1)
