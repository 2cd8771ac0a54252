"""What a killed run has left is removed by the next one; what belongs to others, or to a run that lives, stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from watersmeet.spark.folders import LOCAL_DIRS, OF_JAVA, own_folder, own_local_folders, remove_stale_folders
from watersmeet.spark.private.checkpoint_files import CHECKSUMS, MANAGER, keep_checkpoints_here

MAKES = """
import sys
from pathlib import Path
from watersmeet.spark.folders import own_folder
print(own_folder(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""
LOCKS = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def start(program: str, path: Path) -> tuple[subprocess.Popen[str], str]:
    """A process, and the line it says."""
    command = [sys.executable, "-c", program, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_folders_of_killed_processes_are_removed_and_no_others(tmp_path: Path) -> None:
    (first, left), (second, used), (third, of_java) = (start(MAKES, tmp_path) for _ in range(3))
    for folder in (left, used, of_java):
        (Path(folder) / "blockmgr-1").mkdir()
    java, _ = start(LOCKS, Path(of_java) / OF_JAVA)
    strangers = [tmp_path / "blockmgr-2", tmp_path / "watersmeet-run-unmarked"]
    for folder in strangers:
        folder.mkdir(mode=0o700)
    for process in (first, third):
        end(process)

    own = own_folder(tmp_path)
    assert own == own_folder(tmp_path) and own.stat().st_mode & 0o077 == 0
    assert {*tmp_path.iterdir()} == {own, Path(used), Path(of_java), *strangers}, "one that Spark still uses stays too"

    for process in (java, second):
        end(process)
    remove_stale_folders(tmp_path)
    assert {*tmp_path.iterdir()} == {own, *strangers}


def test_one_folder_under_several_names_is_not_taken_for_one_that_was_left(tmp_path: Path) -> None:
    real, linked = tmp_path / "real", tmp_path / "linked"
    real.mkdir()
    linked.symlink_to(real)
    own = own_folder(real)
    (own / "blockmgr-1").mkdir()
    names = [str(linked), f"{real}/", f"{tmp_path}/linked/../real", f"{tmp_path}/./real"]
    assert own_local_folders({LOCAL_DIRS: ",".join(names)}, None) == [own]
    remove_stale_folders(linked)
    remove_stale_folders(tmp_path / "linked" / ".." / "real")
    assert (own / "blockmgr-1").is_dir()
    # Its lock is held still: another process takes it for one that is used.
    other, made = start(MAKES, linked)
    assert (own / "blockmgr-1").is_dir() and Path(made).parent == linked
    end(other)


def test_local_folders_are_ours_and_never_inside_those_of_another_process(tmp_path: Path) -> None:
    said = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    first = own_local_folders({LOCAL_DIRS: said}, "/not/asked")
    assert [folder.parent for folder in first] == [tmp_path / "a", tmp_path / "b"]
    assert own_local_folders({LOCAL_DIRS: ",".join(map(str, first))}, None) == first
    assert own_local_folders({}, str(tmp_path / "a")) == first[:1]
    inherited = tmp_path / "c" / "watersmeet-run-of-a-parent"
    (found,) = own_local_folders({LOCAL_DIRS: str(inherited)}, None)
    assert found.parent == tmp_path / "c"
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    assert own_local_folders({LOCAL_DIRS: str(in_the_way)}, None) == [in_the_way]


@pytest.mark.spark
def test_checkpoints_here_are_written_without_commands_and_replaced_in_one_step(spark: SparkSession) -> None:
    assert (spark.conf.get(MANAGER, "") or "").endswith("FileSystemBasedCheckpointFileManager")
    assert spark.conf.get(CHECKSUMS, "") == "false"
    kept = spark.newSession()
    kept.conf.set(MANAGER, "a.class.of.the.user")
    keep_checkpoints_here(kept)
    assert kept.conf.get(MANAGER, "") == "a.class.of.the.user"
