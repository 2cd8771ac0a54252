"""Keys that have more rows than others, and what that means for the shards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.advice.arrivals import Ints
from watersmeet.operators.core.python_values import python_value

SHOWN = 5
HEAVY = 0.05
"""From this share of all rows on a key is worth a word: it takes a core of twenty for itself."""


@dataclass(frozen=True)
class Skew:
    """The heaviest keys with their shares of all rows, how many keys there are, and the share of rows without one."""

    heaviest: tuple[tuple[str, float], ...]
    keys: int
    nulls: float

    @property
    def largest(self) -> float:
        """The share of the heaviest key."""
        return self.heaviest[0][1] if self.heaviest else 0.0

    @property
    def most_cores(self) -> int | None:
        """More cores than this are of no use, for one key is in one shard; None: no key is that heavy."""
        return max(1, int(1 / self.largest)) if self.largest >= HEAVY and self.keys > 1 else None


def skew(column: pa.Array) -> Skew:
    """How the rows spread over the values of a column.

    >>> found = skew(pa.array(["a"] * 8 + ["b", None]))
    >>> found.heaviest[0], found.keys, found.nulls, found.most_cores
    (('a', 0.8), 2, 0.1, 1)
    """
    counted = pc.value_counts(column.drop_null())
    counts = np.asarray(counted.field("counts").to_numpy(zero_copy_only=False), np.int64)
    first = np.argsort(-counts, kind="stable")[:SHOWN]
    rows = max(1, len(column))
    values = [str(python_value(counted.field("values")[int(place)])) for place in first]
    shares = [float(counts[place]) / rows for place in first]
    return Skew(tuple(zip(values, shares, strict=True)), len(counts), column.null_count / rows)


def heaviest_shard(codes: Ints, shards: int) -> float:
    """How many times the rows of an even share the fullest of so many shards has.

    >>> round(heaviest_shard(np.arange(100_000), 4), 1), heaviest_shard(np.zeros(10, np.int64), 4)
    (1.0, 4.0)
    """
    if not len(codes):
        return 1.0
    mixed = codes.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    counts = np.bincount((mixed % np.uint64(shards)).astype(np.int64), minlength=shards)
    return float(counts.max()) * shards / len(codes)
