"""``explain``: stages, JSON and drawings, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from watersmeet.cli.app import app

REFUSED = """
CREATE STREAM a (id BIGINT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 5 SECONDS);
SELECT STREAM x.id FROM a x JOIN a y ON x.id = y.id;
"""


def watersmeet(*arguments: object) -> Result:
    environ = {"COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1"}
    return CliRunner(env=environ).invoke(app, [str(argument) for argument in arguments], prog_name="watersmeet")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    assert watersmeet("init", tmp_path / "shop").exit_code == 0
    return tmp_path / "shop"


def test_every_stage_tells_more_than_the_one_before(shop: Path) -> None:
    plan, analyzed, physical = (
        watersmeet("explain", shop, "--stage", stage).stdout for stage in ("plan", "analyzed", "physical")
    )
    assert "on  o.order_id = d.order_id" in plan and "BIGINT" not in plan
    assert "are kept until" in analyzed and "BIGINT" in analyzed and "operator" not in analyzed
    assert "are kept until" in physical and "operator" in physical and "repartition" in physical
    assert watersmeet("explain", shop).stdout == physical


def test_the_question_is_shown_even_of_a_query_that_may_not_run(tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text(REFUSED)
    result = watersmeet("explain", tmp_path / "q.sql", "--stage", "plan")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, "SELECT STREAM")
    refused = watersmeet("explain", tmp_path / "q.sql", "--stage", "analyzed")
    assert (refused.exit_code, "[UNBOUNDED_STATE]" in refused.stderr) == (1, True)


def test_explain_without_a_question(tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text("-- nothing yet")
    refused = watersmeet("explain", tmp_path / "q.sql", "--stage", "plan")
    assert (refused.exit_code, "[NO_QUERY]" in refused.stderr) == (1, True)


def test_a_text_that_cannot_be_read_is_refused_at_its_place(tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text("SELECT STREAM id FROM;")
    refused = watersmeet("explain", tmp_path / "q.sql", "--stage", "plan")
    assert (refused.exit_code, f"--> {tmp_path / 'q.sql'}:1:" in refused.stderr) == (1, True)


@pytest.mark.parametrize("stage", ["plan", "analyzed", "physical"])
def test_json_holds_the_graph(shop: Path, stage: str) -> None:
    [query] = json.loads(watersmeet("explain", shop, "--json", "--stage", stage).stdout)
    assert watersmeet("explain", shop, "--format", "json", "--stage", stage).stdout == (
        watersmeet("explain", shop, "--json", "--stage", stage).stdout
    )
    kinds = [node["kind"] for node in query["topology"]["nodes"]]
    assert kinds.count("source") == 2 and kinds.count("repartition") == (2 if stage == "physical" else 0)


def test_a_drawing_is_written(shop: Path, tmp_path: Path) -> None:
    said = watersmeet("explain", shop, "--svg", tmp_path / "plan.svg")
    assert (said.exit_code, said.stdout) == (0, f"{tmp_path / 'plan.svg'}: 1 query drawn.\n")
    texts = [
        text.text
        for text in ElementTree.parse(tmp_path / "plan.svg").getroot().iter("{http://www.w3.org/2000/svg}text")
    ]
    assert "LEFT JOIN" in texts and "stream orders AS o from json" in texts


def test_a_drawing_that_cannot_be_written_is_wrong_usage(shop: Path, tmp_path: Path) -> None:
    refused = watersmeet("explain", shop, "--svg", tmp_path / "nowhere" / "plan.svg")
    assert (refused.exit_code, "Traceback" in refused.output) == (2, False)
    assert "cannot be written" in " ".join(refused.stderr.split())


def test_a_drawing_is_no_json(shop: Path, tmp_path: Path) -> None:
    assert watersmeet("explain", shop, "--json", "--svg", tmp_path / "plan.svg").exit_code == 2


def test_settings_of_a_session_are_for_forecasts(shop: Path) -> None:
    refused = watersmeet("explain", shop, "--conf", "spark.ui.enabled=false")
    assert refused.exit_code == 2 and "are for --forecast" in refused.stderr
    forecast = watersmeet("explain", shop, "--forecast", "--rate", "10/s", "--conf", "spark.ui.enabled=false")
    assert forecast.exit_code == 0, forecast.stderr
