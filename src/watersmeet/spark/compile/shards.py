"""Into how many shards a query is split, and a warning where they are far more than what runs at once."""

from __future__ import annotations

import warnings

from pyspark.sql import SparkSession

from watersmeet.plan.nodes import Script

PARTITIONS = "spark.sql.shuffle.partitions"
MANY = 8
"""So many shards for each task that runs at once are too many."""


def shards_of(script: Script, spark: SparkSession, shards: int | None) -> int:
    """Into how many shards a script is split: as it says itself, else so many, else as Spark shuffles."""
    settings = {setting.name.lower(): setting.value for setting in script.settings}
    said = settings.get("watersmeet.shards", shards)
    if said is not None:
        return int(str(said))
    found = int(str(spark.conf.get(PARTITIONS)))
    at_once = getattr(getattr(spark, "sparkContext", None), "defaultParallelism", found)
    if found > MANY * at_once:
        warnings.warn(too_many(found, at_once), stacklevel=2)
    return found


def too_many(shards: int, at_once: int) -> str:
    """What is to be said of so many shards.

    >>> too_many(200, 2).rpartition(": ")[2]
    'spark.conf.set("spark.sql.shuffle.partitions", 4)'
    """
    return (
        f"every join of this session is split into {shards} shards, as many as {PARTITIONS} says, while {at_once} "
        "tasks run at once. A batch costs some time for each of them: it may take ten times as long as it needs. "
        f'Before the query first starts: spark.conf.set("{PARTITIONS}", {2 * at_once})'
    )
