"""Several outputs of one query: every batch is split, and its parts are written to their sinks.

Spark gives one sink to a query. A query that sends late rows to a sink of their own is therefore written by batch.
A batch that is repeated after a failure must not appear twice: its files go to a folder of its own, ``_batch=7``,
which a repetition replaces. Other sinks get a repeated batch again, unless they know batches themselves.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.catalog import Sink
from watersmeet.spark.exchange import LATE_SHOWN

PATH = "path"
BATCH = "_batch"


def split_by_lateness(rows: Sink, late: Sink) -> Callable[[DataFrame, int], None]:
    """What writes a batch: its rows to one sink and its late rows to another."""

    def write(batch: DataFrame, number: int) -> None:
        kept = batch.persist()
        try:
            _write(kept.where(F.col(LATE_SHOWN).isNull()).drop(LATE_SHOWN), rows, number)
            _write(kept.where(F.col(LATE_SHOWN).isNotNull()).select(f"{LATE_SHOWN}.*"), late, number)
        finally:
            kept.unpersist()

    return write


def _write(frame: DataFrame, sink: Sink, number: int) -> None:
    options = {key: value for key, value in sink.options.items() if key.lower() != PATH}
    path = next((value for key, value in sink.options.items() if key.lower() == PATH), None)
    writer = frame.write.format(sink.format).options(**options)
    if path is None:
        writer.mode("append").save()
    else:
        writer.mode("overwrite").save(f"{path.rstrip('/')}/{BATCH}={number}")
