"""What is grouped by inside longer expressions, and what aggregates of numbers take."""

from __future__ import annotations

import pytest

SOURCES = """\
CREATE STREAM s (id BIGINT, t BIGINT, name STRING, st STRUCT<a: BIGINT, b: STRING>, WATERMARK FOR t AS t - 0);
"""


@pytest.mark.parametrize(
    ("shown", "by", "computed"),
    [
        ("st.a", "st", "`#group.k0`.`a`"),
        ("upper(st.b)", "st", "upper(`#group.k0`.`b`)"),
        ("abs(id | t)", "id | t", "abs(`#group.k0`)"),
        ("upper(name) || 'x'", "upper(name)", "`#group.k0` || 'x'"),
    ],
)
def test_grouping_expressions_are_found_inside_an_expression(analyze_sql, shown: str, by: str, computed: str):
    query = analyze_sql(f"{SOURCES} SELECT {shown} AS v, count(*) AS n FROM s GROUP BY {by};")
    assert query.outputs[0].expr.sql() == computed


def test_operands_that_bind_otherwise_are_not_what_is_grouped_by(refusals_of):
    # `t & id | 1` is `(t & id) | 1`, in which `id | 1` does not occur.
    refusals = refusals_of(f"{SOURCES} SELECT t & id | 1 AS v, count(*) AS n FROM s GROUP BY t, id | 1;")
    assert [refusal.condition for refusal in refusals] == ["NOT_GROUPED"]


@pytest.mark.parametrize("call", ["sum(name)", "avg(st)", "stddev(name)"])
def test_aggregates_of_numbers_take_no_other_values(refusals_of, call: str):
    [refusal] = refusals_of(f"{SOURCES} SELECT {call} AS n FROM s;")
    assert refusal.condition == "TYPE_MISMATCH"
    assert refusal.message.startswith(call.split("(")[0])


@pytest.mark.parametrize(
    "call", ["sum(id)", "avg(CAST(name AS DECIMAL(10,2)))", "max(name)", "count(st)", "sum(id + t)"]
)
def test_aggregates_of_numbers_take_numbers(analyze_sql, call: str):
    assert analyze_sql(f"{SOURCES} SELECT {call} AS n FROM s;").result == "table"
