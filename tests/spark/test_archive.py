"""The archive of classes: written by one JVM, used by the next, left alone where it cannot be had."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from watersmeet.spark.session.archive import WANTED, archive_options
from watersmeet.spark.session.java import prepare_java

USED, WRITTEN = "-XX:SharedArchiveFile=", "-XX:ArchiveClassesAtExit="


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of a user whose cache is empty."""
    kept = {name: value for name, value in os.environ.items() if name != WANTED}
    return kept | {"XDG_CACHE_HOME": str(tmp_path)}


def test_one_jvm_writes_it_and_the_others_wait_or_use_it(environ: dict[str, str]) -> None:
    home = prepare_java(environ)
    first = archive_options(home, environ)
    assert first.startswith(WRITTEN)
    assert archive_options(home, environ) == "", "another one is at it"
    beside = Path(first.split()[0].removeprefix(WRITTEN))
    # Java itself writes one, of few classes.
    subprocess.run([home / "bin" / "java", *first.split(), "-version"], check=True, capture_output=True)
    assert beside.stat().st_size > 50_000
    later = archive_options(home, environ)
    assert later.startswith(USED)
    assert not beside.exists()
    said = [home / "bin" / "java", *later.split(), "-Xshare:on", "-version"]
    assert subprocess.run(said, check=False, capture_output=True).returncode == 0


def test_a_torn_archive_is_not_taken_and_an_old_one_is_removed(environ: dict[str, str]) -> None:
    home = prepare_java(environ)
    beside = Path(archive_options(home, environ).split()[0].removeprefix(WRITTEN))
    beside.write_bytes(bytes(4096))
    assert archive_options(home, environ) == ""
    os.utime(beside, (0, 0))
    assert archive_options(home, environ).startswith(WRITTEN)
    assert beside.stat().st_size == 0


def test_an_archive_that_was_cut_is_not_used(environ: dict[str, str]) -> None:
    home = prepare_java(environ)
    first = archive_options(home, environ)
    subprocess.run([home / "bin" / "java", *first.split(), "-version"], check=True, capture_output=True)
    archive = Path(archive_options(home, environ).split()[0].removeprefix(USED))
    whole = archive.read_bytes()
    archive.chmod(0o600)
    archive.write_bytes(whole[:20_000])
    assert archive_options(home, environ).startswith(WRITTEN), "it would kill the JVM"
    assert not archive.exists()


@pytest.mark.parametrize("missing", [{WANTED: "0"}, {"XDG_CACHE_HOME": "", "HOME": ""}])
def test_none_is_used_where_none_is_wanted_or_can_be_kept(environ: dict[str, str], missing: dict[str, str]) -> None:
    assert archive_options(prepare_java(environ), environ | missing) == ""


def test_another_java_or_other_jars_have_another_archive(environ: dict[str, str], tmp_path: Path) -> None:
    home = prepare_java(environ)
    first = archive_options(home, environ)
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "one.jar").write_text("x")
    other = archive_options(home, environ | {"SPARK_HOME": str(jars.parent)})
    assert other.startswith(WRITTEN)
    assert other != first
