"""The records of a shard in one batch, in an order that no attempt of the batch changes.

A shuffle hands records over in any order, and in another one when a task is repeated. So a step takes the rows of a
port in the order in which they were delivered, which blobs carry with them, and a large batch is cut by that order as
well. Until all records are there, those that do not fit into memory wait in a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import BinaryIO

import pyarrow as pa

from watersmeet.spark.exchange.packing import WATERMARKS, from_blobs, place_of


@dataclass(frozen=True)
class SpilledBlob:
    """A blob in a file: its place in the order of delivery, where it begins, and its bytes."""

    file: BinaryIO
    place: int
    start: int
    size: int

    def read(self) -> bytes:
        """The blob."""
        return os.pread(self.file.fileno(), self.size, self.start)


class SpillFile:
    """Blobs of a group that do not fit into memory. The file has no name, and goes with the task, however that ends."""

    def __init__(self, folder: str | None) -> None:
        self.folder = folder
        self.size = 0
        self._file: BinaryIO | None = None

    def put(self, blob: bytes) -> SpilledBlob:
        """Write a blob."""
        if self._file is None:
            # Unbuffered, so that written data can be read back.
            self._file = TemporaryFile(buffering=0, prefix="watersmeet-", dir=self.folder)  # noqa: SIM115 - see `close`
        rest = memoryview(blob)
        while rest:
            rest = rest[self._file.write(rest) :]
        self.size += len(blob)
        return SpilledBlob(self._file, place_of(blob), self.size - len(blob), len(blob))

    def close(self) -> None:
        """Remove it."""
        if self._file is not None:
            self._file.close()


class InputBuffer:
    """Records of a shard that no step has seen yet; ``split``: the ports whose rows need not wait for the whole batch.

    - ``ports``: those that something came to in this batch
    - ``late``: rows that only pass through
    - ``bytes``: of rows in memory that need not wait
    """

    def __init__(self, split: frozenset[int]) -> None:
        self.split = split
        self.ports: set[int] = set()
        self.watermarks: dict[int, list[bytes]] = {}
        self.late: list[bytes] = []
        self.bytes = 0
        self._blobs: dict[int, list[bytes | SpilledBlob]] = {}

    def add(self, port: int, kind: int, blob: bytes) -> None:
        """Add a record of rows or watermarks."""
        self.ports.add(port)
        if kind == WATERMARKS:
            self.watermarks.setdefault(port, []).append(blob)
            return
        self._blobs.setdefault(port, []).append(blob)
        self.bytes += len(blob) if port in self.split else 0

    def add_late(self, port: int, blob: bytes) -> None:
        """Take late rows of a join further up."""
        self.ports.add(port)
        self.late.append(blob)

    def spill(self, file: SpillFile) -> None:
        """Let rows that need not wait for the whole batch wait in a file."""
        for port in self.split & self._blobs.keys():
            self._blobs[port] = [
                blob if isinstance(blob, SpilledBlob) else file.put(blob) for blob in self._blobs[port]
            ]
        self.bytes = 0

    def parts(self, size: int) -> Iterator[tuple[dict[int, pa.Table], bool]]:
        """Yield rows by port, and whether they are complete; large arrivals in parts of about ``size`` bytes."""
        blobs = [(port, blob) for port in self.split for blob in self._blobs.pop(port, ())]
        if sum(_size(blob) for _, blob in blobs) > size:
            blobs.sort(key=lambda entry: (_place(entry[1]), entry[0], _size(entry[1])))
        waiting = 0
        for port, blob in blobs:
            if waiting > size:
                yield self._tables(self.split), False
                waiting = 0
            self._blobs.setdefault(port, []).append(blob)
            waiting += _size(blob)
        yield self._tables(frozenset(self._blobs)), True

    def _tables(self, ports: frozenset[int]) -> dict[int, pa.Table]:
        """The rows of some ports; they wait no longer."""
        some = sorted(self._blobs.keys() & ports)
        return {port: from_blobs([_read(blob) for blob in self._blobs.pop(port)]) for port in some}


def _size(blob: bytes | SpilledBlob) -> int:
    return blob.size if isinstance(blob, SpilledBlob) else len(blob)


def _place(blob: bytes | SpilledBlob) -> int:
    return blob.place if isinstance(blob, SpilledBlob) else place_of(blob)


def _read(blob: bytes | SpilledBlob) -> bytes:
    return blob.read() if isinstance(blob, SpilledBlob) else blob
