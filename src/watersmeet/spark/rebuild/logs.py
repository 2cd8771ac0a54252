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
class Entry:
    """A file that a source has written down: in which of its folders, at which of its steps, and what it wrote."""

    folder: int
    step: int
    path: str
    written: Mapping[str, Any]


@dataclass(frozen=True)
class Read:
    """What a checkpoint says of how far its sources are: their lines, by batch, and all files of their logs."""

    lines: Mapping[int, Sequence[str]]
    heads: Mapping[int, Mapping[str, Any]]
    entries: Sequence[Entry]

    @staticmethod
    def of(checkpoint: Path, batches: Sequence[int]) -> Read:
        """What it says of these batches."""
        lines: dict[int, list[str]] = {}
        heads: dict[int, dict[str, Any]] = {}
        for batch in batches:
            _, head, *rest = (checkpoint / "offsets" / str(batch)).read_text("utf-8").split("\n")
            lines[batch], heads[batch] = rest, json.loads(head)
        return Read(lines, heads, tuple(_entries(checkpoint)))

    def files(self, batch: int) -> list[Entry]:
        """The files that were read up to a batch."""
        # Sources that are equal have a folder together, and lines that are equal; the first of them counts folders.
        steps = [int(_told(line).get("logOffset", -1)) for line in self.lines[batch]]
        return [entry for entry in self.entries if entry.step <= steps[entry.folder]]

    def offsets(self, batch: int) -> list[tuple[frozenset[str], str]]:
        """The lines of topics, each with the names of these."""
        told = ((line, _told(line)) for line in self.lines[batch])
        return [(frozenset(topics), line) for line, topics in told if topics and "logOffset" not in topics]


def write_logs(
    made: Path, was: Read, sources: Sources, batch: int, planned: int | None, conf: Mapping[str, Any]
) -> None:
    """Write how far the sources of a new checkpoint are after ``batch``, and what is ``planned`` next, if anything is.

    ``conf``: the settings that its state was written with.
    """
    done = set[int]()
    steps = [batch] if planned is None else [batch, planned]
    lines: dict[int, list[str]] = {one: [] for one in steps}
    for number, options in sources:
        said = {name.lower(): value for name, value in options.items()}
        per_step = [_mine(said, sources, was.files(one)) for one in steps]
        for place, one in enumerate(steps):
            if "path" in said:
                # Spark compares the texts of offsets.
                lines[one].append(f'{{"logOffset":{place}}}' if per_step[place] else NOTHING)
            else:
                lines[one].append(_offsets(said, was, one))
        if "path" in said and number not in done and any(per_step):
            _write_entries(made / "sources" / str(number), per_step)
            done.add(number)
    for one in steps:
        _write_offsets(made, one, {**was.heads[one], "conf": dict(conf)}, lines[one])
    if batch:
        # Spark reads the batch before the last as well. Sinks know by its time which batch it is: this one is neither.
        head = {**was.heads[batch], "conf": dict(conf), "batchTimestampMs": 0}
        _write_offsets(made, batch - 1, head, lines[batch])


def _write_offsets(made: Path, batch: int, head: Mapping[str, Any], lines: Sequence[str]) -> None:
    folder = made / "offsets"
    folder.mkdir(exist_ok=True)
    (folder / str(batch)).write_text("\n".join(["v1", json.dumps(head), *lines]), "utf-8")


def _write_entries(folder: Path, per_step: Sequence[Sequence[Entry]]) -> None:
    """The log of a file source: what is done as its first step, and what is planned as the next."""
    folder.mkdir(parents=True)
    seen = set[str]()
    for step, entries in enumerate(per_step):
        new = {one.path: one for one in entries if one.path not in seen}
        seen |= new.keys()
        texts = [json.dumps({**one.written, "batchId": step}) for one in new.values()]
        (folder / str(step)).write_text("\n".join(["v1", *texts]), "utf-8")


def _offsets(said: Mapping[str, str], was: Read, batch: int) -> str:
    """The line of a source of topics; nothing, if it is none, or nobody has read them."""
    names = {name.strip() for name in said.get("subscribe", "").split(",")} - {""}
    if FORMAT in said and said[FORMAT] == "kafka":
        for topics, line in was.offsets(batch):
            if (names and topics <= names) or (not names and topics):
                return line
    return NOTHING


def _mine(said: Mapping[str, str], sources: Sources, entries: Sequence[Entry]) -> list[Entry]:
    """Those of the files that a source with these options reads: the folders all of whose files lie in its path.

    Where paths lie in each other the longest counts.
    """
    if "path" not in said:
        return []
    paths = [value for _, options in sources for name, value in options.items() if name.lower() == "path"]
    found: list[Entry] = []
    for folder in dict.fromkeys(entry.folder for entry in entries):
        own = [entry for entry in entries if entry.folder == folder]
        fits = [path for path in paths if all(is_in(entry.path, path) for entry in own)]
        if fits and plain_path(max(fits, key=len)) == plain_path(said["path"]):
            found += own
    return found


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


def _entries(checkpoint: Path) -> Iterator[Entry]:
    """All files that sources have written down, each once."""
    for folder in sorted((checkpoint / "sources").glob("*")):
        seen = set[str]()
        logs = [file for file in folder.glob("*") if file.name.removesuffix(".compact").isdecimal()]
        for file in sorted(logs, key=lambda log: (int(log.name.removesuffix(".compact")), log.suffix)):
            for line in file.read_text("utf-8", "replace").split("\n")[1:]:
                told = _told(line)
                if {"path", "batchId"} <= told.keys() and str(told["path"]) not in seen:
                    seen.add(str(told["path"]))
                    yield Entry(int(folder.name), int(told["batchId"]), plain_path(str(told["path"])), told)


def _told(line: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(line)
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
