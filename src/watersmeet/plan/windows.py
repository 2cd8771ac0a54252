"""The windows of event time that a time lies in, as an array: ``TABLE(HOP(...))`` has a row for each of them.

Windows are told by their distance from one that begins at or before the time, as Spark counts those from 1970 on: one
way to say it for TUMBLE, HOP and CUMULATE. Its SQL is exact for TIMESTAMP and TIMESTAMP_NTZ, whatever the time zone:
``make_interval`` adds seconds, where an INTERVAL of a day would add a day of the calendar.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Windows:
    """As many windows as ``number`` at most, counted from the beginning of the one of length ``base`` around a time.

    The window with number n, from 0 on, goes from ``start * n`` to ``first_end + end * n`` behind it; a time lies in
    those of them that end behind it. All lengths are in microseconds.
    """

    base: int
    number: int
    start: int
    first_end: int
    end: int

    @property
    def longest(self) -> int:
        """How long the longest of them is.

        >>> windows_of("CUMULATE", (10, 60)).longest, windows_of("HOP", (10, 25)).longest
        (60, 25)
        """
        return self.first_end + (self.end - self.start) * (self.number - 1)


def windows_of(function: str, lengths: tuple[int, ...]) -> Windows:
    """The windows of a function: TUMBLE has a size, HOP a slide and a size, CUMULATE a step and a size.

    >>> windows_of("CUMULATE", (10, 60))
    Windows(base=60, number=6, start=0, first_end=10, end=10)
    >>> windows_of("HOP", (10, 25))
    Windows(base=10, number=3, start=-10, first_end=25, end=-10)
    """
    step, size = lengths[0], lengths[-1]
    if function == "CUMULATE":
        return Windows(size, size // step, 0, step, step)
    return Windows(step, -(-size // step), -step, size, -step)


def windows_sql(time: str, windows: Windows) -> str:
    """Spark SQL for the windows of a time, which is SQL itself. It is part of identities: states are found by it.

    >>> windows_sql("t", windows_of("TUMBLE", (60_000_000,)))
    "array(window(t, '60000000 microseconds'))"
    """
    base = f"window({time}, '{windows.base} microseconds')"
    if windows.number == 1:
        return f"array({base})"
    bounds = ((0, windows.start), (windows.first_end, windows.end))
    start, end = (f"{base}.start + make_interval(0, 0, 0, 0, 0, 0, {_seconds(*bound)})" for bound in bounds)
    each = f"n -> named_struct('start', {start}, 'end', {end})"
    return f"filter(transform(sequence(0, {windows.number - 1}), {each}), w -> w.end > {time})"


def _seconds(first: int, each: int) -> str:
    return f"{_decimal(first)} + n * {_decimal(each)}"


def _decimal(micros: int) -> str:
    sign, size = ("-" if micros < 0 else ""), abs(micros)
    return f"{sign}{size // 1_000_000}.{size % 1_000_000:06d}"
