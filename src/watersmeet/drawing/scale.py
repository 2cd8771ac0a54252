"""The axis of a picture: which stretch of time it shows, where a moment stands on it, and what its ticks are called."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Literal

from watersmeet.duration import DAY, HOUR, MILLISECOND, MINUTE, SECOND, format_duration

MOST = 2**62
"""Beyond it a moment is no time any more but the end of the input."""

_STEPS = tuple(
    size * unit
    for unit, sizes in (
        (1, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (MILLISECOND, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (SECOND, (1, 2, 5, 10, 15, 30)),
        (MINUTE, (1, 2, 5, 10, 15, 30)),
        (HOUR, (1, 2, 3, 6, 12)),
        (DAY, (1, 2, 7, 14, 28, 91, 182, 364, 1820, 3640, 36400)),
    )
    for size in sizes
)
"""Lengths between ticks that people count in."""


Moments = Literal["numbers", "times", "clock"]
"""What stands on an axis: plain numbers, microseconds since 1970, or microseconds of a clock since any moment."""


@dataclass(frozen=True)
class TimeScale:
    """The moments ``low`` to ``high``, drawn from ``left`` to ``right``, and what they are.

    >>> scale = TimeScale(0, 10, 100.0, 200.0)
    >>> scale.x(5), scale.x(99), scale.covers(99), scale.ticks(5)
    (150.0, 200.0, False, (0, 2, 4, 6, 8, 10))
    """

    low: int
    high: int
    left: float
    right: float
    kind: Moments = "numbers"

    def x(self, moment: int) -> float:
        """Where a moment stands; one that is not shown stands at the edge."""
        inside = min(max(moment, self.low), self.high)
        return round(self.left + (inside - self.low) * (self.right - self.left) / (self.high - self.low), 1)

    def covers(self, moment: int) -> bool:
        """Whether a moment is shown."""
        return self.low <= moment <= self.high

    def ticks(self, most: int) -> tuple[int, ...]:
        """At most so many moments and one, at even distances that people count in."""
        wanted = (self.high - self.low) / most
        steps = _decimal_steps() if self.kind == "numbers" else _STEPS
        step = next((step for step in steps if step >= wanted), _STEPS[-1])
        first = -(-self.low // step) * step
        return tuple(range(first, self.high + 1, step))

    def text(self, moment: int) -> str:
        """A moment as its tick is called: no more of it than tells the ticks apart.

        >>> TimeScale(0, 7_200_000_000, 0.0, 1.0, "times").text(5_400_000_000)
        '01:30'
        """
        if self.kind != "times":
            said = f"{moment:,}" if self.kind == "numbers" else format_duration(moment)
            return said.replace("-", "\N{MINUS SIGN}")
        when = as_datetime(moment)
        if self.high - self.low > 3 * DAY and moment % DAY == 0:
            return f"{when:%Y-%m-%d}"
        of_day = f"{when:%H:%M}" if moment % MINUTE == 0 else f"{when:%H:%M:%S}"
        if moment % SECOND:
            of_day += f".{moment % SECOND:06d}".rstrip("0")
        return of_day if self.day is not None else f"{when:%m-%d} {of_day}"

    @property
    def day(self) -> str | None:
        """The one day that all of it lies in, if it does."""
        if self.kind != "times":
            return None
        first, last = as_datetime(self.low), as_datetime(self.high)
        return f"{first:%Y-%m-%d}" if first.date() == last.date() else None


def as_datetime(moment: int) -> datetime:
    """Microseconds since 1970 as a time of UTC; what no calendar has becomes its first or last time.

    >>> as_datetime(0).isoformat()
    '1970-01-01T00:00:00+00:00'
    """
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment)
    except OverflowError:
        return (datetime.max if moment > 0 else datetime.min).replace(tzinfo=UTC)


def time_range(rows: Iterable[int], watermarks: Iterable[int]) -> tuple[int, int]:
    """The moments that a picture shows: all of its rows, and marks that do not lie too far away, with some air.

    >>> time_range([5, 9], [6, 20, 1_000_000])
    (4, 10)
    >>> time_range([5, 9], [12]), time_range([], [])
    ((4, 13), (0, 1))
    """
    times = [moment for moment in rows if abs(moment) < MOST]
    if not times:
        return 0, 1
    low, high = min(times), max(times)
    reach = max(1, (high - low) * 3 // 2)
    near = [watermark for watermark in watermarks if low - reach <= watermark <= high + reach]
    low, high = min([low, *near]), max([high, *near])
    air = max(1, (high - low) // 24)
    return low - air, high + air


def _decimal_steps() -> Iterable[int]:
    return (size * 10**power for power in count() for size in (1, 2, 5))
