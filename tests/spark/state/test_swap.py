"""Checkpoints that take the place of others, by someone who is killed on the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.checkpoints.archives import HERE, extract

from watersmeet.cli.state import checkpoints_at
from watersmeet.spark.state.checkpoint import clear_leftovers, prepare_staging, recover_swap
from watersmeet.spark.state.moving import export_checkpoint, import_checkpoint

KILLED = """
import os, signal, sys
from pathlib import Path

left, rename = int(sys.argv[1]), Path.rename

def renamed(self, target):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return rename(self, target)

Path.rename = renamed
"""
SWAP = "from watersmeet.spark.state.checkpoint import swap; swap(Path(sys.argv[2]), Path(sys.argv[3]))"
IMPORT = (
    "from watersmeet.spark.state.moving import import_checkpoint; "
    "import_checkpoint(Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[3]).parent)"
)


def is_killed_at(rename: int, program: str, *arguments: Path) -> bool:
    """Whether a process that does this was killed when it was about to rename for that time."""
    ended = subprocess.run([sys.executable, "-c", KILLED + program, str(rename), *map(str, arguments)], check=False)
    assert ended.returncode in (0, -9)
    return ended.returncode == -9


@pytest.mark.parametrize(("rename", "found"), [(0, "old"), (1, "old"), (2, "new")])
def test_a_swap_that_is_killed_leaves_the_old_one_or_the_new_one(tmp_path: Path, rename: int, found: str) -> None:
    checkpoint = tmp_path / "storage" / "checkpoints" / "q"
    for folder, text in ((checkpoint, "old"), (prepare_staging(checkpoint), "new")):
        folder.mkdir(parents=True)
        (folder / "watersmeet.json").write_text(text)
    assert is_killed_at(rename, SWAP, sibling_of(checkpoint), checkpoint) == (found == "old")
    # A look into it finds it, and the next run leaves nothing else.
    assert checkpoints_at(tmp_path / "storage") == [checkpoint]
    recover_swap(checkpoint)
    clear_leftovers(checkpoint)
    assert (checkpoint / "watersmeet.json").read_text() == found
    assert [one.name for one in checkpoint.parent.iterdir()] == ["q"]


def sibling_of(checkpoint: Path) -> Path:
    return checkpoint.with_name(f".new-{checkpoint.name}")


def files(storage: Path) -> dict[str, bytes]:
    return {str(file.relative_to(storage)): file.read_bytes() for file in storage.rglob("*") if file.is_file()}


def test_an_import_that_is_killed_can_be_repeated(tmp_path: Path) -> None:
    project = extract(HERE / "format-2.tar.gz", tmp_path)
    archive, marks = tmp_path / "archive.tar.gz", project / "storage" / "marks" / "looked_up"
    marks.mkdir(parents=True)
    (marks / "loaded-1.json").write_text('{"column": "#loaded", "value": 1}')
    export_checkpoint(project / "storage" / "checkpoints" / "looked_up", project, archive)
    storage = tmp_path / "elsewhere" / "storage"
    import_checkpoint(archive, storage, storage.parent)
    expected = files(storage)
    assert any(name.startswith("marks/") for name in expected)
    rename = 0
    while True:
        again = tmp_path / f"killed-{rename}" / "storage"
        if not is_killed_at(rename, IMPORT, archive, again):
            break
        assert not (again / "checkpoints" / "looked_up").exists()
        import_checkpoint(archive, again, again.parent)
        assert files(again).keys() == expected.keys()
        rename += 1
    assert rename > 1
