"""Distances in time between the rows of a pair, what a bound keeps of them, and columns that look like keys.

A distance is the time of the right row less that of the left one, of rows with the same key. Of a left row that lies so
near the end of what is known of the right side that its partner may still be to come, nothing is counted: short
distances would seem more frequent than they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.tools.advise.arrivals import (
    NO_CODE,
    Bools,
    Floats,
    Ints,
    SampledRows,
    Unit,
    codes_of,
    common_type,
    round_up,
)

Pairing = Literal["all", "nearest"]
"""The rule that pairs rows. ``all``: rows of the same key. ``nearest``: a left row and the right row of its key that is
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
        """The rows with a known key and time, by code and then by time."""
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

    ``met``: the share of left rows, and of right ones, that have a match. ``left_out``: left rows at the end whose
    matches may still arrive; ``is_short``: none was left out, as that would be most rows. ``per_row``: the right rows
    of its key per left row.
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
    """The time before (``earlier``) and after (``later``) the left row for a right one, and the share that it keeps."""

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
    """The bounds of the shortest range around 0 that covers a share of the pairs, in few digits.

    Around 0, because excluding equal times is rarely meant and saves next to nothing.
    """
    values = pairs.values
    need = max(1, int(np.ceil(share * len(values))))
    low = np.minimum(values[: len(values) - need + 1], 0)
    high = np.maximum(values[need - 1 :], 0)
    best = int(np.argmin(high - low))
    earlier, later = (round_up(int(n), unit) for n in (-low[best], high[best]))
    return Bounds(earlier, later, pairs.within(-earlier, later))


def spread(pairs: Distances, left: KeyedTimes, right: KeyedTimes) -> float:
    """The distance of pairs compared with randomly permuted keys: 1 is no better than chance."""
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
    """The distances of all rows with one key, and the left row of each."""
    counts = last - first
    total = int(counts.sum())
    if total > MOST_PAIRS:
        # Whole keys, chosen by their code, so the sample has every pair of them.
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
    """The histogram of distances, between the 0.1st and the 99.9th percentile: the edges, and the counts."""
    low, high = (float(q) for q in np.quantile(pairs.values, (0.001, 0.999)))
    counts, edges = np.histogram(pairs.values, bins, (low, high if high > low else low + 1))
    return edges.astype(np.float64), counts.astype(np.int64)


ROWS, LOOKED_AT = 100_000, 8
"""The number of rows of each side that are examined, and of column pairs that are examined more closely."""
FEWEST = 3
"""A column with fewer values is a kind or a state, and no key."""
OVERLAP = 0.2
"""From this share of shared values on, of the column that has fewer, columns may be keys of each other."""
SHOWN = 5


@dataclass(frozen=True)
class LikelyKey:
    """A column of each side, and the evidence for the pair.

    - ``shared``: the share of values that both have, of the side that has fewer
    - ``values``: the number of distinct ones on each side; ``rows``: the rows per value on each side
    - ``spread``: how far apart in time rows of the same value are, compared with rows at random; 1: no nearer
    - ``is_dense``: both are nearly all numbers of a range, so that they would overlap whatever they mean
    """

    left: str
    right: str
    shared: float
    values: tuple[int, int]
    rows: tuple[float, float]
    spread: float
    is_dense: bool
    name_similarity: float

    @property
    def score(self) -> float:
        """The rank of a candidate: shared values, nearness in time, and a little for similar names."""
        near = 1 - self.spread
        return (
            self.shared
            * (0.1 + near)
            * (0.8 + 0.4 * self.name_similarity)
            * (0.7 if self.is_dense and near < 0.5 else 1.0)
        )


def likely_keys(
    left: SampledRows, right: SampledRows, times: tuple[tuple[Ints, Bools], tuple[Ints, Bools]]
) -> tuple[LikelyKey, ...]:
    """The pairs of columns that may be keys of each other, the likeliest first, without event times."""
    sides = [_columns(side) for side in (left, right)]
    overlaps = [
        shared
        for mine, values in sides[0].items()
        for other, others in sides[1].items()
        for shared in (_overlap(mine, values, other, others),)
        if shared is not None
    ]
    # How near rows are in time takes the longest to find, so only the best by their values are looked at.
    best = sorted(overlaps, key=lambda candidate: -candidate.promise)[:LOOKED_AT]
    likely = (_likely_key(candidate, sides[0][candidate.left], sides[1][candidate.right], times) for candidate in best)
    return tuple(sorted(likely, key=lambda candidate: -candidate.score)[:SHOWN])


@dataclass(frozen=True)
class _Overlap:
    """Two columns that have values in common; ``values``: how many different ones each has."""

    left: str
    right: str
    shared: float
    values: tuple[int, int]
    name_similarity: float

    @property
    def promise(self) -> float:
        """The rank before times are examined: a key has many values, and often a distinctive name."""
        return self.shared * (0.8 + 0.4 * self.name_similarity) * float(np.log(min(self.values)))


@dataclass(frozen=True)
class _Column:
    """The first values of a column, and which different ones these are."""

    values: pa.Array
    different: pa.Array


def _columns(side: SampledRows) -> dict[str, _Column]:
    """The columns that may be keys by their type, except event times."""
    columns: dict[str, _Column] = {}
    for name in side.rows.column_names:
        if side.source.watermark(name) is None and side.source.field(name) is not None:
            values = side.column(name)[:ROWS]
            if _may_be_key(values.type, values.type):
                columns[name] = _Column(values, values.drop_null().unique())
    return columns


def _overlap(mine: str, left: _Column, other: str, right: _Column) -> _Overlap | None:
    """The overlap of two columns; None: too small for keys of each other, or their types do not fit."""
    kind = common_type(left.values.type, right.values.type)
    counts = (len(left.different), len(right.different))
    if kind is None or min(counts) < FEWEST:
        return None
    fewer, more = sorted((left.different.cast(kind), right.different.cast(kind)), key=len)
    shared = float(pc.sum(pc.is_in(fewer, value_set=more)).as_py() or 0) / len(fewer)
    similarity = SequenceMatcher(None, mine.lower(), other.lower()).ratio()
    return _Overlap(mine, other, shared, counts, similarity) if shared >= OVERLAP else None


def _may_be_key(left: pa.DataType, right: pa.DataType) -> bool:
    kind = common_type(left, right)
    return kind is not None and not pa.types.is_timestamp(kind) and not pa.types.is_date(kind)


def _likely_key(
    overlap: _Overlap, left: _Column, right: _Column, times: tuple[tuple[Ints, Bools], tuple[Ints, Bools]]
) -> LikelyKey:
    """Two columns with what their rows say in time."""
    codes = codes_of([left.values], [right.values])
    first = [(own[:ROWS], there[:ROWS]) for own, there in times]
    sides = (KeyedTimes.of(codes[0], *first[0]), KeyedTimes.of(codes[1], *first[1]))
    gaps = distances(sides[0], sides[1])
    rows = [float((own != NO_CODE).sum()) / count for own, count in zip(codes, overlap.values, strict=True)]
    near = 1.0 if gaps is None else spread(gaps, sides[0], sides[1])
    dense = all(_is_dense(column.different) for column in (left, right))
    return LikelyKey(
        overlap.left, overlap.right, overlap.shared, overlap.values, (rows[0], rows[1]), near, dense,
        overlap.name_similarity,
    )  # fmt: skip


def _is_dense(different: pa.Array) -> bool:
    """Whether values are most numbers of their range."""
    if not pa.types.is_integer(different.type):
        return False
    ends = pc.min_max(different).as_py()
    return len(different) * 2 > ends["max"] - ends["min"] + 1
