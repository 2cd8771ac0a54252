"""Which jars a session gets: the user's own, those of a folder, or what brings the formats of a script."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from pathlib import Path

import pytest

from watersmeet.cli.run import Cluster
from watersmeet.cli.script import read_project
from watersmeet.errors import WatersmeetError
from watersmeet.formats.packages import CONNECTORS, JAR_DIGESTS, connector_of, connectors_of, formats_in
from watersmeet.queries import read_script
from watersmeet.spark.session import java
from watersmeet.spark.session.java import FOLDER, fetch_jars, with_connectors

NOTHING = {"PATH": "", "XDG_CACHE_HOME": "/nowhere/to/be/made"}


def test_every_format_of_a_script_that_needs_a_connector_gets_that_of_its_spark() -> None:
    script = read_script(
        "CREATE STREAM a (id INT) USING kafka; CREATE STREAM b (id INT) USING json; CREATE SINK c USING KAFKA;"
        "CREATE STREAM d (id INT); INSERT INTO c SELECT STREAM id FROM a;"
    )
    assert formats_in(script) == ["kafka", "json", "KAFKA"]
    (found,) = connectors_of(formats_in(script), "4.3.0")
    assert found is connector_of("kafka", "4.3.1") is CONNECTORS["kafka"]["4.3"]
    assert found.packages == (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.apache.commons:commons-pool2:2.12.0",
    )
    assert connector_of("kafka", "3.5.1") is None and connector_of("delta", "4.3.0") is None


@pytest.mark.parametrize(
    "given",
    [
        {"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.0"},
        {"spark.jars": "/jars/spark-sql-kafka-0-10_2.13-4.1.0.jar,/jars/other.jar"},
        {"spark.driver.extraClassPath": "/jars/spark-sql-kafka-0-10_2.13-4.1.0.jar"},
    ],
)
def test_jars_of_the_user_go_before_ours(given: dict[str, str]) -> None:
    assert with_connectors(["kafka"], given, NOTHING) == given


def test_jars_are_named_in_the_project_the_script_or_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "watersmeet.yml").write_text(
        "name: shop\nconfiguration: {spark.jars.repositories: 'file:/r', spark.jars.packages: 'g:project:1'}\n"
    )
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "q.sql").write_text(
        "SET spark.jars.packages = 'g:script:1'; SET spark.sql.ansi.enabled = true;"
    )
    project, script = read_project(tmp_path)
    assert Cluster().settings(project, script) == {
        "spark.jars.repositories": "file:/r", "spark.jars.packages": "g:script:1",
    }  # fmt: skip
    cluster = Cluster.of(None, None, ["spark.jars.packages=g:given:1"], None, "own.jar,/other.jar")
    assert cluster.settings(project, script) == {
        "spark.jars.repositories": "file:/r", "spark.jars.packages": "g:given:1",
        "spark.jars": f"{Path().absolute()}/own.jar,/other.jar",
    }  # fmt: skip


def test_a_folder_of_jars_stands_for_all_that_would_be_fetched(tmp_path: Path) -> None:
    environ = {**NOTHING, FOLDER: str(tmp_path)}
    with pytest.raises(WatersmeetError, match="it has no jars"):
        with_connectors(["kafka"], {}, environ)
    for name in ("b.jar", "a.jar", "a.txt"):
        (tmp_path / name).touch()
    found = with_connectors(["kafka"], {"spark.jars": "/own.jar"}, environ)
    assert found == {"spark.jars": f"/own.jar,{tmp_path}/a.jar,{tmp_path}/b.jar"}
    assert with_connectors(["json"], {}, NOTHING) == {}


def test_a_connector_may_need_settings_in_addition_to_those_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "spark_version", lambda: "4.1.4")
    (tmp_path / "delta.jar").touch()
    environ = {**NOTHING, FOLDER: str(tmp_path)}
    found = with_connectors(["delta"], {}, environ)
    assert found["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"
    assert found["spark.sql.catalog.spark_catalog"].endswith("DeltaCatalog")
    own = {"spark.sql.extensions": "of.mine", "spark.sql.catalog.spark_catalog": "my.Catalog"}
    found = with_connectors(["iceberg", "delta"], own, environ)
    assert found["spark.sql.catalog.spark_catalog"] == "my.Catalog"
    assert [name.rpartition(".")[2] for name in found["spark.sql.extensions"].split(",")] == [
        "mine", "IcebergSparkSessionExtensions", "DeltaSparkSessionExtension",
    ]  # fmt: skip


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    """A registry with two packages, of which one asks for the other."""
    other = "<groupId>g</groupId><artifactId>b</artifactId><version>2</version>"
    asks = f"<dependencies><dependency>{other}</dependency></dependencies>"
    for name, version, more in (("a", "1", asks), ("b", "2", "")):
        folder = tmp_path / "registry" / "g" / name / version
        folder.mkdir(parents=True)
        pom = f"<groupId>g</groupId><artifactId>{name}</artifactId><version>{version}</version>{more}"
        (folder / f"{name}-{version}.pom").write_text(f"<project><modelVersion>4.0.0</modelVersion>{pom}</project>")
        with zipfile.ZipFile(folder / f"{name}-{version}.jar", "w") as jar:
            jar.writestr("said.txt", name)
    return tmp_path / "registry"


@pytest.mark.spark
def test_jars_are_fetched_once_and_then_had_without_a_registry(registry: Path, tmp_path: Path) -> None:
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    conf = {"spark.jars.repositories": f"file://{registry}"}
    assert [jar.name for jar in fetch_jars(["g:a:1"], environ, conf, is_whole=True)] == ["a-1.jar"]
    assert [jar.name for jar in fetch_jars(["g:a:1"], environ, conf, is_whole=False)] == ["a-1.jar", "b-2.jar"]
    registry.rename(tmp_path / "gone")
    offline = {**environ, "PATH": ""}
    assert [jar.name for jar in fetch_jars(["g:a:1"], offline, conf, is_whole=False)] == ["a-1.jar", "b-2.jar"]
    with pytest.raises(WatersmeetError) as raised:
        fetch_jars(["g:b:2"], environ, conf, is_whole=True)
    (refusal,) = raised.value.refusals
    assert refusal.condition == "JARS_NOT_FETCHED" and "g#b;2" in refusal.message
    assert not [path for path in (tmp_path / "cache" / "watersmeet" / "jars").iterdir() if "." in path.name]


def maven(tmp_path: Path, jar: str, content: bytes) -> dict[str, str]:
    """An environment whose Maven fetches a jar of that content, and whose cache is empty."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "content").write_bytes(content)
    command = tmp_path / "bin" / "mvn"
    into = "$(printf '%s\\n' \"$@\" | sed -n 's/^-DoutputDirectory=//p')"
    command.write_text(f'#!/bin/sh\ncp "{tmp_path}/content" "{into}/{jar}"\n')
    command.chmod(0o700)
    path = f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_every_package_that_we_name_has_a_digest() -> None:
    named = {package for versions in CONNECTORS.values() for one in versions.values() for package in one.packages}
    files = {f"{name}-{version}.jar" for _, name, version in (package.split(":") for package in named)}
    assert files <= {*JAR_DIGESTS}
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in JAR_DIGESTS.values())


def test_a_jar_that_is_not_what_its_name_says_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = hashlib.sha256(b"genuine").hexdigest()
    monkeypatch.setattr("watersmeet.spark.session.java.JAR_DIGESTS", {"a-1.jar": known})
    with pytest.raises(WatersmeetError) as raised:
        fetch_jars(["g:a:1"], maven(tmp_path, "a-1.jar", b"forged"), is_whole=True)
    assert raised.value.refusals[0].condition == "WRONG_JAR"
    cache = tmp_path / "cache" / "watersmeet" / "jars"
    assert not [*cache.rglob("*.jar")], "it is not kept either"
    [jar] = fetch_jars(["g:a:1"], maven(tmp_path, "a-1.jar", b"genuine"), is_whole=True)
    jar.chmod(0o600)
    jar.write_bytes(b"forged")
    with pytest.raises(WatersmeetError) as raised:
        fetch_jars(["g:a:1"], maven(tmp_path, "a-1.jar", b"genuine"), is_whole=True)
    assert raised.value.refusals[0].condition == "WRONG_JAR" and str(jar.parent) in raised.value.refusals[0].render()


def test_schemas_of_one_registry_are_not_those_of_another(tmp_path: Path) -> None:
    environ = maven(tmp_path, "a-1.jar", b"of the first")
    assert [jar.read_bytes() for jar in fetch_jars(["g:a:1"], environ, is_whole=True)] == [b"of the first"]
    with pytest.raises(WatersmeetError) as raised:
        fetch_jars(["g:a:1"], environ, {"spark.jars.repositories": f"file://{tmp_path}/nothing"}, is_whole=True)
    assert raised.value.refusals[0].condition == "JARS_NOT_FETCHED"
