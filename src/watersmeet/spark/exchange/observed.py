"""What Spark collects of an operator's records in every batch, for the progress of the query."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.observe.progress import JOIN_PREFIX, ProgressSchema, port_names
from watersmeet.observe.told import REPORTS
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
from watersmeet.spark.exchange.packing import METRICS
from watersmeet.type_names import is_moment


def observe_metrics(records: DataFrame, name: str) -> DataFrame:
    """The records of an operator, of which Spark collects what its joins tell of every batch.

    Texts, not numbers that Spark adds up: for each of these it would make and compile code in every task.
    """
    texts = F.collect_list(F.when(F.col("kind") == METRICS, F.col("report")))
    return records.observe(f"{JOIN_PREFIX}{name}", texts.alias(REPORTS))


def make_reading(
    plan: QueryPlan, name_of: Callable[[JoinPlan], str], frames: Mapping[str, DataFrame]
) -> ProgressSchema:
    """What the numbers of a query stand for, whose joins are observed under these names.

    A DataFrame that has several names is one source, under the first of them.
    """
    first = {name: next(n for n, other in frames.items() if other is frame) for name, frame in frames.items()}
    feeds = {
        f"{JOIN_PREFIX}{name_of(join)}": {
            side: first.get(source, source)
            for side, port in zip(port_names(len(join.ports)), join.ports, strict=True)
            if (source := _source(port.input)) is not None
        }
        for join in join_plans(plan.relation)
    }
    # Innermost first.
    return ProgressSchema(temporal_columns(plan), feeds, frozenset([*feeds][-1:]))


def temporal_columns(plan: QueryPlan) -> frozenset[str]:
    """The watermarked columns of a query that hold timestamps or dates."""
    columns = {
        f"{scan.alias}.{watermark.column}"
        for scan in scan_plans(plan.relation)
        for watermark in scan.source.watermarks
        if (field := scan.source.field(watermark.column)) is not None and is_moment(field.type)
    }
    for view in view_plans(plan.relation):
        columns |= {outer for inner, outer in view.watermarks if inner in columns}
    return frozenset(columns)


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


def core_count(spark: SparkSession) -> int | None:
    """How many tasks Spark can run at the same time now; a remote server does not tell."""
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkException:
        return None


def spark_ui_url(spark: SparkSession) -> str:
    """The address of Spark's own page; a remote server does not tell, and it may be switched off."""
    try:
        return spark.sparkContext.uiWebUrl or ""
    except PySparkException:
        return ""
