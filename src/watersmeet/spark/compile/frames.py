"""The frames under a join: scans, views and laterals.

A frame that feeds a join also carries rows that are not in its result: they move watermarks, and end at the pack. The
column `KEEP` marks them, and metadata has columns of its own. A frame that feeds no join has real rows and no metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructField, StructType

from watersmeet.logical.expressions import Expr, Reference
from watersmeet.logical.query import Output
from watersmeet.operators.core.changes import CHANGE, OP, WEIGHT
from watersmeet.physical import LateralPlan, ScanPlan, StaticJoinPlan, UnionPlan, ViewPlan
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
        source = with_files(source, plan.source) if in_order and not order else source
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
    passthrough = [
        _passthrough_column(name, plan) for name in (KEEP, *PASSTHROUGH_COLUMNS) if name in side.frame.columns
    ]
    frame = select_with_others(side.frame, plan.outputs, [*columns, *passthrough])
    return InputFrame(frame, _nullable(plan.outputs, plan.columns, side, spark), side.joins, side.feeds).where(
        plan.filters
    )


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
        parts.append(side.frame.select(*columns, *own, F.lit(number), *_origin_columns(side.frame, origins)))
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
