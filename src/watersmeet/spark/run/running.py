"""Runs the queries of a script: each with its own checkpoint, watched until it ends or is stopped."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming.query import StreamingQuery

from watersmeet.catalog import Source
from watersmeet.errors import Refusal, WatersmeetError, WorkerRefusalError, refusal_in, refuse
from watersmeet.formats.base import SHOWN as MALFORMED_SHOWN
from watersmeet.formats.columns import save_columns
from watersmeet.formats.packages import JARS
from watersmeet.locations import Storage, find_missing, hint_for_missing, is_local, location_of, resolve_references
from watersmeet.logical.nodes import Script
from watersmeet.logical.passes.settings import TIME_ZONE, time_zone_hint
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.metrics.progress import RESULT_OBSERVATION
from watersmeet.spark.compile.compiler import is_row
from watersmeet.spark.connectors import sink_connector
from watersmeet.spark.connectors.malformed import locate, with_lines
from watersmeet.spark.connectors.sinks import (
    FAILED_SINK,
    SinkTarget,
    Write,
    encode_rows,
    needs_batches,
    split_outputs,
    write_branches,
)
from watersmeet.spark.connectors.static import Loading
from watersmeet.spark.private.files import folder_of
from watersmeet.spark.private.introspection import without_plan
from watersmeet.spark.private.jvm import death_of
from watersmeet.spark.private.writers import sources_of
from watersmeet.spark.refusals import (
    first_line,
    kafka_failure,
    last_cause,
    report_spark_death,
    start_failure,
    storage_failure,
)
from watersmeet.spark.run.build import PlannedQuery
from watersmeet.spark.run.prepare import Prepared, StartOptions, prepare
from watersmeet.spark.run.rebuild import rebuild
from watersmeet.spark.run.starts import before_start, read_owner, rewind, take_clocks
from watersmeet.spark.run.watching import (
    Listeners,
    QueryActions,
    RestartPolicy,
    is_waiting,
    watch,
    write_end,
    write_loaded,
)
from watersmeet.spark.state.owner import Owner, state_damage

Trigger = Literal["continuous", "available_now", "end"]
"""``continuous``: until stopped. ``available_now``: the available input. ``end``: also, the input is finished."""


def run_script(
    script: Script,
    *,
    spark: SparkSession,
    storage: Storage,
    trigger: Trigger,
    analyzed: Sequence[AnalyzedQuery] | None = None,
    policy: RestartPolicy = RestartPolicy(),  # noqa: B008 - it is frozen
    options: StartOptions = StartOptions(),  # noqa: B008 - it is frozen
    listeners: Listeners = Listeners(),  # noqa: B008 - it is frozen
) -> None:
    """Run all queries of a script, all of them checked before the first one starts.

    - ``analyzed``: the analyzed queries, if there are any yet
    - ``storage`` holds a checkpoint per query: a later run of the same script continues there
    - ``policy``: the handling of a failed query; the failure is raised when the others have ended
    - ``options``: how the queries may start; the run stops when it loses its leases
    """
    if not script.queries:
        raise refuse("NO_QUERY", script=script.name)
    failed: dict[str, WatersmeetError] = {}
    with report_spark_death():
        _apply_settings(script, spark)

        def is_stopped() -> bool:
            options.leases.check_here()
            return listeners.is_interrupted()

        try:
            preparing = partial(prepare, script, spark, storage, analyzed, options)
            _prepare_and_run(preparing, trigger, policy, replace(listeners, is_interrupted=is_stopped), failed)
        except KeyboardInterrupt:
            # The result of the run includes earlier failures.
            if not failed:
                raise
    if failed:
        raise WatersmeetError(refusal for error in failed.values() for refusal in error.refusals)


class _OnlySparkReadsError(Exception):
    """A file has come that workers do not read as Spark would."""

    def __init__(self, query: str, refusal: Refusal) -> None:
        self.query = query
        self.source, self.reason = (refusal.parameters[name] for name in ("source", "reason"))
        super().__init__(refusal.message)


def _prepare_and_run(
    preparing: Callable[..., list[Prepared]],
    trigger: Trigger,
    policy: RestartPolicy,
    listeners: Listeners,
    failed: dict[str, WatersmeetError],
) -> None:
    """Prepare queries and run them; once more for every source that turns out to be Spark's to read."""
    by_spark: set[str] = set()
    planned: dict[str, PlannedQuery] = {}
    while True:
        queries = preparing(by_spark=by_spark, planned=planned)
        if not planned:
            # A plan does not depend on the reader of files: queries are planned once, however often they are prepared.
            planned = {query.name: query.built.planned for query in queries}
            listeners.on_plans({name: each.plan for name, each in planned.items()})
        prepared = [query for query in queries if query.name not in failed]
        for query in prepared:
            _rebuild(query, listeners)
        if any(query.rebuilding is not None and not is_local(query.checkpoint) for query in prepared):
            # A rebuilt checkpoint has the place of the old one only on this machine.
            prepared = [query for query in preparing(by_spark=by_spark, planned=planned) if query.name not in failed]
        for query in prepared:
            for target in query.ahead:
                listeners.on_news(f"{query.name}: {rewind(target, query.result.sparkSession)}")
            _make_ready(query)
            for output in query.outputs:
                if columns := sink_connector(output.target).add_columns(output.rows(query.rows)):
                    added = ", ".join(f"`{name}`" for name in columns)
                    listeners.on_news(f"{query.name}: added {added} to the table of {output.target.sink.name}.")
            _warn_unchecked_keys(query, listeners)
            for effect in query.follows:
                listeners.on_news(f"{query.name}: {effect.change}: {effect.consequence}.")
        try:
            return _run(prepared, trigger, policy, listeners, failed)
        except _OnlySparkReadsError as error:
            # Nothing of the batch was delivered: it is repeated from the checkpoint, with the files that it had.
            by_spark.add(error.source)
            listeners.on_news(f"{error.query}: {error.source} is read by Spark from now on: {error.reason}.")


def _run(
    prepared: list[Prepared],
    trigger: Trigger,
    policy: RestartPolicy,
    listeners: Listeners,
    failed: dict[str, WatersmeetError],
) -> None:
    """Run queries in as many passes as it takes. What failed in a pass is put down, and in no later one."""
    available_now = trigger != "continuous"
    actions = QueryActions(partial(_start, available_now=available_now), failure_of)

    def pass_of(queries: list[Prepared]) -> list[Prepared]:
        if queries and not (failed and policy.others == "stop"):
            watch([query.current for query in queries], actions, listeners, policy, failed, available_now=available_now)
        return [query for query in prepared if query.name not in failed]

    going_on = pass_of(prepared)
    # Rows that were held back come out in a pass of their own: the watermark that frees them is read like any source.
    waiting = [query for query in going_on if available_now and is_waiting(query)]
    for query in waiting:
        write_loaded(query)
        listeners.on_news(f"{query.name}: {Loading(query.tables).names} loaded.")
    going_on = pass_of(waiting)
    if trigger == "end" and not (failed and policy.others == "stop"):
        for query in going_on:
            write_end(query)
        pass_of(going_on)


def _rebuild(prepared: Prepared, listeners: Listeners) -> None:
    """Rebuild the state of a query, if requested."""
    plan = prepared.rebuilding
    if plan is None:
        return
    listeners.on_news(f"{prepared.name}: {plan.difference}: its state is rebuilt: {'; '.join(plan.consequences)}.")
    spark, sources = prepared.result.sparkSession, sources_of(prepared.result.writeStream)
    if not sources:
        raise refuse("NOT_REBUILT", query=prepared.name, reason="Spark Connect does not show its sources")
    rebuild(spark, plan, sources, listeners.on_news, listeners.is_interrupted)


def _warn_unchecked_keys(prepared: Prepared, listeners: Listeners) -> None:
    """Say so where two rows of one key would not stop the query; only a key that was declared may be wrong."""
    spark = prepared.result.sparkSession
    for target in (output.target for output in prepared.outputs):
        if "key" in target.sink.lowercase_options and sink_connector(target).had_rows(spark):
            had = f"the table of {target.sink.name} had rows before the query, which replaces them by key"
            listeners.on_news(f"{prepared.name}: {had}: two rows of one key in two batches do not stop the query.")


def _make_ready(prepared: Prepared) -> None:
    for output in prepared.outputs:
        sink_connector(output.target).prepare(output.rows(prepared.rows), output.place)
    for other in prepared.others.values():
        sink_connector(other).prepare(None, prepared.place)
    if prepared.owner is not None:
        # Before anything runs: shards become those of the changed query one by one.
        spark = prepared.result.sparkSession
        was = read_owner(spark, prepared.checkpoint)
        assert was is not None, "it was compared with what the query is now"
        read = sources_of(prepared.result.writeStream) if was.clocks != prepared.owner.clocks else []
        take_clocks(folder_of(spark, prepared.checkpoint), was, prepared.owner, read, spark.version)
    for table in prepared.static:
        try:
            table.keep()
        except PySparkException as error:
            raise failure_of(error, prepared) from error
    if not prepared.checkpoint.exists():
        # They were given to a checkpoint that is gone.
        for watermark_file in prepared.watermark_folder.glob("*.json"):
            watermark_file.unlink()
    sources = [source for source in prepared.endpoints if isinstance(source, Source)]
    save_columns(prepared.watermark_folder.parent.parent, prepared.name, sources)


def _apply_settings(script: Script, spark: SparkSession) -> None:
    """Set what the script sets of Spark."""
    for setting in script.settings:
        if not setting.name.startswith("spark.") or _has_jars(spark, setting.name):
            continue
        for reason in find_missing(setting.value):
            raise refuse(
                "MISSING_REFERENCE",
                script.place(setting.span),
                name=f"The setting {setting.name}",
                reason=reason,
                hint=hint_for_missing(reason),
            )
        try:
            spark.conf.set(setting.name, resolve_references({setting.name: setting.value})[setting.name])
        except PySparkException as error:
            hint = f"set it when the session starts: `--conf {setting.name}={setting.value}`."
            if setting.name.lower() == TIME_ZONE.lower():
                hint = time_zone_hint(setting.value)
            place = script.place(setting.span)
            raise refuse(
                "WRONG_ARGUMENT", place, argument=setting.name, value=setting.value, reason=first_line(error), hint=hint
            ) from error


def _has_jars(spark: SparkSession, name: str) -> bool:
    """Whether a setting is one of jars, which the session was given when it started."""
    return name.startswith(JARS) and bool(spark.conf.get(name, None))


def _start(prepared: Prepared, *, available_now: bool) -> StreamingQuery:
    result, target = prepared.result, prepared.target
    observed = result.observe(RESULT_OBSERVATION, F.count(F.when(is_row(result), 1)).alias("rows"))
    if prepared.others or prepared.sinks or needs_batches(target, result.sparkSession):
        others = {
            column: _with_line_numbers(column, sink_connector(other).writer())
            for column, other in prepared.others.items()
        }
        write = _result_writer(prepared)
        write = split_outputs(write, others) if others else write
        targets = [*(output.target for output in prepared.outputs), *prepared.others.values()]
        if not all(sink_connector(one).checks_lease for one in targets):
            write = _with_lease(target, write)
        writer = observed.writeStream.foreachBatch(_carry_refusals(write))
    else:
        writer = encode_rows(target, observed).writeStream.format(target.sink.format).options(**target.options)
    writer = writer.queryName(prepared.name).option("checkpointLocation", location_of(prepared.checkpoint))
    if available_now or prepared.live is not None:
        # Also a history, which has an end.
        writer = writer.trigger(availableNow=True)
    owner = Owner((prepared.built.signature,), sinks=prepared.sinks)
    try:
        started = before_start(result.sparkSession, prepared.checkpoint, owner)
        query = writer.start()
    except (PySparkException, OSError) as error:
        raise start_failure(prepared.name, target.sink, prepared.place, error) from error
    started(query)
    return query


def _result_writer(prepared: Prepared) -> Write:
    """The writer of the rows of a query: to its sink, or to those of its branches."""
    if not prepared.sinks:
        return sink_connector(prepared.target).writer()
    return write_branches(
        [(output.target.sink.name, output.rows, sink_connector(output.target).writer()) for output in prepared.outputs]
    )


def _with_lease(target: SinkTarget, write: Write) -> Write:
    """Wrap a writer so that it writes only while this driver has the lease of the query."""
    if not target.leases:
        return write

    def write_batch(batch: DataFrame, number: int) -> None:
        target.check_lease()
        write(batch, number)

    return write_batch


def _with_line_numbers(column: str, write: Write) -> Write:
    """The writers of side outputs: malformed rows with their lines."""
    return (lambda batch, number: write(with_lines(batch), number)) if column == MALFORMED_SHOWN else write


def failure_of(error: PySparkException, prepared: Prepared) -> WatersmeetError:
    """A failed query as a refusal: one of ours if a worker raised it, else the last line that says what happened.

    Raises what no query goes on after: Spark itself has ended, or a source is to be read otherwise.
    """
    died = death_of(error)
    if died is not None:
        raise refuse("SPARK_DIED", reason=died) from error
    text = str(error)
    ours = refusal_in(without_plan(text))
    if ours is not None and ours.condition == "NOT_AS_COLUMNS":
        raise _OnlySparkReadsError(prepared.name, ours)
    if ours is not None:
        ours = locate(ours, prepared.result.sparkSession)
        return refuse("QUERY_FAILED", reason=ours.message, hint=ours.hint)
    # A state that cannot be read since its server is away is not damaged.
    known = storage_failure(text) or state_damage(text) or kafka_failure(text, prepared.endpoints)
    if known is not None:
        return known
    reason = last_cause(text)
    file = re.search(r"reading file (\S+?)\.?(?:\s|$)", text)
    reason = f"{reason} ({file[1]})" if file is not None and file[1] not in reason else reason
    sink = re.search(rf"{FAILED_SINK}(\S+)", text)
    reason = f"{reason} (while {sink[1]} was written)" if sink is not None else reason
    return refuse(
        "QUERY_FAILED", reason=reason, hint="correct the cause and run again: the query continues from its checkpoint."
    )


def _carry_refusals(write: Write) -> Write:
    """Wrap a writer so that its refusals travel through Spark as data."""

    def write_batch(batch: DataFrame, number: int) -> None:
        try:
            write(batch, number)
        except WatersmeetError as error:
            raise WorkerRefusalError(error.refusals[0]) from error

    return write_batch
