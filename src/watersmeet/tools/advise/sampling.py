"""Rows of a source in the order in which they arrived, to be looked at without Spark.

Files arrive in the order in which Spark takes them, by the time of their last change; rows within a file, and records
within a partition of a topic, in their order. Rows of other sources have the order of delivery.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.catalog import Source
from watersmeet.errors import refuse
from watersmeet.locations import location_of
from watersmeet.logical.nodes import Script
from watersmeet.schema import parse_type_name, quote
from watersmeet.spark.connectors.malformed import readable_rows
from watersmeet.spark.connectors.reading import read_source
from watersmeet.spark.exchange.packing import PARTITION
from watersmeet.spark.private.introspection import suppress_logs
from watersmeet.tools.advise.arrivals import Ints, SampledRows

_CHANGED, _FILE, _START, _PLACE = "#changed", "#file", "#start", "#place"
_FROM_THE_BEGINNING = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
"""Options of where a stream begins; a sample reads from the beginning."""


def sample_source(spark: SparkSession, script: Script, source: Source, limit: int) -> SampledRows:
    """The first rows of a declared source, without malformed ones."""
    options = {name: value for name, value in source.options.items() if name.lower() not in _FROM_THE_BEGINNING}
    return sample_frame(read_source(spark, script, replace(source, options=options), "all now"), source, limit)


def sample_frame(frame: DataFrame, source: Source, limit: int) -> SampledRows:
    """The first rows of a DataFrame; of a stream, the rows that exist now."""
    has_partitions = PARTITION in frame.columns
    by_file = None if has_partitions else _by_file(frame)
    rows_in_order = by_file if by_file is not None else frame
    if not frame.isStreaming:
        rows_in_order = rows_in_order.withColumn(_PLACE, F.monotonically_increasing_id())
    rows_in_order = readable_rows(rows_in_order)
    own = [name for name in frame.columns if name in rows_in_order.columns and _is_plain(rows_in_order, name)]
    further = [name for name in (PARTITION, _CHANGED, _FILE, _START, _PLACE) if name in rows_in_order.columns]
    chosen = rows_in_order.select(*(F.col(quote(name)) for name in dict.fromkeys([*own, *further])))
    order = [quote(name) for name in further]
    rows = _drain_stream(chosen, limit + 1, source.name) if frame.isStreaming else _first(chosen, order, limit + 1)
    is_all = rows.num_rows <= limit
    if frame.isStreaming and by_file is not None:
        rows = rows.sort_by([(name, "ascending") for name in further])
    rows = rows.slice(0, limit)
    shown = rows.select([name for name in own if name not in further])
    said = "the order of their files" if by_file is not None else "the order of delivery"
    said = "the order of their partitions, each by itself" if has_partitions else said
    return SampledRows(source, shown, said, _partition_numbers(rows) if has_partitions else None, is_all)


def _by_file(frame: DataFrame) -> DataFrame | None:
    """The frame with the file that each row is of; None: it does not come from files as they are."""

    def metadata(name: str) -> Column:
        return frame.metadataColumn("_metadata").getField(name)

    columns = {_CHANGED: "file_modification_time", _FILE: "file_path", _START: "file_block_start"}
    try:
        with suppress_logs():
            with_files = frame.select("*", *(metadata(name).alias(ours) for ours, name in columns.items()))
            _ = with_files.schema
    except PySparkException:
        return None
    return with_files


def _first(frame: DataFrame, order: list[str], limit: int) -> pa.Table:
    return frame.orderBy(*order).limit(limit).toArrow()


def _drain_stream(frame: DataFrame, limit: int, name: str) -> pa.Table:
    """The current rows of a stream, through a query that ends by itself."""
    spark = frame.sparkSession
    view = f"watersmeet_{uuid4().hex}"
    with tempfile.TemporaryDirectory(prefix="watersmeet-sample-", ignore_cleanup_errors=True) as checkpoint:
        writer = frame.limit(limit).writeStream.format("memory").queryName(view).outputMode("append")
        try:
            query = writer.option("checkpointLocation", location_of(checkpoint)).trigger(availableNow=True).start()
            query.awaitTermination()
            return spark.table(view).toArrow()
        except PySparkException as error:
            raise _unread(name, error) from error
        finally:
            spark.catalog.dropTempView(view)


def _unread(name: str, error: PySparkException) -> Exception:
    reason = f"the stream could not be read ({(error.getMessage() or str(error)).splitlines()[0][:200]})"
    hint = f"pass a batch of its rows: `{name}=spark.read...`."
    return refuse("WRONG_ARGUMENT", argument=name, value="a stream", reason=reason, hint=hint)


def _is_plain(frame: DataFrame, name: str) -> bool:
    """Whether the values of a column can be looked at: not those inside others."""
    type_ = parse_type_name(frame.schema[name].dataType.simpleString())
    return type_ is not None and bool(type_.arrow) and type_.values != "void"


def _partition_numbers(rows: pa.Table) -> Ints:
    """The number of each row's partition."""
    encoded = rows.column(PARTITION).combine_chunks().dictionary_encode()
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64)
