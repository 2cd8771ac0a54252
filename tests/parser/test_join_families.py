"""What windows, synchronising and as-of joins look like, and what stands around them."""

from __future__ import annotations

from typing import Any

import pytest

from watersmeet.catalog import Amount, Field
from watersmeet.errors import WatersmeetError
from watersmeet.logical.nodes import Join, Query, Scan, Union
from watersmeet.logical.words import expression_in_words
from watersmeet.operators.asof.analyze import ParsedAsofJoin
from watersmeet.operators.sync.analyze import ParsedSyncJoin
from watersmeet.operators.window.parse import read_window
from watersmeet.operators.window.relation import WindowClause, is_windowed
from watersmeet.queries import read_script


def query(text: str) -> Query:
    (parsed,) = read_script(text).queries
    return parsed


def window_of_left(text: str) -> WindowClause:
    relation = query(f"SELECT * FROM {text} JOIN b WINDOW (COUNT 0)").relation
    assert isinstance(relation, Join)
    assert isinstance(relation.left, Scan | Union)
    assert isinstance(relation.left.clause, WindowClause)
    return relation.left.clause


@pytest.mark.parametrize(
    ("text", "kind", "amount"),
    [
        ("COUNT 5", "count", Amount(5, False)),
        ("count 0", "count", Amount(0, False)),
        ("TIME 10s", "time", Amount(10_000_000, True)),
        ("TIME INTERVAL '1' HOUR", "time", Amount(3_600_000_000, True)),
        ("TIME 1.5 SECONDS", "time", Amount(1_500_000, True)),
        ("DELTA tm 10", "delta", Amount(10, False)),
        ("DELTA a.tm 5 MINUTES", "delta", Amount(300_000_000, True)),
    ],
)
def test_kinds_of_windows(text: str, kind: str, amount: Amount):
    window = window_of_left(f"a WINDOW ({text})")
    assert (window.kind, window.amount) == (kind, amount)
    assert read_window(text).amount == amount


@pytest.mark.parametrize(
    ("text", "kind", "amount"),
    [
        ("PARTITION AGE 60s", "age", Amount(60_000_000, True)),
        ("PARTITION COUNT 10", "partitions", Amount(10, False)),
        ("TUPLE COUNT 1000", "rows", Amount(1000, False)),
    ],
)
def test_partitions_and_their_limits(text: str, kind: str, amount: Amount):
    window = window_of_left(f"a WINDOW (COUNT 5 PARTITION BY kind, upper(x) || 'y' {text})")
    assert [expression_in_words(expr) for expr in window.partition_by] == ["kind", "upper(x) || 'y'"]
    assert window.limit is not None
    assert (window.limit.kind, window.limit.amount) == (kind, amount)


@pytest.mark.parametrize(
    "text",
    ["a WINDOW (COUNT 5) AS x", "a AS x WINDOW (COUNT 5)", "a x WINDOW (COUNT 5)", "a WINDOW (COUNT 5) x"],
)
def test_a_window_stands_before_or_after_the_alias(text: str):
    relation = query(f"SELECT * FROM {text} JOIN b WINDOW (COUNT 0)").relation
    assert isinstance(relation, Join)
    assert isinstance(relation.left, Scan)
    assert (relation.left.source, relation.left.alias) == ("a", "x")
    assert isinstance(relation.left.clause, WindowClause)
    assert is_windowed(relation)


def test_a_union_has_a_window():
    window = window_of_left("(SELECT * FROM a UNION ALL SELECT * FROM c) WINDOW (COUNT 5) u")
    assert window.kind == "count"


def test_the_span_of_a_window_is_its_clause():
    text = "SELECT * FROM a WINDOW (COUNT 5 PARTITION BY x) JOIN b WINDOW (COUNT 0)"
    relation = query(text).relation
    assert isinstance(relation, Join)
    assert isinstance(relation.left, Scan)
    assert isinstance(relation.left.clause, WindowClause)
    span = relation.left.clause.span
    assert text[span.start : span.end] == "WINDOW (COUNT 5 PARTITION BY x)"


@pytest.mark.parametrize("text", ["", "COUNT", "COUNT 5 PARTITION", "COUNT 5)", "COUNT 5 PARTITION BY CAST(x AS NOPE)"])
def test_a_text_that_is_no_window_is_refused(text: str):
    with pytest.raises(WatersmeetError):
        read_window(text)


def test_pads_of_both_sides():
    relation = query(
        "SELECT * FROM a WINDOW (COUNT 1) FULL JOIN b WINDOW (COUNT 1) ON a.x = b.x"
        " PAD LEFT WITH (x -1, `y z` 'none') PAD RIGHT ZEROS"
    ).relation
    assert isinstance(relation, Join)
    clauses: tuple[Any, ...] = relation.clauses
    left, right = clauses
    assert (left.side, right.side, right.values) == ("left", "right", "zeros")
    assert not isinstance(left.values, str)
    assert [(name, expression_in_words(value)) for name, value in left.values] == [("x", "-1"), ("y z", "'none'")]


@pytest.mark.parametrize(("written", "values"), [("WITH ZEROS", "zeros"), ("NULLS", "nulls"), ("WITH NULLS", "nulls")])
def test_pads_by_a_word(written: str, values: str):
    relation = query(f"SELECT * FROM a LEFT JOIN b ON x PAD RIGHT {written} WHERE y").relation
    assert isinstance(relation, Join)
    clauses: tuple[Any, ...] = relation.clauses
    assert [pad.values for pad in clauses] == [values]


def test_words_of_windows_are_names_in_other_places():
    relation = query(
        "SELECT pad, window, sync, asof FROM window pad LEFT JOIN unmatched ON count LEFT JOIN ports"
    ).relation
    assert isinstance(relation, Join)
    assert isinstance(relation.left, Join)
    assert isinstance(relation.left.left, Scan)
    assert (relation.left.left.source, relation.left.left.alias) == ("window", "pad")


def test_ports_of_a_sync_join():
    parsed = query("SELECT STREAM * FROM a SYNC JOIN b AS x SYNC JOIN c WHERE a.v > 1 PORTS INTO s1, `s 2`, s3;")
    assert isinstance(parsed.relation, ParsedSyncJoin)
    assert [leaf.alias for leaf in parsed.relation.inputs if isinstance(leaf, Scan)] == ["a", "x", "c"]
    assert [apart.sink for apart in parsed.side_outputs] == ["s1", "s 2", "s3"]


def test_a_join_may_follow_a_sync_join():
    relation = query("SELECT * FROM a SYNC JOIN b LEFT JOIN c ON a.t = c.t").relation
    assert isinstance(relation, Join)
    assert isinstance(relation.left, ParsedSyncJoin)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("ASOF JOIN", "inner"),
        ("LEFT ASOF JOIN", "left"),
        ("ASOF LEFT JOIN", "left"),
        ("LEFT OUTER ASOF JOIN", "left"),
        ("RIGHT ASOF JOIN", "right"),
    ],
)
def test_kinds_of_asof_joins(words: str, kind: str):
    relation = query(f"SELECT * FROM a {words} b MATCH_CONDITION (a.t >= b.t) ON a.x = b.x").relation
    assert isinstance(relation, ParsedAsofJoin)
    assert relation.kind == kind
    assert relation.match is not None
    assert expression_in_words(relation.match) == "a.t >= b.t"


@pytest.mark.parametrize(
    "clauses",
    [
        "MATCH_CONDITION (nearest(a.t, b.t)) USING (x) WITHIN 5s DEFAULT (v 1)",
        "WITHIN 5s DEFAULT (v 1) USING (x) MATCH_CONDITION (nearest(a.t, b.t))",
    ],
)
def test_clauses_of_an_asof_join_stand_in_any_order(clauses: str):
    relation = query(f"SELECT * FROM a LEFT ASOF JOIN b {clauses} WHERE a.x > 0").relation
    assert isinstance(relation, ParsedAsofJoin)
    assert relation.within is not None
    assert (relation.using, relation.within.amount, len(relation.defaults)) == (("x",), Amount(5_000_000, True), 1)


@pytest.mark.parametrize("text", ["t AS c FOR SYSTEM_TIME AS OF a.t", "t FOR SYSTEM_TIME AS OF a.t AS c"])
def test_the_version_of_a_table_as_of_a_time(text: str):
    relation = query(f"SELECT * FROM a LEFT JOIN {text} ON a.x = c.x").relation
    assert isinstance(relation, ParsedAsofJoin)
    assert relation.as_of is not None and isinstance(relation.right, Scan)
    assert (relation.kind, relation.right.alias, expression_in_words(relation.as_of)) == ("left", "c", "a.t")


def test_outputs_stand_in_any_order():
    parsed = query(
        "INSERT INTO s SELECT * FROM a WINDOW (COUNT 1) FULL JOIN b WINDOW (COUNT 1) WHERE x"
        " UNMATCHED RIGHT INTO r LATE INTO late UNMATCHED LEFT INTO l"
    )
    names = (parsed.into, *(apart.sink for apart in parsed.side_outputs), parsed.late_into)
    assert names == ("s", "l", "r", "late")


def test_a_stream_declares_the_order_of_arrival():
    text = "CREATE STREAM s (id INT, t BIGINT) USING json OPTIONS (path 'x') ORDER BY t ASC;"
    (source,) = read_script(text).sources
    assert source.order == "t"
    assert text[source.order_span.start : source.order_span.end] == "ORDER BY t ASC"


def test_a_table_has_a_primary_key():
    text = (
        "CREATE TABLE c (id INT, part INT, t BIGINT, PRIMARY KEY (id, `part`), WATERMARK FOR t AS t - 5) USING kafka;"
    )
    (source,) = read_script(text).sources
    assert (source.kind, source.primary_key, source.format) == ("table", ("id", "part"), "kafka")
    assert [mark.column for mark in source.watermarks] == ["t"]


def test_a_sink_may_declare_columns():
    (sink,) = read_script("CREATE SINK s (ticker STRING, price DECIMAL(10, 2) NOT NULL) USING parquet;").sinks
    assert sink.fields == (Field("ticker", "STRING"), Field("price", "DECIMAL(10,2)", nullable=False))


@pytest.mark.parametrize(
    ("text", "expected", "at"),
    [
        ("SELECT * FROM a WINDOW (COUNT 5 PARTITION BY)", "an expression", ")"),
        ("SELECT * FROM a WINDOW (COUNT)", "a size", ")"),
        ("SELECT * FROM a WINDOW (COUNT 5 PARTITION BY x TUPLE COUNT 5 PARTITION AGE 5s)", "`)`", "PARTITION"),
        ("SELECT * FROM a WINDOW (COUNT 5 PARTITIONED)", "PARTITION BY or `)`", "PARTITIONED"),
        ("SELECT * FROM a JOIN b ON x PAD LEFT ZEROS PAD LEFT NULLS", "one PAD for each side", "PAD"),
        ("SELECT * FROM a JOIN b ON x PAD LEFT WITH (x 1, X 2)", "a column that has no value yet", "X"),
        ("SELECT * FROM a JOIN b ON x WHERE y PAD LEFT ZEROS", "`;`", "PAD"),
        ("SELECT * FROM a WHERE x WINDOW (COUNT 5)", "`;`", "WINDOW"),
        ("SELECT * FROM a FOR SYSTEM_TIME AS OF t", "`;`", "FOR"),
        ("SELECT * FROM a ASOF JOIN b MATCH_CONDITION a.t > b.t", "`(`", "a"),
        ("SELECT * FROM a ASOF JOIN b MATCH_CONDITION (x) MATCH_CONDITION (x)", "each clause once", "MATCH_CONDITION"),
        ("SELECT * FROM a JOIN b UNMATCHED LEFT INTO x UNMATCHED LEFT INTO y", "`;`", "UNMATCHED"),
        ("SELECT * FROM a JOIN b UNMATCHED LEFT INTO", "the name of a sink", ""),
        ("SELECT * FROM a JOIN b LATE INTO c UNMATCHED LEFT INTO x", "`;`", "LATE"),
        ("SELECT * FROM a SYNC JOIN b PORTS INTO x,", "the name of a sink", ""),
        ("CREATE STREAM s (t INT) ORDER BY t, u", "`;`", ","),
        ("CREATE STREAM s (t INT) ORDER BY t DESC", "`;`", "DESC"),
        ("CREATE STREAM s (t INT) ORDER BY", "the name of a column", ""),
        ("CREATE TABLE s (t INT, PRIMARY KEY (t), PRIMARY KEY (t))", "`,` or `)`", "PRIMARY"),
        ("CREATE TABLE s (t INT, PRIMARY KEY t)", "`(`", "t"),
        ("CREATE SINK s (t INT, WATERMARK FOR t AS t) USING json", "a column", "WATERMARK"),
        ("CREATE SINK s (t INT USING json", "`,` or `)`", "USING"),
    ],
)
def test_parts_that_are_missing_or_too_many(text: str, expected: str, at: str):
    with pytest.raises(WatersmeetError) as error:
        read_script(text)
    (refusal,) = error.value.refusals
    assert (refusal.condition, refusal.parameters["expected"]) == ("SYNTAX_ERROR", expected)
    assert refusal.place is not None
    assert text[refusal.place.start : refusal.place.end] == at
    assert refusal.hint
