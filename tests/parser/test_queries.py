"""Queries inside queries: views, WITH, subqueries, unions of queries, and what a query says of its result."""

from __future__ import annotations

import pytest

from watersmeet.errors import WatersmeetError
from watersmeet.logical.nodes import Join, Query, Scan, Script, Star, StorageFormats, Union, View
from watersmeet.logical.words import expression_in_words
from watersmeet.queries import read_script


def query(text: str) -> Query:
    (parsed,) = read_script(text).queries
    return parsed


def only_scan(asked: Query) -> Scan:
    assert isinstance(asked.relation, Scan)
    return asked.relation


def part(script: Script, node: Query | View) -> str:
    return script.text[node.span.start : node.span.end]


@pytest.mark.parametrize(
    "beginning",
    [
        "CREATE VIEW v AS",
        "create or replace view v as",
        "CREATE TEMPORARY VIEW v AS",
        "CREATE OR REPLACE TEMP VIEW v AS",
    ],
)
@pytest.mark.parametrize("body", ["SELECT STREAM x FROM a WHERE x > 1", "(SELECT STREAM x FROM a WHERE x > 1)"])
def test_a_view_is_a_query_under_a_name(beginning: str, body: str):
    script = read_script(f"{beginning} {body}; SELECT x FROM v;")
    (view,) = script.views
    assert (view.name, view.query.result, only_scan(view.query).source) == ("v", "stream", "a")
    assert part(script, view) == f"{beginning} {body}"
    assert part(script, view.query) == body.strip("()")
    assert len(script.queries) == 1


def test_with_is_a_statement_of_its_own():
    script = read_script("""
        WITH customersTable AS (SELECT TABLE * FROM customers);
        WITH a AS (SELECT STREAM * FROM orders), b AS (SELECT x FROM a);
        INSERT INTO result SELECT STREAM b.x FROM b JOIN customersTable ON customersTable.id = b.x;
    """)
    assert [view.name for view in script.views] == ["customersTable", "a", "b"]
    assert [view.query.result for view in script.views] == ["table", "stream", None]
    assert script.queries[0].views == ()
    assert part(script, script.views[0]) == "customersTable AS (SELECT TABLE * FROM customers)"


def test_lenses_may_end_a_query_inside_brackets_with_a_semicolon():
    script = read_script("WITH j AS (SELECT STREAM a.x FROM a JOIN b ON a.x = b.x GROUP BY a.x;); SELECT * FROM j;")
    (view,) = script.views
    assert [expression_in_words(expr) for expr in view.query.group_by] == ["a.x"]
    assert len(script.queries) == 1


@pytest.mark.parametrize(
    "text",
    [
        "WITH a AS (SELECT * FROM x), b AS (SELECT * FROM a) INSERT INTO s SELECT STREAM * FROM b",
        "INSERT INTO s WITH a AS (SELECT * FROM x), b AS (SELECT * FROM a) SELECT STREAM * FROM b",
        "WITH a AS (SELECT * FROM x) INSERT INTO s WITH b AS (SELECT * FROM a) SELECT STREAM * FROM b",
    ],
)
def test_with_before_a_query_belongs_to_it(text: str):
    script = read_script(text)
    (parsed,) = script.queries
    assert script.views == ()
    assert [view.name for view in parsed.views] == ["a", "b"]
    assert (parsed.into, only_scan(parsed).source, part(script, parsed)) == ("s", "b", text)


def test_a_subquery_is_a_view_that_nobody_can_name():
    script = read_script(
        "SELECT s.x FROM (SELECT x FROM a WHERE x > 1) AS s JOIN (SELECT y FROM (SELECT * FROM b) c) t ON s.x = t.y;"
        "SELECT u.x FROM (WITH w AS (SELECT * FROM a) SELECT x FROM w) u"
    )
    first, second = script.queries
    assert isinstance(first.relation, Join)
    assert [(scan.source, scan.alias) for scan in (first.relation.left, first.relation.right) if isinstance(scan, Scan)]
    assert [view.name for view in first.views] == ["#1", "#3"]
    assert [view.name for view in first.views[1].query.views] == ["#2"]
    assert [view.name for view in second.views] == ["#4"]
    assert [view.name for view in second.views[0].query.views] == ["w"]
    left = first.relation.left
    assert isinstance(left, Scan)
    assert (left.source, left.alias) == ("#1", "s")
    assert script.text[left.span.start : left.span.end] == "(SELECT x FROM a WHERE x > 1)"


def test_a_union_of_queries_is_a_union_of_views():
    parsed = query(
        "SELECT u.x FROM (SELECT * FROM a UNION ALL SELECT x FROM b WHERE y UNION ALL SELECT TABLE * FROM c"
        " UNION ALL SELECT * FROM d JOIN e ON d.x = e.x UNION ALL SELECT * FROM f AS g) u"
    )
    assert isinstance(parsed.relation, Union)
    assert [scan.source for scan in parsed.relation.scans] == ["a", "#1", "#2", "#3", "f"]
    assert [scan.alias for scan in parsed.relation.scans] == ["a", "#1", "#2", "#3", "f"]
    assert [view.query.result for view in parsed.views] == [None, "table", None]


def test_a_window_stands_behind_a_subquery():
    parsed = query("SELECT * FROM (SELECT x FROM a) WINDOW (COUNT 5) AS s JOIN b WINDOW (COUNT 1)")
    assert isinstance(parsed.relation, Join)
    assert isinstance(parsed.relation.left, Scan)
    assert parsed.relation.left.clause is not None


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("SELECT STREAM x FROM a", "stream"),
        ("SELECT TABLE * FROM a", "table"),
        ("SELECT TABLE -x FROM a", "table"),
        ("SELECT x FROM a", None),
        ("SELECT table FROM a", None),
        ("SELECT table, stream FROM a", None),
        ("SELECT stream AS x FROM a", None),
        ("SELECT table.x FROM a AS table", None),
    ],
)
def test_a_query_says_whether_it_gives_a_stream_or_a_table(text: str, result: str | None):
    assert query(text).result == result


def test_grouping():
    text = "SELECT TABLE window(t, '5 minutes') w, k, sum(v) FROM a WHERE v > 1 GROUP BY window(t, '5 minutes'), k + 1"
    script = read_script(text)
    (parsed,) = script.queries
    assert [expr.op for expr in parsed.group_by] == ["other", "+"]
    assert script.text[parsed.group_span.start : parsed.group_span.end] == "GROUP BY window(t, '5 minutes'), k + 1"
    assert parsed.where is not None
    assert [item.expr.op for item in parsed.items if not isinstance(item, Star)] == ["other", "column", "aggregate"]


@pytest.mark.parametrize(
    ("text", "store"),
    [
        ("INSERT INTO s STORE KEY AS AVRO VALUE AS json SELECT * FROM a", StorageFormats("avro", "json")),
        ("INSERT INTO s STORE VALUE AS JSON SELECT * FROM a", StorageFormats(None, "json")),
        ("INSERT INTO s SELECT * FROM a WHERE x GROUP BY y STORE KEY AS string", StorageFormats("string", None)),
        ("INSERT INTO s SELECT * FROM a LATE INTO b STORE KEY AS string", StorageFormats("string", None)),
        ("INSERT INTO store SELECT store FROM store", None),
    ],
)
def test_result_has_its_storage_formats(text: str, store: StorageFormats | None):
    read = query(text).store
    assert (read and (read.key, read.value)) == (store and (store.key, store.value))


def test_words_of_views_are_names_in_other_places():
    parsed = query("SELECT with, view, lateral, group FROM with group JOIN lateral ON store WHERE having")
    assert isinstance(parsed.relation, Join)
    assert isinstance(parsed.relation.left, Scan)
    assert (parsed.relation.left.source, parsed.relation.left.alias) == ("with", "group")
    assert parsed.where is not None
    assert parsed.where.text == "having"


@pytest.mark.parametrize(
    ("text", "feed"),
    [
        ("CREATE TABLE c (id INT, PRIMARY KEY (id)) USING kafka OPTIONS (a 'b') CHANGES FROM debezium", "debezium"),
        ("CREATE TABLE c (id INT) USING delta CHANGES FROM DELTA OPTIONS (a 'b')", "delta"),
        ("CREATE TABLE c (id INT) CHANGES FROM delta", "delta"),
        ("CREATE TABLE c (id INT) USING kafka", None),
    ],
)
def test_a_table_may_come_as_a_change_feed(text: str, feed: str | None):
    (source,) = read_script(text).sources
    assert (source.kind, source.changes) == ("table", feed)


@pytest.mark.parametrize("text", ["SELECT a FROM (SELECT b FORM c) d", "WITH a AS (SELECT b FORM c;); SELECT FROM"])
def test_a_mistake_inside_brackets_is_one_mistake(text: str):
    with pytest.raises(WatersmeetError) as error:
        read_script(text + "; SELECT ok FROM b")
    assert error.value.getMessageParameters()["found"] == "`FORM`"
    assert len(error.value.refusals) == 1 + text.count("SELECT FROM")
