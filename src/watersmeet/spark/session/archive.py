"""An archive of the classes that Spark loads: the first JVM writes it as it ends, and later ones start much faster.

A JVM reads, checks and links some fifteen thousand classes before the first row is joined. From an archive of them
(class-data sharing, JEP 350) it takes them as they are. An archive fits one Java and one set of jars, so its name says
which, and how large it is: a JVM that finds one of something else goes on without it, but one that is cut kills it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from watersmeet.spark.session.kept import hold, tidy
from watersmeet.spark.session.shims import own_cache

WANTED = "WATERSMEET_CLASS_ARCHIVE"
"""Set to 0, no archive is written or used; set to use, none is written."""
QUIET = "-Xshare:auto -Xlog:disable -Xlog:all=error:stderr"
_BEGUN = ".begun-"
_WRITING_SECONDS = 600
"""For so long another process that has begun may be writing one."""
_ENDING_SECONDS = 60
"""For so long its JVM may need for it once that process has ended."""


def archive_options(home: Path, environ: Mapping[str, str]) -> str:
    """The options of Java that use the archive, or let this JVM write one, if there is none and nobody else does."""
    spec = find_spec("pyspark")
    cache = own_cache(environ)
    if cache is None or spec is None or spec.origin is None or environ.get(WANTED) == "0":
        return ""
    jars = Path(environ.get("SPARK_HOME") or Path(spec.origin).parent) / "jars"
    with suppress(OSError):
        name = f"classes-{_fingerprint(home, jars)}"
        _finish_archives(cache)
        archive = _find_archive(cache, name)
        if archive is not None:
            hold(archive)
        tidy(cache)
        if archive is not None:
            return f"-XX:SharedArchiveFile={shlex.quote(str(archive))} {QUIET}"
        if environ.get(WANTED) != "use" and not any(cache.glob(f"{name}{_BEGUN}*")):
            # Empty until the JVM ends, which tells others that it will be written.
            begun = cache / f"{name}{_BEGUN}{os.getpid()}"
            begun.touch(0o600)
            return f"-XX:ArchiveClassesAtExit={shlex.quote(str(begun))} {QUIET}"
    return ""


def _fingerprint(home: Path, jars: Path) -> str:
    """What an archive depends on: which Java that is, and the jars, which a JVM compares by size and time."""
    digest = hashlib.sha256(f"{home.resolve()}\n".encode())
    for file in (home / "release", home / "bin" / "java", *sorted(jars.glob("*.jar"))):
        with suppress(OSError):
            stat = file.stat()
            digest.update(f"{file}\t{stat.st_size}\t{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:12]


def _finish_archives(cache: Path) -> None:
    """Give what JVMs have written its name, and remove what was begun and is not written any more.

    A process that has begun may live for days, but its JVM writes after it has ended, for a minute at most.
    """
    for begun in cache.glob(f"classes-*{_BEGUN}*"):
        with suppress(OSError, ValueError):
            if _is_whole(begun):
                name, size = begun.name.partition(_BEGUN)[0], begun.stat().st_size
                begun.rename(cache / f"{name}-{size}.jsa")
                continue
            process = int(begun.name.partition(_BEGUN)[2])
            if time.time() - begun.stat().st_mtime > (_WRITING_SECONDS if _is_alive(process) else _ENDING_SECONDS):
                begun.unlink()


def _find_archive(cache: Path, name: str) -> Path | None:
    """The archive of that name, if it is as long as it was; one that is cut is removed."""
    for archive in cache.glob(f"{name}-*.jsa"):
        if archive.stem == f"{name}-{archive.stat().st_size}":
            return archive
        archive.unlink()
    return None


def _is_alive(process: int) -> bool:
    """Whether there is a process of that number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _is_whole(archive: Path) -> bool:
    """Whether the JVM has written all of it: the head comes last, over the zeros that stood in its place."""
    with archive.open("rb") as file:
        return any(file.read(4))
