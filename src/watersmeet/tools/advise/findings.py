"""Findings about one side: disorder and the cost of each lag, pauses, and skewed keys.

A row is late if its time is below the watermark of its side, which is the latest time of earlier batches less the lag.
The batches are not known, so every row counts as a separate batch: a run has at most as many late rows as reported
here.

A pause is measured in event time: it is one by the clock where rows arrive as they happen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.duration import SECOND
from watersmeet.operators.core.python_values import python_value
from watersmeet.tools.advise.arrivals import Bools, Ints, Unit, round_up

SHARES = (0.9, 0.99, 0.999, 1.0)


@dataclass(frozen=True)
class Disorder:
    """How far each row is behind the latest before it, sorted: of a row that is the latest, 0."""

    behind: Ints

    def late(self, lag: int) -> float:
        """The share of rows that are late with a lag."""
        return 1 - float(np.searchsorted(self.behind, lag, "right")) / max(1, len(self.behind))

    @property
    def is_ordered(self) -> bool:
        """Whether no row is behind another that came before it."""
        return not len(self.behind) or not int(self.behind[-1])


@dataclass(frozen=True)
class LagCost:
    """A lag, the share of rows that are late with it, and how much later unmatched rows are emitted."""

    lag: int
    late: float

    @property
    def delay(self) -> int:
        """Padded rows wait for the other side's watermark, which is behind by the lag."""
        return self.lag


def disorder(times: Ints, is_there: Bools, partition: Ints | None = None) -> Disorder:
    """The disorder of rows in the order in which they arrived; with partitions, that of each in itself.

    >>> disorder(np.array([10, 30, 20, 40]), np.ones(4, bool)).behind
    array([ 0,  0,  0, 10])
    """
    present = times[is_there]
    if partition is None:
        return Disorder(np.sort(np.maximum.accumulate(present) - present))
    of = partition[is_there]
    parts = [present[of == number] for number in np.unique(of)]
    delays = [np.maximum.accumulate(part) - part for part in parts]
    return Disorder(np.sort(np.concatenate(delays)) if delays else present)


def lags_of(measured: Disorder, unit: Unit = "time") -> tuple[LagCost, ...]:
    """The lags that let 90, 99, 99.9 and all of 100 rows be in time, in few digits; equal ones once."""
    behind = measured.behind
    need = [behind[max(0, int(np.ceil(share * len(behind))) - 1)] for share in SHARES] if len(behind) else [0]
    lags = dict.fromkeys([0, *(round_up(int(lag), unit) for lag in need)])
    return tuple(LagCost(lag, measured.late(lag)) for lag in lags)


TIMES_USUAL = 10
"""A pause is so many times as long as nearly all gaps between rows."""
OTHERS = 10
"""In a pause the other side has at least so many rows."""
ABOVE = 3
"""IDLE AFTER is this many times the longest gap that is not a pause."""


@dataclass(frozen=True)
class Pauses:
    """The pauses of a side: how many, the longest, how many rows of the other side come in it at most.

    ``idle_after``: a duration that the gaps between rows do not reach, in microseconds.
    """

    count: int
    longest: int
    waiting: int
    idle_after: int


def pauses(times: Ints, others: Ints) -> Pauses | None:
    """The pauses of a side with those times next to another; None if it has none, or too few rows.

    Silence at the end is not a pause: the side may have ended.
    """
    own, other = np.sort(times), np.sort(others)
    if len(own) < 100 or not len(other):
        return None
    gaps = np.diff(own)
    usual = TIMES_USUAL * max(1, int(np.quantile(gaps, 0.99)))
    meanwhile = np.searchsorted(other, own[1:], "left") - np.searchsorted(other, own[:-1], "right")
    is_pause = (gaps > usual) & (meanwhile >= OTHERS)
    if not is_pause.any():
        return None
    longest = int(gaps[is_pause].max())
    normal = int(gaps[~is_pause].max(initial=0))
    idle_after = min(round_up(max(SECOND, ABOVE * normal)), max(SECOND, longest))
    return Pauses(int(is_pause.sum()), longest, int(meanwhile[is_pause].max()), idle_after)


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
