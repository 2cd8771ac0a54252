"""A batch as records of Kafka, and what tells a record of a batch from any other."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.spark.sinks.outputs import BATCH, Write, write_rows
from watersmeet.spark.sinks.table_sinks import SinkTarget, changelog_rows, encode_rows, upsert_records

HEADERS = BATCH_HEADER, POSITION_HEADER = "watersmeet.batch", "watersmeet.position"
"""The headers that say in which batch a record was written, and as which of its rows."""


def batch_records(target: SinkTarget, batch: DataFrame, number: int) -> DataFrame:
    """The records that a batch is."""
    if target.changes == "upsert":
        return upsert_records(target, batch)
    if target.changes == "log":
        return encode_rows(target, changelog_rows(batch).withColumn(BATCH, F.lit(number).cast("bigint")))
    return encode_rows(target, batch)


def record_writer(target: SinkTarget) -> Write:
    """What writes batches by Spark's own writer. A batch that is repeated comes again, with the same number."""

    def write(batch: DataFrame, number: int) -> None:
        write_rows(with_headers(batch_records(target, batch, number), number), target.plain, number)

    return write


def with_headers(records: DataFrame, number: int) -> DataFrame:
    """Records with their batch and position in headers, after those that they have."""
    own = F.array(_header(BATCH_HEADER, F.lit(number)), _header(POSITION_HEADER, F.monotonically_increasing_id()))
    header_columns = [name for name in records.columns if name.lower() == "headers"]
    headers = F.concat(F.coalesce(F.col(header_columns[0]), F.array()), own) if header_columns else own
    return records.drop(*header_columns).withColumn("headers", headers)


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
