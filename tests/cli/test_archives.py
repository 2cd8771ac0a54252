"""Archives of strangers: `state import` writes what the list names into the checkpoint, and otherwise nothing."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_commands import watersmeet
from tests.cli.test_state import QUERY, archive, other_place, project

from watersmeet.spark.state import archives

__all__ = ["archive", "other_place", "project"]

Entry = tuple[tarfile.TarInfo, bytes]
Change = Callable[[list[Entry]], list[Entry]]
VICTIM = "do not touch"


def entry(name: str, data: bytes = b"", **fields: Any) -> Entry:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> Entry:
    return entry(name, type=kind, linkname=to)


def entries(archive: Path) -> list[Entry]:
    with tarfile.open(archive) as packed:
        return [(info, packed.extractfile(info).read()) for info in packed]  # type: ignore[union-attr]


def write(held: list[Entry], to: Path) -> Path:
    with tarfile.open(to, "w:gz") as packed:
        for info, data in held:
            packed.addfile(info, io.BytesIO(data))
    return to


def with_manifest(**fields: Any) -> Change:
    """The archive with another list."""

    def change(held: list[Entry]) -> list[Entry]:
        data = json.dumps({**json.loads(held[0][1]), **fields}).encode()
        return [entry("manifest.json", data), *held[1:]]

    return change


def add_to_manifest(*more: Entry) -> Change:
    """The archive with more files, each of which its list names with size and digest."""

    def change(held: list[Entry]) -> list[Entry]:
        files = json.loads(held[0][1])["files"]
        files |= {info.name: [hashlib.sha256(data).hexdigest(), len(data)] for info, data in more}
        return [*with_manifest(files=files)(held), *more]

    return change


def add_entries(*more: Entry) -> Change:
    return lambda held: [*held, *more]


def first(*more: Entry) -> Change:
    return lambda held: [held[0], *more, *held[1:]]


def replace_entry(name: str, by: Callable[[Entry], Entry]) -> Change:
    return lambda held: [by(one) if one[0].name.endswith(name) else one for one in held]


def beyond_the_longest_path() -> list[Entry]:
    """CVE-2025-4517: folders and links, so long that Python gives up resolving them, that lead four folders up."""
    made: list[Entry] = []
    folder, steps = "", "abcdefghijklmnop"
    for step in steps:
        made += [entry(f"{folder}{'d' * 247}", type=tarfile.DIRTYPE), link(f"{folder}{step}", "d" * 247)]
        folder += f"{'d' * 247}/"
    far = f"{'/'.join(steps)}/{'l' * 254}"
    made += [link(far, "../" * len(steps)), link("escape", f"{far}/../../../..")]
    made += [link("through", "escape/victim", tarfile.LNKTYPE), entry("through", b"overwritten")]
    return made


def pad_entry(size: int) -> Callable[[Entry], Entry]:
    return lambda one: entry(one[0].name, one[1].ljust(size, b"\0"))


CRAFTED: dict[str, Change] = {
    "CVE-2025-4517": first(*beyond_the_longest_path()),
    "CVE-2025-4517, listed": add_to_manifest(*beyond_the_longest_path()),
    "a symbolic link out": first(link("checkpoint/out", "/tmp"), entry("checkpoint/out/x", b"x")),
    "a symbolic link out, listed": add_to_manifest(link("checkpoint/out", "../../../../victim")),
    "a symbolic link within, listed": add_to_manifest(link("checkpoint/out", "metadata")),
    "a hard link out": first(link("checkpoint/out", "../../../../victim", tarfile.LNKTYPE)),
    "a hard link out, listed": add_to_manifest(link("checkpoint/out", "../../../../victim", tarfile.LNKTYPE)),
    "up, listed": add_to_manifest(entry("checkpoint/../../../../victim", b"x")),
    "up, not listed": add_entries(entry("../../../victim", b"x")),
    "up and back, listed": add_to_manifest(entry("checkpoint/../checkpoint/x", b"x")),
    "absolute, listed": add_to_manifest(entry("/checkpoint/x", b"x")),
    "absolute, not listed": add_entries(entry("/tmp/watersmeet-absolute", b"x")),
    "with a drive, listed": add_to_manifest(entry("c:/victim", b"x")),
    "with backslashes, listed": add_to_manifest(entry("checkpoint\\..\\..\\victim", b"x")),
    "written in two ways, listed": add_to_manifest(entry("checkpoint//x", b"x")),
    "of another folder, listed": add_to_manifest(entry("checkpoints/other/x", b"x")),
    "with a NUL, listed": with_manifest(files={"checkpoint/a\0b": ["0" * 64, 1]}),
    "with half a character, listed": with_manifest(files={"checkpoint/\ud800": ["0" * 64, 1]}),
    "a name longer than systems have, listed": add_to_manifest(entry(f"checkpoint/{'n' * 300}", b"x")),
    "a name of a million characters": add_entries(entry(f"checkpoint/{'n' * 10**6}", b"x")),
    "a file that is a folder too, listed": add_to_manifest(entry("checkpoint/a", b"x"), entry("checkpoint/a/b", b"x")),
    "a device": add_entries(entry("checkpoint/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)),
    "a device, listed": add_to_manifest(entry("checkpoint/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)),
    "a pipe, listed": add_to_manifest(entry("checkpoint/pipe", type=tarfile.FIFOTYPE)),
    "a folder": add_entries(entry("checkpoint/folder", type=tarfile.DIRTYPE)),
    "a sparse file, listed": add_to_manifest(
        entry("checkpoint/x", pax_headers={"GNU.sparse.map": "0,0", "GNU.sparse.size": str(2**50)})
    ),
    "a file twice": lambda held: [*held, held[-1]],
    "a file twice, the first another": lambda held: [held[0], entry(held[-1][0].name, b"x"), *held[1:]],
    "a file that nobody listed": add_entries(entry("checkpoint/more", b"x")),
    "a file less": lambda held: held[:-1],
    "a file longer": replace_entry("commits/0", pad_entry(10_000)),
    "a file of the same size changed": replace_entry("commits/0", lambda one: entry(one[0].name, one[1].swapcase())),
    "a list of other digests": lambda held: with_manifest(
        files={name: [size, size] for name, size in json.loads(held[0][1])["files"].items()}
    )(held),
    "a list that claims more than the disk has": lambda held: with_manifest(
        files=json.loads(held[0][1])["files"] | {"checkpoint/large": ["0" * 64, 2**60]}
    )(held),
    "a list of negative sizes": with_manifest(files={"checkpoint/x": ["0" * 64, -5]}),
    "a list that is deeply nested": lambda held: [entry("manifest.json", b"[" * 100_000), *held[1:]],
    "a list that is a number": lambda held: [entry("manifest.json", b"7"), *held[1:]],
    "a list that is a link": lambda held: [link("manifest.json", "/etc/passwd"), *held[1:]],
    "a list without files": with_manifest(files=7),
    "a list with more than it may have": with_manifest(evil="x"),
    "no list": lambda held: held[1:],
    "places that are everywhere": with_manifest(root="", checkpoint=""),
    "the query up": with_manifest(query="../../x"),
    "the query absolute": with_manifest(query="/tmp/x"),
    "the query is this folder": with_manifest(query="."),
    "the query is nothing": with_manifest(query=""),
    "the query is hidden": with_manifest(query=".before-other"),
    "the query is a number": with_manifest(query=7),
    "many headers for one file": add_entries(*[entry("x", b"6 a=b\n" * 40, type=tarfile.XHDTYPE)] * 900),
    "an owner that is none": replace_entry("watersmeet.json", lambda one: entry(one[0].name, b"[1]")),
}


@pytest.fixture
def place(other_place: Path, tmp_path: Path) -> Iterator[Path]:
    """A project with a file in its way four folders up of where an archive is unpacked."""
    (tmp_path / "victim").write_text(VICTIM)
    (other_place / "victim").write_text(VICTIM)
    watersmeet("state", "import", tmp_path / "victim", other_place)
    yield other_place
    assert (tmp_path / "victim").read_text() == VICTIM


def tree(folder: Path) -> dict[str, tuple[int, int, str]]:
    """All that is below a folder: kind and rights, links, and what is in it."""
    found: dict[str, tuple[int, int, str]] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        held = str(path.readlink()) if path.is_symlink() else path.read_bytes().hex() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_nlink if path.is_file() else 0, held)
    return found


def refuse_import(bad: Path, place: Path, tmp_path: Path) -> str:
    before = tree(tmp_path)
    said = watersmeet("state", "import", bad, place)
    assert said.exit_code == 1, said.stderr
    assert tree(tmp_path) == before
    return said.stderr


@pytest.mark.parametrize("case", CRAFTED)
def test_a_crafted_archive_changes_nothing(case: str, archive: Path, place: Path, tmp_path: Path) -> None:
    bad = write(CRAFTED[case](entries(archive)), tmp_path / "bad.tar.gz")
    assert "[WRONG_ARCHIVE]" in refuse_import(bad, place, tmp_path)
    assert not Path("/tmp/watersmeet-absolute").exists()


def test_the_list_may_not_be_longer_than_it_is_read(
    project: Path, archive: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MANIFEST_BYTES", 1_000)
    assert "its list of files has" in refuse_import(archive, place, tmp_path)
    new = tmp_path / "new.tar.gz"
    said = watersmeet("state", "export", project, "--query", QUERY, "--to", new)
    assert "[ARCHIVE_TOO_LARGE]" in said.stderr
    assert not list(tmp_path.glob("*new*"))


def test_a_header_that_claims_a_terabyte_is_not_read_into_memory(archive: Path, place: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.tar.gz"
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 2**40
    with gzip.open(bad, "wb") as packed:
        packed.write(info.tobuf(tarfile.GNU_FORMAT))
    assert "[WRONG_ARCHIVE]" in refuse_import(bad, place, tmp_path)


def test_a_form_without_sizes_can_still_be_read(archive: Path, other_place: Path, tmp_path: Path) -> None:
    def first_form(held: list[Entry]) -> list[Entry]:
        files = {name: digest for name, (digest, _) in json.loads(held[0][1])["files"].items()}
        return with_manifest(archive=1, files=files)(held)

    old = write(first_form(entries(archive)), tmp_path / "old.tar.gz")
    assert watersmeet("state", "import", old, other_place).exit_code == 0
    assert (other_place / "storage" / "checkpoints" / QUERY / "commits" / "0").is_file()


def test_files_put_next_to_the_checkpoint_are_taken_back(
    archive: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails at the very end."""
    bad = write(
        add_to_manifest(entry("marks/0.json", b"{}"), entry("static/t/x", b"x"))(entries(archive)), tmp_path / "more"
    )
    rename = Path.rename

    def fail_on_checkpoint(path: Path, to: Path) -> Path:
        if path.name == "checkpoint":
            raise OSError(28, "No space left on device")
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", fail_on_checkpoint)
    assert "No space left" in refuse_import(bad, place, tmp_path)


def test_links_are_exported_as_what_they_lead_to(project: Path, other_place: Path, tmp_path: Path) -> None:
    checkpoint = project / "storage" / "checkpoints" / QUERY
    (checkpoint / "aside").write_text("x")
    (checkpoint / "linked").symlink_to(checkpoint / "aside")
    os.link(checkpoint / "aside", checkpoint / "second")
    try:
        new = tmp_path / "new.tar.gz"
        assert watersmeet("state", "export", project, "--query", QUERY, "--to", new).exit_code == 0
    finally:
        for name in ("aside", "linked", "second"):
            (checkpoint / name).unlink()
    assert watersmeet("state", "import", new, other_place).exit_code == 0
    moved = other_place / "storage" / "checkpoints" / QUERY
    assert [(moved / name).read_text() for name in ("aside", "linked", "second")] == ["x"] * 3
    assert not (moved / "linked").is_symlink()
