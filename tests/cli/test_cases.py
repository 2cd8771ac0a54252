"""`watersmeet test`: which files it finds, what it says of each, and how it exits."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from watersmeet.cli import check
from watersmeet.cli.init import init_project
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.tools.testing import Case, Result

CASE = "name: {name}\nsql: SELECT\nbatches: [{{out: []}}]\n"


def pretend(case: Case, on: str, spark: object) -> Result:
    """Stands for the executors: does what the name of the case says."""
    if case.name == "needs spark":
        return Result(case, "not run", "only Spark can evaluate upper(a)")
    if case.name == "refused":
        raise refuse("NO_QUERY", script=case.path)
    return Result(case, "failed", "batch 1, out:\n  - [1]") if case.name == "differs" else Result(case, "passed")


@pytest.mark.parametrize(
    ("names", "code", "summary"),
    [
        (["good"], 0, "1 passed"),
        (["good", "needs spark"], 0, "1 not run, 1 passed"),
        (["good", "differs"], 1, "1 failed, 1 passed"),
        (["refused"], 1, "1 failed"),
        (["differs", "[", "good"], 2, "1 failed, 1 passed, 1 unreadable"),
    ],
)
def test_exit_codes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    names: list[str],
    code: int,
    summary: str,
) -> None:
    monkeypatch.setattr(check, "run_case", pretend)
    for number, name in enumerate(names):
        (tmp_path / f"{number}.yaml").write_text(CASE.format(name=name))
    with pytest.raises(typer.Exit) as ended:
        check.run_cases([tmp_path], "kernel", None)
    shown = capsys.readouterr().out
    assert (ended.value.exit_code, shown.splitlines()[-1]) == (code, summary)
    assert ("  - [1]" in shown) == ("differs" in names)


def test_a_folder_stands_for_its_cases_and_not_for_its_project(tmp_path: Path) -> None:
    for name in ("cases/b.yaml", "a.yml", "watersmeet.yml", "notes.txt", ".venv/lib/c.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert [file.name for file in check.case_files(tmp_path)] == ["a.yml", "b.yaml"]


def test_a_folder_without_cases_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WatersmeetError, match="WRONG_CASE"):
        check.case_files(tmp_path)


def test_the_case_of_a_new_project_passes_on_the_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init_project(tmp_path / "shop")
    with pytest.raises(typer.Exit) as ended:
        check.run_cases([tmp_path / "shop" / "cases"], "kernel", None)
    shown = capsys.readouterr().out
    assert (ended.value.exit_code, shown.splitlines()[-1]) == (0, "1 passed"), shown


def test_a_case_that_expects_something_else_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init_project(tmp_path / "shop")
    file = tmp_path / "shop" / "cases" / "joined.yaml"
    file.write_text(file.read_text().replace("08:00, north", "08:00, south"))
    with pytest.raises(typer.Exit) as ended:
        check.run_cases([file], "kernel", None)
    shown = capsys.readouterr().out
    assert (ended.value.exit_code, '"south"' in shown) == (1, True), shown
