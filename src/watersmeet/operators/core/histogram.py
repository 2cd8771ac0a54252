"""How long some lengths are, in few numbers: how many of them lie in each of 256 ranges.

The ranges grow with what they hold, four to each power of two, so that a length is known to a quarter of itself,
whatever its unit. Range 0 holds the length 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from watersmeet.operators.core.matching import Ints

RANGES = 256
SAMPLE = 4096
"""Of more lengths than that, some stand for all: it must cost next to nothing."""

Histogram = NDArray[np.float64]

_PARTS = 4
# A double has its exponent in front of its fraction: these bits together count the ranges.
_SHIFT, _ONE = np.int64(50), 1023 * _PARTS


def build_histogram(lengths: Ints | NDArray[np.uint64], weight: float = 1.0) -> Histogram:
    """How many lengths lie in each range; a negative one is as long as its opposite.

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
