"""The progress of a query, one value per batch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from watersmeet.joins.core.operator import END_OF_INPUT
from watersmeet.joins.core.python_values import DistantTime
from watersmeet.observe.metrics import OperatorNumbers, backlog_of, backpressure_of, operator_numbers, summed
from watersmeet.observe.told import TELLS, by_join

OUT = "watersmeet"
"""The observation that counts the rows of the result."""
JOIN = "watersmeet:"
"""How the names of the observations of joins begin."""
MALFORMED = "watersmeet.malformed:"
"""How the names of the observations begin that count malformed rows, by source."""
MARK = "watermark:"
"""How the names of marks in them begin: per watermarked column, the mark of the shard that is furthest behind."""
EXAMPLES = "example:"
"""How the names begin under which some rows are told, by kind, as JSON."""
OWN = "own:"
"""How the names of marks begin that a side has by itself, whether the other side is as far or not."""


Examples = dict[str, dict[str, list[dict[str, str | None]]]]
"""Some rows as text, by operator or source, and by what became of them."""


@dataclass(frozen=True)
class Reading:
    """What the numbers that Spark reports of a query stand for.

    ``temporal`` are the columns whose marks are times; ``feeds`` the sources that feed a join, by the name of its
    observation and then by side. A side that another join feeds has none. ``last`` are the joins whose rows no other
    join takes.
    """

    temporal: frozenset[str] = frozenset()
    feeds: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    last: frozenset[str] = frozenset()

    def plus(self, other: Reading) -> Reading:
        """What those of both stand for."""
        return Reading(self.temporal | other.temporal, {**self.feeds, **other.feeds}, self.last | other.last)


@dataclass(frozen=True)
class Progress:
    """What one batch of a query did. ``watermarks`` are shown as people read them; counts are of all joins together.

    ``rows_in`` are the rows of its sources, each counted once whoever reads it, ``sources`` those of each. ``own`` are
    the marks of columns as their sides have them, ``marks`` those of the result, which waits for all sides; of
    ``silent`` columns no time was seen yet. ``at``:
    when the batch began, in seconds since 1970. ``state_bytes``: what Spark says that it keeps for the state.
    ``malformed``: rows that could not be read, ``malformed_of`` by source. ``written``: rows written to the state,
    those of merged runs too. ``partitions``: how many partitions each side's window has now; nothing but for window
    joins. ``operators``: the numbers of each, by what people call it. ``marks`` are the watermarks as numbers,
    microseconds since 1970 for the columns that are ``temporal``. ``backpressure`` is that of
    `watersmeet.observe.metrics`. ``parts``: the seconds of the batch by what Spark did meanwhile, in its words.
    ``backlog``: by topic, the rows that were there and waited for the next batch; other sources do not tell.
    ``batches``: 1, and more where a history has put several batches together. ``examples``: some of the rows, by
    operator (or source) and kind, if they are asked for; they are not kept.
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
    sources: Mapping[str, int] = field(default_factory=dict[str, int])
    own: Mapping[str, int] = field(default_factory=dict[str, int])
    silent: frozenset[str] = frozenset()
    state_bytes: int = 0
    at: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    backlog: Mapping[str, int] = field(default_factory=dict[str, int])
    batches: int = 1
    examples: Examples = field(default_factory=dict[str, dict[str, list[dict[str, str | None]]]], compare=False)


def progress_of(name: str, reported: Mapping[str, Any], reading: Reading, cores: int | None = None) -> Progress:
    """The progress in what Spark reports of a batch; ``cores`` is how many tasks Spark runs at the same time."""
    observed = _observed(reported, reading)
    named = _joins(observed)
    joins = [*named.values()]
    marks, temporal = _marks(joins, MARK), reading.temporal
    sources = _sources(observed, reading)
    seconds = float(reported["durationMs"].get("triggerExecution", 0)) / 1000
    backpressure = backpressure_of(reported)
    return Progress(
        query=name,
        batch=int(reported["batchId"]),
        rows_in=sum(sources.values()) if sources else summed(joins, "rows") if joins else _read(reported),
        rows_out=_out(observed, reported, reading),
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
        sources=sources,
        own=_marks(joins, OWN),
        silent=frozenset(
            n.removeprefix(OWN) for values in joins for n, v in values.items() if n.startswith(OWN) and v is None
        ),
        state_bytes=sum(_bytes(state) for state in reported.get("stateOperators") or ()),
        at=_moment(reported.get("timestamp")),
        parts={n: ms / 1000 for n, ms in reported["durationMs"].items() if n != "triggerExecution" and ms},
        backlog=backlog_of(reported),
        examples=_examples(observed, named),
    )


def _observed(reported: Mapping[str, Any], reading: Reading) -> dict[str, Mapping[str, Any]]:
    """The numbers of each observation; those of joins by the join, also of those that had nothing to tell."""
    given: Mapping[str, Any] = reported.get("observedMetrics") or {}
    found = {key: _numbers(values) for key, values in given.items()}
    texts = {key: found.pop(key)[TELLS] for key in [*found] if key.startswith(JOIN) and TELLS in found[key]}
    nothing: dict[str, Mapping[str, Any]] = {key: {} for key in (*reading.feeds, *texts)} if texts else {}
    return nothing | found | by_join(text for some in texts.values() for text in some)


def _marks(joins: Sequence[Mapping[str, Any]], prefix: str) -> dict[str, int]:
    found = ((n.removeprefix(prefix), v) for values in joins for n, v in values.items() if n.startswith(prefix))
    return {name: int(value) for name, value in found if value is not None}


def _sources(observed: Mapping[str, Mapping[str, Any]], reading: Reading) -> dict[str, int]:
    """The rows of each source. One that several joins read counts once: as often as the one that took most of it."""
    found: dict[str, int] = {}
    for key, sides in reading.feeds.items():
        numbers = observed.get(key, {})
        for side, source in sides.items():
            found[source] = max(found.get(source, 0), int(numbers.get(f"rows_{side}") or 0))
    return found


def _out(observed: Mapping[str, Mapping[str, Any]], reported: Mapping[str, Any], reading: Reading) -> int:
    """The rows of the result: as they were counted, else as the sink did, else as the last joins handed them out."""
    if OUT in observed:
        return int(observed[OUT].get("rows") or 0)
    sink: Mapping[str, Any] = reported.get("sink") or {}
    written = int(sink.get("numOutputRows") or 0)
    last = (numbers for key, numbers in observed.items() if key in reading.last)
    return written if written >= 0 else summed([*last], "emitted")


def _read(reported: Mapping[str, Any]) -> int:
    """The rows that Spark has read, where no join counts them."""
    return sum(int(source.get("numInputRows") or 0) for source in reported.get("sources") or ())


def _bytes(state: Mapping[str, Any]) -> int:
    return int(state.get("memoryUsedBytes") or 0)


def _moment(text: Any) -> float:
    return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else 0.0


def _malformed(observed: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """The malformed rows of each source that had some."""
    counts = Counter[str]()
    for key, values in observed.items():
        if key.startswith(MALFORMED):
            source = key.removeprefix(MALFORMED)
            counts[source.rpartition("#")[0] or source] += int(values.get("rows") or 0)
    return {source: count for source, count in counts.items() if count}


def _examples(observed: Mapping[str, Mapping[str, Any]], named: Mapping[str, Mapping[str, Any]]) -> Examples:
    """Some rows, of each operator and of each source that has malformed ones."""
    found: Examples = {}
    for name, values in named.items():
        kinds = {key.removeprefix(EXAMPLES): text for key, text in values.items() if key.startswith(EXAMPLES) and text}
        if kinds:
            found[name] = {kind: json.loads(text) for kind, text in kinds.items()}
    for key, values in observed.items():
        text = values.get("example") if key.startswith(MALFORMED) else None
        if text:
            source = key.removeprefix(MALFORMED)
            found[source.rpartition("#")[0] or source] = {"malformed": [json.loads(text)]}
    return found


def _joins(observed: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """What was observed of each join, by what people call it; of several with one name the later ones are numbered."""
    found: dict[str, Mapping[str, Any]] = {}
    for key in sorted(key for key in observed if key.startswith(JOIN)):
        name = key.removeprefix(JOIN).rpartition("#")[0] or key.removeprefix(JOIN)
        alike = sum(known == name or known.startswith(f"{name} (") for known in found)
        found[f"{name} ({alike + 1})" if alike else name] = observed[key]
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
        return DistantTime.of(mark)
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _numbers(values: Any) -> Mapping[str, Any]:
    """The numbers of an observation, which is a row of Spark's; through Spark Connect, its values beside its schema."""
    found = cast("Mapping[str, Any]", values if isinstance(values, Mapping) else values.asDict())
    if set(found) != {"values", "schema"}:
        return found
    names = [field["name"] for field in found["schema"]["fields"]]
    return dict(zip(names, found["values"], strict=True))
