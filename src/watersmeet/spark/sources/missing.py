"""Input files that are gone before their batch is finished: Spark would repeat the batch without them, and say nothing.

A file source writes down the files of each batch before it reads them, and Spark up to which batch all is delivered.
What lies between is read again by the next start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast
from urllib.parse import unquote

from pyspark.sql import SparkSession

from watersmeet.errors import refuse
from watersmeet.locations import local_path
from watersmeet.spark.private.files import Folder, file_exists, folder_of

ENTRY = {"path", "timestamp", "batchId"}
"""What a file source writes down of every file."""
MISSING = "spark.sql.files.ignoreMissingFiles"


def check_inputs(spark: SparkSession, checkpoint: str, sources: Sequence[tuple[int, Mapping[str, str]]]) -> None:
    """Refuse to repeat a batch of which files are gone, unless their source says that it can do without.

    ``sources``: of every source, in the order of their offsets, the number of its folder and its options.
    """
    folder = folder_of(spark, checkpoint)
    offsets = _commit_offsets(folder)
    if offsets and len(offsets) != len(sources):
        return
    usual = str(spark.conf.get(MISSING, "false"))
    gone: list[str] = []
    for (number, options), offset in zip(sources, offsets or [-1] * len(sources), strict=True):
        said = {name.lower(): value for name, value in options.items()}
        if said.get("ignoremissingfiles", usual).lower() != "true":
            gone += [file for file in _files_after(folder, f"sources/{number}", offset) if not file_exists(spark, file)]
    if gone:
        more = f" and {len(gone) - 1:,} more" if len(gone) > 1 else ""
        raise refuse("INPUT_FILE_GONE", file=local_path(unquote(gone[0])), more=more)


def _commit_offsets(folder: Folder) -> list[int]:
    """How far each file source has been delivered, in the order of the sources; nothing: no batch is finished."""
    done = [int(name) for name in folder.names("commits") if name.isdecimal()]
    text = folder.read(f"offsets/{max(done)}") if done else None
    # A version, the metadata of the batch, and a line for every source.
    return [_number(line) for line in (text or "").split("\n")[2:]]


def _number(line: str) -> int:
    offset = _parse_line(line)
    return int(offset["logOffset"]) if "logOffset" in offset else -1


def _files_after(folder: Folder, log: str, offset: int) -> Iterator[str]:
    """The files of a file source that it has written down after that offset."""
    numbers = {name: name.removesuffix(".compact") for name in folder.names(log)}
    for name in (name for name, number in numbers.items() if number.isdecimal() and int(number) > offset):
        for entry in map(_parse_line, (folder.read(f"{log}/{name}") or "").split("\n")[1:]):
            if entry.keys() >= ENTRY and entry["batchId"] > offset:
                yield str(entry["path"])


def _parse_line(line: str) -> dict[str, Any]:
    """A line of a log, if it is an object; Spark itself reports one that is damaged."""
    try:
        entry: Any = json.loads(line)
    except ValueError:
        return {}
    return cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
