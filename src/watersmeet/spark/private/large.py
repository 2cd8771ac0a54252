"""Large values that go to the state of a shard as they are.

Why: PySpark copies a value seven times, into a message in a message in a message, which takes longer than compressing
it. Uses: what a map of a stateful processor has behind it, and how the message is built that sets one of its values:
Spark's definition of it tells the numbers of its fields. Seen in: 4.0 to 4.3. Where something is missing, and for small
values, PySpark makes the message, as ever.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pickle import Pickler
from struct import pack
from typing import Any

from pyspark.serializers import pickle_protocol

from watersmeet.spark.private.requests import WriteBuffer

LARGE = 64 * 1024
"""A pickler hands bytes on as they are, if they are so many."""
USED = (("_stateName",), ("user_key_schema",), ("sockfile", "_receive_proto_message", "_serialize_to_bytes"))
"""What is used of a map, of what it has behind it, and of the client behind that."""
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
    """What comes before a field of so many bytes: its number and its length, each in sevens of bits, lowest first.

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
