"""Iceberg as a sink of tables: rows are merged by key.

The snapshot of a batch says in its summary which batch it is, so that a batch that is repeated is found there.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.formats.sink import PATH
from watersmeet.spark.sinks.lake_commits import (
    Commit,
    LakeMerger,
    commits_of,
    session_settings,
    table_has_rows,
    writer_of,
)
from watersmeet.spark.sinks.merge import merge_into
from watersmeet.spark.sinks.outputs import Write
from watersmeet.spark.sinks.positions import Position
from watersmeet.spark.sinks.table_sinks import SinkTarget, run_of

_PROPERTY = "watersmeet"
_STREAMED = "spark.sql.streaming."
"""How the properties of Iceberg's own streaming sink begin."""


def iceberg_merger(target: SinkTarget, table: str) -> Write:
    """What merges batches into a table that a catalog knows; the first one makes it if it is not there."""

    def make(empty: DataFrame) -> None:
        if not empty.sparkSession.catalog.tableExists(table):
            empty.writeTo(table).using("iceberg").create()

    def merge(batch: DataFrame, number: int, text: str, is_strict: bool) -> None:
        with session_settings(batch.sparkSession, {f"spark.sql.iceberg.snapshot-property.{_PROPERTY}": text}):
            merge_into(table, target, batch, make, is_strict=is_strict)

    def has_rows(spark: SparkSession) -> bool:
        return table_has_rows(lambda: spark.table(table))

    return LakeMerger(target, lambda spark: iceberg_commit(target, spark), has_rows, merge).write


def iceberg_commit(target: SinkTarget, spark: SparkSession) -> Commit | None:
    """The last batch of this run that the table has, by our merges or by Iceberg's own streaming sink."""
    name = target.options[PATH]

    def snapshots() -> DataFrame:
        if "/" not in name:
            # A session keeps what it knows of a table for a while.
            spark.sql(f"REFRESH TABLE {name}")
        frame = spark.read.format("iceberg").load(f"{name}#snapshots" if "/" in name else f"{name}.snapshots")
        return frame.orderBy(F.col("committed_at").desc())

    for row in commits_of(snapshots):
        commit = Commit.from_text(row.summary.get(_PROPERTY), writer_of(target))
        if commit is not None:
            return commit
        if row.summary.get(f"{_STREAMED}queryId") == run_of(target.checkpoint):
            return Commit(Position(int(row.summary[f"{_STREAMED}epochId"])))
    return None
