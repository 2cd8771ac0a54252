"""The registers of formats, and what a format refuses and decides without Spark."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any, cast

import pytest

from watersmeet.catalog import Sink, Source
from watersmeet.errors import WatersmeetError
from watersmeet.formats import FEEDS, SINK_FORMATS, SOURCE_FORMATS, source_format

STREAM = "CREATE STREAM s (id BIGINT) USING json OPTIONS (path '/in');"
TABLE = "CREATE TABLE s (id BIGINT, at TIMESTAMP, PRIMARY KEY (id))"
ALL = "SELECT TABLE * FROM s;"
FORGETTING = "CREATE SINK o USING csv OPTIONS (path 'o', retention '7d');"
RAW = "USING kafka OPTIONS (value.format 'raw')"
STORE = "kafka.ssl.truststore.location 't.jks', topic"
TOPIC = "CREATE SINK o USING kafka OPTIONS (topic 't', {} '{}'); INSERT INTO o SELECT STREAM * FROM s;"


def test_every_name_is_that_of_one_format() -> None:
    for formats in (SOURCE_FORMATS, SINK_FORMATS):
        names = [*chain(*(one.names for one in formats))]
        assert len(names) == len(set(names)) and names == [name.lower() for name in names]
    assert len({feed.name for feed in FEEDS}) == len(FEEDS)


def test_every_connector_is_that_of_one_format() -> None:
    """They are registered by text, so that each is loaded when it is needed."""
    from watersmeet.formats.base import SinkFormat
    from watersmeet.formats.records import Feed, Records
    from watersmeet.spark import connectors
    from watersmeet.spark.connectors.reading import SourceConnector
    from watersmeet.spark.connectors.sinks import SinkConnector

    registers: list[tuple[Any, Any, Any]] = [
        (connectors.SOURCE_CONNECTORS, SOURCE_FORMATS, SourceConnector),
        (connectors.SINK_CONNECTORS, (*SINK_FORMATS, SinkFormat), SinkConnector),
        (connectors.CHANGE_DECODERS, (*FEEDS, Records, Feed), None),
    ]
    for registered, formats, base in registers:
        assert set(registered) <= {one for format_ in formats for one in format_.__mro__}
        assert len(set(registered.values())) == len(registered)
        loaded = [connectors.load_connector(registered, format_) for format_ in formats]
        assert all(callable(one) if base is None else issubclass(one, base) for one in loaded)


def test_row_options_are_not_rates_or_credentials() -> None:
    options = {
        "subscribe": "orders", "Value.Format": "json", "kafka.bootstrap.servers": "h:1", "kafka.isolation.level": "x",
        "maxOffsetsPerTrigger": "5", "failOnDataLoss": "false", "startingOffsets": "latest", "password": "p",
    }  # fmt: skip
    found = source_format(Source("orders", (), format="kafka", options=options)).row_options
    assert found == {"subscribe": "orders", "value.format": "json", "kafka.isolation.level": "x"}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (f"{STREAM} CREATE SINK o USING postgres; INSERT INTO o SELECT STREAM * FROM s;", "no table is named"),
        (
            f"{STREAM} {FORGETTING} INSERT INTO o SELECT STREAM * FROM s;",
            "the sink keeps no log of its files",
        ),
        (
            f"CREATE STREAM s (n INT, v INT, _offset INT) {RAW}; SELECT STREAM n FROM s;",
            "a raw value fills one column, but 2 are declared",
        ),
        (f"{TABLE} USING postgres OPTIONS (table 's'); {ALL}", "it is a sink, not a source"),
        (f"{TABLE} USING jdbc OPTIONS (dbtable 's'); {ALL}", "Spark reads it once, not as a stream"),
        (
            f"{TABLE}; CREATE SINK o USING iceberg OPTIONS (path '/o', changes 'upsert'); INSERT INTO o {ALL}",
            "rows can be merged only into a table of a catalog",
        ),
        (f"{STREAM} {TOPIC.format('delivery', 'once')}", "delivery is at_least_once or exactly_once"),
        (
            f"{STREAM} {TOPIC.format('partitions', '1').replace('topic', STORE, 1)}",
            "`delivery`, `partitions` and `replication` need a client that cannot read JKS",
        ),
        (f"{STREAM} {TOPIC.format('partitions', '0')}", "partitions must be at least 1"),
        (f"{STREAM} {TOPIC.format('replication', 'x')}", "replication must be at least 1"),
        (
            f"{STREAM} {TOPIC.format('delivery', 'exactly_once')}".replace("topic 't', ", ""),
            "it does not name a topic for all records",
        ),
        (
            f"{TABLE} USING text OPTIONS (value.format 'protobuf', value.message 'shop.Order'); {ALL}",
            "no descriptor file is named",
        ),
        (
            f"{TABLE} USING text OPTIONS (value.format 'protobuf', value.descriptor 'shop.pb'); {ALL}",
            "no message is named",
        ),
        (
            f"{TABLE} USING text OPTIONS (value.format 'protobuf', schema.registry.url 'http://r:8081'); {ALL}",
            "messages with a schema number of a registry are not supported",
        ),
        (f"{STREAM} {TOPIC.format('value.format', 'protobuf')}", "no descriptor file is named"),
        (
            "CREATE STREAM s (n INT, Key BINARY) USING kafka OPTIONS (subscribe 's'); SELECT STREAM n FROM s;",
            (
                "a record has the columns key, value, topic, partition, offset, timestamp, timestampType, headers, "
                "but no option says how its value holds `n`"
            ),
        ),
        (
            f"{TABLE} USING text OPTIONS (value.format 'xml'); {ALL}",
            "a value can be read as json, csv, avro, protobuf or raw",
        ),
        (
            f"{TABLE} USING text OPTIONS (value.format 'json', key.format 'avro'); {ALL}",
            "the schema of its keys is missing",
        ),
        (f"{STREAM} {TOPIC.format('key.format', 'avro')}", "its keys need a schema registry"),
        (
            f"{STREAM} {TOPIC.format('key.format', 'xml')}",
            "a key can be written as string, int, long, double, bytes, json, avro",
        ),
        (
            f"{TABLE} USING kafka OPTIONS (value.format 'csv') CHANGES FROM debezium; {ALL}",
            "a value can be read as json or avro",
        ),
        (
            f"{TABLE} USING kafka OPTIONS (value.format 'avro') CHANGES FROM debezium; {ALL}",
            "the schema of its values is missing",
        ),
        (
            f"{TABLE} OPTIONS (debezium.time 'days') CHANGES FROM debezium; {ALL}",
            "times can be in millis, micros or nanos",
        ),
    ],
)
def test_options_that_no_spark_is_needed_to_refuse(refusals_of, script, reason):
    [refusal] = refusals_of(script)
    assert (refusal.condition, refusal.parameters["reason"]) == ("WRONG_OPTION", reason)
    assert refusal.place is not None


def test_missing_clients_of_kafka_are_refused_first(monkeypatch):
    from watersmeet.spark.connectors.sinks import SinkTarget, check_target

    monkeypatch.setattr("watersmeet.formats.kafka.find_spec", lambda name: None)
    for option in ({"delivery": "exactly_once"}, {"partitions": "3"}):
        sink = Sink("o", "kafka", {"topic": "t", "kafka.bootstrap.servers": "127.0.0.1:1", **option})
        with pytest.raises(WatersmeetError, match="KAFKA_NOT_INSTALLED"):
            check_target(SinkTarget(sink, "o", Path("c")), None, cast("Any", None))
