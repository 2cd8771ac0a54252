"""Watermarks that a query gives, unions by position, names inside views, and what is grouped by inside longer texts."""

from __future__ import annotations

import pytest

from watersmeet.plan.analyzed import AnalyzedSyncJoin, scans
from watersmeet.testing import parse_case, run_case

SOURCES = """\
CREATE STREAM s (id BIGINT, t BIGINT, name STRING, st STRUCT<a: BIGINT, b: STRING>, WATERMARK FOR t AS t - 0);
CREATE STREAM r (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
CREATE STREAM keyed (id BIGINT, t BIGINT) USING kafka OPTIONS ('value.format' 'json', subscribe 'keyed');
"""


@pytest.mark.parametrize(
    ("source", "condition"),
    [
        ("s WATERMARK nosuch DELAY OF 5", "UNKNOWN_COLUMN"),
        ("s WATERMARK name DELAY OF INTERVAL 5 SECONDS", "WRONG_EVENT_TIME"),
        ("s WATERMARK t DELAY OF INTERVAL 5 SECONDS", "WRONG_TIME_UNIT"),
        ("(SELECT STREAM id, t + 1 AS t FROM s) AS v WATERMARK t DELAY OF 5", "WRONG_EVENT_TIME"),
    ],
)
def test_a_watermark_that_a_query_gives_is_checked_like_a_declared_one(refused, source: str, condition: str):
    [refusal] = refused(f"{SOURCES} SELECT STREAM * FROM {source};")
    assert refusal.condition == condition
    assert refusal.place is not None


def test_a_watermark_that_a_query_gives_is_spelled_as_its_column(analyzed):
    query = analyzed(f"{SOURCES} SELECT STREAM * FROM s WATERMARK T DELAY OF 5;")
    assert [(mark.column, mark.lag.value) for mark in query.relation.source.watermarks] == [("t", 5)]


def test_the_key_of_a_record_does_not_count_as_a_column_of_a_union(analyzed):
    query = analyzed(f"{SOURCES} SELECT STREAM * FROM (SELECT id FROM keyed UNION ALL SELECT id FROM r) AS u;")
    assert [output.name for output in query.outputs] == ["id"]


def test_sides_of_a_union_of_different_width_are_refused(refused):
    [refusal] = refused(f"{SOURCES} SELECT STREAM * FROM (SELECT id, t FROM keyed UNION ALL SELECT id FROM r) AS u;")
    assert refusal.condition == "TYPE_MISMATCH"
    assert "#" not in refusal.message


def test_a_union_inside_a_union_is_refused_because_its_marks_would_be_lost(refused):
    view = "CREATE VIEW v AS SELECT STREAM * FROM (SELECT * FROM r UNION ALL SELECT * FROM r) AS q;"
    refusals = refused(f"{SOURCES} {view} SELECT STREAM * FROM (SELECT * FROM v UNION ALL SELECT * FROM r) AS u;")
    assert [refusal.condition for refusal in refusals] == ["UNSUPPORTED_STATEMENT"]


@pytest.mark.parametrize("join", ["a SYNC JOIN v AS b", "a JOIN v AS b WITHIN 5 ON a.id = b.id"])
def test_scans_inside_a_view_that_is_read_twice_are_told_apart(analyzed, join: str):
    view = "CREATE VIEW v AS SELECT STREAM id + 1 AS id, t FROM s;"
    query = analyzed(f"{SOURCES} {view} SELECT STREAM a.id, b.id AS other FROM v AS {join};")
    assert isinstance(query.relation, AnalyzedSyncJoin) == ("SYNC" in join)
    assert [scan.alias for scan in scans(query.relation)] == ["a/s", "b/s"]


@pytest.mark.parametrize(
    ("shown", "by", "computed"),
    [
        ("st.a", "st", "`#group.k0`.`a`"),
        ("upper(st.b)", "st", "upper(`#group.k0`.`b`)"),
        ("abs(id | t)", "id | t", "abs(`#group.k0`)"),
        ("upper(name) || 'x'", "upper(name)", "`#group.k0` || 'x'"),
    ],
)
def test_what_is_grouped_by_is_found_inside_an_expression(analyzed, shown: str, by: str, computed: str):
    query = analyzed(f"{SOURCES} SELECT {shown} AS v, count(*) AS n FROM s GROUP BY {by};")
    assert query.outputs[0].expr.sql() == computed


def test_operands_that_bind_otherwise_are_not_what_is_grouped_by(refused):
    # `t & id | 1` is `(t & id) | 1`, in which `id | 1` does not occur.
    refusals = refused(f"{SOURCES} SELECT t & id | 1 AS v, count(*) AS n FROM s GROUP BY t, id | 1;")
    assert [refusal.condition for refusal in refusals] == ["NOT_GROUPED"]


@pytest.mark.parametrize("query", ["CREATE VIEW v AS {}; SELECT v.id FROM v;", "{} GROUP BY w.id;", "{};"])
def test_a_wrong_declaration_is_all_that_is_said_of_a_join_over_it(refused, query: str):
    wrong = "CREATE STREAM w (id BIGINT, t BIGINT, WATERMARK FOR nosuch AS nosuch - 0);"
    join = "SELECT TABLE w.id FROM w JOIN r WITHIN 5 ON w.id = r.id"
    refusals = refused(f"{SOURCES} {wrong} {query.format(join)}")
    assert [refusal.condition for refusal in refusals] == ["UNKNOWN_COLUMN"]


@pytest.mark.parametrize("call", ["sum(name)", "avg(st)", "stddev(name)"])
def test_aggregates_of_numbers_take_no_other_values(refused, call: str):
    [refusal] = refused(f"{SOURCES} SELECT {call} AS n FROM s;")
    assert refusal.condition == "TYPE_MISMATCH"
    assert refusal.message.startswith(call.split("(")[0])


@pytest.mark.parametrize(
    "call", ["sum(id)", "avg(CAST(name AS DECIMAL(10,2)))", "max(name)", "count(st)", "sum(id + t)"]
)
def test_aggregates_of_numbers_take_numbers(analyzed, call: str):
    assert analyzed(f"{SOURCES} SELECT {call} AS n FROM s;").result == "table"


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT STREAM s.name, t.id FROM s LEFT JOIN t ON s.name = t.id;", "{s: [['1', [2]]], t: [[1]]}"),
        ("SELECT STREAM s.name FROM s WHERE s.xs > 0;", "{s: [['1', [2]]]}"),
    ],
)
def test_what_spark_would_cast_is_not_compared_in_the_process(sql: str, rows: str):
    sources = "CREATE STREAM s (name STRING, xs ARRAY<BIGINT>); CREATE TABLE t (id BIGINT, PRIMARY KEY (id));"
    case = parse_case(f'{{name: x, sql: "{sources} {sql}", batches: [{{in: {rows}}}]}}', "x")
    assert run_case(case, "kernel").status == "not run"
