"""Durations, text to microseconds and back; counts of things in words; and rows of text in columns.

Months and years are not durations here: their length depends on where they start.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from zoneinfo import ZoneInfo

MICROSECOND = 1
MILLISECOND = 1_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
WEEK = 7 * DAY

SPARK_UNITS = {
    "microsecond": MICROSECOND, "millisecond": MILLISECOND, "second": SECOND, "minute": MINUTE,
    "hour": HOUR, "day": DAY, "week": WEEK,
    "microseconds": MICROSECOND, "milliseconds": MILLISECOND, "seconds": SECOND, "minutes": MINUTE,
    "hours": HOUR, "days": DAY, "weeks": WEEK,
}  # fmt: skip
"""The units of Spark's interval literals that have a fixed length."""

SHORT_UNITS = {"us": MICROSECOND, "ms": MILLISECOND, "s": SECOND, "m": MINUTE, "min": MINUTE, "h": HOUR, "d": DAY}
"""The units that may stand right behind a number, as in ``5s``."""

CALENDAR_UNITS = frozenset({"month", "months", "year", "years", "quarter", "quarters"})

_UNITS = SPARK_UNITS | SHORT_UNITS
_FIELDS = ("day", "hour", "minute", "second")
_NUMBER = r"\d+(?:\.\d*)?|\.\d+"
_PART = re.compile(rf"\s*([+-]?)\s*(?:'\s*([+-]?)\s*({_NUMBER})\s*'|({_NUMBER}))\s*([A-Za-z]+)")
_RANGE = re.compile(r"([+-]?)\s*'([^']*)'\s*([A-Za-z]+)\s+to\s+([A-Za-z]+)", re.IGNORECASE)


class CalendarDurationError(ValueError):
    """Raised for months and years, which are intervals of Spark but no durations."""


def parse_duration(text: str) -> int:
    """The microseconds that a text such as ``5s``, ``1 hour 30 minutes`` or ``INTERVAL '1' HOUR`` stands for.

    >>> parse_duration("500ms"), parse_duration("1 hour 30 minutes")
    (500000, 5400000000)
    >>> parse_duration("INTERVAL '1 02:03:04.5' DAY TO SECOND")
    93784500000
    """
    body = re.sub(r"^interval\b", "", text.strip(), count=1, flags=re.IGNORECASE).strip()
    span = _RANGE.fullmatch(body)
    if span:
        return _range(span, text)
    if re.fullmatch(r"'[^']*'", body):
        body = body[1:-1]
    return _parts(body, text)


def format_duration(micros: int) -> str:
    """A duration as people read it.

    >>> format_duration(5_400_000_000), format_duration(500_000), format_duration(0)
    ('1 h 30 min', '500 ms', '0 s')
    """
    if micros < 0:
        return "-" + format_duration(-micros)
    parts: list[str] = []
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s"), (MILLISECOND, "ms"), (1, "µs")):
        count, micros = divmod(micros, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 s"


def rough_duration(micros: int) -> str:
    """A length of time in its two largest units.

    >>> rough_duration(93_784_500_000), rough_duration(1_500_000)
    ('1 d 2 h', '1 s')
    """
    for unit in (DAY, HOUR, MINUTE):
        if abs(micros) >= unit:
            step = {DAY: HOUR, HOUR: MINUTE, MINUTE: SECOND}[unit]
            return format_duration(int(micros / step) * step)
    return format_duration(int(micros / SECOND) * SECOND)


def _parts(body: str, text: str) -> int:
    total, position = 0, 0
    while position < len(body):
        part = _PART.match(body, position)
        if part is None:
            break
        outer, inner, quoted, plain, unit = part.groups()
        sign = -1 if (outer == "-") != (inner == "-") else 1
        total += sign * _micros(quoted or plain, _unit(unit, text), text)
        position = part.end()
    if position == 0 or body[position:].strip():
        raise ValueError(f"`{text}` is not a duration. Write one such as `5s`, `10 MINUTES` or `INTERVAL '1' HOUR`.")
    return total


def _unit(unit: str, text: str) -> int:
    if unit.lower() in CALENDAR_UNITS:
        raise CalendarDurationError(f"`{text}` has no fixed length: months and years differ. Write it in days.")
    if unit.lower() not in _UNITS:
        raise ValueError(f"`{unit}` is not a unit of time. Write MILLISECONDS, SECONDS, MINUTES, HOURS, DAYS or WEEKS.")
    return _UNITS[unit.lower()]


def _micros(number: str, unit: int, text: str) -> int:
    if len(number) > 40:
        raise ValueError(f"`{text[:40]}...` is longer than any time can be.")
    exact = Decimal(number) * unit
    if exact != int(exact):
        raise ValueError(f"`{text}` is finer than a microsecond, the smallest step of time.")
    if exact >= 2**63:
        raise ValueError(f"`{text}` is longer than any time can be.")
    return int(exact)


def _range(span: re.Match[str], text: str) -> int:
    outer, value, first, last = span.groups()
    first, last = first.lower().removesuffix("s"), last.lower().removesuffix("s")
    if first in CALENDAR_UNITS or last in CALENDAR_UNITS:
        raise CalendarDurationError(f"`{text}` has no fixed length: months and years differ. Write it in days.")
    if first not in _FIELDS or last not in _FIELDS or _FIELDS.index(first) >= _FIELDS.index(last):
        raise ValueError(f"`{text}` is not a duration: {first} to {last} is not a range of units from large to small.")
    units = _FIELDS[_FIELDS.index(first) : _FIELDS.index(last) + 1]
    sign = "-" if value.strip().startswith("-") else ""
    numbers = re.split(r"\s+|:", value.strip().lstrip("+-").strip())
    whole = all(re.fullmatch(r"\d+", n) for n in numbers[:-1]) and re.fullmatch(_NUMBER, numbers[-1])
    if len(numbers) != len(units) or not whole:
        raise ValueError(f"`{text}` is not a duration: `{value}` does not have the form of {first} to {last}.")
    total = sum(_micros(n, SPARK_UNITS[u], text) for n, u in zip(numbers, units, strict=True))
    return -total if (outer == "-") != (sign == "-") else total


def format_count(number: int, thing: str) -> str:
    """So many of a thing, one of which is ``thing``.

    >>> format_count(1, "row"), format_count(1200, "row"), format_count(0, "batch")
    ('1 row', '1,200 rows', '0 batches')
    >>> format_count(2, "query"), format_count(2, "key")
    ('2 queries', '2 keys')
    """
    return f"{number:,} {thing if number == 1 else _plural(thing)}"


def format_bytes(count: int) -> str:
    """A number of bytes as people read it.

    >>> format_bytes(999), format_bytes(25_400_000)
    ('999 B', '25.4 MB')
    """
    power = min(max(0, (len(str(count)) - 1) // 3), 4)
    return f"{count / 1000**power:.{min(power, 1)}f} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def align_columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """Rows as lines of text whose cells stand below each other; ``right``: the columns that are flush right.

    Nothing is wrapped or cut off, and no line ends with a space, so the lines are the same on a pipe and a terminal.

    >>> list(align_columns([("side", "rows"), ("orders", "3")], right=[1]))
    ['side    rows', 'orders     3']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def _plural(thing: str) -> str:
    if thing.endswith("y") and thing[-2] not in "aeiou":
        return f"{thing[:-1]}ies"
    return f"{thing}es" if thing.endswith(("ch", "s")) else f"{thing}s"


SESSION_ZONE = "spark.sql.session.timezone"
"""The setting of Spark for the zone of a session, in small letters."""

_FIXED = re.compile(r"(?:Z|UTC|UT|GMT)?(?:[+-]\d{1,2}(?::?\d{2}){0,2})?", re.IGNORECASE)
_UNKNOWN = 26 * HOUR
"""Between -12 and +14 hours: no zone has ever moved further."""


def is_fixed_zone(zone: str) -> bool:
    """Whether a zone is written as one offset from UTC.

    >>> is_fixed_zone("UTC"), is_fixed_zone("+02:00"), is_fixed_zone("Europe/Berlin")
    (True, True, False)
    """
    return _FIXED.fullmatch(zone.strip()) is not None


@cache
def largest_shift(zone: str) -> int:
    """The largest difference between two offsets of a zone, in microseconds; 0: every day has 24 hours.

    >>> largest_shift("UTC"), largest_shift("+02:00"), largest_shift("Etc/GMT-5")
    (0, 0, 0)
    >>> largest_shift("Europe/Berlin") >= HOUR, largest_shift("Pacific/Apia") > 24 * HOUR
    (True, True)
    """
    if is_fixed_zone(zone):
        return 0
    try:
        rules = ZoneInfo(zone.strip())
    except (KeyError, ValueError, OSError):
        return _UNKNOWN
    # No offset has been in force for less than a week.
    first = datetime(1840, 1, 1, tzinfo=UTC)
    moments = (first + timedelta(weeks=n) for n in range(52 * 270))
    offsets = [moment.astimezone(rules).utcoffset() or timedelta() for moment in moments]
    return int((max(offsets) - min(offsets)).total_seconds()) * SECOND
