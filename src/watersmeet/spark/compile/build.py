"""From a script and its DataFrames to queries on Spark: analysis, plan, types by Spark, frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from watersmeet.catalog import Amount, Field, Source, Watermark
from watersmeet.errors import Refusal, WatersmeetError, refuse
from watersmeet.families import OPERATORS
from watersmeet.joins.core.condition import Condition, is_supported
from watersmeet.joins.group.types import result_type
from watersmeet.physical import JoinPlan, LateRows, Limits, QueryPlan, join_plans, limits_of, plan_query
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import Script
from watersmeet.plan.relation import (
    AnalyzedJoin,
    AnalyzedLeaf,
    AnalyzedQuery,
    AnalyzedRelation,
    ConditionalJoin,
    views,
)
from watersmeet.queries import analyze
from watersmeet.spark.compile.compiler import Clock, Compiled, Compiler
from watersmeet.spark.compile.types import SparkTypes
from watersmeet.spark.private.told import watermark_delays
from watersmeet.spark.run.starts import Told, token_of, told_of, watch

PROVIDER = "spark.sql.streaming.stateStore.providerClass"


@dataclass(frozen=True)
class Built:
    """A query ready to be started: what was found out about it, its plan, and its frames."""

    query: AnalyzedQuery
    plan: QueryPlan
    compiled: Compiled
    compiler: Compiler
    told: Told


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
) -> tuple[Built, ...]:
    """All queries of a script over these DataFrames (by source name); refused together if one may not run."""
    script, extra = _with_static_tables(script, frames, extra or {})
    fed_by = "streams" if any(frame.isStreaming for frame in frames.values()) else "batches"
    if fed_by == "streams":
        check_provider(spark)
    queries = analyze(script, extra, inputs=fed_by)
    compiler = Compiler(spark, frames, shards_of(script, spark, shards), marks, late, clock, files or {})
    return tuple(compile_plan(script, plan_on(script, query, compiler, limits), compiler) for query in queries)


@dataclass(frozen=True)
class Planned:
    """A query that may run, and how; nothing of it is on Spark yet."""

    query: AnalyzedQuery
    plan: QueryPlan


def plan_on(script: Script, query: AnalyzedQuery, compiler: Compiler, limits: Limits | None = None) -> Planned:
    """The plan of a query over the compiler's frames, once Spark has found nothing wrong with its types."""
    schemas = {name: frame.schema for name, frame in compiler.frames.items()}
    types = SparkTypes(compiler.spark, query, script, schemas)
    _check_expressions(types, query)
    _check_aggregates(types, script, query)
    plan = plan_query(query, OPERATORS, types, compiler.late, limits_of(script) or limits)
    _check_carried(types, plan, compiler)
    return Planned(query, plan)


def compile_plan(script: Script, planned: Planned, compiler: Compiler) -> Built:
    """A planned query with its frames; its starts are looked at from now on."""
    told = told_of(planned.plan, compiler.shards)
    compiler = replace(compiler, token=token_of(told))
    compiled = compiler.query(planned.plan)
    watch(compiled.result)
    for met in compiled.joins:
        _check_condition(met.plan, script, [compiler.arrow(schema) for schema in met.inputs])
    return Built(planned.query, planned.plan, compiled, compiler, told)


def shards_of(script: Script, spark: SparkSession, shards: int | None) -> int:
    """Into how many shards a script is split: as it says itself, else so many, else as Spark shuffles."""
    settings = {setting.name.lower(): setting.value for setting in script.settings}
    said = settings.get("watersmeet.shards", shards)
    return int(str(spark.conf.get("spark.sql.shuffle.partitions") if said is None else said))


def source_of(
    name: str, frame: DataFrame, time: str | None = None, lag: Amount | None = None, idle: int | None = None
) -> Source:
    """A DataFrame as a source: its columns, and its event time and lag from `withWatermark` or the arguments."""
    fields = tuple(Field(f.name, f.dataType.simpleString(), f.nullable) for f in frame.schema)
    found = {column: Amount(delay, is_interval=True) for column, delay in watermark_delays(frame).items()}
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


def check_provider(spark: SparkSession) -> None:
    """Refuse a session whose store cannot hold the state of a join."""
    provider = str(spark.conf.get(PROVIDER))
    if not provider.endswith("RocksDBStateStoreProvider"):
        raise refuse("STATE_STORE_PROVIDER", provider=provider.rsplit(".", 1)[-1])


def _check_aggregates(types: SparkTypes, script: Script, query: AnalyzedQuery) -> None:
    """Refuse aggregates over types that a grouping cannot aggregate, though Spark would cast them."""
    for view in (found.query for found in views(query.relation)):
        _check_aggregates(types, script, view)
    for aggregate in query.group.aggregates if query.group is not None else ():
        args = tuple(types.type_of(arg) for arg in aggregate.expr.args)
        if result_type(aggregate.expr.text, args) is None:
            reason = f"{aggregate.expr.text}() does not take {' and '.join(args)}."
            hint = "cast what is aggregated, for example `CAST(x AS DOUBLE)`."
            place = script.place(aggregate.expr.span)
            raise refuse("TYPE_MISMATCH", place, expression=aggregate.expr.sql(), reason=reason, hint=hint)


def _check_carried(types: SparkTypes, plan: QueryPlan, compiler: Compiler) -> None:
    """Refuse columns whose type has no form in Arrow, in which rows go through a join."""
    carried = {column for join in join_plans(plan.relation) for port in join.ports for column in port.columns}
    refusals: list[Refusal] = []
    for field in types.empty.schema:
        try:
            if field.name in carried:
                compiler.arrow(StructType([field]))
        except PySparkTypeError:
            named = {"column": field.name, "type": field.dataType.simpleString().upper()}
            refusals.append(Refusal("UNSUPPORTED_TYPE", named))
    if refusals:
        raise WatersmeetError(refusals)


def _check_expressions(types: SparkTypes, query: AnalyzedQuery) -> None:
    """Let Spark look at every expression on its own, so that each mistake is reported at its place."""
    refusals: list[Refusal] = []
    # A constant need not be of its column's type, but must be one that Spark casts to it.
    values = [Expr("cast", (value,), value=type_, span=value.span) for value, type_ in _values(query.relation)]
    for expr in (*_conditions(query.relation), *values, *_of_query(query)):
        try:
            types.check(expr)
        except WatersmeetError as error:
            refusals += error.refusals
    for expr in _compared(query.relation) if not refusals else ():
        try:
            types.check_comparable(expr)
        except WatersmeetError as error:
            refusals += error.refusals
    if refusals:
        raise WatersmeetError(refusals)


def _of_query(query: AnalyzedQuery) -> Iterator[Expr]:
    """The expressions of a query behind its relation."""
    yield from (*query.where, *(output.expr for output in query.outputs))


def _compared(relation: AnalyzedRelation) -> Iterator[Expr]:
    """The values that the joins of a relation compare across their sides, or by which they tell partitions apart."""
    for side in relation.inputs:
        yield from _compared(side)
    yield from relation.compared if isinstance(relation, AnalyzedJoin) else ()


def _conditions(relation: AnalyzedRelation) -> Iterator[Expr]:
    """Every expression of a relation: filters of its sources, the parts of ON, of windows and of padding."""
    for side in relation.inputs:
        yield from _conditions(side)
    yield from relation.expressions


def _values(relation: AnalyzedRelation) -> Iterator[tuple[Expr, str]]:
    """The constants that stand for columns of a missing side, each with the type of its column."""
    for port, side in enumerate(relation.inputs):
        yield from _values(side)
        pad = relation.pads(port) if isinstance(relation, AnalyzedJoin) else None
        if pad is not None and not isinstance(pad, str) and isinstance(side, AnalyzedLeaf):
            types = {field.name: field.type for field in side.source.fields}
            yield from ((value, types[name]) for name, value in pad)


def _check_condition(join: JoinPlan, script: Script, schemas: Sequence[pa.Schema]) -> None:
    """Refuse a condition across the sides whose types the kernel cannot evaluate, before it meets the first row."""
    condition: Condition | None = getattr(join.operator, "condition", None)
    if condition is None or is_supported(condition, pa.unify_schemas(list(schemas))):
        return
    assert isinstance(join.analyzed, ConditionalJoin)
    residual = join.analyzed.residual[0]
    raise refuse(
        "UNSUPPORTED_CONDITION",
        script.place(residual.span),
        kind=join.analyzed.kind.upper(),
        condition=residual.sql(),
        cause="values of these types cannot be compared across the sides",
        hint="compare numbers, strings, dates or timestamps, for example by a CAST on each side.",
    )
