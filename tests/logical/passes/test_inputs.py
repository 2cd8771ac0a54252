"""Unions, heartbeats, idle sources and the sink of late rows."""

from __future__ import annotations

import pytest

from watersmeet.catalog import Amount
from watersmeet.logical.relation import AnalyzedScan
from watersmeet.logical.words import expression_in_words

STREAMS = (
    "CREATE STREAM a (id INT NOT NULL, t BIGINT, u BIGINT, k STRING,"
    " WATERMARK FOR t AS t - 1 IDLE AFTER 10s HEARTBEAT WHEN k = 'hb', WATERMARK FOR u AS u - 2);"
    "CREATE STREAM b (nr INT, at BIGINT, v BIGINT, what STRING,"
    " WATERMARK FOR at AS at - 3 IDLE AFTER 20s HEARTBEAT WHEN WHAT = 'hb');"
    "CREATE STREAM c (id INT, t BIGINT, k STRING, WATERMARK FOR t AS t - 0);"
    "CREATE STREAM d (id INT, t BIGINT, u BIGINT, k STRING, WATERMARK FOR u AS u - 0);"
    "CREATE SINK out USING parquet OPTIONS (path 'x');"
    "CREATE SINK Late USING parquet OPTIONS (path 'y');"
)
AB = "(SELECT STREAM * FROM a UNION ALL SELECT STREAM * FROM b) AS u"


def union_of(analyze_sql, union: str = AB) -> AnalyzedScan:
    relation = analyze_sql(f"{STREAMS} SELECT STREAM c.id FROM {union} JOIN c ON u.t = c.t;").relation
    assert isinstance(relation.left, AnalyzedScan)
    return relation.left


def test_a_union_is_one_source_with_parts(analyze_sql):
    scan = union_of(analyze_sql)
    assert (scan.alias, scan.source.name, [part.name for part in scan.parts]) == ("u", "u", ["a", "b"])
    fields = [(field.name, field.type, field.nullable) for field in scan.source.fields]
    assert fields == [("id", "INT", True), ("t", "BIGINT", True), ("u", "BIGINT", True), ("k", "STRING", True)]


def test_a_union_has_the_watermarks_that_all_its_parts_have(analyze_sql):
    [mark] = union_of(analyze_sql).source.watermarks
    assert (mark.column, mark.lag, mark.idle) == ("t", Amount(1, False), 20_000_000)


def test_a_union_that_one_part_keeps_awake_is_never_idle(analyze_sql):
    scan = union_of(analyze_sql, "(SELECT * FROM c UNION ALL SELECT * FROM c) u")
    assert [mark.idle for mark in scan.source.watermarks] == [None]


def test_heartbeats_of_a_union_are_those_of_all_parts(analyze_sql):
    heartbeat = union_of(analyze_sql).heartbeat
    assert heartbeat is not None
    assert expression_in_words(heartbeat) == "u.k = 'hb'"


def test_columns_of_a_union_are_named_as_in_its_first_part(analyze_sql):
    query = analyze_sql(f"{STREAMS} SELECT STREAM * FROM {AB} WHERE k = 'x';")
    assert [output.name for output in query.outputs] == ["id", "t", "u", "k"]
    assert [expression_in_words(part) for part in query.relation.filters] == ["u.k = 'x'"]


def test_a_union_joins_with_its_own_part(analyze_sql):
    query = analyze_sql(f"{STREAMS} SELECT STREAM a.id FROM a LEFT JOIN {AB} ON a.t = u.t AND a.id = u.id;")
    assert [len(side.parts) for side in (query.relation.left, query.relation.right)] == [0, 2]


def test_batches_need_no_watermark_in_the_parts_of_a_union(analyze_sql):
    sql = "CREATE STREAM x (k INT, t BIGINT); SELECT u.k FROM (SELECT * FROM x UNION ALL SELECT * FROM x) u JOIN x"
    query = analyze_sql(f"{sql} ON x.t BETWEEN u.t AND u.t + 5;", inputs="batches")
    assert [mark.column for mark in query.relation.left.source.watermarks] == ["t"]


@pytest.mark.parametrize(
    ("union", "condition", "text"),
    [
        ("(SELECT * FROM a UNION ALL SELECT * FROM c) u", "TYPE_MISMATCH", "a has 4 columns, c has 3"),
        ("(SELECT * FROM x UNION ALL SELECT * FROM c) u", "UNKNOWN_SOURCE", "`x`"),
        ("(SELECT * FROM a UNION ALL SELECT * FROM a) c", "DUPLICATE_NAME", "`c`"),
        ("(SELECT * FROM a UNION ALL SELECT * FROM d) u", "UNSUPPORTED_STATEMENT", "a and d, whose heartbeats differ"),
    ],
)
def test_refuses_parts_that_do_not_fit(refusals_of, union, condition, text):
    [refusal] = refusals_of(f"{STREAMS} SELECT STREAM c.id FROM {union} JOIN c WITHIN 5 ON true;")
    assert refusal.condition == condition
    assert text in refusal.message
    assert refusal.place is not None
    assert refusal.hint


def test_refuses_a_union_whose_parts_share_no_watermark(refusals_of):
    streams = STREAMS.replace(" HEARTBEAT WHEN WHAT = 'hb'", "")
    union = "(SELECT * FROM b UNION ALL SELECT * FROM d) AS u"
    [refusal] = refusals_of(f"{streams} SELECT STREAM c.id FROM c JOIN {union} ON u.at = c.t;")
    assert refusal.condition == "MISSING_WATERMARK"
    assert refusal.parameters["side"] == "u"
    assert refusal.hint == "add `WATERMARK FOR t AS t - 5` to the columns of d."


def test_a_heartbeat_is_about_the_alias_of_its_source(analyze_sql):
    query = analyze_sql(
        f"{STREAMS} SELECT STREAM x.id FROM a AS x JOIN c WITHIN 5 ON x.t = c.t AND x.u = c.t;".replace("WITHIN 5", "")
    )
    heartbeat = query.relation.left.heartbeat
    assert heartbeat.sql() == "(`x.k` = 'hb')"
    assert query.relation.right.heartbeat is None


@pytest.mark.parametrize("condition", ["knd = 'hb'", "c.k = 'hb'", "upper(knd) = 'HB'"])
def test_a_heartbeat_names_columns_of_its_source(refusals_of, condition):
    [refusal] = refusals_of(f"CREATE STREAM s (t INT, k STRING, WATERMARK FOR t AS t HEARTBEAT WHEN {condition});")
    assert refusal.condition == "UNKNOWN_COLUMN"
    assert refusal.place is not None
    assert refusal.place.text[refusal.place.start : refusal.place.end] in ("knd", "c.k")


def test_late_rows_go_into_a_sink(analyze_sql):
    query = analyze_sql(f"{STREAMS} INSERT INTO out SELECT STREAM a.id FROM a JOIN c ON a.t = c.t LATE INTO late;")
    assert (query.into, query.late_into) == ("out", "Late")


@pytest.mark.parametrize(
    ("rest", "condition"),
    [
        ("JOIN c ON a.t = c.t LATE INTO lat", "UNKNOWN_SINK"),
        ("JOIN c ON a.t = c.t LATE INTO OUT", "UNSUPPORTED_STATEMENT"),
        ("LATE INTO late", "UNSUPPORTED_STATEMENT"),
    ],
)
def test_refuses_late_rows_that_have_nowhere_to_go(refusals_of, rest, condition):
    sql = f"{STREAMS} INSERT INTO out SELECT STREAM a.id FROM a {rest};"
    [refusal] = refusals_of(sql)
    assert refusal.condition == condition
    assert refusal.place is not None
    assert sql[refusal.place.start : refusal.place.end] == rest.split()[-1]


TEXT = (
    "CREATE STREAM l (id INT, t BIGINT, WATERMARK FOR t AS t) USING json OPTIONS (path 'l');"
    "CREATE SINK out USING parquet OPTIONS (path 'x'); CREATE SINK Bad USING parquet OPTIONS (path 'y');"
    "CREATE SINK fixed (id INT) USING parquet OPTIONS (path 'z');"
)


def test_malformed_rows_go_into_a_sink(analyze_sql):
    query = analyze_sql(f"{TEXT} INSERT INTO out SELECT STREAM l.id FROM l MALFORMED INTO bad;")
    assert [(apart.of, apart.column, apart.sink) for apart in query.side_outputs] == [
        ("MALFORMED", "_malformed", "Bad")
    ]


@pytest.mark.parametrize(
    ("sql", "condition"),
    [
        (f"{TEXT} INSERT INTO out SELECT STREAM l.id FROM l MALFORMED INTO bat", "UNKNOWN_SINK"),
        (f"{TEXT} INSERT INTO out SELECT STREAM l.id FROM l MALFORMED INTO fixed", "WRONG_OUTPUT"),
        (f"{STREAMS} INSERT INTO out SELECT STREAM a.id FROM a MALFORMED INTO late", "UNSUPPORTED_STATEMENT"),
    ],
)
def test_refuses_malformed_rows_that_have_nowhere_to_go(refusals_of, sql, condition):
    [refusal] = refusals_of(f"{sql};")
    assert refusal.condition == condition
    assert sql[refusal.place.start : refusal.place.end] == sql.split()[-1]
