"""The formats that rows come in and go out in: one class and one entry each.

A class says of its format what needs no Spark, which is how the analysis knows it; what reads and writes it is a class
of ``spark/connectors/``. A format without an entry is Spark's, or that of a package, and is read and written as Spark
does.
"""

from __future__ import annotations

from collections.abc import Iterator

from watersmeet.catalog import Sink, Source
from watersmeet.errors import Refusal
from watersmeet.formats.base import MALFORMED, DisplaySink, MemorySink, SinkFormat, SourceFormat, wrong_policy
from watersmeet.formats.debezium import Debezium
from watersmeet.formats.delta import Delta, DeltaSink, DeltaSource
from watersmeet.formats.files import Csv, FileSink, Json, NamedColumns, Parquet
from watersmeet.formats.iceberg import IcebergSink, IcebergSource
from watersmeet.formats.jdbc import Jdbc
from watersmeet.formats.kafka import Kafka, KafkaSink
from watersmeet.formats.postgres import PostgresSink
from watersmeet.formats.records import KEY_FORMAT, VALUE_FORMAT, Feed, Records

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
    opened = feed_of(source).may_be_malformed or KEY_FORMAT in source.lowercase_options
    return opened or source_format(source).may_be_malformed


def format_names() -> tuple[str, ...]:
    """The names of the formats that a misspelt one may have meant."""
    return tuple(name for format_class in SOURCE_FORMATS for name in format_class.names)


def check_source(source: Source) -> Iterator[Refusal]:
    """The refusals of the options of a source, without looking at its data; given rows need no format."""
    if source.format is not None or source.changes is not None:
        yield from source_format(source).check()
        yield from feed_of(source).check()
        wrong = wrong_policy(source, may_be=may_be_malformed(source))
        yield from () if wrong is None else (wrong,)
