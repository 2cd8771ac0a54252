"""Transfers between Spark and Python: requests to the state, large values, and the size of Arrow batches.

Requests to the state of a shard go out at once. Why: PySpark waits for each answer before the next request, most of the
time of a small batch. Uses: ``sockfile`` and ``_receive_proto_message`` of the client behind a stateful processor's
handle; Spark answers requests in order. Missing: each request waits for its answer.

Large values go to the state without copies. Why: PySpark copies a value seven times into nested messages. Uses: the map
behind a stateful processor, and the field numbers of the message that sets a value. Missing, and for small values:
PySpark builds the message.

Batches without a byte count. Why: after each row Spark asks how large the Arrow batch is, a third of the time of such a
task, unless ``maxBytesPerBatch`` is Java's largest integer; then the number of records alone bounds a batch. Uses: that
internal setting, which becomes a property of tasks, and the nodes of the analyzed plan. Missing: Spark counts as
before, and there are no spacers.

Seen in: 4.0 to 4.3.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pickle import Pickler
from struct import pack
from typing import Any

from pyspark import TaskContext
from pyspark.serializers import pickle_protocol
from pyspark.sql.types import StructType

REQUESTS, REQUEST_BYTES = 32, 64 * 1024
"""The requests sent before their answers are read, unless they have more bytes: if more answers were pending than a
socket holds, Spark would stop reading; and it stops reading after a request that it cannot answer.
"""

Answers = list[bytes]
"""The answers to several requests."""


class WriteBuffer:
    """A file that collects the chunks written to it."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.bytes = 0

    def write(self, piece: bytes) -> None:
        """Hold this, too."""
        self.pieces.append(piece)
        self.bytes += len(piece)

    def flush(self) -> None:
        """Nothing waits."""


@contextmanager
def pipeline_requests(handle: Any) -> Generator[Answers | None]:
    """Send the requests that are made meanwhile at the end, some at a time; the answers are there after that.

    Until then each seems to be answered by nothing. None: each is sent when it is made.
    """
    client = handle._statefulProcessorApiClient
    if not hasattr(client, "sockfile") or not hasattr(client, "_receive_proto_message"):
        yield None
        return
    file, receive = client.sockfile, client._receive_proto_message
    requests, ends, answers = WriteBuffer(), list[tuple[int, int]](), Answers()

    def fake_answer() -> tuple[int, str, bytes]:
        ends.append((len(requests.pieces), requests.bytes))
        return 0, "", b""

    client.sockfile, client._receive_proto_message = requests, fake_answer
    try:
        yield answers
    finally:
        client.sockfile = file
        # PySpark's own name is restored.
        del client._receive_proto_message
    start = sent = before = 0
    for made, (end, size) in enumerate(ends, 1):
        if made == len(ends) or made - sent >= REQUESTS or ends[made][1] - before > REQUEST_BYTES:
            for piece in requests.pieces[start:end]:
                file.write(piece)
            file.flush()
            for _ in range(made - sent):
                status, error, value = receive()
                if status != 0:
                    raise RuntimeError(f"the state cannot be read or written: {error}")
                answers.append(value)
            start, before, sent = end, size, made


def decode_value(handle: Any, answer: bytes) -> Any:
    """The value of a map from an answer; None: no value."""
    return handle._statefulProcessorApiClient._deserialize_from_bytes(answer) if answer else None


LARGE = 64 * 1024
"""A pickler hands bytes on as they are, if they are so many."""
USED = (("_stateName",), ("user_key_schema",), ("sockfile", "_receive_proto_message", "_serialize_to_bytes"))
"""The attributes used of a map, of the object behind it, and of the client behind that."""
PATH = (("StateRequest", "stateVariableRequest"), ("StateVariableRequest", "mapStateCall"))
"""The messages around the one that is about a map, from the outermost, and the field in each that holds the next."""


def put(state: Any, key: str, value: bytes) -> None:
    """Set a value of a map from a text to bytes, as `MapState.updateValue` does."""
    client: Any = getattr(state, "_mapStateClient", None)
    api: Any = getattr(client, "_stateful_processor_api_client", None)
    numbers = _numbers() if len(value) >= LARGE else None
    parts = zip((state, client, api), USED, strict=True)
    if numbers is None or not all(hasattr(part, name) for part, names in parts for name in names):
        state.updateValue((key,), (value,))
        return
    pickled = WriteBuffer()
    Pickler(pickled, pickle_protocol).dump((value,))
    encoded_key = api._serialize_to_bytes(client.user_key_schema, (key,))
    head = message_head(numbers, state._stateName, encoded_key, pickled.bytes)
    for piece in (pack("!ii", 0, len(head) + pickled.bytes) + head, *pickled.pieces):
        api.sockfile.write(piece)
    api.sockfile.flush()
    status, error, _ = api._receive_proto_message()
    if status != 0:
        raise RuntimeError(f"the state cannot be written: {error}")


def message_head(numbers: dict[str, int], state: str, key: bytes, size: int) -> bytes:
    """The message that sets the value of a key, up to the value, which has so many bytes and is its end."""
    name = state.encode()
    head = _field(numbers["userKey"], len(key)) + key + _field(numbers["value"], size)
    head = _field(numbers["stateName"], len(name)) + name + _field(numbers["updateValue"], len(head) + size) + head
    for _, field in reversed(PATH):
        head = _field(numbers[field], len(head) + size) + head
    return head


@cache
def _numbers() -> dict[str, int] | None:
    """The numbers of the fields, by their names; None: the messages are not those that are known."""
    fields = [*PATH, *(("MapStateCall", field) for field in ("stateName", "updateValue"))]
    fields += [("UpdateValue", field) for field in ("userKey", "value")]
    with suppress(ImportError, AttributeError, KeyError):
        from pyspark.sql.streaming.proto import StateMessage_pb2 as messages

        return {field: getattr(messages, message).DESCRIPTOR.fields_by_name[field].number for message, field in fields}
    return None


def _field(number: int, length: int) -> bytes:
    """The header of a field of this many bytes: its number and its length as varints.

    >>> _field(3, 300).hex(" ")
    '1a ac 02'
    """
    written = bytearray()
    for rest in (number << 3 | 2, length):
        while rest > 127:
            written.append(rest & 127 | 128)
            rest >>= 7
        written.append(rest)
    return bytes(written)


BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
UNLIMITED = str(2**31 - 1)
"""With this many bytes per batch Spark does not count them."""
RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_USUAL = "10000"
_BYTES_PER_BATCH = 64 * 2**20
"""As Spark has it since 4.1; before, it was more."""
_LEAST = 1024
"""With less room there would be more spacers than records are worth."""
_CALLS = ("MapInArrow", "MapInPandas", "TransformWithStateInPySpark")
_SINKS = frozenset(["console", "csv", "delta", "iceberg", "json", "kafka", "memory", "noop", "orc", "parquet", "text"])
"""The formats that are known to be written without Python."""
IN_BATCHES = "#batches "
"""The prefix that replaces a format where a function gets every batch; the module of that function follows."""
_OURS = f"{IN_BATCHES}watersmeet."


@dataclass(frozen=True)
class PythonTransfer:
    """Rows that are handed to a function in Python, and those that it gives."""

    input_schema: StructType
    output_schema: StructType


def room(records: str | None) -> int | None:
    """The largest number of bytes per record, if a batch has at most so many records; None: too little, or no limit.

    >>> room("16384"), room("0")
    (4096, None)
    """
    most = int(records or _USUAL)
    return _BYTES_PER_BATCH // most if 0 < most <= _BYTES_PER_BATCH // _LEAST else None


def room_here() -> int | None:
    """In a task of a query: the `room` of a record; None where Spark itself counts bytes."""
    context = TaskContext.get()
    if context is None or context.getLocalProperty(BYTES) != UNLIMITED:
        return None
    return room(context.getLocalProperty(RECORDS))


def python_transfers(frame: Any, sink: str) -> tuple[PythonTransfer, ...] | None:
    """Everything that crosses to Python when this frame is written to a format; None: unknown.

    Our own batch functions may send the rows to Python, too.
    """
    is_ours = sink.startswith(_OURS)
    if not hasattr(frame, "_jdf") or not (is_ours or sink.lower() in _SINKS):
        return None
    try:
        patterns = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        transfers = [*_in_plan(frame._jdf.queryExecution().analyzed(), (patterns.PYTHON_UDF(), patterns.GENERATE()))]
    except Exception:  # our own, of Java, or of the library that speaks to it
        return None
    return (*transfers, PythonTransfer(frame.schema, StructType())) if is_ours else tuple(transfers)


def _in_plan(node: Any, patterns: tuple[Any, Any]) -> Iterator[PythonTransfer]:
    """The transfers to Python in a part of a plan; an error where Python is called other than by whole rows."""
    if not _has(node, patterns):
        return
    kind = node.getClass().getSimpleName()
    if kind in _CALLS:
        yield PythonTransfer(
            *(StructType.fromJson(json.loads(plan_node.schema().json())) for plan_node in (node.child(), node))
        )
    elif any(_has(plan_node, patterns) for plan_node in _scala_items(node.expressions())) or _makes_a_table(kind, node):
        raise LookupError(kind)
    for child in _scala_items(node.children()):
        yield from _in_plan(child, patterns)


def _has(part: Any, patterns: tuple[Any, Any]) -> bool:
    return any(part.containsPattern(pattern) for pattern in patterns)


def _makes_a_table(kind: str, node: Any) -> bool:
    """Whether a node is a table function in Python, which no pattern shows."""
    return kind == "Generate" and "Python" in node.generator().getClass().getSimpleName()


def _scala_items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(n) for n in range(sequence.size()))
