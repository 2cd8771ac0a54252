"""Subqueries in WHERE: DuckDB has the same rows, with NULLs on every side."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.tools.testing import Case, CaseBatch, run_case

QUERIES = (
    "SELECT {table} id, k FROM a WHERE k IN (SELECT k FROM b)",
    "SELECT {table} id, k FROM a WHERE k NOT IN (SELECT k FROM b)",
    "SELECT {table} id, k FROM a WHERE NOT (k IN (SELECT k FROM b WHERE v > 0)) AND v > 0",
    "SELECT {table} id, k FROM a WHERE k NOT IN (SELECT k FROM b WHERE k IS NOT NULL)",
    "SELECT {table} id, k FROM a WHERE k IS NOT NULL AND k NOT IN (SELECT k FROM b)",
    "SELECT {table} id, k FROM a WHERE k IS NOT NULL AND a.k NOT IN (SELECT b.k FROM b WHERE NOT b.k IS NULL)",
    "SELECT {table} id, k FROM a WHERE k NOT IN (SELECT k FROM a AS b WHERE b.v > a.v)",
    "SELECT {table} id, k FROM a WHERE v IS NOT NULL AND v NOT IN (SELECT a.v FROM a)",
    "SELECT {table} id, k FROM a WHERE k NOT IN (SELECT a.k FROM a WHERE a.v > 1 AND a.k IS NOT NULL)",
    "SELECT {table} id, k FROM a WHERE EXISTS (SELECT * FROM b WHERE b.k = a.k AND b.v > a.v)",
    "SELECT {table} id, k FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND (b.v > a.v OR a.v IS NULL))",
    "SELECT {table} id, k FROM a WHERE EXISTS (SELECT 1 FROM b WHERE v = 2)",
    "SELECT {table} id, k FROM a WHERE k IN (SELECT max(k) FROM b GROUP BY v)",
    "SELECT {table} id, k FROM a WHERE k NOT IN (SELECT max(k) FROM b GROUP BY v)",
    "SELECT {table} id, k FROM a WHERE k NOT IN (SELECT DISTINCT v FROM b) AND v IN (SELECT k FROM b)",
    "SELECT {table} id, k FROM a WHERE k NOT IN (SELECT k FROM b WHERE v IN (SELECT v FROM a WHERE k = 1))",
    "SELECT {table} id, k FROM a WHERE k >= (SELECT max(k) FROM b) AND v < (SELECT count(*) FROM b)",
    "SELECT {table} a.id, a.k FROM a LEFT JOIN b ON a.k = b.k WHERE b.v NOT IN (SELECT v FROM b WHERE k = 1)",
    "SELECT {table} id, k FROM a WHERE n NOT IN (SELECT m FROM b) AND n NOT IN (SELECT k FROM b)",
    "SELECT {table} a.id, a.k FROM a LEFT JOIN b ON a.k = b.k AND b.v > 0 WHERE b.m NOT IN (SELECT n FROM a)",
)
SCHEMA = (
    "CREATE TABLE a (id BIGINT, k BIGINT, v BIGINT, n BIGINT NOT NULL);"
    "CREATE TABLE b (k BIGINT, v BIGINT, m BIGINT NOT NULL);"
)
values = st.sampled_from((1, 2, 3, None))
numbers = st.sampled_from((1, 2, 3))
Rows = list[tuple[Any, ...]]


def duck_rows(text: str, a: Rows, b: Rows) -> Rows:
    with duckdb.connect(":memory:", config={"threads": 1}) as database:
        database.execute(SCHEMA)
        for name, rows in (("a", a), ("b", b)):
            for row in rows:
                database.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)
        return database.execute(text.format(table="")).fetchall()


@pytest.mark.parametrize("text", QUERIES)
@settings(
    derandomize=True,
    max_examples=examples(8),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    a=st.lists(st.tuples(st.integers(1, 3), values, values, numbers), max_size=4),
    b=st.lists(st.tuples(values, values, numbers), max_size=3),
)
def test_duckdb_has_the_same_rows(text: str, a: Rows, b: Rows) -> None:
    rows = tuple(("+", *row) for row in duck_rows(text, a, b))
    sql = SCHEMA + text.format(table="TABLE") + ";"
    case = Case(
        "subquery.yaml", "a subquery", sql=sql, batches=(CaseBatch(rows={"a": tuple(a), "b": tuple(b)}, out=rows),)
    )
    result = run_case(case, "kernel")
    assert result.status == "passed", result.detail
