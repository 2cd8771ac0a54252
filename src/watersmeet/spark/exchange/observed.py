"""What Spark adds up of an operator's records in every batch, for the progress of the query."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.observe.progress import JOIN, MARK, port_names
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
    times = dict.fromkeys(time for port in plan.ports for time in port.times)
    return records.observe(f"{JOIN}{name}", *numbers, *lowest_marks(times))


def lowest_marks(times: Iterable[str]) -> list[Column]:
    """Per watermarked column, the mark of the shard that is furthest behind."""
    marks = F.from_json("watermarks", "map<string,bigint>")
    return [F.min(F.try_element_at(marks, F.lit(time))).alias(f"{MARK}{time}") for time in times]


def cores(spark: SparkSession) -> int | None:
    """How many tasks Spark can run at the same time now; a remote server does not tell."""
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkException:
        return None
