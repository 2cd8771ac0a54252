"""Window joins: what the analysis makes of windows, pads, order and the columns of a trigger."""

from __future__ import annotations

import pytest

from watersmeet.catalog import Amount, Field, Source
from watersmeet.errors import WatersmeetError
from watersmeet.logical.nodes import Join, Query, Scan, Script, Star
from watersmeet.logical.words import expression_in_words
from watersmeet.operators.window.relation import (
    PUNCTUATION,
    AnalyzedLimit,
    AnalyzedWindowJoin,
    WindowClause,
    punctuation,
)
from watersmeet.queries import analyze

DAY = 86_400_000_000
STREAMS = (
    "CREATE STREAM l (k BIGINT, v STRING, t BIGINT, at TIMESTAMP, day DATE, s STRUCT<n: INT>) ORDER BY T;"
    "CREATE STREAM r (k BIGINT, v STRING, t INT, at TIMESTAMP, day DATE) ORDER BY t;"
    "CREATE STREAM n (k BIGINT, w STRING, t BIGINT);"
    "CREATE STREAM m (k BIGINT, w STRING, t BIGINT);"
)
C5 = "WINDOW (COUNT 5)"


def analyze_join(analyze_sql, text: str) -> AnalyzedWindowJoin:
    relation = analyze_sql(f"{STREAMS} SELECT STREAM l.k FROM {text};").relation
    assert isinstance(relation, AnalyzedWindowJoin)
    return relation


@pytest.mark.parametrize(
    ("window", "kind", "size", "column"),
    [
        ("COUNT 5", "count", 5, None),
        ("TIME 10s", "time", 10_000_000, None),
        ("DELTA t 5", "delta", 5, "l.t"),
        ("DELTA l.at 5s", "delta", 5_000_000, "l.at"),
        ("DELTA day 2", "delta", 2 * DAY, "l.day"),
        ("DELTA day 2 DAYS", "delta", 2 * DAY, "l.day"),
        ("DELTA s.n 7", "delta", 7, "l.s.n"),
    ],
)
def test_sizes_are_in_units(analyze_sql, window: str, kind: str, size: int, column: str | None):
    found = analyze_join(analyze_sql, f"l WINDOW ({window}) JOIN r {C5} ON l.k = r.k").windows[0]
    assert (found.kind, found.size) == (kind, size)
    assert (found.column and expression_in_words(found.column)) == column


def test_partitions_are_expressions_over_the_own_side(analyze_sql):
    join = analyze_join(
        analyze_sql, "l WINDOW (COUNT 5 PARTITION BY v, upper(l.v) PARTITION AGE 1m) JOIN r WINDOW (COUNT 0)"
    )
    assert [expression_in_words(expr) for expr in join.windows[0].partition_by] == ["l.v", "upper(l.v)"]
    assert join.windows[0].limit == AnalyzedLimit("age", 60_000_000)
    assert join.windows[1].partition_by == ()


def test_without_a_condition_every_pair_meets(analyze_sql):
    join = analyze_join(analyze_sql, f"l {C5} JOIN r {C5}")
    assert (join.keys, join.left_only, join.right_only, join.residual) == ((), (), (), ())


def test_the_condition_is_split_and_times_are_no_bounds(analyze_sql):
    condition = "l.k = r.k AND r.at >= l.at - INTERVAL 5 SECONDS AND l.v = 'x' AND r.v IS NOT NULL"
    join = analyze_join(analyze_sql, f"l {C5} JOIN r {C5} ON {condition}")
    assert [(expression_in_words(a), expression_in_words(b)) for a, b in join.keys] == [("l.k", "r.k")]
    parts = [[expression_in_words(e) for e in side] for side in (join.left_only, join.right_only, join.residual)]
    assert parts == [["l.v = 'x'"], ["r.v IS NOT NULL"], ["r.at >= l.at - INTERVAL 5 SECONDS"]]


def test_pads_are_those_of_the_padded_side(analyze_sql):
    join = analyze_join(
        analyze_sql, f"l {C5} LEFT JOIN r {C5} ON l.k = r.k PAD RIGHT WITH (K -1, v NULL, at current_timestamp())"
    )
    left, right = join.paddings
    assert left == "nulls"
    assert not isinstance(right, str)
    assert [name for name, _ in right] == ["k", "v", "at"]


def test_order_is_spelled_as_the_column(analyze_sql):
    assert analyze_join(analyze_sql, f"l {C5} JOIN r {C5} ON l.k = r.k").order == ("t", "t")


def test_sides_without_an_order_arrive_as_delivered(analyze_sql):
    query = analyze_sql(f"{STREAMS} SELECT STREAM n.k FROM n {C5} JOIN m {C5} ON n.k = m.k;")
    assert query.relation.order == (None, None)


def test_a_union_is_ordered_if_all_its_parts_are(analyze_sql):
    union = "(SELECT STREAM * FROM r UNION ALL SELECT STREAM * FROM r)"
    assert analyze_join(analyze_sql, f"l {C5} JOIN {union} u {C5} ON l.k = u.k").order == ("t", "t")


def test_unmatched_rows_have_outputs_of_their_own(analyze_sql):
    text = f"{STREAMS} SELECT STREAM l.k FROM l {C5} FULL JOIN r {C5} UNMATCHED LEFT INTO a UNMATCHED RIGHT INTO b;"
    query = analyze_sql(text)
    assert query.sinks_of_unmatched == ("a", "b")
    assert query.relation.unmatched == (True, True)


def test_with_insert_into_the_sinks_are_spelled_as_declared(analyze_sql):
    sinks = "CREATE SINK out USING json OPTIONS (path 'o'); CREATE SINK Alone USING json OPTIONS (path 'a');"
    text = f"INSERT INTO OUT SELECT STREAM l.k FROM l {C5} LEFT JOIN r {C5} UNMATCHED LEFT INTO alone;"
    query = analyze_sql(STREAMS + sinks + text)
    assert (query.into, query.sinks_of_unmatched) == ("out", ("Alone", None))


@pytest.mark.parametrize(("value", "emitted"), [("true", True), ("FALSE", False)])
def test_discarded_rows_come_out_on_request(analyze_sql, value: str, emitted: bool):
    setting = f"SET watersmeet.window.emit_discarded = {value};"
    query = analyze_sql(f"{STREAMS} {setting} SELECT STREAM l.k FROM l {C5} JOIN r {C5} ON l.k = r.k;")
    assert query.relation.emit_discarded is emitted


def test_columns_of_the_trigger_are_there_if_named(analyze_sql):
    text = f"{STREAMS} SELECT STREAM *, _trigger.at, _SEQ, _last AS done FROM l {C5} JOIN n {C5} WHERE _seq < 9;"
    query = analyze_sql(text.replace("ORDER BY T", ""))
    assert query.relation.punctuated
    assert [output.name for output in query.outputs][-3:] == ["at", "_seq", "done"]
    references = [ref for output in query.outputs[-3:] for ref in output.expr.references]
    assert [(ref.source, ref.name, ref.path) for ref in references] == [
        (PUNCTUATION, "_trigger", ("at",)), (PUNCTUATION, "_seq", ()), (PUNCTUATION, "_last", ()),
    ]  # fmt: skip
    assert [expression_in_words(part) for part in query.where] == ["_seq < 9"]
    assert not analyze_sql(f"{STREAMS} SELECT STREAM * FROM n {C5} JOIN m {C5};").relation.punctuated


def test_a_column_of_a_source_goes_before_that_of_the_trigger(analyze_sql):
    streams = "CREATE STREAM a (_seq STRING); CREATE STREAM b (x INT);"
    query = analyze_sql(f"{streams} SELECT _seq FROM a WINDOW (COUNT 1) JOIN b WINDOW (COUNT 1);")
    assert not query.relation.punctuated
    assert expression_in_words(query.outputs[0].expr) == "a._seq"


def test_the_trigger_has_the_type_of_the_order():
    fields = (Field("k", "INT"), Field("at", "DATE"))
    assert punctuation(Source("a", fields, order="AT"))[0].type == "STRUCT<side: STRING, at: DATE>"
    assert punctuation(Source("a", fields))[0].type == "STRUCT<side: STRING, at: BIGINT>"


def test_filters_stay_behind_a_window_join(analyze_sql):
    query = analyze_sql(f"{STREAMS} SELECT STREAM l.k FROM l {C5} JOIN r {C5} ON l.k = r.k WHERE l.v = 'x';")
    assert [expression_in_words(part) for part in query.where] == ["l.v = 'x'"]
    assert query.relation.left.filters == ()


def test_batches_may_join_windows(analyze_sql):
    query = analyze_sql(f"{STREAMS} SELECT STREAM l.k FROM l {C5} JOIN r {C5} ON l.k = r.k;", inputs="batches")
    assert isinstance(query.relation, AnalyzedWindowJoin)


def test_an_inner_join_leaves_to_spark_what_only_spark_evaluates(analyze_sql):
    join = analyze_join(analyze_sql, f"l {C5} JOIN r {C5} ON concat(l.v, r.v) LIKE 'a%'")
    assert len(join.residual) == 1


@pytest.mark.parametrize(
    ("condition", "hint"),
    [("l.k = r.t", None), ("l.v = r.k", "CAST(... AS STRING)"), ("l.at = r.k", "CAST(... AS TIMESTAMP)")],
)
def test_equalities_compare_values_of_one_kind(analyze_sql, refusals_of, condition: str, hint: str | None):
    text = f"{STREAMS} SELECT STREAM l.k FROM l {C5} JOIN r {C5} ON {condition};"
    if hint is None:
        assert analyze_sql(text)
        return
    [refusal] = refusals_of(text)
    assert refusal.condition == "TYPE_MISMATCH"
    assert hint in refusal.hint


@pytest.mark.parametrize(
    ("value", "column"),
    [("'x'", "k"), ("1.5", "k"), ("true", "v"), ("-5000000000", "t"), ("'2020-01-01'", "day"), ("1", "at"),
     ("INTERVAL 5 SECONDS", "k"), ("CAST(1 AS INT)", "v"), ("-true", "k")],
)  # fmt: skip
def test_refuses_values_of_another_type(refusals_of, value: str, column: str):
    text = f"{STREAMS} SELECT STREAM l.k FROM l {C5} LEFT JOIN r {C5} ON l.k = r.k PAD RIGHT WITH ({column} {value});"
    [refusal] = refusals_of(text)
    assert refusal.condition == "WRONG_VALUE"


def test_unknown_source_is_the_only_refusal(refusals_of):
    text = f"{STREAMS} SELECT STREAM l.k FROM l {C5} LEFT JOIN x {C5} ON l.k = x.k PAD RIGHT WITH (z 1);"
    assert [refusal.condition for refusal in refusals_of(text)] == ["UNKNOWN_SOURCE"]


def test_a_window_of_the_plan_is_checked_like_one_of_a_text():
    fields = (Field("k", "INT"),)
    sides = [
        Scan(name, name, clause=WindowClause("count", Amount(size, False))) for name, size in (("a", -1), ("b", 0))
    ]
    script = Script("s", "", queries=(Query(Join(sides[0], sides[1], "inner"), (Star(),)),))
    with pytest.raises(WatersmeetError) as caught:
        analyze(script, {name: Source(name, fields) for name in ("a", "b")})
    assert [refusal.condition for refusal in caught.value.refusals] == ["WRONG_WINDOW"]
