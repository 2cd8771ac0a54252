"""The range matcher: for every probe, the rows of a sorted run with an equal code and a time in the probe's range.

Invariants. A run is sorted by (code, time). The rows that one probe meets are then one contiguous stretch, so a match
is a pair of positions per probe, and the cost is that of binary searches plus the size of the answer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LOWEST = np.iinfo(np.int64).min
HIGHEST = np.iinfo(np.int64).max


class Pairs(NamedTuple):
    """Positions of rows that may meet: ``probe[i]`` with ``build[i]``."""

    probe: Ints
    build: Ints

    def where(self, keep: Bools) -> Pairs:
        """Only the pairs for which ``keep`` is true."""
        return self if bool(keep.all()) else Pairs(self.probe[keep], self.build[keep])


def sort_order(codes: Ints, times: Ints) -> Ints:
    """The positions that put rows in the order of a run.

    >>> sort_order(np.array([2, 1, 2]), np.array([5, 9, 3])).tolist()
    [1, 2, 0]
    """
    return np.lexsort((times, codes))


def shifted(times: Ints, by: int) -> Ints:
    """``times + by``, held at the ends of int64 instead of wrapping around.

    >>> shifted(np.array([1, HIGHEST]), 5).tolist() == [6, HIGHEST]
    True
    """
    if by >= 0:
        return np.where(times > HIGHEST - by, HIGHEST, times + np.int64(min(by, HIGHEST)))
    return np.where(times < LOWEST - by, LOWEST, times + np.int64(max(by, LOWEST)))


def match(codes: Ints, times: Ints, probe_codes: Ints, low: Ints, high: Ints) -> Pairs:
    """All pairs of a probe and a row of the run with equal codes and ``low <= time <= high``.

    >>> match(np.array([1, 1, 2]), np.array([10, 20, 10]), np.array([1]), np.array([15]), np.array([25]))
    Pairs(probe=array([0]), build=array([1]))
    """
    first = np.searchsorted(codes, probe_codes, "left")
    beyond = np.searchsorted(codes, probe_codes, "right")
    probes = np.flatnonzero(first < beyond)
    first, beyond = first[probes], beyond[probes]
    start = _bisect(times, first, beyond, low[probes], inclusive=True)
    stop = _bisect(times, start, beyond, high[probes], inclusive=False)
    return _expand(probes, start, stop)


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
    """Stretches of rows as single pairs."""
    counts = stop - start
    some = counts > 0
    probes, start, counts = probes[some], start[some], counts[some]
    total = int(counts.sum())
    if total == probes.size:
        return Pairs(probes, start)
    offset_in_stretch = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return Pairs(np.repeat(probes, counts), np.repeat(start, counts) + offset_in_stretch)
