"""Folders of our own for what Spark and its processes write while they run, so that what a killed run left is removed.

A folder of ours has a file per process that uses it, which that process keeps locked. The system releases a lock when
its process ends, however that ends: a process that gets all locks of a folder knows that it is unused. This also works
where process ids start again, as in a container. A folder without such a file is not ours and stays.

The user's cache holds jars, class archives and small commands. A user of an entry holds a shared lock on it and sets
its time, so an entry without a lock can be removed, the longest unused first. Processes of earlier versions hold no
locks: a command that was used lately stays, since Spark may start it at any time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
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
    # Two names may lead to one folder. A new folder keeps the given name: sockets have room for short ones.
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
            # Of this process, or of the one that started it: next to it, since both end together.
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
                # Held until it is gone, so that no other process removes it too.
                locks.callback(os.close, _lock(folder / OF_PYTHON))
                if (folder / OF_JAVA).exists():
                    locks.callback(os.close, _lock(folder / OF_JAVA))
                shutil.rmtree(folder, ignore_errors=True)


def _identity(folder: Path) -> tuple[int, int] | None:
    """The identity of a folder, the same under all of its names; None if it does not exist."""
    try:
        stat = folder.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def is_private(folder: Path) -> bool:
    """Return whether the path is a folder, not a link, that only this user can read and write."""
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


ARCHIVES, COMMANDS = 4, 8
"""The number of unused archives and commands that are kept: an archive has 200 MB, a command one kilobyte."""
LATELY = 7 * 86_400
"""The seconds after its last use for which a command is kept."""

_held: dict[Path, int] = {}


def hold(path: Path) -> None:
    """Protect a file or folder from removal while this process runs."""
    if os.name == "posix" and path not in _held:
        import fcntl  # imported late: not every system has it

        with suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            _held[path] = file
    with suppress(OSError):
        os.utime(path)


def tidy(cache: Path) -> None:
    """Remove unused archives of classes and folders of commands, oldest use first."""
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


def shim(command: str, text: str, environ: Mapping[str, str]) -> Path:
    """The command of that name and text, in the folder ``bin`` of a folder of its own.

    Spark runs it, so only this user may be able to write there: it is in the user's cache, or else in a new folder of
    this process.
    """
    name = f"{command}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    cache = own_cache(environ)
    if cache is not None:
        with suppress(OSError):
            written = _write_command(cache / name / "bin" / command, text)
            # Not the command: an archive of classes knows its Java by the time of that.
            hold(cache / name)
            return written
    return _write_command(own_folder(Path(tempfile.gettempdir())) / name / "bin" / command, text)


def cache_folder(environ: Mapping[str, str]) -> Path:
    """The folder for files of later runs, this user's alone; else a folder of this process."""
    return own_cache(environ) or own_folder(Path(tempfile.gettempdir()))


def own_cache(environ: Mapping[str, str]) -> Path | None:
    """The folder for later runs; None: nothing says where the user's files are.

    Nor where others can write, or we cannot, as in some containers.
    """
    if environ.get("XDG_CACHE_HOME"):
        cache = Path(environ["XDG_CACHE_HOME"]) / "watersmeet"
    elif environ.get("HOME"):
        cache = Path(environ["HOME"]) / ".cache" / "watersmeet"
    else:
        return None
    with suppress(OSError):
        if _is_own(cache):
            return cache
    return None


def _is_own(cache: Path) -> bool:
    """Whether that folder, made if it is missing, is this user's alone."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        cache.mkdir(0o700)
    if os.name != "posix" or is_private(cache):
        return True
    stat = cache.lstat()
    if cache.is_symlink() or stat.st_uid != os.geteuid() or stat.st_mode & 0o022:
        return False
    # Others could read it, which earlier versions let them.
    cache.chmod(0o700)
    return True


def _write_command(path: Path, text: str) -> Path:
    if path.is_file() and path.read_text("utf-8") == text and os.access(path, os.X_OK):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written next to it and renamed: another process may start the command at this moment.
    staging = path.with_name(f"{path.name}.{os.getpid()}")
    staging.write_text(text, "utf-8")
    staging.chmod(0o755)
    staging.replace(path)
    return path
