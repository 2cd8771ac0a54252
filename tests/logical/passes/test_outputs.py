"""Sinks that declare columns: what SELECT leaves out is forwarded, by name and type, from the left side first."""

from __future__ import annotations

import pytest

from watersmeet.logical.words import expression_in_words

STREAMS = (
    "CREATE STREAM l (k BIGINT, v STRING, n INT, t BIGINT, WATERMARK FOR t AS t - 0);"
    "CREATE STREAM r (k BIGINT, v STRING, n BIGINT, d decimal( 10 , 2 ), t BIGINT, WATERMARK FOR t AS t - 0);"
)
WINDOWS = "FROM l WINDOW (COUNT 1) JOIN r WINDOW (COUNT 0) ON l.k = r.k"


def outputs(analyze_sql, sink: str, query: str) -> list[str]:
    found = analyze_sql(f"{STREAMS} CREATE SINK out ({sink}) USING json OPTIONS (path 'x'); INSERT INTO out {query};")
    return [f"{output.name}: {expression_in_words(output.expr)}" for output in found.outputs]


def test_columns_come_in_the_order_of_the_sink_and_the_left_side_goes_first(analyze_sql):
    found = outputs(analyze_sql, "d DECIMAL(10,2), K BIGINT, v STRING, n BIGINT", f"SELECT STREAM r.v {WINDOWS}")
    assert found == ["d: r.d", "K: l.k", "v: r.v", "n: r.n"]


def test_other_joins_forward_too(analyze_sql):
    found = outputs(analyze_sql, "k BIGINT, d DECIMAL(10,2)", "SELECT STREAM r.k FROM l JOIN r WITHIN 5 ON l.k = r.k")
    assert found == ["k: r.k", "d: r.d"]


def test_columns_that_spark_alone_can_type_are_cast(analyze_sql):
    found = outputs(analyze_sql, "k BIGINT, x BIGINT, one BIGINT", f"SELECT STREAM l.n * 2 AS x, 1 AS one {WINDOWS}")
    assert found == ["k: l.k", "x: CAST(l.n * 2 AS BIGINT)", "one: CAST(1 AS BIGINT)"]


def test_a_cast_is_what_it_says(analyze_sql):
    assert outputs(analyze_sql, "n BIGINT", f"SELECT STREAM CAST(l.n AS BIGINT) AS n {WINDOWS}") == [
        "n: CAST(l.n AS BIGINT)"
    ]


@pytest.mark.parametrize(
    ("sink", "select", "condition", "text"),
    [
        ("k BIGINT, x INT", "l.k", "UNASSIGNED_COLUMN", "column `x`"),
        ("k BIGINT, d DOUBLE", "l.k", "UNASSIGNED_COLUMN", "`r.d` is DECIMAL(10,2), not DOUBLE"),
        ("k BIGINT", "l.k, r.d", "UNKNOWN_COLUMN", "no column `d` in the sink out"),
        ("k INT", "l.k", "TYPE_MISMATCH", "it is BIGINT, but out declares INT"),
        ("k BIGINT, K BIGINT", "l.k", "DUPLICATE_NAME", "`K`"),
    ],
)
def test_refuses_columns_that_do_not_fit(refusals_of, sink: str, select: str, condition: str, text: str):
    sql = f"CREATE SINK out ({sink}) USING json OPTIONS (path 'x'); INSERT INTO out SELECT STREAM {select} {WINDOWS};"
    [refusal] = refusals_of(STREAMS + sql)
    assert refusal.condition == condition
    assert text in refusal.render()


def test_late_rows_have_columns_of_their_own(refusals_of):
    sinks = "CREATE SINK out USING json OPTIONS (path 'x'); CREATE SINK late (k BIGINT) USING json OPTIONS (path 'y');"
    query = "INSERT INTO out SELECT STREAM l.k FROM l JOIN r WITHIN 5 ON l.k = r.k LATE INTO late;"
    [refusal] = refusals_of(STREAMS + sinks + query)
    assert refusal.condition == "WRONG_OUTPUT"


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("l.k FROM l", "LATE INTO without a join of streams, deduplication or window functions"),
        (
            "window(h.at, '1 hour').end AS until, count(*) AS n FROM h GROUP BY window(h.at, '1 hour')",
            "LATE INTO of groups",
        ),
        ("g.n, lag(g.n) OVER (ORDER BY g.until) AS m FROM g", "LATE INTO of groups"),
        ("l.k, lag(l.v) OVER (ORDER BY l.t) AS v FROM l", None),
        ("DISTINCT l.k FROM l WITHIN 5", None),
        ("j.k FROM j", None),
        ("j.k, lag(j.k) OVER (ORDER BY j.t) AS m FROM j", None),
    ],
)
def test_late_rows_have_an_output_where_they_are_not_only_counted(refusals_of, analyze_sql, query, what):
    sql = (
        f"{STREAMS} CREATE STREAM h (at TIMESTAMP, WATERMARK FOR at AS at);"
        "CREATE SINK out USING json OPTIONS (path 'x'); CREATE SINK late USING json OPTIONS (path 'y');"
        "CREATE VIEW j AS SELECT STREAM l.k, l.t FROM l JOIN r WITHIN 5 ON l.k = r.k;"
        "CREATE VIEW g AS SELECT STREAM window(h.at, '1 hour').end AS until, count(*) AS n FROM h"
        "  GROUP BY window(h.at, '1 hour');"
        f"INSERT INTO out SELECT STREAM {query} LATE INTO late;"
    )
    if what is None:
        assert analyze_sql(sql).late_into == "late"
    else:
        assert [refusal.message for refusal in refusals_of(sql)] == [f"{what} is not supported."]
