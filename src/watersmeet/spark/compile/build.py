"""From a script and its DataFrames to queries on Spark: analysis, plan, types by Spark, frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from watersmeet.analyze.settings import SWITCH, TOGETHER
from watersmeet.catalog import Amount, Field, Source, Watermark
from watersmeet.errors import refuse
from watersmeet.families import OPERATORS
from watersmeet.families.time_zones import in_zone
from watersmeet.observe.progress import Reading
from watersmeet.physical import Groups, LateRows, Limits, QueryPlan, limits_of, plan_query, together_of
from watersmeet.plan.nodes import Script
from watersmeet.plan.query import AnalyzedQuery
from watersmeet.queries import analyze
from watersmeet.spark.compile.compiler import Clock, Compiled, Compiler
from watersmeet.spark.compile.refusals import (
    check_aggregates,
    check_carried,
    check_collations,
    check_condition,
    check_expressions,
    check_feeds,
    check_order,
    check_primary_keys,
    check_provider,
)
from watersmeet.spark.compile.results import is_taken_in, result_of
from watersmeet.spark.compile.shards import shards_of
from watersmeet.spark.compile.types import SparkTypes
from watersmeet.spark.exchange.observed import reading_of
from watersmeet.spark.private.told import watermark_delays
from watersmeet.spark.run.starts import Told, token_of, told_of, watch
from watersmeet.spark.session.workers import check_workers


@dataclass(frozen=True)
class Built:
    """A query ready to be started: what was found out about it, its plan, and its frames."""

    query: AnalyzedQuery
    plan: QueryPlan
    compiled: Compiled
    compiler: Compiler
    told: Told
    reading: Reading


def build(
    spark: SparkSession,
    script: Script,
    frames: Mapping[str, DataFrame],
    *,
    extra: Mapping[str, Source] | None = None,
    shards: int | None = None,
    marks: DataFrame | None = None,
    late: LateRows = "counted",
    limits: Limits | None = None,
    clock: Clock = "ticks",
    files: Mapping[str, DataFrame] | None = None,
    together: Groups | None = None,
) -> tuple[Built, ...]:
    """All queries of a script over these DataFrames (by source name); refused together if one may not run.

    ``together``: the stages that share an operator; None: all that may.
    """
    script, extra = _with_static_tables(script, frames, extra or {})
    check_workers(spark)
    fed_by = "streams" if any(frame.isStreaming for frame in frames.values()) else "batches"
    if fed_by == "streams":
        check_provider(spark)
    else:
        # In 4.2 whoever asks for streams makes what state stores are registered with; without it there are none.
        _ = spark.streams.active
    queries = analyze(script, extra, inputs=fed_by)
    compiler = Compiler(spark, frames, shards_of(script, spark, shards), marks, late, clock, files or {})
    plans = [plan_on(script, query, compiler, limits, together) for query in queries]
    return tuple(compile_plan(script, plan, compiler) for plan in plans)


@dataclass(frozen=True)
class Planned:
    """A query that may run, and how; nothing of it is on Spark yet."""

    query: AnalyzedQuery
    plan: QueryPlan


def plan_on(
    script: Script,
    query: AnalyzedQuery,
    compiler: Compiler,
    limits: Limits | None = None,
    together: Groups | None = None,
) -> Planned:
    """The plan of a query over the compiler's frames, once Spark has found nothing wrong with its types."""
    schemas = {name: frame.schema for name, frame in compiler.frames.items()}
    types = SparkTypes(compiler.spark, query, script, schemas)
    check_expressions(types, query)
    query = in_zone(query, str(compiler.spark.conf.get("spark.sql.session.timeZone")), types)
    check_feeds(compiler.frames, script, query)
    check_aggregates(types, script, query)
    check_order(types, script, query)
    check_collations(types, script, query)
    check_primary_keys(types, script, query)
    plan = plan_query(query, OPERATORS, types, compiler.late, limits_of(script) or limits, together)
    check_carried(types, plan, compiler.arrow)
    return Planned(query, plan)


def compile_plan(script: Script, planned: Planned, compiler: Compiler) -> Built:
    """A planned query with its frames; its starts are looked at from now on."""
    told = told_of(planned.plan, compiler.shards)
    compiler = replace(compiler, token=token_of(told))
    compiled = compiler.query(planned.plan)
    reading = reading_of(planned.plan, compiler.observed_as, compiler.frames)
    watch(compiled.result, compiler.token, reading)
    for met in compiled.joins:
        check_condition(met.plan, script, [compiler.arrow(schema) for schema in met.inputs])
    return Built(planned.query, planned.plan, compiled, compiler, told, reading)


def together_on(script: Script, spark: SparkSession, unsaid: str) -> Groups | None:
    """The stages that run together in a query that begins: as its script says, else the session, else ``unsaid``."""
    said = str(spark.conf.get(TOGETHER, unsaid))
    if said.lower() not in SWITCH:
        hint = f'write `spark.conf.set("{TOGETHER}", "on")`, or "off".'
        raise refuse("WRONG_ARGUMENT", argument=TOGETHER, value=said, reason="it is on or off", hint=hint)
    return together_of(script, said)


def source_of(
    name: str, frame: DataFrame, time: str | None = None, lag: Amount | None = None, idle: int | None = None
) -> Source:
    """A DataFrame as a source: its columns, and its event time and lag from `withWatermark` or the arguments.

    A result of ours has the watermarks of its query.
    """
    fields = tuple(Field(f.name, f.dataType.simpleString(), f.nullable) for f in frame.schema)
    found = {column: Amount(delay, is_interval=True) for column, delay in watermark_delays(frame).items()}
    result = result_of(frame)
    if result is not None and (is_taken_in(frame) or not frame.isStreaming):
        found |= {mark.column: mark.lag for mark in result.watermarks}
    if time is not None:
        # Names compare without case, as in Spark; a column that does not exist is left to the analysis to refuse.
        spelled = next((f.name for f in fields if f.name.lower() == time.lower()), time)
        found = {spelled: lag or found.get(spelled) or Amount(0, is_interval=_is_temporal(fields, spelled))}
    elif lag is not None:
        found = dict.fromkeys(found, lag)
    return Source(name, fields, tuple(Watermark(column, amount, idle=idle) for column, amount in found.items()))


def _is_temporal(fields: tuple[Field, ...], name: str) -> bool:
    return any(f.name == name and f.type in {"timestamp", "timestamp_ntz", "date"} for f in fields)


def _with_static_tables(
    script: Script, frames: Mapping[str, DataFrame], extra: Mapping[str, Source]
) -> tuple[Script, Mapping[str, Source]]:
    """The sources with what is known of DataFrames beside streams: tables that never change; streams are refused."""
    streams = [name for name, frame in frames.items() if frame.isStreaming]
    batches = {name.lower() for name in frames if name not in streams}
    if not streams or not batches:
        return script, extra
    for source in (*script.sources, *extra.values()):
        if source.name.lower() in batches and source.kind == "stream":
            raise refuse("MIXED_INPUT", stream=f"`{streams[0]}`", batch=f"`{source.name}`")

    def known(source: Source) -> Source:
        return replace(source, is_static=True) if source.name.lower() in batches else source

    declared = tuple(known(source) for source in script.sources)
    return replace(script, sources=declared), {name: known(source) for name, source in extra.items()}
