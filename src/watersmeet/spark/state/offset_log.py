"""The log of a checkpoint: the files and offsets of its sources that each batch read. It needs no Spark.

Spark writes ``offsets/N`` before batch N, with a line per source, and ``commits/N`` after it. A file source counts its
own steps; the files of each are in ``sources/K``, some steps together in a ``.compact`` file. For a topic the line has
the offsets themselves. Spark deletes old batches, so the first ones may be missing.

Also here: the number of files of a folder that a query has not read yet, and offsets for a query that reads its sources
in another order, or reads more or fewer. Spark identifies sources by position only, so positions are matched by path or
topic; an unread source begins as at a first start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from time import monotonic
from typing import Any, cast
from urllib.parse import unquote

from watersmeet.catalog import Source
from watersmeet.locations import Storage, is_local, local_path
from watersmeet.spark.private.writers import FORMAT

MICROS_PER_MILLI = 1000


@dataclass(frozen=True)
class OffsetLog:
    """The batches of a checkpoint and their inputs.

    - ``batches``: those that succeeded and are still known; ``clocks``: when each began, in microseconds
    - ``files``: by path, the batch that read a file; ``older``: those read before the first known batch,
      under which they are listed
    - ``offsets``: by ``topic-partition``, for each batch the first offset that it did not read; ``begin``: where the
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
        """The batch that read a record; None: no batch has yet, or it precedes the first batch.

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


def read_log(checkpoint: Storage) -> OffsetLog:
    """The log of a checkpoint; without batches if the checkpoint does not exist."""
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


def _lines(path: Storage) -> list[str]:
    """The lines of a file after its first, the version; empty if a running query has removed it meanwhile."""
    try:
        return path.read_text("utf-8").splitlines()[1:]
    except FileNotFoundError:
        return []


def _partitions(offsets_by_topic: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for topic, parts in offsets_by_topic.items():
        if isinstance(parts, dict):
            for partition, offset in cast("dict[str, int]", parts).items():
                yield f"{topic}-{partition}", int(offset)


def _start_offsets(checkpoint: Storage, number: int) -> Iterator[tuple[str, int]]:
    """The offsets at which the first batch began to read a topic."""
    path = checkpoint / "sources" / str(number) / "0"
    text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    if "{" in text:
        yield from _partitions(json.loads(text[text.index("{") :]))


def _files(checkpoint: Storage, number: int, steps: Mapping[int, int]) -> Iterator[tuple[str, int, bool]]:
    """The files that a source read, each with its batch; files of steps before all known batches with the first.

    The flag says which these are: a batch has one step at most.
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


FileCounter = Callable[[], int | None]
"""Counts unread files; None: unknown."""
FORMATS = frozenset({"json", "csv", "parquet", "orc", "text", "avro", "xml"})
MOST_FILES, MOST_BYTES = 20_000, 8_000_000
"""A folder with more files, and a log of read ones that is larger, are not looked through."""
PAUSE = 5.0
"""Seconds for which a count is cached."""
OLDEST = 7 * 86_400
"""Spark passes files over that are older than the newest one by so many seconds."""
_OTHERS = frozenset({"pathglobfilter", "recursivefilelookup", "maxfileage", "cleansource"})
"""Options by which Spark reads others than those that lie in the folder."""


def backlog_counters(sources: Iterable[Source], checkpoint: Storage) -> dict[str, FileCounter]:
    """The counters of unread files for the sources of a query that are local folders, as is its checkpoint."""
    if not is_local(checkpoint):
        # A look at the log is a request, or several, and the numbers are wanted every few seconds.
        return {}
    return {
        source.name: _make_counter(Path(path), checkpoint)
        for source in sources
        if (path := _folder(source)) is not None
    }


def _folder(source: Source) -> str | None:
    options = source.lowercase_options
    path = local_path(options.get("path", ""))
    is_plain = path and "://" not in path and not set(path) & set("*?[{")
    return (
        path if is_plain and (source.format or "").lower() in FORMATS and options.keys().isdisjoint(_OTHERS) else None
    )


def _make_counter(folder: Path, checkpoint: Storage) -> FileCounter:
    cached: tuple[float, int | None] | None = None

    def count() -> int | None:
        nonlocal cached
        if cached is None or monotonic() - cached[0] > PAUSE:
            cached = monotonic(), count_unread_files(folder, checkpoint)
        return cached[1]

    return count


def count_unread_files(folder: Path, checkpoint: Storage) -> int | None:
    """The number of files in a folder that no batch has read; None: not a plain folder, or too large to list."""
    logs = list((checkpoint / "sources").glob("*/*"))
    try:
        if sum(path.stat().st_size for path in logs) > MOST_BYTES:
            return None
        changed: dict[str, float] = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith((".", "_")):
                    continue
                if entry.is_dir() or len(changed) == MOST_FILES:
                    return None
                changed[entry.path] = entry.stat().st_mtime
        read = read_log(checkpoint).files
    except (OSError, ValueError):
        # A running query removes and writes meanwhile: the next look may succeed.
        return None
    newest = max(changed.values(), default=0.0)
    return sum(path not in read and time >= newest - OLDEST for path, time in changed.items())


NOTHING = "-"
"""Spark's offset of a source that was not read."""
Sources = Sequence[tuple[int, Mapping[str, str]]]
"""Of every source, in the order of their offsets: the number of its folder, and its options."""


@dataclass(frozen=True)
class FileLogEntry:
    """An entry of a file source's log: its folder, its step, the path, and the record."""

    folder: int
    step: int
    path: str
    written: Mapping[str, Any]


@dataclass(frozen=True)
class SourcePositions:
    """The positions of a checkpoint's sources: their offset lines, by batch, and all files of their logs."""

    lines: Mapping[int, Sequence[str]]
    heads: Mapping[int, Mapping[str, Any]]
    entries: Sequence[FileLogEntry]

    @staticmethod
    def of(checkpoint: Storage, batches: Sequence[int]) -> SourcePositions:
        """The positions after these batches."""
        lines: dict[int, list[str]] = {}
        heads: dict[int, dict[str, Any]] = {}
        for batch in batches:
            _, head, *rest = (checkpoint / "offsets" / str(batch)).read_text("utf-8").split("\n")
            lines[batch], heads[batch] = rest, json.loads(head)
        return SourcePositions(lines, heads, tuple(_entries(checkpoint)))

    def files(self, batch: int) -> list[FileLogEntry]:
        """The files that were read up to a batch."""
        # Equal sources share a folder and have equal lines; folders are numbered by the first of them.
        steps = [int(_parse_object(line).get("logOffset", -1)) for line in self.lines[batch]]
        return [entry for entry in self.entries if entry.step <= steps[entry.folder]]

    def offsets(self, batch: int) -> list[tuple[frozenset[str], str]]:
        """The lines of topics, each with the names of these."""
        parsed = ((line, _parse_object(line)) for line in self.lines[batch])
        return [(frozenset(topics), line) for line, topics in parsed if topics and "logOffset" not in topics]


def write_logs(
    made: Storage, was: SourcePositions, sources: Sources, batch: int, planned: int | None, conf: Mapping[str, Any]
) -> None:
    """Write the positions of a new checkpoint's sources after ``batch``, and those of the ``planned`` batch, if any.

    ``conf``: the settings that its state was written with.
    """
    done = set[int]()
    steps = [batch] if planned is None else [batch, planned]
    lines: dict[int, list[str]] = {step: [] for step in steps}
    for number, options in sources:
        options_by_name = {name.lower(): value for name, value in options.items()}
        per_step = [_entries_of_source(options_by_name, sources, was.files(step)) for step in steps]
        for place, step in enumerate(steps):
            if "path" in options_by_name:
                # Spark compares the texts of offsets.
                lines[step].append(f'{{"logOffset":{place}}}' if per_step[place] else NOTHING)
            else:
                lines[step].append(_offsets(options_by_name, was, step))
        if "path" in options_by_name and number not in done and any(per_step):
            _write_entries(made / "sources" / str(number), per_step)
            done.add(number)
    for step in steps:
        _write_offsets(made, step, {**was.heads[step], "conf": dict(conf)}, lines[step])
    if batch:
        # Spark reads the batch before the last as well. Sinks know by its time which batch it is: this one is neither.
        head = {**was.heads[batch], "conf": dict(conf), "batchTimestampMs": 0}
        _write_offsets(made, batch - 1, head, lines[batch])


def _write_offsets(made: Storage, batch: int, head: Mapping[str, Any], lines: Sequence[str]) -> None:
    folder = made / "offsets"
    folder.mkdir(exist_ok=True)
    (folder / str(batch)).write_text("\n".join(["v1", json.dumps(head), *lines]), "utf-8")


def _write_entries(folder: Storage, per_step: Sequence[Sequence[FileLogEntry]]) -> None:
    """Write the log of a file source: read files as its first step, planned ones as the next."""
    folder.mkdir(parents=True)
    seen = set[str]()
    for step, entries in enumerate(per_step):
        new = {entry.path: entry for entry in entries if entry.path not in seen}
        seen |= new.keys()
        texts = [json.dumps({**entry.written, "batchId": step}) for entry in new.values()]
        (folder / str(step)).write_text("\n".join(["v1", *texts]), "utf-8")


def _offsets(options: Mapping[str, str], was: SourcePositions, batch: int) -> str:
    """The offsets of a Kafka source; a dash for another source, or if its topics were not read."""
    names = {name.strip() for name in options.get("subscribe", "").split(",")} - {""}
    if FORMAT in options and options[FORMAT] == "kafka":
        for topics, line in was.offsets(batch):
            if (names and topics <= names) or (not names and topics):
                return line
    return NOTHING


def _entries_of_source(
    own_options: Mapping[str, str], sources: Sources, entries: Sequence[FileLogEntry]
) -> list[FileLogEntry]:
    """The files that a source with these options reads: those of log folders whose files all lie in its path.

    Among nested paths the longest counts.
    """
    if "path" not in own_options:
        return []
    paths = [value for _, options in sources for name, value in options.items() if name.lower() == "path"]
    matches: list[FileLogEntry] = []
    for folder in dict.fromkeys(entry.folder for entry in entries):
        own = [entry for entry in entries if entry.folder == folder]
        fits = [path for path in paths if all(is_in(entry.path, path) for entry in own)]
        if fits and plain_path(max(fits, key=len)) == plain_path(own_options["path"]):
            matches += own
    return matches


def is_in(file: str, path: str) -> bool:
    """Whether a source with that path reads a file.

    >>> is_in("/data/orders/1.json", "file:/data/orders/"), is_in("/data/orders/1.json", "/data/*/*.json")
    (True, True)
    >>> is_in("/data/orders2/1.json", "/data/orders")
    False
    """
    place = plain_path(path if "://" in local_path(path) else str(Path(local_path(path)).absolute())).rstrip("/")
    if any(c in place for c in "*?[{"):
        return fnmatchcase(file, place) or fnmatchcase(file, f"{place}/*")
    return file == place or file.startswith(f"{place}/")


def _entries(checkpoint: Storage) -> Iterator[FileLogEntry]:
    """All files in the logs of sources, each once."""
    for folder in sorted((checkpoint / "sources").glob("*")):
        seen = set[str]()
        logs = [file for file in folder.glob("*") if file.name.removesuffix(".compact").isdecimal()]
        for file in sorted(logs, key=lambda log: (int(log.name.removesuffix(".compact")), log.suffix)):
            for line in file.read_text("utf-8", "replace").split("\n")[1:]:
                record = _parse_object(line)
                if {"path", "batchId"} <= record.keys() and str(record["path"]) not in seen:
                    seen.add(str(record["path"]))
                    yield FileLogEntry(
                        int(folder.name), int(record["batchId"]), plain_path(str(record["path"])), record
                    )


def _parse_object(line: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(line)
    except ValueError:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
