"""Writes down what the queries of a run do, as it happens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from watersmeet.observe.history import EventKind, HistoryWriter, QueryEvent
from watersmeet.observe.progress import Progress


class Recorder:
    """The histories of all queries of a run. Where one cannot be written that is told once, and the run goes on.

    ``spark`` is the address of Spark's own page, if it has one.
    """

    def __init__(self, storage: Path, on_news: Callable[[str], None], spark: str = "") -> None:
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
