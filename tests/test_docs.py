"""The documents say what is there: links lead somewhere, SQL can be read, commands print what is shown."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

import watersmeet as ws
from watersmeet.cli.app import app
from watersmeet.errors import WatersmeetError
from watersmeet.language import read_expression
from watersmeet.queries import analyze, read_script
from watersmeet.testing import parse_case, read_case, run_case

ROOT = Path(__file__).parent.parent
FOLDERS = ("docs", "examples")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IN_PROCESS = ("init", "check", "explain", "test")


def blocks(page: Path, info: str) -> list[str]:
    return [text for found, text in FENCE.findall(page.read_text("utf-8")) if found == info]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def pages_with(info: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, info)]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_resolve(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), link
        assert not anchor or anchor in anchors(path), link


def test_contributing_names_files_that_exist() -> None:
    named = re.findall(r"`([\w./-]+(?:\.py|\.toml|/))`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    missing = [
        path for path in named if not any((folder / path).exists() for folder in (ROOT, ROOT / "src/watersmeet"))
    ]
    assert len(named) > 40 and not missing


@pytest.mark.parametrize("page", pages_with("sql"), ids=name)
def test_sql_may_run(page: Path) -> None:
    """The blocks of a page are one script: what one declares, the others use."""
    assert analyze(read_script("\n".join(blocks(page, "sql")), name(page)))


TEACHING = [
    *(page for page in sorted((ROOT / "docs" / "coming-from").glob("*.md")) if page.name != "README.md"),
    ROOT / "docs" / "concepts.md",
    ROOT / "docs" / "troubleshooting.md",
]
"""Pages whose SQL a reader will paste."""


@pytest.mark.parametrize("page", TEACHING, ids=name)
def test_sql_to_paste_passes_check(page: Path, tmp_path: Path) -> None:
    """With all that the command refuses beside the analysis: functions, formats and options that are not known."""
    script = tmp_path / f"{page.stem}.sql"
    script.write_text("\n".join(blocks(page, "sql")))
    checked = CliRunner().invoke(app, ["check", str(script)])
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("page", [page for page in TEACHING if page.parent.name == "coming-from"], ids=name)
def test_what_is_written_elsewhere_has_its_pair(page: Path) -> None:
    """Behind what others write, possibly in two languages, stands what is written here."""
    kinds = [info for info, _ in FENCE.findall(page.read_text("utf-8"))]
    elsewhere = [i for i, info in enumerate(kinds) if info.endswith(" elsewhere")]
    following = [next(info for info in kinds[i:] if not info.endswith(" elsewhere")) for i in elsewhere]
    assert len(elsewhere) >= 2
    assert set(following) <= {"sql", "python"}
    assert "yaml" in kinds, "a case shows what differs, or what does not"
    assert f"]({page.name})" in (page.parent / "README.md").read_text("utf-8")


def test_troubleshooting_names_commands_and_options_that_exist() -> None:

    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    named = re.findall(r"watersmeet ((?:state )?[a-z]+)([^`\n]*)", page)
    assert len(named) > 20
    for command, rest in named:
        options = set(re.findall(r"--[a-z-]+", re.split(r" {2,}", rest)[0]))
        helped = CliRunner().invoke(app, [*command.split(), "--help"])
        assert helped.exit_code == 0, command
        assert options <= set(re.findall(r"--[a-z-]+", helped.output)), f"{command}: {options}"


@pytest.mark.parametrize("page", pages_with("sql refused"), ids=name)
def test_refused_sql_is_refused(page: Path) -> None:
    for text in blocks(page, "sql refused"):
        with pytest.raises(WatersmeetError):
            analyze(read_script(text, name(page)))


@pytest.mark.parametrize("page", pages_with("python"), ids=name)
def test_python_calls_have_the_arguments_that_are_shown(page: Path) -> None:
    for block in blocks(page, "python"):
        for call in [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]:
            if not ast.unparse(call.func).startswith("ws."):
                continue
            function = getattr(ws, ast.unparse(call.func).removeprefix("ws."))
            named = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
            inspect.signature(function).bind(*call.args, **named)
            if function is ws.sql and isinstance(call.args[0], ast.Constant):
                assert read_script(ast.literal_eval(call.args[0])).queries
            elif function is ws.join:
                read_expression(ast.literal_eval(named["on"]))


@pytest.mark.parametrize("page", pages_with("yaml"), ids=name)
def test_cases_pass(page: Path) -> None:
    for text in blocks(page, "yaml"):
        result = run_case(parse_case(text, name(page)), "kernel")
        assert result.status == "passed", result.detail


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("cases/*.yaml")), ids=name)
def test_cases_of_the_examples_pass(path: Path) -> None:
    result = run_case(read_case(path), "kernel")
    assert result.status == "passed", result.detail


def shown_commands(page: Path) -> list[tuple[str, str]]:
    """The commands of a page in their order, each with what it is shown to print."""
    parts = [part for text in blocks(page, "console") for part in re.split(r"^\$ ", text, flags=re.MULTILINE) if part]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def is_in_process(command: str) -> bool:
    """Whether it is one that needs no Spark."""
    return command.split()[:2] in [["watersmeet", name] for name in IN_PROCESS]


def test_the_readme_shows_what_the_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands that need no Spark are run, in the order of the page."""
    readme = ROOT / "README.md"
    monkeypatch.chdir(tmp_path)
    Path("clicks.sql").write_text("".join(blocks(readme, "sql refused")))
    run = [
        (c, output) for c, output in shown_commands(readme) if c.split()[:2] in [["watersmeet", n] for n in IN_PROCESS]
    ]
    assert [command.split()[1] for command, _ in run] == ["init", "check", "explain", "test", "check"]
    for command, output in run:
        assert CliRunner().invoke(app, command.split()[1:]).output.strip() == output.strip(), command
    assert Path("shop/sql/joined.sql").read_text() in readme.read_text("utf-8")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_readme_shows_what_a_run_prints_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of them, apart from how long it took."""
    shown = dict(shown_commands(ROOT / "README.md"))
    rest = [command for command in shown if not is_in_process(command)]
    assert rest == ["watersmeet run shop --end", "cat shop/output/joined/*.json"]
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["init", "shop"]).exit_code == 0
    ran = CliRunner().invoke(app, rest[0].split()[1:])
    assert ran.exit_code == 0, ran.output

    # No run takes as long as another.
    batches, told = (re.sub(r"\d+\.\d s", "", text) for text in (shown[rest[0]], ran.stdout))
    assert told == batches
    written = [line for file in Path("shop/output/joined").glob("*.json") for line in file.read_text().splitlines()]
    assert sorted(written) == sorted(shown[rest[1]].splitlines())


def test_the_targets_of_make_are_those_that_the_documents_name() -> None:
    """None of them is run here: tests are, the demo, the benchmark and the soak have tests that run them small."""
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = {line.split()[1] for line in listed.splitlines()}
    named = {target for page in PAGES for target in re.findall(r"`make ([a-z]+)", page.read_text("utf-8"))}
    assert named <= targets
    assert (
        set(re.findall(r"^\| `make ([a-z]+)", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)) <= targets
    )
    for target in sorted(targets - {"test", "check"}):
        planned = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
        assert planned.returncode == 0, planned.stderr


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_example_in_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "orders_python.py"), run_name="__main__")
    assert "[UNBOUNDED_STATE]" in capsys.readouterr().out


def test_the_page_of_refusals_is_current() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_errors.py"))
    assert made["PAGE"].read_text("utf-8") == made["page"](), "run: python docs/make_errors.py"


def test_the_drawing_of_the_shop_is_current(tmp_path: Path) -> None:
    drawn = tmp_path / "shop.svg"
    assert CliRunner().invoke(app, ["explain", str(ROOT / "examples" / "shop"), "--svg", str(drawn)]).exit_code == 0
    kept = ROOT / "docs" / "images" / "shop.svg"
    assert kept.read_text("utf-8") == drawn.read_text("utf-8"), (
        "run: watersmeet explain examples/shop --svg docs/images/shop.svg"
    )


SYSTEMS = "HZ|IB|LN|RT|FT|AC"
CITED = re.compile(rf"\b(?:{SYSTEMS})-V?\d+[a-z]?\b|\b[1-5]\.4-\d+\b", re.IGNORECASE)
"""Numbers of behaviours (HZ-24), names of examples (hz-v3b), questions (2.4-1): what docs/spec explains."""


def spec_rows() -> dict[str, str]:
    """The rows of the tables in docs/spec, by what they explain."""
    rows = "\n".join(page.read_text("utf-8") for page in (ROOT / "docs" / "spec").glob("*.md"))
    return {number.lower(): rest for number, rest in re.findall(r"^\| ([\w.-]+) \|(.*)\|$", rows, re.MULTILINE)}


def test_numbers_that_are_cited_are_explained() -> None:
    folders = ("src", "tests", "docs", "examples")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = [path.read_text("utf-8") for path in files if path.suffix in (".py", ".md", ".yaml", ".sql", ".toml")]
    cited = {found.lower() for text in (*map(name, files), *texts) for found in CITED.findall(text)}
    assert len(cited) > 100
    assert not cited - spec_rows().keys()


def test_the_spec_names_cases_and_files_that_exist() -> None:
    shown_by = [row.rsplit("|", 1)[-1] for number, row in spec_rows().items() if not number[0].isdigit()]
    named = re.findall(r"`([\w./-]+)`", "".join(shown_by))
    missing = [
        path for path in named if not (ROOT / path).exists() and not (ROOT / f"tests/cases/{path}.yaml").exists()
    ]
    assert len(named) > 150
    assert not missing
