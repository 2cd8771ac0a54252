"""The progress of a query, one value per batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from watersmeet.joins.operator import END_OF_INPUT

OUT = "watersmeet"
"""The observation that counts the rows of the result."""
JOIN = "watersmeet:"
"""How the names of the observations of joins begin."""


@dataclass(frozen=True)
class Progress:
    """What one batch of a query did. ``watermarks`` are shown as people read them; counts are of all joins together."""

    query: str
    batch: int
    rows_in: int = 0
    rows_out: int = 0
    matched: int = 0
    padded: int = 0
    late: int = 0
    state_rows: int = 0
    watermarks: Mapping[str, str] = field(default_factory=dict[str, str])
    seconds: float = 0.0
    dropped: int = 0


def progress_of(name: str, reported: Mapping[str, Any], temporal: frozenset[str]) -> Progress:
    """The progress in what Spark reports of a batch; ``temporal`` are the columns whose marks are times."""
    observed: Mapping[str, Any] = reported.get("observedMetrics") or {}
    joins = [values for key, values in observed.items() if key.startswith(JOIN)]
    watermarks: dict[str, int] = {}
    for values in joins:
        watermarks |= json.loads(_value(values, "watermarks") or "{}")

    def total(*names: str) -> int:
        return sum(int(_value(values, n) or 0) for values in joins for n in names)

    return Progress(
        query=name,
        batch=int(reported["batchId"]),
        rows_in=total("rows_left", "rows_right"),
        rows_out=int(_value(observed[OUT], "rows") or 0) if OUT in observed else 0,
        matched=total("matched"),
        padded=total("padded_left", "padded_right"),
        late=total("late_left", "late_right"),
        dropped=total("dropped_left", "dropped_right"),
        state_rows=total("state_left", "state_right"),
        watermarks={column: mark_in_words(mark, column in temporal) for column, mark in watermarks.items()},
        seconds=float(reported["durationMs"].get("triggerExecution", 0)) / 1000,
    )


def mark_in_words(mark: int, is_temporal: bool) -> str:
    """A mark as people read it.

    >>> mark_in_words(1_700_000_000_000_000, True)
    '2023-11-14 22:13:20'
    >>> mark_in_words(END_OF_INPUT, True)
    'ended'
    """
    if mark == END_OF_INPUT:
        return "ended"
    if not is_temporal:
        return str(mark)
    try:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=mark)
    except OverflowError:
        return str(mark)
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _value(values: Any, name: str) -> Any:
    """A number of an observation, which is a row of Spark's and has no ``get``."""
    return values[name] if name in values else None  # noqa: SIM401 - see above
