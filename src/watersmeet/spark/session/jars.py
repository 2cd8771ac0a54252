"""Jars by their coordinates: fetched once, by Maven if that is installed, else by Ivy, and kept in the user's cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from watersmeet.errors import refuse
from watersmeet.formats.jar_digests import JAR_DIGESTS
from watersmeet.spark.private.ivy import SECONDS, ivy_fetch
from watersmeet.spark.session.java import prepare_java
from watersmeet.spark.session.shims import cache_folder

_SETTINGS, _REPOSITORIES = _WHERE = ("spark.jars.ivySettings", "spark.jars.repositories")
"""The settings of Spark that say where packages are looked for."""


def fetch_jars(
    packages: Sequence[str], environ: Mapping[str, str], conf: Mapping[str, str] | None = None, *, is_whole: bool
) -> list[Path]:
    """The jars of packages, from the cache if they are there; refuses if they cannot be had.

    ``is_whole``: these alone, and nothing that they ask for. ``conf``: settings of Spark, of which those count that say
    where packages are looked for. Jars that we know are compared with their digests, those of the cache at each use.
    """
    key = f"{is_whole} {' '.join(packages)}{_places(conf or {})}"
    folder = cache_folder(environ) / "jars" / hashlib.sha256(key.encode()).hexdigest()[:16]
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Filled beside and renamed: another process may look for it at this moment.
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
    """Where packages are looked for, as part of what they are called in the cache; empty where nothing is said.

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
        return subprocess.run(command, capture_output=True, timeout=SECONDS, check=False).returncode == 0
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
