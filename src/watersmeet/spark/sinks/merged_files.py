"""Files that hold the rows of several batches, and the swap that puts one in the place of the files it replaces.

A merged file is called ``part-000000412-since-000000003-5f0c1d2e.json``: its last and its first batch. So a start of
the query deletes it as a whole if all of its batches come again, and is refused if only some of them do.

A swap deletes the old files first and then renames the merged file into the folder, so a reader never sees a row twice.
A journal in ``.watersmeet/compaction`` says what replaces what, from before the first deletion until after the rename.
`finish_swap` does what is left of a swap; it may run any number of times.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from watersmeet.errors import refuse
from watersmeet.spark.private.files import LocalFolder

STAGED = ".watersmeet/compaction"
JOURNAL, ROWS = f"{STAGED}/journal", f"{STAGED}/rows"
"""What replaces what; and the merged file before it has its name. Neither has an ending that a glob of rows matches."""

_MERGED = re.compile(r"part-(\d{9,})-since-(\d{9,})-.*")


@dataclass(frozen=True)
class Swap:
    """The name of a merged file, and the names of the files that it replaces."""

    merged: str
    replaces: list[str]


def make_merged_name(first: int, last: int, unique: str, suffix: str) -> str:
    """The name of a merged file.

    >>> make_merged_name(3, 412, "5f0c1d2e", "snappy.parquet")
    'part-000000412-since-000000003-5f0c1d2e.snappy.parquet'
    """
    return f"part-{last:09}-since-{first:09}-{unique}.{suffix}"


def batch_range(name: str) -> tuple[int, int] | None:
    """The first and the last batch of a merged file; None: the name is not that of a merged file.

    >>> batch_range("part-000000412-since-000000003-5f0c1d2e.json"), batch_range("part-000000007-00001.json")
    ((3, 412), None)
    """
    match = _MERGED.fullmatch(name)
    return None if match is None else (int(match[2]), int(match[1]))


def has_unfinished_swap(folder: LocalFolder) -> bool:
    """Whether a swap was interrupted: rows of the folder may be in the hidden merged file alone."""
    return (folder.path / JOURNAL).is_file()


def begin_swap(folder: LocalFolder, swap: Swap) -> None:
    """Write the journal of a swap whose merged file is complete, so that it survives a power failure."""
    sync(folder.path / ROWS)
    hidden = folder.path / f"{JOURNAL}.new"
    hidden.write_text(json.dumps(asdict(swap)), "utf-8")
    sync(hidden)
    hidden.rename(folder.path / JOURNAL)
    sync(folder.path / STAGED)


def finish_swap(folder: LocalFolder) -> None:
    """Do what is left of a swap: delete the files that are replaced, then show the merged file."""
    text = folder.read(JOURNAL)
    if text is None:
        return
    try:
        swap = Swap(**json.loads(text))
    except (ValueError, TypeError):
        difference = f"{folder.path / JOURNAL} was not written by Watersmeet"
        raise refuse("FOLDER_OF_ANOTHER_SINK", folder=folder.path, difference=difference) from None
    is_staged = (folder.path / ROWS).is_file()
    # Without the merged file, which someone must have deleted, the old files are all there is.
    if is_staged or (folder.path / swap.merged).is_file():
        for name in swap.replaces:
            folder.delete(name)
        if is_staged:
            folder.move(ROWS, swap.merged)
        sync(folder.path)
    folder.delete(JOURNAL)


def sync(path: Path) -> None:
    """Let a file, or the names in a folder, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
