"""`_key` and `_value` of records: what they stand for, the formats of keys (LN-15, LN-V19), and STORE."""

from __future__ import annotations

import re

import pytest

from watersmeet.logical.passes.sinks import key_columns
from watersmeet.logical.relation import AnalyzedView
from watersmeet.logical.words import expression_in_words
from watersmeet.operators import OPERATORS
from watersmeet.operators.interval.relation import AnalyzedIntervalJoin
from watersmeet.tools.explain.query import PlanDetails, render_query

PLAIN = """\
CREATE STREAM own (_key STRING, n BIGINT, m BIGINT);
CREATE STREAM named (id BIGINT, n BIGINT) USING parquet OPTIONS (path 'x', key 'id');
CREATE TABLE t (id BIGINT, v STRING, PRIMARY KEY (id));
CREATE TABLE two (a BIGINT, b STRING, v STRING, PRIMARY KEY (a, b));
"""
INSERTED = """
CREATE SINK files USING parquet OPTIONS (path 'x');
CREATE SINK topic USING kafka OPTIONS (topic 'x', 'kafka.bootstrap.servers' 'y', value.format 'json');
"""


def record(name: str, key_format: str | None) -> str:
    key = "" if key_format is None else f", key.format '{key_format}'"
    return (
        f"CREATE STREAM {name} ({name}_n BIGINT, t BIGINT, WATERMARK FOR t AS t - 0) "
        f"USING kafka OPTIONS (subscribe '{name}', value.format 'json'{key});\n"
    )


def texts(parts) -> list[str]:
    return [expression_in_words(part) for part in parts]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT STREAM _key, own._value.n FROM own", {"_key": "own._key", "n": "own.n"}),
        ("SELECT STREAM _value FROM own", {"_value": "named_struct('n', own.n, 'm', own.m)"}),
        ("SELECT STREAM named._key FROM named", {"_key": "named.id"}),
        ("SELECT TABLE t._key, t._value FROM t", {"_key": "t.id", "_value": "named_struct('v', t.v)"}),
        ("SELECT TABLE _key, _value.v FROM two", {"_key": "named_struct('a', two.a, 'b', two.b)", "v": "two.v"}),
    ],
)
def test_facet_stands_for_its_columns(analyze_sql, query, expected):
    outputs = analyze_sql(f"{PLAIN} {query};").outputs
    assert {output.name: expression_in_words(output.expr) for output in outputs} == expected


def test_a_stream_without_a_key_has_none(refusals_of):
    [refusal] = refusals_of("CREATE STREAM s (id BIGINT); SELECT STREAM _key FROM s;")
    assert refusal.condition == "UNKNOWN_COLUMN"


@pytest.mark.parametrize(
    ("key_format", "type_"),
    [(None, "STRING"), ("string", "STRING"), ("int", "INT"), ("LONG", "BIGINT"), ("double", "DOUBLE"),
     ("bytes", "BINARY")],
)  # fmt: skip
def test_the_key_of_a_record_is_a_column_that_star_leaves_out(analyze_sql, key_format, type_):
    query = analyze_sql(f"{record('a', key_format)} SELECT STREAM *, _key AS k FROM a;")
    assert [output.name for output in query.outputs] == ["a_n", "t", "k"]
    field = query.relation.source.field("_key")
    assert (field.type, field.hidden) == (type_, True)


def test_declared_keys_go_before_that_of_the_record(analyze_sql):
    options = "USING kafka OPTIONS (subscribe 'a', value.format 'json')"
    query = analyze_sql(f"CREATE TABLE a (id BIGINT, v STRING, PRIMARY KEY (id)) {options}; SELECT TABLE _key FROM a;")
    assert texts([query.outputs[0].expr]) == ["a.id"]


@pytest.mark.parametrize("on", ["", "ON a._key = b._key", "ON b._key = a._key AND a.a_n < b.b_n"])
@pytest.mark.parametrize(
    ("left", "right", "accepted"),
    [
        ("int", "int", True),
        (None, "string", True),
        ("int", "long", False),
        ("int", "double", False),
        (None, "int", False),
    ],
)
def test_keys_of_different_formats_are_not_compared(analyze_sql, refusals_of, left, right, accepted, on):
    sql = f"{record('a', left)}{record('b', right)} SELECT STREAM a_n, b_n FROM a JOIN b WITHIN 5 {on};"
    if accepted:
        assert isinstance(analyze_sql(sql).relation, AnalyzedIntervalJoin)
        return
    [refusal] = refusals_of(sql)
    assert refusal.condition == "KEY_FORMATS_DIFFER"
    assert re.search(r"`[^`]*STORE KEY AS \w+`", refusal.hint)


def test_a_cast_compares_what_formats_do_not(analyze_sql):
    on = "CAST(a._key AS BIGINT) = b._key"
    sql = f"{record('a', 'int')}{record('b', 'long')} SELECT STREAM a_n FROM a JOIN b WITHIN 5 ON {on};"
    assert texts(analyze_sql(sql).key) == ["CAST(a._key AS BIGINT)"]


def test_a_view_has_the_format_of_the_key_that_it_passes_on(refusals_of):
    view = "CREATE VIEW v AS SELECT STREAM b_n + 1 AS m, t FROM b;"
    sql = f"{record('a', 'int')}{record('b', 'long')}{view} SELECT STREAM a_n FROM a JOIN v WITHIN 5;"
    assert [refusal.condition for refusal in refusals_of(sql)] == ["KEY_FORMATS_DIFFER"]


def test_a_view_stores_its_key_in_another_format(analyze_sql):
    view = "CREATE VIEW v AS SELECT STREAM * FROM b STORE KEY AS int;"
    query = analyze_sql(f"{record('a', 'int')}{record('b', 'long')}{view} SELECT STREAM a_n FROM a JOIN v WITHIN 5;")
    stored = query.relation.right
    assert isinstance(stored, AnalyzedView)
    assert texts(stored.query.key) == ["CAST(b._key AS INT)"]
    assert texts(query.key) == ["a._key"]


@pytest.mark.parametrize(
    ("store", "query", "key"),
    [
        ("KEY AS string", "SELECT STREAM n FROM named", "CAST(named.id AS STRING)"),
        ("KEY AS bytes VALUE AS json", "SELECT STREAM n AS _key FROM own", "CAST(own.n AS BINARY)"),
        ("KEY AS json", "SELECT STREAM n FROM own GROUP BY n, m", "to_json(named_struct('n', own.n, 'm', own.m))"),
        ("VALUE AS json", "SELECT STREAM n FROM named", "named.id"),
    ],
)
def test_key_of_a_result_is_stored(analyze_sql, store, query, key):
    query = analyze_sql(f"{PLAIN}{INSERTED} INSERT INTO files {query} STORE {store};")
    assert texts(query.key) == [key]
    assert key in render_query(query, PlanDetails(OPERATORS))
    assert [expression_in_words(o.expr) for o in query.outputs if o.name == "_key"] in ([], [key])


@pytest.mark.parametrize("type_", ["TIMESTAMP", "TIMESTAMP_NTZ"])
def test_key_stored_as_json_warns_of_digits_that_it_loses(analyze_sql, type_):
    def warnings_of(by):
        source = f"CREATE STREAM s (at {type_}, n INT);"
        view = f"CREATE VIEW v AS SELECT STREAM n FROM s GROUP BY {by} STORE KEY AS json;"
        warnings = analyze_sql(f"{source} {view} SELECT STREAM n FROM v;").warnings
        return [w.message for w in warnings if "less than a millisecond" in w.message]

    [message] = warnings_of("at, n")
    [hint] = re.findall("GROUP BY `(.+)`", message)
    assert not warnings_of(f"{hint}, n")
    assert not warnings_of("n, n + 1")


@pytest.mark.parametrize(
    ("sink", "store", "query", "what"),
    [
        ("files", "KEY AS avro", "SELECT STREAM n FROM own", "STORE KEY AS avro"),
        ("files", "VALUE AS avro", "SELECT STREAM n FROM own", "STORE VALUE AS avro"),
        ("files", "KEY AS int", "SELECT STREAM n FROM own GROUP BY n, m", "of a key of 2 columns"),
        ("files", "KEY AS int", "SELECT STREAM a.v FROM keyless AS a", "of a result without a key"),
        ("topic", "KEY AS long", "SELECT STREAM n FROM own", "STORE KEY AS long into Kafka"),
    ],
)
def test_formats_that_are_refused(refusals_of, sink, store, query, what):
    keyless = "CREATE STREAM keyless (v STRING);"
    [refusal] = refusals_of(f"{PLAIN}{INSERTED}{keyless} INSERT INTO {sink} {query} STORE {store};")
    assert refusal.condition == "UNSUPPORTED_STATEMENT"
    assert what in refusal.message


@pytest.mark.parametrize(
    ("store", "query", "key"),
    [
        ("string", "SELECT STREAM id, n FROM named", "CAST(named.id AS STRING)"),
        ("string", "SELECT STREAM n FROM named", "CAST(named.id AS STRING)"),
        ("json", "SELECT STREAM n, m FROM own GROUP BY n, m", "to_json(named_struct('n', own.n, 'm', own.m))"),
        ("bytes", "SELECT STREAM n AS _key, m FROM own", "CAST(own.n AS BINARY)"),
    ],
)
def test_the_stored_key_of_a_record_is_written_whatever_is_shown(analyze_sql, store, query, key):
    found = analyze_sql(f"{PLAIN}{INSERTED} INSERT INTO topic {query} STORE KEY AS {store};")
    assert [expression_in_words(output.expr) for output in found.outputs if output.name == "_key"] == [key]
    assert key_columns(found) == ("_key",)


@pytest.mark.parametrize(
    ("sink", "query", "what"),
    [
        ("bare", "SELECT STREAM id, n FROM named STORE KEY AS string", "where rows have their own columns"),
        ("upserts", "SELECT TABLE id, count(*) AS c FROM named GROUP BY id STORE KEY AS json", "of a table into Kafka"),
    ],
)
def test_a_key_that_cannot_be_written_is_refused(refusals_of, sink, query, what):
    options = "'kafka.bootstrap.servers' 'y'"
    sinks = f"CREATE SINK bare USING kafka OPTIONS (topic 'x', {options});"
    sinks += f"CREATE SINK upserts USING kafka OPTIONS (topic 'z', {options}, changes 'upsert');"
    [refusal] = refusals_of(f"{PLAIN}{sinks} INSERT INTO {sink} {query};")
    assert refusal.condition == "UNSUPPORTED_STATEMENT" and what in refusal.message
