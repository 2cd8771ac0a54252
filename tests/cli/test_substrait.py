"""Substrait plans through the command: checked and explained, with and without declarations beside them, and run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.tools.substrait.substrait_plans import QUERIES, by_datafusion
from typer.testing import CliRunner, Result

from watersmeet.cli.app import app

TABLES = """
CREATE TABLE orders (
    id BIGINT, customer BIGINT, amount DOUBLE, note STRING, placed TIMESTAMP_NTZ, day DATE, price DECIMAL(10,2),
    pieces INT
) USING json OPTIONS (path 'orders');
CREATE TABLE customers (customer_id BIGINT, name STRING, city STRING) USING json OPTIONS (path 'customers');
CREATE SINK result USING json OPTIONS (path 'result', changes 'log');
"""


def watersmeet(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"}).invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "named.substrait"
    path.write_bytes(by_datafusion(QUERIES["inner join"]).plan)
    return path


@pytest.mark.parametrize(
    ("stage", "word"), [("plan", "INNER JOIN"), ("analyzed", "key"), ("physical", "merge join: ON has an equality")]
)
def test_a_plan_is_explained_at_every_stage(stage: str, word: str, plan: Path) -> None:
    shown = watersmeet("explain", plan, "--stage", stage)
    assert shown.exit_code == 0, shown.output
    assert word in shown.stdout


def test_a_plan_reads_what_is_declared_in_the_script(plan: Path) -> None:
    plan.with_suffix(".sql").write_text(TABLES)
    shown = watersmeet("explain", plan, "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)[0]["into"] == "result"
    assert "from json" in watersmeet("explain", plan).stdout


def test_a_damaged_plan_is_refused(plan: Path) -> None:
    plan.write_bytes(b"\x01\x02\x03")
    shown = watersmeet("check", plan)
    assert shown.exit_code == 1
    assert "[WRONG_SUBSTRAIT]" in shown.output


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_plan_runs_and_its_changes_are_written(plan: Path) -> None:
    plan.with_suffix(".sql").write_text(TABLES)
    for table, rows in {
        "orders": [{"id": 1, "customer": 10}, {"id": 2, "customer": 30}],
        "customers": [{"customer_id": 10, "name": "Ada"}],
    }.items():
        (plan.parent / table).mkdir()
        (plan.parent / table / "1.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    ran = watersmeet("run", plan, "--once")
    assert ran.exit_code == 0, ran.output
    written = [json.loads(line) for file in plan.parent.glob("result/*/*.json") for line in file.open()]
    assert [(row["id"], row["name"], row["_change"]) for row in written] == [(1, "Ada", "+")]
