"""Copies of checkpoints in another place than the one they were made for, so that Spark can read them all the same.

Spark keeps the absolute path of the schema of a state, and looks for it there. Where it is gone, a copy is read through
a folder of links to its files in which that path is the one of now; the copy itself stays as it is. So is a checkpoint
whose path has a space, a percent sign or the like: Spark's reader of states escapes such a path and finds nothing.
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from pathlib import Path
from urllib.parse import quote

from watersmeet.locations import location_of
from watersmeet.spark.private.files import Folder, LocalFolder

_SCHEMA = re.compile(r'"file:(/[^"]*?)(/state/\d+/_stateSchema/[^"]*)"')
_LOG = "_metadata"


def readable_location(path: str, folder: Folder) -> str:
    """Where Spark finds a checkpoint with its schemas: the same place if Spark can read it there, else links to it."""
    if not isinstance(folder, LocalFolder):
        return path
    if not _is_misplaced(folder.path) and not _is_escaped(folder.path):
        return location_of(folder.path)
    made = Path(tempfile.mkdtemp(prefix="watersmeet-copy-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    _link(folder.path.absolute(), made)
    return location_of(made)


def _is_misplaced(checkpoint: Path) -> bool:
    """Whether a schema of a state is not where Spark would look for it."""
    texts = [file.read_text("utf-8", "replace") for file in checkpoint.glob(f"state/*/{_LOG}/v2/*") if file.is_file()]
    return any(not Path(place + name).exists() for text in texts for place, name in _SCHEMA.findall(text))


def _is_escaped(checkpoint: Path) -> bool:
    """Whether a path has characters that a URI writes in another way."""
    path = str(checkpoint.absolute())
    return quote(path, safe="/:=,+@~-._") != path


def _link(checkpoint: Path, made: Path) -> None:
    """Fill a folder with links to a checkpoint; what operators wrote down of themselves is written anew."""
    for entry in checkpoint.iterdir():
        if entry.name != "state":
            (made / entry.name).symlink_to(entry)
    for operator in (checkpoint / "state").iterdir():
        own = made / "state" / operator.name
        own.mkdir(parents=True)
        for entry in operator.iterdir():
            if entry.name != _LOG:
                (own / entry.name).symlink_to(entry)
    for file in checkpoint.glob(f"state/*/{_LOG}/*/*"):
        if file.is_file() and not file.name.startswith(".") and file.suffix != ".crc":
            target = made / file.relative_to(checkpoint)
            target.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text("utf-8", "replace")
            target.write_text(_SCHEMA.sub(lambda match: f'"file:{made}{match[2]}"', text), "utf-8")
