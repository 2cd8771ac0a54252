"""From a script and its DataFrames to queries on Spark: analysis, plan, types by Spark, frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from watersmeet.catalog import Amount, Field, Source, Watermark
from watersmeet.deprecation import warn_renamed
from watersmeet.errors import refuse
from watersmeet.logical.nodes import Script
from watersmeet.logical.passes.settings import (
    DEPRECATED_SETTINGS,
    OPERATOR_CHAINING,
    SIZE_EXPECTED,
    STATE_CACHE,
    SWITCH,
    parse_setting_size,
)
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.metrics.progress import JOIN_PREFIX, ProgressSchema
from watersmeet.operators import OPERATORS
from watersmeet.operators.core.operator import is_internal, port_names
from watersmeet.operators.time_zones import in_zone
from watersmeet.physical import (
    ChainGroups,
    JoinPlan,
    LateRows,
    Limits,
    QueryPlan,
    join_plans,
    limits_of,
    plan_query,
    read_chaining,
    view_plans,
)
from watersmeet.queries import analyze
from watersmeet.schema import is_moment
from watersmeet.spark.compile.compiler import Clock, Compiled, Compiler
from watersmeet.spark.compile.frames import is_inlined, result_of
from watersmeet.spark.compile.types import (
    SparkTypes,
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
from watersmeet.spark.private.introspection import watermark_delays
from watersmeet.spark.run.starts import NamedIdentity, describe_query, token_of, watch_frame
from watersmeet.spark.session.workers import check_workers, shard_count


@dataclass(frozen=True)
class PlannedQuery:
    """A query that may run, and how; nothing of it is on Spark yet."""

    query: AnalyzedQuery
    plan: QueryPlan


@dataclass(frozen=True)
class Built:
    """A query ready to be started: what was found out about it, its plan, and its frames."""

    planned: PlannedQuery
    compiled: Compiled
    compiler: Compiler
    signature: NamedIdentity
    reading: ProgressSchema

    @property
    def query(self) -> AnalyzedQuery:
        """The query as it was analysed."""
        return self.planned.query

    @property
    def plan(self) -> QueryPlan:
        """The options of its run."""
        return self.planned.plan


def build(
    spark: SparkSession,
    script: Script,
    frames: Mapping[str, DataFrame],
    *,
    extra: Mapping[str, Source] | None = None,
    shards: int | None = None,
    watermarks: DataFrame | None = None,
    late: LateRows = "counted",
    limits: Limits | None = None,
    clock: Clock = "ticks",
    files: Mapping[str, DataFrame] | None = None,
    chaining: ChainGroups | None = None,
) -> tuple[Built, ...]:
    """All queries of a script over these DataFrames (by source name); refused together if one may not run.

    ``chaining``: the stages that share an operator; None: all that may.
    """
    script, extra = _with_static_tables(script, frames, extra or {})
    check_workers(spark)
    input_kind = "streams" if any(frame.isStreaming for frame in frames.values()) else "batches"
    if input_kind == "streams":
        check_provider(spark)
    else:
        # In 4.2 asking for streams creates the registry of state stores; without it they cannot be opened.
        _ = spark.streams.active
    queries = analyze(script, extra, inputs=input_kind)
    compiler = Compiler(
        spark, frames, shard_count(script, spark, shards), watermarks, late, clock, files or {},
        cache_bytes=cache_bytes(script, spark),
    )  # fmt: skip
    plans = [plan_on(script, query, compiler, limits, chaining) for query in queries]
    return tuple(compile_plan(script, plan, compiler) for plan in plans)


def plan_on(
    script: Script,
    query: AnalyzedQuery,
    compiler: Compiler,
    limits: Limits | None = None,
    chaining: ChainGroups | None = None,
) -> PlannedQuery:
    """The plan of a query over the compiler's frames, once Spark has found nothing wrong with its types."""
    schemas = {name: frame.schema for name, frame in compiler.frames.items()}
    types = SparkTypes(compiler.spark, query, script, schemas)
    check_expressions(types, query)
    query = in_zone(query, str(compiler.spark.conf.get("spark.sql.session.timeZone")), types, script)
    check_feeds(compiler.frames, script, query)
    check_aggregates(types, script, query)
    check_order(types, script, query)
    check_collations(types, script, query)
    check_primary_keys(types, script, query)
    plan = plan_query(query, OPERATORS, types, compiler.late, limits_of(script) or limits, chaining)
    check_carried(types, plan, compiler.arrow)
    return PlannedQuery(query, plan)


def compile_plan(script: Script, planned: PlannedQuery, compiler: Compiler) -> Built:
    """A planned query with its frames; its starts are looked at from now on."""
    zone = str(compiler.spark.conf.get("spark.sql.session.timeZone"))
    signature = describe_query(planned.plan, compiler.shards, zone)
    compiler = replace(compiler, token=token_of(signature))
    compiled = compiler.compile_query(planned.plan)
    reading = make_reading(planned.plan, compiler.observation_name, compiler.frames)
    watch_frame(compiled.result, compiler.token, reading)
    for join in compiled.joins:
        check_condition(join.plan, script, [compiler.arrow(schema) for schema in join.inputs])
    return Built(planned, compiled, compiler, signature, reading)


def cache_bytes(script: Script, spark: SparkSession) -> int | None:
    """The part of the state that an executor may cache: as the script says, else the session; None: the default."""
    said = [setting.value for setting in script.settings if setting.name.lower() == STATE_CACHE]
    value = [str(spark.conf.get(STATE_CACHE, "")), *said][-1]
    if not value:
        return None
    size = parse_setting_size(value)
    if size is None:
        hint = f'write `spark.conf.set("{STATE_CACHE}", "8 GB")`.'
        raise refuse("WRONG_ARGUMENT", argument=STATE_CACHE, value=value, reason=SIZE_EXPECTED, hint=hint)
    return size


def chain_groups(script: Script, spark: SparkSession, default: str) -> ChainGroups | None:
    """The stages that run together in a query that begins: as its script says, else the session, else ``default``."""
    for old, new in DEPRECATED_SETTINGS.items():
        previous = spark.conf.get(old, None)
        if previous is not None:
            warn_renamed(old, new)
            default = previous
    said = str(spark.conf.get(OPERATOR_CHAINING, default))
    if said.lower() not in SWITCH:
        hint = f'write `spark.conf.set("{OPERATOR_CHAINING}", "on")`, or "off".'
        raise refuse("WRONG_ARGUMENT", argument=OPERATOR_CHAINING, value=said, reason="expected on or off", hint=hint)
    return read_chaining(script, said)


def source_of(
    name: str, frame: DataFrame, time: str | None = None, lag: Amount | None = None, idle: int | None = None
) -> Source:
    """A DataFrame as a source: its columns, and its event time and lag from `withWatermark` or the arguments.

    A result of ours has the watermarks of its query.
    """
    fields = tuple(Field(f.name, f.dataType.simpleString(), f.nullable) for f in frame.schema)
    lags = {column: Amount(delay, is_interval=True) for column, delay in watermark_delays(frame).items()}
    result = result_of(frame)
    if result is not None and (is_inlined(frame) or not frame.isStreaming):
        lags |= {watermark.column: watermark.lag for watermark in result.watermarks}
    if time is not None:
        # Names compare without case, as in Spark; a column that does not exist is left to the analysis to refuse.
        spelled = next((f.name for f in fields if f.name.lower() == time.lower()), time)
        lags = {spelled: lag or lags.get(spelled) or Amount(0, is_interval=_is_temporal(fields, spelled))}
    elif lag is not None:
        lags = dict.fromkeys(lags, lag)
    return Source(name, fields, tuple(Watermark(column, amount, idle=idle) for column, amount in lags.items()))


def _is_temporal(fields: tuple[Field, ...], name: str) -> bool:
    return any(f.name == name and f.type in {"timestamp", "timestamp_ntz", "date"} for f in fields)


def _with_static_tables(
    script: Script, frames: Mapping[str, DataFrame], extra: Mapping[str, Source]
) -> tuple[Script, Mapping[str, Source]]:
    """The sources with batch DataFrames next to streams, which are tables that never change; streams are refused."""
    streams = [name for name, frame in frames.items() if frame.isStreaming]
    batches = {name.lower() for name in frames if name not in streams}
    if not streams or not batches:
        return script, extra
    for source in (*script.sources, *extra.values()):
        if source.name.lower() in batches and source.kind == "stream":
            raise refuse("MIXED_INPUT", stream=f"`{streams[0]}`", batch=f"`{source.name}`")

    def declare_static(source: Source) -> Source:
        return replace(source, is_static=True) if source.name.lower() in batches else source

    declared = tuple(declare_static(source) for source in script.sources)
    return replace(script, sources=declared), {name: declare_static(source) for name, source in extra.items()}


def make_reading(
    plan: QueryPlan, name_of: Callable[[JoinPlan], str], frames: Mapping[str, DataFrame]
) -> ProgressSchema:
    """The meaning of a query's metrics, whose joins are observed under these names.

    A DataFrame with several names is one source, under the first of them.
    """
    first = {name: next(n for n, other in frames.items() if other is frame) for name, frame in frames.items()}
    feeds = {
        f"{JOIN_PREFIX}{name_of(join)}": {
            side: first.get(source, source)
            for side, port in zip(port_names(len(join.ports)), join.ports, strict=True)
            if (source := port.input.source_name) is not None
        }
        for join in join_plans(plan.relation)
    }
    # Innermost first.
    lags = [lag for join in join_plans(plan.relation) for port in join.ports for lag in port.lags]
    times = {lag.watermark: lag.source for lag in lags if is_internal(lag.watermark) and not is_internal(lag.source)}
    return ProgressSchema(temporal_columns(plan), feeds, frozenset([*feeds][-1:]), times)


def temporal_columns(plan: QueryPlan) -> frozenset[str]:
    """The watermarked columns of a query that hold timestamps or dates."""
    columns = {
        f"{scan.alias}.{watermark.column}"
        for scan in plan.relation.leaves
        for watermark in scan.source.watermarks
        if (field := scan.source.field(watermark.column)) is not None and is_moment(field.type)
    }
    for view in view_plans(plan.relation):
        columns |= {outer for inner, outer in view.watermarks if inner in columns}
    return frozenset(columns)
