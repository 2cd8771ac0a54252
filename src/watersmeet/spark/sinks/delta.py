"""Delta as a sink: rows are added, or merged by key; a batch that is repeated is found there and changes nothing.

Delta keeps the number of the latest batch of whoever writes, in the same commit as its rows.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.errors import Refusal
from watersmeet.formats.sink import PATH
from watersmeet.joins.core.changes import WEIGHT
from watersmeet.plan.expressions import quote
from watersmeet.spark.exchange.consolidate import columns_of, consolidated
from watersmeet.spark.sinks.outputs import BATCH, Write
from watersmeet.spark.sinks.table_sinks import Target, logged, run_of

_WRITER = "spark.databricks.delta.write.txnAppId"
_NUMBER = "spark.databricks.delta.write.txnVersion"
_CHANGES, _GOES = "watersmeet_changes", "#goes"


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
    rows = consolidated(batch)
    names = columns_of(rows)
    comes = F.sum(F.when(F.col(quote(WEIGHT)) > 0, F.col(quote(WEIGHT))).otherwise(0))
    latest = F.first(F.when(F.col(quote(WEIGHT)) > 0, F.struct(*(F.col(quote(n)) for n in names))), ignorenulls=True)
    by_key = rows.groupBy(*(F.col(quote(name)) for name in target.key)).agg(comes.alias("#n"), latest.alias("#row"))
    text = Refusal("KEY_NOT_UNIQUE", {"key": ", ".join(target.key), "target": target.sink.name}).travelling()
    goes = F.when(F.col(quote("#n")) > 1, F.raise_error(F.lit(text)).cast("boolean")).otherwise(F.col(quote("#n")) == 0)
    others = [name for name in names if name not in target.key]
    shown = [F.col(f"{quote('#row')}.{quote(name)}").alias(name) for name in others]
    merged = by_key.select(*(F.col(quote(name)) for name in target.key), *shown, goes.alias(_GOES)).persist()
    try:
        spark, path = batch.sparkSession, target.sink.said[PATH]
        empty = spark.createDataFrame([], merged.drop(_GOES).schema)
        # Of another writer, or the batch would count as written.
        empty.write.format("delta").option("txnAppId", "watersmeet").option("txnVersion", "0").mode("ignore").save(path)
        merged.createOrReplaceTempView(_CHANGES)
        on = " AND ".join(f"t.{quote(name)} <=> s.{quote(name)}" for name in target.key)
        set_ = ", ".join(f"t.{quote(name)} = s.{quote(name)}" for name in names)
        listed, values = ", ".join(map(quote, names)), ", ".join(f"s.{quote(name)}" for name in names)
        spark.sql(
            f"MERGE INTO delta.{quote(path)} t USING {_CHANGES} s ON {on} "
            f"WHEN MATCHED AND s.{quote(_GOES)} THEN DELETE WHEN MATCHED THEN UPDATE SET {set_} "
            f"WHEN NOT MATCHED AND NOT s.{quote(_GOES)} THEN INSERT ({listed}) VALUES ({values})"
        )
    finally:
        merged.unpersist()
