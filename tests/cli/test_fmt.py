"""``watersmeet fmt``: files, folders, ``--check`` and what cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from watersmeet.cli.app import app
from watersmeet.cli.demo import prepare_folder

MESSY = "select a,b from s where a>1 -- large\n"
CLEAN = "SELECT a, b\nFROM s\nWHERE a > 1;  -- large\n"


def watersmeet(*arguments: object) -> Result:
    environ = {"COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1"}
    return CliRunner(env=environ).invoke(app, [str(argument) for argument in arguments], prog_name="watersmeet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sql" / "deep").mkdir(parents=True)
    (tmp_path / "sql" / "messy.sql").write_text(MESSY)
    (tmp_path / "sql" / "deep" / "clean.sql").write_text(CLEAN)
    (tmp_path / "sql" / "notes.txt").write_text("select")
    return tmp_path / "sql"


def test_files_are_written_anew(folder: Path) -> None:
    done = watersmeet("fmt", folder)
    assert (done.exit_code, done.stdout) == (
        0,
        f"{folder}/messy.sql: reformatted.\n1 file reformatted, 1 unchanged.\n",
    )
    assert (folder / "messy.sql").read_text() == CLEAN
    again = watersmeet("fmt", folder / "messy.sql", folder / "deep", folder)
    assert again.stdout == "0 files reformatted, 2 unchanged.\n"


def test_check_changes_nothing(folder: Path) -> None:
    checked = watersmeet("fmt", folder, "--check")
    assert (checked.exit_code, checked.stdout) == (
        1,
        f"{folder}/messy.sql: would change.\n1 file would change, 1 would not.\n",
    )
    assert (folder / "messy.sql").read_text() == MESSY
    assert watersmeet("fmt", folder / "deep", "--check").exit_code == 0


def test_line_ends_of_another_system_are_no_part_of_the_layout(folder: Path) -> None:
    (folder / "messy.sql").write_bytes(CLEAN.replace("\n", "\r\n").encode())
    assert watersmeet("fmt", folder, "--check").exit_code == 1
    assert watersmeet("fmt", folder).exit_code == 0
    assert (folder / "messy.sql").read_bytes() == CLEAN.encode()


def test_fmt_writes_no_file_if_one_cannot_be_read(folder: Path) -> None:
    (folder / "wrong.sql").write_text("SELECT a FORM b;")
    done = watersmeet("fmt", folder)
    assert done.exit_code == 1
    assert "wrong.sql:1:10" in done.stderr
    assert (folder / "messy.sql").read_text() == MESSY


def test_fmt_refuses_other_files_than_sql(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (folder / "latin.sql").write_bytes(b"SELECT '\xe9' FROM a")
    for path, condition in ((folder / "no.sql", "FILE_NOT_FOUND"), (tmp_path / "empty", "WRONG_PROJECT")):
        refused = watersmeet("fmt", path)
        assert (refused.exit_code, f"[{condition}]" in refused.stderr) == (2, True)
    assert "cannot be read as text" in watersmeet("fmt", folder).stderr


def test_scripts_of_init_demo_and_examples_are_in_canonical_layout(tmp_path: Path) -> None:
    assert watersmeet("init", tmp_path / "shop").exit_code == 0
    for kind in ("folder", "kafka"):
        prepare_folder(tmp_path / kind, kind)
    examples = Path(__file__).parents[2] / "examples"
    checked = watersmeet("fmt", tmp_path, examples, "--check")
    assert (checked.exit_code, checked.stdout.splitlines()[-1][:21]) == (0, "0 files would change,"), checked.stdout
