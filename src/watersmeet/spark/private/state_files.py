"""The files of Spark's state store in a checkpoint, so that a state of one batch can be that of another.

Why: PySpark has no call that writes a state, or gives it another number; its tool for another number of partitions has
no public name, and adds a batch that no sink has seen. Uses: of RocksDB a version is ``state/<operator>/<partition>/
<batch + 1>.zip``, if the changes of a batch are not kept apart (`WHOLE`); nothing inside tells its number; and what an
operator wrote down of itself, ``_metadata/v2``, has its number and the absolute path of its schema.
Seen in: 4.0 to 4.3. Where it is otherwise the new checkpoint is refused before it takes the place of the old one.
"""

from __future__ import annotations

import re
from pathlib import Path

WHOLE = {
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
}
"""Settings with which every batch leaves the whole state."""
_SCHEMA = re.compile(r'"file:(?://)?/[^"]*?(/state/\d+/_stateSchema/[^"]*)"')


class UnknownStateError(Exception):
    """Raised for a state that is not stored as it is known here."""


def renumber(checkpoint: Path, made: int, batch: int) -> None:
    """Let the state after the batch ``made`` be the one after ``batch``, and forget all others."""
    partitions = [folder for folder in checkpoint.glob("state/*/*") if folder.name.isdecimal()]
    for folder in partitions:
        if not (folder / f"{made + 1}.zip").is_file():
            raise UnknownStateError(f"{folder} has no {made + 1}.zip")
    for folder in partitions:
        for file in folder.iterdir():
            if file.is_file() and file.name != f"{made + 1}.zip":
                file.unlink()
        (folder / f"{made + 1}.zip").rename(folder / f"{batch + 1}.zip")


def take_operator(checkpoint: Path, made: Path, operator: int) -> None:
    """Move the state of the only operator of a checkpoint into another, as that of an operator with this number."""
    (made / "state").mkdir(parents=True, exist_ok=True)
    own = made / "state" / str(operator)
    (checkpoint / "state" / "0").rename(own)
    for file in own.glob("_metadata/v2/*"):
        if not _is_checksum(file):
            text = file.read_text("utf-8").replace('"operatorId":0', f'"operatorId":{operator}')
            file.write_text(text.replace("/state/0/_stateSchema/", f"/state/{operator}/_stateSchema/"), "utf-8")


def relocate_state(checkpoint: Path, place: Path) -> None:
    """Let a checkpoint be one that lies at another place."""
    for file in checkpoint.glob("state/*/_metadata/v2/*"):
        if _is_checksum(file):
            # Of the file as it was.
            file.unlink()
        else:
            text = file.read_text("utf-8")
            file.write_text(_SCHEMA.sub(lambda match: f'"file:{place}{match[1]}"', text), "utf-8")


def _is_checksum(file: Path) -> bool:
    return file.name.startswith(".") or file.suffix == ".crc"
