"""The how-to pages and the tutorial name what there is: commands, options, conditions, metrics; their SQL may run."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from tests.test_docs import FENCE, ROOT, blocks, name
from tests.tutorial import PAGES as TUTORIAL
from tests.tutorial import File, steps
from typer.testing import CliRunner

from watersmeet.cli.app import app
from watersmeet.errors import catalogue

HOWTO = [page for page in sorted((ROOT / "docs" / "howto").glob("*.md")) if page.name != "README.md"]
COMMAND = re.compile(r"(?<!import )watersmeet ((?:(?:state|dev) )?[a-z]+)((?: [^\s`|;]+)*)")


def test_all_tasks_have_their_page_in_the_contents() -> None:
    contents = (ROOT / "docs" / "howto" / "README.md").read_text("utf-8")
    assert len(HOWTO) == 18
    assert set(re.findall(r"\]\(([a-z-]+\.md)\)", contents)) == {page.name for page in HOWTO}


@pytest.mark.parametrize("page", HOWTO, ids=name)
def test_a_page_is_short_and_has_its_parts(page: Path) -> None:
    text = page.read_text("utf-8")
    assert 40 <= text.count("\n") <= 120
    for part in ("**When you need it**", "\n## What goes wrong\n"):
        assert part in text


@pytest.mark.parametrize("page", [page for page in HOWTO if blocks(page, "sql")], ids=name)
def test_sql_to_paste_passes_check(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "\n".join(blocks(page, "sql"))
    for variable in re.findall(r"\$\{env:(\w+)\}", script):
        monkeypatch.setenv(variable, "anything")
    for file in re.findall(r"\$\{file:([^}]+)\}", script):
        script = script.replace(file, "secret")
        (tmp_path / "secret").touch()
    (tmp_path / "page.sql").write_text(script)
    checked = CliRunner().invoke(app, ["check", str(tmp_path / "page.sql")])
    assert checked.exit_code == 0, checked.output


@cache
def options(command: str) -> set[str]:
    helped = CliRunner().invoke(app, [*command.split(), "--help"])
    assert helped.exit_code == 0, command
    return set(re.findall(r"--[a-z-]+", helped.output))


@pytest.mark.parametrize("page", [*HOWTO, *TUTORIAL], ids=name)
def test_commands_and_options_exist(page: Path) -> None:
    text = page.read_text("utf-8").replace("\\\n", " ")
    # Prose has the command in backticks only.
    code = [body for _, body in FENCE.findall(text)] + re.findall(r"`([^`]+)`", FENCE.sub("", text).replace("\n", " "))
    for part in code:
        for command, rest in COMMAND.findall(part):
            unknown = set(re.findall(r" (--[a-z-]+)", rest)) - options(command)
            assert not unknown, f"{command}: {unknown}"


@pytest.mark.parametrize("page", HOWTO, ids=name)
def test_conditions_and_metrics_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    seen = [row for row in text.splitlines() if row.startswith("| `")]
    named = {word for row in seen for word in re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", row.split("|")[1])}
    assert named <= catalogue().keys()
    metrics = set(re.findall(r"\bwatersmeet_(?!batches)[a-z_]+", text))
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    for metric in metrics:
        assert f"`{metric}`" in reference or f"`{metric.removeprefix('watersmeet_query_')}`" in reference, metric


@pytest.mark.parametrize("page", HOWTO, ids=name)
def test_yaml_can_be_read(page: Path) -> None:
    for info, body in FENCE.findall(page.read_text("utf-8")):
        if info.startswith("yaml "):
            assert yaml.safe_load(body)


def test_the_steps_of_the_workflow_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that need no Spark, in a project that `init` wrote."""
    page = ROOT / "docs" / "howto" / "ci.md"
    (workflow,) = (body for info, body in FENCE.findall(page.read_text("utf-8")) if info.startswith("yaml title"))
    steps = [step.get("run", "") for job in yaml.safe_load(workflow)["jobs"].values() for step in job["steps"]]
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["init", "shop"]).exit_code == 0
    commands = [step.split()[1:] for step in steps if step.startswith("watersmeet ")]
    assert [command[0] for command in commands] == ["fmt", "check", "test", "test"]
    for command in commands[:3]:
        ran = CliRunner().invoke(app, command)
        assert ran.exit_code == 0, ran.output


def test_every_chapter_is_in_the_contents_and_leads_to_the_next() -> None:
    contents = (TUTORIAL[0].parent / "README.md").read_text("utf-8")
    assert len(TUTORIAL) == 10
    assert all(f"]({page.name})" in contents for page in TUTORIAL)
    for page, following in pairwise(TUTORIAL):
        assert f"]({following.name})" in page.read_text("utf-8").splitlines()[-1], page.name


@pytest.mark.parametrize("page", TUTORIAL, ids=name)
def test_files_are_named_where_titles_are_not_shown(page: Path) -> None:
    prose = FENCE.sub("", page.read_text("utf-8"))
    assert all(f"`{step.path}`" in prose for step in steps(page) if isinstance(step, File))
