"""The process in which Spark itself runs: whether it is alive, and the errors it reports.

Why: PySpark reports every failure of its JVM as an error of py4j, in many classes, and logs all of them with their
stacks. Uses: ``SparkContext._gateway``, the process in it and ``_jvm`` of a classic session; the names of py4j's logger
and module, of the servers for accumulators and of the errors of Spark Connect; the format of a Java stack. Seen in: 4.0
to 4.3. Where something is missing the error is reported unchanged.

Deleted sockets are removed from Java's delete-on-exit list. Why: for every task of a join Spark opens a Unix socket,
deletes it with the task, and registers it for deletion at exit; Java never drops the path, some 190 bytes per task.
Uses: the field of ``java.io.DeleteOnExitHook`` with the paths, replaced as a whole so that a concurrent writer never
sees half of it; paths that are not sockets of Spark are registered again. Missing: the paths stay. Spark 4.0 has no
such sockets.
"""

from __future__ import annotations

import logging
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import sleep
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_CAUSE = re.compile(r"^(?:Caused by: |: )(?P<error>(?:[\w$]+\.)+[\w$]+(?:: .*)?)$", re.MULTILINE)
_SHUT_DOWN = re.compile("SparkContext was shut down|stopped SparkContext")
_SERVERS = ("AccumulatorTCPServer", "AccumulatorUnixServer")
_SECONDS = 5.0
"""The wait for the end of a JVM that no longer answers."""
_held: list[Any] = []
"""References that keep files open in the JVM: an unreferenced file is closed."""


def hold_lock(spark: SparkSession, path: Path) -> None:
    """Have the JVM of a session hold a lock on a file as long as it runs."""
    with suppress(Exception):
        file = cast("Any", spark)._jvm.java.io.RandomAccessFile(str(path), "rw")
        _held.extend((file, file.getChannel().tryLock()))


def death_of(error: BaseException) -> str | None:
    """The end of Spark, if that caused an error: the JVM that this process started, or a server."""
    text = _text_of(error)
    if type(error).__name__.startswith("SparkConnect") and "UNAVAILABLE" in text:
        return "the server cannot be reached any more"
    from pyspark import SparkContext

    process = getattr(getattr(SparkContext, "_gateway", None), "proc", None)
    if process is None:
        return None
    if _is_of_py4j(error) or isinstance(error, ConnectionError) or _SHUT_DOWN.search(text):
        # The connection may end before the process does.
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS)
    code = process.poll()
    if code is None:
        return None
    return f"by signal {-code}" if code < 0 else f"exit code {code}"


def silence_py4j() -> None:
    """Keep PySpark's messages about a lost JVM, with their stacks, out of standard error: we report it."""
    from pyspark import accumulators

    for name in _SERVERS:
        if hasattr(accumulators, name):
            getattr(accumulators, name).handle_error = _ignore_error
    logger = logging.getLogger("py4j")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    # Some messages go to the root logger.
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)


def root_cause(error: BaseException) -> str | None:
    r"""The innermost error of Java's in the text of an error, in one line.

    >>> stack = ": java.lang.Exception: a\n\tat A.b(C.java:1)\nCaused by: java.io.IOException: disk is full\n\tat D"
    >>> root_cause(Exception(f"An error occurred while calling o1.start.\n{stack}"))
    'java.io.IOException: disk is full'
    >>> root_cause(Exception("java.lang is only named"))
    """
    causes = [match["error"] for match in _CAUSE.finditer(_text_of(error))]
    return causes[-1] if causes else None


def _ignore_error(*args: object) -> None:
    """Ignore an error."""


def _is_of_py4j(error: BaseException) -> bool:
    """Whether the JVM did not answer; an error with a Java exception is an answer."""
    return type(error).__module__.startswith("py4j") and not hasattr(error, "java_exception")


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the text is fetched from the JVM, which may be gone
        return ""


SECONDS = 60.0
"""The interval: until then there are some thousand paths."""

PAUSE = 0.05
"""Seconds within which a concurrent writer finishes adding a path."""

_threads: dict[Path, Thread] = {}


def start_socket_cleanup(spark: SparkSession, folder: Path) -> None:
    """Forget the sockets of a folder periodically, as long as the JVM runs."""
    if folder not in _threads or not _threads[folder].is_alive():
        _threads[folder] = Thread(target=_clean_up_forever, args=(spark, folder), name="sockets", daemon=True)
        _threads[folder].start()


def forget_sockets(spark: SparkSession, folder: Path) -> None:
    """Forget the sockets that Spark has made in a folder; an existing one is deleted with the folder."""
    jvm = cast("Any", spark)._jvm
    field = jvm.java.lang.Class.forName("java.io.DeleteOnExitHook").getDeclaredField("files")
    field.setAccessible(True)
    before = field.get(None)
    if before is None:
        # Java is ending.
        return
    field.set(None, jvm.java.util.LinkedHashSet())
    patterns = jvm.java.util.regex.Pattern
    sockets = patterns.compile(patterns.quote(f"{folder}/") + r"\.[0-9a-f-]{36}\.sock")
    # A thread that read the old set before it was replaced may still add to it, so it is checked twice.
    for pause in (0.0, PAUSE):
        sleep(pause)
        others = _copy_paths(jvm, before)
        others.removeIf(sockets.asMatchPredicate())
        for path in others:
            jvm.java.io.File(path).deleteOnExit()


def _copy_paths(jvm: Any, paths: Any) -> Any:
    """A private copy of a set; Java raises an error if the set changes while it is copied."""
    from py4j.protocol import Py4JJavaError

    while True:
        try:
            return jvm.java.util.ArrayList(paths)
        except Py4JJavaError:
            # Few can have it at hand, and each adds one path.
            sleep(PAUSE)


def _clean_up_forever(spark: SparkSession, folder: Path) -> None:
    from py4j.protocol import Py4JJavaError

    while True:
        sleep(SECONDS)
        try:
            forget_sockets(spark, folder)
        except Py4JJavaError:
            # Java does not let it be done now: another time.
            continue
        except Exception:  # any error, once Java is gone
            return
