"""Java forgets the sockets that are gone: it remembers each for its end, and would remember ever more.

Why: for every task of a join Spark opens a Unix socket for its state, deletes it with the task, and has told Java
besides to delete it when it ends. Java never forgets such a path: some 190 bytes for each task of each batch, which
after days are more than a small heap has. Uses: the field of ``java.io.DeleteOnExitHook`` that has the paths, which
Spark lets others of its JVM open. It is replaced as a whole, so that whoever adds a path meanwhile meets no half of it;
what is no socket of Spark's is told to Java again, also what comes to the old one while that is done.
Seen in: 4.0 to 4.3, of which 4.0 has no such sockets, with Java 17. Missing: the paths stay.
"""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from time import sleep
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
