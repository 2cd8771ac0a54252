"""Folders of our own for what Spark and its processes write while they run, so that what a killed run left is removed.

A folder of ours has a file per process that uses it, which that process keeps locked. The system ends a lock with its
process, however that ends: whoever gets all locks of a folder knows that nobody uses it, also if the numbers of
processes begin anew, as in a container. A folder without such a file is not ours and stays.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from stat import S_ISDIR

PREFIX = "watersmeet-run-"
OF_PYTHON, OF_JAVA = "python.lock", "java.lock"
"""The files that the process of the session and Spark's JVM keep locked."""
LOCAL_DIRS = "SPARK_LOCAL_DIRS"

_made: dict[Path, tuple[Path, int]] = {}
"""The folder of this process below each other one, whose real path is the key, and its lock."""


def own_folder(base: Path) -> Path:
    """The folder of this process below another, made when it is first asked for; those of ended processes are removed.

    Only this user can enter it. Where files cannot be locked nothing is removed.
    """
    if os.name != "posix":
        return base
    # Two names may lead to one folder. What is made keeps the name that was given: sockets have room for short ones.
    real = base.resolve()
    if real not in _made:
        remove_stale_folders(base)
        _made[real] = _make_locked(base)
    return _made[real][0]


def own_local_folders(environ: Mapping[str, str], configured: str | None) -> list[Path]:
    """A folder of ours in each of those in which Spark is to keep its files; where none can be made, that itself."""
    configured_dirs = environ.get(LOCAL_DIRS) or configured or tempfile.gettempdir()
    folders: list[Path] = []
    for name in filter(None, configured_dirs.split(",")):
        base = Path(name).absolute()
        if base.name.startswith(PREFIX):
            # Of this process, or of the one that started it: beside it, since it goes with that one.
            base = base.parent
        try:
            base.mkdir(parents=True, exist_ok=True)
            folders.append(own_folder(base))
        except OSError:
            folders.append(base)
    return list(dict.fromkeys(folders))


def remove_stale_folders(base: Path) -> None:
    """Remove the folders of ours below another that no process uses any more."""
    used = {_identity(folder) for folder, _ in _made.values()}
    for folder in base.glob(f"{PREFIX}*"):
        # Asked before anything is locked: a process gets its own locks again, and loses them as it closes the file.
        if is_private(folder) and _identity(folder) not in used:
            with ExitStack() as locks, suppress(OSError):
                # Held until it is gone, so that nobody else removes it too.
                locks.callback(os.close, _lock(folder / OF_PYTHON))
                if (folder / OF_JAVA).exists():
                    locks.callback(os.close, _lock(folder / OF_JAVA))
                shutil.rmtree(folder, ignore_errors=True)


def _identity(folder: Path) -> tuple[int, int] | None:
    """What a folder has in common under all of its names; None if it is gone."""
    try:
        stat = folder.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def is_private(folder: Path) -> bool:
    """Whether that is a folder, not a link to one, into which nobody but this user can write or look."""
    try:
        stat = folder.lstat()
    except OSError:
        return False
    return S_ISDIR(stat.st_mode) and stat.st_uid == os.geteuid() and not stat.st_mode & 0o077


def _make_locked(base: Path) -> tuple[Path, int]:
    # Under another name until it is locked: it would be taken for one that was left.
    hidden = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=base))
    (hidden / OF_PYTHON).touch(0o600)
    lock = -1
    with suppress(OSError):
        lock = _lock(hidden / OF_PYTHON)
    return hidden.rename(base / hidden.name[1:]), lock


def _lock(path: Path) -> int:
    """The open file, locked; or an OSError if another process has it, or it is not there."""
    import fcntl  # imported late: not every system has it

    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise
    return file
