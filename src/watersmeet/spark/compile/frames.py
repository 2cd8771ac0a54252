"""The frames under a join: scans, views and laterals.

A frame that feeds a join also carries rows that are none: they move watermarks, and go no further than the pack. The
column `KEEP` tells them apart, and what only travels along has columns of its own. A frame that feeds no join has rows
and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructField, StructType

from watersmeet.formats.feed import CHANGE
from watersmeet.formats.malformed import SHOWN as MALFORMED_SHOWN
from watersmeet.joins.core.changes import OP, WEIGHT
from watersmeet.physical import LateralPlan, ScanPlan, StaticJoinPlan, UnionPlan, ViewPlan
from watersmeet.plan.expressions import Expr, quote
from watersmeet.plan.query import Output
from watersmeet.spark.exchange.columns import KEEP, LATE_ROW, MARKS_COLUMN, ORDER, PART, PARTITION
from watersmeet.spark.exchange.packing import LATE_SHOWN, UNMATCHED_SHOWN
from watersmeet.spark.exchange.rows import Met

APART = (LATE_SHOWN, MALFORMED_SHOWN, *UNMATCHED_SHOWN)
"""The columns in which a result shows what is no row of it."""
ALONG = (MARKS_COLUMN, LATE_ROW, PART, PARTITION, ORDER, WEIGHT, OP, *APART)
"""What goes through views and laterals as it is."""
_PLACE = "#place"


@dataclass(frozen=True)
class Fed:
    """A frame and the joins in it, innermost first.

    ``nullable``: which of its columns can be NULL in a row that is one; the frame itself may also have NULL where there
    is none.
    """

    frame: DataFrame
    nullable: Mapping[str, bool]
    joins: tuple[Met, ...] = ()
    feeds: bool = field(default=True)

    def filtered(self, parts: tuple[Expr, ...]) -> Fed:
        """The frame with those of its rows for which all parts are true."""
        if not parts:
            return self
        kept = F.col(KEEP) & all_true(parts) if KEEP in self.frame.columns else all_true(parts)
        return self.kept(kept)

    def kept(self, keep: Column) -> Fed:
        """The frame with those of its rows for which that is true."""
        if self.feeds:
            return _changed(self, self.frame.withColumn(KEEP, keep))
        return _changed(self, self.frame.where(keep | ~is_row(self.frame)))


def _changed(fed: Fed, frame: DataFrame) -> Fed:
    return Fed(frame, fed.nullable, fed.joins, fed.feeds)


def scanned(frames: Mapping[str, DataFrame], plan: ScanPlan, *, feeds: bool) -> Fed:
    """A source's columns as ``alias.column``, and of a table what each row does to it.

    Rows that a filter drops go as far as the pack: their event times move the watermark like any other's.
    """
    names = [f"{plan.alias}.{column}" for column in plan.columns]
    if plan.parts:
        positions = [[f.name for f in plan.source.fields].index(column) for column in plan.columns]
        of_parts = [frames[part.name] for part in plan.parts]
        has_partitions = any(PARTITION in frame.columns for frame in of_parts)
        parts = [
            frame.select(
                *(F.col(quote(part.fields[i].name)) for i in positions), F.lit(n), *_partition(frame, has_partitions)
            )
            for n, (part, frame) in enumerate(zip(plan.parts, of_parts, strict=True))
        ]
        frame = reduce(DataFrame.unionAll, parts).toDF(*names, PART, *([PARTITION] if has_partitions else []))
    else:
        source = frames[plan.source.name]
        columns = [F.col(quote(c)).alias(name) for c, name in zip(plan.columns, names, strict=True)]
        # Only upserts and versions must be in order.
        order = [ORDER] if plan.changes in ("upserts", "versions") and ORDER in source.columns else []
        partition = _partition(source, PARTITION in source.columns)
        frame = source.select(*columns, *_change(plan, source), *partition, *map(quote, order))
    nullable = {f.name: f.nullable for f in frame.schema}
    fed = Fed(frame, nullable, feeds=feeds)
    if plan.changes != "upserts":
        return fed.filtered(plan.filters)
    op = F.when(all_true(plan.filters), F.col(quote(OP))).otherwise(F.lit(-1).cast("tinyint"))
    fed = _changed(fed, frame.withColumn(OP, op)) if plan.filters else fed
    # A row that has no key is no row of the table.
    return fed.kept(reduce(lambda a, b: a & b, (F.col(quote(name)).isNotNull() for name in plan.keys)))


def _partition(frame: DataFrame, is_wanted: bool) -> Iterable[Column]:
    """The partition that each row comes from, if that is wanted; NULL where a source has none."""
    known = F.col(quote(PARTITION)) if PARTITION in frame.columns else F.lit(None).cast("string")
    return (known.alias(PARTITION),) if is_wanted else ()


def _change(plan: ScanPlan, frame: DataFrame) -> Iterable[Column]:
    """What a row does to its table."""
    if plan.changes is None:
        return ()
    told = any(name.lower() == CHANGE for name in frame.columns)
    goes = F.coalesce(F.col(CHANGE) == "-", F.lit(False)) if told else F.lit(False)
    name, type_ = (WEIGHT, "bigint") if plan.changes == "weights" else (OP, "tinyint")
    return (F.when(goes, F.lit(-1)).otherwise(F.lit(1)).cast(type_).alias(name),)


def viewed(plan: ViewPlan, fed: Fed, spark: SparkSession) -> Fed:
    """The columns of a view as ``alias.column``; for rows that are not kept nothing is computed but their times."""
    fed = fed.filtered(plan.where)
    guarded = KEEP in fed.frame.columns
    times = {outer for _, outer in plan.marks}
    columns: list[Column] = []
    for output, name in zip(plan.outputs, plan.columns, strict=True):
        sql = output.expr.sql()
        bare = not guarded or name in times or output.expr.op == "column"
        columns.append(F.expr(sql if bare else f"IF({quote(KEEP)}, {sql}, NULL)").alias(name))
    along = [_renamed(name, plan) for name in (KEEP, *ALONG) if name in fed.frame.columns]
    frame = fed.frame.select(*columns, *along)
    return Fed(frame, _nullable(plan.outputs, plan.columns, fed, spark), fed.joins, fed.feeds).filtered(plan.filters)


def united(plan: UnionPlan, inputs: list[Fed]) -> Fed:
    """The rows of several frames as one, each with the number of the frame it comes from."""
    keeps = any(KEEP in fed.frame.columns for fed in inputs)
    has_partitions = any(PARTITION in fed.frame.columns for fed in inputs)
    carried = [name for name in (WEIGHT,) if all(name in fed.frame.columns for fed in inputs)]
    parts: list[DataFrame] = []
    for number, (fed, taken) in enumerate(zip(inputs, plan.taken, strict=True)):
        keep = F.col(KEEP) if KEEP in fed.frame.columns else F.lit(True)
        own = [keep.alias(KEEP)] if keeps else []
        columns = [F.col(quote(name)) for name in (*taken, *carried)]
        parts.append(fed.frame.select(*columns, *own, F.lit(number), *_partition(fed.frame, has_partitions)))
    names = [*plan.columns, *carried, *([KEEP] if keeps else []), PART, *([PARTITION] if has_partitions else [])]
    frame = reduce(DataFrame.unionAll, parts).toDF(*names)
    nullable = {
        name: any(fed.nullable[taken[place]] for fed, taken in zip(inputs, plan.taken, strict=True))
        for place, name in enumerate(plan.columns)
    }
    return Fed(frame, nullable, (), inputs[0].feeds).filtered(plan.filters)


def looked_up(plan: StaticJoinPlan, fed: Fed, table: DataFrame) -> Fed:
    """Each row with what a table that never changes has for it; rows that are none stay for their times."""
    guarded = KEEP in fed.frame.columns
    # As it was written: Spark finds equalities in it, and need not look at all rows of the table for each.
    condition = F.expr(" AND ".join(part.sql() for part in plan.condition) or "true")
    condition = condition & F.col(KEEP) if guarded else condition
    # To every task, as it is: a shuffle of the stream would lose the order in which its rows were delivered.
    joined = fed.frame.join(F.broadcast(table.withColumn(_PLACE, F.lit(True))), condition, "left")
    nullable = {**fed.nullable, **{f.name: f.nullable or not plan.is_inner for f in table.schema}}
    made = Fed(joined, nullable, fed.joins, fed.feeds)
    if plan.is_inner:
        met = F.col(quote(_PLACE)).isNotNull()
        made = made.kept(F.col(KEEP) & met if guarded else met)
    return _changed(made, made.frame.drop(_PLACE))


def exploded(plan: LateralPlan, fed: Fed) -> Fed:
    """Each row once with every element of its array. One without elements is none, but its times still count."""
    guarded = KEEP in fed.frame.columns
    array = F.expr(f"IF({quote(KEEP)}, {plan.array.sql()}, NULL)" if guarded else plan.array.sql())
    name = f"{plan.alias}.{plan.alias}"
    frame = fed.frame.select("*", F.posexplode_outer(array).alias(_PLACE, name))
    has_element = F.col(quote(_PLACE)).isNotNull()
    keep = F.col(KEEP) & has_element if guarded else has_element
    made = Fed(frame, {**fed.nullable, name: True}, fed.joins, fed.feeds).kept(keep).filtered(plan.filters)
    unread = (_PLACE,) if plan.is_shown else (_PLACE, name)
    return _changed(made, made.frame.drop(*unread))


def _renamed(name: str, plan: ViewPlan) -> Column:
    """What travels along; marks under the names that their times have behind the view."""
    column = F.col(quote(name))
    if name != MARKS_COLUMN:
        return column
    marks = F.from_json(column, "map<string,bigint>")
    # A view may show one time under several names, each of which needs the mark.
    entries = [
        F.struct(F.lit(outer).alias("key"), F.try_element_at(marks, F.lit(inner)).alias("value"))
        for inner, outer in plan.marks
    ]
    known = F.filter(F.array(*entries), lambda entry: entry["value"].isNotNull())
    renamed = F.to_json(F.map_from_entries(known)) if entries else F.lit("{}")
    return F.when(column.isNotNull(), renamed).alias(name)


def _nullable(outputs: tuple[Output, ...], names: tuple[str, ...], fed: Fed, spark: SparkSession) -> dict[str, bool]:
    """Which columns of a projection can be NULL, as Spark tells it where no other than real rows are."""
    if all(output.expr.op == "column" and not output.expr.refs[0].path for output in outputs):
        return {n: fed.nullable[o.expr.refs[0].column] for n, o in zip(names, outputs, strict=True)}
    real = StructType([StructField(f.name, f.dataType, fed.nullable.get(f.name, f.nullable)) for f in fed.frame.schema])
    found = spark.createDataFrame([], real).selectExpr(*(output.expr.sql() for output in outputs)).schema
    return {name: f.nullable for name, f in zip(names, found, strict=True)}


def is_row(frame: DataFrame) -> Column:
    """Whether a row of a result is one, and not something that is shown apart."""
    apart = (F.col(name).isNull() for name in APART if name in frame.columns)
    return reduce(lambda a, b: a & b, apart, F.lit(True))


def all_true(parts: tuple[Expr, ...]) -> Column:
    """Whether all conditions are true of a row."""
    # As one text: Spark makes a balanced tree of it, where columns that are joined one by one make one as deep as long.
    return F.expr(" AND ".join(f"coalesce({part.sql()}, false)" for part in parts) or "true")


def changes_shown(frame: DataFrame) -> DataFrame:
    """Changes as a result shows them: each as often as its weight says, with whether it comes or goes."""
    weight = F.col(quote(WEIGHT))
    times = F.array_repeat(F.when(weight > 0, "+").otherwise("-"), cast("int", F.abs(weight).cast("int")))
    return frame.select("*", F.explode(times).alias(CHANGE)).drop(WEIGHT)
