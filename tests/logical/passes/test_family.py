"""Which joins of streams and tables there are (LN-14, LN-V18), and what is said of the others."""

from __future__ import annotations

import pytest

from watersmeet.operators.changelog.analyze import AnalyzedTableJoin
from watersmeet.operators.interval.relation import AnalyzedIntervalJoin
from watersmeet.operators.lookup.analyze import AnalyzedLookupJoin

SOURCES = """\
CREATE STREAM orders (id INT, customer_id INT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 5 SECONDS);
CREATE STREAM visits (id INT, customer_id INT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 5 SECONDS);
CREATE TABLE customers (id INT, name STRING, PRIMARY KEY (id));
CREATE TABLE items (id INT, name STRING, PRIMARY KEY (id));
"""

SIDES = {
    ("stream", "stream"): ("orders", "visits"),
    ("table", "table"): ("customers", "items"),
    ("stream", "table"): ("orders", "customers"),
    ("table", "stream"): ("customers", "orders"),
}

LEAVE_OUT = "leave WITHIN out."
ADD = "add a bound, for example `WITHIN 5 MINUTES`."
KEEP_LEFT = "write `LEFT JOIN`, which shows every row of the stream orders."
KEEP_RIGHT = "write `RIGHT JOIN`, which shows every row of the stream orders."
SWAP = "swap the sides: `orders JOIN customers ON customers.id = orders.id`."

# (left, right, kind, hints without WITHIN, hints with WITHIN); none: the join is accepted.
COMBINATIONS = [
    ("stream", "stream", "INNER", [ADD], []),
    ("stream", "stream", "LEFT", [ADD], []),
    ("stream", "stream", "RIGHT", [ADD], []),
    ("stream", "stream", "OUTER", [ADD], []),
    ("table", "table", "INNER", [], [LEAVE_OUT]),
    ("table", "table", "LEFT", [], [LEAVE_OUT]),
    ("table", "table", "RIGHT", [], [LEAVE_OUT]),
    ("table", "table", "OUTER", [], [LEAVE_OUT]),
    ("table", "stream", "INNER", [SWAP], [SWAP, LEAVE_OUT]),
    ("table", "stream", "LEFT", [KEEP_RIGHT], [KEEP_RIGHT, LEAVE_OUT]),
    ("table", "stream", "RIGHT", [], [LEAVE_OUT]),
    ("table", "stream", "OUTER", [KEEP_RIGHT], [KEEP_RIGHT, LEAVE_OUT]),
    ("stream", "table", "INNER", [], [LEAVE_OUT]),
    ("stream", "table", "LEFT", [], [LEAVE_OUT]),
    ("stream", "table", "RIGHT", [KEEP_LEFT], [KEEP_LEFT, LEAVE_OUT]),
    ("stream", "table", "OUTER", [KEEP_LEFT], [KEEP_LEFT, LEAVE_OUT]),
]

FAMILIES = {
    ("stream", "stream"): (AnalyzedIntervalJoin, "stream"),
    ("table", "table"): (AnalyzedTableJoin, "table"),
    ("stream", "table"): (AnalyzedLookupJoin, "stream"),
    ("table", "stream"): (AnalyzedLookupJoin, "stream"),
}


def script(left: str, right: str, kind: str, within: str = "") -> str:
    return f"{SOURCES}SELECT {left}.id FROM {left} {kind} JOIN {right} ON {left}.id = {right}.id {within};"


@pytest.mark.parametrize("within", ["", "WITHIN 5 MINUTES"])
@pytest.mark.parametrize(("left", "right", "kind", "without", "with_"), COMBINATIONS)
def test_every_combination(analyze_sql, refusals_of, left, right, kind, without, with_, within):
    hints = with_ if within else without
    sql = script(*SIDES[left, right], kind, within)
    if hints:
        refusals = refusals_of(sql)
        assert [refusal.hint for refusal in refusals] == hints
        expected = "UNBOUNDED_STATE" if (left, right) == ("stream", "stream") else "INCOMPATIBLE_JOIN"
        assert {refusal.condition for refusal in refusals} == {expected}
    else:
        query = analyze_sql(sql)
        family, result = FAMILIES[left, right]
        assert (type(query.relation), query.result) == (family, result)


def test_the_combinations_are_all_there():
    assert len({row[:3] for row in COMBINATIONS}) == 16


@pytest.mark.parametrize("kind", ["LEFT SEMI", "LEFT ANTI"])
@pytest.mark.parametrize(
    ("sides", "within"),
    [(("stream", "stream"), "WITHIN 5s"), (("table", "table"), ""), (("stream", "table"), "")],
)
def test_joins_of_the_left_side_with_its_like(analyze_sql, kind, sides, within):
    assert isinstance(analyze_sql(script(*SIDES[sides], kind, within)).relation, FAMILIES[sides][0])


@pytest.mark.parametrize(
    ("sides", "kind", "hint"),
    [
        (("table", "stream"), "LEFT SEMI", "`CREATE VIEW orders_seen AS SELECT TABLE id, count(*) AS n FROM orders"),
        (("table", "stream"), "LEFT ANTI", "`CREATE VIEW orders_seen AS SELECT TABLE id, count(*) AS n FROM orders"),
    ],
)
def test_joins_of_the_left_side_with_the_other_kind(refusals_of, sides, kind, hint):
    [refusal] = refusals_of(script(*SIDES[sides], kind))
    assert refusal.condition == "UNSUPPORTED_STATEMENT"
    assert hint in refusal.hint


@pytest.mark.parametrize("kind", ["SEMI", "ANTI"])
def test_hinted_query_runs(analyze_sql, kind):
    view = "CREATE VIEW orders_seen AS SELECT TABLE id, count(*) AS n FROM orders GROUP BY id;"
    sql = f"SELECT TABLE customers.name FROM customers LEFT {kind} JOIN orders_seen ON customers.id = orders_seen.id;"
    assert isinstance(analyze_sql(f"{SOURCES}{view}{sql}").relation, AnalyzedTableJoin)


@pytest.mark.parametrize(
    ("join", "hint"),
    [
        (
            "customers AS c JOIN orders AS o ON c.id = o.customer_id",
            "`orders AS o JOIN customers AS c ON c.id = o.customer_id`",
        ),
        ("customers JOIN orders USING (id)", "`orders JOIN customers USING (id)`"),
        (
            "customers c JOIN (SELECT id + 1 AS id FROM orders) AS o ON c.id = o.id",
            "`(...) AS o JOIN customers AS c ON c.id = o.id`",
        ),
        (
            "customers c JOIN items i ON c.id = i.id JOIN orders o ON c.id = o.id",
            "make a view of customers and items (`CREATE VIEW ...`), and write `orders AS o JOIN` that view.",
        ),
    ],
)
def test_the_sides_are_swapped_in_the_words_of_the_query(refusals_of, join, hint):
    [refusal] = refusals_of(f"{SOURCES}SELECT 1 AS one FROM {join};")
    assert hint in refusal.hint


def test_a_source_that_nobody_declared_may_be_either(refusals_of):
    refusals = refusals_of(f"{SOURCES}SELECT customers.name FROM customers JOIN nothing ON customers.id = nothing.id;")
    assert [refusal.condition for refusal in refusals] == ["UNKNOWN_SOURCE"]
