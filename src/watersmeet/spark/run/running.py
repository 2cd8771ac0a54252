"""Runs the queries of a script: each with its own checkpoint, watched until it ends or is stopped."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming.query import StreamingQuery

from watersmeet.errors import Refusal, TravellingError, WatersmeetError, refuse, travelled
from watersmeet.formats.malformed import SHOWN as MALFORMED_SHOWN
from watersmeet.observe.progress import OUT, Progress, progress_of
from watersmeet.plan.nodes import Script
from watersmeet.plan.relation import AnalyzedQuery
from watersmeet.references import missing, resolved
from watersmeet.spark.compile.compiler import is_row
from watersmeet.spark.exchange.observed import cores
from watersmeet.spark.private.told import is_waiting_for_rows
from watersmeet.spark.refusals import first_line, unwritten
from watersmeet.spark.run.damage import state_damage
from watersmeet.spark.run.owner import Owner
from watersmeet.spark.run.prepare import Prepared, prepare
from watersmeet.spark.run.starts import before_start
from watersmeet.spark.sinks.outputs import Write, split_outputs
from watersmeet.spark.sinks.table_sinks import encoded_rows, needs_batches
from watersmeet.spark.sources.loading import Loading
from watersmeet.spark.sources.malformed import located, with_lines
from watersmeet.spark.sources.marks import is_waiting, write_end, write_loaded

Trigger = Literal["continuous", "available_now", "end"]
"""``continuous``: until stopped. ``available_now``: what is there now. ``end``: that, and the input is finished."""

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Listeners:
    """Who is told what, while queries run: of every batch, of a query that failed, and what there is to say in words.

    ``is_interrupted`` is asked whether all is to stop.
    """

    on_progress: Callable[[Progress], None]
    on_failure: Callable[[str], None]
    on_news: Callable[[str], None]
    is_interrupted: Callable[[], bool]


def run_script(
    script: Script,
    *,
    spark: SparkSession,
    storage: Path,
    trigger: Trigger,
    analyzed: Sequence[AnalyzedQuery] | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_failure: Callable[[str], None] = lambda query: None,
    on_news: Callable[[str], None] = lambda text: None,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> None:
    """Run all queries of a script, all of them checked before the first one starts.

    ``analyzed``: the queries as they may run, where that is known already. ``storage`` holds a checkpoint per query: a
    later run of the same script continues there. ``is_interrupted`` is
    asked between calls to Spark; if it says so, the queries are stopped and KeyboardInterrupt is raised.
    ``on_failure`` is told the name of a query that failed, before the failure is raised; ``on_news`` what there is to
    say of tables that are being loaded.
    """
    if not script.queries:
        raise refuse("NO_QUERY", script=script.name)
    _set(script, spark)
    listeners = Listeners(on_progress, on_failure, on_news, is_interrupted)
    by_spark: set[str] = set()
    while True:
        try:
            return _run(prepare(script, spark, storage, analyzed, by_spark), listeners, trigger)
        except _OnlySparkReadsError as error:
            # Nothing of the batch was delivered: it is repeated from the checkpoint, with the files that it had.
            by_spark.add(error.source)
            on_news(f"{error.query}: {error.source} is read by Spark from now on: {error.reason}.")


class _OnlySparkReadsError(Exception):
    """A file has come that workers do not read as Spark would."""

    def __init__(self, query: str, refusal: Refusal) -> None:
        self.query = query
        self.source, self.reason = (refusal.parameters[name] for name in ("source", "reason"))
        super().__init__(refusal.message)


def _run(prepared: list[Prepared], listeners: Listeners, trigger: Trigger) -> None:
    """Run queries to their end."""
    for query in prepared:
        _make_ready(query)
    _pass(prepared, listeners, available_now=trigger != "continuous")
    # Rows that were held back come out in a pass of their own: the mark that frees them is read like any source.
    held = [query for query in prepared if trigger != "continuous" and is_waiting(query)]
    for query in held:
        write_loaded(query)
        listeners.on_news(f"{query.name}: {Loading(query.tables).names} loaded.")
    if held:
        _pass(held, listeners, available_now=True)
    if trigger == "end":
        for query in prepared:
            write_end(query)
        _pass(prepared, listeners, available_now=True)


def _make_ready(prepared: Prepared) -> None:
    for table in prepared.static:
        table.keep()
    if not prepared.checkpoint.exists():
        # They were given to a checkpoint that is gone.
        for mark in prepared.marks.glob("*.json"):
            mark.unlink()


def _pass(prepared: list[Prepared], listeners: Listeners, *, available_now: bool) -> None:
    """Start queries and watch them to their end."""
    _watch(prepared, _start_all(prepared, available_now=available_now), listeners, available_now=available_now)


def _set(script: Script, spark: SparkSession) -> None:
    """Set what the script sets of Spark."""
    for setting in script.settings:
        if not setting.name.startswith("spark."):
            continue
        for reason in missing(setting.value):
            raise refuse(
                "MISSING_REFERENCE", script.place(setting.span), name=f"The setting {setting.name}", reason=reason
            )
        try:
            spark.conf.set(setting.name, resolved({setting.name: setting.value})[setting.name])
        except PySparkException as error:
            hint = f"give it when the session starts: `--conf {setting.name}={setting.value}`."
            place = script.place(setting.span)
            raise refuse(
                "WRONG_ARGUMENT", place, argument=setting.name, value=setting.value, reason=first_line(error), hint=hint
            ) from error


def _start_all(prepared: list[Prepared], *, available_now: bool) -> list[StreamingQuery]:
    """All queries, started; if one does not start, none goes on."""
    started: list[StreamingQuery] = []
    try:
        for one in prepared:
            started.append(_start(one, available_now=available_now))  # noqa: PERF401 - those before must be known
    except WatersmeetError:
        for query in started:
            query.stop()
        raise
    return started


def _start(prepared: Prepared, *, available_now: bool) -> StreamingQuery:
    result, target = prepared.result, prepared.target
    observed = result.observe(OUT, F.count(F.when(is_row(result), 1)).alias("rows"))
    if prepared.others or needs_batches(target, result.sparkSession):
        others = {column: _located(column, other.format.writer(other)) for column, other in prepared.others.items()}
        write = split_outputs(target.format.writer(target), others) if others else target.format.writer(target)
        writer = observed.writeStream.foreachBatch(_travelling(write))
    else:
        writer = encoded_rows(target, observed).writeStream.format(target.sink.format).options(**target.options)
    writer = writer.queryName(prepared.name).option("checkpointLocation", str(prepared.checkpoint))
    if available_now:
        writer = writer.trigger(availableNow=True)
    owner = Owner((prepared.built.told,))
    started = before_start(result.sparkSession, str(prepared.checkpoint), owner)
    try:
        query = writer.start()
    except PySparkException as error:
        raise unwritten(target.sink, prepared.place, error) from error
    started(query)
    return query


def _located(column: str, write: Write) -> Write:
    """What writes rows apart from the result: malformed ones with the lines at which they stand."""
    return (lambda batch, number: write(with_lines(batch), number)) if column == MALFORMED_SHOWN else write


def _watch(
    prepared: list[Prepared], queries: list[StreamingQuery], listeners: Listeners, *, available_now: bool
) -> None:
    """Report every batch until all queries have ended; whatever happens, none is left running."""
    seen = [-1] * len(queries)
    loading = [Loading(one.tables, is_done=not is_waiting(one)) for one in prepared]
    try:
        while any(query.isActive for query in queries):
            time.sleep(POLL_SECONDS)
            if listeners.is_interrupted():
                raise KeyboardInterrupt
            _report(prepared, queries, seen, loading, listeners)
            _raise_failure(prepared, queries, listeners.on_failure)
            for mine, query, tables in zip(prepared, queries, loading, strict=True):
                if not available_now:
                    _follow(mine, query, tables, listeners)
        _report(prepared, queries, seen, loading, listeners)
        _raise_failure(prepared, queries, listeners.on_failure)
    finally:
        for query in queries:
            with suppress(PySparkException):
                query.stop()


def _follow(prepared: Prepared, query: StreamingQuery, loading: Loading, listeners: Listeners) -> None:
    """Let the rows go that wait for tables, once these are caught up."""
    if not is_waiting(prepared):
        return
    if loading.is_done or is_waiting_for_rows(query):
        write_loaded(prepared)
        listeners.on_news(f"{prepared.name}: {loading.names} loaded, {loading.rows:,} rows.")


def _raise_failure(prepared: list[Prepared], queries: list[StreamingQuery], on_failure: Callable[[str], None]) -> None:
    """Raise why a query failed, if one did."""
    for mine, query in zip(prepared, queries, strict=True):
        error = query.exception()
        if error is not None:
            ours = travelled(str(error))
            if ours is not None and ours.condition == "NOT_AS_COLUMNS":
                raise _OnlySparkReadsError(mine.name, ours)
            on_failure(mine.name)
            raise failure_of(error, mine.result.sparkSession)


def _report(
    prepared: list[Prepared],
    queries: list[StreamingQuery],
    seen: list[int],
    loading: list[Loading],
    listeners: Listeners,
) -> None:
    for i, (mine, query) in enumerate(zip(prepared, queries, strict=True)):
        for reported in _progress(query):
            # Through Spark Connect, only the sources tell how many rows came in.
            came = any(source["numInputRows"] for source in reported["sources"])
            if reported["batchId"] > seen[i] and came:
                seen[i] = reported["batchId"]
                spark = mine.built.compiled.result.sparkSession
                listeners.on_progress(progress_of(mine.name, reported, mine.temporal, cores(spark)))
                if not loading[i].is_done:
                    loading[i].take(reported)
                    told = f"loading {loading[i].names}: {loading[i].rows:,} rows so far."
                    listeners.on_news(f"{mine.name}: {told}")


def _progress(query: StreamingQuery) -> Iterator[dict[str, Any]]:
    for reported in query.recentProgress:
        yield cast("dict[str, Any]", reported)


def failure_of(error: StreamingQueryException, spark: SparkSession) -> WatersmeetError:
    """A failed query as a refusal: one of ours if a worker raised it, else the last line that says what happened."""
    text = str(error)
    ours = travelled(text)
    if ours is not None:
        ours = located(ours, spark)
        return refuse("QUERY_FAILED", reason=ours.message, hint=ours.hint)
    broken = state_damage(text)
    if broken is not None:
        return broken
    lines = [line.strip().removeprefix("Caused by: ") for line in text.split("\n") if line.strip()]
    causes = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b", line)]
    reason = (causes[-1] if causes else lines[0])[:500]
    return refuse(
        "QUERY_FAILED", reason=reason, hint="correct the cause and run again: it continues from its checkpoint."
    )


def _travelling(write: Write) -> Write:
    """What writes batches, its refusals as data: they cross to Spark and back."""

    def written(batch: DataFrame, number: int) -> None:
        try:
            write(batch, number)
        except WatersmeetError as error:
            raise TravellingError(error.refusals[0]) from error

    return written
