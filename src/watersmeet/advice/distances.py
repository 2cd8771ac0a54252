"""How far the rows of a pair are apart, and what a bound keeps of them.

A distance is the time of the right row less that of the left one, of rows with the same key. Of a left row that lies so
near the end of what is known of the right side that its partner may still be to come, nothing is counted: short
distances would seem more frequent than they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from watersmeet.advice.amounts import Unit, round_up
from watersmeet.advice.arrivals import NO_CODE, Bools, Floats, Ints

Pairing = Literal["all", "nearest"]
"""Which rows are a pair. ``all``: those of the same key. ``nearest``: a left row and the right row of its key that is
nearest in time, where a key has so many rows that most of them have nothing to do with each other."""

MOST_PER_ROW = 8
"""With more right rows of its key per left row, or the other way round, the nearest is taken."""
MOST_PAIRS = 4_000_000
"""If there would be more pairs, only some keys are looked at."""
SHARES = (0.9, 0.99, 0.999, 1.0)


@dataclass(frozen=True)
class KeyedTimes:
    """The codes and times of the rows of a side that have both."""

    codes: Ints
    times: Ints

    @classmethod
    def of(cls, codes: Ints, times: Ints, is_there: Bools) -> KeyedTimes:
        """The rows of which key and time are known, by code and then by time."""
        alive = is_there & (codes != NO_CODE)
        order = np.lexsort((times[alive], codes[alive]))
        return cls(codes[alive][order], times[alive][order])

    def where(self, wanted: Bools) -> KeyedTimes:
        """Some of its rows."""
        return KeyedTimes(self.codes[wanted], self.times[wanted])

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True)
class Distances:
    """The distances of pairs, sorted.

    ``met``: the share of left rows, and of right ones, that have a partner at all. ``left_out``: left rows at the end
    whose partners may be to come; ``is_short``: nothing could be left out, for that would be most rows. ``per_row``:
    right rows of its key that a left row has.
    """

    values: Ints
    pairing: Pairing
    matched: tuple[float, float]
    left_out: int
    is_short: bool
    per_row: float

    def within(self, low: int, high: int) -> float:
        """The share of pairs whose distance lies between the two."""
        between = np.searchsorted(self.values, high, "right") - np.searchsorted(self.values, low, "left")
        return float(between) / max(1, len(self.values))

    def quantile(self, share: float) -> int:
        """The distance below which that share of pairs is."""
        return int(self.values[min(len(self.values) - 1, int(share * len(self.values)))])


@dataclass(frozen=True)
class Bounds:
    """How long before (``earlier``) and after (``later``) the left row a right one may be, and the share it keeps."""

    earlier: int
    later: int
    keeps: float


def distances(left: KeyedTimes, right: KeyedTimes) -> Distances | None:
    """The distances of the pairs of two sides; None if no row has a partner."""
    matched = (_share_in(left, right), _share_in(right, left))
    if not len(left) or not len(right) or not matched[0]:
        return None
    _, starts, stops = _ranges(left, right)
    has = stops > starts
    per_row = float((stops - starts)[has].mean())
    crowded = max(per_row, float((_counts(right, left))[_counts(right, left) > 0].mean())) > MOST_PER_ROW
    pairing: Pairing = "nearest" if crowded else "all"
    values, of = (
        _nearest_distances(left, right, starts, stops) if crowded else _all_distances(right, left, starts, stops)
    )
    reach = max(0, int(values.max()))
    ends = min(int(right.times.max()), int(left.times.max()))
    is_complete = left.times[of] <= ends - reach
    out = int((left.times > ends - reach).sum())
    is_short = out * 2 > len(left) or not is_complete.any()
    complete = values if is_short else values[is_complete]
    return Distances(np.sort(complete), pairing, matched, 0 if is_short else out, is_short, per_row)


def bounds_of(pairs: Distances, share: float, unit: Unit = "time") -> Bounds:
    """The bounds of the shortest stretch around 0 that keeps a share of the pairs, in few digits.

    Around 0, for nobody writes that rows may not be at the same time; it costs next to nothing.
    """
    values = pairs.values
    need = max(1, int(np.ceil(share * len(values))))
    low = np.minimum(values[: len(values) - need + 1], 0)
    high = np.maximum(values[need - 1 :], 0)
    best = int(np.argmin(high - low))
    earlier, later = (round_up(int(n), unit) for n in (-low[best], high[best]))
    return Bounds(earlier, later, pairs.within(-earlier, later))


def spread(pairs: Distances, left: KeyedTimes, right: KeyedTimes) -> float:
    """How far apart pairs are compared with those of keys that are dealt out anew: 1 is no better than chance."""
    dealt = np.random.default_rng(0).permutation(right.codes)
    by_chance = distances(left, KeyedTimes.of(dealt, right.times, np.ones(len(dealt), np.bool_)))
    wide = _middle(by_chance.values) if by_chance is not None else 0.0
    return float(min(1.0, _middle(pairs.values) / wide)) if wide else 1.0


def _middle(values: Ints) -> float:
    """The width of the middle half."""
    low, high = np.quantile(values, (0.25, 0.75))
    return float(high - low)


def _ranges(left: KeyedTimes, right: KeyedTimes) -> tuple[Ints, Ints, Ints]:
    """For each left row where the right rows of its key begin and end."""
    codes, starts, counts = np.unique(right.codes, return_index=True, return_counts=True)
    place = np.minimum(np.searchsorted(codes, left.codes), len(codes) - 1)
    is_same = codes[place] == left.codes
    first = np.where(is_same, starts[place], 0).astype(np.int64)
    return place.astype(np.int64), first, np.where(is_same, first + counts[place], first).astype(np.int64)


def _counts(left: KeyedTimes, right: KeyedTimes) -> Ints:
    _, first, last = _ranges(left, right)
    return last - first


def _share_in(left: KeyedTimes, right: KeyedTimes) -> float:
    return float(np.isin(left.codes, right.codes).mean()) if len(left) else 0.0


def _all_distances(right: KeyedTimes, left: KeyedTimes, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """The distances of all rows with one key, and of which left row each is."""
    counts = last - first
    total = int(counts.sum())
    if total > MOST_PAIRS:
        # Whole keys, chosen by their code: of these every pair is there.
        wanted = (left.codes * 0x9E3779B1 & 0xFFFF) < 0x10000 * MOST_PAIRS // total
        counts = np.where(wanted, counts, 0)
    of = np.repeat(np.arange(len(left)), counts)
    within = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    return right.times[first[of] + within] - left.times[of], of


def _nearest_distances(left: KeyedTimes, right: KeyedTimes, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """The distance of each left row that has partners to the nearest of them."""
    of = np.flatnonzero(last > first)
    # Times within a key are looked for in one array: codes and ranks of times together give one order.
    every = np.unique(np.concatenate([left.times, right.times]))
    size = np.int64(len(every) + 1)
    right_keys = right.codes * size + np.searchsorted(every, right.times)
    left_keys = left.codes[of] * size + np.searchsorted(every, left.times[of])
    after = np.searchsorted(right_keys, left_keys)
    later = right.times[np.minimum(after, last[of] - 1)] - left.times[of]
    earlier = right.times[np.maximum(after - 1, first[of])] - left.times[of]
    return np.where(np.abs(later) <= np.abs(earlier), later, earlier), of


def histogram(pairs: Distances, bins: int = 60) -> tuple[Floats, Ints]:
    """How many pairs are how far apart, between the 0.1st and the 99.9th hundredth: the edges, and the counts."""
    low, high = (float(q) for q in np.quantile(pairs.values, (0.001, 0.999)))
    counts, edges = np.histogram(pairs.values, bins, (low, high if high > low else low + 1))
    return edges.astype(np.float64), counts.astype(np.int64)
