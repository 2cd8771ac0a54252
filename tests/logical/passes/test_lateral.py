"""LATERAL: what its element is called, what type it has, and what is refused."""

from __future__ import annotations

import pytest

from watersmeet.logical.relation import AnalyzedLateral, AnalyzedScan, laterals
from watersmeet.logical.words import expression_in_words
from watersmeet.operators.interval.relation import AnalyzedIntervalJoin

SOURCES = """\
CREATE STREAM s (_key STRING, n BIGINT, xs ARRAY<BIGINT>, xss ARRAY<ARRAY<INT>>, t BIGINT,
    items ARRAY<STRUCT<name: STRING, price: BIGINT, tags: ARRAY<STRING>>>, one STRUCT<xs: ARRAY<INT>>,
    WATERMARK FOR t AS t - 0);
CREATE STREAM r (id BIGINT, ys ARRAY<BIGINT>, t BIGINT, WATERMARK FOR t AS t - 0);
"""


def texts(parts) -> list[str]:
    return [expression_in_words(part) for part in parts]


@pytest.mark.parametrize(
    ("chain", "types"),
    [
        ("LATERAL xs AS x", ["BIGINT"]),
        ("LATERAL s.xs AS x", ["BIGINT"]),
        ("LATERAL xss AS ys LATERAL ys AS y", ["ARRAY<INT>", "INT"]),
        ("LATERAL items AS item LATERAL item.tags AS tag",
         ["STRUCT<name: STRING, price: BIGINT, tags: ARRAY<STRING>>", "STRING"]),
        ("LATERAL one.xs AS x", ["INT"]),
        ("LATERAL flatten(xss) AS x", [""]),
        ("LATERAL array(n, 1) AS x LATERAL array(x) AS y", ["", ""]),
    ],
)  # fmt: skip
def test_an_element_is_a_column_of_the_type_in_the_array(analyze_sql, chain, types):
    query = analyze_sql(f"{SOURCES} SELECT STREAM n FROM s {chain};")
    assert [lateral.source.fields[0].type for lateral in laterals(query.relation)] == types


def test_filters_of_an_element_stand_at_its_lateral(analyze_sql):
    where = "item.price > 1 AND n > 2 AND tag = item.name AND tag > 'a'"
    query = analyze_sql(f"{SOURCES} SELECT n FROM s LATERAL items AS item LATERAL item.tags AS tag WHERE {where};")
    tag = query.relation
    assert isinstance(tag, AnalyzedLateral)
    assert isinstance(tag.input, AnalyzedLateral)
    assert isinstance(tag.input.input, AnalyzedScan)
    assert (texts(tag.filters), texts(tag.input.filters)) == (["tag > 'a'"], ["item.price > 1"])
    assert texts(tag.input.input.filters) == ["s.n > 2"]
    assert texts(query.where) == ["tag = item.name"]


def test_elements_are_part_of_star(analyze_sql):
    query = analyze_sql(f"{SOURCES} SELECT STREAM * FROM r LATERAL ys AS y;")
    assert [output.name for output in query.outputs] == ["id", "ys", "t", "y"]


def test_the_key_is_that_of_the_row(analyze_sql):
    assert texts(analyze_sql(f"{SOURCES} SELECT STREAM x FROM s LATERAL xs AS x;").key) == ["s._key"]
    assert texts(analyze_sql(f"{SOURCES} SELECT STREAM x AS _key FROM s LATERAL xs AS x;").key) == ["x"]


def test_a_join_may_stand_before_it(analyze_sql):
    sql = "SELECT STREAM x, y FROM s JOIN r WITHIN 5 ON s.n = r.id LATERAL s.xs AS x LATERAL r.ys AS y WHERE x = y;"
    query = analyze_sql(SOURCES + sql)
    assert isinstance(query.relation.input.input, AnalyzedIntervalJoin)
    assert texts(query.key) == ["s.n"]


@pytest.mark.parametrize(
    ("relation", "condition", "words"),
    [
        ("s LATERAL n AS x", "TYPE_MISMATCH", "not an array"),
        ("s LATERAL items AS item LATERAL item.price AS x", "TYPE_MISMATCH", "not an array"),
        ("s LATERAL zs AS x", "UNKNOWN_COLUMN", "`zs` in s"),
        ("s LATERAL y AS x LATERAL xs AS y", "UNKNOWN_COLUMN", "`y` in s"),
        ("s LATERAL xs AS x LATERAL xs AS X", "DUPLICATE_NAME", "`X`"),
        ("s LATERAL xs AS s", "DUPLICATE_NAME", "`s`"),
    ],
)
def test_wrong_laterals_are_refused(refusals_of, relation, condition, words):
    refusals = refusals_of(f"{SOURCES} SELECT STREAM 1 AS one FROM {relation};")
    assert [refusal.condition for refusal in refusals] == [condition]
    assert words in refusals[0].message


def test_fields_of_an_element_are_checked(refusals_of):
    [refusal] = refusals_of(f"{SOURCES} SELECT STREAM item.prise FROM s LATERAL items AS item;")
    assert refusal.condition == "UNKNOWN_COLUMN"
    assert "`item.prise` inside `item`" in refusal.message
