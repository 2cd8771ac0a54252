"""Fetches jars with Ivy, by which Spark itself fetches ``spark.jars.packages``.

Why: a session fetches them anew at each start and knows no list without what that asks for in turn. Uses: the file
``ivy-*.jar`` among the jars of PySpark. Seen in: 4.0 to 4.3. Missing: nothing is fetched by it, which is said.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

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
    """Fetch packages into a folder; gives what went wrong, or None.

    ``is_whole``: these alone and nothing that they ask for. ``settings``: a file of Ivy's. ``repositories``: where
    else to look.
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
