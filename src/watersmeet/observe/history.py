"""The history of a query: what each of its batches did, and when it was started, failed or ended.

It is a file of the project's storage, ``progress/QUERY.jsonl``, with a line of JSON for each. A line is written whole
or not at all: what a crash left of one is passed over. The file never grows far beyond ``LARGEST``: then the older half
of the batches is put together two by two, again and again as they get older. What is counted stays exact; only how it
was spread over time is known less finely.

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
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from watersmeet.observe.progress import Progress
from watersmeet.observe.records import merge_batches, progress_as_json, progress_from_json
from watersmeet.observe.totals import Totals

FOLDER = "progress"
"""Where the histories lie in a storage."""
LARGEST = 3_000_000
"""The size in bytes at which a history is thinned out; that is about four thousand batches of a join."""
MOST_EVENTS = 1000

EventKind = Literal["started", "failed", "retried", "ended", "stopped"]
"""``failed``: for good; ``retried``: it failed and starts again by itself; ``ended``: by itself; ``stopped``: by
somebody."""


@dataclass(frozen=True)
class QueryEvent:
    """Something that happened to a query: when, in seconds since 1970, and what is to be said of it.

    ``process`` is the one that ran it, ``spark`` the address of Spark's own page.
    """

    kind: EventKind
    at: float
    text: str = ""
    process: int = 0
    spark: str = ""


@dataclass(frozen=True)
class History:
    """What is known of a query, oldest first. Of older batches, several are one value (`Progress.batches`)."""

    query: str
    batches: tuple[Progress, ...] = ()
    events: tuple[QueryEvent, ...] = ()

    @property
    def totals(self) -> Totals:
        """What all batches did together."""
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


def queries_of(storage: Path) -> list[str]:
    """The queries of which there is a history, by name."""
    return sorted(path.stem for path in (storage / FOLDER).glob("*.jsonl"))


def history_file(storage: Path, query: str) -> Path:
    """Where the history of a query lies."""
    return storage / FOLDER / f"{query}.jsonl"


def read_history(storage: Path, query: str) -> History:
    """The history of a query; an empty one where nothing is known."""
    try:
        text = history_file(storage, query).read_bytes()
    except FileNotFoundError:
        return History(query)
    records = list(records_in(text, query))
    batches = tuple(record for record in records if isinstance(record, Progress))
    return History(query, batches, tuple(record for record in records if isinstance(record, QueryEvent)))


def records_in(text: bytes, query: str) -> Iterator[Progress | QueryEvent]:
    """What the whole lines of a file hold of a query; what is none of ours is passed over."""
    for line in text.split(b"\n"):
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            if line:
                yield _record(cast("dict[str, Any]", json.loads(line)), query)


class HistoryWriter:
    """Writes the history of a query. ``largest``: the bytes at which it is thinned out."""

    def __init__(self, storage: Path, query: str, largest: int = LARGEST) -> None:
        self.query, self.path = query, history_file(storage, query)
        self.largest = largest

    def append(self, record: Progress | QueryEvent) -> None:
        """Write down one more batch, or what happened; raises OSError where that cannot be done."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            # What a crash left without its end must not swallow this line too.
            torn = file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"
            file.write((b"\n" if torn else b"") + _line(record))
            size = file.tell()
        if size > self.largest:
            self._thin_out()

    def _thin_out(self) -> None:
        """Write the file anew with fewer records, as one that takes its place at once."""
        records = list(records_in(self.path.read_bytes(), self.query))
        replacement = self.path.with_suffix(".new")
        with replacement.open("wb") as file:
            file.writelines(_line(record) for record in thin_records(records))
            file.flush()
            os.fsync(file.fileno())
        replacement.replace(self.path)


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
        # It is there, and somebody else's.
        return True
    return True
