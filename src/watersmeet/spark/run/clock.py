"""A checkpoint whose query begins, or ceases, to follow the clock: Spark finds one source more, or less, than before.

Spark stores the offset of each source as a line, identifies sources by their position alone, and refuses another number
of lines. So a new checkpoint, with lines and folders of sources in their new positions and with the new owner, replaces
the old one. A clock that has not ticked yet has a dash. If the checkpoint is not on this machine, only one more line at
the end of a plan can be written in one step.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from watersmeet.errors import WatersmeetError, refuse
from watersmeet.spark.private.files import Folder, LocalFolder
from watersmeet.spark.private.writers import FORMAT
from watersmeet.spark.state.checkpoint import prepare_staging, swap
from watersmeet.spark.state.owner import OFFSETS_FOLDER, OWNER, Owner, batch_numbers

CLOCK = "rate"
"""The source of Spark's that ticks."""
NOTHING = "-"
Sources = Sequence[tuple[int, Mapping[str, str]]]
"""Of every source, in the order of their lines: the number of its folder, and its options."""
Places = Sequence[int | None]
"""Of every source, the place that it had; None: it is new."""


def take_clocks(folder: Folder, was: Owner, now: Owner, sources: Sources, spark_version: str) -> None:
    """Let a checkpoint be that of changed queries, which follow other clocks."""
    text = now.to_text(spark_version)
    if was.clocks == now.clocks or not isinstance(folder, LocalFolder):
        folder.write(OWNER, text)
        return
    places = _places(folder, was, now, sources)
    assert places is not None, "it was checked"
    made = prepare_staging(folder.path)
    try:
        _make(folder.path, made, places, _folders(places, sources))
        (made / OWNER).write_text(text, "utf-8")
        swap(made, folder.path)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def check_clocks(folder: Folder, checkpoint: str, was: Owner, now: Owner, sources: Sources, restart_hint: str) -> None:
    """Refuse other clocks if they cannot be told from other sources."""
    if was.clocks == now.clocks:
        return
    if isinstance(folder, LocalFolder):
        if _places(folder, was, now, sources) is None:
            raise _clock_refusal(checkpoint, now, restart_hint)
    elif not _has_room(folder, sources):
        raise _clock_refusal(checkpoint, now, restart_hint)


def add_clock(folder: Folder, sources: Sources) -> None:
    """Let a checkpoint elsewhere know of the clock, if it is what it does not know; done again, it changes nothing.

    Of a batch that is to be repeated Spark reads the one before, too: that one comes first.
    """
    if not sources or not _has_room(folder, sources):
        return
    for number in batch_numbers(folder, OFFSETS_FOLDER)[-2:]:
        file = f"{OFFSETS_FOLDER}/{number}"
        text = folder.read(file) or ""
        if len(_lines(text)) == len(sources) - 1:
            folder.write(file, f"{text.rstrip()}\n{NOTHING}")
            # A checksum of the file as it was.
            folder.delete(f"{OFFSETS_FOLDER}/.{number}.crc")
            folder.delete(f"{file}.crc")


def _has_room(folder: Folder, sources: Sources) -> bool:
    """Whether the checkpoint knows all sources but the last, which is the clock."""
    lines = _last(folder)
    return bool(lines) and _is_clock(sources[-1][1]) and len(lines) == len(sources) - 1


def _places(folder: Folder, was: Owner, now: Owner, sources: Sources) -> Places | None:
    """Where each source was; None: clocks cannot be told from others.

    A clock is recognised by its offset, a number, which another source might have as well; the stages of a query have
    their lines one after the other.
    """
    if len(was.queries) != 1 or len(now.queries) != 1:
        return None
    lines = _last(folder)
    before = [place for place, line in enumerate(lines) if line.isdecimal()]
    after = [place for place, (_, options) in enumerate(sources) if _is_clock(options)]
    stages = [[stage for stage, follows in enumerate(owner.clocks) if follows] for owner in (was, now)]
    if [len(before), len(after)] != [*map(len, stages)] or len(lines) - len(before) != len(sources) - len(after):
        return None
    ticked = dict(zip(stages[0], before, strict=True))
    ticks = dict(zip(after, stages[1], strict=True))
    others = iter([place for place in range(len(lines)) if place not in before])
    return [ticked.get(ticks[place]) if place in ticks else next(others) for place in range(len(sources))]


def _folders(places: Places, sources: Sources) -> dict[int, int]:
    """The folder of each source by the one that it had: they are numbered as sources come, equal ones as one."""
    now = {was: number for was, (number, _) in zip(places, sources, strict=True) if was is not None}
    place_count = max(now, default=-1) + 1
    # The removed source was a clock, and differs from all others.
    named = [("", now[place]) if place in now else ("gone", place) for place in range(place_count)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(named))}
    return {number: name[1] for name, number in numbers.items() if not name[0]}


def _make(checkpoint: Path, made: Path, places: Places, folders: Mapping[int, int]) -> None:
    """Fill a new checkpoint: plans with their lines in other places, all else as it is, by links."""
    line_count = len(_lines((checkpoint / OFFSETS_FOLDER / str(_batches(checkpoint)[-1])).read_text("utf-8")))
    for entry in checkpoint.iterdir():
        if entry.name not in (OFFSETS_FOLDER, "sources", OWNER) and not entry.name.startswith("."):
            _link(entry, made / entry.name)
    for was, now in folders.items():
        _link(checkpoint / "sources" / str(was), made / "sources" / str(now))
    (made / OFFSETS_FOLDER).mkdir(parents=True)
    for batch in _batches(checkpoint):
        head, lines = _parts((checkpoint / OFFSETS_FOLDER / str(batch)).read_text("utf-8"))
        # Batches from before an earlier change have other positions and are not needed.
        if len(lines) == line_count:
            moved = [NOTHING if place is None else lines[place] for place in places]
            (made / OFFSETS_FOLDER / str(batch)).write_text("\n".join([*head, *moved]), "utf-8")


def _link(source: Path, place: Path) -> None:
    """The same files at another place; nothing, if they are not there."""
    if source.is_dir():
        shutil.copytree(source, place, copy_function=_link_file)
    elif source.is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        _link_file(str(source), str(place))


def _link_file(source: str, place: str) -> str:
    try:
        os.link(source, place)
    except OSError:
        # A file system without such links.
        shutil.copy2(source, place)
    return place


def _batches(checkpoint: Path) -> list[int]:
    return batch_numbers(LocalFolder(checkpoint), OFFSETS_FOLDER)


def _last(folder: Folder) -> list[str]:
    """The lines of the sources in the last plan."""
    batches = batch_numbers(folder, OFFSETS_FOLDER)
    return _lines(folder.read(f"{OFFSETS_FOLDER}/{batches[-1]}") or "") if batches else []


def _lines(text: str) -> list[str]:
    return _parts(text)[1]


def _parts(text: str) -> tuple[list[str], list[str]]:
    """A plan: its version and the metadata of the batch; and of each source a line."""
    lines = text.rstrip().split("\n")
    return lines[:2], lines[2:]


def _is_clock(options: Mapping[str, str]) -> bool:
    return options.get(FORMAT) == CLOCK


def _clock_refusal(checkpoint: str, now: Owner, restart_hint: str) -> WatersmeetError:
    difference = "no side could be idle, now one may" if any(now.clocks) else "a side could be idle, now none may"
    return refuse(
        "CHECKPOINT_OF_ANOTHER_QUERY", checkpoint=checkpoint, hint=f"undo the change, or {restart_hint}",
        difference=f"{difference}; which of Spark's sources are the clocks of its joins is not known",
    )  # fmt: skip
