"""Watch running queries: report their batches, restart failed ones, and keep the others running.

Also here: reports of queries that users start themselves, and files of watermarks that a running query reads like a
source.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast
from uuid import uuid4
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, is_remote
from pyspark.sql.streaming.query import StreamingQuery

from watersmeet.duration import format_count
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.locations import StorageError, location_of, write_whole
from watersmeet.metrics.logs import guard_observer
from watersmeet.metrics.progress import Progress, Totals, progress_of
from watersmeet.operators.core.operator import END_OF_INPUT, LOADED
from watersmeet.physical import QueryPlan, input_times, read_sources
from watersmeet.spark.connectors.history import end_history, find_gaps
from watersmeet.spark.connectors.static import Loading
from watersmeet.spark.folders import own_folder
from watersmeet.spark.private.files import open_storage
from watersmeet.spark.private.introspection import is_waiting_for_rows
from watersmeet.spark.run.prepare import WATERMARKS_SCHEMA, Prepared
from watersmeet.spark.run.starts import InputEnd, note_input_end, progress_schema_of


def totals_of(query: StreamingQuery) -> Totals:
    """The totals over the batches that Spark remembers."""
    totals = Totals()
    for reported in query.recentProgress:
        batch = cast("Mapping[str, Any]", reported)
        observed: Mapping[str, Any] = batch.get("observedMetrics") or {}
        progress = progress_of(query.name or str(query.id), batch, progress_schema_of(observed))
        # A batch without rows, or one that Spark only reports as idle, has no metrics.
        if any(operator.shards for operator in progress.operators.values()) or any(
            s["numInputRows"] for s in batch["sources"]
        ):
            totals = totals.plus(progress)
    return totals


_LOADED_FILES = "loaded-*.json"


def write_end(prepared: Prepared) -> None:
    """Declare the input finished: every watermark goes to the end of time."""
    _write(prepared, "end", dict.fromkeys(prepared.times, END_OF_INPUT))


def write_loaded(prepared: Prepared) -> None:
    """Declare the tables caught up: rows that wait for them are let go."""
    _write(prepared, "loaded", {LOADED: 1})


_input_ends: WeakKeyDictionary[DataFrame, InputEnd] = WeakKeyDictionary()


def make_input_end(spark: SparkSession, folder: str | None) -> DataFrame:
    """A stream of watermarks from a folder, in which `finish_input` declares the end of input."""
    if folder is None:
        if is_remote() or not (spark.sparkContext.master or "").startswith("local"):
            hint = 'write `ws.input_end("hdfs:///tmp/end-of-orders")`.'
            parameters = {"argument": "folder", "value": None, "hint": hint}
            raise refuse("WRONG_ARGUMENT", reason="executors on other machines must reach it", **parameters)
        folder = str(own_folder(Path(tempfile.gettempdir())) / f"end-{uuid4().hex}")
    place = open_storage(spark, folder)
    place.mkdir(parents=True, exist_ok=True)
    frame = spark.readStream.schema(WATERMARKS_SCHEMA).json(location_of(place))
    _input_ends[frame] = note_input_end(InputEnd(place))
    return frame


def note_input_times(watermarks: DataFrame, plan: QueryPlan) -> None:
    """Let the end of input, if it is that, be the end of all event times of a plan."""
    end = _input_ends.get(watermarks)
    if end is not None:
        end.columns.update(input_times(plan))


def finish_input(query: Any, watermarks: DataFrame) -> None:
    """Process all available input of a query or a writer, then the end of input."""
    end = _input_ends.get(watermarks)
    if end is None or not end.columns:
        reason = "it is not what `ws.input_end` returned" if end is None else "no call has it as `watermarks`"
        hint = "write `end = ws.input_end()`, and pass `watermarks=end` to the call."
        raise refuse("WRONG_ARGUMENT", argument="end", value="a DataFrame", reason=reason, hint=hint)
    if not hasattr(query, "processAllAvailable") and not hasattr(query, "trigger"):
        hint = "pass the query that `start` returned, or `joined.writeStream` with its options."
        reason = "it is neither a query nor a writer"
        raise refuse("WRONG_ARGUMENT", argument="query", value=type(query).__name__, reason=reason, hint=hint)
    if hasattr(query, "trigger"):
        query.trigger(availableNow=True).start().awaitTermination()
        end.declare()
        query.start().awaitTermination()
        return
    if not query.isActive:
        hint = "pass its writer, `joined.writeStream` with its options."
        raise refuse("WRONG_ARGUMENT", argument="query", value=query.name, reason="it has stopped", hint=hint)
    query.processAllAvailable()
    end.declare()
    query.processAllAvailable()
    query.stop()


def is_waiting(prepared: Prepared) -> bool:
    """Whether rows of a query wait until its tables are caught up: that is not declared yet."""
    return bool(prepared.tables) and not any(prepared.watermark_folder.glob(_LOADED_FILES))


def _write(prepared: Prepared, name: str, watermarks: dict[str, int]) -> None:
    if not watermarks:
        return
    prepared.watermark_folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps({"column": column, "value": value}) + "\n" for column, value in watermarks.items())
    write_whole(prepared.watermark_folder / f"{name}-{time.time_ns()}.json", text)


POLL_SECONDS = 0.2

Others = Literal["go on", "stop"]
"""The policy for the other queries when one has failed for good."""


UNREACHABLE_SECONDS, UNREACHABLE_WAIT = 300.0, 5.0
"""For how long, and how often, a query is started again while a storage does not answer, whatever the policy says."""


@dataclass(frozen=True)
class RestartPolicy:
    """The number of restarts of a failed query before a batch succeeds, and what the other queries do.

    A storage that does not answer is waited for, for a time, without counting these restarts.
    """

    restarts: int = 0
    others: Others = "go on"

    def wait(self, failures: int) -> float:
        """Seconds until the next start after so many failures in a row.

        >>> [RestartPolicy(9).wait(failures) for failures in (1, 2, 3, 9)]
        [1, 2, 4, 60]
        """
        return min(60, 2 ** (failures - 1))


@dataclass(frozen=True)
class Listeners:
    """Callbacks of running queries.

    - ``on_plans`` gets the plans of all queries by name, before the first one starts, so they are planned once
    - ``on_progress`` gets every batch
    - ``on_start``, ``on_life`` and ``on_end`` get the name of a query that was started, that had a batch or waits for
      rows, and that has ended; ``on_failure`` also gets the reason, and the seconds until the restart (None: no
      restart)
    - ``on_news`` gets messages about tables that are loading and queries that restart
    - ``is_interrupted`` is called between calls to Spark; if it returns True, the queries are stopped and
      KeyboardInterrupt is raised
    """

    on_progress: Callable[[Progress], None] = lambda progress: None
    on_start: Callable[[str], None] = lambda query: None
    on_failure: Callable[[str, str, float | None], None] = lambda query, why, again: None
    on_life: Callable[[str], None] = lambda query: None
    on_end: Callable[[str], None] = lambda query: None
    on_news: Callable[[str], None] = lambda text: None
    is_interrupted: Callable[[], bool] = lambda: False
    on_plans: Callable[[Mapping[str, QueryPlan]], None] = lambda plans: None


@dataclass(frozen=True)
class QueryActions:
    """A query with the function that starts it, and why it failed."""

    start: Callable[[Prepared], StreamingQuery]
    why: Callable[[StreamingQueryException, Prepared], WatersmeetError]


class WatchedQuery:
    """A query under way, or waiting to be started again."""

    def __init__(self, prepared: Prepared, actions: QueryActions, listeners: Listeners) -> None:
        self.prepared, self.actions, self.listeners = prepared, actions, listeners
        self.last_batch, self.latest = -1, ""
        self.failures = 0
        self._unreachable_since: float | None = None
        self._is_idle_reported = False
        self.due = 0.0
        self.failure: WatersmeetError | None = None
        self.query: StreamingQuery | None = None
        self._take = guard_observer(f"{prepared.name}: the progress", self._take_batch, listeners.on_news)

    def start(self) -> None:
        """Start it."""
        self.loading = Loading(self.prepared.tables, is_done=not is_waiting(self.prepared))
        self.query = self.actions.start(self.prepared)
        self.listeners.on_start(self.prepared.name)
        self.listeners.on_life(self.prepared.name)

    def stop(self) -> None:
        """Stop it, if that can be done: Spark may be gone."""
        if self.query is not None:
            with suppress(Exception):
                self.query.stop()

    def poll(self, policy: RestartPolicy) -> bool:
        """Report what it did, and start it again if it is time for that; False: it has ended or failed for good."""
        if self.query is None:
            if time.monotonic() < self.due:
                return True
            try:
                self.start()
            except WatersmeetError as error:
                return self._handle_failure(error, policy)
            except StorageError as error:
                return self._handle_failure(refuse("STORAGE_UNREACHABLE", reason=error.strerror), policy)
            return True
        # Asked first, so that nothing of an ended query stays unreported.
        is_active = self.query.isActive
        self._report(self.query)
        if is_active:
            return True
        error = self.query.exception()
        self.query = None
        if error is not None:
            return self._handle_failure(self.actions.why(error, self.prepared), policy)
        try:
            goes_on = self._follow_history()
        except WatersmeetError as gaps:
            return self._handle_failure(gaps, policy)
        if not goes_on:
            self.listeners.on_end(self.prepared.name)
        return goes_on

    def _follow_history(self) -> bool:
        """Go on with the streams themselves if a history was read to its end, or refuse to; False: none was."""
        before, live = self.prepared, self.prepared.live
        if live is None:
            return False
        sources = read_sources(before.built.plan.relation)
        # The history may have taken longer to read than the topic keeps records.
        if gaps := [*find_gaps(before.built.compiled.result.sparkSession, before.seams, is_new=False)]:
            raise WatersmeetError(gaps)
        if not end_history(before.checkpoint, sources):
            return False
        self.prepared = live
        names = " and ".join(dict.fromkeys(source.name for source in sources if source.history is not None))
        self._notify(f"the history of {names} is read; the stream follows.")
        return True

    def release_rows(self) -> None:
        """Let the rows go that wait for tables, once these are caught up, if the storage can be asked and told."""
        with suppress(StorageError):
            self._release_rows()

    def _release_rows(self) -> None:
        if self.query is None or not is_waiting(self.prepared):
            return
        if self.loading.is_done or is_waiting_for_rows(self.query):
            write_loaded(self.prepared)
            # Batches that come later do not load anything again.
            self.loading.is_done = True
            self._notify(f"{self.loading.names} loaded, {format_count(self.loading.rows, 'row')}.")
            if self.prepared.live is not None:
                # A history is read with what was there at the start: it goes on from its last batch and sees that.
                self.stop()
                self.query = None

    def _handle_failure(self, error: WatersmeetError, policy: RestartPolicy) -> bool:
        message = error.refusals[0].message
        if {refusal.condition for refusal in error.refusals} == {"STORAGE_UNREACHABLE"}:
            now = time.monotonic()
            self._unreachable_since = since = self._unreachable_since or now
            if now - since < UNREACHABLE_SECONDS:
                self.listeners.on_failure(self.prepared.name, message, UNREACHABLE_WAIT)
                self.due = now + UNREACHABLE_WAIT
                left = format_count(round(UNREACHABLE_SECONDS - (now - since)), "second")
                self._notify(f"{message} Trying again in {UNREACHABLE_WAIT:g} s, for another {left}.")
                return True
        self.failures += 1
        is_tried_again = self.failures <= policy.restarts and all(refusal.may_be_retried for refusal in error.refusals)
        wait = policy.wait(self.failures) if is_tried_again else None
        self.listeners.on_failure(self.prepared.name, message, wait)
        if wait is not None:
            self.due = time.monotonic() + wait
            self._notify(f"failed, restarting in {wait:g} s ({self.failures} of {policy.restarts}). {message}")
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
            if reported["batchId"] > self.last_batch and came:
                self.last_batch = reported["batchId"]
                self.failures, self._unreachable_since = 0, None
                self._take(reported, core_count(spark))
                if not self.loading.is_done:
                    self.loading.take(reported)
                    self._notify(f"loading {self.loading.names}: {format_count(self.loading.rows, 'row')} so far.")
        if self.last_batch < 0 and not self._is_idle_reported and is_waiting_for_rows(query):
            self._is_idle_reported = True
            self._notify("no new rows yet; it waits for some.")
        # A batch has ended, with rows or without, or none is under way: it waits for rows.
        if latest != self.latest or not query.status["isTriggerActive"]:
            self.latest = latest
            self.listeners.on_life(self.prepared.name)

    def _take_batch(self, reported: Mapping[str, Any], cores: int | None) -> None:
        progress = progress_of(self.prepared.name, reported, self.prepared.built.reading, cores)
        self.listeners.on_progress(replace(progress, phase="" if self.prepared.live is None else "history"))

    def _notify(self, text: str) -> None:
        self.listeners.on_news(f"{self.prepared.name}: {text}")


def watch(
    prepared: Sequence[Prepared],
    actions: QueryActions,
    listeners: Listeners,
    policy: RestartPolicy,
    failed: dict[str, WatersmeetError],
    *,
    available_now: bool,
) -> None:
    """Start queries and report every batch until all have ended; whatever happens, none is left running.

    Why some failed is put into ``failed``, by name. If one does not start in the first place, none goes on.
    """
    watched = [WatchedQuery(query, actions, listeners) for query in prepared]
    try:
        for watched_query in watched:
            watched_query.start()
        under_way = watched
        while under_way and not (failed and policy.others == "stop"):
            time.sleep(POLL_SECONDS)
            if listeners.is_interrupted():
                raise KeyboardInterrupt
            looked, under_way = under_way, [query for query in under_way if query.poll(policy)]
            for watched_query in looked:
                if watched_query.failure is not None:
                    failed[watched_query.prepared.name] = watched_query.failure
                    if under_way:
                        listeners.on_news(
                            f"{watched_query.prepared.name}: failed. {watched_query.failure.refusals[0].message}"
                        )
            if not available_now:
                for watched_query in under_way:
                    watched_query.release_rows()
    finally:
        for watched_query in watched:
            watched_query.stop()


def _progress(query: StreamingQuery) -> Iterator[dict[str, Any]]:
    for reported in query.recentProgress:
        yield cast("dict[str, Any]", reported)


def core_count(spark: SparkSession) -> int | None:
    """The number of tasks that Spark can run at the same time; None for a remote server."""
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkException:
        return None


def spark_ui_url(spark: SparkSession) -> str:
    """The address of Spark's UI; empty for a remote server, or if it is switched off."""
    try:
        return spark.sparkContext.uiWebUrl or ""
    except PySparkException:
        return ""
