"""Streams with a history: files or a table up to a point, and from there on the stream itself, read as one.

A query reads the history first, to its end, and then the stream. Which of the two a row comes from is decided by the
row alone: by its event time, or by its offset. So it does not matter what the files and the topic have in common, nor
where the topic is first read. Spark has two sources for such a stream, always the same ones in the same order; the one
whose turn it is not has no rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import reduce
from typing import Any, Literal

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructType

from watersmeet.catalog import OFFSETS, Source, StreamHistory
from watersmeet.errors import refuse
from watersmeet.formats import history_source, live_source, source_format, start_offsets
from watersmeet.formats.files import Parquet
from watersmeet.formats.lakes import DeltaSource, IcebergSource
from watersmeet.locations import Storage, write_whole
from watersmeet.schema import quote
from watersmeet.spark.connectors.malformed import PLACE, REASON, VALUE, place_of
from watersmeet.spark.exchange.columns import FILE

Phase = Literal["history", "live"]
"""``history``: what is before the stream is read. ``live``: it has been read to its end, and the stream is."""

MARKER = "history"
"""The file of a checkpoint that says that its history has been read to its end."""
_NOTHING = "{watersmeet-has-read-it}"
"""A pattern that no file matches."""


def phase_of(checkpoint: Storage) -> Phase:
    """The part of streams with a history that the query of a checkpoint reads."""
    return "live" if (checkpoint / MARKER).is_file() else "history"


def end_history(checkpoint: Storage, sources: Iterable[Source]) -> bool:
    """Write down that the history of these has been read to its end; False if a batch of it is not finished."""
    planned, done = (
        max((int(path.name) for path in (checkpoint / name).glob("*") if path.name.isdecimal()), default=-1)
        for name in ("offsets", "commits")
    )
    if planned != done:
        return False
    ended = {
        source.name.lower(): {"format": history.format, "until": history.until, "path": _path(history_source(source))}
        for source in sources
        if (history := source.history) is not None
    }
    write_whole(checkpoint / MARKER, json.dumps({"ended_after_batch": done, "sources": ended}) + "\n")
    return True


def find_ended_histories(checkpoint: Storage) -> dict[str, StreamHistory]:
    """The histories of files that the query of a checkpoint has read to their end, by source.

    A declaration needs them no more: what is left of them is the seam. A table of a lake is still one that Spark reads.
    """
    if phase_of(checkpoint) == "history":
        return {}
    record: dict[str, Any] = json.loads((checkpoint / MARKER).read_text("utf-8"))
    histories = {
        name: StreamHistory(ended["format"], {"path": ended["path"]}, ended["until"])
        for name, ended in record["sources"].items()
    }
    return {name: history for name, history in histories.items() if history.format.lower() not in ("delta", "iceberg")}


def _path(archive: Source) -> str:
    return archive.lowercase_options.get("path", "")


def read_history(source: Source, phase: Phase | None, read: Callable[[Source], DataFrame]) -> DataFrame:
    """The rows of a stream with a history in a phase; None: of both, as a batch.

    ``read`` reads a source that has no history.
    """
    archive, live = history_source(source), live_source(source)
    if phase == "live" and not isinstance(source_format(archive), DeltaSource | IcebergSource):
        archive = replace(archive, options={"path": f"{_path(archive).rstrip('/')}/{_NOTHING}"})
    before, after = read(archive), read(live)
    before = _before(source, before, archive, after.schema)
    after = _no_rows(after) if phase == "history" else _after(source, after)
    return before.unionByName(after, allowMissingColumns=True)


def _before(source: Source, frame: DataFrame, archive: Source, live: StructType) -> DataFrame:
    """The rows of a history before the seam, with the file of each; those that cannot be placed are malformed."""
    from watersmeet.spark.connectors.reading import with_files

    frame = with_files(frame, archive)
    columns, is_before = _seam(source)
    missing = [
        F.when(F.col(quote(column)).isNull(), F.lit(f"it is of the history, and `{column}` has no value"))
        for column in columns
    ]
    names = [name for name in frame.columns if name not in (FILE, REASON, PLACE, VALUE)]
    row, has_errors = F.to_json(F.struct(*map(quote, names))), REASON in frame.columns
    reason = F.coalesce(*([F.col(quote(REASON))] if has_errors else []), *missing)
    place = F.col(quote(PLACE)) if has_errors else place_of(file=F.input_file_name())
    text = F.coalesce(F.col(quote(VALUE)).cast("string"), row) if has_errors else row
    # Only malformed rows become text.
    value = F.when(reason.isNotNull(), text).cast(live[VALUE].dataType if VALUE in live.names else "string")
    carried = [quote(name) for name in (*names, *([FILE] if FILE in frame.columns else []))]
    frame = frame.select(*carried, reason.alias(REASON), place.alias(PLACE), value.alias(VALUE))
    return frame.where(F.col(quote(REASON)).isNotNull() | is_before)


def _after(source: Source, frame: DataFrame) -> DataFrame:
    """The rows of the stream from the seam on: at offsets they are those that are read; all that have no time."""
    (column, *others), is_before = _seam(source)
    return frame if others else frame.where(F.col(quote(column)).isNull() | ~is_before)


def _seam(source: Source) -> tuple[tuple[str, ...], Column]:
    """The columns that decide whether a row is of the history, and whether it is."""
    history = source.history
    assert history is not None
    if history.until.lower() != OFFSETS:
        field = source.field(source.watermarks[0].column)
        assert field is not None, "it was checked"
        return (field.name,), F.col(quote(field.name)) < F.lit(history.until).cast(field.type)
    offsets = start_offsets(source)
    assert offsets is not None, "it was checked"
    names = [field.name for name in ("_partition", "_offset") if (field := source.field(name)) is not None]
    partition, offset = (F.col(quote(name)) for name in names)
    # A partition that is not among them is younger, and all of it is in the topic.
    parts = (((partition == F.lit(int(number))) & (offset < F.lit(first))) for number, first in offsets.items())
    return tuple(names), reduce(lambda a, b: a | b, parts)


def _no_rows(frame: DataFrame) -> DataFrame:
    """A stream with the columns of another, and without rows: one of files that are not there."""
    files = frame.sparkSession.readStream.format("text").load(f"file:///{_NOTHING}")
    return files.select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema))


def check_columns(spark: SparkSession, source: Source) -> None:
    """Refuse files of a history that lack a declared column: Spark would read NULL."""
    archive = history_source(source)
    if not isinstance(source_format(archive), Parquet) and str(archive.format).lower() != "orc":
        return
    from watersmeet.spark.connectors.reading import load

    try:
        frame = load(spark, replace(archive, kind="table", options={"static": "true"}), None, archive.options)
    except PySparkException:
        # Without files there is nothing to compare.
        return
    names = {name.lower() for name in frame.columns}
    missing = [f"`{field.name}`" for field in source.fields if not field.hidden and field.name.lower() not in names]
    if missing:
        reason = f"its files have no column {' and no column '.join(missing)}"
        hint = "write the files with the columns of the stream, or leave the column out of the declaration."
        raise refuse(
            "WRONG_OPTION", format=f"AFTER {archive.format}", option=f"AFTER {archive.format}", reason=reason, hint=hint
        )
