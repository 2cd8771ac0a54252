"""Refusals that need Spark: unknown formats, options and paths, in the shape of our own refusals."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from pyspark.errors import PySparkException

from watersmeet.catalog import Sink, Source
from watersmeet.errors import Place, WatersmeetError, did_you_mean, refuse
from watersmeet.formats import format_names
from watersmeet.formats.kafka import Topics
from watersmeet.formats.packages import CONNECTORS, connector_of
from watersmeet.locations import StorageError, local_path
from watersmeet.spark.private import spark_version
from watersmeet.spark.private.jvm import death_of, root_cause


def first_line(error: Exception) -> str:
    """The first line of Spark's message, without its SQLSTATE."""
    return str(error).split("\n", 1)[0].split(" SQLSTATE", 1)[0]


def innermost_cause(error: Exception) -> str:
    r"""The innermost cause of an error in one line: the last of the causes that Spark lists.

    >>> innermost_cause(Exception("Job aborted\nCaused by: java.io.IOException: disk is full\n\tat A"))
    'java.io.IOException: disk is full'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes[-1] if causes else lines[0].split(" SQLSTATE", 1)[0])[:300]


def last_cause(text: str) -> str:
    r"""The last line of an error that names an exception: what happened where a query stopped.

    >>> last_cause("[STREAM_FAILED] Query stopped\nCaused by: java.io.IOException: disk is full\n\tat A")
    'java.io.IOException: disk is full'
    """
    lines = [line.strip().removeprefix("Caused by: ") for line in text.split("\n") if line.strip()]
    causes = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b", line)]
    return (causes[-1] if causes else lines[0])[:500]


def unknown_function(error: PySparkException) -> str | None:
    """The function that Spark does not know, if that is what an error says."""
    if error.getCondition() != "UNRESOLVED_ROUTINE":
        return None
    return str((error.getMessageParameters() or {}).get("routineName", "")).strip("`")


def is_unknown_format(error: Exception) -> bool:
    """Whether Spark does not know a format; it says so in errors of several classes, one of them plain Java."""
    return "DATA_SOURCE_NOT_FOUND" in str(error) or "Failed to find" in str(error)


def is_of_database(error: Exception) -> bool:
    """Whether a database or its driver says so: up to 4.1 Spark hands that on as it is, in Java."""
    return any(word in str(error) for word in ("java.sql.", "SQLException", "FAILED_JDBC"))


@contextmanager
def report_spark_death() -> Generator[None]:
    """Say so if Spark ends meanwhile, instead of what then went wrong."""
    try:
        yield
    except Exception as error:
        reason = death_of(error)
        if reason is None:
            raise
        raise refuse("SPARK_DIED", reason=reason) from error


def unreadable_source(source: Source, place: Place | None, error: Exception) -> WatersmeetError:
    """The refusal of a source that Spark cannot read."""
    format_ = str(source.format)
    if is_unknown_format(error):
        return _unknown_format(format_, place)
    if "PATH_NOT_FOUND" in str(error):
        return refuse(
            "PATH_NOT_FOUND", place, source=source.name, path=local_path(source.lowercase_options.get("path", ""))
        )
    hint = "correct the options; they are Spark's own for this format."
    if is_of_database(error):
        reason = (root_cause(error) or first_line(error)).removesuffix(".")
        if any(word in str(error) for word in _SILENT_DATABASE):
            parameters = {
                "name": source.name,
                "does": "reads",
                "table": source.lowercase_options.get("dbtable", "a query"),
            }
            return refuse("DATABASE_UNREACHABLE", place, **parameters, reason=reason)
        error = RuntimeError(reason)
        hint = "correct `url`, `user`, `password` and `dbtable`."
    return refuse("WRONG_OPTION", place, format=format_, option=f"USING {format_}", reason=first_line(error), hint=hint)


def unwritable_sink(sink: Sink, place: Place | None, error: Exception) -> WatersmeetError:
    """The refusal of a sink that Spark cannot write to."""
    if is_unknown_format(error):
        return _unknown_format(sink.format, place)
    hint = f"correct the options of the sink `{sink.name}`; they are Spark's own for this format."
    option, reason = f"USING {sink.format}", first_line(error)
    return refuse("WRONG_OPTION", place, format=sink.format, option=option, reason=reason, hint=hint)


def storage_failure(text: str) -> WatersmeetError | None:
    r"""The refusal of what failed because a remote file system does not answer; None: for another reason.

    >>> stack = "java.net.ConnectException: Call to nn:8020 failed\n\tat org.apache.hadoop.ipc.Client.call"
    >>> storage_failure(f"Query stopped\nCaused by: {stack}").refusals[0].message
    'The storage cannot be reached: java.net.ConnectException: Call to nn:8020 failed.'
    >>> storage_failure("java.io.FileNotFoundException: hdfs://host/orders")
    """
    silent = _SILENT_STORAGE.search(text)
    # Files are what it is about: others are asked over the network, too.
    if silent is None or _FILE_SYSTEM.search(text) is None:
        return None
    line = text[text.rfind("\n", 0, silent.start()) + 1 :].partition("\n")[0]
    return refuse("STORAGE_UNREACHABLE", reason=line.strip().removeprefix("Caused by: ").rstrip(".")[:300])


def start_failure(query: str, sink: Sink, place: Place | None, error: Exception) -> WatersmeetError:
    """The refusal of a query that Spark does not start: for the options of its sink, or for whatever else it says."""
    if isinstance(error, StorageError):
        return refuse("STORAGE_UNREACHABLE", reason=str(error.strerror).rstrip("."))
    unreachable = storage_failure(str(error))
    if unreachable is not None:
        return unreachable
    if is_unknown_format(error) or _OPTION.search(first_line(error)):
        return unwritable_sink(sink, place, error)
    return refuse("START_FAILED", place, query=query, reason=root_cause(error) or first_line(error))


def kafka_failure(text: str, used: Iterable[Source | Sink]) -> WatersmeetError | None:
    """The refusal of what failed because of Kafka, with topics and servers; None: for another reason."""
    topics = [Topics(topic) for topic in used if str(topic.format).lower() == "kafka"]
    absent = _ABSENT_TOPIC.search(text)
    if absent is not None:
        named = [topic for topic in topics if absent["topic"] in topic.names]
        return WatersmeetError(topic.unknown() for topic in named or topics) if topics else None
    silent = [topic.refusal(topic.servers) for topic in topics] if _SILENT_BROKER in text else []
    return WatersmeetError(silent) if silent else None


_SILENT_STORAGE = re.compile(
    r"(?:ConnectException|ConnectTimeoutException|HttpHostConnectException|NoRouteToHostException|UnknownHostException"
    r"|SocketTimeoutException|SafeModeException|StandbyException|RetriableException|ConnectionTimeoutException"
    r"|AWSApiCallTimeoutException|AWSServiceThrottledException|AWSStatus5\d\dException|ServiceUnavailable"
    r"|Name node is in safe mode|End of File Exception between|Call From \S+ to \S+ failed)\b"
)
"""Errors of Hadoop's file systems whose servers do not answer, or do not serve yet."""
_FILE_SYSTEM = re.compile(
    r"org\.apache\.hadoop\.(?:fs|hdfs|ipc|net)\.|wiki\.apache\.org/hadoop/|Zero blocklocations|\bStorageError\b"
)
_OPTION = re.compile(r"\boptions?\b|\bpath\b.* not specified|does not support", re.IGNORECASE)
_ABSENT_TOPIC = re.compile(r"UnknownTopicOrPartitionException|Topic (?P<topic>\S+) not present in metadata")
_SILENT_DATABASE = ("java.net.", "FAILED_JDBC.CONNECTION")
"""Java's package of refused connections, and Spark's conditions for them from 4.2 on."""
_SILENT_BROKER = "apache.kafka.common.errors.TimeoutException"


def _unknown_format(format_: str, place: Place | None) -> WatersmeetError:
    """The refusal of a format that Spark does not know: one of a package, or a mistyped one."""
    if format_.lower() not in {*format_names(), *CONNECTORS}:
        hint = f"{did_you_mean(format_, format_names())} A format from a package needs `--packages group:name:version`."
        return refuse("UNKNOWN_FORMAT", place, format=format_, hint=hint)
    connector = connector_of(format_, spark_version())
    if connector is None:
        others = ", ".join(CONNECTORS.get(format_.lower(), ())) or "no other"
        none = f"no package is known for Spark {spark_version()} (only for {others})"
        hint = f"{none}; add one with `--packages group:name:version`."
    else:
        more = "".join(f' and `.config("{name}", "{value}")`' for name, value in connector.settings.items())
        hint = (
            "start Spark with `watersmeet run`, or start your own session with "
            f'`.config("spark.jars", ws.jars("{format_.lower()}"))`{more}: {", ".join(connector.packages)}.'
        )
    return refuse("MISSING_CONNECTOR", place, format=format_, hint=hint)
