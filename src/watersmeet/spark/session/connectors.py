"""The jars of a session: those that the user gives, those of a folder, and what brings the formats of a script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from watersmeet.errors import refuse
from watersmeet.formats.connectors import EXTENSIONS, JARS, connectors_of
from watersmeet.spark.private import spark_version
from watersmeet.spark.private.ivy import spark_jars
from watersmeet.spark.session.jars import fetch_jars

FOLDER = "WATERSMEET_JARS"
"""The variable that names a folder of jars. If it is set, none are fetched."""
_GIVEN = (JARS, "spark.jars.packages", "spark.driver.extraClassPath")


def with_connectors(formats: Iterable[str], conf: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of a session that knows those formats. What the user gives goes before what we would add."""
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
