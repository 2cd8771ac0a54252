"""The documents say what is there: links lead somewhere, SQL can be read, commands print what is shown."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import typer
from tests.case_files import case_file
from typer.testing import CliRunner

import watersmeet as ws
from watersmeet.cli.app import app
from watersmeet.codec.avro_schema import AVRO
from watersmeet.errors import WatersmeetError
from watersmeet.formats import FEEDS, SINK_FORMATS, SOURCE_FORMATS
from watersmeet.formats.base import DisplaySink, MemorySink, SinkFormat, SourceFormat
from watersmeet.formats.protobuf.descriptor import PROTOBUF
from watersmeet.formats.records import Feed, Records
from watersmeet.parser import read_expression
from watersmeet.project import Spec, read_yaml
from watersmeet.queries import analyze, read_script
from watersmeet.spark.connectors import CHANGE_DECODERS, SINK_CONNECTORS, SOURCE_CONNECTORS
from watersmeet.tools.testing import parse_case, read_case, run_case

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


def test_the_navigation_of_the_site_has_every_page() -> None:
    lines = re.findall(r"^ {6}- \"?([^\"\n]+\.md)\"?$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    named = [line for line in lines if "*" not in line]
    assert len(named) > 20 and not [line for line in named if not (ROOT / line).exists()]
    shown = {page for line in lines for page in ROOT.glob(line)}
    assert not [name(page) for page in PAGES if page not in shown and page.parent.name != "assets"]


MAPS = {"CONTRIBUTING.md": 40, "docs/design/architecture.md": 60, "docs/design/extending.md": 40}
"""Pages that name files of the tree, and how many at least."""


@pytest.mark.parametrize("page", MAPS)
def test_contributing_and_architecture_name_files_that_exist(page: str) -> None:
    """A placeholder stands for some folder or file: not every family has syntax of its own."""
    named = re.findall(r"`([\w./<>-]+(?:\.py|\.toml|/))`", (ROOT / page).read_text("utf-8"))
    patterns = [re.sub(r"<\w+>", "*", path) for path in named]
    missing = [path for path in patterns if not any([*ROOT.glob(path), *(ROOT / "src/watersmeet").glob(path)])]
    assert len(named) >= MAPS[page] and not missing


def files_promised(folder: str, format_class: type[SourceFormat | SinkFormat | Feed]) -> set[str]:
    """The files in which the page of the architecture says that a format is: of its name, or others for several."""
    rows = (ROOT / "docs/design/architecture.md").read_text("utf-8").splitlines()
    row = next(row for row in rows if f"`{folder}/<format>.py`" in row)
    names = (format_class.name,) if issubclass(format_class, Feed) else format_class.names
    return {f"{folder}/{name}.py" for name in names} | set(re.findall(rf"`({folder}/\w+\.py)`", row))


def test_every_format_is_in_the_file_that_the_architecture_promises() -> None:
    # These are what all formats share, or those that Spark alone reads and writes.
    shared = (SourceFormat, SinkFormat, DisplaySink, MemorySink, Records)
    for format_class in {*SOURCE_FORMATS, *SINK_FORMATS, *FEEDS}.difference(shared):
        module = format_class.__module__.removeprefix("watersmeet.").replace(".", "/")
        assert f"{module}.py" in files_promised("formats", format_class)
    registered = (*SOURCE_CONNECTORS.items(), *SINK_CONNECTORS.items(), *CHANGE_DECODERS.items())
    for format_class, connector in registered:
        if format_class not in shared:
            path = f"spark/connectors/{connector.partition('.')[0]}.py"
            assert path in files_promised("spark/connectors", format_class)
            assert (ROOT / "src/watersmeet" / path).exists()
    # The formats of the values of records are not formats of sources, and have files of their own.
    assert all((ROOT / f"src/watersmeet/spark/connectors/{name}.py").exists() for name in (AVRO, PROTOBUF))


def test_the_table_of_the_architecture_is_short() -> None:
    """Where to change what: more rows than this are not read. Row 1 is the heading, row 2 the line below it."""
    page = (ROOT / "docs/design/architecture.md").read_text("utf-8")
    table = page.partition("## Where to change what")[2].partition("\n## ")[0]
    assert 10 < len(re.findall(r"^\|", table, re.MULTILINE)) - 2 <= 25


def test_design_records_have_a_title_a_status_and_a_place_in_the_index() -> None:
    folder = ROOT / "docs" / "design"
    index = re.findall(
        r"^- \[(\d{4})\]\(((\d{4})-[a-z0-9-]+\.md)\) (.+?)(?: \(replaced by \[.*)?$",
        (folder / "README.md").read_text("utf-8"),
        re.MULTILINE,
    )
    numbers = [number for number, *_ in index]
    assert len(numbers) > 70 and numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]
    assert {file for _, file, *_ in index} == {path.name for path in folder.glob("[0-9]*.md")}
    for number, file, own, title in index:
        first, _, status, *_ = (folder / file).read_text("utf-8").splitlines()
        assert (own, first) == (number, f"# {number}: {title}")
        assert re.match(r"Status: (accepted \(\d{4}-\d\d-\d\d\)|replaced by \[)", status), file


def test_contributing_is_short() -> None:
    """The architecture page has the map of the code, and the page on extending has the long lists."""
    assert (ROOT / "CONTRIBUTING.md").stat().st_size <= 12_000


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
def test_sql_of_other_systems_has_its_pair(page: Path) -> None:
    """Behind what others write, possibly in two languages, stands what is written here."""
    kinds = [info for info, _ in FENCE.findall(page.read_text("utf-8"))]
    elsewhere = [i for i, info in enumerate(kinds) if info.endswith(" elsewhere")]
    following = [next(info for info in kinds[i:] if not info.endswith(" elsewhere")) for i in elsewhere]
    assert len(elsewhere) >= 2
    assert set(following) <= {"sql", "python"}
    assert "yaml" in kinds, "a case shows what differs, or what does not"
    assert f"]({page.name})" in (page.parent / "README.md").read_text("utf-8")


COMMAND = re.compile(r"(?:^|[ /(])watersmeet((?: [a-z]+)*)((?:[^\S\n]|\\\n)?(?:\\\n|[^\n])*)", re.MULTILINE)


COMMANDS = typer.main.get_command(app)


@cache
def options_of(command: str) -> set[str] | None:
    """The options of a command and, if it is a group, its first words; None: no command has that name."""
    found: Any = COMMANDS
    for word in command.split():
        inside = getattr(found, "commands", None)
        if inside is None:
            break  # the rest are its arguments
        if word not in inside:
            return None
        found = inside[word]
    return {option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts, "--help")}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_and_options_exist(page: Path) -> None:
    """Of every command that is written as code, up to where its line goes on to something else."""
    text = page.read_text("utf-8")
    shown = [block for info, block in FENCE.findall(text) if info.split(" ")[0] in ("text", "console", "sh", "bash")]
    texts = (*shown, *re.findall(r"`([^`]+)`", FENCE.sub("", text)))
    for command, rest in (found for text in texts for found in COMMAND.findall(text)):
        known = options_of(command)
        assert known is not None, f"watersmeet{command}"
        written = re.split(r" {2,}|[|;#]|&&| > |, ", rest.replace("\\\n", ""))[0]
        unknown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", written)) - known
        assert not unknown, f"watersmeet{command}: {unknown}"


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


@pytest.mark.parametrize("page", pages_with("python"), ids=name)
def test_python_names_what_is_there(page: Path) -> None:
    """Whatever is imported from the package, and every name behind ``ws.``."""
    for block in blocks(page, "python"):
        for node in ast.walk(compile(block, name(page), "exec", ast.PyCF_ONLY_AST)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("watersmeet"):
                module = importlib.import_module(node.module or "")
                assert not [alias.name for alias in node.names if not hasattr(module, alias.name)]
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ws":
                assert hasattr(ws, node.attr), ast.unparse(node)


COMPLETE = [page for page in pages_with("python") if page.parent.name in ("coming-from", "howto", ROOT.name)]
"""Pages whose Python a reader will paste: their blocks are one program, which the examples of the reference are not."""


@pytest.mark.parametrize("page", [*COMPLETE, ROOT / "docs" / "advise.md"], ids=name)
def test_python_to_paste_is_complete(page: Path) -> None:
    """No block uses a name that neither it nor an earlier one of its page makes: no session, no input is left out."""
    ruff = [str(Path(sys.executable).with_name("ruff")), "check", "--isolated", "--select", "F821", "--quiet", "-"]
    source = "\n".join(blocks(page, "python"))
    checked = subprocess.run(ruff, input=source, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("page", pages_with("json"), ids=name)
def test_json_can_be_read(page: Path) -> None:
    """A document, or one in each line, as files of rows have them."""
    for block in blocks(page, "json"):
        try:
            json.loads(block)
        except json.JSONDecodeError:
            assert [json.loads(line) for line in block.splitlines() if line]


@pytest.mark.parametrize("page", pages_with("yaml"), ids=name)
def test_cases_pass(page: Path) -> None:
    """What has no batches and no refusal is a project."""
    for text in blocks(page, "yaml"):
        content = read_yaml(text)
        if not {"batches", "fails"} & set(content):
            Spec.model_validate(content)
            continue
        result = run_case(parse_case(text, name(page)), "kernel")
        assert result.status == "passed", result.detail


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("cases/*.yaml")), ids=name)
def test_cases_of_the_examples_pass(path: Path) -> None:
    result = run_case(read_case(path), "kernel")
    assert result.status == "passed", result.detail


def page_commands(page: Path) -> list[tuple[str, str]]:
    """The commands of a page in their order, each with what it is shown to print."""
    parts = [part for text in blocks(page, "console") for part in re.split(r"^\$ ", text, flags=re.MULTILINE) if part]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def is_in_process(command: str) -> bool:
    """Whether it is one that needs no Spark."""
    return command.split()[:2] in [["watersmeet", name] for name in IN_PROCESS]


PRINTED = {"README.md": ["init", "check", "test"], "docs/first-steps.md": ["explain", "check"]}
"""Pages whose commands print what is shown, and those of them that need no Spark, in the order of the page."""


@pytest.mark.parametrize("page", PRINTED)
def test_commands_print_what_is_shown(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if page != "README.md":  # where the project is made
        assert CliRunner().invoke(app, ["init", "shop"]).exit_code == 0
    Path("clicks.sql").write_text("".join(blocks(ROOT / page, "sql refused")))
    run = [(command, output) for command, output in page_commands(ROOT / page) if is_in_process(command)]
    assert [command.split()[1] for command, _ in run] == PRINTED[page]
    for command, output in run:
        assert CliRunner().invoke(app, command.split()[1:]).output.strip() == output.strip(), command


def test_the_readme_shows_the_query_that_init_writes(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["init", str(tmp_path / "shop")]).exit_code == 0
    assert (tmp_path / "shop/sql/joined.sql").read_text() in (ROOT / "README.md").read_text("utf-8")


def test_the_readme_has_figures_that_the_page_of_them_has() -> None:
    readme, page = ((ROOT / path).read_text("utf-8") for path in ("README.md", "docs/performance.md"))
    section = readme.partition("## Figures")[2].partition("\n## ")[0]
    figures = re.findall(r"\d+,\d{3}|\d+\.\d+ times|\b[0-9a-f]{7}\b", section)
    assert len(figures) > 6 and not [figure for figure in figures if figure not in page]


def test_the_page_of_the_api_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
    members = re.findall(r"members: \[(.*)\]", page)[0].split(", ")
    assert sorted([*members, "Refusal", "WatersmeetError", "__version__"]) == sorted(ws.__all__)
    assert all(f"::: watersmeet.{name}" in page for name in ("Refusal", "WatersmeetError"))


def test_the_picture_of_the_readme_is_small_and_shows_commands_that_exist() -> None:
    """It is made of a run that no test repeats."""
    picture = ROOT / "docs" / "images" / "terminal.svg"
    made = runpy.run_path(str(ROOT / "docs" / "make_terminal.py"))
    assert picture.stat().st_size < 300_000
    assert ", then ".join(made["COMMANDS"]) in picture.read_text("utf-8")
    assert all(options_of(" " + " ".join(command.split()[1:2])) for command in made["COMMANDS"])


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_readme_shows_what_a_run_prints_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of them, apart from how long it took."""
    shown = dict(page_commands(ROOT / "README.md"))
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


@pytest.mark.spark
def test_the_python_of_the_readme_prints_what_it_shows(tmp_path: Path) -> None:
    """In a process of its own: its paths begin in the folder in which it starts Spark."""
    page = ROOT / "README.md"
    [program] = blocks(page, "python")
    table = next(text for text in blocks(page, "text") if text.startswith("+-"))
    assert CliRunner().invoke(app, ["init", str(tmp_path / "shop")]).exit_code == 0
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "program.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert (ran.returncode, ran.stdout.strip()) == (0, table.strip()), ran.stderr


def test_the_targets_of_make_are_those_that_the_documents_name() -> None:
    """None of them is run here: tests are, the demo, the benchmark and the soak have tests that run them small."""
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    targets = {line.split()[1] for line in listed.splitlines()}
    named = {target for page in PAGES for target in re.findall(r"`make ([a-z-]+)", page.read_text("utf-8"))}
    assert named <= targets
    assert (
        set(re.findall(r"^\| `make ([a-z-]+)", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)) <= targets
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
    missing = [path for path in named if not (ROOT / path).exists() and not case_file(path).exists()]
    assert len(named) > 150
    assert not missing


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_commits_that_blame_skips_exist() -> None:
    if which("git") is None or _git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("no history: git is missing, this is not a repository, or it is a shallow clone")
    lines = (ROOT / ".git-blame-ignore-revs").read_text("utf-8").splitlines()
    hashes = [line for line in lines if line and not line.startswith("#")]
    assert hashes
    assert [commit for commit in hashes if _git("merge-base", "--is-ancestor", commit, "HEAD").returncode] == []
