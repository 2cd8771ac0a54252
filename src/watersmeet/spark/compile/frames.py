"""The frames under a join: scans, views and laterals, and results of ours as inputs of other calls.

A frame that feeds a join also carries rows that are not in its result: they move watermarks, and end at the pack. The
column `KEEP` marks them, and metadata has columns of its own. A frame that feeds no join has real rows and no metadata.

The watermarks of a join travel with its rows, in records that no DataFrame shows. So a call that gets the result of
another one does not read that DataFrame: what it was made of becomes part of the query that reads it, as a view. What
Spark makes of a result (`select`, `where`, ...) is another DataFrame, which has rows and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import reduce
from typing import Any, cast
from weakref import WeakKeyDictionary

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructField, StructType

from watersmeet.catalog import NOWHERE, Source, Span, Watermark
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.logical.expressions import Expr, Reference
from watersmeet.logical.nodes import Scan, Script, Setting, View
from watersmeet.logical.passes import Inputs
from watersmeet.logical.passes.views import as_source
from watersmeet.logical.query import AnalyzedQuery, Output
from watersmeet.operators.core.changes import CHANGE, OP, WEIGHT
from watersmeet.physical import LateralPlan, Limits, QueryPlan, ScanPlan, StaticJoinPlan, UnionPlan, ViewPlan, limits_of
from watersmeet.schema import quote
from watersmeet.spark.connectors.reading import FILE_DDL, with_files
from watersmeet.spark.exchange.columns import FILE, KEEP, LATE_ROW, ORDER, PART, PARTITION, WATERMARKS_COLUMN
from watersmeet.spark.exchange.rows import SIDE_OUTPUT_COLUMNS, JoinOutput, is_row

PASSTHROUGH_COLUMNS = (WATERMARKS_COLUMN, LATE_ROW, PART, PARTITION, ORDER, FILE, WEIGHT, OP, *SIDE_OUTPUT_COLUMNS)
"""Columns that go through views and laterals unchanged."""
_PLACE = "#place"
_ORIGINS = {PARTITION: "string", FILE: FILE_DDL}
"""The columns that tell where a row comes from, with their types."""


@dataclass(frozen=True)
class InputFrame:
    """A frame and the joins in it, innermost first.

    ``nullable``: the columns that can be NULL in a real row; in the frame, rows that only carry event times may have
    NULL in any column.
    """

    frame: DataFrame
    nullable: Mapping[str, bool]
    joins: tuple[JoinOutput, ...] = ()
    feeds: bool = field(default=True)

    def where(self, parts: tuple[Expr, ...]) -> InputFrame:
        """The frame with those of its rows for which all parts are true."""
        if not parts:
            return self
        condition = F.col(KEEP) & all_true(parts) if KEEP in self.frame.columns else all_true(parts)
        return self.keep_where(condition)

    def keep_where(self, keep: Column) -> InputFrame:
        """The frame with those of its rows for which that is true."""
        if self.feeds:
            return _with_frame(self, self.frame.withColumn(KEEP, keep))
        return _with_frame(self, self.frame.where(keep | ~is_row(self.frame)))


def _with_frame(side: InputFrame, frame: DataFrame) -> InputFrame:
    return InputFrame(frame, side.nullable, side.joins, side.feeds)


def compile_scan(frames: Mapping[str, DataFrame], plan: ScanPlan, *, feeds: bool, in_order: bool = False) -> InputFrame:
    """A source's columns as ``alias.column``, and of a table what each row does to it.

    Rows that a filter drops go as far as the pack: their event times move the watermark like any other's.
    ``in_order``: the order of arrival matters, so that rows of files say which file they are of.
    """
    names = [f"{plan.alias}.{column}" for column in plan.columns]
    if plan.parts:
        positions = [[f.name for f in plan.source.fields].index(column) for column in plan.columns]
        of_parts = [with_files(frames[part.name], part) if in_order else frames[part.name] for part in plan.parts]
        carried = _origins_of_any(of_parts)
        parts = [
            frame.select(
                *(F.col(quote(part.fields[i].name)) for i in positions), F.lit(n), *_origin_columns(frame, carried)
            )
            for n, (part, frame) in enumerate(zip(plan.parts, of_parts, strict=True))
        ]
        frame = reduce(DataFrame.unionAll, parts).toDF(*names, PART, *carried)
    else:
        source = frames[plan.source.name]
        columns = [F.col(quote(c)).alias(name) for c, name in zip(plan.columns, names, strict=True)]
        # Only upserts and versions must be in order.
        order = [ORDER] if plan.changes in ("upserts", "versions") and ORDER in source.columns else []
        # The files of a history are known where it is read.
        source = with_files(source, plan.source) if in_order and not order else source.drop(FILE)
        carried = _origin_columns(source, _origins_of_any([source]))
        frame = source.select(*columns, *_change(plan, source), *carried, *map(quote, order))
    nullable = {f.name: f.nullable for f in frame.schema}
    side = InputFrame(frame, nullable, feeds=feeds)
    if plan.changes != "upserts":
        return side.where(plan.filters)
    op = F.when(all_true(plan.filters), F.col(quote(OP))).otherwise(F.lit(-1).cast("tinyint"))
    side = _with_frame(side, frame.withColumn(OP, op)) if plan.filters else side
    # A row without a key is not a row of the table.
    return side.keep_where(reduce(lambda a, b: a & b, (F.col(quote(name)).isNotNull() for name in plan.keys)))


def _origins_of_any(frames: Iterable[DataFrame]) -> list[str]:
    """Those of the columns that tell where a row comes from which any of the frames has."""
    present = {name for frame in frames for name in frame.columns}
    return [name for name in _ORIGINS if name in present]


def _origin_columns(frame: DataFrame, names: Iterable[str]) -> list[Column]:
    """The columns that tell where a row comes from; NULL where the frame has none."""
    return [
        (F.col(quote(name)) if name in frame.columns else F.lit(None).cast(_ORIGINS[name])).alias(name)
        for name in names
    ]


def _change(plan: ScanPlan, frame: DataFrame) -> Iterable[Column]:
    """The column with the change that a row makes to its table; empty for a stream."""
    if plan.changes is None:
        return ()
    has_change = any(name.lower() == CHANGE for name in frame.columns)
    goes = F.coalesce(F.col(CHANGE) == "-", F.lit(False)) if has_change else F.lit(False)
    name, type_ = (WEIGHT, "bigint") if plan.changes == "weights" else (OP, "tinyint")
    return (F.when(goes, F.lit(-1)).otherwise(F.lit(1)).cast(type_).alias(name),)


def compile_view(plan: ViewPlan, side: InputFrame, spark: SparkSession) -> InputFrame:
    """The columns of a view as ``alias.column``; for rows that are not kept nothing is computed but their times."""
    side = side.where(plan.where)
    guarded = KEEP in side.frame.columns
    times = {outer for _, outer in plan.watermarks}
    columns: list[Column] = []
    for output, name in zip(plan.outputs, plan.columns, strict=True):
        sql = sql_with_others(output.expr, side.frame)
        bare = not guarded or name in times or output.expr.op == "column"
        columns.append(F.expr(sql if bare else f"IF({quote(KEEP)}, {sql}, NULL)").alias(name))
    columns += [F.col(quote(name)) for name in plan.late]
    passthrough = [
        _passthrough_column(name, plan) for name in (KEEP, *PASSTHROUGH_COLUMNS) if name in side.frame.columns
    ]
    frame = select_with_others(side.frame, plan.outputs, [*columns, *passthrough])
    nullable = _nullable(plan.outputs, plan.columns, side, spark) | {name: side.nullable[name] for name in plan.late}
    return InputFrame(frame, nullable, side.joins, side.feeds).where(plan.filters)


_WINDOW_CALL = re.compile(r"window\s*\(\s*$", re.IGNORECASE)
_SLIDE = re.compile(r"\s*,\s*'[^']*'\s*,\s*'([^']*)'\s*(,\s*'[^']*'\s*)?\)")
_IS_ONLY_COPY = "#is_only_copy"


def sql_with_others(expr: Expr, frame: DataFrame) -> str:
    """The SQL of an expression in a frame that also has watermarks, late rows and the like, which have no times.

    Spark drops every row whose window has no time, so these rows get one.
    """
    others = _others(frame)
    if not others or not any(_is_windowed(expr, ref) for ref in expr.refs):
        return expr.sql()
    return expr.sql(lambda ref: _time(ref, others) if _is_windowed(expr, ref) else quote(ref.column))


def select_with_others(frame: DataFrame, outputs: Iterable[Output], columns: Iterable[Column]) -> DataFrame:
    """Columns of a frame; of its watermarks, late rows and the like each once, also where windows slide.

    Spark repeats a row for each window that it is in. One of these windows ends no more than a slide after the time.
    """
    others = _others(frame)
    calls = ((output.expr, ref) for output in outputs for ref in output.expr.refs if _is_windowed(output.expr, ref))
    slides = ((ref, match) for expr, ref in calls if (match := _SLIDE.match(expr.text[ref.end :])) is not None)
    ref, match = next(slides, (None, None))
    if not others or ref is None or match is None:
        return frame.select(*columns)
    time = _time(ref, others)
    is_only = f"NOT ({others}) OR window({time}{match[0]}.end <= {time} + INTERVAL '{match[1]}'"
    selected = frame.select(*columns, F.expr(is_only).alias(_IS_ONLY_COPY))
    return selected.where(F.col(quote(_IS_ONLY_COPY))).drop(_IS_ONLY_COPY)


def _others(frame: DataFrame) -> str:
    """The condition of rows that are not rows of a result; empty if the frame has none."""
    names = (WATERMARKS_COLUMN, LATE_ROW, *SIDE_OUTPUT_COLUMNS)
    return " OR ".join(f"{quote(name)} IS NOT NULL" for name in names if name in frame.columns)


def _is_windowed(expr: Expr, ref: Reference) -> bool:
    """Whether a column of an expression is the time of ``window(time, ...)``."""
    return expr.op == "other" and not ref.path and _WINDOW_CALL.search(expr.text[: ref.start]) is not None


def _time(ref: Reference, others: str) -> str:
    """A time that only rows of a result may lack."""
    return f"coalesce({quote(ref.column)}, IF({others}, DATE '1970-01-01', NULL))"


def compile_union(plan: UnionPlan, inputs: list[InputFrame]) -> InputFrame:
    """The rows of several frames as one, each with the number of the frame it comes from."""
    keeps = any(KEEP in side.frame.columns for side in inputs)
    origins = _origins_of_any(side.frame for side in inputs)
    carried = [name for name in (WEIGHT,) if all(name in side.frame.columns for side in inputs)]
    parts: list[DataFrame] = []
    for number, (side, taken) in enumerate(zip(inputs, plan.taken, strict=True)):
        keep = F.col(KEEP) if KEEP in side.frame.columns else F.lit(True)
        own = [keep.alias(KEEP)] if keeps else []
        columns = [F.col(quote(name)) for name in (*taken, *carried)]
        # Rows of an operator that only carry watermarks or late rows would be rows of NULLs in the union.
        others = _others(side.frame)
        rows = side.frame.where(f"NOT ({others})") if others else side.frame
        parts.append(rows.select(*columns, *own, F.lit(number), *_origin_columns(side.frame, origins)))
    names = [*plan.columns, *carried, *([KEEP] if keeps else []), PART, *origins]
    frame = reduce(DataFrame.unionAll, parts).toDF(*names)
    nullable = {
        name: any(side.nullable[taken[place]] for side, taken in zip(inputs, plan.taken, strict=True))
        for place, name in enumerate(plan.columns)
    }
    joins = tuple(join for side in inputs for join in side.joins)
    return InputFrame(frame, nullable, joins, inputs[0].feeds).where(plan.filters)


def compile_static_join(plan: StaticJoinPlan, side: InputFrame, table: DataFrame) -> InputFrame:
    """Join rows with a table that never changes; rows that only carry event times stay."""
    guarded = KEEP in side.frame.columns
    # As it was written: Spark finds equalities in it, and need not look at all rows of the table for each.
    condition = F.expr(" AND ".join(part.sql() for part in plan.condition) or "true")
    condition = condition & F.col(KEEP) if guarded else condition
    # To every task, as it is: a shuffle of the stream would lose the order in which its rows were delivered.
    joined = side.frame.join(F.broadcast(table.withColumn(_PLACE, F.lit(True))), condition, "left")
    nullable = {**side.nullable, **{f.name: f.nullable or not plan.is_inner for f in table.schema}}
    result = InputFrame(joined, nullable, side.joins, side.feeds)
    if plan.is_inner:
        matches = F.col(quote(_PLACE)).isNotNull()
        result = result.keep_where(F.col(KEEP) & matches if guarded else matches)
    return _with_frame(result, result.frame.drop(_PLACE))


def compile_lateral(plan: LateralPlan, side: InputFrame) -> InputFrame:
    """Emit a row for each element of its array. A row without elements only carries event times from here on."""
    guarded = KEEP in side.frame.columns
    array = F.expr(f"IF({quote(KEEP)}, {plan.array.sql()}, NULL)" if guarded else plan.array.sql())
    name = f"{plan.alias}.{plan.alias}"
    frame = side.frame.select("*", F.posexplode_outer(array).alias(_PLACE, name))
    has_element = F.col(quote(_PLACE)).isNotNull()
    keep = F.col(KEEP) & has_element if guarded else has_element
    result = (
        InputFrame(frame, {**side.nullable, name: True}, side.joins, side.feeds).keep_where(keep).where(plan.filters)
    )
    unread = (_PLACE,) if plan.is_shown else (_PLACE, name)
    return _with_frame(result, result.frame.drop(*unread))


def _passthrough_column(name: str, plan: ViewPlan) -> Column:
    """A column that is passed through; watermarks get the names that their times have outside the view."""
    column = F.col(quote(name))
    if name != WATERMARKS_COLUMN:
        return column
    watermarks = F.from_json(column, "map<string,bigint>")
    # A view may show one time under several names, each of which needs the watermark.
    entries = [
        F.struct(F.lit(outer).alias("key"), F.try_element_at(watermarks, F.lit(inner)).alias("value"))
        for inner, outer in plan.watermarks
    ]
    values = F.filter(F.array(*entries), lambda entry: entry["value"].isNotNull())
    renamed = F.to_json(F.map_from_entries(values)) if entries else F.lit("{}")
    return F.when(column.isNotNull(), renamed).alias(name)


def _nullable(
    outputs: tuple[Output, ...], names: tuple[str, ...], side: InputFrame, spark: SparkSession
) -> dict[str, bool]:
    """For each column of a projection, whether it can be NULL, as Spark derives it for real rows only."""
    if all(output.expr.op == "column" and not output.expr.refs[0].path for output in outputs):
        return {n: side.nullable[o.expr.refs[0].column] for n, o in zip(names, outputs, strict=True)}
    real = StructType(
        [StructField(f.name, f.dataType, side.nullable.get(f.name, f.nullable)) for f in side.frame.schema]
    )
    schema = spark.createDataFrame([], real).selectExpr(*(output.expr.sql() for output in outputs)).schema
    return {name: f.nullable for name, f in zip(names, schema, strict=True)}


def all_true(parts: tuple[Expr, ...]) -> Column:
    """Whether all conditions are true of a row."""
    # As one text: Spark makes a balanced tree of it, where columns that are joined one by one make one as deep as long.
    return F.expr(" AND ".join(f"coalesce({part.sql()}, false)" for part in parts) or "true")


@dataclass(frozen=True)
class QueryRequest:
    """One query over DataFrames, as a call describes it.

    ``frames`` and ``sources`` go by the names that the script reads; ``files`` are the paths of sources that workers
    may read themselves. ``has_watermarks``: something from outside moves its watermarks, under names that only it
    knows.
    """

    script: Script
    frames: Mapping[str, DataFrame]
    sources: Mapping[str, Source]
    files: Mapping[str, DataFrame] = field(default_factory=dict[str, DataFrame])
    limits: Limits | None = None
    shards: int | None = None
    has_watermarks: bool = False

    @property
    def inputs(self) -> Inputs:
        """The kind of input of the query: batches or streams."""
        is_batch = self.frames and not any(frame.isStreaming for frame in self.frames.values())
        return "batches" if is_batch else "streams"

    @property
    def effective_limits(self) -> Limits | None:
        """The limit on the state, from any of the calls."""
        return limits_of(self.script) or self.limits


@dataclass(frozen=True)
class QueryResult:
    """The query behind a DataFrame, and the way it runs. ``request`` is None if the frame shows more than its rows."""

    query: AnalyzedQuery
    plan: QueryPlan
    request: QueryRequest | None

    @property
    def watermarks(self) -> tuple[Watermark, ...]:
        """The watermarks of its columns."""
        return as_source("", self.query, NOWHERE).watermarks


_results: WeakKeyDictionary[DataFrame, QueryResult] = WeakKeyDictionary()


def remember(frame: DataFrame, result: QueryResult) -> None:
    """Know a DataFrame as a result from now on."""
    _results[frame] = result


def result_of(frame: DataFrame) -> QueryResult | None:
    """The query behind a DataFrame that a Watersmeet call returned; None for any other DataFrame."""
    return _results.get(frame)


def is_inlined(frame: DataFrame) -> bool:
    """Whether a DataFrame becomes part of the query that reads it; batches have no watermarks that travel."""
    result = result_of(frame)
    return result is not None and result.request is not None and frame.isStreaming


def inline_results(request: QueryRequest) -> QueryRequest:
    """The query with the queries of all results among its DataFrames in it, each as a view of the name it has there."""
    declared = {source.name.lower() for source in request.script.sources}
    for name, frame in request.frames.items():
        result = result_of(frame) if is_inlined(frame) and name.lower() not in declared else None
        if result is not None and result.request is not None:
            request = _inline(request, name, result.request)
    return request


def _inline(outer: QueryRequest, name: str, inner: QueryRequest) -> QueryRequest:
    if inner.has_watermarks:
        hint = "pass watermarks to the outermost call only: it names every column as ws.explain shows it."
        raise _conflict("watermarks", name, "watermarks", hint)
    if outer.effective_limits != inner.effective_limits:
        raise _conflict("max_rows", name, inner.effective_limits, "pass the same max_rows and overflow to both calls.")
    if None not in (outer.shards, inner.shards) and outer.shards != inner.shards:
        raise _conflict("shards", name, inner.shards, "pass the same number to both calls.")
    script = outer.script
    [query] = inner.script.queries
    views = (*inner.script.views, View("", query))
    nested_views = tuple(
        _nest(replace(view, query=replace(view.query, into=None, late_into=None)), name) for view in views
    )
    script = replace(
        script,
        sources=(*script.sources, *_nest(inner.script.sources, name)),
        views=(*nested_views, *script.views),
        heartbeats=(
            *script.heartbeats,
            *((_qualify_name(name, source), _nest(condition, name)) for source, condition in inner.script.heartbeats),
        ),
        settings=_settings(script.settings, inner.script.settings, name),
    )
    frames = {other: frame for other, frame in outer.frames.items() if other != name}
    sources = {other: source for other, source in outer.sources.items() if other != name}
    return replace(
        outer,
        script=script,
        frames={**frames, **{_qualify_name(name, n): frame for n, frame in inner.frames.items()}},
        sources={**sources, **{_qualify_name(name, n): _nest(source, name) for n, source in inner.sources.items()}},
        files={**outer.files, **{_qualify_name(name, n): paths for n, paths in inner.files.items()}},
        shards=outer.shards or inner.shards,
    )


def _settings(outer: tuple[Setting, ...], inner: tuple[Setting, ...], name: str) -> tuple[Setting, ...]:
    merged = {setting.name.lower(): setting for setting in outer}
    for setting in inner:
        other = merged.setdefault(setting.name.lower(), replace(setting, span=NOWHERE))
        if other.value != setting.value:
            raise _conflict(setting.name, name, setting.value, "pass the same value to both calls.")
    return tuple(merged.values())


def _conflict(argument: str, name: str, value: object, hint: str) -> WatersmeetError:
    reason = f"{name} has this value and becomes part of this query, which has another one"
    return refuse("WRONG_ARGUMENT", argument=argument, value=value, reason=reason, hint=hint)


def _qualify_name(name: str, inner: str) -> str:
    """The name of a part of a query inside another query; the result itself has the name of the query there."""
    return inner if inner.startswith("#") else f"{name}.{inner}" if inner else name


def _nest(node: Any, name: str) -> Any:
    """Whatever is part of a script as part of another one: under other names, and at no place of its text."""
    if isinstance(node, tuple):
        return tuple(_nest(part, name) for part in cast("tuple[Any, ...]", node))
    if isinstance(node, Span):
        return NOWHERE
    if not is_dataclass(node) or isinstance(node, type):
        return node
    changed = {f.name: _nest(getattr(node, f.name), name) for f in fields(node)}
    if isinstance(node, Scan):
        changed["source"] = _qualify_name(name, node.source)
    elif isinstance(node, View | Source):
        changed["name"] = _qualify_name(name, node.name)
    return replace(node, **changed)
