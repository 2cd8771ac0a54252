"""The history of a query: what each of its batches did, and when it was started, failed or ended.

It is a file of the project's storage, ``progress/QUERY.jsonl``, with a line of JSON for each. A line is written whole
or not at all: a line that a crash cut off is skipped. The file never grows far beyond ``LARGEST``: then the older half
of the batches is merged in pairs, again and again as they get older. Counts stay exact; only their distribution over
time becomes coarser.

>>> from tempfile import TemporaryDirectory
>>> with TemporaryDirectory() as storage:
...     log = HistoryWriter(Path(storage), "joined")
...     log.append(Progress("joined", 0, rows_in=3, at=60.0))
...     log.append(Progress("joined", 1, rows_in=4, at=61.0))
...     history = read_history(Path(storage), "joined")
...     [batch.rows_in for batch in history.batches], history.totals.rows_in
([3, 4], 7)
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from watersmeet.locations import AnyStorage, Storage, is_local
from watersmeet.metrics.metrics import COUNTED, OperatorMetrics, SideMetrics
from watersmeet.metrics.progress import Progress, Totals, watermark_text
from watersmeet.operators.core.operator import HISTOGRAMS

N = TypeVar("N", Progress, OperatorMetrics, SideMetrics)

_COUNTED_BY_NAME = ("sources", "malformed_of", "parts")
"""The same, where there is a number per name."""
_SETS = ("temporal", "silent")
_UNWRITTEN = frozenset({"query", "watermarks", "examples"})
"""The name of the file says whose it is, and the marks say what the watermarks are in words."""


def progress_as_json(progress: Progress) -> dict[str, object]:
    """A batch as JSON has it.

    >>> progress_as_json(Progress("joined", 3, rows_in=2, marks={"o.t": 17}, at=60.0))
    {'batch': 3, 'rows_in': 2, 'marks': {'o.t': 17}, 'at': 60.0}
    """
    values = {"batch": progress.batch, **_non_default_fields(progress)}
    for name in _SETS:
        if name in values:
            values[name] = sorted(cast("frozenset[str]", values[name]))
    if progress.operators:
        values["operators"] = {name: _operator_as_json(metrics) for name, metrics in progress.operators.items()}
    return values


def _operator_as_json(numbers: OperatorMetrics) -> dict[str, object]:
    values = _non_default_fields(numbers)
    if numbers.sides:
        values["sides"] = {side: _non_default_fields(side_metrics) for side, side_metrics in numbers.sides.items()}
    return values


def _non_default_fields(value: Progress | OperatorMetrics | SideMetrics) -> dict[str, object]:
    """The fields that differ from their defaults."""
    field_values = {field.name: getattr(value, field.name) for field in fields(value) if field.name not in _UNWRITTEN}
    return {
        name: field_value
        for name, field_value in field_values.items()
        if field_value and field_value != _DEFAULTS.get(name)
    }


_DEFAULTS = {"batches": 1, "health": 1}


def progress_from_json(values: Mapping[str, Any], query: str = "") -> Progress:
    """The batch of a line; what a later version may have added to it is passed over.

    >>> progress_from_json({"batch": 3, "marks": {"o.t": 17}, "hue": "blue"}).watermarks
    {'o.t': '17'}
    """
    attributes = _select_fields(Progress, values)
    for name in _SETS:
        attributes[name] = frozenset(attributes.get(name, ()))
    operators: Mapping[str, Mapping[str, Any]] = attributes.get("operators", {})
    attributes["operators"] = {name: _operator_from_json(operator) for name, operator in operators.items()}
    watermarks: Mapping[str, int] = attributes.get("marks", {})
    words = {
        column: watermark_text(watermark, is_temporal=column in attributes["temporal"])
        for column, watermark in watermarks.items()
    }
    attributes |= {"query": query, "watermarks": words}
    return Progress(**attributes)


def _operator_from_json(values: Mapping[str, Any]) -> OperatorMetrics:
    attributes = _select_fields(OperatorMetrics, values)
    sides: Mapping[str, Mapping[str, Any]] = attributes.get("sides", {})
    attributes["sides"] = {
        side: SideMetrics(**_select_fields(SideMetrics, side_values)) for side, side_values in sides.items()
    }
    return OperatorMetrics(**attributes)


_NAMES = {kind: frozenset(field.name for field in fields(kind)) for kind in (Progress, OperatorMetrics, SideMetrics)}
_ADDED = {
    kind: tuple(field.name for field in fields(kind) if COUNTED.items() <= field.metadata.items()) for kind in _NAMES
}
"""The fields that add up over batches; of the others the latest value counts."""


def _select_fields(kind: type[Progress | OperatorMetrics | SideMetrics], values: Mapping[str, Any]) -> dict[str, Any]:
    names = _NAMES[kind]
    return {name: value for name, value in values.items() if name in names}


def merge_batches(*batches: Progress) -> Progress:
    """Several batches as one, earlier ones first.

    >>> first, second = Progress("q", 1, rows_in=2, sources={"o": 2}), Progress("q", 2, 3, sources={"o": 1, "d": 2})
    >>> one = merge_batches(first, second)
    >>> one.batch, one.batches, one.rows_in, one.sources
    (2, 2, 5, {'o': 3, 'd': 2})
    """
    added: dict[str, Any] = {
        name: _sum_by_name([getattr(batch, name) for batch in batches]) for name in _COUNTED_BY_NAME
    }
    return replace(_sum_counts(batches), operators=merge_operators(batches), **added)


def merge_operators(batches: Iterable[Progress]) -> dict[str, OperatorMetrics]:
    """Merge the metrics of each operator over several batches."""
    by_name: dict[str, list[OperatorMetrics]] = {}
    for batch in batches:
        for name, metrics in batch.operators.items():
            by_name.setdefault(name, []).append(metrics)
    return {name: merge_metrics(numbers) for name, numbers in by_name.items()}


def merge_metrics(numbers: Sequence[OperatorMetrics]) -> OperatorMetrics:
    """Merge the metrics of an operator over several batches."""
    sides: dict[str, list[SideMetrics]] = {}
    for metrics in numbers:
        for side, of_side in metrics.sides.items():
            sides.setdefault(side, []).append(of_side)
    spreads: dict[str, Any] = {name: _sum_by_name(getattr(metrics, name) for metrics in numbers) for name in HISTOGRAMS}
    return replace(
        _sum_counts(numbers), **spreads, sides={side: _sum_counts(of_one_side) for side, of_one_side in sides.items()}
    )


def _sum_counts(values: Sequence[N]) -> N:
    last = values[-1]
    return replace(last, **{name: sum(getattr(value, name) for value in values) for name in _ADDED[type(last)]})


def _sum_by_name(values: Iterable[Mapping[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for counts in values:
        for name, number in counts.items():
            totals[name] = totals.get(name, 0) + number
    return totals


FOLDER = "progress"
"""The folder of the histories in a storage."""
LARGEST = 3_000_000
"""The size in bytes at which a history is thinned out; that is about four thousand batches of a join."""
MOST_EVENTS = 1000
REMOTE_LARGEST, REMOTE_SECONDS = 300_000, 10.0
"""The same size for a history that is written whole each time, and the seconds between two such times."""

EventKind = Literal["started", "failed", "retried", "ended", "stopped"]
"""``failed``: for good; ``retried``: it failed and restarts; ``ended``: its input ended; ``stopped``: by the user."""


@dataclass(frozen=True)
class QueryEvent:
    """An event of a query: when, in seconds since 1970, and a message.

    ``process`` is the process that ran it, ``spark`` the address of Spark's own page.
    """

    kind: EventKind
    at: float
    text: str = ""
    process: int = 0
    spark: str = ""


@dataclass(frozen=True)
class History:
    """The history of a query, oldest first. Older batches are merged into one value (`Progress.batches`)."""

    query: str
    batches: tuple[Progress, ...] = ()
    events: tuple[QueryEvent, ...] = ()

    @property
    def totals(self) -> Totals:
        """The totals over all batches."""
        return Totals().plus(*self.batches)

    @property
    def last(self) -> Progress | None:
        """The latest batch."""
        return self.batches[-1] if self.batches else None

    @property
    def is_running(self) -> bool:
        """Whether the process that started it last still runs it, as far as this machine can tell."""
        last = self.events[-1] if self.events else None
        return last is not None and last.kind in ("started", "retried") and bool(last.process) and _is_alive(last)


def queries_of(storage: Storage) -> list[str]:
    """The queries of which there is a history, by name."""
    return sorted(path.stem for path in (storage / FOLDER).glob("*.jsonl"))


def history_file(storage: AnyStorage, query: str) -> AnyStorage:
    """The file with the history of a query."""
    return storage / FOLDER / f"{query}.jsonl"


def read_history(storage: Storage, query: str) -> History:
    """The history of a query; an empty one where nothing is known."""
    try:
        text = history_file(storage, query).read_bytes()
    except FileNotFoundError:
        return History(query)
    records = list(records_in(text, query))
    batches = tuple(record for record in records if isinstance(record, Progress))
    return History(query, batches, tuple(record for record in records if isinstance(record, QueryEvent)))


def records_in(text: bytes, query: str) -> Iterator[Progress | QueryEvent]:
    """Return the records in the complete lines of a file; lines that are not ours are skipped."""
    for line in text.split(b"\n"):
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            if line:
                yield _record(cast("dict[str, Any]", json.loads(line)), query)


class HistoryWriter:
    """Writes the history of a query. ``largest``: the bytes at which it is thinned out."""

    def __init__(self, storage: Storage, query: str, largest: int = LARGEST) -> None:
        self.query, self.path = query, history_file(storage, query)
        self.largest = largest
        self._remote: _RemoteHistory | None = None

    def append(self, record: Progress | QueryEvent) -> None:
        """Write down one more batch, or what happened; raises OSError where that cannot be done."""
        if not is_local(self.path):
            self._remote = self._remote or _RemoteHistory(self.path, self.query)
            self._remote.append(record)
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            # What a crash left without its end must not swallow this line too.
            torn = file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"
            file.write((b"\n" if torn else b"") + _line(record))
            size = file.tell()
        if size > self.largest:
            self._thin_out(self.path)

    def _thin_out(self, path: Path) -> None:
        """Rewrite the file with fewer records, and replace the old one atomically."""
        records = list(records_in(path.read_bytes(), self.query))
        replacement = path.with_suffix(".new")
        with replacement.open("wb") as file:
            file.writelines(_line(record) for record in thin_records(records))
            file.flush()
            os.fsync(file.fileno())
        replacement.replace(path)


class _RemoteHistory:
    """A history that is not on this machine, where files do not grow: it is written whole, and not with every batch.

    What happened to a query is written at once, a batch with the next record after `REMOTE_SECONDS`: a driver that is
    killed takes the batches of these seconds out of the history, and out of nothing else.
    """

    def __init__(self, path: Storage, query: str) -> None:
        self.path, self.query = path, query
        self.written_at = 0.0
        try:
            self.text = path.read_bytes()
        except FileNotFoundError:
            self.text = b""

    def append(self, record: Progress | QueryEvent) -> None:
        """Write down one more batch, or what happened."""
        torn = b"" if not self.text or self.text.endswith(b"\n") else b"\n"
        self.text += torn + _line(record)
        if len(self.text) > REMOTE_LARGEST:
            self.text = b"".join(map(_line, thin_records(records_in(self.text, self.query))))
        if isinstance(record, QueryEvent) or time.monotonic() - self.written_at >= REMOTE_SECONDS:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(self.text)
            self.written_at = time.monotonic()


def thin_records(records: Iterable[Progress | QueryEvent]) -> list[Progress | QueryEvent]:
    """Fewer records that count the same: of the older half of the batches, each two as one.

    >>> kept = thin_records([Progress("q", batch, rows_in=1, at=float(batch)) for batch in range(8)])
    >>> [(one.batch, one.batches, one.rows_in) for one in kept if isinstance(one, Progress)]
    [(1, 2, 2), (3, 2, 2), (4, 1, 1), (5, 1, 1), (6, 1, 1), (7, 1, 1)]
    """
    items = list(records)
    batches = [item for item in items if isinstance(item, Progress)]
    events = [item for item in items if isinstance(item, QueryEvent)][-MOST_EVENTS:]
    half = len(batches) // 4 * 2
    pairs = [merge_batches(*batches[n : n + 2]) for n in range(0, half, 2)]
    return sorted([*pairs, *batches[half:], *events], key=lambda item: item.at)


def _line(record: Progress | QueryEvent) -> bytes:
    values = progress_as_json(record) if isinstance(record, Progress) else _event_as_json(record)
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _event_as_json(event: QueryEvent) -> dict[str, object]:
    values = {"event": event.kind, "at": event.at, "text": event.text, "process": event.process, "spark": event.spark}
    return {name: value for name, value in values.items() if value}


def _record(values: dict[str, Any], query: str) -> Progress | QueryEvent:
    if "event" not in values:
        return progress_from_json(values, query)
    kind = values.pop("event")
    return QueryEvent(kind, **values)


def _is_alive(event: QueryEvent) -> bool:
    try:
        os.kill(event.process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # It exists and belongs to another user.
        return True
    return True


class Recorder:
    """Write the histories of all queries of a run. If one cannot be written, that is reported once.

    ``spark`` is the address of Spark's own page, if it has one.
    """

    def __init__(self, storage: Storage, on_news: Callable[[str], None], spark: str = "") -> None:
        self.storage, self.on_news, self.spark = storage, on_news, spark
        self._logs: dict[str, HistoryWriter] = {}
        self._going_on: set[str] = set()
        self._unwritable: set[str] = set()

    def take(self, progress: Progress) -> None:
        """Write down a batch."""
        self._write(progress.query, progress)

    def start(self, query: str) -> None:
        """Write down that a query was started."""
        self._going_on.add(query)
        self._record_event(query, "started")

    def fail(self, query: str, why: str, again: float | None) -> None:
        """Write down that a query failed; ``again``: in how many seconds it starts again, if it does."""
        if again is None:
            self._going_on.discard(query)
        self._record_event(query, "failed" if again is None else "retried", why)

    def end(self, query: str) -> None:
        """Write down that a query has ended."""
        self._going_on.discard(query)
        self._record_event(query, "ended")

    def close(self, why: str = "") -> None:
        """Write down that the queries that still went on were stopped."""
        for query in sorted(self._going_on):
            self._record_event(query, "stopped", why)
        self._going_on.clear()

    def _record_event(self, query: str, kind: EventKind, text: str = "") -> None:
        self._write(query, QueryEvent(kind, round(time.time(), 3), text, os.getpid(), self.spark))

    def _write(self, query: str, record: Progress | QueryEvent) -> None:
        try:
            self._logs.setdefault(query, HistoryWriter(self.storage, query)).append(record)
        except OSError as error:
            if query not in self._unwritable:
                self._unwritable.add(query)
                reason = error.strerror or str(error)
                self.on_news(f"{query}: its history cannot be written: {reason}. The query continues.")
