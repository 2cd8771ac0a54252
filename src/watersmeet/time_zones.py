"""How far the clocks of a time zone have ever moved: by so much a day there can be longer or shorter than 24 hours."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from watersmeet.duration import HOUR, SECOND

SESSION_ZONE = "spark.sql.session.timezone"
"""The setting of Spark for the zone of a session, in small letters."""

_FIXED = re.compile(r"(?:Z|UTC|UT|GMT)?(?:[+-]\d{1,2}(?::?\d{2}){0,2})?", re.IGNORECASE)
_UNKNOWN = 26 * HOUR
"""Between -12 and +14 hours: no zone has ever moved further."""


@cache
def largest_shift(zone: str) -> int:
    """The largest difference between two offsets of a zone, in microseconds; 0: every day has 24 hours.

    >>> largest_shift("UTC"), largest_shift("+02:00"), largest_shift("Etc/GMT-5")
    (0, 0, 0)
    >>> largest_shift("Europe/Berlin") >= HOUR, largest_shift("Pacific/Apia") > 24 * HOUR
    (True, True)
    """
    if _FIXED.fullmatch(zone.strip()):
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
