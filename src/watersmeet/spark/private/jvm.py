"""The process in which Spark itself runs: whether it lives, and what its errors say.

Why: PySpark reports whatever happens to its JVM as an error of the library that speaks to it, in many classes, and logs
all of them with their stacks. Uses: ``SparkContext._gateway``, the process in it and ``_jvm`` of a classic session; the
names of py4j's logger and module, of the servers for accumulators and of the errors of Spark Connect; how Java writes
a stack. Seen in: 4.0 to 4.3. Where something is missing the error is reported as it is.

Java forgets deleted sockets. Why: for every task of a join Spark opens a Unix socket, deletes it with the task, and has
told Java to delete it at exit; Java never forgets the path, some 190 bytes per task. Uses: the field of
``java.io.DeleteOnExitHook`` with the paths, replaced as a whole so that a concurrent writer sees no half of it; paths
that are not sockets of Spark are registered again. Missing: the paths stay. Spark 4.0 has no such sockets.
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
"""How long the end of a JVM is waited for that no longer answers."""
_held: list[Any] = []
"""What the JVM must not forget: a file that nobody refers to is closed."""


def hold_lock(spark: SparkSession, path: Path) -> None:
    """Let the JVM of a session keep a file locked for as long as it lives."""
    with suppress(Exception):
        file = cast("Any", spark)._jvm.java.io.RandomAccessFile(str(path), "rw")
        _held.extend((file, file.getChannel().tryLock()))


def death_of(error: BaseException) -> str | None:
    """How Spark ended, if that is what an error comes from: the JVM that this process started, or a server."""
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
    """Keep what PySpark says of a lost JVM out of the standard error, where it comes with stacks: we report it."""
    from pyspark import accumulators

    for name in _SERVERS:
        if hasattr(accumulators, name):
            getattr(accumulators, name).handle_error = _ignore_error
    logger = logging.getLogger("py4j")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    # Some of it is logged under no name.
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
    """Said of an error."""


def _is_of_py4j(error: BaseException) -> bool:
    """Whether it says that the JVM did not answer; with an error of Java's, it did."""
    return type(error).__module__.startswith("py4j") and not hasattr(error, "java_exception")


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # asked from the JVM, which may be gone
        return ""


SECONDS = 60.0
"""How often it is done: until then there are some thousand paths."""

PAUSE = 0.05
"""Seconds in which whoever adds a path has done so."""

_threads: dict[Path, Thread] = {}


def start_socket_cleanup(spark: SparkSession, folder: Path) -> None:
    """Forget the sockets of a folder every now and then, for as long as Java lives."""
    if folder not in _threads or not _threads[folder].is_alive():
        _threads[folder] = Thread(target=_clean_up_forever, args=(spark, folder), name="sockets", daemon=True)
        _threads[folder].start()


def forget_sockets(spark: SparkSession, folder: Path) -> None:
    """Forget those that Spark has made in a folder until now; one that still is there goes with the folder."""
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
    # Whoever had the old set at hand when it was replaced may still add to it: so it is looked at once more.
    for pause in (0.0, PAUSE):
        sleep(pause)
        others = _copy_paths(jvm, before)
        others.removeIf(sockets.asMatchPredicate())
        for path in others:
            jvm.java.io.File(path).deleteOnExit()


def _copy_paths(jvm: Any, paths: Any) -> Any:
    """A copy of a set that nobody else changes; the set may change while it is copied, which Java then tells."""
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
        except Exception:  # whatever is said when Java is gone
            return
