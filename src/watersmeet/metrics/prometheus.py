"""The metrics of running queries as Prometheus reads them, and the endpoint where it does.

The text format is version 0.0.4. Counters add up what the batches did since the process began; gauges tell of the
latest batch.

The endpoint gives ``/metrics`` and ``/health`` over HTTP, from a thread of this process. A server answers only to host
names that it knows. An attacker can make a name point to this machine (DNS rebinding), and a page under that name could
read the answers; the browser sends the name in ``Host``. A numeric host is the address itself.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import re
import socket
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socket import AF_INET, AF_INET6
from socketserver import ThreadingTCPServer
from threading import Lock, Thread
from time import monotonic, time
from typing import Literal

from watersmeet.errors import WatersmeetError, refuse
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


_NAMED = re.compile(r"(?P<host>[a-z0-9._-]+|\[[0-9a-f:.%]+\])(?::\d{1,5})?", re.IGNORECASE)


def host_of(header: str) -> str | None:
    """The host that a request asks for, in small letters and without its port; None: the header is malformed.

    >>> host_of("LocalHost:8484"), host_of("[::1]:80"), host_of("[::1"), host_of("a:b:c")
    ('localhost', '::1', None, None)
    """
    match = _NAMED.fullmatch(header.strip())
    return None if match is None else match["host"].strip("[]").lower().rstrip(".")


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own, which no other reaches.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_answered(requested: str, served: str, names: Collection[str] = ()) -> bool:
    """Whether a server at the address ``served`` answers to a host; ``names``: further ones, ``*`` for all.

    On this machine alone it goes by the machine's own names. Elsewhere it goes by addresses in numbers, the name that
    it is served at, and the name of the machine.

    >>> [is_answered(host, "127.0.0.1") for host in ("localhost", "evil.example", "10.0.0.7")]
    [True, False, False]
    >>> [is_answered(host, "0.0.0.0", ["metrics.shop"]) for host in ("10.0.0.7", "metrics.shop", "evil.example")]
    [True, True, False]
    """
    accepted = {name.strip().lower() for name in names}
    if is_loopback(requested) or requested in accepted or "*" in accepted:
        return True
    return not is_loopback(served) and (_is_address(requested) or requested in (served.lower(), *_own_names()))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _own_names() -> tuple[str, str]:
    # Not `getfqdn`, which asks the network.
    name = socket.gethostname().lower()
    return name, name.partition(".")[0]


LOOPBACK = "127.0.0.1"
"""By default only this machine is answered."""
NAMES = "WATERSMEET_METRICS_HOSTS"
"""The variable that lists further names by which the endpoint answers, with commas between them; ``*``: any."""
_PLAIN = "text/plain; charset=utf-8"


@contextmanager
def serve_metrics(
    metrics: MetricsRegistry, port: int, host: str = LOOPBACK, names: Collection[str] = ()
) -> Generator[str]:
    r"""Serve the metrics while this is entered; gives the address of the endpoint. Port 0 is any that is free.

    ``names``: by which names it answers, besides those of this machine.

    >>> from urllib.request import urlopen
    >>> with serve_metrics(MetricsRegistry(), 0) as address, urlopen(f"{address}/health") as answer:
    ...     answer.status, answer.read()
    (200, b'{"status": "healthy", "queries": {}}\n')
    """
    server = _open_server(metrics, port, host, names)
    # The default is to look every half second whether it should end, and a run would wait for that.
    thread = Thread(target=server.serve_forever, args=(0.05,), name="metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{_in_address(host)}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingTCPServer):
    """A server of metrics. Not `http.server.HTTPServer`, which would look up the name of this machine first."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, metrics: MetricsRegistry, host: str, port: int, names: Collection[str]) -> None:
        self.metrics, self.host, self.names = metrics, host, names
        self.address_family = AF_INET6 if ":" in host else AF_INET
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    # A client that opens a connection and says nothing.
    timeout = 10

    def do_GET(self) -> None:
        """Answer a question."""
        assert isinstance(self.server, _Server)
        metrics = self.server.metrics
        if (wrong := self._wrong_host(self.server)) is not None:
            self._answer(wrong[0], _PLAIN, wrong[1])
            return
        match self.path.partition("?")[0]:
            case "/metrics":
                self._answer(HTTPStatus.OK, CONTENT_TYPE, metrics.text())
            case "/health":
                status = HTTPStatus.OK if metrics.status == "healthy" else HTTPStatus.SERVICE_UNAVAILABLE
                self._answer(status, "application/json", health_in_json(metrics))
            case _:
                self._answer(HTTPStatus.NOT_FOUND, _PLAIN, "There are /metrics and /health.\n")

    def _wrong_host(self, server: _Server) -> tuple[HTTPStatus, str] | None:
        """Return the answer to a request with a foreign host name; one without a name is not from a browser."""
        hosts = self.headers.get_all("Host") or []
        if not hosts:
            return None
        host = host_of(hosts[0]) if len(hosts) == 1 else None
        if host is None:
            return HTTPStatus.BAD_REQUEST, "The header Host is malformed.\n"
        if is_answered(host, server.host, server.names):
            return None
        return HTTPStatus.MISDIRECTED_REQUEST, f"The host name in the request is unknown: add it to {NAMES}.\n"

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a line per scrape would stand between the lines of progress."""


def health_in_json(metrics: MetricsRegistry) -> str:
    r"""The health of all queries, and of each: 1 while it runs, 0 once it has failed; and how long some hang.

    >>> health_in_json(MetricsRegistry())
    '{"status": "healthy", "queries": {}}\n'
    """
    queries = {name: query.health for name, query in metrics.queries.items()}
    hanging = {name: round(seconds, 1) for name, seconds in metrics.unresponsive_queries.items()}
    report = {"status": metrics.status, "queries": queries, **({"hanging": hanging} if hanging else {})}
    return json.dumps(report) + "\n"


def _open_server(metrics: MetricsRegistry, port: int, host: str, names: Collection[str]) -> _Server:
    try:
        return _Server(metrics, host, port, names)
    except (OSError, OverflowError) as error:
        raise _refusal(error, port, host) from error


def _refusal(error: OSError | OverflowError, port: int, host: str) -> WatersmeetError:
    reason, is_port = bind_failure(error)
    other = port + 1 if 1024 <= port < 65535 else 9464
    option = (
        f"another port: `--metrics-port {other}`"
        if is_port
        else f"an address of this machine: `--metrics-host {LOOPBACK}`"
    )
    return refuse("METRICS_ADDRESS", address=f"{_in_address(host)}:{port}", reason=reason, hint=f"give {option}.")


def bind_failure(error: OSError | OverflowError) -> tuple[str, bool]:
    """The reason why an address cannot be listened at, and whether another port would help.

    >>> bind_failure(OSError(errno.EADDRINUSE, "Address already in use"))
    ('another process listens there', True)
    """
    if isinstance(error, OverflowError):
        return "ports go from 0 to 65535", True
    reasons = {errno.EADDRINUSE: "another process listens there", errno.EACCES: "this user may not open that port"}
    reason = reasons.get(error.errno or 0)
    return (error.strerror or str(error), False) if reason is None else (reason, True)


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
