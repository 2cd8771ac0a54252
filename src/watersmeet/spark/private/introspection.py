"""Facts that Spark exposes only indirectly: in a log, the metadata of a column, a message, a file or a property.

Each function says what it reads. Seen in: 4.0 to 4.3.

Whether Spark computes the same values again. Why: only Spark knows functions that users add. Uses: ``deterministic``
and ``containsPattern`` of the analyzed plan in the JVM. Missing (Spark Connect): every frame counts as deterministic,
and only functions known by name are rejected.

Names in the JVM are looked up once. Why: py4j resolves a name at every use, and the JVM then searches all jars, a sixth
of the time of small queries. Uses: attributes of py4j's view of the JVM. Missing: names are resolved at every use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext

from watersmeet.locations import Storage
from watersmeet.spark.private import spark_version, unknown_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType


_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_DELAY = "spark.watermarkDelayMs"
_UNREAD = re.compile("CANNOT_LOAD_STATE_STORE|CANNOT_READ_STREAMING_STATE_FILE|ChecksumException.*/state/")
_LOCATION = re.compile(r"checkpointLocation=(?:file:(?://)?)?([^,\]]+)")
_STATE_FILE = re.compile(r"file:(?://)?(/\S+/state/\d+/\S+?)(?=:? |$)", re.MULTILINE)
_PLAN = re.compile(r"=== Streaming Query ===.*?(?=\n\s+at |\Z)", re.DOTALL)
_LZ4, _LZ4_HEADER = b"LZ4Block", 21


@contextmanager
def suppress_logs() -> Generator[None]:
    """Keep errors that Spark logs meanwhile, with Java's whole stack, out of the log: we report them.

    Uses the names of two loggers. Under other names they still log.
    """
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(name) for name in _LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def arrow_schema(schema: StructType, timezone: str | None) -> Any:
    """The Arrow schema in which Spark's workers receive rows of a schema.

    Uses ``pyspark.sql.pandas.types``: no public API gives it before there are rows. Without it no join can run. Up to
    4.1 it takes no time zone and returns timestamps in UTC, though workers receive them in the zone of the session.
    """
    try:
        from pyspark.sql.pandas.types import to_arrow_schema
    except ImportError as error:
        raise unknown_spark("`to_arrow_schema`", "no rows can be handed to workers") from error
    if "timezone" in signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone=timezone)
    return pa.schema([_in_zone(field, timezone) for field in to_arrow_schema(schema)])


def _in_zone(field: Any, timezone: str | None) -> Any:
    """A field of an Arrow schema with its timestamps in that zone."""
    type_ = field.type
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return field.with_type(pa.timestamp(type_.unit, timezone))
    if pa.types.is_struct(type_):
        return field.with_type(pa.struct([_in_zone(child, timezone) for child in type_]))
    if pa.types.is_list(type_):
        return field.with_type(pa.list_(_in_zone(type_.value_field, timezone)))
    if pa.types.is_map(type_):
        return field.with_type(pa.map_(_in_zone(type_.key_field, timezone), _in_zone(type_.item_field, timezone)))
    return field


def watermark_delays(frame: DataFrame) -> dict[str, int]:
    """The columns to which `withWatermark` has given a delay, in microseconds.

    Uses the metadata of columns. Where it is missing, a call must name the event time and its lag itself.
    """
    return {f.name: int(f.metadata[_DELAY]) * 1000 for f in frame.schema if _DELAY in f.metadata}


def is_waiting_for_rows(query: StreamingQuery) -> bool:
    """Whether a query has polled all sources and found no rows.

    Uses the text of its status. With another text, tables count as loaded by the reports of their batches.
    """
    return query.isActive and str(query.status["message"]).startswith("Waiting for data")


def run_group() -> str | None:
    """The id of this start of a query, in one of its tasks.

    Uses the job group that Spark creates for each start. Without one, starts are not distinguished.
    """
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty("spark.jobGroup.id")


def query_of_task() -> str | None:
    """The id of the query of a task, which is that of its checkpoint.

    Uses a local property of the query's thread. Without it shards of several queries share a name in the cache.
    """
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty("sql.streaming.queryId")


_STATE_PARTITIONS = "spark.sql.streaming.internal.stateStore.partitions"


def state_partitions() -> int | None:
    """The number of partitions over which Spark spreads the states of a task's query, whatever the session's setting.

    Uses an internal setting that becomes a property of tasks. Seen in 4.1 to 4.3; in any other version, and where rows
    are joined in batch mode, every shard is a separate group.
    """
    if not spark_version().startswith(("4.1.", "4.2.", "4.3.")):
        return None
    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(_STATE_PARTITIONS)
    return int(text) if text else None


def enter_state(handle: Any, shard: int) -> None:
    """Switch a processor to the states of another shard of the same partition, until Spark's next call.

    Uses the client behind the handle. Called only where `state_partitions` returns a number.
    """
    handle._statefulProcessorApiClient.set_implicit_key((shard,))


_ACCEPTED = "watersmeet.accepted"


def set_accepted_states(spark: Any, accepted: Mapping[str, Any]) -> bool:
    """Set the states that the queries started by this thread may take over.

    Uses local properties of the thread, which a query and its tasks inherit. False: Spark Connect has none, and workers
    reject a state that differs.
    """
    context = getattr(spark, "sparkContext", None) if hasattr(spark, "_jsparkSession") else None
    if context is None:
        return False
    context.setLocalProperty(_ACCEPTED, json.dumps(dict(accepted)) if accepted else None)
    return True


def get_accepted_states() -> dict[str, Any]:
    """The states that the query of a task may take over, by their fingerprints."""
    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(_ACCEPTED)
    return json.loads(text) if text else {}


def query_id(checkpoint: Storage) -> str | None:
    """The id of the query that a local checkpoint belongs to; Spark creates it with the checkpoint.

    Uses the file ``metadata`` in a checkpoint. Without it a checkpoint is identified by the name of its folder.
    """
    file = checkpoint / "metadata"
    return str(json.loads(file.read_text())["id"]) if file.exists() else None


def operator_name(metadata: str) -> str:
    r"""Spark's name of a stateful operator, from its metadata; empty, if that is incomplete.

    Uses the files ``_metadata/v2`` in a checkpoint. Without them no operator counts as ours, and a state as damaged.

    >>> operator_name('v2\n{"operatorInfo":{"operatorId":0,"operatorName":"stateStoreSave"}}')
    'stateStoreSave'
    """
    match = re.search(r'"operatorName":"(\w+)"', metadata)
    return match[1] if match else ""


def unread_state(text: str) -> tuple[str, str | None] | None:
    """The checkpoint with an unreadable state, and the file if it is named, if that caused an error of a query.

    Uses the conditions of its errors, and the options of a query in the plan that follows. With other texts the error
    is reported unchanged.
    """
    where = _LOCATION.search(text)
    if where is None or not _UNREAD.search(text):
        return None
    file = _STATE_FILE.search(text)
    return where[1], None if file is None else file[1]


def without_plan(text: str) -> str:
    r"""The text of a failed query's error without its plan, which contains every refusal that it could have raised.

    Uses the heading of Spark's description of a query. With another one, a refusal may be reported that was not the
    cause.

    >>> without_plan("disk full\n=== Streaming Query ===\nid\nLogical Plan:\nraise_error(...)\n\tat A.b(C.java:1)")
    'disk full\n\n\tat A.b(C.java:1)'
    """
    return _PLAN.sub("", text)


def is_whole_changelog(data: bytes) -> bool:
    """Whether a changelog file of a state is complete, if compressed with Spark's default codec.

    Uses the frames of lz4 as Java writes them: a magic, the length at byte 9, and an empty frame at the end.
    """
    at = 0
    while data.startswith(_LZ4, at) and len(data) >= at + _LZ4_HEADER:
        length = int.from_bytes(data[at + 9 : at + 13], "little")
        at += _LZ4_HEADER + length
        if not length:
            return at == len(data)
    return False


def is_state_schema(text: str) -> bool:
    """Whether a file can be the schema of a state: Java writes the length of its version, then the version."""
    return text.startswith("\0\x02v")


_SHORT = ("PythonUtils", "PythonRDD", "PythonSQLUtils", "SerDeUtil", "SimplePythonFunction", "functions")
_WHOLE = (
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.internal.SQLConf",
    "org.apache.spark.sql.catalyst.trees.PySparkCurrentOrigin",
    "org.apache.spark.sql.execution.python.UserDefinedPythonFunction",
    "org.apache.spark.util.Utils",
)
"""Names that PySpark resolves in one piece."""
_PARTS = (
    "py4j.reflection.TypeUtil",
    "org.apache.hadoop.fs.Path",
    "org.apache.spark.sql",
    "java.lang.Thread",
    "scala.jdk.javaapi.CollectionConverters",
)
"""Names that PySpark resolves part by part."""


def cache_jvm_names(spark: SparkSession) -> None:
    """Cache the names in the JVM of a session that will be resolved again."""
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        return
    with suppress(Exception):  # of the bridge, or of a PySpark without it
        from py4j.java_gateway import JavaClass

        for name in (*_SHORT, *_WHOLE):
            # A name that is not a class yet may become one: PySpark imports further packages into the view when needed.
            if isinstance(member := getattr(jvm, name), JavaClass):
                _attributes(jvm)[name] = member
        for name in _PARTS:
            holder = jvm
            for part in name.split("."):
                member: Any = getattr(holder, part)
                _attributes(holder)[part] = member
                holder = member


def _attributes(holder: Any) -> dict[str, Any]:
    """The attributes that py4j checks before it sends a request."""
    return cast("dict[str, Any]", vars(holder))


@dataclass(frozen=True)
class PartitionOffsets:
    """The first offset that a partition of a topic still has, where reading starts, and the offset after its last."""

    begin: int
    start: int
    end: int


_MOST_INTEGER = (1 << 31) - 1
"""Larger numbers become a Long in the JVM, which Kafka wants of times; this one is in January 1970."""
_DESERIALIZER = "org.apache.kafka.common.serialization.ByteArrayDeserializer"


def topic_offsets(spark: SparkSession, options: Mapping[str, str]) -> dict[tuple[str, int], PartitionOffsets] | None:
    """The offsets of the topics that a source with these options, in small letters, reads, by topic and partition.

    None: the broker did not answer. Uses Kafka's client in the JVM, which the connector of Spark brings: Spark itself
    shows no offsets of partitions without records. Missing (Spark Connect): an empty result.
    """
    try:
        jvm = cast("Any", spark)._jvm
        settings = jvm.java.util.HashMap()
        for name in ("key.deserializer", "value.deserializer"):
            settings.put(name, _DESERIALIZER)
        for name, value in options.items():
            if name.startswith("kafka."):
                settings.put(name.removeprefix("kafka."), value)
        consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(settings)
    except (AttributeError, TypeError, Py4JError):
        return {}
    try:
        return _read_offsets(jvm, consumer, options)
    except Py4JError:
        return None
    finally:
        consumer.close()


def _read_offsets(jvm: Any, consumer: Any, options: Mapping[str, str]) -> dict[tuple[str, int], PartitionOffsets]:
    parts = jvm.java.util.ArrayList()
    assigned = json.loads(options.get("assign", "{}"))
    names = [name.strip() for name in options.get("subscribe", "").split(",") if name.strip()] or [*assigned]
    if "subscribepattern" in options:
        known = list(consumer.listTopics().keySet())
        names = [name for name in known if jvm.java.util.regex.Pattern.matches(options["subscribepattern"], name)]
    for name in names:
        for found in consumer.partitionsFor(name) or ():
            if not assigned or found.partition() in assigned[name]:
                parts.add(jvm.org.apache.kafka.common.TopicPartition(name, found.partition()))
    begins, ends = consumer.beginningOffsets(parts), consumer.endOffsets(parts)
    starts: dict[tuple[str, int], int] = {}
    if (since_millis := int(options.get("startingtimestamp", 0))) > _MOST_INTEGER:
        times = jvm.java.util.HashMap()
        for part in parts:
            times.put(part, since_millis)
        since = consumer.offsetsForTimes(times)
        for part in parts:
            found = since.get(part)
            starts[part.topic(), part.partition()] = int(ends.get(part) if found is None else found.offset())
    offsets: dict[tuple[str, int], PartitionOffsets] = {}
    for part in parts:
        key, begin = (str(part.topic()), int(part.partition())), int(begins.get(part))
        offsets[key] = PartitionOffsets(begin, starts.get(key, begin), int(ends.get(part)))
    return offsets


_CAST_OF_NOW = re.compile(r"cast\(\s*(now|today|tomorrow|yesterday)( [\w/:+-]+)?\s* as (date|timestamp)", re.IGNORECASE)
"""A text in a plan that is cast to a time, and stands for one of the clock; a column has a number behind its name."""


def is_deterministic(frame: DataFrame) -> bool:
    """Whether a frame has the same values whenever it is computed, as far as Spark knows."""
    try:
        classic = cast("Any", frame)
        plan = classic._jdf.queryExecution().analyzed()
        current = classic.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
        # Spark puts the zone of the session into `convert_timezone`, as it does into all that shows a time.
        text = str(plan.toString())
        reads_clock = plan.containsPattern(current) and "convert_timezone(" not in text
        # Spark replaces such a text only when it optimizes the plan, also where it compares one with a DATE.
        reads_clock |= _CAST_OF_NOW.search(text) is not None
        return bool(plan.deterministic()) and not reads_clock
    except (AttributeError, TypeError, Py4JError):
        return True
