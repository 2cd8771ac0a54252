"""A query is read, analysed and planned once on its way to running, however it reads its tables."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from inspect import unwrap
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import watersmeet as ws
import watersmeet.logical.passes
import watersmeet.parser
import watersmeet.physical
from watersmeet.cli.app import app
from watersmeet.logical.passes.draft import Draft

pytestmark = pytest.mark.spark

PROJECT = """
SET watersmeet.table.load = first;
CREATE STREAM orders (id BIGINT, country STRING, customer STRING) USING json OPTIONS (path 'orders');
CREATE TABLE countries (code STRING, name STRING, PRIMARY KEY (code))
  USING json OPTIONS (path 'countries', static 'true');
CREATE TABLE customers (name STRING, city STRING, PRIMARY KEY (name)) USING json OPTIONS (path 'customers');
CREATE SINK named USING json OPTIONS (path 'named');
CREATE SINK placed USING json OPTIONS (path 'placed');
INSERT INTO named SELECT STREAM o.id, c.name FROM orders o JOIN countries c ON o.country = c.code;
INSERT INTO placed SELECT STREAM o.id, c.city FROM orders o JOIN customers c ON o.customer = c.name;
"""


SINKS: list[str | None] = ["named", "placed"]
ROWS = {
    "orders": {"id": 1, "country": "no", "customer": "ada"},
    "countries": {"code": "no", "name": "Norway"},
    "customers": {"name": "ada", "city": "Oslo"},
}


@dataclass
class Calls:
    """How often a script was read, and each query analysed and planned, by its sink."""

    reads: int = 0
    analyses: Counter[str | None] = field(default_factory=Counter[str | None])
    plans: Counter[str | None] = field(default_factory=Counter[str | None])


def _wrap_everywhere(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], note: Callable[..., None]) -> None:
    """Note the calls of a function, by whatever module it is called.

    A module that is imported meanwhile has the noting function for good, which later tests must wrap again.
    """

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        note(*args)
        return function(*args, **kwargs)

    for name, module in [*sys.modules.items()]:
        if name.startswith("watersmeet") and unwrap(vars(module).get(function.__name__, Calls)) is function:
            monkeypatch.setattr(module, function.__name__, wrapper)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    noted = Calls()

    def note_read(*args: Any) -> None:
        noted.reads += 1

    def note_analysis(draft: Draft) -> Draft:
        noted.analyses[draft.query.into] += 1
        return draft

    def note_plan(query: Any, *args: Any) -> None:
        noted.plans[query.into] += 1

    _wrap_everywhere(monkeypatch, watersmeet.parser.read_partial_script, note_read)
    monkeypatch.setattr(watersmeet.logical.passes, "PASSES", (note_analysis, *watersmeet.logical.passes.PASSES))
    _wrap_everywhere(monkeypatch, watersmeet.physical.plan_query, note_plan)
    return noted


@pytest.mark.parametrize(
    ("options", "drawn"), [((), ()), (("--page", "0"), SINKS)], ids=["without the page", "with the page"]
)
def test_a_run_reads_analyses_and_plans_each_query_once(
    spark: SparkSession, tmp_path: Path, calls: Calls, options: tuple[str, ...], drawn: Sequence[str | None]
) -> None:
    """The page is there before Spark, which knows the types of columns: it draws a plan by the declared types."""
    for name, row in ROWS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.json").write_text(json.dumps(row) + "\n")
    (tmp_path / "shop.sql").write_text(PROJECT)
    result = CliRunner().invoke(app, ["run", str(tmp_path / "shop.sql"), "--once", *options])
    assert result.exit_code == 0, result.output
    written = {
        sink: [
            json.loads(line) for file in (tmp_path / str(sink)).glob("*.json") for line in file.read_text().splitlines()
        ]
        for sink in SINKS
    }
    assert written == {"named": [{"id": 1, "name": "Norway"}], "placed": [{"id": 1, "city": "Oslo"}]}
    assert calls == Calls(1, Counter(SINKS), Counter([*SINKS, *drawn]))


def test_sql_reads_analyses_and_plans_its_query_once(spark: SparkSession, calls: Calls) -> None:
    result = ws.sql(
        "SELECT o.id, d.courier FROM orders o JOIN deliveries d WITHIN 5s ON o.id = d.id",
        orders=spark.sql("SELECT 1 AS id, TIMESTAMP '2024-01-01 12:00:00' AS at"),
        deliveries=spark.sql("SELECT 1 AS id, 'north' AS courier, TIMESTAMP '2024-01-01 12:00:00' AS at"),
    )
    assert [tuple(row) for row in result.collect()] == [(1, "north")]
    assert calls == Calls(1, Counter([None]), Counter([None]))
    # A result is explained as it runs.
    assert "interval join" in ws.explain(result)
    assert calls == Calls(1, Counter([None]), Counter([None]))


def test_join_and_explain_analyse_and_plan_their_query_once(spark: SparkSession, calls: Calls) -> None:
    orders = spark.createDataFrame([(1, 10)], "id BIGINT, at BIGINT")
    deliveries = spark.createDataFrame([(1, 12)], "id BIGINT, at BIGINT")
    result = ws.join(orders, deliveries, on="id", within=5, left_time="at", right_time="at")
    assert result.count() == 1
    assert calls == Calls(0, Counter([None]), Counter([None]))
    ws.explain(orders, deliveries, on="id", within=5, left_time="at", right_time="at")
    assert calls == Calls(0, Counter({None: 2}), Counter({None: 2}))
