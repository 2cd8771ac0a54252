"""What Spark adds up of an operator's records in every batch, for the progress of the query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.observe.progress import EXAMPLES, JOIN, MARK, OWN, Reading, port_names
from watersmeet.physical import (
    JoinPlan,
    LateralPlan,
    QueryPlan,
    RelationPlan,
    ScanPlan,
    StaticJoinPlan,
    UnionPlan,
    ViewPlan,
    join_plans,
    scan_plans,
    view_plans,
)
from watersmeet.spark.exchange.examples import KINDS
from watersmeet.spark.exchange.leaving import NUMBERS, REPORT_DDL, SPREADS
from watersmeet.spark.exchange.packing import INSIDE, REPORT
from watersmeet.spark.exchange.stateful import RowsTold
from watersmeet.type_names import is_moment

_TOLD = "told"
"""The column in which numbers stand while Spark adds them up."""


@dataclass(frozen=True)
class Reports:
    """The records that hold the numbers of a join: those of a ``kind``, and of it those of one ``place``.

    ``alone``: no other numbers are among the records.
    """

    kind: int = REPORT
    place: int | None = None
    alone: bool = True

    @property
    def told(self) -> Column:
        """The numbers of these records, NULL in others."""
        found = F.from_json("report", REPORT_DDL)
        return (found if self.alone else F.when(self.mine, found)).alias(_TOLD)

    @property
    def mine(self) -> Column:
        """Whether a record is one of them."""
        is_kind = F.col("kind") == self.kind
        return is_kind if self.place is None else is_kind & (F.col("port") == self.place)


REPORTS = Reports()
"""Those of an operator in which one join runs."""


def reports(place: int, joins: int) -> Reports:
    """Those of the join at a place among several that run in one operator: the last is the one that others hear of."""
    return Reports(alone=False) if place == joins - 1 else Reports(INSIDE, place, alone=False)


def observed(
    records: DataFrame, plan: JoinPlan, name: str, rows: RowsTold = "none", of: Reports = REPORTS
) -> DataFrame:
    """The records with the numbers of a join put together per batch; ``name`` is what people call it.

    ``rows``: whether some rows are told of too, those of any one shard.
    """
    told = records.select("*", of.told)
    numbers = [F.sum(_told(number)).alias(number) for number in ("matched", "written", "emitted", "seconds")]
    for number in NUMBERS:
        for port, side in enumerate(port_names(len(plan.ports))):
            fold = F.max if number == "partitions" and not plan.operator.is_partitioned(port) else F.sum
            numbers.append(fold(F.get(_told(number), F.lit(port))).alias(f"{number}_{side}"))
    numbers.append(F.count(F.when(of.mine, 1)).alias("shards"))
    kept = reduce(add, (F.get(_told("state"), F.lit(port)) for port in range(len(plan.ports))))
    numbers.append(F.max(kept).alias("fullest"))
    numbers.append(F.max(F.lit(plan.operator.name)).alias("operator"))
    # What adds arrays up is not in every Spark; without it these two are not told.
    if hasattr(F, "vector_sum"):
        numbers += [F.vector_sum(_told(number)).alias(number) for number in SPREADS]
    if rows == "some":
        numbers += [F.max(F.get_json_object(_told("examples"), f"$.{k}")).alias(f"{EXAMPLES}{k}") for k in KINDS]
    times = dict.fromkeys(time for port in plan.ports for time in port.times)
    marks = [*lowest_marks(times, "watermarks", MARK), *lowest_marks(times, "received", OWN)]
    return told.observe(f"{JOIN}{name}", *numbers, *marks).select(*records.columns)


def lowest_marks(times: Iterable[str], marks: str, prefix: str) -> list[Column]:
    """Per watermarked column, the mark of the shard that is furthest behind."""
    return [F.min(F.try_element_at(_told(marks), F.lit(time))).alias(f"{prefix}{time}") for time in times]


def _told(name: str) -> Column:
    """A number of a report."""
    return F.col(f"{_TOLD}.{name}")


def reading_of(plan: QueryPlan, name_of: Callable[[JoinPlan], str], frames: Mapping[str, DataFrame]) -> Reading:
    """What the numbers of a query stand for, whose joins are observed under these names.

    A DataFrame that has several names is one source, under the first of them.
    """
    first = {name: next(n for n, other in frames.items() if other is frame) for name, frame in frames.items()}
    feeds = {
        f"{JOIN}{name_of(join)}": {
            side: first.get(source, source)
            for side, port in zip(port_names(len(join.ports)), join.ports, strict=True)
            if (source := _source(port.input)) is not None
        }
        for join in join_plans(plan.relation)
    }
    # Innermost first.
    return Reading(temporal_of(plan), feeds, frozenset([*feeds][-1:]))


def temporal_of(plan: QueryPlan) -> frozenset[str]:
    """The watermarked columns of a query that hold timestamps or dates."""
    found = {
        f"{scan.alias}.{mark.column}"
        for scan in scan_plans(plan.relation)
        for mark in scan.source.watermarks
        if (field := scan.source.field(mark.column)) is not None and is_moment(field.type)
    }
    for view in view_plans(plan.relation):
        found |= {outer for inner, outer in view.marks if inner in found}
    return frozenset(found)


def _source(plan: RelationPlan) -> str | None:
    """The source whose rows a relation brings; None if they are those of a join, which has counted them."""
    match plan:
        case ScanPlan():
            return "+".join(part.name for part in plan.parts) or plan.source.name
        case ViewPlan() | LateralPlan():
            return _source(plan.input)
        case StaticJoinPlan():
            return _source(plan.stream)
        case UnionPlan():
            names = [_source(one) for one in plan.inputs]
            return None if None in names else "+".join(name for name in names if name is not None)
        case JoinPlan():
            return None


def cores(spark: SparkSession) -> int | None:
    """How many tasks Spark can run at the same time now; a remote server does not tell."""
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkException:
        return None


def page_of_spark(spark: SparkSession) -> str:
    """The address of Spark's own page; a remote server does not tell, and it may be switched off."""
    try:
        return spark.sparkContext.uiWebUrl or ""
    except PySparkException:
        return ""
