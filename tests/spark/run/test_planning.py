"""A query is analysed once on its way to running, however it reads its tables."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import watersmeet.logical.passes
from watersmeet.cli.console import Format
from watersmeet.cli.run import Cluster, Endpoint, run_project
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


def test_a_run_analyses_each_query_once(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        "orders": {"id": 1, "country": "no", "customer": "ada"},
        "countries": {"code": "no", "name": "Norway"},
        "customers": {"name": "ada", "city": "Oslo"},
    }
    for name, row in rows.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.json").write_text(json.dumps(row) + "\n")
    (tmp_path / "shop.sql").write_text(PROJECT)
    analysed: Counter[str | None] = Counter()

    def counting(draft: Draft) -> Draft:
        analysed[draft.query.into] += 1
        return draft

    monkeypatch.setattr(watersmeet.logical.passes, "PASSES", (counting, *watersmeet.logical.passes.PASSES))
    run_project(tmp_path / "shop.sql", "available_now", Cluster(), Format.text, Endpoint())
    assert analysed == {"named": 1, "placed": 1}
    found = {
        sink: [json.loads(line) for file in (tmp_path / sink).glob("*.json") for line in file.read_text().splitlines()]
        for sink in ("named", "placed")
    }
    assert found == {"named": [{"id": 1, "name": "Norway"}], "placed": [{"id": 1, "city": "Oslo"}]}
