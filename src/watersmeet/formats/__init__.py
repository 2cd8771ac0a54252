"""The formats that rows come in and go out in: one class and one entry each.

A class says of its format what needs no Spark, which is how the analysis knows it; what reads and writes it is a class
of ``spark/connectors/``. A format without an entry is Spark's, or that of a package, and is read and written as Spark
does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from watersmeet.catalog import OFFSETS, Sink, Source
from watersmeet.errors import Refusal
from watersmeet.formats.base import MALFORMED, DisplaySink, MemorySink, SinkFormat, SourceFormat, wrong_policy
from watersmeet.formats.databases import Jdbc, PostgresSink
from watersmeet.formats.debezium import Debezium
from watersmeet.formats.files import Csv, FileSink, Json, NamedColumns, Parquet
from watersmeet.formats.kafka import Kafka, KafkaSink
from watersmeet.formats.lakes import Delta, DeltaSink, DeltaSource, IcebergSink, IcebergSource
from watersmeet.formats.records import KEY_FORMAT, VALUE_FORMAT, Feed, Records
from watersmeet.schema import INTEGERS

SOURCE_FORMATS: tuple[type[SourceFormat], ...] = (
    Parquet, Json, Csv, NamedColumns, Kafka, Jdbc, DeltaSource, IcebergSource, SourceFormat,
)  # fmt: skip
SINK_FORMATS: tuple[type[SinkFormat], ...] = (
    PostgresSink,
    KafkaSink,
    DeltaSink,
    IcebergSink,
    FileSink,
    DisplaySink,
    MemorySink,
)
FEEDS: tuple[type[Feed], ...] = (Debezium, Delta)
"""The feeds that CHANGES FROM can name."""

OWN = frozenset({"static", "key", "deletes", MALFORMED}).union(*(feed.own for feed in (*FEEDS, Records)))
"""The options of a source that are our own, in small letters. All others are Spark's."""


def source_format(source: Source) -> SourceFormat:
    """The format of a source.

    >>> type(source_format(Source("orders", (), format="JSON"))).__name__
    'Json'
    """
    named = (format_class for format_class in SOURCE_FORMATS if (source.format or "").lower() in format_class.names)
    return next(named, SourceFormat)(source)


def sink_format(sink: Sink) -> SinkFormat:
    """The format of a sink.

    >>> type(sink_format(Sink("totals", "jdbc", {"url": "jdbc:postgresql:shop"}))).__name__
    'PostgresSink'
    """
    return next((format_class for format_class in SINK_FORMATS if format_class.covers(sink)), SinkFormat)(sink)


def feed_of(source: Source) -> Feed:
    """The feed of a source: by CHANGES FROM, as records with a value, or plain rows."""
    feed_class = next((feed for feed in FEEDS if feed.name == source.changes), None)
    return (feed_class or (Records if VALUE_FORMAT in source.lowercase_options else Feed))(source)


def may_be_malformed(source: Source) -> bool:
    """Whether a source can have malformed rows."""
    if source.history is not None:
        # A row of the history may have no time, or no offset.
        return True
    opened = feed_of(source).may_be_malformed or KEY_FORMAT in source.lowercase_options
    return opened or source_format(source).may_be_malformed


def format_names() -> tuple[str, ...]:
    """The names of the formats that a misspelt one may have meant."""
    return tuple(name for format_class in SOURCE_FORMATS for name in format_class.names)


def history_source(source: Source) -> Source:
    """The history of a stream, as a source of its own with the same columns."""
    history = source.history
    assert history is not None, "it was checked"
    return replace(source, format=history.format, options=history.options, history=None)


def live_source(source: Source) -> Source:
    """A stream without its history. A topic is read from its first record unless the declaration says otherwise."""
    starts = any(name.startswith("starting") for name in source.lowercase_options)
    first = {} if starts or not source_format(source).has_partitions else {"startingOffsets": "earliest"}
    return replace(source, options={**source.options, **first}, history=None)


_LISTED = ("parquet", "orc", "avro", "json", "csv", "delta", "iceberg")
"""The formats of a history: all of it is known when it is read, so that it has an end."""
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}(?:[ T]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?(?P<zone>Z|[+-]\d{2}:\d{2})?)?")


def check_history(source: Source) -> Iterator[Refusal]:
    """The refusals of the history of a stream: of its format, its options, and the point at which the stream begins."""
    history = source.history
    if history is None:
        return

    def wrong(option: str, reason: str, hint: str) -> Refusal:
        return Refusal(
            "WRONG_OPTION", {"format": f"AFTER {history.format}", "option": option, "reason": reason, "hint": hint}
        )

    if history.format.lower() not in _LISTED:
        *most, last = _LISTED
        reason = f"the rows of {history.format} that exist cannot be listed, so its history would never end"
        yield wrong(f"AFTER {history.format}", reason, f"write AFTER with {', '.join(most)} or {last}.")
    for name in sorted(OWN.intersection(name.lower() for name in history.options)):
        hint = "move it to the OPTIONS of USING."
        yield wrong(name, f"`{name}` is said once for the stream and its history", hint)
    if not history.until:
        reason = f"`until` is missing, so it is not known which rows come from {source.format}"
        yield wrong("AFTER", reason, "add `until '2026-03-01 00:00:00'` to the OPTIONS of AFTER, for example.")
    elif history.until.lower() == OFFSETS:
        yield from (wrong("until", *said) for said in _wrong_offsets(source))
    elif source.fields:
        yield from (wrong("until", *said) for said in _wrong_until(source, history.until))
    first = source.lowercase_options.get("startingoffsets", "")
    if first.lower() == "latest":
        reason = "records that arrive before the topic is first read would be in neither"
        hint = "leave out `startingOffsets`: the topic is then read from its beginning."
        yield wrong("startingOffsets", reason, hint)
    yield from check_source(history_source(source))


def _wrong_until(source: Source, until: str) -> Iterator[tuple[str, str]]:
    """The reasons why ``until`` is not an event time of the stream, each with a hint."""
    if len(source.watermarks) != 1:
        count = len(source.watermarks) or "no"
        reason = f"`until` is a time of the column with the watermark, and {source.name} has {count} watermarks"
        yield reason, "declare one: `WATERMARK FOR t AS t - INTERVAL 5 MINUTES`, or write `until 'offsets'`."
        return
    field = source.field(source.watermarks[0].column)
    type_ = "" if field is None else field.type.upper()
    match = _TIME.fullmatch(until)
    is_number, is_time = type_ in INTEGERS, type_.startswith("TIMESTAMP")
    if is_number and not re.fullmatch(r"-?\d+", until):
        yield f"`{until}` is not a number, and the event time is {type_}", "write `until '1700000000'`, for example."
    elif type_ == "DATE" and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", until):
        yield f"`{until}` is not a date, and the event time is DATE", "write `until '2026-03-01'`, for example."
    elif is_time and (match is None or not _is_in_calendar(until)):
        yield f"`{until}` is not a time, and the event time is {type_}", "write `until '2026-03-01 00:00:00'`."
    elif type_ == "TIMESTAMP_NTZ" and match is not None and match["zone"]:
        yield f"`{until}` has a time zone, and the event time {type_} has none", f"leave out `{match['zone']}`."


def _is_in_calendar(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def start_offsets(source: Source) -> dict[str, int] | None:
    """The offsets from which a topic is read, by partition, of a declaration that says them all; else None.

    >>> start_offsets(Source("s", (), options={"startingOffsets": '{"orders": {"0": 5}}'}))
    {'0': 5}
    """
    try:
        topics: Any = json.loads(source.lowercase_options.get("startingoffsets", ""))
    except ValueError:
        return None
    if not isinstance(topics, dict) or len(cast("dict[str, Any]", topics)) != 1:
        return None
    (offsets,) = cast("dict[str, Any]", topics).values()
    if not isinstance(offsets, dict) or not all(
        isinstance(offset, int) and offset >= 0 for offset in cast("dict[str, Any]", offsets).values()
    ):
        return None
    return cast("dict[str, int]", offsets)


def _wrong_offsets(source: Source) -> Iterator[tuple[str, str]]:
    """The reasons why a history cannot end at offsets, each with a hint."""
    if start_offsets(source) is None:
        reason = "`until 'offsets'` needs the offsets at which the topic begins, of all partitions of one topic"
        yield reason, """add `startingOffsets '{"orders": {"0": 1200, "1": 980}}'` to the OPTIONS of USING kafka."""
    for name in ("_partition", "_offset"):
        field = source.field(name)
        if field is None or field.type.upper() not in INTEGERS:
            type_ = "INT" if name == "_partition" else "BIGINT"
            reason = f"`until 'offsets'` compares `{name}` of each row, which the stream does not declare"
            yield reason, f"add the column `{name} {type_}`, which the files must have, too."


def check_source(source: Source) -> Iterator[Refusal]:
    """The refusals of the options of a source, without looking at its data; given rows need no format."""
    if source.format is not None or source.changes is not None:
        yield from source_format(source).check()
        yield from feed_of(source).check()
        wrong = wrong_policy(source, may_be=may_be_malformed(source))
        yield from () if wrong is None else (wrong,)
