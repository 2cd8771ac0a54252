"""Checkpoints that are exported and imported, without Spark: whole, checked, and beside what is there."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.checkpoints.archives import HERE, extract
from tests.cli.test_commands import watersmeet

from watersmeet.spark.private.introspection import query_id
from watersmeet.spark.state.owner import Owner, lock_storage

QUERY = "interval_left"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose queries have stopped."""
    found = extract(HERE / "format-2.tar.gz", tmp_path_factory.mktemp("kept"))
    (found / "watersmeet.yml").write_text("name: kept\nlibraries:\n- glob: {include: queries.sql}\n")
    return found


@pytest.fixture(scope="module")
def archive(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("archives") / "left.tar.gz"
    said = watersmeet("state", "export", project, "--query", QUERY, "--to", file)
    assert (said.exit_code, said.stderr) == (0, "")
    return file


@pytest.fixture
def other_place(tmp_path: Path) -> Path:
    folder = tmp_path / "other place"
    folder.mkdir()
    (folder / "watersmeet.yml").write_text("name: kept\nlibraries:\n- glob: {include: queries.sql}\n")
    (folder / "queries.sql").write_text((HERE / "queries.sql").read_text())
    return folder


def test_a_checkpoint_is_moved_with_the_paths_in_it(project: Path, archive: Path, other_place: Path) -> None:
    # What an import left that was killed blocks nothing.
    (other_place / "storage" / "checkpoints" / f".import-{QUERY}").mkdir(parents=True)
    (other_place / "data" / "orders").mkdir(parents=True)
    said = watersmeet("state", "import", archive, other_place)
    assert said.exit_code == 0
    # What the query reads is not part of it.
    assert said.stderr == f"note: {other_place}/data/deliveries, which deliveries reads, does not exist.\n"
    assert said.stdout == f"Imported {QUERY} into {other_place}/storage. Provide what is missing before the next run.\n"
    moved = other_place / "storage" / "checkpoints" / QUERY
    assert [path.name for path in moved.parent.iterdir()] == [QUERY]
    owner = Owner.from_text((moved / "watersmeet.json").read_text(), "", "")
    paths = [part["options"]["path"] for s in owner.queries[0].identity["sources"] for part in s["reads"]]
    assert paths == [f"{other_place}/data/orders", f"{other_place}/data/deliveries"]
    (schema,) = moved.glob("state/0/_stateSchema/default/*")
    assert f'"file:{schema}"' in (moved / "state/0/_metadata/v2/0").read_text()
    assert f'"file://{str(other_place).replace(" ", "%20")}/data/orders/0.json"' in (moved / "sources/0/0").read_text()
    before = project / "storage" / "checkpoints" / QUERY
    names = [{str(f.relative_to(at)) for f in at.rglob("*") if f.is_file()} for at in (before, moved)]
    assert names[0] == names[1]
    assert query_id(moved) != query_id(before), "for sinks it is another run"
    again = watersmeet("state", "import", archive, other_place)
    assert (again.exit_code, "[CHECKPOINT_IS_THERE]" in again.stderr) == (1, True)
    shutil.rmtree(other_place / "storage")
    assert watersmeet("state", "import", archive, other_place, "--move").exit_code == 0
    assert query_id(moved) == query_id(before)


def change_entries(archive: Path, to: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """The archive with other files in it."""
    with tarfile.open(archive) as old, tarfile.open(to, "w:gz") as new:
        for entry in old:
            held = old.extractfile(entry)
            assert held is not None
            data = change(entry.name, held.read())
            if data is not None:
                entry.size = len(data)
                new.addfile(entry, io.BytesIO(data))
    return to


def newer(name: str, data: bytes) -> bytes:
    return json.dumps({**json.loads(data), "archive": 9, "watersmeet": "8.1"}).encode() if "manifest" in name else data


BAD: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "something else": (lambda a, to: (to.write_text("not an archive") and to) or to, "WRONG_ARCHIVE"),
    "torn": (lambda a, to: (to.write_bytes(a.read_bytes()[:3000]) and to) or to, "WRONG_ARCHIVE"),
    "a file less": (lambda a, to: change_entries(a, to, lambda n, d: None if "offsets/0" in n else d), "WRONG_ARCHIVE"),
    "a file changed": (
        lambda a, to: change_entries(a, to, lambda n, d: d + b" " if "commits/0" in n else d),
        "WRONG_ARCHIVE",
    ),
    "no list": (lambda a, to: change_entries(a, to, lambda n, d: None if "manifest" in n else d), "WRONG_ARCHIVE"),
    "a newer version": (lambda a, to: change_entries(a, to, newer), "CHECKPOINT_OF_A_NEWER_VERSION"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_archive_changes_nothing(case: str, archive: Path, other_place: Path, tmp_path: Path) -> None:
    make, condition = BAD[case]
    said = watersmeet("state", "import", make(archive, tmp_path / "bad.tar.gz"), other_place)
    assert (said.exit_code, f"[{condition}]" in said.stderr) == (1, True), said.stderr
    assert not list((other_place / "storage").glob("checkpoints/*"))


def test_a_storage_folder_in_use_is_left_alone(project: Path, archive: Path, other_place: Path, tmp_path: Path) -> None:
    with lock_storage(project / "storage", "shared"), lock_storage(other_place / "storage", "shared"):
        for command in (
            ("export", project, "--query", QUERY, "--to", tmp_path / "new.tar.gz"),
            ("import", archive, other_place),
        ):
            said = watersmeet("state", *command)
            assert (said.exit_code, "[CHECKPOINT_IN_USE]" in said.stderr) == (4, True)
    assert not (tmp_path / "new.tar.gz").exists()


def test_a_query_runs_once_at_a_time(project: Path) -> None:
    storage = project / "storage"
    with lock_storage(storage, "shared", [QUERY]):
        said = watersmeet("run", project, "--once")
        assert (said.exit_code, "[QUERY_IN_USE]" in said.stderr, QUERY in said.stderr) == (4, True, True)
        assert f"process {os.getpid()} of" in " ".join(said.stderr.split()), "the refusal names who is in the way"
        # Others may go on beside it.
        with lock_storage(storage, "shared", ["another"]):
            pass
    with lock_storage(storage, "alone"):
        assert "[CHECKPOINT_IN_USE]" in watersmeet("run", project, "--once").stderr


def test_missing_or_ambiguous_states_are_refused(project: Path, archive: Path, tmp_path: Path) -> None:
    assert "choose one with --query" in watersmeet("state", "export", project).stderr.replace("\n", " ")
    assert "[UNKNOWN_SINK]" in watersmeet("state", "export", project, "--query", "intervl_left").stderr
    assert "[FOLDER_NOT_EMPTY]" in watersmeet("state", "export", project, "--query", QUERY, "--to", archive).stderr
    assert "[FILE_NOT_FOUND]" in watersmeet("state", "import", tmp_path / "none", project).stderr
    empty = tmp_path / "checkpoints"
    empty.mkdir()
    assert "[NO_CHECKPOINT]" in watersmeet("state", "export", tmp_path).stderr
