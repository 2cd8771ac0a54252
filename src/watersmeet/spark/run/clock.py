"""A checkpoint whose query follows the clock from now on: Spark finds one source more than there was.

Spark keeps how far each source is as a line per source, and refuses another number of lines. The clock of the last
stage is the last source, so that it gets a line at the end: a dash, which stands for nothing yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from watersmeet.errors import refuse
from watersmeet.spark.private.files import Folder
from watersmeet.spark.private.writers import FORMAT
from watersmeet.spark.run.damage import PLANNED, numbers_in

CLOCK = "rate"
"""The source of Spark's that ticks."""


def has_room(folder: Folder, sources: Sequence[tuple[int, Mapping[str, str]]]) -> bool:
    """Whether the checkpoint knows all sources but the last, which is the clock."""
    texts = _planned(folder).values()
    return bool(texts) and sources[-1][1].get(FORMAT) == CLOCK and _lines([*texts][-1]) == len(sources) - 1


def add_clock(folder: Folder, sources: Sequence[tuple[int, Mapping[str, str]]]) -> None:
    """Let the checkpoint know of the clock, if it is what it does not know; done again, it changes nothing.

    Of a batch that is to be repeated Spark reads the one before, too: that one comes first.
    """
    if not sources or not has_room(folder, sources):
        return
    for file, text in _planned(folder).items():
        if _lines(text) == len(sources) - 1:
            folder.write(file, f"{text.rstrip()}\n-")
            head, _, name = file.rpartition("/")
            # A checksum of the file as it was.
            folder.delete(f"{head}/.{name}.crc")
            folder.delete(f"{file}.crc")


def check_room(folder: Folder, checkpoint: str, sources: Sequence[tuple[int, Mapping[str, str]]], anew: str) -> None:
    """Refuse a clock that is not the last of the sources."""
    if not has_room(folder, sources):
        raise refuse(
            "CHECKPOINT_OF_ANOTHER_QUERY", checkpoint=checkpoint, hint=f"undo the change, or {anew}",
            difference="a side may be idle now, and none could be; the clock has no place among Spark's sources",
        )  # fmt: skip


def _planned(folder: Folder) -> dict[str, str]:
    """The plans of the last two batches, in order."""
    files = [f"{PLANNED}/{number}" for number in numbers_in(folder, PLANNED)[-2:]]
    return {file: folder.read(file) or "" for file in files}


def _lines(text: str) -> int:
    """How many sources a plan has: behind a version and the metadata of the batch each has a line."""
    return len(text.rstrip().split("\n")) - 2
