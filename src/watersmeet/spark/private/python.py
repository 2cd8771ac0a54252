"""The Python that Spark's workers on this machine run: a command of our own before this interpreter.

Why: Spark puts its archive of PySpark before the package that is installed, and offers no setting to leave it out.
Uses: the names of its archives on ``PYTHONPATH``, and how it calls Python for a worker. Seen in: 4.0 to 4.3. Where
archives are called otherwise they stay on the path: workers then start more slowly.

In a session that is not ours: ``SparkContext.pythonExec`` and ``environment``, which every function that is sent to
workers takes along. Where they are missing, workers run what they ran.
"""

from __future__ import annotations

import os
import shlex
import site
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from watersmeet.spark.private import asking
from watersmeet.spark.private.spare import DAEMON, WORKER
from watersmeet.spark.session.shims import shim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
# A process that has imported PySpark already takes over, if one answers (watersmeet.spark.private.spare).
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
    python, script = shlex.quote(sys.executable), shlex.quote(str(asking.__file__))
    text = PYTHON.format(python=python, worker=WORKER, daemon=DAEMON, spare=asking.PREFORK_DIR, asking=script)
    return str(shim("python", text, environ))


def own_python(spark: SparkSession) -> bool:
    """Let the workers of a session on this machine run this interpreter; False where that is not ours to say.

    Whoever has set ``PYSPARK_PYTHON`` has chosen another one.
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
