"""The progress of a query, one value per batch, and totals over all batches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from watersmeet.metrics.metrics import (
    COUNTED,
    REPORTS,
    OperatorMetrics,
    backlog_of,
    backpressure_of,
    by_join,
    name_in_reports,
    operator_metrics,
    sum_number,
    sum_reported,
)
from watersmeet.operators.core.operator import (
    END_OF_INPUT,
    EXAMPLE_PREFIX,
    OWN_WATERMARK_PREFIX,
    WATERMARK_PREFIX,
    is_internal,
)
from watersmeet.operators.core.python_values import DistantTime

RESULT_OBSERVATION = "watersmeet"
"""The observation that counts the rows of the result."""
JOIN_PREFIX = "watersmeet:"
"""The prefix of the names of the observations of joins."""
MALFORMED_PREFIX = "watersmeet.malformed:"
"""The prefix of the names of the observations that count malformed rows, by source."""


Examples = dict[str, dict[str, list[dict[str, str | None]]]]
"""Some rows as text, by operator or source, and by what became of them."""


@dataclass(frozen=True)
class ProgressSchema:
    """The columns, sources and joins that the metrics of a query refer to.

    ``temporal``: the columns whose watermarks are times. ``feeds``: the source of each side of a join, by the name of
    the join's observation and then by side, without sides that another join feeds. ``last``: the joins whose rows go
    to no other join. ``times``: the column of a source behind a generated name, such as that of the time of groups.
    """

    temporal: frozenset[str] = frozenset()
    feeds: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    last: frozenset[str] = frozenset()
    times: Mapping[str, str] = field(default_factory=dict[str, str])

    def plus(self, other: ProgressSchema) -> ProgressSchema:
        """Merge two schemas."""
        feeds, times = {**self.feeds, **other.feeds}, {**self.times, **other.times}
        return ProgressSchema(self.temporal | other.temporal, feeds, self.last | other.last, times)


@dataclass(frozen=True)
class Progress:
    """Metrics of one batch of a query. ``watermarks`` are shown as people read them; counts are sums over all joins.

    - ``rows_in``: rows read from the sources, each counted once even if several joins read it; ``sources``: by source
    - ``own``: the watermark of each column on its own side
    - ``marks``: the watermarks of the result, which waits for all sides, as numbers: microseconds since 1970 for the
      columns in ``temporal``; ``silent``: columns without a time so far
    - ``at``: the start of the batch, in seconds since 1970; ``parts``: its seconds by phase, as Spark names them
    - ``state_bytes``: the size of the state as Spark reports it; ``written``: rows written to the state, including
      those of merged runs; ``partitions``: partitions in the window of each side, for window joins only
    - ``malformed``: rows that could not be read; ``malformed_of``: by source
    - ``operators``: the metrics of each operator, by its display name
    - ``backpressure``: as in `watersmeet.metrics.metrics`; ``backlog``: rows that were available and wait for the next
      batch, by Kafka topic; other sources do not report it
    - ``batches``: 1, or more if a history has merged several batches
    - ``examples``: some of the rows, by operator (or source) and kind, on request; they are not stored
    - ``matched_out``, ``padded_out``: of the joins whose rows no other join takes; they add up to the rows of the
      result, before WHERE drops some
    - ``phase``: "history" while that of a stream is read, else empty
    """

    query: str
    batch: int
    rows_in: int = field(default=0, metadata=COUNTED)
    rows_out: int = field(default=0, metadata=COUNTED)
    matched: int = field(default=0, metadata={**COUNTED, **name_in_reports("matched")})
    padded: int = field(default=0, metadata={**COUNTED, **name_in_reports("padded")})
    late: int = field(default=0, metadata={**COUNTED, **name_in_reports("late")})
    state_rows: int = field(default=0, metadata=name_in_reports("state"))
    watermarks: Mapping[str, str] = field(default_factory=dict[str, str])
    seconds: float = field(default=0.0, metadata=COUNTED)
    dropped: int = field(default=0, metadata={**COUNTED, **name_in_reports("dropped")})
    written: int = field(default=0, metadata={**COUNTED, **name_in_reports("written")})
    partitions: Mapping[str, int] = field(default_factory=dict[str, int])
    operators: Mapping[str, OperatorMetrics] = field(default_factory=dict[str, OperatorMetrics])
    marks: Mapping[str, int] = field(default_factory=dict[str, int])
    temporal: frozenset[str] = frozenset()
    backpressure: float = 0.0
    malformed: int = field(default=0, metadata=COUNTED)
    malformed_of: Mapping[str, int] = field(default_factory=dict[str, int])
    sources: Mapping[str, int] = field(default_factory=dict[str, int])
    own: Mapping[str, int] = field(default_factory=dict[str, int])
    silent: frozenset[str] = frozenset()
    state_bytes: int = 0
    at: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    backlog: Mapping[str, int] = field(default_factory=dict[str, int])
    batches: int = field(default=1, metadata=COUNTED)
    examples: Examples = field(default_factory=dict[str, dict[str, list[dict[str, str | None]]]], compare=False)
    matched_out: int = field(default=0, metadata=COUNTED)
    padded_out: int = field(default=0, metadata=COUNTED)
    phase: str = ""


def progress_of(name: str, reported: Mapping[str, Any], schema: ProgressSchema, cores: int | None = None) -> Progress:
    """The progress in what Spark reports of a batch; ``cores`` is how many tasks Spark runs at the same time."""
    observed = _observations(reported, schema)
    joins_by_name = _joins(observed)
    joins = [*joins_by_name.values()]
    temporal = schema.temporal
    received = _watermarks(joins, OWN_WATERMARK_PREFIX)
    own = {schema.times.get(n, n): v for n, v in received.items() if n in schema.times or not is_internal(n)}
    # Groups come out as far as the time that they are made of has come.
    grouped = {column: received[time] for time, column in schema.times.items() if time in received}
    emitted = {n: v for n, v in _watermarks(joins, WATERMARK_PREFIX).items() if not is_internal(n)}
    watermarks = {**grouped, **emitted}
    sources = _sources(observed, schema)
    last = [numbers for key, numbers in observed.items() if key in schema.last]
    seconds = float(reported["durationMs"].get("triggerExecution", 0)) / 1000
    backpressure = backpressure_of(reported)
    return Progress(
        query=name,
        batch=int(reported["batchId"]),
        rows_in=sum(sources.values()) if sources else sum_number(joins, "rows") if joins else _rows_read(reported),
        rows_out=_rows_out(observed, reported, schema),
        partitions=_partitions(joins),
        watermarks={
            column: watermark_text(watermark, is_temporal=column in temporal)
            for column, watermark in watermarks.items()
        },
        seconds=seconds,
        operators={n: operator_metrics(values, seconds, backpressure, cores) for n, values in joins_by_name.items()},
        marks=watermarks,
        temporal=temporal & watermarks.keys(),
        backpressure=backpressure,
        malformed=sum(_count_malformed(observed).values()),
        malformed_of=_count_malformed(observed),
        sources=sources,
        own=own,
        silent=frozenset(
            n.removeprefix(OWN_WATERMARK_PREFIX)
            for values in joins
            for n, v in values.items()
            if n.startswith(OWN_WATERMARK_PREFIX)
            and v is None
            and not is_internal(n.removeprefix(OWN_WATERMARK_PREFIX))
        ),
        state_bytes=sum(int(state.get("memoryUsedBytes") or 0) for state in reported.get("stateOperators") or ()),
        at=_moment(reported.get("timestamp")),
        parts={n: ms / 1000 for n, ms in reported["durationMs"].items() if n != "triggerExecution" and ms},
        backlog=backlog_of(reported),
        examples=_examples(observed, joins_by_name),
        matched_out=sum_number(last, "matched"),
        padded_out=sum_number(last, "padded"),
        phase="",
        **sum_reported(Progress, joins),
    )


def _observations(reported: Mapping[str, Any], schema: ProgressSchema) -> dict[str, Mapping[str, Any]]:
    """The numbers of each observation; those of joins by the join, also of those that had nothing to tell."""
    metrics: Mapping[str, Any] = reported.get("observedMetrics") or {}
    observations = {key: _observation_values(values) for key, values in metrics.items()}
    texts = {
        key: observations.pop(key)[REPORTS]
        for key in [*observations]
        if key.startswith(JOIN_PREFIX) and REPORTS in observations[key]
    }
    nothing: dict[str, Mapping[str, Any]] = {key: {} for key in (*schema.feeds, *texts)} if texts else {}
    return nothing | observations | by_join(text for some in texts.values() for text in some)


def _watermarks(joins: Sequence[Mapping[str, Any]], prefix: str) -> dict[str, int]:
    pairs = ((n.removeprefix(prefix), v) for values in joins for n, v in values.items() if n.startswith(prefix))
    return {name: int(value) for name, value in pairs if value is not None}


def _sources(observed: Mapping[str, Mapping[str, Any]], schema: ProgressSchema) -> dict[str, int]:
    """The rows of each source. One that several joins read counts once: as often as the one that took most of it."""
    rows_by_source: dict[str, int] = {}
    for key, sides in schema.feeds.items():
        numbers = observed.get(key, {})
        for side, source in sides.items():
            rows_by_source[source] = max(rows_by_source.get(source, 0), int(numbers.get(f"rows_{side}") or 0))
    return rows_by_source


def _rows_out(observed: Mapping[str, Mapping[str, Any]], reported: Mapping[str, Any], schema: ProgressSchema) -> int:
    """The rows of the result: as they were counted, else as the sink did, else as the last joins handed them out."""
    if RESULT_OBSERVATION in observed:
        return int(observed[RESULT_OBSERVATION].get("rows") or 0)
    sink: Mapping[str, Any] = reported.get("sink") or {}
    written = int(sink.get("numOutputRows") or 0)
    last = (numbers for key, numbers in observed.items() if key in schema.last)
    return written if written >= 0 else sum_number([*last], "emitted")


def _rows_read(reported: Mapping[str, Any]) -> int:
    """The rows that Spark has read, where no join counts them."""
    return sum(int(source.get("numInputRows") or 0) for source in reported.get("sources") or ())


def _moment(text: Any) -> float:
    return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else 0.0


def _count_malformed(observed: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """The malformed rows of each source that had some."""
    counts = Counter[str]()
    for key, values in observed.items():
        if key.startswith(MALFORMED_PREFIX):
            source = key.removeprefix(MALFORMED_PREFIX)
            counts[source.rpartition("#")[0] or source] += int(values.get("rows") or 0)
    return {source: count for source, count in counts.items() if count}


def _examples(observed: Mapping[str, Mapping[str, Any]], named: Mapping[str, Mapping[str, Any]]) -> Examples:
    """Some rows, of each operator and of each source that has malformed ones."""
    examples: Examples = {}
    for name, values in named.items():
        kinds = {
            key.removeprefix(EXAMPLE_PREFIX): text
            for key, text in values.items()
            if key.startswith(EXAMPLE_PREFIX) and text
        }
        if kinds:
            examples[name] = {kind: json.loads(text) for kind, text in kinds.items()}
    for key, values in observed.items():
        text = values.get("example") if key.startswith(MALFORMED_PREFIX) else None
        if text:
            source = key.removeprefix(MALFORMED_PREFIX)
            examples[source.rpartition("#")[0] or source] = {"malformed": [json.loads(text)]}
    return examples


def _joins(observed: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The observations of each join by its display name; joins of the same name are numbered from the second on."""
    joins: dict[str, Mapping[str, Any]] = {}
    for key in sorted(key for key in observed if key.startswith(JOIN_PREFIX)):
        name = key.removeprefix(JOIN_PREFIX).rpartition("#")[0] or key.removeprefix(JOIN_PREFIX)
        same_name = sum(other == name or other.startswith(f"{name} (") for other in joins)
        joins[f"{name} ({same_name + 1})" if same_name else name] = observed[key]
    return joins


def _partitions(joins: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The partitions of the windows, by side; other joins report NULL."""
    pairs = [(n, v) for values in joins for n, v in values.items() if n.startswith("partitions_")]
    return {name.removeprefix("partitions_"): int(value) for name, value in pairs if value is not None}


def watermark_text(watermark: int, *, is_temporal: bool) -> str:
    """A mark as people read it.

    >>> watermark_text(1_700_000_000_000_000, is_temporal=True)
    '2023-11-14 22:13:20'
    >>> watermark_text(END_OF_INPUT, is_temporal=True)
    'ended'
    """
    if watermark == END_OF_INPUT:
        return "ended"
    if not is_temporal:
        return str(watermark)
    try:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=watermark)
    except OverflowError:
        return DistantTime.of(watermark)
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _observation_values(values: Any) -> Mapping[str, Any]:
    """The numbers of an observation, which is a row of Spark's; through Spark Connect, its values beside its schema."""
    observation = cast("Mapping[str, Any]", values if isinstance(values, Mapping) else values.asDict())
    if set(observation) != {"values", "schema"}:
        return observation
    names = [field["name"] for field in observation["schema"]["fields"]]
    return dict(zip(names, observation["values"], strict=True))


WINDOW = 10.0
"""Rates are those of the batches of so many seconds, and of the latest one."""
_RECENT_BATCHES = 64

WatermarkValue = datetime | int | None
"""A watermark: a time, or a number where the column holds numbers; None: the input has ended."""


@dataclass(frozen=True)
class Totals:
    """The totals of a query over all its known batches; ``last`` is the latest of them.

    ``sources`` are the rows of each source, ``recent`` the latest batches.
    """

    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    matched: int = 0
    padded: int = 0
    late: int = 0
    malformed: int = 0
    dropped: int = 0
    matched_out: int = 0
    padded_out: int = 0
    sources: Mapping[str, int] = field(default_factory=dict[str, int])
    last: Progress | None = None
    recent: tuple[Progress, ...] = ()

    def plus(self, *batches: Progress) -> Totals:
        """The totals after further batches."""
        if not batches:
            return self
        sums = {name: getattr(self, name) + sum(getattr(batch, name) for batch in batches) for name in _TOTAL_COUNTS}
        sources = dict(self.sources)
        for batch in batches:
            for name, rows in batch.sources.items():
                sources[name] = sources.get(name, 0) + rows
        return replace(
            self, **sums, sources=sources, last=batches[-1], recent=(*self.recent, *batches)[-_RECENT_BATCHES:]
        )

    @property
    def result(self) -> tuple[int, int]:
        """The matched and padded rows of the result; of all joins, where an earlier version counted no others."""
        return (
            (self.matched_out, self.padded_out) if self.matched_out or self.padded_out else (self.matched, self.padded)
        )

    @property
    def state_rows(self) -> int:
        """The rows that are kept now."""
        return 0 if self.last is None else self.last.state_rows

    @property
    def state_bytes(self) -> int:
        """The bytes that Spark keeps for the state now."""
        return 0 if self.last is None else self.last.state_bytes

    @property
    def seconds(self) -> float:
        """The duration of the latest batch."""
        return 0.0 if self.last is None else self.last.seconds

    @property
    def watermarks(self) -> dict[str, WatermarkValue]:
        """The watermarks of the result: no row with an earlier time comes out any more."""
        if self.last is None:
            return {}
        return {
            column: _watermark_value(watermark, column in self.last.temporal)
            for column, watermark in self.last.marks.items()
        }

    def lags(self, now: datetime | None = None) -> dict[str, timedelta]:
        """The lag behind the clock of each watermark that is a time."""
        moment = datetime.now(UTC) if now is None else now
        return {
            name: moment - watermark for name, watermark in self.watermarks.items() if isinstance(watermark, datetime)
        }

    def rates(self, now: float | None = None) -> Rates:
        """Rows in a second, of the latest batches; ``now``: seconds since 1970."""
        moment = datetime.now(UTC).timestamp() if now is None else now
        counted = [batch for batch in self.recent if moment - end_time(batch) < max(WINDOW, batch.seconds)]
        if not counted:
            return Rates(0.0, 0.0, dict.fromkeys(self.sources, 0.0))
        seconds = max(moment, end_time(counted[-1])) - counted[0].at
        if seconds <= 0:
            return Rates(0.0, 0.0, dict.fromkeys(self.sources, 0.0))
        sources = {name: sum(batch.sources.get(name, 0) for batch in counted) / seconds for name in self.sources}
        rows_in, rows_out = (sum(getattr(batch, name) for batch in counted) for name in ("rows_in", "rows_out"))
        return Rates(rows_in / seconds, rows_out / seconds, sources)

    @property
    def slowest(self) -> tuple[str, int | None] | None:
        """The column that holds the others back, and by how much; None of both: nothing of it was seen yet.

        >>> Totals(last=Progress("q", 0, own={"o.t": 90, "d.t": 60})).slowest
        ('d.t', 30)
        """
        if self.last is None:
            return None
        for column in sorted(self.last.silent):
            return (column, None) if self.last.own else None
        own = {n: mark for n, mark in self.last.own.items() if mark != END_OF_INPUT and not is_internal(n)}
        if len(own) < 2:
            return None
        column = min(own, key=lambda name: own[name])
        ahead = max(own.values()) - own[column]
        return (column, ahead) if ahead else None


_TOTAL_COUNTS = tuple(total.name for total in fields(Totals) if total.default == 0)
"""The fields of `Totals` that add up: those that start at zero."""


@dataclass(frozen=True)
class Rates:
    """Rows in a second: of all sources, of the result, and of each source."""

    rows_in: float
    rows_out: float
    sources: Mapping[str, float]


def end_time(progress: Progress) -> float:
    """The time when a batch ended, in seconds since 1970."""
    return progress.at + progress.seconds


def _watermark_value(watermark: int, is_temporal: bool) -> WatermarkValue:
    if watermark == END_OF_INPUT:
        return None
    if not is_temporal:
        return watermark
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=watermark)
    except OverflowError:
        return watermark
