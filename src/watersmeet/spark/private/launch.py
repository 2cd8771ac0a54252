"""Starts the JVM of a session with its settings in a private file, unless `spark-submit` has started it.

PySpark itself puts every setting on the command line of the JVM, which all users of the machine can see.
``SparkContext._ensure_initialized`` starts the JVM, and ``_gateway`` shows whether there is one. ``spark-submit``
passes the address of its JVM to its program in ``PYSPARK_GATEWAY_PORT``.

Seen in: 4.0 to 4.3. Missing: PySpark starts the JVM when it makes the session, as usual; and a submitted program is not
recognized as such.

Jars are fetched with Ivy. Why: a session fetches ``spark.jars.packages`` again at each start, with all dependencies.
Uses: ``ivy-*.jar`` among the jars of PySpark. Missing: Ivy fetches nothing, which is reported.

Workers on this machine run our own command before this interpreter. Why: Spark puts its archive of PySpark before the
installed package and has no setting against it. Uses: the names of its archives on ``PYTHONPATH``, and how it calls
Python for a worker; in a session of the user ``SparkContext.pythonExec`` and ``environment``. Missing: the archives
stay on the path and workers start more slowly.
"""

from __future__ import annotations

import os
import shlex
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
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


SECONDS = 600.0


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
        result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
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
