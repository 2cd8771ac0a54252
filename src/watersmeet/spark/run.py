"""Runs the queries of a script: each with its own checkpoint, watched until it ends or is stopped."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming.query import StreamingQuery

from watersmeet.analyze import analyze
from watersmeet.catalog import Sink, Span
from watersmeet.errors import Place, Refusal, WatersmeetError, catalogue, did_you_mean, refuse
from watersmeet.joins.operator import END_OF_INPUT
from watersmeet.observe.progress import OUT, Progress, progress_of
from watersmeet.physical import scan_plans
from watersmeet.plan.nodes import Query, Script
from watersmeet.schema import time_unit
from watersmeet.spark.build import Built, build
from watersmeet.spark.columnar import find_files
from watersmeet.spark.compile import is_row
from watersmeet.spark.exchange import LATE_SHOWN, UNMATCHED_SHOWN
from watersmeet.spark.outputs import split_outputs
from watersmeet.spark.owner import check_owner, record_owner, recorded_owner
from watersmeet.spark.rows import PORT_SHOWN
from watersmeet.spark.session import unlogged
from watersmeet.spark.sources import FORMATS, first_line, is_unknown_format, read_sources

Trigger = Literal["continuous", "available_now", "end"]
"""``continuous``: until stopped. ``available_now``: what is there now. ``end``: that, and the input is finished."""

MARKS_SCHEMA = "column STRING, value BIGINT"
POLL_SECONDS = 0.2
NOWHERE_TO = Sink("nothing", "noop")


@dataclass(frozen=True)
class Prepared:
    """A query of a script that may start: its frames, where it writes to, its checkpoint and its marks from outside.

    ``others``: the sinks of what columns of the result show beside its rows.
    """

    name: str
    built: Built
    sink: Sink
    place: Place | None
    checkpoint: Path
    marks: Path
    others: Mapping[str, Sink] = field(default_factory=dict[str, Sink])

    @property
    def temporal(self) -> frozenset[str]:
        """The watermarked columns that hold timestamps or dates."""
        scans = scan_plans(self.built.plan.relation)
        return frozenset(c for s in scans for c, field in _times(s.alias, s.source) if time_unit(field) != "number")

    @property
    def times(self) -> tuple[str, ...]:
        """All watermarked columns of its sources."""
        return tuple(c for s in scan_plans(self.built.plan.relation) for c, _ in _times(s.alias, s.source))


def run_script(
    script: Script,
    *,
    spark: SparkSession,
    storage: Path,
    trigger: Trigger,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> None:
    """Run all queries of a script, all of them checked before the first one starts.

    ``storage`` holds a checkpoint per query: a later run of the same script continues there. ``is_interrupted`` is
    asked between calls to Spark; if it says so, the queries are stopped and KeyboardInterrupt is raised.
    """
    if not script.queries:
        raise refuse("NO_QUERY", script=script.name)
    _set(script, spark)
    prepared = _prepare(script, spark, storage)
    available_now = trigger != "continuous"
    _watch(prepared, _start_all(prepared, available_now=available_now), on_progress, is_interrupted)
    if trigger == "end":
        for query in prepared:
            _write_end(query)
        _watch(prepared, _start_all(prepared, available_now=True), on_progress, is_interrupted)


def _set(script: Script, spark: SparkSession) -> None:
    """Set what the script sets of Spark."""
    for setting in script.settings:
        if not setting.name.startswith("spark."):
            continue
        try:
            spark.conf.set(setting.name, setting.value)
        except PySparkException as error:
            hint = f"give it when the session starts: `--conf {setting.name}={setting.value}`."
            place = script.place(setting.span)
            raise refuse(
                "WRONG_ARGUMENT", place, argument=setting.name, value=setting.value, reason=first_line(error), hint=hint
            ) from error


def _prepare(script: Script, spark: SparkSession, storage: Path) -> list[Prepared]:
    """Everything that can be refused is refused here, for all queries together, before anything is written."""
    frames = _read(script, spark)
    files = find_files(spark, script, {})
    refusals: list[Refusal] = []
    found: list[Prepared] = []
    for number, query in enumerate(script.queries, 1):
        name = query.into or f"query{number}"
        checkpoint, marks = storage / "checkpoints" / name, storage / "marks" / name
        recorded = recorded_owner(checkpoint)
        alone = replace(script, queries=(query,))
        late = "counted" if query.late_into is None else "kept"
        # A pattern need not match anything yet, so the folder is made when there is a mark to write.
        moved = spark.readStream.schema(MARKS_SCHEMA).json(str(marks / "*.json"))
        try:
            (built,) = build(spark, alone, frames, marks=moved, shards=recorded.get("shards"), late=late, files=files)
            check_owner(built, recorded, checkpoint)
            sink = NOWHERE_TO if _is_ports_only(query) else _sink(script, query.into, query.into_span, spark)
            others = {c: _sink(script, into, span, spark) for c, into, span in _others(query) if into is not None}
            found.append(Prepared(name, built, sink, script.place(sink.span), checkpoint, marks, others))
        except WatersmeetError as error:
            refusals += error.refusals
    if refusals:
        raise WatersmeetError(refusals)
    return found


def _is_ports_only(query: Query) -> bool:
    """Whether only the ports of a SYNC JOIN are written."""
    return query.into is None and bool(query.ports_into)


def _others(query: Query) -> Iterator[tuple[str, str | None, Span]]:
    """The columns that show what has a sink of its own, with the name of that sink."""
    yield LATE_SHOWN, query.late_into, query.late_into_span
    yield UNMATCHED_SHOWN[0], query.unmatched_left_into, query.unmatched_left_span
    yield UNMATCHED_SHOWN[1], query.unmatched_right_into, query.unmatched_right_span
    yield from ((f"{PORT_SHOWN}{number}", name, span) for number, (name, span) in enumerate(query.ports_into, 1))


def _read(script: Script, spark: SparkSession) -> dict[str, DataFrame]:
    """The frames of all sources; if one cannot be read, whatever else is wrong with the script is reported too."""
    try:
        return read_sources(spark, script, {})
    except WatersmeetError as unread:
        try:
            analyze(script, {}, inputs="streams")
        except WatersmeetError as error:
            raise WatersmeetError((*error.refusals, *unread.refusals)) from error
        raise


def _sink(script: Script, name: str | None, span: Span, spark: SparkSession) -> Sink:
    """The sink of that name; a query that names none shows its rows on the console."""
    if name is None:
        return Sink("console", "console", {"truncate": "false"})
    sinks = {sink.name.lower(): sink for sink in script.sinks}
    if name.lower() not in sinks:
        raise refuse("UNKNOWN_SINK", script.place(span), sink=name, suggestion=did_you_mean(name, sinks))
    sink = sinks[name.lower()]
    try:
        # Spark looks the format up before anything else, so this fails for other reasons than the format at worst.
        with unlogged():
            _ = spark.readStream.format(sink.format).load().isStreaming
    except Exception as error:
        if is_unknown_format(error) and sink.format != "memory":
            hint = did_you_mean(sink.format, FORMATS)
            raise refuse("UNKNOWN_FORMAT", script.place(sink.span), format=sink.format, hint=hint) from error
    return sink


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
    result = prepared.built.compiled.result
    writer = (
        result.observe(OUT, F.count(F.when(is_row(result), 1)).alias("rows"))
        .writeStream.queryName(prepared.name)
        .option("checkpointLocation", str(prepared.checkpoint))
    )
    if prepared.others:
        writer = writer.foreachBatch(split_outputs(prepared.sink, prepared.others))
    else:
        writer = writer.format(prepared.sink.format).options(**prepared.sink.options)
    if available_now:
        writer = writer.trigger(availableNow=True)
    try:
        query = writer.start()
    except PySparkException as error:
        sink = prepared.sink
        hint = f"correct the options of the sink `{sink.name}`; they are Spark's own for this format."
        option, reason = f"USING {sink.format}", first_line(error)
        raise refuse(
            "WRONG_OPTION", prepared.place, format=sink.format, option=option, reason=reason, hint=hint
        ) from error
    record_owner(prepared.built, prepared.checkpoint)
    return query


def _watch(
    prepared: list[Prepared],
    queries: list[StreamingQuery],
    on_progress: Callable[[Progress], None],
    is_interrupted: Callable[[], bool],
) -> None:
    """Report every batch until all queries have ended; whatever happens, none is left running."""
    seen = [-1] * len(queries)
    try:
        while any(query.isActive for query in queries):
            time.sleep(POLL_SECONDS)
            if is_interrupted():
                raise KeyboardInterrupt
            _report(prepared, queries, seen, on_progress)
            failed = next((q for q in queries if q.exception() is not None), None)
            if failed is not None:
                raise _failure(cast("StreamingQueryException", failed.exception()))
        _report(prepared, queries, seen, on_progress)
        for query in queries:
            error = query.exception()
            if error is not None:
                raise _failure(error)
    finally:
        for query in queries:
            with suppress(PySparkException):
                query.stop()


def _report(
    prepared: list[Prepared], queries: list[StreamingQuery], seen: list[int], on_progress: Callable[[Progress], None]
) -> None:
    for i, (mine, query) in enumerate(zip(prepared, queries, strict=True)):
        for reported in _progress(query):
            # Through Spark Connect, only the sources tell how many rows came in.
            came = any(source["numInputRows"] for source in reported["sources"])
            if reported["batchId"] > seen[i] and came:
                seen[i] = reported["batchId"]
                on_progress(progress_of(mine.name, reported, mine.temporal))


def _progress(query: StreamingQuery) -> Iterator[dict[str, Any]]:
    for reported in query.recentProgress:
        yield cast("dict[str, Any]", reported)


def _failure(error: StreamingQueryException) -> WatersmeetError:
    """A failed query as a refusal: one of ours if a worker raised it, else the last line that says what happened."""
    text = str(error)
    ours = re.search(r"\[([A-Z_]+)\] (.+?) SQLSTATE: \w{5}(?:\n\s*Hint: (.+))?", text)
    if ours is not None and ours[1] in catalogue():
        return refuse(
            "QUERY_FAILED", reason=ours[2], hint=ours[3] or "correct the cause and run again; nothing is lost."
        )
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    causes = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b", line)]
    reason = (causes[-1] if causes else lines[0])[:500]
    return refuse(
        "QUERY_FAILED", reason=reason, hint="correct the cause and run again: it continues from its checkpoint."
    )


def _write_end(prepared: Prepared) -> None:
    """Declare the input finished: every watermark goes to the end of time."""
    rows = [json.dumps({"column": column, "value": END_OF_INPUT}) for column in prepared.times]
    if not rows:
        return
    prepared.marks.mkdir(parents=True, exist_ok=True)
    hidden = prepared.marks / f".end-{time.time_ns()}"
    hidden.write_text("\n".join(rows) + "\n")
    hidden.rename(prepared.marks / f"end-{time.time_ns()}.json")


def _times(alias: str, source: Any) -> Iterator[tuple[str, str]]:
    for watermark in source.watermarks:
        yield f"{alias}.{watermark.column}", source.field(watermark.column).type
