"""Watches running queries: reports their batches, starts failed ones again, and lets none take the others with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, cast

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from watersmeet.counts import counted
from watersmeet.errors import WatersmeetError
from watersmeet.observe.guarded import guarded
from watersmeet.observe.progress import Progress, progress_of
from watersmeet.spark.exchange.observed import cores
from watersmeet.spark.private.told import is_waiting_for_rows
from watersmeet.spark.run.prepare import Prepared
from watersmeet.spark.sources.loading import Loading
from watersmeet.spark.sources.marks import is_waiting, write_loaded

POLL_SECONDS = 0.2

Others = Literal["go on", "stop"]
"""What the other queries do when one has failed for good."""


@dataclass(frozen=True)
class OnFailure:
    """What is done when a query fails: how often it is started again before a batch succeeds, and what others do."""

    restarts: int = 0
    others: Others = "go on"

    def wait(self, failures: int) -> float:
        """Seconds until the next start after so many failures in a row.

        >>> [OnFailure(9).wait(failures) for failures in (1, 2, 3, 9)]
        [1, 2, 4, 60]
        """
        return min(60, 2 ** (failures - 1))


@dataclass(frozen=True)
class Listeners:
    """Who is told what, while queries run.

    Of every batch; of a query that was started, that failed (why, and in how many seconds it starts again), that lives
    (it had a batch or waits for rows) or that has ended; what there is to say in words. ``is_interrupted`` is asked
    whether all is to stop.
    """

    on_progress: Callable[[Progress], None]
    on_start: Callable[[str], None]
    on_failure: Callable[[str, str, float | None], None]
    on_life: Callable[[str], None]
    on_end: Callable[[str], None]
    on_news: Callable[[str], None]
    is_interrupted: Callable[[], bool]


@dataclass(frozen=True)
class Ways:
    """How a query is started, and why it failed."""

    start: Callable[[Prepared], StreamingQuery]
    why: Callable[[StreamingQueryException, Prepared], WatersmeetError]


class Watched:
    """A query under way, or waiting to be started again."""

    def __init__(self, prepared: Prepared, ways: Ways, listeners: Listeners) -> None:
        self.prepared, self.ways, self.listeners = prepared, ways, listeners
        self.seen, self.latest = -1, ""
        self.failures = 0
        self.due = 0.0
        self.failure: WatersmeetError | None = None
        self.query: StreamingQuery | None = None
        self._take = guarded(f"{prepared.name}: the progress", self._take_batch, listeners.on_news)

    def start(self) -> None:
        """Start it."""
        self.loading = Loading(self.prepared.tables, is_done=not is_waiting(self.prepared))
        self.query = self.ways.start(self.prepared)
        self.listeners.on_start(self.prepared.name)
        self.listeners.on_life(self.prepared.name)

    def stop(self) -> None:
        """Stop it, if that can be done: Spark may be gone."""
        if self.query is not None:
            with suppress(Exception):
                self.query.stop()

    def look(self, then: OnFailure) -> bool:
        """Report what it did, and start it again if it is time for that; False: it has ended or failed for good."""
        if self.query is None:
            if time.monotonic() < self.due:
                return True
            try:
                self.start()
            except WatersmeetError as error:
                return self._failed(error, then)
            return True
        # Asked first, so that nothing of an ended query stays unreported.
        is_active = self.query.isActive
        self._report(self.query)
        if is_active:
            return True
        error = self.query.exception()
        self.query = None
        if error is not None:
            return self._failed(self.ways.why(error, self.prepared), then)
        self.listeners.on_end(self.prepared.name)
        return False

    def let_rows_go(self) -> None:
        """Let the rows go that wait for tables, once these are caught up."""
        if self.query is None or not is_waiting(self.prepared):
            return
        if self.loading.is_done or is_waiting_for_rows(self.query):
            write_loaded(self.prepared)
            self._tell(f"{self.loading.names} loaded, {counted(self.loading.rows, 'row')}.")

    def _failed(self, error: WatersmeetError, then: OnFailure) -> bool:
        self.failures += 1
        said = error.refusals[0].message
        is_tried_again = self.failures <= then.restarts and all(one.may_be_retried for one in error.refusals)
        wait = then.wait(self.failures) if is_tried_again else None
        self.listeners.on_failure(self.prepared.name, said, wait)
        if wait is not None:
            self.due = time.monotonic() + wait
            self._tell(f"failed, starts again in {wait:g} s ({self.failures} of {then.restarts}). {said}")
            return True
        self.failure = error
        return False

    def _report(self, query: StreamingQuery) -> None:
        spark = self.prepared.built.compiled.result.sparkSession
        latest = self.latest
        for reported in _progress(query):
            latest = reported["timestamp"]
            # Through Spark Connect, only the sources tell how many rows came in.
            came = any(source["numInputRows"] for source in reported["sources"])
            if reported["batchId"] > self.seen and came:
                self.seen = reported["batchId"]
                self.failures = 0
                self._take(reported, cores(spark))
                if not self.loading.is_done:
                    self.loading.take(reported)
                    self._tell(f"loading {self.loading.names}: {counted(self.loading.rows, 'row')} so far.")
        # A batch has ended, with rows or without, or none is under way: it waits for rows.
        if latest != self.latest or not query.status["isTriggerActive"]:
            self.latest = latest
            self.listeners.on_life(self.prepared.name)

    def _take_batch(self, reported: Mapping[str, Any], cores: int | None) -> None:
        reading = self.prepared.built.reading
        self.listeners.on_progress(progress_of(self.prepared.name, reported, reading, cores))

    def _tell(self, text: str) -> None:
        self.listeners.on_news(f"{self.prepared.name}: {text}")


def watch(
    prepared: Sequence[Prepared],
    ways: Ways,
    listeners: Listeners,
    then: OnFailure,
    failed: dict[str, WatersmeetError],
    *,
    available_now: bool,
) -> None:
    """Start queries and report every batch until all have ended; whatever happens, none is left running.

    Why some failed is put into ``failed``, by name. If one does not start in the first place, none goes on.
    """
    watched = [Watched(one, ways, listeners) for one in prepared]
    try:
        for one in watched:
            one.start()
        under_way = watched
        while under_way and not (failed and then.others == "stop"):
            time.sleep(POLL_SECONDS)
            if listeners.is_interrupted():
                raise KeyboardInterrupt
            looked, under_way = under_way, [one for one in under_way if one.look(then)]
            for one in looked:
                if one.failure is not None:
                    failed[one.prepared.name] = one.failure
                    if under_way:
                        listeners.on_news(f"{one.prepared.name}: failed. {one.failure.refusals[0].message}")
            if not available_now:
                for one in under_way:
                    one.let_rows_go()
    finally:
        for one in watched:
            one.stop()


def _progress(query: StreamingQuery) -> Iterator[dict[str, Any]]:
    for reported in query.recentProgress:
        yield cast("dict[str, Any]", reported)
