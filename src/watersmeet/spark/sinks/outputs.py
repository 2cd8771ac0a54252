"""Several outputs of one query: what is shown beside its rows goes with each batch to sinks of its own.

A batch that is repeated after a failure must not appear twice. Files see to that themselves, and where they cannot be
renamed from here, a batch has a folder of its own, ``_batch=7``, which a repetition replaces. Other sinks get it
again, unless they know batches themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.catalog import Sink
from watersmeet.formats.sink import PATH
from watersmeet.spark.exchange.rows import is_row
from watersmeet.spark.time_texts import text_options

BATCH = "_batch"

Write = Callable[[DataFrame, int], None]
"""What writes a batch, given its number. It must go over all rows: else the joins before it would not have run."""


def split_outputs(rows: Write, others: Mapping[str, Write]) -> Write:
    """What writes a batch: its rows to one sink, and what columns of structs show beside them each to its own."""

    def write(batch: DataFrame, number: int) -> None:
        cached = batch.persist()
        try:
            rows(cached.where(is_row(cached)).drop(*others), number)
            for column, write_output in others.items():
                write_output(cached.where(F.col(column).isNotNull()).select(f"{column}.*"), number)
        finally:
            cached.unpersist()

    return write


def write_rows(frame: DataFrame, sink: Sink, number: int) -> None:
    """Add the rows of a batch to a batch sink of Spark."""
    options = {name: value for name, value in sink.options.items() if name.lower() != PATH}
    path = sink.lowercase_options.get(PATH)
    writer = frame.write.format(sink.format).options(**text_options(sink.format, options))
    if path is None:
        writer.mode("append").save()
    else:
        writer.mode("overwrite").save(f"{path.rstrip('/')}/{BATCH}={number}")


def drain_batch(frame: DataFrame) -> None:
    """Let a batch run though nothing of it is written: the state of its joins is kept only if it does."""
    frame.write.format("noop").mode("overwrite").save()
