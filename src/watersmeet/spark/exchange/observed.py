"""What Spark adds up of an operator's records in every batch, for the progress of the query."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.joins.asof.operator import AsofJoin
from watersmeet.joins.changelog.nested import NestedJoin
from watersmeet.joins.changelog.operator import ChangelogJoin
from watersmeet.joins.core.operator import JoinOperator
from watersmeet.joins.group.operator import GroupBy
from watersmeet.joins.interval.operator import IntervalJoin
from watersmeet.joins.latest.operator import Latest
from watersmeet.joins.lookup.operator import LookupJoin
from watersmeet.joins.sync.operator import SyncJoin
from watersmeet.joins.window.operator import WindowJoin
from watersmeet.observe.metrics import OperatorKind
from watersmeet.observe.progress import JOIN, port_names
from watersmeet.physical import JoinPlan
from watersmeet.spark.exchange.packing import REPORT
from watersmeet.spark.exchange.stateful import NUMBERS

KINDS: dict[type, OperatorKind] = {
    IntervalJoin: "interval",
    WindowJoin: "window",
    SyncJoin: "sync",
    AsofJoin: "as-of",
    LookupJoin: "lookup",
    ChangelogJoin: "merge",
    NestedJoin: "block-nested",
    GroupBy: "group",
    Latest: "latest",
}
"""What each operator is called in the metrics."""


def observed(records: DataFrame, plan: JoinPlan, name: str) -> DataFrame:
    """The records with their numbers put together per batch; ``name`` is what people call the operator."""
    numbers = [F.sum(number).alias(number) for number in ("matched", "written", "emitted", "seconds")]
    for number in NUMBERS:
        for port, side in enumerate(port_names(len(plan.ports))):
            fold = F.max if number == "partitions" and not is_partitioned(plan, port) else F.sum
            numbers.append(fold(F.get(number, F.lit(port))).alias(f"{number}_{side}"))
    numbers.append(F.count(F.when(F.col("kind") == REPORT, 1)).alias("shards"))
    numbers.append(F.max(F.lit(operator_kind(plan.operator))).alias("operator"))
    return records.observe(f"{JOIN}{name}", *numbers, F.min("watermarks").alias("watermarks"))


def operator_kind(operator: JoinOperator) -> OperatorKind:
    """What an operator is called in the metrics.

    >>> from watersmeet.joins.changelog.nested import NestedJoin
    >>> from watersmeet.joins.core.port import Port
    >>> operator_kind(NestedJoin("inner", Port(("a",)), Port(("b",))))
    'block-nested'
    """
    return KINDS.get(type(operator)) or getattr(operator, "name", "interval")


def is_partitioned(plan: JoinPlan, port: int) -> bool:
    """Whether the shards have partitions of their own; else all have a share in one."""
    return plan.operator.is_partitioned(port)


def cores(spark: SparkSession) -> int | None:
    """How many tasks Spark can run at the same time now; a remote server does not tell."""
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkException:
        return None
