"""The log of a checkpoint: which files and offsets of its sources a query read in which batch. It needs no Spark.

Spark writes ``offsets/N`` before batch N, with a line per source, and ``commits/N`` after it. A source of files counts
its own steps; which files each has is in ``sources/K``, some steps together in a ``.compact`` file. Of a topic the
offsets themselves stand there. Spark forgets old batches, so that the first ones may be missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

MICROS_PER_MILLI = 1000


@dataclass(frozen=True)
class OffsetLog:
    """What a checkpoint says of its batches.

    - ``batches``: those that succeeded and are still known; ``clocks``: when each began, in microseconds
    - ``files``: by path, the batch that read a file; ``older``: those of them that were read before the first known
      batch, under which they are
    - ``offsets``: by ``topic-partition``, of each batch the first offset that it did not read; ``begin``: where the
      first batch began
    """

    batches: tuple[int, ...]
    clocks: Mapping[int, int] = field(default_factory=dict[int, int])
    files: Mapping[str, int] = field(default_factory=dict[str, int])
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict[str, Mapping[int, int]])
    begin: Mapping[str, int] = field(default_factory=dict[str, int])
    older: frozenset[str] = frozenset()

    @property
    def is_whole(self) -> bool:
        """Whether it knows the first batch."""
        return not self.batches or self.batches[0] == 0

    def batch_of(self, partition: str, offset: int) -> int | None:
        """The batch that read a record; None: none has yet, or it was before the first that began.

        >>> OffsetLog((0, 1), offsets={"t-0": {0: 5, 1: 9}}).batch_of("t-0", 5)
        1
        """
        if offset < self.begin.get(partition, 0):
            return None
        ends = self.offsets.get(partition, {})
        return next((batch for batch in sorted(ends) if offset < ends[batch]), None)


def plain_path(path: str) -> str:
    """A path of Spark's, which are encoded as addresses are, as this machine has it.

    >>> plain_path("file:///data/a%20b.json")
    '/data/a b.json'
    """
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    return unquote(path)


def read_log(checkpoint: Path) -> OffsetLog:
    """The log of a checkpoint; without batches if there is none."""
    committed = {int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdecimal()}
    batches = sorted(
        int(path.name)
        for path in (checkpoint / "offsets").glob("*")
        if path.name.isdecimal() and int(path.name) in committed
    )
    clocks: dict[int, int] = {}
    steps: dict[int, dict[int, int]] = {}
    offsets: dict[str, dict[int, int]] = {}
    begin: dict[str, int] = {}
    for batch in list(batches):
        lines = _lines(checkpoint / "offsets" / str(batch))
        if not lines:
            batches.remove(batch)
            continue
        clocks[batch] = int(json.loads(lines[0]).get("batchTimestampMs", 0)) * MICROS_PER_MILLI
        for number, line in enumerate(lines[1:]):
            source_offset = json.loads(line) if line.startswith("{") else None
            if not isinstance(source_offset, dict):
                continue
            if "logOffset" in source_offset:
                steps.setdefault(number, {})[batch] = int(cast("Any", source_offset)["logOffset"])
                continue
            for partition, offset in _partitions(cast("dict[str, Any]", source_offset)):
                offsets.setdefault(partition, {})[batch] = offset
            begin |= {name: first for name, first in _start_offsets(checkpoint, number) if name not in begin}
    entries = [entry for number, of_batch in steps.items() for entry in _files(checkpoint, number, of_batch)]
    files = {file: batch for file, batch, _ in entries}
    older = frozenset(file for file, _, is_older in entries if is_older and batches[0] > 0)
    return OffsetLog(tuple(batches), clocks, files, offsets, begin, older)


def _lines(path: Path) -> list[str]:
    """The lines of a file behind its first, the version; none if a running query has removed it meanwhile."""
    try:
        return path.read_text("utf-8").splitlines()[1:]
    except FileNotFoundError:
        return []


def _partitions(offsets_by_topic: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for topic, parts in offsets_by_topic.items():
        if isinstance(parts, dict):
            for partition, offset in cast("dict[str, int]", parts).items():
                yield f"{topic}-{partition}", int(offset)


def _start_offsets(checkpoint: Path, number: int) -> Iterator[tuple[str, int]]:
    """Where the first batch began to read a topic."""
    path = checkpoint / "sources" / str(number) / "0"
    text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    if "{" in text:
        yield from _partitions(json.loads(text[text.index("{") :]))


def _files(checkpoint: Path, number: int, steps: Mapping[int, int]) -> Iterator[tuple[str, int, bool]]:
    """The files that a source read, each with its batch; those of steps before all known batches with the first.

    The last says which these are: a batch has one step at most.
    """
    first = steps[min(steps)]
    for path in sorted((checkpoint / "sources" / str(number)).glob("*")):
        if not path.name.removesuffix(".compact").isdecimal():
            continue
        for line in _lines(path):
            entry = json.loads(line)
            batch = next((batch for batch in sorted(steps) if steps[batch] >= int(entry["batchId"])), None)
            if batch is not None:
                yield plain_path(entry["path"]), batch, int(entry["batchId"]) < first
