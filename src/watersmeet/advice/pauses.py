"""Times in which one side is silent while the other goes on.

Event times tell of it, not the clock: a pause in event time is one by the clock where rows come as they happen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from watersmeet.advice.amounts import round_up
from watersmeet.advice.arrivals import Ints
from watersmeet.duration import SECOND

TIMES_USUAL = 10
"""A pause is so many times as long as nearly all gaps between rows."""
OTHERS = 10
"""In a pause the other side has at least so many rows."""
ABOVE = 3
"""IDLE AFTER is so many times the longest gap that is no pause."""


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
    """The pauses of a side with those times beside another; None if it has none, or too few rows to tell.

    Silence at the end is none: nobody knows whether the side would have spoken again.
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
