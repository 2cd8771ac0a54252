"""Conditions of thousands of parts, and lists of thousands of values, all the way up to the kernel."""

from __future__ import annotations

from time import process_time

import pyarrow as pa
import pytest
from tests.logical.conftest import Analyzed, Refused

from watersmeet.logical.relation import AnalyzedScan
from watersmeet.logical.words import expression_in_words
from watersmeet.operators import OPERATORS
from watersmeet.operators.core.condition import holds
from watersmeet.operators.core.rowwise import evaluate
from watersmeet.physical import plan_query
from watersmeet.physical.identity import assign_names, identity_of
from watersmeet.physical.nodes import join_plans
from watersmeet.queries import format_script

MANY = 1200
DECLARED = """
CREATE STREAM a (id INT, v INT, s STRING, t TIMESTAMP, WATERMARK FOR t AS t);
CREATE STREAM b (id INT, w INT, t TIMESTAMP, WATERMARK FOR t AS t);
"""
JOINED = f"{DECLARED} SELECT STREAM v, w FROM a LEFT JOIN b WITHIN 1h ON a.id = b.id AND"


@pytest.mark.parametrize(
    ("condition", "word", "met"),
    [
        ("w <> v + {}", "AND", [False, True]),
        ("w = v + {}", "OR", [True, False]),
        ("w <> v / {}", "AND", [True, True]),
    ],
)
def test_a_condition_of_thousands_of_parts_runs(
    analyze_sql: Analyzed, condition: str, word: str, met: list[bool]
) -> None:
    parts = f" {word} ".join(condition.format(n) for n in range(1, MANY + 1))
    sql = f"{JOINED} ({parts});"
    query = analyze_sql(sql)
    plan = assign_names(plan_query(query, OPERATORS))
    assert identity_of(plan, 1) == identity_of(assign_names(plan_query(analyze_sql(format_script(sql)), OPERATORS)), 1)
    [join] = join_plans(plan.relation)
    asked = getattr(join.operator, "condition")  # noqa: B009 - of this family
    columns = {"a.v": [0, 0], "b.w": [MANY, MANY + 1]}
    for computed in join.ports[0].computed:
        text = expression_in_words(computed.expr)
        columns[computed.name] = [int(eval(text.replace("a.v", "0"))) if "/" not in text else -1] * 2
    table = pa.table(columns)
    assert holds(asked, lambda name: table[name].combine_chunks(), 2).tolist() == met
    assert [evaluate(asked, row) for row in table.to_pylist()] == met


def test_a_list_of_constants_is_a_list_for_spark(analyze_sql: Analyzed) -> None:
    members = ", ".join(str(n) for n in range(MANY))
    relation = analyze_sql(f"{DECLARED} SELECT STREAM v FROM a WHERE v IN ({members});").relation
    assert isinstance(relation, AnalyzedScan)
    [part] = relation.filters
    assert part.sql() == f"(`a.v` IN ({members}))"


@pytest.mark.parametrize(
    ("condition", "sql"),
    [
        ("s NOT IN ('x', 'y')", "(NOT (`a.s` IN ('x', 'y')))"),
        ("CAST(v AS BIGINT) IN (1, 5000000000)", "(CAST(`a.v` AS BIGINT) IN (1, 5000000000))"),
        ("upper(s) IN ('X', 'Y')", "(upper(`a.s`) IN ('X', 'Y'))"),
        ("v + 1 IN (1, 2)", "((`a.v` + 1) IN (1, 2))"),
        # In these Spark would compare in another type than an equality does, or no one knows.
        ("s IN (1, 2)", "((`a.s` = 1) OR (`a.s` = 2))"),
        ("v IN ('1', '2')", "((`a.v` = '1') OR (`a.v` = '2'))"),
        ("v IN (1, '2')", "((`a.v` = 1) OR (`a.v` = '2'))"),
        ("v IN (1, NULL)", "((`a.v` = 1) OR (`a.v` = NULL))"),
        ("(upper(s) = 'X' OR upper(s) = 'Y')", "((upper(`a.s`) = 'X') OR (upper(`a.s`) = 'Y'))"),
        ("upper(s) IN ('X', 3)", "((upper(`a.s`) = 'X') OR (upper(`a.s`) = 3))"),
        ("v IN (1, id)", "((`a.v` = 1) OR (`a.v` = `a.id`))"),
    ],
)
def test_the_condition_that_spark_gets_for_a_list(analyze_sql: Analyzed, condition: str, sql: str) -> None:
    relation = analyze_sql(f"{DECLARED} SELECT STREAM v FROM a WHERE {condition};").relation
    assert isinstance(relation, AnalyzedScan)
    [part] = relation.filters
    assert part.sql() == sql


def test_the_form_of_a_list_for_spark_says_nothing_about_a_state(analyze_sql: Analyzed) -> None:
    texts = [
        str(identity_of(assign_names(plan_query(analyze_sql(f"{JOINED} {on};"), OPERATORS)), 1))
        for on in ("a.v IN (1, 2)", "(a.v = 1 OR a.v = 2)")
    ]
    assert texts[0] == texts[1] and "((`0.v`=1)or(`0.v`=2))" in texts[0]


def test_a_long_list_over_what_only_spark_knows_is_quick(analyze_sql: Analyzed, refusals_of: Refused) -> None:
    members = ", ".join(f"'v{n}'" for n in range(20_000))
    sql = f"{DECLARED} SELECT STREAM v FROM a WHERE upper({{}}) IN ({members});"
    begin = process_time()
    relation = analyze_sql(sql.format("s")).relation
    assert isinstance(relation, AnalyzedScan)
    [part] = relation.filters
    [refusal] = refusals_of(sql.format("unknown"))
    # A second or two on a slow machine; a mistake that is told of every value takes minutes.
    assert process_time() - begin < 20
    assert part.sql().startswith("(upper(`a.s`) IN ('v0', 'v1', ")
    assert refusal.condition == "UNKNOWN_COLUMN"
