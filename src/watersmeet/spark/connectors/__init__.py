"""Readers and writers of each format with Spark: one connector for each class of `watersmeet.formats` that needs one.

A format without an entry has the connector of the class that it is derived from. A connector is loaded when it is first
needed: some need packages that are not always installed, and a worker needs only its own part of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from watersmeet.formats import feed_of, source_format
from watersmeet.formats.base import SinkFormat, SourceFormat
from watersmeet.formats.databases import Jdbc, PostgresSink
from watersmeet.formats.debezium import Debezium
from watersmeet.formats.files import FileSink, NamedColumns, Parquet, TextSource
from watersmeet.formats.kafka import Kafka, KafkaSink
from watersmeet.formats.lakes import Delta, DeltaSink, DeltaSource, IcebergSink, IcebergSource
from watersmeet.formats.records import Feed, Records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from watersmeet.catalog import Source
    from watersmeet.spark.connectors.reading import SourceConnector
    from watersmeet.spark.connectors.sinks import SinkConnector, SinkTarget

SOURCE_CONNECTORS: Mapping[type[SourceFormat], str] = {
    SourceFormat: "reading.SourceConnector",
    TextSource: "files.TextConnector",
    NamedColumns: "files.NamedColumnsConnector",
    Parquet: "parquet.ParquetConnector",
    Jdbc: "static.JdbcConnector",
    Kafka: "kafka.KafkaSourceConnector",
    DeltaSource: "delta.DeltaSourceConnector",
    IcebergSource: "iceberg.IcebergSourceConnector",
}
SINK_CONNECTORS: Mapping[type[SinkFormat], str] = {
    SinkFormat: "sinks.SinkConnector",
    FileSink: "files.FileSinkConnector",
    PostgresSink: "postgres.PostgresConnector",
    KafkaSink: "kafka.KafkaSinkConnector",
    DeltaSink: "delta.DeltaSinkConnector",
    IcebergSink: "iceberg.IcebergSinkConnector",
}
CHANGE_DECODERS: Mapping[type[Feed], str] = {
    Feed: "reading.row_changes",
    Records: "records.decode_records",
    Debezium: "debezium.debezium_changes",
    Delta: "delta.delta_changes",
}
"""By the class of a format or feed, the module of this package that has its connector, and the name there."""


def source_connector(source: Source) -> SourceConnector[Any]:
    """The connector that reads a source."""
    format_ = source_format(source)
    return load_connector(SOURCE_CONNECTORS, type(format_))(format_)


def sink_connector(target: SinkTarget) -> SinkConnector[Any]:
    """The connector that writes to a target."""
    format_ = target.format
    return load_connector(SINK_CONNECTORS, type(format_))(format_, target)


def decode_changes(source: Source, frame: DataFrame) -> DataFrame:
    """The declared columns of the rows read and, for a table, the change of each row."""
    return load_connector(CHANGE_DECODERS, type(feed_of(source)))(source, frame)


def load_connector(connectors: Mapping[Any, str], format_class: type) -> Any:
    """The connector of a format's class, or of its nearest base class."""
    module, _, name = next(connectors[base] for base in format_class.__mro__ if base in connectors).partition(".")
    return getattr(import_module(f"{__name__}.{module}"), name)
