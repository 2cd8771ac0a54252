"""The progress of a query, one value per batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from watersmeet.joins.core.operator import END_OF_INPUT
from watersmeet.observe.metrics import OperatorNumbers, backpressure_of, operator_numbers, summed

OUT = "watersmeet"
"""The observation that counts the rows of the result."""
JOIN = "watersmeet:"
"""How the names of the observations of joins begin."""
MALFORMED = "watersmeet.malformed:"
"""How the names of the observations begin that count malformed rows, by source."""
MARK = "watermark:"
"""How the names of marks in them begin: per watermarked column, the mark of the shard that is furthest behind."""


@dataclass(frozen=True)
class Progress:
    """What one batch of a query did. ``watermarks`` are shown as people read them; counts are of all joins together.

    ``malformed``: rows that could not be read, ``malformed_of`` by source. ``written``: rows written to the state,
    those of merged runs too. ``partitions``: how many partitions each side's window has now; nothing but for window
    joins. ``operators``: the numbers of each, by what people call it. ``marks`` are the watermarks as numbers,
    microseconds since 1970 for the columns that are ``temporal``. ``backpressure`` is that of
    `watersmeet.observe.metrics`.
    """

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
    written: int = 0
    partitions: Mapping[str, int] = field(default_factory=dict[str, int])
    operators: Mapping[str, OperatorNumbers] = field(default_factory=dict[str, OperatorNumbers])
    marks: Mapping[str, int] = field(default_factory=dict[str, int])
    temporal: frozenset[str] = frozenset()
    backpressure: float = 0.0
    malformed: int = 0
    malformed_of: Mapping[str, int] = field(default_factory=dict[str, int])


def progress_of(name: str, reported: Mapping[str, Any], temporal: frozenset[str], cores: int | None = None) -> Progress:
    """The progress in what Spark reports of a batch.

    ``temporal`` are the columns whose marks are times; ``cores`` is how many tasks Spark runs at the same time.
    """
    observed: Mapping[str, Any] = reported.get("observedMetrics") or {}
    named = _joins(observed)
    joins = [*named.values()]
    marks: dict[str, int] = {}
    for values in joins:
        marks |= {n.removeprefix(MARK): int(v) for n, v in values.items() if n.startswith(MARK) and v is not None}
    seconds = float(reported["durationMs"].get("triggerExecution", 0)) / 1000
    backpressure = backpressure_of(reported)
    return Progress(
        query=name,
        batch=int(reported["batchId"]),
        rows_in=summed(joins, "rows"),
        rows_out=int(_numbers(observed[OUT]).get("rows") or 0) if OUT in observed else 0,
        matched=summed(joins, "matched"),
        padded=summed(joins, "padded"),
        late=summed(joins, "late"),
        dropped=summed(joins, "dropped"),
        written=summed(joins, "written"),
        state_rows=summed(joins, "state"),
        partitions=_partitions(joins),
        watermarks={column: mark_in_words(mark, is_temporal=column in temporal) for column, mark in marks.items()},
        seconds=seconds,
        operators={n: operator_numbers(values, seconds, backpressure, cores) for n, values in named.items()},
        marks=marks,
        temporal=temporal & marks.keys(),
        backpressure=backpressure,
        malformed=sum(_malformed(observed).values()),
        malformed_of=_malformed(observed),
    )


def _malformed(observed: Mapping[str, Any]) -> dict[str, int]:
    """The malformed rows of each source that had some."""
    found = ((key.removeprefix(MALFORMED), values) for key, values in observed.items() if key.startswith(MALFORMED))
    counts = {source: int(_numbers(values).get("rows") or 0) for source, values in found}
    return {source: count for source, count in counts.items() if count}


def _joins(observed: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What was observed of each join, by what people call it; of several with one name the later ones are numbered."""
    found: dict[str, Mapping[str, Any]] = {}
    for key in sorted(key for key in observed if key.startswith(JOIN)):
        name = key.removeprefix(JOIN).rpartition("#")[0] or key.removeprefix(JOIN)
        alike = sum(known == name or known.startswith(f"{name} (") for known in found)
        found[f"{name} ({alike + 1})" if alike else name] = _numbers(observed[key])
    return found


def _partitions(joins: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The partitions of the windows, by side; other joins report NULL."""
    found = [(n, v) for values in joins for n, v in values.items() if n.startswith("partitions_")]
    return {name.removeprefix("partitions_"): int(value) for name, value in found if value is not None}


def port_names(ports: int) -> tuple[str, ...]:
    """What the ports of a join are called in its numbers.

    >>> port_names(2), port_names(3)
    (('left', 'right'), ('1', '2', '3'))
    """
    return ("left", "right") if ports == 2 else tuple(str(port + 1) for port in range(ports))


def mark_in_words(mark: int, *, is_temporal: bool) -> str:
    """A mark as people read it.

    >>> mark_in_words(1_700_000_000_000_000, is_temporal=True)
    '2023-11-14 22:13:20'
    >>> mark_in_words(END_OF_INPUT, is_temporal=True)
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


def _numbers(values: Any) -> Mapping[str, Any]:
    """The numbers of an observation, which is a row of Spark's; through Spark Connect, its values beside its schema."""
    found = cast("Mapping[str, Any]", values if isinstance(values, Mapping) else values.asDict())
    if set(found) != {"values", "schema"}:
        return found
    names = [field["name"] for field in found["schema"]["fields"]]
    return dict(zip(names, found["values"], strict=True))
