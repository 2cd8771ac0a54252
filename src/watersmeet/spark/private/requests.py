"""Requests to the state of a shard that go out together.

Why: PySpark waits for the answer to every request before it sends the next one, and where batches are small that is
most of the time of a shard. Uses: the client behind the handle of a stateful processor, of which ``sockfile`` takes
requests and `_receive_proto_message` reads the answer to one; and that Spark answers requests in their order. Seen in:
4.0 to 4.3. Where something is missing each request waits for its answer, as ever.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

Answers = list[bytes]
"""What was answered to each of some requests."""


@contextmanager
def sent_together(handle: Any) -> Generator[Answers | None]:
    """Send the requests that are made meanwhile at the end, at once; the answers are there after that.

    Until then each seems to be answered by nothing. None: each is sent when it is made. Either all requests are long or
    all answers: if both were, each side would wait for the other to read.
    """
    client = handle._statefulProcessorApiClient
    if not hasattr(client, "sockfile") or not hasattr(client, "_receive_proto_message"):
        yield None
        return
    file, receive = client.sockfile, client._receive_proto_message
    requests, made, answers = BytesIO(), 0, Answers()

    def answered() -> tuple[int, str, bytes]:
        nonlocal made
        made += 1
        return 0, "", b""

    client.sockfile, client._receive_proto_message = requests, answered
    try:
        yield answers
    finally:
        client.sockfile = file
        del client._receive_proto_message
    file.write(requests.getvalue())
    file.flush()
    for _ in range(made):
        status, error, value = receive()
        if status != 0:
            raise RuntimeError(f"the state cannot be read or written: {error}")
        answers.append(value)


def value_of(handle: Any, answer: bytes) -> Any:
    """The value of a map that was asked for, by the answer; None: there is none."""
    return handle._statefulProcessorApiClient._deserialize_from_bytes(answer) if answer else None
