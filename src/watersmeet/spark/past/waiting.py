"""How many files of a folder a query has not read yet: where looking is cheap, and without Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic

from watersmeet.catalog import Source
from watersmeet.locations import local_path
from watersmeet.spark.past.log import read_log

FileCounter = Callable[[], int | None]
"""How many files wait; None: that is not known."""
FORMATS = frozenset({"json", "csv", "parquet", "orc", "text", "avro", "xml"})
MOST_FILES, MOST_BYTES = 20_000, 8_000_000
"""A folder with more files, and a log of read ones that is larger, are not looked through."""
PAUSE = 5.0
"""Seconds for which an answer stays."""
OLDEST = 7 * 86_400
"""Spark passes files over that are older than the newest one by so many seconds."""
_OTHERS = frozenset({"pathglobfilter", "recursivefilelookup", "maxfileage", "cleansource"})
"""Options by which Spark reads others than those that lie in the folder."""


def backlog_counters(sources: Iterable[Source], checkpoint: Path) -> dict[str, FileCounter]:
    """For the sources of a query that are folders of this machine, what tells how many files wait."""
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


def _make_counter(folder: Path, checkpoint: Path) -> FileCounter:
    cached: tuple[float, int | None] | None = None

    def count() -> int | None:
        nonlocal cached
        if cached is None or monotonic() - cached[0] > PAUSE:
            cached = monotonic(), count_unread_files(folder, checkpoint)
        return cached[1]

    return count


def count_unread_files(folder: Path, checkpoint: Path) -> int | None:
    """How many files of a folder no batch has read; None: it is no plain folder, or too much to look through."""
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
