"""The process in which Spark itself runs: its start, whether it is alive, and the errors it reports.

The JVM of a session starts with its settings in a private file, unless `spark-submit` has started it. Why: PySpark
itself puts every setting on the command line of the JVM, which all users of the machine can see. Uses:
``SparkContext._ensure_initialized`` starts the JVM, and ``_gateway`` shows whether there is one. ``spark-submit``
passes the address of its JVM to its program in ``PYSPARK_GATEWAY_PORT``. Missing: PySpark starts the JVM when it makes
the session, as usual; and a submitted program is not recognized as such.

Jars are fetched with Ivy. Why: a session fetches ``spark.jars.packages`` again at each start, with all dependencies.
Uses: ``ivy-*.jar`` among the jars of PySpark. Missing: Ivy fetches nothing, which is reported.

Workers on this machine run our own command before this interpreter. Why: Spark puts its archive of PySpark before the
installed package and has no setting against it. Uses: the names of its archives on ``PYTHONPATH``, and how it calls
Python for a worker; in a session of the user ``SparkContext.pythonExec`` and ``environment``. Missing: the archives
stay on the path and workers start more slowly.

A failure of the JVM becomes one refusal. Why: PySpark reports every failure of its JVM as an error of py4j, in many
classes, and logs all of them with their stacks. Uses: ``SparkContext._gateway``, the process in it and ``_jvm`` of a
classic session; the names of py4j's logger and module, of the servers for accumulators and of the errors of Spark
Connect; the format of a Java stack. Missing: the error is reported unchanged.

Deleted sockets are removed from Java's delete-on-exit list. Why: for every task of a join Spark opens a Unix socket,
deletes it with the task, and registers it for deletion at exit; Java never drops the path, some 190 bytes per task.
Uses: the field of ``java.io.DeleteOnExitHook`` with the paths, replaced as a whole so that a concurrent writer never
sees half of it; paths that are not sockets of Spark are registered again. Missing: the paths stay. Spark 4.0 has no
such sockets.

Seen in: 4.0 to 4.3.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import sleep
from typing import TYPE_CHECKING, Any, cast
from xml.sax.saxutils import quoteattr

from pyspark.errors import PySparkException

from watersmeet.spark.folders import shim
from watersmeet.spark.private import prefork_client
from watersmeet.spark.private.prefork_server import DAEMON, WORKER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_FILE = "--properties-file"
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


def submit_settings() -> dict[str, str] | None:
    """The settings with which this program was submitted, including its master; None: it was not submitted."""
    if _SUBMITTED not in os.environ:
        return None
    from pyspark import SparkConf, SparkContext

    start = getattr(SparkContext, "_ensure_initialized", None)
    if start is not None:
        # The settings are those of the JVM.
        start()
    return dict(SparkConf().getAll())


def launch(settings: Mapping[str, str]) -> None:
    """Start the JVM, unless there is one, or its arguments name a file of settings already."""
    from pyspark import SparkContext

    before = os.environ.get(ARGUMENTS)
    start = getattr(SparkContext, "_ensure_initialized", None)
    if start is None or getattr(SparkContext, "_gateway", None) is not None or _FILE in (before or ""):
        return
    # The folder is private to this user.
    with TemporaryDirectory(prefix="watersmeet-settings-") as folder:
        file = Path(folder) / "settings"
        file.write_text(properties(settings), "ascii")
        rest = "pyspark-shell" if before is None else before
        os.environ[ARGUMENTS] = f"{_FILE} {shlex.quote(str(file))} --load-spark-defaults {rest}"
        try:
            start()
        finally:
            if before is None:
                del os.environ[ARGUMENTS]
            else:
                os.environ[ARGUMENTS] = before


def properties(settings: Mapping[str, str]) -> str:
    r"""Settings as a file of Java's properties.

    >>> properties({"a": " x=y:z\n"})
    'a=\\u0020x\\u003dy\\u003az\\u000a\n'
    """
    return "".join(f"{name}={''.join(map(_escape_character, value))}\n" for name, value in settings.items())


def _escape_character(character: str) -> str:
    if character.isascii() and (character.isalnum() or character in "-_./,*+$@()[]"):
        return character
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


FETCH_SECONDS = 600.0


def spark_jars() -> Path | None:
    """The folder with Spark's own jars, if it can be found."""
    spec = find_spec("pyspark")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent / "jars"
    return folder if folder is not None and folder.is_dir() else None


def ivy_fetch(
    packages: Sequence[str],
    into: Path,
    java: Path,
    *,
    is_whole: bool,
    settings: str | None = None,
    repositories: Sequence[str] = (),
) -> str | None:
    """Fetch packages into a folder; returns the error, or None.

    ``is_whole``: only these, without dependencies. ``settings``: a settings file of Ivy. ``repositories``: further
    places to look.
    """
    ivy_jars = [] if (jars := spark_jars()) is None else sorted(jars.glob("ivy-*.jar"))
    if not ivy_jars:
        return "this Spark comes without Ivy"
    work = into / ".ivy"
    work.mkdir()
    (work / "ivy.xml").write_text(_dependency_xml(packages, is_whole=is_whole), "utf-8")
    if settings is None and repositories:
        (work / "settings.xml").write_text(_settings(repositories), "utf-8")
        settings = str(work / "settings.xml")
    command = [
        str(java), "-cp", str(ivy_jars[-1]), "org.apache.ivy.Main", "-ivy", str(work / "ivy.xml"),
        "-cache", str(work / "cache"), "-retrieve", f"{into}/[artifact]-[revision].[ext]", "-types", "jar", "bundle",
        *(() if settings is None else ("-settings", settings)),
    ]  # fmt: skip
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if result.returncode == 0:
        return None
    missing = [line.strip(" :\t") for line in result.stdout.splitlines() if "not found" in line]
    return missing[0] if missing else (result.stderr.strip() or result.stdout.strip()).split("\n")[-1]


def _dependency_xml(packages: Sequence[str], *, is_whole: bool) -> str:
    lines = [
        f"<dependency org={quoteattr(group)} name={quoteattr(name)} rev={quoteattr(version)} "
        f'conf="default->default" transitive="{str(not is_whole).lower()}"/>'
        for group, name, version in (package.split(":") for package in packages)
    ]
    info = '<info organisation="watersmeet" module="fetched"/><configurations><conf name="default"/></configurations>'
    return f'<ivy-module version="2.0">{info}<dependencies>{"".join(lines)}</dependencies></ivy-module>'


def _settings(repositories: Sequence[str]) -> str:
    """Ivy's settings: the given places first, then where it looks by itself."""
    resolvers = "".join(
        f'<ibiblio name="given-{number}" m2compatible="true" root={quoteattr(root)}/>'
        for number, root in enumerate(repositories)
    )
    chain = f'<chain name="all">{resolvers}<ibiblio name="public" m2compatible="true"/></chain>'
    return f'<ivysettings><settings defaultResolver="all"/><resolvers>{chain}</resolvers></ivysettings>'


PYTHON = """\
#!/bin/sh
# Python for Spark's workers. Spark puts its archive of PySpark before the package that is installed, but from an
# archive every process compiles all it imports: that takes a worker seconds.
set -f
kept=
before=$IFS
IFS=:
for part in $PYTHONPATH; do
    case $part in
        */pyspark.zip | */py4j-*-src.zip | */spark-core_*.jar) ;;
        *) kept=${{kept:+$kept:}}$part ;;
    esac
done
IFS=$before
unset PYTHONPATH
if [ -n "$kept" ]; then
    export PYTHONPATH="$kept"
fi
# A process that has imported PySpark already takes over, if one answers (watersmeet.spark.private.prefork_server).
case "$1 $2" in
    "-m {worker}" | "-m {daemon}")
        if [ -d "${spare}" ]; then
            exec {python} -I -S {asking} {python} "$@"
        fi ;;
esac
exec {python} "$@"
"""


def worker_python(environ: Mapping[str, str]) -> str:
    """The Python that Spark's workers on this machine run: this interpreter, with its installed PySpark."""
    spec = find_spec("pyspark")
    home = environ.get("SPARK_HOME")
    if os.name != "posix" or spec is None or spec.origin is None:
        return sys.executable
    installed = Path(spec.origin).parent
    if home is not None and Path(home).resolve() != installed.resolve():
        # Another Spark than the installed package: only its own archive fits it.
        return sys.executable
    python, script = shlex.quote(sys.executable), shlex.quote(str(prefork_client.__file__))
    text = PYTHON.format(python=python, worker=WORKER, daemon=DAEMON, spare=prefork_client.PREFORK_DIR, asking=script)
    return str(shim("python", text, environ))


def own_python(spark: SparkSession) -> bool:
    """Let the workers of a session on this machine run this interpreter; False where that is not ours to say.

    If ``PYSPARK_PYTHON`` is set, the user has chosen another one.
    """
    try:
        context: Any = spark.sparkContext
    except PySparkException:
        return False
    if not str(context.master).startswith("local") or "PYSPARK_PYTHON" in os.environ:
        return False
    if not hasattr(context, "pythonExec") or not isinstance(getattr(context, "environment", None), dict):
        return False
    context.pythonExec = sys.executable
    package = str(Path(__file__).parents[3])
    if package not in site.getsitepackages():
        before = context.environment.get("PYTHONPATH", "")
        if package not in before.split(os.pathsep):
            context.environment["PYTHONPATH"] = f"{package}{os.pathsep}{before}" if before else package
    return True


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
