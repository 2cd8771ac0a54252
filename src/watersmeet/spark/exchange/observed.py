"""What Spark adds up of an operator's records in every batch, for the progress of the query."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.observe.progress import JOIN, port_names
from watersmeet.physical import JoinPlan
from watersmeet.spark.exchange.packing import REPORT
from watersmeet.spark.exchange.stateful import NUMBERS


def observed(records: DataFrame, plan: JoinPlan, name: str) -> DataFrame:
    """The records with their numbers put together per batch; ``name`` is what people call the operator."""
    numbers = [F.sum(number).alias(number) for number in ("matched", "written", "emitted", "seconds")]
    for number in NUMBERS:
        for port, side in enumerate(port_names(len(plan.ports))):
            fold = F.max if number == "partitions" and not plan.operator.is_partitioned(port) else F.sum
            numbers.append(fold(F.get(number, F.lit(port))).alias(f"{number}_{side}"))
    numbers.append(F.count(F.when(F.col("kind") == REPORT, 1)).alias("shards"))
    numbers.append(F.max(F.lit(plan.operator.name)).alias("operator"))
    return records.observe(f"{JOIN}{name}", *numbers, F.min("watermarks").alias("watermarks"))


def cores(spark: SparkSession) -> int | None:
    """How many tasks Spark can run at the same time now; a remote server does not tell."""
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkException:
        return None
