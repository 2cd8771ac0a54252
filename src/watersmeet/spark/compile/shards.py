"""Into how many shards a query is split, over how many partitions Spark spreads them, and a warning where that is dear.

A partition is a task per batch, with a Python worker and a commit of its own, whether there are rows for it or not: so
there are as many as tasks run at once. A shard costs a call. Both numbers are fixed when a checkpoint is made.
"""

from __future__ import annotations

import warnings

from pyspark.sql import SparkSession

from watersmeet.logical.nodes import Script
from watersmeet.physical.nodes import SHARDS

PARTITIONS = "spark.sql.shuffle.partitions"
MAX_PARTITIONS_PER_TASK = 8
"""So many partitions for each task that runs at once are too many."""
ON_A_CLUSTER = 16
"""At least so many shards where executors may still come; more than that as soon as there are more."""


def shard_count(script: Script, spark: SparkSession, shards: int | None) -> int:
    """Into how many shards a script is split: as it says itself, else so many, else as many as Spark has partitions."""
    settings = {setting.name.lower(): setting.value for setting in script.settings}
    said = settings.get("watersmeet.shards", shards)
    if said is not None:
        return int(str(said))
    partitions, at_once = partition_setting(spark), parallel_tasks(spark)
    if partitions is not None and at_once is not None and partitions > MAX_PARTITIONS_PER_TASK * at_once:
        warnings.warn(too_many_partitions(partitions, at_once), stacklevel=2)
    return partitions or default_partitions(spark) or int(str(spark.conf.get(PARTITIONS)))


def partitions_of(spark: SparkSession, shards: int) -> int | None:
    """Over how many partitions a query with so many shards is spread when it first starts; None: as Spark does it."""
    own = None if partition_setting(spark) else default_partitions(spark)
    return None if own is None else min(own, shards)


def partition_setting(spark: SparkSession) -> int | None:
    """The number of partitions that was set; None: it was not set, and Spark would take 200."""
    setting = spark.conf.getAll.get(PARTITIONS)
    return None if setting is None else int(setting)


def default_partitions(spark: SparkSession) -> int | None:
    """The number of tasks that run at once, on a cluster some more; None if it is unknown, as with Spark Connect."""
    at_once = parallel_tasks(spark)
    if at_once is None:
        return None
    if str(spark.sparkContext.master).startswith("local"):
        return max(2, at_once)
    return max(ON_A_CLUSTER, 2 * at_once)


def parallel_tasks(spark: SparkSession) -> int | None:
    """The number of tasks that Spark runs at once; None if it is unknown, as with Spark Connect."""
    return getattr(getattr(spark, "sparkContext", None), "defaultParallelism", None)


def shard_notes(spark: SparkSession | None) -> tuple[str, ...]:
    """Describe the shards of a query in this session."""
    partitions, at_once = (None, None) if spark is None else (partition_setting(spark), parallel_tasks(spark))
    if partitions is None or at_once is None or partitions <= MAX_PARTITIONS_PER_TASK * at_once:
        return SHARDS
    dear = (
        f"{partitions}, as many as {PARTITIONS} says, while {at_once} tasks run at once: each costs time in every batch"
    )
    return dear, f'set fewer before the query first starts: spark.conf.set("{PARTITIONS}", {2 * at_once})', *SHARDS[1:]


def too_many_partitions(partitions: int, at_once: int) -> str:
    """Return the warning about the number of partitions.

    >>> too_many_partitions(200, 2).rpartition(": ")[2]
    'spark.conf.set("spark.sql.shuffle.partitions", 4)'
    """
    return (
        f"every join of this session is split into {partitions} shards, as many as {PARTITIONS} says, while {at_once} "
        "tasks run at once. A batch costs some time for each of them: it may take ten times as long as it needs. "
        f'Before the query first starts: spark.conf.set("{PARTITIONS}", {2 * at_once})'
    )
