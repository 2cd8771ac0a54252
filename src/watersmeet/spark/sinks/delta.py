"""Delta as a sink: rows are added, or merged by key; a batch that is repeated is found there and changes nothing.

Delta keeps the number of the latest batch of whoever writes, in the same commit as its rows.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.formats.sink import PATH
from watersmeet.plan.expressions import quote
from watersmeet.spark.sinks.merge import merge_into
from watersmeet.spark.sinks.outputs import BATCH, Write
from watersmeet.spark.sinks.table_sinks import Target, logged, run_of

_WRITER = "spark.databricks.delta.write.txnAppId"
_NUMBER = "spark.databricks.delta.write.txnVersion"


def delta_writer(target: Target) -> Write:
    """What writes batches to a table of Delta."""

    def write(batch: DataFrame, number: int) -> None:
        rows = batch.persist()
        try:
            # A batch that Delta has already would not be gone over.
            rows.count()
            with _numbered(batch.sparkSession, target, number):
                if target.changes == "upsert":
                    _merge(target, rows)
                elif target.changes == "log":
                    _add(target, logged(rows).withColumn(BATCH, F.lit(number).cast("bigint")))
                else:
                    _add(target, rows)
        finally:
            rows.unpersist()

    return write


@contextmanager
def _numbered(spark: SparkSession, target: Target, number: int) -> Generator[None]:
    """Let what is written meanwhile to Delta be the batch of that number, of this run of the query."""
    spark.conf.set(_WRITER, f"watersmeet {target.query} {run_of(target.checkpoint)}")
    spark.conf.set(_NUMBER, str(number))
    try:
        yield
    finally:
        spark.conf.unset(_WRITER)
        spark.conf.unset(_NUMBER)


def _add(target: Target, rows: DataFrame) -> None:
    rows.write.format("delta").options(**target.options).mode("append").save()


def _merge(target: Target, batch: DataFrame) -> None:
    """Put in, replace and delete the rows of keys; the table is made if it is not there."""
    path = target.sink.said[PATH]

    def make(empty: DataFrame) -> None:
        # Of another writer, or the batch would count as written.
        empty.write.format("delta").option("txnAppId", "watersmeet").option("txnVersion", "0").mode("ignore").save(path)

    merge_into(f"delta.{quote(path)}", target, batch, make)
