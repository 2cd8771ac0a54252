"""What names mean, and what the columns of a result are called."""

from __future__ import annotations

import pytest

from watersmeet.catalog import Amount, Field, Source, Watermark
from watersmeet.errors import WatersmeetError
from watersmeet.logical.expressions import column
from watersmeet.logical.nodes import Item, Query, Scan, Script
from watersmeet.logical.words import expression_in_words
from watersmeet.queries import analyze

STREAMS = (
    "CREATE STREAM l (id INT, Name STRING, at STRUCT<City: STRING, geo: STRUCT<x: INT>>, t BIGINT,"
    " WATERMARK FOR t AS t - 0);"
    "CREATE STREAM r (id INT, price INT, t BIGINT, WATERMARK FOR t AS t - 0);"
    "CREATE STREAM s (id INT, t BIGINT, WATERMARK FOR t AS t - 0);"
    "CREATE SINK Out USING parquet OPTIONS (path 'x');"
)
FROM = "FROM l JOIN r ON l.id = r.id AND l.t = r.t"


def outputs(query) -> list[tuple[str, str]]:
    return [(output.name, expression_in_words(output.expr)) for output in query.outputs]


def test_names_compare_without_case_and_keep_the_declared_spelling(analyze_sql):
    query = analyze_sql(f"{STREAMS} SELECT STREAM L.NAME, PRICE {FROM};")
    assert outputs(query) == [("Name", "l.Name"), ("price", "r.price")]


def test_fields_of_a_struct_are_found(analyze_sql):
    query = analyze_sql(f"{STREAMS} SELECT STREAM l.at.city, at.geo.x {FROM};")
    assert outputs(query) == [("City", "l.at.City"), ("x", "l.at.geo.x")]


def test_clashing_names_get_their_alias(analyze_sql):
    query = analyze_sql(f"{STREAMS} SELECT STREAM * {FROM};")
    assert [name for name, _ in outputs(query)] == ["l_id", "Name", "at", "l_t", "r_id", "price", "r_t"]
    query = analyze_sql(f"{STREAMS} SELECT STREAM l.t, r.t, price {FROM};")
    assert [name for name, _ in outputs(query)] == ["l_t", "r_t", "price"]


def test_a_given_name_goes_before_one_that_is_not(analyze_sql):
    query = analyze_sql(f"{STREAMS} SELECT STREAM l.id, price AS id {FROM};")
    assert [name for name, _ in outputs(query)] == ["l_id", "id"]


def test_a_star_of_one_alias(analyze_sql):
    query = analyze_sql(f"{STREAMS} SELECT STREAM r.*, l.id AS left_id {FROM};")
    assert [name for name, _ in outputs(query)] == ["id", "price", "t", "left_id"]


def test_an_expression_is_named_by_its_text(analyze_sql):
    query = analyze_sql(f"{STREAMS} SELECT STREAM r.price*2, upper(Name) {FROM};")
    assert [name for name, _ in outputs(query)] == ["r.price*2", "upper(Name)"]


@pytest.mark.parametrize(
    ("kind", "shown"), [("", "l.id"), ("LEFT", "l.id"), ("RIGHT", "r.id"), ("FULL", "coalesce(l.id, r.id)")]
)
def test_a_column_of_using_is_shown_once(analyze_sql, kind, shown):
    sql = f"{STREAMS} SELECT STREAM *, id + 1 AS next, abs(id) AS size FROM l {kind} JOIN r WITHIN 5 USING (id);"
    found = outputs(analyze_sql(sql))
    assert found[0] == ("id", shown)
    assert [name for name, _ in found] == ["id", "Name", "at", "l_t", "price", "r_t", "next", "size"]
    assert found[-2:] == [("next", f"{shown} + 1"), ("size", f"abs({shown})")]


def test_using_can_be_chained(analyze_sql):
    query = analyze_sql(f"{STREAMS} SELECT STREAM * FROM l LEFT JOIN r USING (id, t) FULL JOIN s USING (id, t);")
    assert [name for name, _ in outputs(query)] == ["id", "t", "Name", "at", "price"]
    assert outputs(query)[0] == ("id", "coalesce(l.id, s.id)")


@pytest.mark.parametrize("kind", ["LEFT SEMI", "LEFT ANTI"])
def test_a_join_that_shows_its_left_side_only(analyze_sql, kind):
    query = analyze_sql(
        f"{STREAMS} SELECT STREAM *, id + 1 AS next FROM l {kind} JOIN r WITHIN 5 ON l.id = r.id AND price > 1;"
    )
    assert [name for name, _ in outputs(query)] == ["id", "Name", "at", "t", "next"]
    assert query.relation.kind == kind.split()[1].lower()
    assert query.relation.aliases == ("l",)
    query = analyze_sql(f"{STREAMS} SELECT STREAM * FROM l {kind} JOIN r WITHIN 5 USING (id);")
    assert [name for name, _ in outputs(query)] == ["id", "Name", "at", "t"]


@pytest.mark.parametrize("kind", ["SEMI", "ANTI"])
@pytest.mark.parametrize(
    ("select", "rest"),
    [
        ("r.id", ""),
        ("price", ""),
        ("r.*", ""),
        ("l.id", "WHERE r.price > 1"),
        ("l.id", "JOIN s WITHIN 5 ON s.id = r.id"),
    ],
)
def test_the_hidden_side_cannot_be_named(refusals_of, kind, select, rest):
    [refusal] = refusals_of(f"{STREAMS} SELECT STREAM {select} FROM l {kind} JOIN r WITHIN 5 ON l.id = r.id {rest};")
    assert refusal.condition == "UNKNOWN_COLUMN"
    assert f"a LEFT {kind} JOIN shows the left side only" in refusal.hint


def test_the_alias_of_a_hidden_side_is_taken(refusals_of):
    relation = "l SEMI JOIN r WITHIN 5 ON l.id = r.id JOIN s AS r WITHIN 5 ON l.id = r.id"
    assert [refusal.condition for refusal in refusals_of(f"{STREAMS} SELECT STREAM l.id FROM {relation};")] == [
        "DUPLICATE_NAME"
    ]


def test_using_means_the_columns_that_the_left_side_shows(analyze_sql):
    relation = "l SEMI JOIN r WITHIN 5 USING (id) JOIN s WITHIN 5 USING (id)"
    query = analyze_sql(f"{STREAMS} SELECT STREAM * FROM {relation};")
    assert [name for name, _ in outputs(query)] == ["id", "Name", "at", "l_t", "s_t"]
    [(left, right)] = query.relation.keys
    assert (expression_in_words(left), expression_in_words(right)) == ("l.id", "s.id")


def test_using_refuses_a_column_that_the_left_side_has_twice(refusals_of):
    relation = "l JOIN r ON l.id = r.id AND l.t = r.t JOIN s ON s.t = l.t"
    relation = relation.replace("ON s.t = l.t", "USING (id, t)")
    refusals = refusals_of(f"{STREAMS} SELECT STREAM l.id FROM {relation};")
    assert [refusal.condition for refusal in refusals] == ["AMBIGUOUS_COLUMN"] * 2
    assert refusals[0].hint == "write `ON l.id = s.id`."


def test_without_on_the_keys_of_the_records_are_compared(analyze_sql):
    sql = (
        "CREATE STREAM a (_key STRING, t BIGINT, WATERMARK FOR t AS t - 0);"
        "CREATE STREAM b (_key STRING, t BIGINT, WATERMARK FOR t AS t - 0);"
        "SELECT STREAM a.t FROM a JOIN b WITHIN 5;"
    )
    [(left, right)] = analyze_sql(sql).relation.keys
    assert (expression_in_words(left), expression_in_words(right)) == ("a._key", "b._key")


def test_the_sink_keeps_its_declared_spelling(analyze_sql):
    assert analyze_sql(f"{STREAMS} INSERT INTO out SELECT STREAM l.id {FROM};").into == "Out"


def test_a_declaration_goes_before_a_frame_but_takes_its_watermark(analyze_sql):
    frame = Source("v", (Field("t", "BIGINT"),), (Watermark("t", Amount(7, False)),))
    query = analyze_sql("CREATE STREAM v (t BIGINT, x INT); SELECT STREAM x FROM v;", v=frame)
    assert query.relation.source.watermarks == frame.watermarks
    assert [field.name for field in query.relation.source.fields] == ["t", "x"]


def test_names_in_plans_without_a_text(analyze_sql):
    query = Query(Scan("v", "v"), (Item(column(("nothing",))),))
    with pytest.raises(WatersmeetError) as caught:
        analyze(Script("call", "", queries=(query,)), {"v": Source("v", (Field("t", "BIGINT"),))})
    assert caught.value.refusals[0].place is None


@pytest.mark.parametrize(
    ("select", "condition", "hint"),
    [
        ("l.nme {from}", "UNKNOWN_COLUMN", "did you mean `Name`?"),
        ("prise {from}", "UNKNOWN_COLUMN", "did you mean `price`?"),
        ("upper(x.name) {from}", "UNKNOWN_COLUMN", "known names: `l`, `r`."),
        ("l.at.town {from}", "UNKNOWN_COLUMN", "known names: `City`, `geo`."),
        ("l.id.town {from}", "UNKNOWN_COLUMN", "`l.id` is of type INT."),
        ("r.price FROM r AS q", "UNKNOWN_COLUMN", "`r` is called `q` here: write `q.price`."),
        ("id {from}", "AMBIGUOUS_COLUMN", "write `l.id`."),
        ("x.* {from}", "UNKNOWN_SOURCE", "known names: `l`, `r`."),
        ("* FROM rr", "UNKNOWN_SOURCE", "did you mean `r`?"),
        ("l.id, l.id {from}", "DUPLICATE_NAME", "name one of them"),
        ("price AS id, r.id AS ID {from}", "DUPLICATE_NAME", "name one of them"),
        ("l.id FROM l JOIN r AS l ON l.t = l.t", "DUPLICATE_NAME", "`r AS l2`"),
        ("l.id FROM l JOIN r WITHIN 5", "UNKNOWN_COLUMN", "declare a column `_key`"),
        ("l.id FROM l JOIN r WITHIN 5 USING (price)", "UNKNOWN_COLUMN", "known names:"),
    ],
)
def test_refuses_names_that_mean_nothing_or_too_much(refusals_of, select, condition, hint):
    refusals = refusals_of(f"{STREAMS} SELECT STREAM {select.replace('{from}', FROM)};")
    assert {refusal.condition for refusal in refusals} == {condition}
    assert hint in refusals[0].hint
    assert refusals[0].place is not None


def test_refuses_an_unknown_sink(refusals_of):
    [refusal] = refusals_of(f"{STREAMS} INSERT INTO outt SELECT STREAM l.id {FROM};")
    assert (refusal.condition, refusal.hint) == ("UNKNOWN_SINK", "did you mean `Out`?")
