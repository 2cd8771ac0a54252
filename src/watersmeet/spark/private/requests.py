"""Requests to the state of a shard that go out together.

Why: PySpark waits for the answer to every request before it sends the next one, and where batches are small that is
most of the time of a shard. Uses: the client behind the handle of a stateful processor, of which ``sockfile`` takes
requests and `_receive_proto_message` reads the answer to one; and that Spark answers requests in their order.
Seen in: 4.0 to 4.3. Where something is missing each request waits for its answer, as ever.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

REQUESTS, BYTES = 32, 64 * 1024
"""So many requests go out before their answers are read, unless they have more bytes: if more answers waited than a
socket holds, Spark would no longer read; and after one that it cannot answer it does not."""

Answers = list[bytes]
"""What was answered to each of some requests."""


class WriteBuffer:
    """A file that holds what was written to it, as it was written."""

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
        # What PySpark has by that name is there again.
        del client._receive_proto_message
    start = sent = before = 0
    for made, (end, size) in enumerate(ends, 1):
        if made == len(ends) or made - sent >= REQUESTS or ends[made][1] - before > BYTES:
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
    """The value of a map that was asked for, by the answer; None: there is none."""
    return handle._statefulProcessorApiClient._deserialize_from_bytes(answer) if answer else None
