"""Kafka: topics are read, and written at least once by Spark's own writer, or exactly once by transactions.

The transaction with the records of a batch also commits its number, as an offset of a group of the query, and the time
when Spark planned it, as the metadata of that offset. A batch that is repeated after a failure is found there and not
written again; a reader with ``read_committed`` never sees a part of one. Before its first batch a run commits that it
has none, so that a missing offset later means that Kafka has dropped it. Records are fetched one partition at a time,
so that they are never all in memory here.

Exactly once needs confluent-kafka, so callers of `Transactions` check that it is installed.

Missing topics are found before a start: Spark would wait for minutes or fail in the first batch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession, is_remote
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructType

from watersmeet.catalog import Sink, Source
from watersmeet.codec.avro_schema import AVRO
from watersmeet.errors import Place, Refusal, WatersmeetError, refuse
from watersmeet.formats.kafka import NEW_TOPIC, Kafka, KafkaSink, Topics
from watersmeet.formats.protobuf.descriptor import PROTOBUF
from watersmeet.formats.sink import Changes, SinkFormat
from watersmeet.schema import quote
from watersmeet.spark.connectors.avro import record_schema
from watersmeet.spark.connectors.protobuf import message_encoder
from watersmeet.spark.connectors.reading import SourceConnector
from watersmeet.spark.connectors.record_parts import OF_KEY, OF_VALUE
from watersmeet.spark.connectors.records import encode_records, value_of
from watersmeet.spark.connectors.sinks import (
    BATCH,
    BatchPlans,
    SinkBatch,
    SinkConnector,
    SinkTarget,
    Write,
    batch_records,
    drain_batch,
    plans_of,
    record_writer,
    run_of,
)
from watersmeet.spark.exchange.rows import columns_of
from watersmeet.spark.private.introspection import suppress_logs
from watersmeet.spark.refusals import kafka_failure

if TYPE_CHECKING or find_spec("confluent_kafka") is not None:
    # Only writing needs it, and is refused without it (`KafkaSink.check_installed`).
    from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic  # pyright: ignore[reportPrivateImportUsage]

SECONDS, TRANSACTION_SECONDS = 30.0, 300.0
"""The time that Kafka has for an answer, and that a transaction may take."""
_OFFSET_PARTITION = 0
"""The partition for which the number of the batch is committed: every topic has it."""
_NOT_YET = frozenset({"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"})
"""Kafka's errors for a group whose coordinator is not known yet."""
_CERTIFICATES = {
    "ssl.truststore.location": ("ssl.ca.location",), "ssl.truststore.certificates": ("ssl.ca.pem",),
    "ssl.keystore.location": ("ssl.certificate.location", "ssl.key.location"),
    "ssl.keystore.certificate.chain": ("ssl.certificate.pem",), "ssl.keystore.key": ("ssl.key.pem",),
}  # fmt: skip
"""The names of certificates and keys in PEM: Java's client, and those of librdkafka."""
_LOGIN = re.compile(r"(username|password)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)')")


def client_settings(options: Mapping[str, str]) -> dict[str, Any]:
    r"""The options ``kafka.*`` as librdkafka takes them, which has other names for users, certificates and keys.

    >>> jaas = 'org.example.Module required username="me" password="a\\"b";'
    >>> client_settings({"topic": "t", "kafka.bootstrap.servers": "h:1", "kafka.sasl.jaas.config": jaas})
    {'bootstrap.servers': 'h:1', 'log_level': '0', 'sasl.username': 'me', 'sasl.password': 'a"b'}
    >>> client_settings({"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": "ca.pem"})
    {'ssl.ca.location': 'ca.pem', 'log_level': '0'}
    """
    settings: dict[str, Any] = {name[6:]: value for name, value in options.items() if name.startswith("kafka.")}
    for name in ("ssl.truststore.type", "ssl.keystore.type"):
        settings.pop(name, None)
    for name, others in _CERTIFICATES.items():
        setting = settings.pop(name, None)
        for other in others if setting is not None else ():
            settings.setdefault(other, setting)
    if settings.get("ssl.endpoint.identification.algorithm") == "":
        settings["ssl.endpoint.identification.algorithm"] = "none"
    # What goes wrong for good is raised, and the rest is tried again.
    settings.setdefault("log_level", "0")
    login = settings.pop("sasl.jaas.config", "")
    for name, quoted, plain in _LOGIN.findall(login):
        settings[f"sasl.{name}"] = re.sub(r"\\(.)", r"\1", quoted) or plain
    return settings


def make_topic(options: Mapping[str, str], topic: str, partitions: int, replication: int) -> None:
    """Create a topic, unless it exists."""
    admin: Any = AdminClient(client_settings(options))
    if topic in admin.list_topics(timeout=SECONDS).topics:
        return
    for made in admin.create_topics([NewTopic(topic, partitions, replication)]).values():
        try:
            made.result(SECONDS)
        except KafkaException as error:
            # Two queries may come here at once.
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise


@dataclass
class Transactions:
    """Writes the batches of a query to a topic, each in a transaction.

    All writers of one checkpoint have the same transactional id, so that only the latest one may write.
    """

    target: SinkTarget
    topic: str
    _producer: Producer | None = field(default=None, init=False)
    _last_batch: SinkBatch | None = field(default=None, init=False)
    _since: float = field(default_factory=time.time, init=False)

    def write(self, batch: DataFrame, number: int) -> None:
        """Write a batch, unless it is known to be written."""
        try:
            plans = plans_of(batch, self.target)
            producer = self._producer or self._start_producer(number, plans)
            if plans.has_batch(self._last_batch, number, self.topic, self.recovery_hint):
                drain_batch(batch)
                return
            self._send(producer, batch, number)
        except KafkaException as error:
            end = self._give_up()
            # A fenced producer gives its reason only when it aborts its transaction.
            cause = error if end is None or error.args[0].name() != "_FATAL" else end
            raise refuse("TOPIC_NOT_WRITTEN", topic=self.topic, reason=_reason(cause)) from error
        except BaseException:
            self._give_up()
            raise

    def last_batch(self) -> SinkBatch | None:
        """The last batch that the topic has."""
        try:
            return _sink_batch_of(self._read_committed())
        except KafkaException as error:
            raise refuse("TOPIC_NOT_WRITTEN", topic=self.topic, reason=_reason(error)) from error

    @property
    def recovery_hint(self) -> str:
        """The hint for a topic that does not match its checkpoint."""
        return "restore a newer copy of the checkpoint; or start again, with a new storage folder and a new topic."

    def _start_producer(self, number: int, plans: BatchPlans) -> Producer:
        """A producer that has ended open transactions of its id, and has read its last batch."""
        producer = Producer({
            "compression.type": "lz4", "linger.ms": "20",
            "transaction.timeout.ms": str(round(TRANSACTION_SECONDS * 1000)), **self._settings,
            "partitioner": "murmur2_random", "transactional.id": self._name,
        })  # fmt: skip
        producer.init_transactions(SECONDS)
        committed = self._read_committed()
        if committed.offset < 0:
            if self._is_repeated(number, plans) and not self._is_untouched():
                raise refuse("BATCH_NOT_KNOWN", topic=self.topic, number=str(number), name=self.target.sink.name)
            producer.begin_transaction()
            self._commit(producer, TopicPartition(self.topic, _OFFSET_PARTITION, number))
        self._producer, self._last_batch = producer, _sink_batch_of(committed)
        return producer

    def _read_committed(self) -> TopicPartition:
        """The committed offset of the group. Retried while Kafka elects its coordinator."""
        until = time.monotonic() + SECONDS
        while True:
            try:
                (committed,) = self._group.committed([TopicPartition(self.topic, _OFFSET_PARTITION)], timeout=SECONDS)
                if committed.error is None:
                    return committed
                raise KafkaException(committed.error)
            except KafkaException as error:
                if error.args[0].name() not in _NOT_YET or time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def _is_repeated(self, number: int, plans: BatchPlans) -> bool:
        """Whether a batch was planned before this run, as far as that can be seen."""
        planned_at = plans.plan_time(number)
        return planned_at is not None and planned_at < self._since * 1000

    def _is_untouched(self) -> bool:
        """Whether nothing was ever written to the topic, by this run or by others."""
        partitions = self._group.list_topics(self.topic, timeout=SECONDS).topics[self.topic].partitions
        ends = (self._group.get_watermark_offsets(TopicPartition(self.topic, p), timeout=SECONDS) for p in partitions)
        return all(end[1] == 0 for end in ends)

    def _commit(self, producer: Producer, offset: TopicPartition) -> None:
        """End a transaction, with how far the query is."""
        producer.send_offsets_to_transaction([offset], self._group.consumer_group_metadata(), SECONDS)
        producer.commit_transaction(TRANSACTION_SECONDS)

    def _send(self, producer: Producer, batch: DataFrame, number: int) -> None:
        rows = _as_bytes(batch_records(self.target, batch, number)).persist()
        try:
            # A transaction must end in time: it begins when all there is to compute is done.
            rows.count()
            producer.begin_transaction()
            for row in rows.toLocalIterator():
                _produce(producer, self.topic, row)
            last_batch = plans_of(batch, self.target).sink_batch(number)
            self._commit(producer, TopicPartition(self.topic, _OFFSET_PARTITION, number + 1, last_batch.to_text()))
        finally:
            rows.unpersist()
        self._last_batch = last_batch

    def _give_up(self) -> KafkaException | None:
        """Drop the producer and abort its transaction; returns the error if the abort fails."""
        producer, self._producer = self._producer, None
        try:
            if producer is not None:
                producer.abort_transaction(SECONDS)
        except KafkaException as error:
            return error
        return None

    @property
    def _settings(self) -> dict[str, Any]:
        return client_settings(self.target.plain.lowercase_options)

    @property
    def _name(self) -> str:
        query = re.sub(r"[^\w.-]+", "-", self.target.query)
        return f"watersmeet-{query}-{run_of(self.target.checkpoint)}"

    @cached_property
    def _group(self) -> Consumer:
        """The group whose offset is the number of the latest batch. It has no readers."""
        return Consumer({**_reader_settings(self._settings), "group.id": self._name, "enable.auto.commit": "false"})


def _sink_batch_of(committed: TopicPartition) -> SinkBatch | None:
    """The last batch by an offset, which is the number of the next one; None: no batch is written."""
    return SinkBatch.from_text(committed.metadata, committed.offset - 1) if committed.offset > 0 else None


def _reader_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the connection to Kafka, without those of a producer only."""
    reaches = re.compile(r"bootstrap|sasl|ssl|security|client|log")
    return {name: value for name, value in settings.items() if reaches.match(name)}


def _as_bytes(records: DataFrame) -> DataFrame:
    """Records with key and value as bytes, and what else Spark's own writer takes."""
    named = {name.lower(): name for name in records.columns}
    columns = [F.col(named[name]).cast("binary").alias(name) for name in ("key", "value") if name in named]
    more = [F.col(named[name]).alias(name) for name in ("headers", "partition") if name in named]
    return records.select(*columns, *more)


def _produce(producer: Producer, topic: str, row: Any) -> None:
    fields = row.asDict()
    more: dict[str, Any] = {} if fields.get("partition") is None else {"partition": fields["partition"]}
    if fields.get("headers"):
        more["headers"] = [(key, _immutable(value)) for key, value in fields["headers"]]
    while True:
        try:
            return producer.produce(topic, _immutable(fields.get("value")), _immutable(fields.get("key")), **more)
        except BufferError:
            # As much is on its way as may be.
            producer.poll(0.5)


def _immutable(value: bytes | None) -> bytes | None:
    """Bytes as the client takes them; Spark 4.0 has them in a form that can be changed."""
    return None if value is None else bytes(value)


def _reason(error: KafkaException) -> str:
    cause: Any = error.args[0] if error.args else error
    return str(cause.str() if hasattr(cause, "str") else cause).rstrip(".")


_NAMED = ("subscribe", "topic")
"""The options that name topics one by one; a pattern need not fit any yet."""


def check_topics(of: Source | Sink, spark: SparkSession) -> Iterator[Refusal]:
    """The refusals of missing topics that a source reads or a sink writes to.

    Each is opened as a source, which fails at once; no rows are read.
    """
    topics = Topics(of)
    if is_remote() or topics.option not in _NAMED:
        return
    options = {name: value for name, value in of.options.items() if name.lower().startswith("kafka.")}
    for name in topics.names:
        try:
            with suppress_logs():
                spark.read.format("kafka").options(**options, subscribe=name).load().rdd.getNumPartitions()
        except Exception as error:  # of Java, in whatever form it comes
            if kafka_failure(str(error), [of]) is not None:
                yield topics.unknown(name)


class KafkaSourceConnector(SourceConnector[Kafka]):
    """Reads topics."""

    def check_exists(self, spark: SparkSession) -> Iterator[Refusal]:
        """Topics that are not there, as far as a server answers."""
        if Topics(self.source).silence() is None:
            yield from check_topics(self.source, spark)

    def load(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """The frame that Spark reads, with the headers of records if they are declared."""
        headers = {"includeHeaders": "true"} if self.source.field("_headers") is not None else {}
        return super().load(spark, schema, {**headers, **options})


@contextmanager
def _locate_refusals(place: Place | None) -> Generator[None]:
    """Add the place to refusals raised meanwhile."""
    try:
        yield
    except WatersmeetError as error:
        raise WatersmeetError([replace(refusal, place=place) for refusal in error.refusals]) from error


class KafkaSinkConnector(SinkConnector[KafkaSink]):
    """Writes to a topic."""

    def check(self, place: Place | None, spark: SparkSession) -> None:
        """Refuse if no server answers, or the topic is not there and is not to be made."""
        silence = Topics(self.target.sink).silence(place)
        if silence is not None:
            raise WatersmeetError([silence])
        if self.format.topic is not None and not self.format.makes_topic:
            missing = [replace(refusal, place=place) for refusal in check_topics(self.target.sink, spark)]
            if missing:
                raise WatersmeetError(missing)

    def check_rows(self, rows: DataFrame, place: Place | None) -> None:
        """Refuse rows that have no schema in Avro, or that are not the message of Protobuf."""
        with _locate_refusals(place):
            if self._has_schemas:
                _check_schemas(self.format, self.target.key, rows)
            if self.format.value_format == PROTOBUF:
                _check_message(self.target.sink, self.target.changes, rows)

    def prepare(self, rows: DataFrame | None, place: Place | None) -> None:
        """Make the topic, if it is to be made, and register schemas; refused if the registry does not take them."""
        if self.format.makes_topic:
            self._make_topic(place)
        if rows is not None and self._has_schemas:
            with _locate_refusals(place):
                batch_records(self.target, rows.sparkSession.createDataFrame([], rows.schema), 0)

    @property
    def _has_schemas(self) -> bool:
        is_avro = AVRO in (self.format.value_format, self.format.key_format)
        return is_avro and self.format.is_encoded(self.target.changes)

    def _make_topic(self, place: Place | None) -> None:
        options, topic = self.target.sink.lowercase_options, self.format.topic
        partitions, replication = (int(options.get(name, "1")) for name in NEW_TOPIC)
        try:
            make_topic(options, topic or "", partitions, replication)
        except KafkaException as error:
            hint = "correct the options, or create the topic yourself and leave `partitions` and `replication` out."
            refusal = self.format.wrong_option(
                f"topic '{topic}'", f"it cannot be created ({error.args[0].str()})", hint
            )
            raise WatersmeetError([replace(refusal, place=place)]) from error

    @property
    def _transactions(self) -> Transactions:
        return Transactions(self.target, self.format.topic or "")

    def writer(self) -> Write:
        """The function that writes a batch."""
        return self._transactions.write if self.format.delivery == "exactly_once" else record_writer(self.target)

    def last_batch(self, spark: SparkSession) -> SinkBatch | None:
        """The last batch that the topic has, if it gets each once."""
        return self._transactions.last_batch() if self.format.delivery == "exactly_once" else None

    def recovery_hint(self, last: int) -> str:
        """The hint for a topic that does not match its checkpoint."""
        return self._transactions.recovery_hint


def _check_schemas(format_: SinkFormat, key: Sequence[str], rows: DataFrame) -> None:
    """Refuse rows whose values or keys have no schema."""
    records = encode_records(rows, key, format_.key_format, format_.value_format)
    for part in (OF_VALUE, OF_KEY):
        if isinstance(records.schema[part.column].dataType, StructType):
            record_schema(format_.sink, records, part)


def _check_message(sink: Sink, changes: Changes | None, rows: DataFrame) -> None:
    """Refuse rows, as they go to the sink, that are not its message."""
    shown = rows.select(*map(quote, columns_of(rows))) if changes == "upsert" else rows
    shown = shown.withColumn(BATCH, F.lit(0).cast("bigint")) if changes == "log" else shown
    message_encoder(sink, shown.select(value_of(shown.columns, PROTOBUF).alias(OF_VALUE.column)))
