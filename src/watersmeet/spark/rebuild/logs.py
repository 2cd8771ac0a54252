"""How far a query is in its sources, told anew for a query that reads them in another order, or some more or less.

Spark tells sources apart by their place alone. So what was read is found again by what it is: files by their path, and
offsets by their topics. A source of which nothing was read begins where it would at a first start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from watersmeet.locations import local_path
from watersmeet.spark.past.log import plain_path
from watersmeet.spark.private.writers import FORMAT

NOTHING = "-"
"""How Spark writes that nothing of a source was read."""
Sources = Sequence[tuple[int, Mapping[str, str]]]
"""Of every source, in the order of their offsets: the number of its folder, and its options."""


@dataclass(frozen=True)
class FileLogEntry:
    """A file that a source has written down: in which of its folders, at which of its steps, and what it wrote."""

    folder: int
    step: int
    path: str
    written: Mapping[str, Any]


@dataclass(frozen=True)
class SourcePositions:
    """What a checkpoint says of how far its sources are: their lines, by batch, and all files of their logs."""

    lines: Mapping[int, Sequence[str]]
    heads: Mapping[int, Mapping[str, Any]]
    entries: Sequence[FileLogEntry]

    @staticmethod
    def of(checkpoint: Path, batches: Sequence[int]) -> SourcePositions:
        """What it says of these batches."""
        lines: dict[int, list[str]] = {}
        heads: dict[int, dict[str, Any]] = {}
        for batch in batches:
            _, head, *rest = (checkpoint / "offsets" / str(batch)).read_text("utf-8").split("\n")
            lines[batch], heads[batch] = rest, json.loads(head)
        return SourcePositions(lines, heads, tuple(_entries(checkpoint)))

    def files(self, batch: int) -> list[FileLogEntry]:
        """The files that were read up to a batch."""
        # Sources that are equal have a folder together, and lines that are equal; the first of them counts folders.
        steps = [int(_parse_object(line).get("logOffset", -1)) for line in self.lines[batch]]
        return [entry for entry in self.entries if entry.step <= steps[entry.folder]]

    def offsets(self, batch: int) -> list[tuple[frozenset[str], str]]:
        """The lines of topics, each with the names of these."""
        parsed = ((line, _parse_object(line)) for line in self.lines[batch])
        return [(frozenset(topics), line) for line, topics in parsed if topics and "logOffset" not in topics]


def write_logs(
    made: Path, was: SourcePositions, sources: Sources, batch: int, planned: int | None, conf: Mapping[str, Any]
) -> None:
    """Write how far the sources of a new checkpoint are after ``batch``, and what is ``planned`` next, if anything is.

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


def _write_offsets(made: Path, batch: int, head: Mapping[str, Any], lines: Sequence[str]) -> None:
    folder = made / "offsets"
    folder.mkdir(exist_ok=True)
    (folder / str(batch)).write_text("\n".join(["v1", json.dumps(head), *lines]), "utf-8")


def _write_entries(folder: Path, per_step: Sequence[Sequence[FileLogEntry]]) -> None:
    """The log of a file source: what is done as its first step, and what is planned as the next."""
    folder.mkdir(parents=True)
    seen = set[str]()
    for step, entries in enumerate(per_step):
        new = {entry.path: entry for entry in entries if entry.path not in seen}
        seen |= new.keys()
        texts = [json.dumps({**entry.written, "batchId": step}) for entry in new.values()]
        (folder / str(step)).write_text("\n".join(["v1", *texts]), "utf-8")


def _offsets(options: Mapping[str, str], was: SourcePositions, batch: int) -> str:
    """The line of a source of topics; nothing, if it is none, or nobody has read them."""
    names = {name.strip() for name in options.get("subscribe", "").split(",")} - {""}
    if FORMAT in options and options[FORMAT] == "kafka":
        for topics, line in was.offsets(batch):
            if (names and topics <= names) or (not names and topics):
                return line
    return NOTHING


def _entries_of_source(
    own_options: Mapping[str, str], sources: Sources, entries: Sequence[FileLogEntry]
) -> list[FileLogEntry]:
    """Those of the files that a source with these options reads: the folders all of whose files lie in its path.

    Where paths lie in each other the longest counts.
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


def _entries(checkpoint: Path) -> Iterator[FileLogEntry]:
    """All files that sources have written down, each once."""
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
