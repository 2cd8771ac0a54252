"""Columns of two sides that look like keys of each other."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
import pyarrow as pa

from watersmeet.advice.arrivals import NO_CODE, Arrivals, Bools, Ints, codes_of, common_type
from watersmeet.advice.distances import Side, distances, spread

ROWS = 200_000
"""So many rows of each side are looked at."""
FEWEST = 3
"""A column with fewer values is a kind or a state, and no key."""
OVERLAP = 0.2
"""From this share of shared values on, of the column that has fewer, columns may be keys of each other."""
SHOWN = 5


@dataclass(frozen=True)
class LikelyKey:
    """A column of each side, and what speaks for the pair.

    - ``shared``: the share of values that both have, of the side that has fewer
    - ``values``: how many different ones each side has; ``rows``: how many rows each has of one value
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
    alike: float

    @property
    def score(self) -> float:
        """What candidates are ordered by: shared values, nearness in time, and a little for names that are alike."""
        near = 1 - self.spread
        return self.shared * (0.1 + near) * (0.8 + 0.4 * self.alike) * (0.7 if self.is_dense and near < 0.5 else 1.0)


def likely_keys(
    left: Arrivals, right: Arrivals, times: tuple[tuple[Ints, Bools], tuple[Ints, Bools]]
) -> tuple[LikelyKey, ...]:
    """The pairs of columns that may be keys of each other, the likeliest first; event times are none."""
    sides = (left, right)
    columns = [
        {
            name: side.column(name)[:ROWS]
            for name in side.rows.column_names
            if side.source.watermark(name) is None and side.source.field(name) is not None
        }
        for side in sides
    ]
    first = [(ours[:ROWS], there[:ROWS]) for ours, there in times]
    found = [
        likely
        for mine, values in columns[0].items()
        for other, others in columns[1].items()
        if _may_be_key(values.type, others.type)
        for likely in (_likely(mine, values, other, others, first[0], first[1]),)
        if likely is not None
    ]
    return tuple(sorted(found, key=lambda likely: -likely.score)[:SHOWN])


def _may_be_key(left: pa.DataType, right: pa.DataType) -> bool:
    kind = common_type(left, right)
    return kind is not None and not pa.types.is_timestamp(kind) and not pa.types.is_date(kind)


def _likely(
    mine: str,
    left: pa.Array,
    other: str,
    right: pa.Array,
    left_times: tuple[Ints, Bools],
    right_times: tuple[Ints, Bools],
) -> LikelyKey | None:
    codes = codes_of([left], [right])
    values = [np.unique(own[own != NO_CODE]) for own in codes]
    fewest = min(map(len, values))
    if fewest < FEWEST:
        return None
    shared = len(np.intersect1d(values[0], values[1])) / fewest
    if shared < OVERLAP:
        return None
    sides = (Side.of(codes[0], *left_times), Side.of(codes[1], *right_times))
    apart = distances(sides[0], sides[1])
    rows = [float((own != NO_CODE).sum()) / len(each) for own, each in zip(codes, values, strict=True)]
    near = 1.0 if apart is None else spread(apart, sides[0], sides[1])
    alike = SequenceMatcher(None, mine.lower(), other.lower()).ratio()
    dense = all(_is_dense(column) for column in (left, right))
    counts = (len(values[0]), len(values[1]))
    return LikelyKey(mine, other, shared, counts, (rows[0], rows[1]), near, dense, alike)


def _is_dense(column: pa.Array) -> bool:
    """Whether a column has most numbers of its range."""
    if not pa.types.is_integer(column.type):
        return False
    values = np.unique(column.drop_null().to_numpy(zero_copy_only=False))
    return bool(len(values) and len(values) * 2 > int(values[-1]) - int(values[0]) + 1)
