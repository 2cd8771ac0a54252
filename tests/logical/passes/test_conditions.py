"""Where the parts of ON and WHERE go."""

from __future__ import annotations

import pytest

from watersmeet.logical.relation import AnalyzedScan
from watersmeet.logical.words import expression_in_words
from watersmeet.operators.interval.relation import AnalyzedIntervalJoin

STREAMS = (
    "CREATE STREAM l (k STRING, a INT, b INT, t BIGINT, WATERMARK FOR t AS t - 0);"
    "CREATE STREAM r (k STRING, a INT, b INT, t BIGINT, WATERMARK FOR t AS t - 0);"
    "CREATE STREAM s (k STRING, a INT, b INT, t BIGINT, WATERMARK FOR t AS t - 0);"
)


def texts(parts) -> list[str]:
    return [expression_in_words(part) for part in parts]


def keys(join: AnalyzedIntervalJoin) -> list[tuple[str, str]]:
    return [(expression_in_words(a), expression_in_words(b)) for a, b in join.keys]


def select(on: str, kind: str = "", where: str = "") -> str:
    return f"{STREAMS} SELECT STREAM l.a FROM l {kind} JOIN r WITHIN 5 ON {on} {where and 'WHERE ' + where};"


def test_equalities_between_the_sides_are_keys(analyze_sql):
    join = analyze_sql(select("r.k = l.k AND trim(l.k) = trim(r.k) AND l.a + 1 = r.b - r.a")).relation
    assert keys(join) == [("l.k", "r.k"), ("trim(l.k)", "trim(r.k)"), ("l.a + 1", "r.b - r.a")]
    assert not (join.residual or join.left_only or join.right_only)


@pytest.mark.parametrize(
    "on", ["l.a < r.a", "l.a = r.b + l.b", "l.a = r.a OR l.b = r.b", "NOT l.a = r.a", "l.a <=> r.a", "l.a % r.a = 0"]
)
def test_other_parts_over_both_sides_are_residual(analyze_sql, on):
    query = analyze_sql(select(on, "LEFT"))
    assert texts(query.relation.residual) == [on]
    assert query.relation.keys == ()
    assert "compared with all" in query.warnings[0].message


def test_parts_over_one_side_are_separated(analyze_sql):
    join = analyze_sql(select("l.k = r.k AND l.a > 10 AND l.a = l.b AND upper(r.k) = 'X'")).relation
    assert texts(join.left_only) == ["l.a > 10", "l.a = l.b"]
    assert texts(join.right_only) == ["upper(r.k) = 'X'"]


def test_a_constant_holds_for_both_sides(analyze_sql):
    join = analyze_sql(select("l.k = r.k AND 1 = 2", "FULL")).relation
    assert texts(join.left_only) == texts(join.right_only) == ["1 = 2"]


def test_conditions_that_are_always_true_are_left_out(analyze_sql):
    join = analyze_sql(select("l.k = r.k AND true")).relation
    assert not (join.left_only or join.right_only or join.residual)


def test_an_inner_join_leaves_any_condition_to_spark(analyze_sql):
    join = analyze_sql(select("l.k = r.k AND concat(l.k, r.k) = 'x'")).relation
    assert texts(join.residual) == ["concat(l.k, r.k) = 'x'"]


@pytest.mark.parametrize("kind", ["LEFT", "RIGHT", "FULL", "LEFT SEMI", "LEFT ANTI"])
def test_an_outer_join_refuses_what_it_cannot_evaluate(refusals_of, kind):
    [refusal] = refusals_of(select("l.k = r.k AND (l.a > r.a OR concat(l.k, r.k) = 'x')", kind))
    assert refusal.condition == "UNSUPPORTED_CONDITION"
    assert refusal.parameters["kind"] == kind


@pytest.mark.parametrize(
    ("kind", "left", "right", "stays"),
    [
        ("", ["l.a > 1"], ["r.a > 2"], ["l.b < r.b"]),
        ("LEFT", ["l.a > 1"], [], ["r.a > 2", "l.b < r.b"]),
        ("RIGHT", [], ["r.a > 2"], ["l.a > 1", "l.b < r.b"]),
        ("FULL", [], [], ["l.a > 1", "r.a > 2", "l.b < r.b"]),
    ],
)
def test_filters_move_to_sides_that_are_not_padded(analyze_sql, kind, left, right, stays):
    query = analyze_sql(select("l.k = r.k", kind, "l.a > 1 AND r.a > 2 AND l.b < r.b"))
    assert texts(query.relation.left.filters) == left
    assert texts(query.relation.right.filters) == right
    assert texts(query.where) == stays


@pytest.mark.parametrize("kind", ["SEMI", "ANTI"])
def test_filters_of_the_left_side_move_before_a_join_that_shows_it_only(analyze_sql, kind):
    query = analyze_sql(select("l.k = r.k AND l.a > 1 AND r.a > 2 AND l.b < r.b", kind, "l.a < 9"))
    assert texts(query.relation.left.filters) == ["l.a < 9"]
    assert (texts(query.relation.left_only), texts(query.relation.right_only)) == (["l.a > 1"], ["r.a > 2"])
    assert texts(query.relation.residual) == ["l.b < r.b"]
    assert query.where == ()


def test_a_cast_over_both_sides_is_left_to_spark_or_refused(analyze_sql, refusals_of):
    on = "l.k = r.k AND CAST(l.a + r.a AS STRING) = 'x' AND l.a::STRING < r.a::STRING"
    assert len(analyze_sql(select(on)).relation.residual) == 2
    [refusal] = refusals_of(select(on, "LEFT"))
    assert refusal.parameters["condition"] == "CAST(l.a + r.a AS STRING) = 'x'"


def test_filters_move_through_chained_joins_unless_one_above_pads(analyze_sql):
    chain = "FROM l JOIN r ON l.t = r.t RIGHT JOIN s ON s.t = r.t AND s.k = r.k WHERE l.a = 1 AND r.a = 2 AND s.a = 3"
    query = analyze_sql(f"{STREAMS} SELECT STREAM s.k {chain};")
    assert texts(query.where) == ["l.a = 1", "r.a = 2"]
    assert texts(query.relation.right.filters) == ["s.a = 3"]


def test_a_query_without_join_filters_its_source(analyze_sql):
    query = analyze_sql(f"{STREAMS} SELECT STREAM * FROM l WHERE a > 1;")
    assert isinstance(query.relation, AnalyzedScan)
    assert texts(query.relation.filters) == ["l.a > 1"]
    assert query.where == ()
