"""Columns of two sides that look like keys of each other."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.advice.arrivals import NO_CODE, Bools, Ints, SampledRows, codes_of, common_type
from watersmeet.advice.distances import KeyedTimes, distances, spread

ROWS, LOOKED_AT = 100_000, 8
"""So many rows of each side are looked at, and so many pairs of columns more closely."""
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
    name_similarity: float

    @property
    def score(self) -> float:
        """What candidates are ordered by: shared values, nearness in time, and a little for names that are alike."""
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
    """The pairs of columns that may be keys of each other, the likeliest first; event times are none."""
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
        """What they are ordered by before times are looked at: a key has many values, and often a name of its own."""
        return self.shared * (0.8 + 0.4 * self.name_similarity) * float(np.log(min(self.values)))


@dataclass(frozen=True)
class _Column:
    """The first values of a column, and which different ones these are."""

    values: pa.Array
    different: pa.Array


def _columns(side: SampledRows) -> dict[str, _Column]:
    """The columns that may be keys by their type, event times apart."""
    columns: dict[str, _Column] = {}
    for name in side.rows.column_names:
        if side.source.watermark(name) is None and side.source.field(name) is not None:
            values = side.column(name)[:ROWS]
            if _may_be_key(values.type, values.type):
                columns[name] = _Column(values, values.drop_null().unique())
    return columns


def _overlap(mine: str, left: _Column, other: str, right: _Column) -> _Overlap | None:
    """What two columns have in common; None: too little to be keys of each other, or their types do not fit."""
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
