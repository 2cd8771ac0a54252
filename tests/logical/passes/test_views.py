"""Queries inside queries: what a view shows outside, what passes through it, and what is refused."""

from __future__ import annotations

import pytest

from watersmeet.logical.relation import AnalyzedScan, AnalyzedView, scans
from watersmeet.logical.words import expression_in_words
from watersmeet.operators.changelog.analyze import AnalyzedTableJoin
from watersmeet.operators.sync.analyze import AnalyzedSyncJoin

SOURCES = """\
CREATE STREAM s (id BIGINT, k STRING, n BIGINT, t BIGINT, WATERMARK FOR t AS t - 3);
CREATE STREAM r (id BIGINT, k STRING, m BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
CREATE TABLE c (id BIGINT, name STRING, PRIMARY KEY (id));
CREATE TABLE two (a BIGINT, b BIGINT, v STRING, PRIMARY KEY (a, b));
CREATE SINK out USING parquet OPTIONS (path 'x');
"""


def conditions(refusals) -> list[str]:
    return [refusal.condition for refusal in refusals]


def names(query) -> list[str]:
    return [output.name for output in query.outputs]


def test_a_view_that_leaves_out_rows_and_columns_is_a_scan(analyze_sql):
    query = analyze_sql(f"{SOURCES} CREATE VIEW v AS SELECT STREAM id, t FROM s WHERE n > 0; SELECT STREAM * FROM v;")
    assert isinstance(query.relation, AnalyzedScan)
    assert (query.relation.alias, query.relation.source.name) == ("v", "s")
    assert [expression_in_words(part) for part in query.relation.filters] == ["v.n > 0"]
    assert names(query) == ["id", "t"]


@pytest.mark.parametrize(
    "body",
    ["SELECT STREAM id + 1 AS id FROM s", "SELECT STREAM id AS x, id FROM s", "SELECT STREAM id FROM s GROUP BY k"],
)
def test_a_view_that_does_more_stays_a_view(analyze_sql, body):
    query = analyze_sql(f"{SOURCES} CREATE VIEW v AS {body}; SELECT STREAM id FROM v;")
    assert isinstance(query.relation, AnalyzedView)


def test_watermarks_pass_under_the_names_outside(analyze_sql):
    sql = "CREATE VIEW v AS SELECT STREAM id, n AS t, t AS at, t + 1 AS next FROM s; SELECT STREAM id FROM v;"
    source = analyze_sql(SOURCES + sql).relation.source
    assert [(mark.column, mark.lag.value) for mark in source.watermarks] == [("at", 3)]


def test_a_watermark_where_a_view_is_read_goes_before_its_own(analyze_sql):
    sql = "CREATE VIEW v AS SELECT STREAM id + 1 AS id, t FROM s; SELECT STREAM id FROM v WATERMARK t DELAY OF 9;"
    source = analyze_sql(SOURCES + sql).relation.source
    assert [(mark.column, mark.lag.value) for mark in source.watermarks] == [("t", 9)]


def test_a_table_has_no_watermarks(analyze_sql):
    sql = "CREATE VIEW v AS SELECT TABLE t, k, count(*) AS n FROM s GROUP BY t, k; SELECT TABLE k, t FROM v;"
    assert analyze_sql(SOURCES + sql).relation.source.watermarks == ()


def test_every_scan_of_a_query_has_a_name_of_its_own(analyze_sql):
    sql = """
    CREATE VIEW v AS SELECT STREAM s.id, s.t FROM s JOIN r WITHIN 5 ON s.id = r.id;
    SELECT STREAM s.id FROM v AS s JOIN v AS x WITHIN 5 ON s.id = x.id JOIN r ON r.id = s.id AND r.t = x.t;
    """
    aliases = [scan.alias for scan in scans(analyze_sql(SOURCES + sql).relation)]
    assert len(aliases) == len(set(aliases)) == 5


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ("SELECT TABLE * FROM c", "v.id"),
        ("SELECT TABLE name, id FROM c", "v.id"),
        ("SELECT TABLE name FROM c", "v._key"),
        ("SELECT TABLE name, id + 1 AS id FROM c", "v._key"),
        ("SELECT TABLE name AS _key FROM c", "v._key"),
    ],
)
def test_the_key_of_a_view_of_a_table(analyze_sql, body, key):
    query = analyze_sql(f"{SOURCES} CREATE VIEW v AS {body}; SELECT TABLE v._key AS x FROM v;")
    assert [expression_in_words(expr) for expr in query.key] == [key]
    assert expression_in_words(query.outputs[0].expr) == key


def test_a_join_of_views_of_tables_is_keyed_by_what_they_show(analyze_sql):
    sql = """
    CREATE VIEW v AS SELECT TABLE * FROM c; CREATE VIEW w AS SELECT TABLE id, name AS other FROM c;
    SELECT TABLE v.name, w.other FROM v JOIN w;
    """
    join = analyze_sql(SOURCES + sql).relation
    assert isinstance(join, AnalyzedTableJoin)
    assert [(expression_in_words(a), expression_in_words(b)) for a, b in join.keys] == [("v.id", "w.id")]


def test_warnings_inside_a_view_are_reported_once(analyze_sql):
    sql = """
    CREATE STREAM keyed (_key STRING, n BIGINT);
    CREATE VIEW v AS SELECT TABLE n FROM keyed;
    SELECT TABLE a.n, b.n AS m FROM v AS a JOIN v AS b;
    """
    messages = [warned.message for warned in analyze_sql(SOURCES + sql).warnings]
    assert len([message for message in messages if "SELECT TABLE over a stream" in message]) == 1


def test_a_mistake_in_a_view_is_reported_once(refusals_of):
    sql = """
    CREATE VIEW v AS SELECT STREAM wrong FROM s;
    SELECT STREAM x FROM v; SELECT TABLE y FROM v;
    """
    assert conditions(refusals_of(SOURCES + sql)) == ["UNKNOWN_COLUMN"]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("CREATE VIEW S AS SELECT STREAM id FROM r; SELECT STREAM id FROM r;", ["DUPLICATE_NAME"]),
        ("WITH a AS (SELECT * FROM s), A AS (SELECT * FROM r) SELECT STREAM id FROM a;", ["DUPLICATE_NAME"]),
        ("CREATE VIEW a AS SELECT STREAM id FROM b; CREATE VIEW b AS SELECT * FROM s;", ["UNKNOWN_SOURCE"]),
        ("CREATE VIEW a AS SELECT STREAM id FROM a; SELECT STREAM id FROM s;", ["UNKNOWN_SOURCE"]),
        ("SELECT STREAM x.id FROM (SELECT TABLE id FROM c) AS x;", ["RESULT_IS_A_TABLE"]),
        ("CREATE VIEW v AS SELECT STREAM id FROM c; SELECT TABLE id FROM v;", ["RESULT_IS_A_TABLE"]),
        ("CREATE VIEW v AS SELECT STREAM k, count(*) AS n FROM s GROUP BY k; SELECT TABLE k FROM v;",
         ["RESULT_IS_A_TABLE"]),
        ("CREATE VIEW v AS SELECT STREAM id, k FROM s; SELECT STREAM n FROM v;", ["UNKNOWN_COLUMN"]),
        ("SELECT STREAM s.id FROM s WHERE EXISTS (SELECT STREAM id FROM r) OR s.id = 1;", ["UNSUPPORTED_STATEMENT"]),
    ],
)  # fmt: skip
def test_views_that_are_refused(refusals_of, sql, expected):
    assert conditions(refusals_of(SOURCES + sql)) == expected


def test_a_watermark_that_a_view_hides_is_missed_in_the_view(refusals_of):
    sql = "CREATE VIEW v AS SELECT STREAM id FROM s; SELECT STREAM v.id FROM v JOIN r WITHIN 5 ON v.id = r.id;"
    [refusal] = refusals_of(SOURCES + sql)
    assert refusal.condition == "MISSING_WATERMARK"
    assert "show `t` in v" in refusal.hint


@pytest.mark.parametrize("join", ["a SYNC JOIN v AS b", "a JOIN v AS b WITHIN 5 ON a.id = b.id"])
def test_scans_inside_a_view_that_is_read_twice_are_distinguished(analyze_sql, join: str):
    view = "CREATE VIEW v AS SELECT STREAM id + 1 AS id, t FROM s;"
    query = analyze_sql(f"{SOURCES} {view} SELECT STREAM a.id, b.id AS other FROM v AS {join};")
    assert isinstance(query.relation, AnalyzedSyncJoin) == ("SYNC" in join)
    assert [scan.alias for scan in scans(query.relation)] == ["a/s", "b/s"]
