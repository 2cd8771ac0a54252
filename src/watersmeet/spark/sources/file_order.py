"""The order in which the rows of files arrive.

Files arrive in the order in which Spark takes them, by the time of their last change, those of equal time by path, and
rows as they stand in their file. Spark reads the files of a batch in another order: it packs them into tasks by size,
and splits large ones. So where the order of arrival matters, rows carry the file that they are of.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.catalog import Source
from watersmeet.spark.exchange.columns import FILE
from watersmeet.spark.exchange.file_runs import PATH, START, TIME
from watersmeet.spark.private.told import suppress_logs
from watersmeet.spark.sources.malformed import decode_path

FILE_DDL = f"STRUCT<{TIME}: BIGINT, {PATH}: STRING, {START}: BIGINT>"


def with_files(frame: DataFrame, source: Source) -> DataFrame:
    """A stream with the file of each row in `FILE`; as it is, if its rows do not come straight from files.

    A batch keeps the order that it has, which may be one that was asked for.
    """
    if not frame.isStreaming:
        return frame
    try:
        with suppress_logs():
            files = frame.withColumn(FILE, file_of_row(frame, source.lowercase_options))
            # Spark looks for the columns only now, if it runs elsewhere.
            _ = files.schema
    except PySparkException:
        return frame
    return files


def order_of_files(frame: DataFrame, source: Source) -> list[Column]:
    """By what rows of a batch come in the order in which a stream of the same files has them; none: they are of none.

    Rows that are equal in it are in order as they are read.
    """
    try:
        with suppress_logs():
            file = file_of_row(frame, source.lowercase_options)
            _ = frame.select(file).schema
    except PySparkException:
        return []
    return [file.getField(TIME), decode_path(file.getField(PATH)), file.getField(START)]


def file_of_row(frame: DataFrame, options: Mapping[str, str]) -> Column:
    """The file that a row of a frame is of, and where in it the part begins that a task reads."""
    metadata = frame.metadataColumn("_metadata")
    time = F.unix_micros(metadata.getField("file_modification_time"))
    is_latest_first = options.get("latestfirst", "false").lower() == "true"
    return F.struct(
        (-time if is_latest_first else time).alias(TIME),
        metadata.getField("file_path").alias(PATH),
        metadata.getField("file_block_start").alias(START),
    )
