"""Lengths of event time that people would choose: few digits, never less than what is needed."""

from __future__ import annotations

import math
from typing import Literal

from watersmeet.duration import DAY, HOUR, MILLISECOND, MINUTE, SECOND, format_duration

Unit = Literal["time", "day", "number"]
"""What event times are: moments, counted in microseconds; days, which are a whole number of days apart; or numbers."""

_UNITS = ((DAY, "DAYS"), (HOUR, "HOURS"), (MINUTE, "MINUTES"), (SECOND, "SECONDS"), (MILLISECOND, "MILLISECONDS"))
_STEPS = 20
"""What is rounded up grows by at most one part in so many, but for lengths below so many of the smallest unit."""


def round_up(value: int, unit: Unit = "time") -> int:
    """The next length that can be said in few digits.

    >>> [round_up(seconds * SECOND) // SECOND for seconds in (0, 61, 3601, 100_000)]
    [0, 61, 3660, 100800]
    >>> round_up(1234, "number"), round_up(30 * HOUR, "day") // DAY
    (1250, 2)
    """
    if value <= 0:
        return 0
    size = DAY if unit == "day" else 1
    if unit == "time":
        size = next((size for size, _ in _UNITS if value >= _STEPS * size), 1)
    count = -(-value // size)
    # Of large counts the leading digits are enough.
    step = max(1, 5 * 10 ** (int(math.log10(count)) - 2)) if count >= 100 else 1
    return -(-count // step) * step * size


def interval(value: int, unit: Unit = "time") -> str:
    """A length as SQL has it.

    >>> interval(3720 * SECOND), interval(40, "number")
    ('INTERVAL 62 MINUTES', '40')
    """
    if unit == "number":
        return str(value)
    size, named = next(((size, named) for size, named in _UNITS if value and value % size == 0), (1, "MICROSECONDS"))
    return f"INTERVAL {value // size} {named}" if value else f"INTERVAL 0 {'DAYS' if unit == 'day' else 'SECONDS'}"


def format_length(value: float, unit: Unit = "time") -> str:
    """A length as people read it; of long ones only what matters.

    >>> format_length(3_723_456_789), format_length(5, "number")
    ('1 h 2 min', '5')
    """
    whole = round(value)
    if unit == "number":
        return f"{whole:,}"
    sizes = (DAY, HOUR, MINUTE, SECOND, MILLISECOND, 1)
    size = next((size for size in sizes if abs(whole) >= size), 1)
    finest = sizes[min(len(sizes) - 1, sizes.index(size) + 1)]
    return format_duration(round(whole / finest) * finest)
