"""What the ON of a join may be (LN-5..LN-8, LN-V17): in the dialect of Lenses, and in ours."""

from __future__ import annotations

import pytest

from watersmeet.logical.words import expression_in_words

SOURCES = """\
CREATE STREAM customers (_key INT, id INT, other INT, name STRING, t BIGINT, WATERMARK FOR t AS t);
CREATE STREAM orders (_key INT, user_id INT, customer_id INT, item STRING, name STRING, t BIGINT, WATERMARK FOR t AS t);
CREATE TABLE customers_table (_key INT, id INT, other INT, name STRING, PRIMARY KEY (_key));
CREATE TABLE orders_table (_key INT, user_id INT, customer_id INT, item STRING, name STRING, PRIMARY KEY (_key));
"""

JOINS = {
    "streams": "customers c JOIN orders o WITHIN 5 ON",
    "lookup": "customers c JOIN orders_table o ON",
    "tables": "customers_table c JOIN orders_table o ON",
}

# (condition, keys, parts over c, parts over both sides)
TAKEN = [
    ("c.id = o.user_id", ["c.id = o.user_id"], [], []),
    ("c.id - 1 = o.user_id - 1", ["c.id - 1 = o.user_id - 1"], [], []),
    ("substr(c.name, 5) = o.item", ["substr(c.name, 5) = o.item"], [], []),
    ("len(c.name) > 10", [], ["len(c.name) > 10"], []),
    ("substr(c.name, 1) = 'J'", [], ["substr(c.name, 1) = 'J'"], []),
    ("len(c.name) > 10 OR c._key > 1", [], ["len(c.name) > 10 OR c._key > 1"], []),
    ("c._key = o.user_id AND len(c.name) > 10", ["c._key = o.user_id"], ["len(c.name) > 10"], []),
    ("len(c.name) > 10 AND substr(c.name, 1) = 'J'", [], ["len(c.name) > 10", "substr(c.name, 1) = 'J'"], []),
    ("c.id = c.other", [], ["c.id = c.other"], []),
]

# (condition, the place that is blamed, why, what to write)
REFUSED = [
    ("concat(c.name, o.name) = 'John'", "concat(c.name, o.name)", "mixes both sides", "write an equality"),
    ("c._key - o.customer_id = 0", "c._key - o.customer_id", "mixes both sides", "write `c._key = o.customer_id`"),
    ("0 = o.customer_id - c._key", "o.customer_id - c._key", "mixes both sides", "write `c._key = o.customer_id`"),
    ("c._key = 1 OR c._key = o.customer_id", "c._key = 1 OR c._key = o.customer_id", "OR over both", "write an eq"),
    ("c.id < o.user_id", "c.id < o.user_id", "compares the sides by <", "write an equality"),
    ("c.id <=> o.user_id", "c.id <=> o.user_id", "compares the sides by <=>", "write an equality"),
    ("NOT (c.id = o.user_id)", "NOT (c.id = o.user_id)", "is not an equality", "write an equality"),
    ("1 = 1", "1 = 1", "names no column of either side", "write an equality"),
]


def words(pairs) -> list[str]:
    return [f"{expression_in_words(a)} = {expression_in_words(b)}" for a, b in pairs]


def texts(parts) -> list[str]:
    return [expression_in_words(part) for part in parts]


@pytest.mark.parametrize("dialect", ["watersmeet", "lenses", "lenses-strict"])
@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize(("on", "keys", "single", "both"), TAKEN)
def test_rules_of_every_dialect_are_accepted(analyze_sql, dialect, join, on, keys, single, both):
    query = analyze_sql(f"{SOURCES}SET watersmeet.dialect = {dialect}; SELECT c.id FROM {JOINS[join]} {on};")
    found = query.relation
    assert (words(found.keys), texts(found.left_only), texts(found.residual)) == (keys, single, both)
    # Without an equality every row of one side is compared with all of the other: a constant key, with a warning.
    assert ["No equality joins" in warned.message for warned in query.warnings] == ([] if keys else [True])


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize(("on", "place", "why", "instead"), REFUSED)
def test_conditions_refused_by_lenses_run_unless_its_dialect_is_set(
    analyze_sql, refusals_of, join, on, place, why, instead
):
    sql = f"SELECT c.id FROM {JOINS[join]} {on};"
    assert analyze_sql(SOURCES + sql).relation.keys == ()
    for dialect in ("lenses", "Lenses-Strict"):
        [refusal] = refusals_of(f"{SOURCES}SET watersmeet.dialect = {dialect}; {sql}")
        assert refusal.condition == "NOT_IN_DIALECT"
        assert refusal.place.text[refusal.place.start : refusal.place.end] == place
        assert why in refusal.label
        assert refusal.hint.startswith(instead)


@pytest.mark.parametrize("dialect", ["watersmeet", "lenses"])
@pytest.mark.parametrize("join", ["customers c JOIN orders o WITHIN 5", "customers_table c JOIN orders_table o"])
def test_no_on_compares_the_keys(analyze_sql, dialect, join):
    query = analyze_sql(f"{SOURCES}SET watersmeet.dialect = {dialect}; SELECT c.id FROM {join};")
    assert words(query.relation.keys) == ["c._key = o._key"]


@pytest.mark.parametrize("kind", ["LEFT", "RIGHT", "FULL"])
def test_rows_that_fail_their_own_predicate_are_padded(analyze_sql, kind):
    """5.4-5: the predicates stay conditions of the join and are no filters before it."""
    join = f"customers_table c {kind} JOIN orders_table o ON len(c.name) > 10 AND o.item = 'x'"
    found = analyze_sql(f"{SOURCES}SELECT c.id FROM {join};").relation
    assert (texts(found.left_only), texts(found.right_only)) == (["len(c.name) > 10"], ["o.item = 'x'"])
    assert (found.left.filters, found.right.filters) == ((), ())


def test_time_bounds_in_on_are_not_of_lenses(refusals_of):
    on = "c.id = o.user_id AND o.t BETWEEN c.t - 5 AND c.t + 5"
    refusals = refusals_of(
        f"{SOURCES}SET watersmeet.dialect = lenses; SELECT c.id FROM customers c JOIN orders o ON {on};"
    )
    assert {refusal.condition for refusal in refusals} == {"NOT_IN_DIALECT"}
