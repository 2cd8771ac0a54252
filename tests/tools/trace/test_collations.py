"""Strings of a collation are compared by Spark alone: rows in the process have lost it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from watersmeet.local.cells import NeedsSparkError
from watersmeet.local.functions import SPARK_EVALUATOR
from watersmeet.local.query import LocalQuery
from watersmeet.operators import OPERATORS
from watersmeet.physical import plan_query
from watersmeet.queries import analyze, read_script

SOURCE = "CREATE STREAM s (k STRING COLLATE UTF8_LCASE, n BIGINT);"


def step(query: str) -> list[str]:
    local = LocalQuery(plan_query(analyze(read_script(f"{SOURCE} {query};"))[0], OPERATORS), "reference")
    return local.step({"s": pa.table({"k": ["A", "b"], "n": [1, 0]})}, {}).rows.column("k").to_pylist()


def evaluate(sql: str, rows: pa.Table) -> pa.Array:
    """What would be asked of Spark, over rows whose strings have no collation."""
    raise AssertionError(sql)


def test_collations_are_left_to_spark_if_it_is_at_hand() -> None:
    view = "(SELECT STREAM s.k AS k, s.n FROM s) AS v"
    token = SPARK_EVALUATOR.set(evaluate)
    try:
        assert step(f"SELECT STREAM v.k FROM {view} WHERE v.n > 0") == ["A"]
        for condition in ("v.k = 'a'", "v.k LIKE 'a'", "v.n > 0 AND v.k < 'b'"):
            with pytest.raises(NeedsSparkError, match="of strings with a collation"):
                step(f"SELECT STREAM v.k FROM {view} WHERE {condition}")
    finally:
        SPARK_EVALUATOR.reset(token)


def test_strings_of_a_collation_need_spark() -> None:
    with pytest.raises(NeedsSparkError, match="UTF8_LCASE"):
        step("SELECT STREAM s.k FROM s")
