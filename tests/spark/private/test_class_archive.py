"""The archive of classes: written by one JVM, used by the next, left alone where it cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from watersmeet.spark.folders import ARCHIVES, COMMANDS, shim, tidy
from watersmeet.spark.session.java import WANTED, archive_options, prepare_java

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
    assert archive_options(home, environ | {WANTED: "use"}) == later
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


@pytest.mark.parametrize("missing", [{WANTED: "0"}, {WANTED: "use"}, {"XDG_CACHE_HOME": "", "HOME": ""}])
def test_none_is_used_where_none_is_there_or_wanted_or_can_be_stored(
    environ: dict[str, str], missing: dict[str, str]
) -> None:
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


HOLDS = """
import os, sys
from pathlib import Path
from watersmeet.spark.folders import hold
for name in sys.argv[1:]:
    hold(Path(name))
    os.utime(name, (0, 0))
print("held", flush=True)
sys.stdin.read()
"""


def test_the_cache_keeps_what_is_used_and_the_few_used_last(environ: dict[str, str]) -> None:
    cache = Path(shim("java", "exit", environ)).parents[2]
    (cache / "jars" / "a").mkdir(parents=True)
    archives = [cache / f"classes-{n:012}-1.jsa" for n in range(ARCHIVES + 3)]
    for archive in archives:
        archive.write_bytes(b"x")
    folders = [cache / f"python-{n:012}" for n in range(COMMANDS + 3)]
    for folder in folders:
        (folder / "bin").mkdir(parents=True)
    for age, path in enumerate([*archives, *folders]):
        os.utime(path, (1_000 + age, 1_000 + age))
    held = [archives[0], folders[0]]
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, *map(str, held)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    os.utime(folders[1])
    tidy(cache)
    left = {path for path in (*archives, *folders) if path.exists()}
    # The java command and folder 1 were used last of all commands.
    assert left == {*held, *archives[-ARCHIVES:], folders[1], *folders[-COMMANDS + 2 :]}
    assert (cache / "jars" / "a").exists() and len([*cache.glob("java-*/bin/java")]) == 1
    process.communicate("")
    tidy(cache)
    assert not any(path.exists() for path in held)


def test_archive_begun_by_a_killed_process_is_removed_and_a_written_one_stays(environ: dict[str, str]) -> None:
    home = prepare_java(environ)
    begun = Path(archive_options(home, environ).split()[0].removeprefix(WRITTEN))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    of_gone = begun.with_name(f"classes-0.begun-{gone.pid}")
    written = begun.with_name(f"classes-1.begun-{gone.pid}")
    of_gone.touch()
    written.write_bytes(b"whole")
    assert archive_options(home, environ) == ""
    assert of_gone.exists(), "its JVM may be writing"
    assert begun.with_name("classes-1-5.jsa").exists() and not written.exists()
    for path in (begun, of_gone):
        before = path.stat().st_mtime - 100
        os.utime(path, (before, before))
    assert archive_options(home, environ) == "", "this process lives"
    assert not of_gone.exists() and begun.exists()
