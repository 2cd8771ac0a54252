"""Streams with a history: files or a table up to a point, and from there on the stream itself, read as one.

A query reads the history first, to its end, and then the stream. Which of the two a row comes from is decided by the
row alone: by its event time, or by its offset. So it does not matter what the files and the topic have in common, nor
where the topic is first read. Spark has two sources for such a stream, always the same ones in the same order; the one
whose turn it is not has no rows.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, is_remote
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructType

from watersmeet.catalog import OFFSETS, Amount, Source, StreamHistory
from watersmeet.duration import format_duration
from watersmeet.errors import Refusal, refuse
from watersmeet.formats import history_source, live_source, source_format, start_offsets
from watersmeet.formats.files import Parquet
from watersmeet.formats.kafka import Topics
from watersmeet.formats.lakes import DeltaSource, IcebergSource
from watersmeet.locations import Storage, write_whole
from watersmeet.schema import quote
from watersmeet.spark.connectors.malformed import PLACE, REASON, VALUE, place_of
from watersmeet.spark.exchange.columns import FILE
from watersmeet.spark.exchange.packing import PARTITION
from watersmeet.spark.private.introspection import PartitionOffsets, topic_offsets
from watersmeet.spark.refusals import first_line, kafka_failure

Phase = Literal["history", "live"]
"""``history``: what is before the stream is read. ``live``: it has been read to its end, and the stream is."""

MARKER = "history"
"""The file of a checkpoint that says that its history has been read to its end."""
_NOTHING = "{watersmeet-has-read-it}"
"""A pattern that no file matches."""
_NO_FILES = f"file:///{_NOTHING}"


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


def is_seam_ahead(checkpoint: Storage) -> bool:
    """Whether the query of a checkpoint has not planned a batch of the streams themselves yet."""
    if phase_of(checkpoint) == "history":
        return True
    ended = int(json.loads((checkpoint / MARKER).read_text("utf-8"))["ended_after_batch"])
    return all(int(path.name) <= ended for path in (checkpoint / "offsets").glob("*") if path.name.isdecimal())


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
    if phase == "live" and not is_lake(archive):
        archive = replace(archive, options={"path": f"{_path(archive).rstrip('/')}/{_NOTHING}"})
    before, after = read(archive), read(live)
    before = rows_before(source, before, archive, after.schema)
    after = _no_rows(after) if phase == "history" else rows_after(source, after)
    return before.unionByName(after, allowMissingColumns=True)


def is_lake(source: Source) -> bool:
    """Whether a source is a table of a lake, whose positions are versions instead of files."""
    return isinstance(source_format(source), DeltaSource | IcebergSource)


def path_of_history(path: str) -> str:
    """The path of a history of files, also where Spark has one that no file matches.

    >>> path_of_history(f"file:///archive/{_NOTHING}"), path_of_history("/live")
    ('file:///archive', '/live')
    """
    return path if path == _NO_FILES else path.removesuffix(f"/{_NOTHING}")


def rows_before(source: Source, frame: DataFrame, archive: Source, live: StructType) -> DataFrame:
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


def rows_after(source: Source, frame: DataFrame) -> DataFrame:
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
    files = frame.sparkSession.readStream.format("text").load(_NO_FILES)
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


ACCEPT = "failOnDataLoss"
"""Spark's option of a topic: ``false`` lets a query go on without records that are gone."""
_FIRST = 100
"""The records of a partition in which the first event time is looked for."""
_STREAMING = ("starting", "ending", "maxoffsets", "minoffsets", "maxtrigger", "subscribe", "assign", "minpartitions")
"""The beginnings of options of which records are read, in small letters."""


def find_gaps(spark: SparkSession, sources: Iterable[Source], *, is_new: bool) -> Iterator[Refusal]:
    """The refusals of topics that may have lost records which are not of the history, as far as Kafka tells.

    Offsets tell exactly. By times, a partition whose first records are gone has all rows from the seam on if its first
    row is before the seam, and so far before it that an earlier record cannot be behind it: by more than the lag.
    ``is_new``: the queries have no checkpoint, so that the seam may still change.
    """
    for source in sources:
        history, live = source.history, live_source(source)
        options = live.lowercase_options
        if history is None or is_remote() or not source_format(live).has_partitions:
            continue
        if options.get(ACCEPT.lower(), "true").lower() == "false":
            continue
        offsets = topic_offsets(spark, options)
        if offsets is None:
            # Where the broker answers others, as with logins that only Spark has, nothing is known.
            silence = Topics(live).silence()
            yield from () if silence is None else (silence,)
            continue
        if history.until.lower() == OFFSETS:
            gap = _gap_by_offset(source, offsets)
        else:
            gap = _gap_by_time(spark, live, history.until, offsets)
        if gap is None:
            continue
        accept = f"if no row is missing, add `{ACCEPT} 'false'` to the OPTIONS of USING {source.format}."
        begin = gap.begin if is_new else "start again with a new storage folder and a new sink"
        parameters = {"source": source.name, "until": gap.until, "partitions": "; ".join(gap.partitions)}
        yield Refusal("HISTORY_GAP", {**parameters, "hint": f"{begin}; or, {accept}"})


@dataclass(frozen=True)
class _Gap:
    """The partitions that may have lost records, in words, from where on, and how to begin otherwise."""

    partitions: tuple[str, ...]
    until: str
    begin: str


def _gap_by_offset(source: Source, offsets: Mapping[tuple[str, int], PartitionOffsets]) -> _Gap | None:
    seam = start_offsets(source) or {}
    seams = {key: seam.get(str(key[1]), 0) for key in offsets}
    gone = [(key, each) for key, each in sorted(offsets.items()) if each.begin > seams[key]]
    if not gone:
        return None
    said = (f"{_partition(*key)} begins at offset {each.begin:,}, not {seams[key]:,}" for key, each in gone)
    there: dict[str, dict[str, int]] = defaultdict(dict)
    for (topic, number), each in sorted(offsets.items()):
        there[topic][str(number)] = max(each.begin, seams[topic, number])
    begin = f"if the files have what is gone, write `startingOffsets '{json.dumps(there)}'`"
    return _Gap(tuple(said), "the starting offsets", begin)


def _gap_by_time(
    spark: SparkSession, live: Source, until: str, offsets: Mapping[tuple[str, int], PartitionOffsets]
) -> _Gap | None:
    # Nothing is gone of a partition that begins with its first record.
    started = {key: each for key, each in offsets.items() if each.start > 0}
    emptied = [key for key, each in started.items() if each.begin == each.end]
    doubtful = {key: each for key, each in started.items() if each.start < each.end}
    said = [f"{_partition(*key)} has lost all of its {offsets[key].end:,} records" for key in sorted(emptied)]
    later = ""
    if doubtful:
        lag = live.watermarks[0].lag
        order = "" if not lag.value else f", with rows up to {_amount(lag)} out of order"
        first_rows = {row[PARTITION]: row for row in _first_rows(spark, live, until, doubtful)}
        for (topic, number), each in sorted(doubtful.items()):
            first = first_rows.pop(f"{topic}-{number}", None)
            where = f"{_partition(topic, number)} begins at offset {each.start:,}"
            if first is None:
                said.append(f"{where}, and none of the next {_FIRST} records has an event time")
            elif not first["is_before"]:
                said.append(f"{where}, with a row of {first['time']}{order}")
                later = max(later, str(first["after"]), key=lambda text: (len(text.partition(".")[0]), text))
    begin = f"write an `until` after {later} that the files reach" if later else "choose a later `until`"
    return _Gap(tuple(said), until, begin) if said else None


def _partition(topic: str, number: int) -> str:
    return f"partition {number} of {topic}"


def _amount(lag: Amount) -> str:
    return format_duration(lag.value) if lag.is_interval else str(lag.value)


def _first_rows(
    spark: SparkSession, live: Source, until: str, partitions: Mapping[tuple[str, int], PartitionOffsets]
) -> list[Any]:
    """The first row with an event time of each partition: its time, and the latest time of a record before it."""
    from watersmeet.spark.connectors.reading import read_now

    starts: dict[str, dict[str, int]] = defaultdict(dict)
    ends: dict[str, dict[str, int]] = defaultdict(dict)
    for (topic, number), each in partitions.items():
        starts[topic][str(number)] = each.start
        ends[topic][str(number)] = min(each.start + _FIRST, each.end)
    assigned = {topic: [int(number) for number in numbers] for topic, numbers in starts.items()}
    options = {name: value for name, value in live.options.items() if not name.lower().startswith(_STREAMING)}
    chosen = {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        ACCEPT: "false",
    }
    watermark = live.watermarks[0]
    field = live.field(watermark.column)
    assert field is not None, "it was checked"
    time, lag = F.col(quote(field.name)), watermark.lag
    after = time + (F.expr(f"INTERVAL '{lag.value / 1_000_000:f}' SECOND") if lag.is_interval else F.lit(lag.value))
    is_before = (after < F.lit(until).cast(field.type)).alias("is_before")
    first = F.struct(time.cast("string").alias("time"), after.cast("string").alias("after"), is_before)
    frame = read_now(spark, replace(live, options={**options, **chosen})).where(time.isNotNull())
    frame = frame.select(PARTITION, first.alias("first"), F.monotonically_increasing_id().alias("order"))
    first_rows = frame.groupBy(PARTITION).agg(F.min_by("first", "order").alias("first"))
    try:
        return first_rows.select(PARTITION, "first.*").collect()
    except PySparkException as error:
        hint = "correct the cause and run again."
        raise (
            kafka_failure(str(error), [live]) or refuse("QUERY_FAILED", reason=first_line(error), hint=hint)
        ) from error
