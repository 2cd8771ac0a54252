"""Internal names stay inside: no output has one, over cases, examples and families.

Every fourth case, and all of them with ``WATERSMEET_CASES=all``, as in `make cases`.

A name with ``#`` is ours: a column that only operators know (``#partition``), a watermark that is not one of a user's
column (``#loaded``), a part of one (``o.at#@orders-0``).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from tests.case_files import FILES
from tests.checkpoints.archives import QUERIES, add_rows
from typer.testing import CliRunner

import watersmeet
from watersmeet.cli.app import app
from watersmeet.cli.script import open_script
from watersmeet.errors import WatersmeetError
from watersmeet.metrics.history import history_file
from watersmeet.metrics.logs import HistoryFollower
from watersmeet.operators import OPERATORS
from watersmeet.physical import plan_query
from watersmeet.queries import analyze, read_script
from watersmeet.tools.explain.query import plan_details, query_as_json, render_query
from watersmeet.tools.studio.board.answer import BoardView, evaluate_board
from watersmeet.tools.studio.board.model import board_from_case
from watersmeet.tools.studio.page.description import describe_queries
from watersmeet.tools.studio.page.model import detail, overview, query_drawing_json
from watersmeet.tools.testing import read_case, run_case

ROOT = Path(__file__).parents[1]
SOURCES = [*Path(watersmeet.__file__).parent.rglob("*.py")]
NAMES = {name for path in SOURCES for name in re.findall(r'"#([a-z]\w*)"', path.read_text("utf-8"))}
INTERNAL = re.compile(rf"#(?:{'|'.join(sorted(NAMES))}|by\d|of\d|key\d|order\d|\d+\.)\b|#@")
ALL = os.environ.get("WATERSMEET_CASES") == "all"
TRACED = [
    *FILES[:: 1 if ALL else 4],
    *(ROOT / "tests/tools/trace/cases").glob("*.yaml"),
    *(ROOT / "examples").rglob("cases/*.yaml"),
]


def check(where: str, *texts: object) -> None:
    """Fail with the names in these outputs, and what stands around them."""
    for text in texts:
        shown = text if isinstance(text, str) else json.dumps(text, default=str, ensure_ascii=False)
        found = INTERNAL.search(shown)
        assert found is None, f"{where}: {shown[max(0, found.start() - 150) : found.end() + 50]}"


def test_the_names_are_those_of_the_source() -> None:
    assert {"loaded", "partition", "now", "weight", "group"} <= NAMES and len(NAMES) > 30
    assert INTERNAL.search("o.at#@orders-0") and INTERNAL.search('"#loaded"') and not INTERNAL.search('fill="#0a5c8f"')


@pytest.mark.parametrize("path", TRACED, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_output_of_a_case_has_internal_names(path: Path, tmp_path: Path) -> None:
    """Errors, the plan, the page before the first batch, and what became of each row."""
    case = read_case(path)
    if not case.sql:
        check(path.name, str(run_case(case, "kernel").detail))
        return
    try:
        script = read_script(case.sql)
        queries = analyze(script)
    except WatersmeetError as error:
        check(path.name, str(error))
        return
    for query in queries:
        plan = plan_query(query, OPERATORS)
        details = plan_details(plan, OPERATORS)
        check(path.name, render_query(query, details), query_as_json(query, details))
    for described in describe_queries(script, queries, tmp_path):
        following = HistoryFollower(tmp_path, described.name)
        check(
            path.name, query_drawing_json(described), overview(described, following, 0), detail(described, following, 0)
        )
    check(path.name, evaluate_board(board_from_case(case), BoardView()))


@pytest.mark.skipif(not ALL, reason="takes a minute: `make cases` runs it")
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_no_output_of_a_run_has_internal_names(tmp_path: Path) -> None:
    """Queries of every family, on Spark: what is printed and logged, the page and its metrics, and the states."""
    project = tmp_path / "families"
    (project / "sql").mkdir(parents=True)
    shutil.copy(QUERIES, project / "sql" / "queries.sql")
    (project / "watersmeet.yml").write_text("name: families\nlibraries:\n- glob:\n    include: sql/**\n")

    def command(*words: str) -> str:
        said = CliRunner(env={"COLUMNS": "300"}).invoke(app, [words[0], str(project), *words[1:]])
        assert said.exit_code == 0, said.output
        check(" ".join(words), said.output)
        return said.output

    for part, format_ in ((0, "text"), (1, "json")):
        add_rows(project, part)
        command("run", "--once", "--format", format_)
    opened, storage = open_script(project, "absolute"), project / "storage"
    for described in describe_queries(opened.script, opened.queries, storage):
        following = HistoryFollower(storage, described.name)
        following.poll()
        check(described.name, overview(described, following, 0), detail(described, following, 0))
        check(described.name, history_file(storage, described.name).read_text())
    for format_ in ("text", "json"):
        said = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["state", "show", str(project), "--format", format_])
        assert said.exit_code == 0 and "orders" in said.output, said.output
        check("state show", said.output)
    check("why", command("why", "orders", "id=3"))
