"""Lookups of streams in tables, joins of tables, chains of both, and what their results are."""

from __future__ import annotations

import pytest

from watersmeet.catalog import Field, Source
from watersmeet.duration import HOUR, MINUTE
from watersmeet.logical.relation import AnalyzedScan
from watersmeet.logical.words import expression_in_words
from watersmeet.operators.changelog.analyze import AnalyzedTableJoin
from watersmeet.operators.interval.relation import AnalyzedIntervalJoin
from watersmeet.operators.lookup.analyze import AnalyzedLookupJoin

SOURCES = """\
CREATE STREAM o (id INT, customer_id INT, item STRING, n INT, t BIGINT, WATERMARK FOR t AS t - 5);
CREATE STREAM d (id INT, order_id INT, t BIGINT, WATERMARK FOR t AS t - 5);
CREATE STREAM unmarked (id INT, customer_id INT, t BIGINT);
CREATE TABLE c (id INT, name STRING, rank INT, t BIGINT, PRIMARY KEY (id));
CREATE TABLE a (id INT, customer_id INT, addr STRING, PRIMARY KEY (id));
CREATE TABLE p (item STRING, price INT, PRIMARY KEY (item));
CREATE SINK s USING parquet OPTIONS (path 'x'); CREATE SINK late USING parquet OPTIONS (path 'y');
"""


def texts(parts) -> list[str]:
    return [expression_in_words(part) for part in parts]


def keys(join) -> list[str]:
    return [f"{expression_in_words(a)} = {expression_in_words(b)}" for a, b in join.keys]


def test_the_condition_of_a_lookup_is_split(analyze_sql):
    on = "c.id = o.customer_id AND o.n > 1 AND upper(c.name) = 'X' AND c.rank < o.n AND o.t BETWEEN c.t - 5 AND c.t"
    join = analyze_sql(f"{SOURCES} SELECT o.id FROM o LEFT JOIN c ON {on};").relation
    assert isinstance(join, AnalyzedLookupJoin)
    assert (join.kind, join.table) == ("left", "right")
    assert keys(join) == ["o.customer_id = c.id"]
    assert texts(join.left_only) == ["o.n > 1"]
    assert texts(join.right_only) == ["upper(c.name) = 'X'"]
    # Bounds on time are conditions like any other: the table is looked up as it is.
    assert texts(join.residual) == ["c.rank < o.n", "o.t >= c.t - 5", "o.t <= c.t"]


def test_a_table_that_stands_on_the_left_is_looked_up_too(analyze_sql):
    join = analyze_sql(f"{SOURCES} SELECT o.id FROM c RIGHT JOIN o ON c.id = o.customer_id;").relation
    assert (type(join), join.kind, join.table) == (AnalyzedLookupJoin, "right", "left")
    assert keys(join) == ["c.id = o.customer_id"]


def test_a_lookup_needs_no_watermark(analyze_sql):
    query = analyze_sql(f"{SOURCES} SELECT STREAM u.id FROM unmarked u JOIN c ON c.id = u.customer_id;")
    assert (type(query.relation), query.result, query.warnings) == (AnalyzedLookupJoin, "stream", ())


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("", "", ("ignore", None, None, False)),
        ("LEFT", "", ("reemit", HOUR, None, False)),
        ("LEFT", "SET watersmeet.table.retention = 5 minutes;", ("reemit", 5 * MINUTE, None, False)),
        ("LEFT", "SET watersmeet.table.waiting = 1000;", ("reemit", None, 1000, False)),
        (
            "LEFT",
            "SET watersmeet.table.waiting = 7; SET watersmeet.table.retention = '1 minute';",
            ("reemit", MINUTE, 7, False),
        ),
        (
            "LEFT",
            "SET watersmeet.table.late = ignore; SET watersmeet.table.waiting = 7;",
            ("ignore", None, None, False),
        ),
        ("", "SET watersmeet.table.load = first;", ("ignore", None, None, True)),
    ],
)
def test_settings_say_what_a_late_table_row_does(analyze_sql, kind, settings, expected):
    join = analyze_sql(f"{SOURCES}{settings} SELECT o.id FROM o {kind} JOIN c ON c.id = o.customer_id;").relation
    assert (join.late_table, join.retention, join.waiting, join.load_first) == expected


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("late = never", "expected reemit or ignore"),
        ("retention = soon", "expected a duration above 0"),
        ("retention = 0 seconds", "expected a duration above 0"),
        ("waiting = 0", "expected a whole number above 0"),
        ("load = later", "expected first or together"),
    ],
)
def test_values_that_settings_do_not_have(refusals_of, setting, reason):
    [refusal] = refusals_of(
        f"{SOURCES} SET watersmeet.table.{setting}; SELECT o.id FROM o LEFT JOIN c ON c.id = o.customer_id;"
    )
    assert (refusal.condition, refusal.parameters["reason"]) == ("WRONG_ARGUMENT", reason)


@pytest.mark.parametrize("kind", ["", "LEFT", "RIGHT", "FULL", "LEFT SEMI", "LEFT ANTI"])
def test_the_condition_of_a_table_join_is_split(analyze_sql, kind):
    on = "trim(a.addr) = c.name AND c.id = a.customer_id AND a.id > 1 AND c.rank <= a.id AND c.name <=> a.addr"
    query = analyze_sql(f"{SOURCES} SELECT c.id FROM c {kind} JOIN a ON {on};")
    join = query.relation
    assert (type(join), query.result, query.warnings) == (AnalyzedTableJoin, "table", ())
    assert keys(join) == ["c.name = trim(a.addr)", "c.id = a.customer_id"]
    assert (texts(join.left_only), texts(join.right_only)) == ([], ["a.id > 1"])
    assert texts(join.residual) == ["c.rank <= a.id", "c.name <=> a.addr"]


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        ("l.c1 = r.c2", ["l.c1 = r.c2"]),
        ("r.c2 = l.c1", ["l.c1 = r.c2"]),
        ("l.c1 = r.c2 AND l.c2 < r.c3", ["l.c1 = r.c2"]),
        ("l.c2 < r.c3", []),
        ("l.c1 = r.c2 OR l.c2 < r.c3", []),
        ("NOT l.c1 = r.c2", []),
        ("l.c1 % r.c2 = 0", []),
        ("1 = 1", []),
        ("l.c1 = 5 AND l.c1 = l.c2", []),
        ("trim(l.c1) = trim(r.c2)", ["trim(l.c1) = trim(r.c2)"]),
        ("l.c1 = r.c1 AND l.c2 = r.c2 AND l.c3 > 3", ["l.c1 = r.c1", "l.c2 = r.c2"]),
    ],
)
def test_an_equality_between_the_tables_is_a_key(analyze_sql, on, expected):
    """FT-V0: what has no key is compared row by row, which is said."""
    columns = tuple(Field(name, "INT") for name in ("c1", "c2", "c3"))
    tables = {name: Source(name, columns, kind="table", primary_key=("c1",)) for name in ("l", "r")}
    query = analyze_sql(f"SELECT l.c1 FROM l JOIN r ON {on};", **tables)
    assert keys(query.relation) == expected
    said = "No equality joins l with r, so every change is compared with the whole table of the other side"
    assert [warned.message for warned in query.warnings] == ([] if expected else [f"{said} (block-nested)."])


def test_without_on_tables_meet_by_their_keys(analyze_sql):
    assert keys(analyze_sql(f"{SOURCES} SELECT c.name FROM c JOIN a;").relation) == ["c.id = a.id"]


def test_a_lookup_without_a_key_is_warned_of(analyze_sql):
    [warned] = analyze_sql(f"{SOURCES} SELECT o.id FROM o JOIN c ON c.rank < o.n;").warnings
    assert warned.message == (
        "No equality joins o with c, so every row of the stream is compared with the whole table c."
    )


@pytest.mark.parametrize(
    ("join", "is_refused"),
    [
        ("o JOIN c ON c.id = o.id AND concat(o.item, c.name) = 'x'", False),
        ("o LEFT JOIN c ON c.id = o.id AND concat(o.item, c.name) = 'x'", True),
        ("c RIGHT JOIN o ON c.id = o.id AND concat(o.item, c.name) = 'x'", True),
        ("c JOIN a ON c.id = a.id AND concat(a.addr, c.name) = 'x'", False),
        ("c LEFT JOIN a ON c.id = a.id AND concat(a.addr, c.name) = 'x'", True),
        ("c LEFT ANTI JOIN a ON c.id = a.id AND concat(a.addr, c.name) = 'x'", True),
        ("c LEFT SEMI JOIN a ON c.id = a.id AND concat(a.addr, c.name) = 'x'", True),
    ],
)
def test_conditions_for_spark_alone_across_the_sides(analyze_sql, refusals_of, join, is_refused):
    if is_refused:
        assert [r.condition for r in refusals_of(f"{SOURCES} SELECT c.id FROM {join};")] == ["UNSUPPORTED_CONDITION"]
    else:
        assert len(analyze_sql(f"{SOURCES} SELECT c.id FROM {join};").relation.residual) == 1


def test_a_join_of_streams_looks_a_table_up(analyze_sql):
    chain = "o JOIN d WITHIN 5 ON o.id = d.order_id LEFT JOIN c ON c.id = o.customer_id"
    query = analyze_sql(f"{SOURCES} SELECT c.name FROM {chain};")
    assert [type(query.relation), type(query.relation.left)] == [AnalyzedLookupJoin, AnalyzedIntervalJoin]
    assert (query.result, query.warnings) == ("stream", ())


def test_tables_join_in_chains_and_are_looked_up_in_one_query(analyze_sql):
    query = analyze_sql(
        f"{SOURCES} SELECT c.name FROM c LEFT JOIN a ON a.customer_id = c.id JOIN p ON p.item = a.addr;"
    )
    assert [type(query.relation), type(query.relation.left)] == [AnalyzedTableJoin, AnalyzedTableJoin]
    query = analyze_sql(f"{SOURCES} SELECT c.name FROM c JOIN a ON a.customer_id = c.id RIGHT JOIN o ON c.id = o.id;")
    assert [type(query.relation), type(query.relation.left)] == [AnalyzedLookupJoin, AnalyzedTableJoin]
    assert query.relation.table == "left"


def test_a_stream_looks_up_several_tables(analyze_sql):
    chain = "o JOIN c ON c.id = o.customer_id LEFT JOIN p ON p.item = o.item"
    query = analyze_sql(f"{SOURCES} SELECT c.name FROM {chain};")
    assert [type(query.relation), type(query.relation.left)] == [AnalyzedLookupJoin, AnalyzedLookupJoin]


def test_the_time_of_the_stream_passes_through_a_lookup(analyze_sql):
    query = analyze_sql(
        f"{SOURCES} SELECT c.name FROM o JOIN c ON c.id = o.customer_id JOIN d WITHIN 5 ON d.order_id = o.id;"
    )
    assert [str(bound.column) for bound in query.relation.bounds] == ["o.t", "d.t"]
    assert query.warnings == ()


@pytest.mark.parametrize(("setting", "warned"), [("reemit", True), ("ignore", False)])
def test_rows_shown_again_may_be_late_for_a_join_above(analyze_sql, setting, warned):
    chain = "o LEFT JOIN c ON c.id = o.customer_id JOIN d WITHIN 5 ON d.order_id = o.id"
    query = analyze_sql(f"{SOURCES} SET watersmeet.table.late = {setting}; SELECT c.name FROM {chain};")
    assert ["may be too late for the next join" in warned.message for warned in query.warnings] == [True] * warned


def test_a_join_above_a_lookup_asks_the_stream_for_its_watermark(refusals_of):
    chain = "unmarked u JOIN c ON c.id = u.customer_id JOIN d WITHIN 5 ON d.order_id = u.id"
    [refusal] = refusals_of(f"{SOURCES} SELECT c.name FROM {chain};")
    assert (refusal.condition, refusal.label) == ("MISSING_WATERMARK", "unmarked has no watermark")


@pytest.mark.parametrize(
    ("join", "is_refused"),
    [
        ("o JOIN c ON c.id = o.customer_id", True),
        ("c JOIN a ON c.id = a.customer_id", True),
        ("o JOIN d WITHIN 5 ON o.id = d.order_id JOIN c ON c.id = o.customer_id", False),
    ],
)
def test_rows_of_a_table_are_never_late(analyze_sql, refusals_of, join, is_refused):
    sql = f"{SOURCES} INSERT INTO s SELECT c.id FROM {join} LATE INTO late;"
    if is_refused:
        assert [refusal.message for refusal in refusals_of(sql)] == [
            "LATE INTO of a join with a table is not supported."
        ]
    else:
        assert analyze_sql(sql).late_into == "late"


@pytest.mark.parametrize(
    ("clause", "what"),
    [
        ("UNMATCHED LEFT INTO late", "UNMATCHED LEFT INTO of a join without windows"),
        ("PORTS INTO s, late", "PORTS INTO without a SYNC JOIN"),
    ],
)
@pytest.mark.parametrize("join", ["o LEFT JOIN c ON c.id = o.id", "c LEFT JOIN a ON c.id = a.id"])
def test_outputs_that_joins_with_tables_do_not_have(refusals_of, join, clause, what):
    refusals = refusals_of(f"{SOURCES} SELECT c.id FROM {join} {clause};")
    assert f"{what} is not supported." in [refusal.message for refusal in refusals]


@pytest.mark.parametrize(
    ("select", "result"),
    [
        ("SELECT id FROM c", "table"),
        ("SELECT TABLE id FROM c", "table"),
        ("SELECT id FROM o", "stream"),
        ("SELECT TABLE c.id FROM c JOIN a ON c.id = a.id", "table"),
        ("SELECT STREAM c.id FROM o JOIN c ON c.id = o.id", "stream"),
        ("SELECT TABLE item, count(*) AS n FROM o GROUP BY item", "table"),
    ],
)
def test_result_of_a_query_is_a_table_or_a_stream(analyze_sql, select, result):
    query = analyze_sql(f"{SOURCES} {select};")
    assert (query.result, query.warnings) == (result, ())


@pytest.mark.parametrize(
    ("select", "what"),
    [
        ("id FROM c", "the table c"),
        ("c.id FROM c JOIN a ON c.id = a.id", "the join of the tables c and a"),
        ("c.id, x FROM c LATERAL array(c.rank) AS x", "the table c"),
        ("item, count(*) AS n FROM o GROUP BY item", "groups with aggregates"),
    ],
)
def test_a_table_is_no_stream(refusals_of, select, what):
    [refusal] = refusals_of(f"{SOURCES} SELECT STREAM {select};")
    assert (refusal.condition, refusal.parameters["what"]) == ("RESULT_IS_A_TABLE", what)
    assert refusal.hint.endswith("write SELECT TABLE.")
    assert ("each group then comes out once" in refusal.hint or "each group comes out once" in refusal.hint) == (
        what == "groups with aggregates"
    )


@pytest.mark.parametrize(
    ("select", "by"),
    [
        ("c.name FROM o JOIN c ON c.id = o.customer_id", "o.customer_id"),
        ("o.item FROM o JOIN d WITHIN 5 ON o.id = d.order_id AND o.n = d.id", "o.id, o.n"),
        ("item, id AS _key FROM o", "o.id"),
        ("item, n FROM o GROUP BY item", "o.item"),
    ],
)
def test_the_latest_rows_of_a_stream_are_a_table(analyze_sql, select, by):
    query = analyze_sql(f"{SOURCES} SELECT TABLE {select};")
    assert query.result == "table"
    assert [warned.message for warned in query.warnings] == [
        f"SELECT TABLE over a stream shows the latest row of each {by}: each row replaces the one before it."
    ]


@pytest.mark.parametrize("select", ["id FROM o", "o.id FROM o JOIN d WITHIN 5 ON o.n > d.id"])
def test_a_stream_without_a_key_is_no_table(refusals_of, select):
    [refusal] = refusals_of(f"{SOURCES} SELECT TABLE {select};")
    assert (refusal.condition, refusal.label) == ("RESULT_WITHOUT_KEY", "no key")


def test_batches_are_given_no_times_for_tables(analyze_sql):
    columns = (Field("id", "INT"), Field("t", "TIMESTAMP"))
    sources = {"x": Source("x", columns), "y": Source("y", columns, kind="table", primary_key=("id",))}
    on = "x.id = y.id AND x.t >= y.t AND x.t <= y.t + INTERVAL 1 HOUR"
    join = analyze_sql(f"SELECT x.id FROM x JOIN y ON {on};", inputs="batches", **sources).relation
    assert isinstance(join, AnalyzedLookupJoin)
    assert isinstance(join.left, AnalyzedScan) and isinstance(join.right, AnalyzedScan)
    assert (join.left.source.watermarks, join.right.source.watermarks) == ((), ())


def test_a_view_is_what_its_query_gives(analyze_sql, refusals_of):
    view = "CREATE VIEW ca AS SELECT c.id, a.addr FROM c JOIN a ON a.customer_id = c.id;"
    query = analyze_sql(f"{SOURCES}{view} SELECT o.id FROM o JOIN ca ON ca.id = o.customer_id;")
    assert (type(query.relation), query.relation.right.source.kind) == (AnalyzedLookupJoin, "table")
    [refusal] = refusals_of(f"{SOURCES}{view} SELECT o.id FROM ca JOIN o ON ca.id = o.customer_id;")
    assert refusal.hint == "swap the sides: `o JOIN ca ON ca.id = o.customer_id`."


def test_a_view_without_time_is_refused_with_what_to_select(refusals_of):
    joined = "d JOIN (SELECT id + 1 AS id FROM o) AS s WITHIN 5 ON d.id = s.id"
    [refusal] = refusals_of(f"{SOURCES} SELECT d.id FROM {joined};")
    assert (refusal.condition, refusal.label) == ("MISSING_WATERMARK", "s has no watermark")
    assert refusal.hint == "show `t` in s, as it is: it has a watermark."
