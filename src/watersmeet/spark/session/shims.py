"""Small commands of our own that stand before another one. They are written once, into the user's cache."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from watersmeet.spark.session.folders import is_private, own_folder
from watersmeet.spark.session.kept import hold


def shim(command: str, text: str, environ: Mapping[str, str]) -> Path:
    """The command of that name and text, in the folder ``bin`` of a folder of its own.

    Spark runs it. So it lies where nobody but this user can write, whoever was there before: in the user's cache, or
    else in a new folder of this process.
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
    """Where files may be kept for later runs, this user's alone; else a folder of this process."""
    return own_cache(environ) or own_folder(Path(tempfile.gettempdir()))


def own_cache(environ: Mapping[str, str]) -> Path | None:
    """Where things may be kept for later runs: nowhere, if nothing says where the user's files are.

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
    # Written beside and renamed: another process may start the command at this moment.
    staging = path.with_name(f"{path.name}.{os.getpid()}")
    staging.write_text(text, "utf-8")
    staging.chmod(0o755)
    staging.replace(path)
    return path
