"""GROUP BY: what is grouped by, what is aggregated, what is computed from both, and what is refused."""

from __future__ import annotations

import pytest

from watersmeet.logical.query import GROUP, bounds_in_words, bounds_of
from watersmeet.logical.words import expression_in_words

SOURCES = """\
CREATE STREAM s (k STRING, n BIGINT, f DOUBLE, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 5 SECONDS);
CREATE TABLE t (id BIGINT, k STRING, n BIGINT, PRIMARY KEY (id));
"""


def output_texts(query) -> dict[str, str]:
    return {output.name: output.expr.sql(lambda ref: ref.name) for output in query.outputs}


def test_outputs_are_computed_from_the_group(analyze_sql):
    sql = "SELECT TABLE k, n + 1 AS m, upper(k) AS u, sum(f) / count(*) AS x, coalesce(max(f), 0) + n AS y FROM s"
    query = analyze_sql(f"{SOURCES} {sql} GROUP BY k, n;")
    assert query.result == "table"
    assert [expression_in_words(by.expr) for by in query.group.by] == ["s.k", "s.n"]
    assert [expression_in_words(a.expr) for a in query.group.aggregates] == ["sum(s.f)", "count(*)", "max(s.f)"]
    assert output_texts(query) == {
        "k": "k0", "m": "(k1 + 1)", "u": "upper(k0)", "x": "(a0 / a1)", "y": "(coalesce(a2, 0) + k1)",
    }  # fmt: skip
    assert {ref.source for output in query.outputs for ref in output.expr.references} == {GROUP}


def test_repeated_aggregates_are_computed_once(analyze_sql):
    query = analyze_sql(f"{SOURCES} SELECT TABLE sum(n) AS a, sum(s.n) + 1 AS b, k FROM s GROUP BY k, s.k;")
    assert (len(query.group.by), len(query.group.aggregates)) == (1, 1)


@pytest.mark.parametrize(
    ("by", "item", "expected"),
    [
        ("window(at, '5 minutes')", "window(at, '5 minutes')", "k0"),
        ("window(at, '5 minutes')", "WINDOW( s.at,'5 minutes' ).start", "k0.start"),
        ("window(at, '5 minutes')", "date_format(window(at, '5 minutes').end, 'HH')", "date_format(k0.end, 'HH')"),
        ("trim(k)", "concat(trim(k), 'trim(k)', trim( K ))", "concat(k0, 'trim(k)', k0)"),
        ("trim(k), k", "concat(trim(k), k)", "concat(k0, k1)"),
    ],
)
def test_grouping_expressions_are_found_inside_other_texts(analyze_sql, by, item, expected):
    query = analyze_sql(f"{SOURCES} SELECT TABLE {item} AS x, count(*) AS n FROM s GROUP BY {by};")
    assert output_texts(query)["x"] == expected


@pytest.mark.parametrize("item", ["window(at, '6 minutes').start", "ltrim(k)", "trim(k, 'x')", "trim(upper(k))"])
def test_expressions_that_look_equal_are_not_grouped_by(refusals_of, item):
    sql = f"{SOURCES} SELECT TABLE {item} AS x, count(*) AS n FROM s GROUP BY trim(k), window(at, '5 minutes');"
    assert [refusal.condition for refusal in refusals_of(sql)] == ["NOT_GROUPED"]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("1", ["upper(s.k)"]),
        ("big", ["upper(s.k)"]),
        ("2, BIG", ["s.n", "upper(s.k)"]),
        # A column goes before a name that AS gave.
        ("n, 1", ["s.n", "upper(s.k)"]),
    ],
)
def test_places_and_names_of_select_stand_for_what_is_there(analyze_sql, by, expected):
    query = analyze_sql(
        f"{SOURCES} SELECT TABLE upper(k) AS big, n, count(*) AS rows FROM s GROUP BY n, upper(k), {by};"
    )
    assert [expression_in_words(part.expr) for part in query.group.by] == ["s.n", "upper(s.k)"]
    query = analyze_sql(f"{SOURCES} SELECT STREAM upper(k) AS big, n, f AS n2 FROM s GROUP BY {by};")
    assert [expression_in_words(part) for part in query.key] == expected


def test_an_event_time_window_ends_its_groups(analyze_sql):
    group = analyze_sql(f"{SOURCES} SELECT TABLE count(*) AS n FROM s GROUP BY k, window(at, '5 minutes');").group
    assert (group.window, str(group.time)) == ("k1", "s.at")
    assert analyze_sql(f"{SOURCES} SELECT TABLE count(*) AS n FROM s GROUP BY k;").group.window is None


def test_without_aggregates_it_only_gives_another_key(analyze_sql):
    query = analyze_sql(f"{SOURCES} SELECT STREAM n FROM s GROUP BY k, n;")
    assert (query.group, query.result) == (None, "stream")
    assert [expression_in_words(expr) for expr in query.key] == ["s.k", "s.n"]


def test_without_group_by_all_rows_are_one_group(analyze_sql):
    query = analyze_sql(f"{SOURCES} SELECT TABLE count(*) AS n FROM t;")
    assert (query.group.by, query.key) == ((), ())


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT TABLE k, n, count(*) AS c FROM s GROUP BY k", ["NOT_GROUPED"]),
        ("SELECT TABLE k, upper(k || n) AS x, count(*) AS c FROM s GROUP BY k", ["NOT_GROUPED"]),
        ("SELECT TABLE *, count(*) AS c FROM t GROUP BY k", ["NOT_GROUPED", "NOT_GROUPED"]),
        ("SELECT TABLE count(*) AS c FROM s WHERE max(n) > 1", ["UNSUPPORTED_STATEMENT"]),
        ("SELECT TABLE count(*) AS c FROM s GROUP BY max(n)", ["UNSUPPORTED_STATEMENT"]),
        ("SELECT TABLE bit_or(DISTINCT n) AS c FROM s", ["UNSUPPORTED_STATEMENT"]),
        ("SELECT TABLE mode(n) AS c FROM s", ["UNSUPPORTED_STATEMENT"]),
        ("SELECT TABLE count(*) AS c FROM s GROUP BY session_window(n, '5 minutes')", ["UNSUPPORTED_STATEMENT"]),
        ("SELECT TABLE count(*) AS c FROM s GROUP BY 1", ["UNSUPPORTED_STATEMENT"]),
        ("SELECT TABLE count(*) AS c FROM s GROUP BY 2", ["UNSUPPORTED_STATEMENT"]),
        ("SELECT TABLE count(*) AS c FROM s GROUP BY true", ["UNSUPPORTED_STATEMENT"]),
        ("SELECT STREAM count(*) AS c FROM s", ["RESULT_IS_A_TABLE"]),
    ],
)
def test_wrong_groupings_are_refused(refusals_of, sql, expected):
    assert [refusal.condition for refusal in refusals_of(f"{SOURCES} {sql};")] == expected


def test_misspelt_name_in_group_by_is_the_only_refusal(refusals_of):
    found = refusals_of(
        "CREATE TABLE t (id BIGINT, name STRING); SELECT TABLE name, count(*) AS n FROM t GROUP BY nme;"
    )
    assert [refusal.condition for refusal in found] == ["UNKNOWN_COLUMN"]


def test_check_says_that_the_rows_of_groups_are_retained(analyze_sql):
    for sql, words in {
        "SELECT TABLE k, max(n) AS m FROM s GROUP BY k": "by the number of keys: one row per s.k",
        "SELECT TABLE k, count(DISTINCT n) AS m FROM s GROUP BY k": "one row per s.k, the input of count(DISTINCT s.n)",
        "SELECT TABLE count(DISTINCT n) AS m FROM s GROUP BY window(at, '5 minutes')": "bounded by time",
    }.items():
        assert bounds_in_words(bounds_of(analyze_sql(f"{SOURCES} {sql};"))).endswith(words)
    assert "the input of max(t.n)" in bounds_in_words(
        bounds_of(analyze_sql(f"{SOURCES} SELECT TABLE max(n) AS m FROM t;"))
    )
