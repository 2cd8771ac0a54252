from __future__ import annotations

import pytest

from watersmeet.catalog import Amount, Field, Span
from watersmeet.errors import WatersmeetError
from watersmeet.logical.nodes import Item, Join, Query, Scan, Script, Setting, Star, Union, leaves, scans
from watersmeet.queries import read_script

ORDERS = """\
SET watersmeet.shards = 4; -- a setting
CREATE STREAM orders (
    order_id BIGINT NOT NULL, order_time TIMESTAMP, `item id` ARRAY<STRUCT<a: INT, `b c`: decimal(10, 2)>>,
    WATERMARK FOR order_time AS order_time - INTERVAL 5 SECONDS   -- lag
) USING kafka OPTIONS (subscribe 'orders', 'kafka.bootstrap.servers' = 'h:1', value.format 'json', max 5);
CREATE STREAM deliveries (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 10, WATERMARK FOR `id` AS id);
CREATE SINK joined USING parquet OPTIONS (path '/out');
/* the query; */
INSERT INTO joined
SELECT STREAM o.*, d.id + 1 AS next, upper(o.name) named, *
FROM orders AS o
LEFT OUTER JOIN deliveries d WITHIN 1h ON o.order_id = d.id AND d.t > 5
WHERE o.order_id > 0;
"""

LIST = "A list of columns after a name"


def query(text: str) -> tuple[Script, Query]:
    script = read_script(text)
    assert len(script.queries) == 1
    return script, script.queries[0]


def join(text: str) -> Join:
    relation = query(text)[1].relation
    assert isinstance(relation, Join)
    return relation


def test_a_stream_has_columns_watermarks_format_and_options():
    orders = read_script(ORDERS).sources[0]
    assert orders.fields == (
        Field("order_id", "BIGINT", nullable=False),
        Field("order_time", "TIMESTAMP"),
        Field("item id", "ARRAY<STRUCT<a: INT, `b c`: DECIMAL(10,2)>>"),
    )
    assert [(w.column, w.lag) for w in orders.watermarks] == [("order_time", Amount(5_000_000, is_interval=True))]
    assert (orders.name, orders.kind, orders.format) == ("orders", "stream", "kafka")
    assert orders.options == {
        "subscribe": "orders", "kafka.bootstrap.servers": "h:1", "value.format": "json", "max": "5",
    }  # fmt: skip


def test_a_watermark_may_lag_by_a_number_or_not_at_all():
    watermarks = read_script(ORDERS).sources[1].watermarks
    assert [(w.column, w.lag) for w in watermarks] == [("t", Amount(10, False)), ("id", Amount(0, False))]
    timestamps = read_script("CREATE STREAM s (t TIMESTAMP, WATERMARK FOR t AS t)").sources[0].watermarks
    assert timestamps[0].lag == Amount(0, is_interval=True)


def test_settings_and_sinks():
    script = read_script(ORDERS)
    assert [(s.name, s.value) for s in script.settings] == [("watersmeet.shards", "4")]
    assert [(s.name, s.format, s.options) for s in script.sinks] == [("joined", "parquet", {"path": "/out"})]
    assert read_script("SET a = 'x y'").settings == (Setting("a", "x y", Span(0, 13)),)
    assert read_script("SET a.b = /data/x y;").settings[0].value == "/data/x y"


def test_a_query_has_items_relation_and_condition():
    _, asked = query(ORDERS)
    assert asked.into == "joined"
    assert isinstance(asked.relation, Join)
    assert asked.relation.kind == "left"
    assert asked.where is not None
    names = [item.name if isinstance(item, Item) else item.alias for item in asked.items]
    assert names == ["o", "next", "named", None]
    assert isinstance(asked.items[0], Star)
    assert isinstance(asked.items[3], Star)


def test_spans_are_places_in_the_script():
    script, asked = query(ORDERS)
    relation = asked.relation
    assert isinstance(relation, Join)
    assert isinstance(relation.left, Scan)
    assert relation.within is not None
    assert relation.on is not None
    assert asked.where is not None
    assert isinstance(asked.items[0], Star)
    spans = [
        asked.into_span, relation.left.span, relation.span, relation.within.span, relation.on.span, asked.where.span,
        script.sources[0].watermarks[0].span, asked.items[0].span, script.settings[0].span,
    ]  # fmt: skip
    assert [script.text[span.start : span.end] for span in spans] == [
        "joined", "orders", "LEFT OUTER JOIN deliveries d", "WITHIN 1h", "o.order_id = d.id AND d.t > 5",
        "o.order_id > 0", "WATERMARK FOR order_time AS order_time - INTERVAL 5 SECONDS", "o.*",
        "SET watersmeet.shards = 4",
    ]  # fmt: skip
    assert script.text[asked.span.start : asked.span.end].startswith("INSERT INTO joined\nSELECT")
    assert script.text[asked.span.start : asked.span.end].endswith("WHERE o.order_id > 0")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("JOIN", "inner"),
        ("INNER JOIN", "inner"),
        ("left join", "left"),
        ("LEFT OUTER JOIN", "left"),
        ("RIGHT JOIN", "right"),
        ("RIGHT OUTER JOIN", "right"),
        ("FULL JOIN", "full"),
        ("FULL OUTER JOIN", "full"),
        ("OUTER JOIN", "full"),
        ("LEFT SEMI JOIN", "semi"),
        ("semi join", "semi"),
        ("LEFT ANTI JOIN", "anti"),
        ("ANTI JOIN", "anti"),
    ],
)
def test_kinds_of_join(words: str, kind: str):
    assert join(f"SELECT * FROM a {words} b ON a.x = b.x").kind == kind


def test_joins_chain_to_the_left():
    outer = join("SELECT STREAM * FROM a JOIN b USING (x, `y`) LEFT JOIN STREAM(c) z WITHIN 5 ON a.x = z.x")
    assert isinstance(outer.left, Join)
    assert (outer.left.using, outer.left.on, outer.left.within) == (("x", "y"), None, None)
    assert isinstance(outer.right, Scan)
    assert (outer.right.source, outer.right.alias) == ("c", "z")
    assert outer.within is not None
    assert outer.within.amount == Amount(5, is_interval=False)


@pytest.mark.parametrize(
    ("written", "micros"),
    [
        ("5s", 5_000_000),
        ("500ms", 500_000),
        ("5 SECONDS", 5_000_000),
        ("1 HOUR 30 MINUTES", 5_400_000_000),
        ("INTERVAL '1' HOUR", 3_600_000_000),
        ("'1 hour'", 3_600_000_000),
    ],
)
@pytest.mark.parametrize(
    "form", ["SELECT * FROM a JOIN b WITHIN {} ON a.x = b.x", "SELECT * FROM a JOIN b ON x WITHIN {}"]
)
def test_within_stands_before_or_after_on(form: str, written: str, micros: int):
    within = join(form.format(written)).within
    assert within is not None
    assert within.amount == Amount(micros, is_interval=True)


def test_having_and_distinct_are_read():
    _, asked = query("SELECT TABLE DISTINCT a, b FROM c GROUP BY a HAVING count(*) > 1;")
    assert asked.is_distinct
    assert asked.having is not None
    assert asked.having.sql() == "(count(*) > 1)"
    _, asked = query("SELECT distinct FROM c;")
    assert not asked.is_distinct


def test_the_first_rows_are_read_from_a_subquery():
    _, asked = query("SELECT TABLE a AS b, c FROM d WHERE e ORDER BY b DESC, 2, f(c) NULLS LAST LIMIT 5;")
    assert (asked.limit, asked.items) == (5, (Star(),))
    assert [(by.expr.sql(lambda ref: ref.parts[0]), by.descending, by.nulls_last) for by in asked.order] == [
        ("a", True, True), ("c", False, False), ("f(c)", False, True),
    ]  # fmt: skip
    [whole] = asked.views
    assert [item.name for item in whole.query.items if isinstance(item, Item)] == [
        "b",
        None,
        "#order0",
        "#order1",
        "#order2",
    ]
    assert whole.query.where is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT a FROM b ORDER BY a", "ORDER BY without LIMIT"),
        ("SELECT a FROM b LIMIT 5", "LIMIT without ORDER BY"),
        ("SELECT a FROM b ORDER BY a LIMIT -1", "a number of rows"),
        ("SELECT a FROM b ORDER BY a LIMIT ALL", "a number of rows"),
    ],
)
def test_an_order_and_a_limit_are_combined(text: str, expected: str):
    with pytest.raises(WatersmeetError) as caught:
        query(f"{text};")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("written", "before", "after"),
    [
        ("5 SECONDS AFTER", 0, 5_000_000),
        ("5s before", 5_000_000, 0),
        ("1m BEFORE AND 5 SECONDS AFTER", 60_000_000, 5_000_000),
        ("INTERVAL 5 SECONDS AFTER AND 1m BEFORE", 60_000_000, 5_000_000),
    ],
)
def test_within_may_have_directions(written: str, before: int, after: int):
    for form in (
        "SELECT * FROM a JOIN b WITHIN {} ON a.x = b.x AND y",
        "SELECT * FROM a JOIN b ON x WITHIN {} WHERE y",
    ):
        within = join(form.format(written)).within
        assert within is not None
        assert [amount.value for amount in within.pair] == [before, after]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a JOIN b WITHIN 5s AND 1m AFTER ON x", "WITHIN 5 MINUTES BEFORE AND 1 HOUR AFTER"),
        ("a JOIN b WITHIN 5s AFTER AND 1m AFTER ON x", "WITHIN 5 MINUTES BEFORE AND 1 HOUR AFTER"),
        ("a JOIN b WITHIN (0 SECONDS, 30 MINUTES) ON x", "`WITHIN 0 SECONDS BEFORE AND 30 MINUTES AFTER`"),
        (
            "a ASOF JOIN b MATCH_CONDITION (a.t >= b.t) ON a.x = b.x WITHIN 5s AFTER",
            "MATCH_CONDITION gives the direction",
        ),
    ],
)
def test_within_is_refused_in_other_forms(text: str, hint: str):
    with pytest.raises(WatersmeetError) as caught:
        query(f"SELECT STREAM * FROM {text};")
    assert hint in str(caught.value)


def test_a_join_without_condition_leaves_it_to_the_analysis():
    relation = join("SELECT STREAM * FROM STREAM a JOIN b WITHIN 5s")
    assert (relation.on, relation.using) == (None, ())


def test_words_are_names_where_a_name_is_expected():
    script = read_script("""
        CREATE STREAM stream (key INT, within STRING, time DATE, left INT, watermark INT, select INT, primary INT);
        CREATE SINK sink USING console;
        INSERT INTO sink SELECT stream, key AS left, time within, left.key FROM stream AS left LEFT JOIN within ON key;
        SELECT STREAM date FROM stream;
    """)
    assert [f.name for f in script.sources[0].fields] == [
        "key", "within", "time", "left", "watermark", "select", "primary",
    ]  # fmt: skip
    first, second = script.queries
    assert [item.name for item in first.items if isinstance(item, Item)] == [None, "left", "within", None]
    assert isinstance(first.relation, Join)
    assert isinstance(first.relation.left, Scan)
    assert isinstance(first.relation.right, Scan)
    assert (first.relation.left.source, first.relation.left.alias) == ("stream", "left")
    assert (first.relation.right.source, first.relation.right.alias) == ("within", "within")
    assert second.relation == Scan("stream", "stream", second.relation.span)


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("integer", "INT"),
        ("long", "BIGINT"),
        ("numeric", "DECIMAL(10,0)"),
        ("dec( 5 )", "DECIMAL(5)"),
        ("map<string,array<int>>", "MAP<STRING, ARRAY<INT>>"),
        (
            "struct<a int not null comment 'x', b: map<int,int>>",
            "STRUCT<a: INT NOT NULL COMMENT 'x', b: MAP<INT, INT>>",
        ),
        ("struct<>", "STRUCT<>"),
        ("timestamp_ntz", "TIMESTAMP_NTZ"),
        ("interval day to second", "INTERVAL DAY TO SECOND"),
        ("varchar(10)", "VARCHAR(10)"),
        ("string collate UTF8_LCASE", "STRING COLLATE UTF8_LCASE"),
    ],
)
def test_types_in_one_spelling(written: str, normal: str):
    assert read_script(f"CREATE STREAM s (c {written}, d INT)").sources[0].fields[0].type == normal


@pytest.mark.parametrize(
    ("text", "what", "at"),
    [
        ("CREATE MATERIALIZED VIEW v AS SELECT a FROM b", "CREATE MATERIALIZED VIEW", "CREATE MATERIALIZED"),
        ("CREATE VIEW v (a) AS SELECT a FROM b", LIST, "("),
        ("WITH v (a) AS (SELECT a FROM b)", LIST, "("),
        ("WITH RECURSIVE v AS (SELECT a FROM b)", "WITH RECURSIVE", "RECURSIVE"),
        ("SELECT a FROM b UNION ALL", "UNION without a query behind it", "UNION"),
        ("SELECT *, count(*) AS n FROM b GROUP BY ALL", "GROUP BY ALL with `*` in SELECT", "ALL"),
        (
            "SELECT a FROM b GROUP BY CUBE (a, c, d, e, f, g, h, i, j)",
            "GROUP BY with 512 groupings, of 256 at most,",
            "GROUP BY",
        ),
        ("SELECT a FROM b WINDOW BY TUMBLE 5m", "WINDOW BY", "WINDOW BY"),
        ("SELECT a FROM b LATERAL VIEW explode(c) d AS e", "LATERAL VIEW", "VIEW"),
        ("SELECT a FROM b LATERAL xs AS x SYNC JOIN c", "SYNC JOIN after LATERAL", "SYNC JOIN"),
        ("SELECT a FROM TABLE(EXPLODE(TABLE b))", "TABLE(EXPLODE...) as a source", "TABLE"),
        ("SELECT a FROM b LIMIT 5", "LIMIT without ORDER BY", "LIMIT"),
        ("CREATE VIEW v AS SELECT a FROM b LATE INTO s", "LATE INTO inside a view or subquery", "LATE INTO"),
        ("CREATE STREAM s (a INT) CHANGES FROM delta", "CHANGES FROM of a stream", "CHANGES FROM"),
        ("CREATE TABLE s (a INT) ORDER BY a", "ORDER BY of a table", "ORDER BY"),
        (
            "SELECT a FROM (SELECT * FROM b UNION ALL SELECT * FROM c) WATERMARK t DELAY OF INTERVAL 5 SECONDS u",
            "WATERMARK after a union",
            "WATERMARK",
        ),
        (
            "SELECT * FROM a UNION SELECT * FROM b ORDER BY x LIMIT 3",
            "ORDER BY in a part of a set operation",
            "ORDER BY",
        ),
        ("SELECT * FROM (b)", "A bracket after FROM", "("),
        ("SELECT * FROM a WHERE lower((SELECT x FROM b)) = 1", "A subquery", "SELECT"),
        ("SELECT * FROM a JOIN b ON a.x IN (SELECT x FROM c)", "A subquery", "SELECT"),
    ],
)
def test_unsupported_clauses_are_refused_at_their_place(text: str, what: str, at: str):
    with pytest.raises(WatersmeetError) as error:
        read_script(text)
    (refusal,) = error.value.refusals
    assert (refusal.condition, refusal.parameters["what"]) == ("UNSUPPORTED_STATEMENT", what)
    assert refusal.place is not None
    assert text[refusal.place.start : refusal.place.end] == at
    assert refusal.hint


def test_a_union_is_a_source():
    text = "SELECT u.x FROM (SELECT STREAM * FROM a UNION ALL SELECT * FROM `b c` UNION ALL SELECT * FROM a) AS u"
    union = query(text)[1].relation
    assert isinstance(union, Union)
    assert union.alias == "u"
    assert [(scan.source, scan.alias) for scan in union.scans] == [("a", "a"), ("b c", "b c"), ("a", "a")]
    assert text[union.span.start : union.span.end] == text[16:-5]
    assert [text[scan.span.start : scan.span.end] for scan in scans(union)] == ["a", "`b c`", "a"]


def test_a_union_stands_on_either_side_of_a_join():
    part = "SELECT STREAM * FROM"
    relation = join(
        f"SELECT * FROM ({part} a UNION ALL {part} b) u SEMI JOIN ({part} c UNION ALL {part} d) v ON u.x = v.x"
    )
    assert [leaf.alias for leaf in leaves(relation)] == ["u", "v"]
    assert [scan.source for scan in scans(relation)] == ["a", "b", "c", "d"]


def test_a_watermark_may_be_idle_and_a_stream_have_heartbeats():
    script = read_script("""
        CREATE STREAM a (t INT, k STRING, WATERMARK FOR t AS t - 5 IDLE AFTER 30s HEARTBEAT WHEN k = 'hb' AND t > 0);
        CREATE STREAM b (t INT, u INT, WATERMARK FOR t AS t HEARTBEAT WHEN u IS NULL IDLE AFTER INTERVAL '1' HOUR,
            WATERMARK FOR u AS u - 5);
        CREATE STREAM c (t INT, WATERMARK FOR t AS t);
    """)
    idle = [[mark.idle for mark in source.watermarks] for source in script.sources]
    assert idle == [[30_000_000], [3_600_000_000, None], [None]]
    assert [(name, condition.op) for name, condition in script.heartbeats] == [("a", "and"), ("b", "is_null")]
    mark = script.sources[0].watermarks[0]
    assert script.text[mark.span.start : mark.span.end] == "WATERMARK FOR t AS t - 5"


def test_late_rows_have_a_sink():
    text = "INSERT INTO s SELECT * FROM a JOIN b LATE INTO `too late`;"
    script, asked = query(text)
    assert (asked.into, asked.late_into) == ("s", "too late")
    assert script.text[asked.late_into_span.start : asked.late_into_span.end] == "`too late`"
    assert asked.span.end == len(text) - 1
    assert query("INSERT INTO s SELECT x late FROM a late JOIN b WHERE x LATE INTO c")[1].late_into == "c"


@pytest.mark.parametrize(
    ("text", "expected", "at"),
    [
        ("SELECT * FROM a JOIN b LATE INTO c", "`;`", "LATE"),
        ("INSERT INTO s SELECT * FROM a JOIN b LATE INTO c WHERE x", "`;`", "WHERE"),
        ("SELECT * FROM a LEFT SEMI b ON a.x = b.x", "JOIN, WHERE or `;`", "SEMI"),
        ("INSERT INTO s SELECT * FROM a JOIN b LATE INTO", "the name of a sink", ""),
        ("CREATE STREAM s (t INT, WATERMARK FOR t AS t IDLE AFTER 30)", "a duration above zero", "30"),
        ("CREATE STREAM s (t INT, WATERMARK FOR t AS t IDLE AFTER 0s)", "a duration above zero", "0s"),
        ("CREATE STREAM s (t INT, WATERMARK FOR t AS t IDLE AFTER)", "a duration", ")"),
        ("CREATE STREAM s (t INT, WATERMARK FOR t AS t IDLE AFTER 1s IDLE AFTER 2s)", "`,` or `)`", "IDLE"),
        (
            "CREATE STREAM s (t INT, WATERMARK FOR t AS t HEARTBEAT WHEN t, WATERMARK FOR u AS u HEARTBEAT WHEN 1)",
            "`,` or `)`",
            "HEARTBEAT",
        ),
        ("CREATE STREAM s (t INT, WATERMARK FOR t AS t HEARTBEAT WHEN)", "an expression", ")"),
        ("SELECT * FROM (SELECT * FROM a UNION ALL SELECT * FROM b", "`)`", ""),
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


def test_an_empty_script_has_no_statements():
    assert read_script(" ;; -- nothing\n") == Script("<sql>", " ;; -- nothing\n")


@pytest.mark.parametrize(
    "text", ["SELECT * FROM a JOIN b WITHIN {}", "CREATE STREAM s (t INT, WATERMARK FOR t AS t - {})"]
)
def test_a_number_beyond_bigint_is_refused(text: str):
    read_script(text.format(2**63 - 1))
    with pytest.raises(WatersmeetError) as error:
        read_script(text.format("9" * 5000))
    assert error.value.getMessageParameters()["expected"] == "a number that BIGINT can hold"


HAZELCAST = [
    """
    CREATE STREAM lhs (`order_time` BIGINT, `item` BIGINT, WATERMARK FOR `order_time` AS `order_time` - 1000000);
    CREATE STREAM rhs (`delivery_time` BIGINT, `address` STRING,
                       WATERMARK FOR `delivery_time` AS `delivery_time` - 1000000);
    SELECT STREAM lhs.`order_time`, lhs.`item`, rhs.`address`
    FROM lhs JOIN rhs
      ON rhs.`delivery_time` >= lhs.`order_time` - 0
     AND lhs.`order_time` >= rhs.`delivery_time` - 60;
    """,
    """
    CREATE STREAM lhs (`l` BIGINT, `field` BIGINT, WATERMARK FOR `l` AS `l` - 1000000);
    CREATE STREAM rhs (`r` BIGINT, WATERMARK FOR `r` AS `r` - 1000000);
    SELECT STREAM lhs.`l`, lhs.`field`, rhs.`r`
    FROM lhs LEFT JOIN rhs
      ON lhs.`l` >= rhs.`r` - 1
     AND rhs.`r` >= lhs.`l` - 1
     AND lhs.`field` > 10;
    """,
    """
    CREATE STREAM lhs (`o` BIGINT, `d` BIGINT, WATERMARK FOR `o` AS `o` - 1000000, WATERMARK FOR `d` AS `d` - 1000000);
    CREATE STREAM rhs (`r` BIGINT, WATERMARK FOR `r` AS `r` - 1000000);
    SELECT STREAM lhs.`o`, lhs.`d`, rhs.`r` FROM lhs FULL JOIN rhs ON rhs.`r` >= lhs.`d` - 1 AND lhs.`d` >= rhs.`r` - 4;
    """,
]


@pytest.mark.parametrize("text", HAZELCAST)
def test_scripts_of_the_cases_can_be_read(text: str):
    script, asked = query(text)
    assert [source.name for source in script.sources] == ["lhs", "rhs"]
    assert all(w.lag == Amount(1_000_000, is_interval=False) for s in script.sources for w in s.watermarks)
    assert isinstance(asked.relation, Join)
    assert asked.relation.on is not None
    assert all(part.op in (">=", ">") for part in asked.relation.on.args)


def test_unreadable_statements_hide_no_others():
    text = "SET a : 1;\nSELECT STREAM o.id, x.id FROM orders o JOIN elsewhere x WITHIN 1h ON o.id = x.id;"
    with pytest.raises(WatersmeetError) as caught:
        read_script(text, external_names={"Orders"})
    assert [refusal.condition for refusal in caught.value.refusals] == ["SYNTAX_ERROR", "UNKNOWN_SOURCE"]
    with pytest.raises(WatersmeetError) as caught:
        read_script(text)
    assert [refusal.condition for refusal in caught.value.refusals] == ["SYNTAX_ERROR"]


@pytest.mark.parametrize(
    "unread",
    [
        "CREATE STREAM s (id BIGNIT)", "CREATE OR REPLACE STREAM s (id BIGINT)", "CREATE TEMPORARY VIEW s AS SELECT",
        "CREATE TABLE IF NOT EXISTS s (id BIGINT)", "CREATE STREAM s WITH (kafka_topic='s')", "WITH s AS (SELECT)",
        "WITH r AS (SELECT STREAM * FROM q), s AS (SELECT STREAM r.id r.t FROM r)",
        "CREATE STREAM s (id BIGINT) USING json OPTIONS (path '/in)", "CREATE MATERIALIZED VIEW s AS SELECT 1",
    ],
)  # fmt: skip
def test_declarations_of_an_unreadable_statement_are_not_missed(unread: str):
    with pytest.raises(WatersmeetError) as caught:
        read_script(f"{unread};\nSELECT STREAM s.id FROM s;\nSELECT STREAM t.id FROM t;", external_names=())
    *others, last = caught.value.refusals
    assert (last.condition, last.parameters["source"]) == ("UNKNOWN_SOURCE", "t")
    assert others
    assert not {"UNKNOWN_SOURCE", "UNKNOWN_COLUMN"} & {refusal.condition for refusal in others}


@pytest.mark.parametrize(
    ("columns", "behind", "hint"),
    [
        ("", "WATERMARK t", "CREATE STREAM s (WATERMARK FOR t AS t - INTERVAL 5 SECONDS)"),
        ("(id BIGINT)", "WATERMARK FOR at", "CREATE STREAM s (..., WATERMARK FOR at AS at - INTERVAL 5 SECONDS)"),
    ],
)
def test_a_watermark_behind_the_options_is_refused_with_its_place(columns: str, behind: str, hint: str):
    with pytest.raises(WatersmeetError) as caught:
        read_script(f"CREATE STREAM s {columns} USING json OPTIONS (path '/in') {behind};")
    assert hint in caught.value.refusals[0].parameters["hint"]
    declared = hint.replace("...", "id BIGINT, at TIMESTAMP")
    assert read_script(f"{declared} USING json OPTIONS (path '/in'); SELECT STREAM * FROM s;")


@pytest.mark.parametrize("name", ["create", "set", "insert", "with"])
def test_the_words_that_begin_a_statement_are_names_where_none_begins(name: str):
    _, asked = query(f"SELECT STREAM {name}.id AS {name}, a.x {name} FROM a {name} JOIN b ON {name}.id = b.id")
    assert [item.name for item in asked.items if isinstance(item, Item)] == [name, name]
