"""What stays in the user's cache: what a process uses, and of the rest the few that were used last.

Whoever uses something of the cache holds a shared lock on it for as long as it lives, and sets its time. So what
nobody holds can be removed, the longest unused first. Processes of versions from before hold no locks: a command that
was used lately stays whoever holds it, since Spark may start it at any time. An archive of classes need not: a JVM that
has it keeps it when its name is gone, and one that does not find it starts without.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

ARCHIVES, COMMANDS = 4, 8
"""How many of each are kept that nobody uses: an archive has 200 MB, a command one kilobyte."""
LATELY = 7 * 86_400
"""For so many seconds after its last use a command stays, whoever holds it."""

_held: dict[Path, int] = {}


def hold(path: Path) -> None:
    """Let nobody remove that file or folder while this process lives."""
    if os.name == "posix" and path not in _held:
        import fcntl  # imported late: not every system has it

        with suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            _held[path] = file
    with suppress(OSError):
        os.utime(path)


def tidy(cache: Path) -> None:
    """Remove what was used longest ago and nobody uses: archives of classes, and folders of commands."""
    if os.name != "posix":
        return
    for archive in _oldest(cache.glob("classes-*.jsa"), ARCHIVES):
        _remove_unused(archive)
    now = time.time()
    for folder in _oldest([*cache.glob("python-*"), *cache.glob("java-*")], COMMANDS):
        with suppress(OSError):
            if now - folder.stat().st_mtime > LATELY:
                _remove_unused(folder)


def _oldest(paths: Iterable[Path], retained: int) -> list[Path]:
    """All but so many of the files, those left out that were used last."""
    times: list[tuple[float, Path]] = []
    for path in paths:
        with suppress(OSError):
            times.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(times, reverse=True)[retained:]]


def _remove_unused(path: Path) -> None:
    """Remove a file or a folder, unless a process holds it."""
    import fcntl  # imported late: not every system has it

    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        finally:
            os.close(file)
