"""How far rows are behind the latest one before them, and what each lag costs.

A row is late if its time is below the mark of its side, which is the latest time of earlier batches less the lag. How
rows are cut into batches is not known, so every row counts as a batch of its own: in a run there are at most as many
late rows as it says here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from watersmeet.advice.amounts import Unit, round_up
from watersmeet.advice.arrivals import Bools, Ints

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
    """A lag, the share of rows that are late with it, and by how much later rows that stay alone come out."""

    lag: int
    late: float

    @property
    def delay(self) -> int:
        """What is padded waits for the other side's watermark, which is behind by the lag."""
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
