"""The metrics of running queries as Prometheus reads them: the text format, version 0.0.4.

Counters add up what the batches did since the process began; gauges tell of the latest batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from time import monotonic, time
from typing import Literal

from watersmeet.metrics.history import merge_metrics
from watersmeet.metrics.metrics import Health, OperatorMetrics, SideMetrics
from watersmeet.metrics.progress import Progress, end_time
from watersmeet.operators.core.operator import END_OF_INPUT

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]
Status = Literal["healthy", "hanging", "failed"]
"""``hanging``: of some query nothing was heard for too long; ``failed``: some query has, whatever the others do."""


@dataclass(frozen=True)
class MetricFamily:
    """Metrics of one name; ``number`` is the field that holds them."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    number: str = ""


OPERATOR = (
    MetricFamily("operator_busy", "gauge", "Share of the latest batch that the operator worked, 0 to 1.", "busy"),
    MetricFamily("operator_backpressure", "gauge", "Share of the rows that had to wait, 0 to 1.", "backpressure"),
    MetricFamily("operator_health", "gauge", "1 while the query of the operator runs, 0 once it has failed.", "health"),
    MetricFamily("operator_events_total", "counter", "Rows that came out of the operator.", "events"),
    MetricFamily("operator_events_processed_total", "counter", "Rows that came into the operator.", "events_processed"),
    MetricFamily("operator_matched_total", "counter", "Pairs that were matched.", "matched"),
    MetricFamily("operator_padded_total", "counter", "Rows that were emitted without a match.", "padded"),
    MetricFamily("operator_late_total", "counter", "Late rows.", "late"),
    MetricFamily(
        "operator_dropped_total", "counter", "Rows that a limit removed, or that have no usable key or time.", "dropped"
    ),
    MetricFamily("operator_written_total", "counter", "Rows that were written to the state.", "written"),
    MetricFamily("operator_busy_seconds_total", "counter", "Compute time of all shards, in seconds.", "seconds"),
    MetricFamily("operator_state_rows", "gauge", "Rows in the state.", "state_rows"),
    MetricFamily("operator_shards", "gauge", "Shards of the operator.", "shards"),
    MetricFamily(
        "operator_cache_bytes", "gauge", "Bytes of decoded states in the fullest cache of an executor.", "cache_bytes"
    ),
)
"""Per operator. The names begin with ``watersmeet_``, as all do."""

SIDE = (
    MetricFamily("operator_side_state_rows", "gauge", "Rows of the side in the state.", "state_rows"),
    MetricFamily("operator_side_state_bytes", "gauge", "Approximate bytes of these rows in the state.", "state_bytes"),
)
"""Per side of an operator."""

TOTAL = (
    MetricFamily("query_rows_in_total", "counter", "Rows of the sources of the query.", "rows_in"),
    MetricFamily("query_rows_out_total", "counter", "Rows of the result.", "rows_out"),
    MetricFamily("query_padded_total", "counter", "Rows that were emitted without a match.", "padded"),
    MetricFamily("query_late_total", "counter", "Late rows.", "late"),
    MetricFamily("query_malformed_total", "counter", "Rows that could not be read.", "malformed"),
    MetricFamily(
        "query_dropped_total", "counter", "Rows that a limit removed, or that have no usable key or time.", "dropped"
    ),
)
"""Per query, what its batches did together."""

LATEST = (
    MetricFamily("query_state_rows", "gauge", "Rows in the state.", "state_rows"),
    MetricFamily("query_state_bytes", "gauge", "Bytes of the state in Spark.", "state_bytes"),
    MetricFamily("query_backpressure", "gauge", "Share of the rows that had to wait, 0 to 1.", "backpressure"),
    MetricFamily("query_batch", "gauge", "Number of the latest batch.", "batch"),
    MetricFamily("query_latest_batch_seconds", "gauge", "Seconds of the latest batch.", "seconds"),
)
"""Per query, of its latest batch."""

HEALTH = MetricFamily("query_health", "gauge", "1 while the query runs, 0 once it has failed.", "health")
BATCHES = MetricFamily("query_batches_total", "counter", "Batches.", "batches")
BATCH_SECONDS = MetricFamily("query_batch_seconds", "histogram", "Seconds of batches.")
SUCCESS = MetricFamily(
    "query_last_success_timestamp_seconds", "gauge", "When the latest batch ended, in seconds since 1970."
)
CHECKPOINT = MetricFamily("query_checkpoint_bytes", "gauge", "Size of the checkpoint, measured twice a minute.")
SOURCE_ROWS = MetricFamily("source_rows_total", "counter", "Rows of the source.", "sources")
SOURCE_MALFORMED = MetricFamily(
    "source_malformed_total", "counter", "Rows of it that could not be read.", "malformed_of"
)
BACKLOG = MetricFamily("topic_backlog_rows", "gauge", "Rows that waited for the next batch.", "backlog")
FILES = MetricFamily("source_backlog_files", "gauge", "Files of the source that no batch has read yet.")
LAG = MetricFamily("watermark_lag_seconds", "gauge", "How far the watermark of a time column is behind the clock.")
TIMES = MetricFamily("watermark_seconds", "gauge", "Watermark of a time column, in seconds since 1970.")
NUMBERS = MetricFamily("watermark", "gauge", "Watermark of a numeric column.")

BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The upper bounds of the histogram of seconds, besides that of all."""

BATCHES_LONG = 10
"""A query hangs no sooner than after so many times what its longest batch took."""

_SUMMED_FIELDS = ("seconds", *(metric.number for metric in TOTAL))


@dataclass(frozen=True)
class QueryMetrics:
    """The state of a query: its ``latest`` batch, and the totals of all batches (``total``, ``operators``).

    ``longest``: the seconds of the longest batch; ``within``: how many batches took no longer than each of `BOUNDS`;
    ``sources`` and ``malformed``: rows of each source.
    """

    latest: Progress | None = None
    total: Progress | None = None
    operators: Mapping[str, OperatorMetrics] = field(default_factory=dict[str, OperatorMetrics])
    batches: int = 0
    health: Health = 1
    longest: float = 0.0
    within: tuple[int, ...] = (0,) * len(BOUNDS)
    sources: Mapping[str, int] = field(default_factory=dict[str, int])
    malformed: Mapping[str, int] = field(default_factory=dict[str, int])

    def plus(self, progress: Progress) -> QueryMetrics:
        """The metrics after one more batch. A query that has batches runs."""
        operators_before = self.operators
        operators = {
            n: merge_metrics([operators_before[n], now]) if n in operators_before else now
            for n, now in progress.operators.items()
        }
        return QueryMetrics(
            progress,
            _add_progress(self.total, progress),
            operators,
            self.batches + 1,
            longest=max(self.longest, progress.seconds),
            within=tuple(n + (progress.seconds <= most) for n, most in zip(self.within, BOUNDS, strict=True)),
            sources=_add_counts(self.sources, progress.sources),
            malformed=_add_counts(self.malformed, progress.malformed_of),
        )

    def as_failed(self) -> QueryMetrics:
        """The metrics of a query that has failed: so have all its operators, none by itself."""
        operators = {name: replace(numbers, health=0) for name, numbers in self.operators.items()}
        return replace(self, operators=operators, health=0)


class MetricsRegistry:
    """The metrics of all queries of a run. Batches come from one thread, questions from others.

    A query hangs if nothing was heard of it for ``patience`` seconds, or for ten times what its longest batch took if
    that is more: it had no batch, does not wait for rows, and has not ended. None: no query does. ``checkpoints``: what
    tells how large that of a query is, None where that is not known; ``files``: by query and source, what tells how
    many files wait.

    >>> metrics = MetricsRegistry()
    >>> metrics.take(Progress("joined", 0, rows_in=3))
    >>> metrics.take(Progress("joined", 1, rows_in=4))
    >>> [line for line in metrics.text().splitlines() if line.startswith("watersmeet_query_rows_in")]
    ['watersmeet_query_rows_in_total{query="joined"} 7']
    """

    def __init__(self, patience: float | None = None) -> None:
        self.patience = patience
        self.checkpoints: Mapping[str, Callable[[], int | None]] = {}
        self.files: Mapping[str, Mapping[str, Callable[[], int | None]]] = {}
        self._lock = Lock()
        self._queries: dict[str, QueryMetrics] = {}
        self._heard: dict[str, float] = {}

    def take(self, progress: Progress) -> None:
        """Take in one batch."""
        with self._lock:
            self._queries[progress.query] = self._queries.get(progress.query, QueryMetrics()).plus(progress)

    def record_activity(self, query: str) -> None:
        """Take in that a query had a batch or waits for rows."""
        with self._lock:
            self._heard[query] = monotonic()

    def end(self, query: str) -> None:
        """Take in that a query has ended."""
        with self._lock:
            self._heard.pop(query, None)

    def fail(self, query: str) -> None:
        """Take in that a query has failed."""
        with self._lock:
            self._heard.pop(query, None)
            self._queries[query] = self._queries.get(query, QueryMetrics()).as_failed()

    @property
    def queries(self) -> dict[str, QueryMetrics]:
        """The state of each query."""
        with self._lock:
            return dict(self._queries)

    @property
    def unresponsive_queries(self) -> dict[str, float]:
        """The queries that hang, and for how many seconds nothing was heard of them."""
        if self.patience is None:
            return {}
        queries, now = self.queries, monotonic()
        with self._lock:
            silent = {name: now - heard for name, heard in self._heard.items()}
        longest = {name: query.longest for name, query in queries.items()}
        return {n: s for n, s in silent.items() if s > max(self.patience, BATCHES_LONG * longest.get(n, 0.0))}

    @property
    def status(self) -> Status:
        """The health of all queries together."""
        if not all(query.health for query in self.queries.values()):
            return "failed"
        return "hanging" if self.unresponsive_queries else "healthy"

    def text(self, now: float | None = None) -> str:
        """All metrics in the text format; ``now``: seconds since 1970."""
        sizes = {name: size for name, measured in self.checkpoints.items() if (size := measured()) is not None}
        waiting = [
            ({"query": query, "source": source}, count)
            for query, sources in self.files.items()
            for source, counted in sources.items()
            if (count := counted()) is not None
        ]
        lines = [*_lines(self.queries, sizes, time() if now is None else now), *_family_lines(FILES, waiting)]
        return "".join(f"{line}\n" for line in lines)


def _add_progress(before: Progress | None, now: Progress) -> Progress:
    """Merge two values: counters add up, gauges take the latest."""
    if before is None:
        return now
    return replace(now, **{name: getattr(before, name) + getattr(now, name) for name in _SUMMED_FIELDS})


def _add_counts(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    return {name: before.get(name, 0) + now.get(name, 0) for name in (*before, *now)}


def _lines(queries: Mapping[str, QueryMetrics], checkpoints: Mapping[str, int], now: float) -> Iterator[str]:
    """The families that have samples, each with its help, its type and all its samples in a row."""
    for family in OPERATOR:
        yield from _family_lines(
            family, [(labels, getattr(metrics, family.number)) for labels, metrics in _operators(queries)]
        )
    for family in SIDE:
        samples = [(labels, getattr(metrics, family.number)) for labels, metrics in _sides(queries)]
        yield from _family_lines(family, [(labels, number) for labels, number in samples if number is not None])
    for family in (HEALTH, BATCHES):
        yield from _family_lines(
            family, [({"query": n}, getattr(metrics, family.number)) for n, metrics in queries.items()]
        )
    latest = {name: metrics.latest for name, metrics in queries.items() if metrics.latest is not None}
    total = {name: metrics.total for name, metrics in queries.items() if metrics.total is not None}
    for by_query, families in ((total, TOTAL), (latest, LATEST)):
        for family in families:
            yield from _family_lines(
                family, [({"query": n}, getattr(metrics, family.number)) for n, metrics in by_query.items()]
            )
    yield from _histogram({name: metrics for name, metrics in queries.items() if metrics.total is not None})
    yield from _family_lines(
        SUCCESS, [({"query": n}, end_time(metrics)) for n, metrics in latest.items() if metrics.at]
    )
    yield from _family_lines(CHECKPOINT, [({"query": n}, size) for n, size in checkpoints.items()])
    counted = ((SOURCE_ROWS, "sources"), (SOURCE_MALFORMED, "malformed"))
    for family, number in counted:
        yield from _family_lines(family, [*_samples_by_name(queries, number, "source")])
    yield from _family_lines(BACKLOG, [*_samples_by_name(latest, "backlog", "topic")])
    watermarks = [*_watermark_samples(latest, of_times=True)]
    yield from _family_lines(TIMES, watermarks)
    yield from _family_lines(
        LAG, [(labels, round(now - watermark, 3)) for labels, watermark in watermarks if watermark != float("inf")]
    )
    yield from _family_lines(NUMBERS, [*_watermark_samples(latest, of_times=False)])


def _histogram(queries: Mapping[str, QueryMetrics]) -> Iterator[str]:
    if not queries:
        return
    name = f"watersmeet_{BATCH_SECONDS.name}"
    yield f"# HELP {name} {BATCH_SECONDS.help}"
    yield f"# TYPE {name} {BATCH_SECONDS.type}"
    for query, metrics in queries.items():
        bounds = [*map(number_in_text, BOUNDS), "+Inf"]
        for bound, count in zip(bounds, (*metrics.within, metrics.batches), strict=True):
            yield f'{name}_bucket{{query="{_escape_label(query)}",le="{bound}"}} {count}'
        seconds = 0.0 if metrics.total is None else metrics.total.seconds
        yield f'{name}_sum{{query="{_escape_label(query)}"}} {number_in_text(seconds)}'
        yield f'{name}_count{{query="{_escape_label(query)}"}} {metrics.batches}'


def _samples_by_name(
    by_query: Mapping[str, QueryMetrics | Progress], number: str, label: str
) -> Iterator[tuple[Labels, float]]:
    """A number of queries that there is by the name of something."""
    for query, metrics in by_query.items():
        for name, value in getattr(metrics, number).items():
            yield {"query": query, label: name}, value


def _operators(queries: Mapping[str, QueryMetrics]) -> Iterator[tuple[Labels, OperatorMetrics]]:
    for query, metrics in queries.items():
        for name, numbers in metrics.operators.items():
            yield {"query": query, "operator": name, "kind": numbers.kind}, numbers


def _sides(queries: Mapping[str, QueryMetrics]) -> Iterator[tuple[Labels, SideMetrics]]:
    for labels, numbers in _operators(queries):
        for side, side_metrics in numbers.sides.items():
            yield {**labels, "side": side}, side_metrics


def _watermark_samples(latest: Mapping[str, Progress], *, of_times: bool) -> Iterator[tuple[Labels, float]]:
    """The watermarks of columns that hold times, or of those that hold numbers; an ended one is infinite."""
    for query, progress in latest.items():
        for column, watermark in progress.marks.items():
            if (column in progress.temporal) == of_times:
                value = watermark / 1_000_000 if of_times else watermark
                yield {"query": query, "column": column}, float("inf") if watermark == END_OF_INPUT else value


def _family_lines(family: MetricFamily, samples: Sequence[tuple[Labels, float]]) -> Iterator[str]:
    if not samples:
        return
    name = f"watersmeet_{family.name}"
    yield f"# HELP {name} {family.help}"
    yield f"# TYPE {name} {family.type}"
    for labels, value in samples:
        shown = ",".join(f'{label}="{_escape_label(text)}"' for label, text in labels.items())
        yield f"{name}{{{shown}}} {number_in_text(value)}"


def number_in_text(value: float) -> str:
    """A number in the text format.

    >>> number_in_text(3), number_in_text(0.25), number_in_text(float("inf"))
    ('3', '0.25', '+Inf')
    """
    return "+Inf" if value == float("inf") else repr(value)


def _escape_label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


PAUSE = 30.0
"""Seconds for which an answer stays: to look through a large checkpoint takes a moment."""


def make_size_probe(folder: Path, pause: float = PAUSE) -> Callable[[], int | None]:
    """A function that returns the bytes of all files below a folder; None if the folder does not exist."""
    cached: tuple[float, int | None] | None = None

    def measure() -> int | None:
        nonlocal cached
        if cached is None or monotonic() - cached[0] > pause:
            cached = monotonic(), _size(folder)
        return cached[1]

    return measure


def _size(folder: Path) -> int | None:
    if not folder.is_dir():
        return None
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).stat().st_size
            except OSError:
                # Spark removes old files meanwhile.
                continue
    return total
