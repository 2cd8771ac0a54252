"""Sources with watermarks of their own, and LATERAL."""

from __future__ import annotations

import pytest

from watersmeet.catalog import Amount
from watersmeet.logical.nodes import Join, Lateral, Query, Scan, leaves
from watersmeet.logical.words import expression_in_words
from watersmeet.queries import read_script

FIVE = Amount(5_000_000, is_interval=True)


def query(text: str) -> Query:
    (parsed,) = read_script(text).queries
    return parsed


def scan(text: str) -> Scan:
    relation = query(f"SELECT * FROM {text}").relation
    assert isinstance(relation, Scan)
    return relation


@pytest.mark.parametrize(
    ("text", "source", "alias"),
    [
        ("orders WATERMARK t DELAY OF INTERVAL 5 SECONDS", "orders", "orders"),
        ("STREAM orders WATERMARK `t` DELAY OF INTERVAL '5' SECOND AS o", "orders", "o"),
        ("STREAM(orders) o watermark t delay of 5s", "orders", "o"),
        ("(SELECT t FROM orders) WATERMARK t DELAY OF INTERVAL 5 SECONDS o", "#1", "o"),
        ("TABLE(IMPOSE_ORDER(TABLE orders, DESCRIPTOR(t), INTERVAL '5' SECONDS))", "orders", "orders"),
        ("table(impose_order(table orders, descriptor(t), interval 5 seconds)) o", "orders", "o"),
        ("TABLE(IMPOSE_ORDER(input => (TABLE orders), timeCol => DESCRIPTOR(t), lag => 5s)) AS o", "orders", "o"),
        ("TABLE(IMPOSE_ORDER((SELECT t FROM orders), DESCRIPTOR(t), INTERVAL 5 SECONDS)) AS o", "#1", "o"),
    ],
)
def test_a_query_may_give_a_watermark(text: str, source: str, alias: str):
    read = scan(text)
    assert (read.source, read.alias) == (source, alias)
    assert [(mark.column, mark.lag) for mark in read.watermarks] == [("t", FIVE)]


def test_several_watermarks():
    one = scan("orders WATERMARK t DELAY OF 5s WATERMARK u DELAY OF 10 WHERE x")
    other = scan("TABLE(IMPOSE_ORDER(TABLE(IMPOSE_ORDER(TABLE orders, DESCRIPTOR(t), 5s)), DESCRIPTOR(u), 10))")
    for read in (one, other):
        assert [(mark.column, mark.lag) for mark in read.watermarks] == [("t", FIVE), ("u", Amount(10, False))]


def test_an_ordered_view():
    script = read_script("""
        CREATE VIEW ordered AS SELECT * FROM TABLE(IMPOSE_ORDER(TABLE orders, DESCRIPTOR(t), INTERVAL '5' SECONDS));
    """)
    relation = script.views[0].query.relation
    assert isinstance(relation, Scan)
    mark = relation.watermarks[0]
    assert script.text[mark.span.start : mark.span.end] == "DESCRIPTOR(t), INTERVAL '5' SECONDS"


def test_parts_of_a_union_have_watermarks():
    relation = query("SELECT * FROM (SELECT * FROM a WATERMARK t DELAY OF 5s UNION ALL SELECT * FROM b) u").relation
    assert [len(leaf.scans[0].watermarks) for leaf in leaves(relation) if not isinstance(leaf, Scan)] == [1]


def test_watermark_is_a_name_in_other_places():
    relation = query("SELECT * FROM a watermark JOIN table ON x").relation
    assert [(leaf.alias) for leaf in leaves(relation)] == ["watermark", "table"]


@pytest.mark.parametrize(
    ("text", "array", "alias"),
    [
        ("LATERAL readings AS reading", "readings", "reading"),
        ("lateral readings reading", "readings", "reading"),
        ("LATERAL flatten([day, night]) AS `r`", "flatten(array(day, night))", "r"),
        ("LATERAL [x, y] AS z", "array(x, y)", "z"),
        ("LATERAL (xs) AS x", "xs", "x"),
        ("LATERAL left.xs AS x", "left.xs", "x"),
    ],
)
def test_lateral(text: str, array: str, alias: str):
    source = f"SELECT * FROM a {text} WHERE x > 90"
    relation = query(source).relation
    assert isinstance(relation, Lateral)
    assert isinstance(relation.input, Scan)
    assert (expression_in_words(relation.array), relation.alias) == (array, alias)
    assert source[relation.span.start : relation.span.end] == text


def test_laterals_follow_each_other_and_joins():
    relation = query(
        "SELECT * FROM a LATERAL xs AS x LATERAL x AS y JOIN b ON a.k = b.k LATERAL b.zs AS z WHERE y > 1 GROUP BY z"
    ).relation
    assert isinstance(relation, Lateral)
    join = relation.input
    assert isinstance(join, Join)
    assert isinstance(join.left, Lateral)
    assert isinstance(join.left.input, Lateral)
    assert [relation.alias, join.left.alias, join.left.input.alias] == ["z", "y", "x"]
    assert [leaf.alias for leaf in leaves(relation)] == ["a", "b"]


@pytest.mark.parametrize("clause", ["LEFT JOIN b ON x", "WHERE x", "WITHIN 5s", "GROUP BY x", "SYNC JOIN b", ""])
def test_lateral_is_an_alias_before_a_clause(clause: str):
    text = f"SELECT * FROM a lateral {clause}" if clause != "WITHIN 5s" else "SELECT * FROM b JOIN a lateral WITHIN 5s"
    assert "lateral" in [leaf.alias for leaf in leaves(query(text).relation)]
