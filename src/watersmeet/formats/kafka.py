"""Kafka: topics of records, and whether a server answers, checked before Spark would wait for minutes."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar, Literal, get_args

from watersmeet.catalog import Field, Sink, Source
from watersmeet.codec.avro_schema import AVRO
from watersmeet.codec.json_columns import is_plain_name, is_plain_type
from watersmeet.errors import Place, Refusal
from watersmeet.formats.base import Changes, SinkFormat, SourceFormat
from watersmeet.formats.columns import FIXED
from watersmeet.formats.protobuf.descriptor import PROTOBUF
from watersmeet.formats.records import JSON, KEY_FORMAT, KEY_TYPES, KEYS, VALUE_FORMAT, value_fields, wrong_descriptor
from watersmeet.formats.registry import URL
from watersmeet.locations import resolve_references
from watersmeet.schema import normalise_type

SECONDS = 3.0
"""The time that each server has to answer."""
_BROKER_CLIENT = b"watersmeet"
_API_VERSIONS = struct.pack(">ihhih", 10 + len(_BROKER_CLIENT), 18, 0, 1, len(_BROKER_CLIENT)) + _BROKER_CLIENT
"""The request that every broker answers, even before authentication."""


@dataclass(frozen=True)
class Topics:
    """The topics that a source reads or a sink writes to, and the servers that have them."""

    of: Source | Sink

    @property
    def option(self) -> str:
        """The option that names them."""
        names = ("topic",) if isinstance(self.of, Sink) else ("subscribe", "subscribepattern", "assign")
        return next((name for name in names if name in self.of.lowercase_options), names[0])

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, or the pattern or assignment."""
        return self._split_option(self.option)

    @property
    def in_words(self) -> str:
        """Their names in a sentence."""
        return " and ".join(f"`{name}`" for name in self.names) or "topics"

    @property
    def servers(self) -> tuple[str, ...]:
        """The bootstrap servers."""
        return self._split_option("kafka.bootstrap.servers")

    def _split_option(self, option: str) -> tuple[str, ...]:
        text = resolve_references({option: self.of.lowercase_options.get(option, "")})[option]
        return tuple(part.strip() for part in text.split(",") if part.strip())

    def refusal(self, servers: Sequence[str], place: Place | None = None) -> Refusal:
        """The refusal of unreachable servers."""
        verb = "writes to" if isinstance(self.of, Sink) else "reads"
        parameters = {"name": self.of.name, "verb": verb, "topics": self.in_words, "servers": ", ".join(servers)}
        return Refusal("BROKER_UNREACHABLE", parameters, place)

    def unknown(self, name: str | None = None) -> Refusal:
        """The refusal of topics that are not there: one of them, or all."""
        servers, topics = ", ".join(self.servers), self.in_words if name is None else f"`{name}`"
        made = "; with `partitions '1'` in its OPTIONS it is created" if isinstance(self.of, Sink) else ""
        parameters = {
            "name": self.of.name, "topics": topics, "servers": servers, "option": self.option, "made": made,
        }  # fmt: skip
        return Refusal("UNKNOWN_TOPIC", parameters)

    def silence(self, place: Place | None = None) -> Refusal | None:
        """The refusal if no server answers; one that does suffices, since it knows the others."""
        is_encrypted = any(name.upper().endswith("SSL") for name in self._split_option("kafka.security.protocol"))
        why: list[str] = []
        for server in self.servers:
            problem = server_problem(server, is_encrypted=is_encrypted)
            if problem is None:
                return None
            why.append(f"{server} ({problem})")
        return self.refusal(why, place) if why else None


def server_problem(server: str, *, is_encrypted: bool) -> str | None:
    """The reason why a server, ``host:port``, does not answer; None: it does.

    >>> server_problem("localhost", is_encrypted=False)
    'not host:port'
    """
    host, _, port = server.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return "not host:port"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), SECONDS) as connection:
            if is_encrypted:
                _shake_hands(connection)
                return None
            connection.sendall(_API_VERSIONS)
            return None if connection.recv(1) else "closes the connection, as if it expected another protocol"
    except TimeoutError:
        return f"silent for {SECONDS:g} s"
    except socket.gaierror:
        return "unknown host name"
    except (OSError, OverflowError) as error:
        return (getattr(error, "strerror", None) or str(error)).lower()


def _shake_hands(connection: socket.socket) -> None:
    """Start TLS; a server that rejects it has answered. Certificates are not verified here, and no data is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        context.wrap_socket(connection).close()
    except ssl.SSLError:
        return


Delivery = Literal["at_least_once", "exactly_once"]
"""The delivery guarantee. ``at_least_once``: a batch that is repeated after a failure is written again.
``exactly_once``: readers of committed records see it once.
"""

NEW_TOPIC = ("partitions", "replication")
"""Our own options: how many a topic gets that is not there yet."""
_VALUES = (JSON, AVRO, PROTOBUF)
"""The formats that a value can be written in."""
_CLIENT = frozenset({
    "failondataloss", "groupidprefix", "fetchoffset.numretries", "fetchoffset.retryintervalms",
    "kafkaconsumer.polltimeoutms",
})  # fmt: skip
"""Options of how topics are reached."""


class Kafka(SourceFormat):
    """Topics, whose read offsets Spark reports."""

    names: ClassVar = ("kafka",)
    title: ClassVar = "Kafka"
    has_partitions: ClassVar = True

    def can_read_columns(self, columns: Iterable[Field] = ()) -> bool:
        """Whether nothing needs Spark: values are flat JSON objects, and nothing is read of keys and metadata."""
        said, inside = self.source.lowercase_options, value_fields(self.source)
        is_stream = self.source.kind == "stream" and self.source.changes is None
        has_text_key = KEY_TYPES.get(said.get(KEY_FORMAT, "string").lower(), "") in ("STRING", "BINARY")
        is_plain = all(is_plain_type(normalise_type(f.type)) and is_plain_name(f.name) for f in inside)
        declares_others = any(not field.hidden for field in self.source.fields if field not in inside)
        is_json = said.get(VALUE_FORMAT, "").lower() == JSON and is_stream and has_text_key
        return is_json and is_plain and not declares_others and all(field in inside for field in columns)

    def check(self) -> Iterator[Refusal]:
        """Refuse columns that no record has, where nothing says how to find them in its value."""
        source = self.source
        if VALUE_FORMAT in source.lowercase_options or source.changes is not None:
            return
        names = [name for name, _ in FIXED["kafka"]] + ["headers"]
        others = [f.name for f in source.fields if not f.hidden and f.name.lower() not in map(str.lower, names)]
        if others:
            *most, last = (f"`{name}`" for name in others)
            named = f"{', '.join(most)} and {last}" if most else last
            reason = f"a record has the columns {', '.join(names)}, but no option says how its value holds {named}"
            hint = f"add `{VALUE_FORMAT} '{JSON}'` to its OPTIONS, or the format that its values have."
            parameters = {"format": "kafka", "option": "USING kafka", "reason": reason, "hint": hint}
            yield Refusal("WRONG_OPTION", parameters)

    def check_reachable(self) -> Iterator[Refusal]:
        """Whether no server answers."""
        silence = Topics(self.source).silence()
        if silence is not None:
            yield silence

    def affects_rows(self, option: str) -> bool:
        """Whether an option decides about its rows; of those of Kafka's client that are not of security and tuning."""
        if option.startswith("kafka."):
            return option == "kafka.isolation.level"
        return option not in _CLIENT and super().affects_rows(option)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are named."""
        return Topics(self.source).names if "subscribe" in self.source.lowercase_options else ()


class KafkaSink(SinkFormat):
    """A topic. It gets a repeated batch again, unless it is to get it exactly once."""

    names: ClassVar = ("kafka",)
    title: ClassVar = "Kafka"
    takes: ClassVar[frozenset[Changes]] = frozenset({"log", "upsert"})
    has_text_keys: ClassVar = True
    is_batched: ClassVar = True

    @property
    def delivery(self) -> str:
        """The delivery guarantee, as the sink says."""
        return self.sink.lowercase_options.get("delivery", "at_least_once").lower()

    @property
    def topic(self) -> str | None:
        """The topic, if one is named for all records."""
        return self.sink.lowercase_options.get("topic")

    @property
    def needs_client(self) -> bool:
        """Whether Spark's own writer is not enough."""
        return self.delivery == "exactly_once" or self.makes_topic

    def check(self) -> Iterator[Refusal]:
        """Refuse unknown deliveries, invalid numbers, and options that need a topic if none is named."""
        deliveries = get_args(Delivery)
        if self.delivery not in deliveries:
            hint = f"write `delivery '{deliveries[1]}'`, for example."
            yield self.wrong_option(
                f"delivery '{self.delivery}'", f"delivery is {deliveries[0]} or {deliveries[1]}", hint
            )
        if self.key_format not in KEYS:
            hint = "write `key.format 'long'`, for example."
            yield self.wrong_option(
                f"key.format '{self.key_format}'", f"a key can be written as {', '.join(KEYS)}", hint
            )
        if self.value_format not in _VALUES:
            hint = f"write `value.format '{_VALUES[0]}'`."
            reason = f"a value can be written as {', '.join(_VALUES[:-1])} or {_VALUES[-1]}"
            yield self.wrong_option(f"value.format '{self.value_format}'", reason, hint)
        for part, format_ in (("value", self.value_format), ("key", self.key_format)):
            if format_ == AVRO and URL not in self.sink.lowercase_options:
                hint = f"add `{URL} 'http://host:8081'` to its OPTIONS."
                reason = f"its {part}s need a schema registry"
                yield self.wrong_option(f"{part}.format '{AVRO}'", reason, hint)
        wrong = wrong_descriptor(self.sink.lowercase_options)
        if wrong is not None:
            yield self.wrong_option(f"{VALUE_FORMAT} '{PROTOBUF}'", *wrong)
        for name in NEW_TOPIC:
            said = self.sink.lowercase_options.get(name, "1")
            if not said.isdecimal() or int(said) < 1:
                hint = f"write `{name} '1'`, for example."
                yield self.wrong_option(f"{name} '{said}'", f"{name} must be at least 1", hint)
        yield from self._wrong_stores()
        if self.needs_client and self.topic is None:
            hint = f"add `topic 'name'` to the OPTIONS of {self.sink.name}."
            yield self.wrong_option("topic", "it does not name a topic for all records", hint)

    def check_installed(self) -> Iterator[Refusal]:
        """Refuse if the client of Kafka is needed and missing."""
        if self.needs_client and find_spec("confluent_kafka") is None:
            yield Refusal("KAFKA_NOT_INSTALLED", {"package": "confluent-kafka"})

    def _wrong_stores(self) -> Iterator[Refusal]:
        """Refuse certificates in a form that only Java reads, where librdkafka is to write."""
        said = self.sink.lowercase_options
        for store in ("truststore", "keystore"):
            type_ = said.get(f"kafka.ssl.{store}.type", "JKS").upper()
            if self.needs_client and f"kafka.ssl.{store}.location" in said and type_ != "PEM":
                hint = f"name a PEM file, and add `kafka.ssl.{store}.type 'PEM'`."
                reason = f"`delivery`, `partitions` and `replication` need a client that cannot read {type_}"
                yield self.wrong_option(f"kafka.ssl.{store}.location", reason, hint)

    @property
    def makes_topic(self) -> bool:
        """Whether a topic that is not there yet is made."""
        return any(name in self.sink.lowercase_options for name in NEW_TOPIC)

    @property
    def changes_hint(self) -> str:
        """The hint for a table that is written to this sink without a valid `changes` option."""
        return "add `changes 'upsert'` to its OPTIONS, with NULL values for deletes, or `changes 'log'`."

    def is_encoded(self, changes: Changes | None) -> bool:
        """Whether rows become records: changes always do."""
        return changes is not None or super().is_encoded(changes)
