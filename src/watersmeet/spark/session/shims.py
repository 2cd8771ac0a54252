"""Small commands of our own that stand before another one. They are written once, into the user's cache."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from watersmeet.spark.spare import PIPE, PROCESS, REQUEST, WORKER

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
export PYTHONPATH="$kept"
# A process that has imported PySpark already takes over, if there is one (watersmeet.spark.spare).
if [ "$*" = "-m {worker}" ] && [ -p "${pipe}" ] && kill -0 "${process}" 2>/dev/null; then
    printf '%s\\t%s\\t%s\\n' {request} > "${pipe}"
    exit
fi
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
    request = " ".join(f'"${name}"' for name in REQUEST)
    text = PYTHON.format(python=shlex.quote(sys.executable), worker=WORKER, pipe=PIPE, process=PROCESS, request=request)
    return str(shim("python", text, environ))


def shim(command: str, text: str, environ: Mapping[str, str]) -> Path:
    """The command of that name and text, in the folder ``bin`` of a folder of its own."""
    name = f"{command}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    cache = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", tempfile.gettempdir())) / ".cache")
    path = cache / "watersmeet" / name / "bin" / command
    try:
        _write(path, text)
    except OSError:  # the cache cannot be written, as in some containers
        path = Path(tempfile.mkdtemp(prefix=f"watersmeet-{command}-")) / "bin" / command
        _write(path, text)
    return path


def _write(path: Path, text: str) -> None:
    if path.is_file() and path.read_text("utf-8") == text and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and renamed: another process may start the command at this moment.
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(text, "utf-8")
    beside.chmod(0o755)
    beside.replace(path)
