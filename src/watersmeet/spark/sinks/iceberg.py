"""Iceberg as a sink of tables: rows are merged by key.

A batch says what each of its keys has now. Spark repeats the latest one at most, and to say the same once more changes
nothing, so that nobody needs to know whether it was written.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from watersmeet.spark.sinks.merge import merge_into
from watersmeet.spark.sinks.outputs import Write
from watersmeet.spark.sinks.table_sinks import Target


def iceberg_merger(target: Target, table: str) -> Write:
    """What merges batches into a table that a catalog knows; the first one makes it if it is not there."""

    def make(empty: DataFrame) -> None:
        if not empty.sparkSession.catalog.tableExists(table):
            empty.writeTo(table).using("iceberg").create()

    return lambda batch, number: merge_into(table, target, batch, make)
