"""What tests of Delta and Iceberg share: which of them there is for this Spark, and how their tables are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from watersmeet.formats.packages import connector_of
from watersmeet.queries import read_script
from watersmeet.spark.private import spark_version
from watersmeet.spark.run.running import Trigger, run_script

FORMATS = [name for name in ("delta", "iceberg") if connector_of(name, spark_version()) is not None]


def run(spark: SparkSession, text: str, folder: Path, trigger: Trigger = "available_now") -> None:
    run_script(read_script(text), spark=spark, storage=folder / "storage", trigger=trigger)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def catalog(lakes: SparkSession, name: str, folder: Path) -> None:
    """Let the session know a catalog of Iceberg."""
    lakes.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
    lakes.conf.set(f"spark.sql.catalog.{name}.type", "hadoop")
    lakes.conf.set(f"spark.sql.catalog.{name}.warehouse", str(folder / name))
