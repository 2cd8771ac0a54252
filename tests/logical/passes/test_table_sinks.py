"""Tables into sinks: what is refused before anything starts, and the key by which rows are replaced."""

from __future__ import annotations

import pytest
from tests.logical.conftest import Analyzed, Refused

from watersmeet.logical.passes.sinks import result_columns
from watersmeet.queries import analyze, read_script

TABLES = """
CREATE TABLE c (id INT, name STRING, PRIMARY KEY (id));
CREATE TABLE o (number INT, line INT, customer INT, PRIMARY KEY (number, line));
CREATE TABLE bag (customer INT, note STRING);
CREATE STREAM s (id INT, note STRING);
CREATE SINK plain USING parquet OPTIONS (path '/out/plain');
CREATE SINK shown USING console;
CREATE SINK log USING json OPTIONS (path '/out/log', changes 'log');
CREATE SINK snapshot USING orc OPTIONS (path '/out/snapshot', changes 'SNAPSHOT');
CREATE SINK pg USING postgres OPTIONS (host '/run', table 't');
CREATE SINK jdbc USING jdbc OPTIONS (url 'jdbc:postgresql://db/shop', dbtable 't');
CREATE SINK by_name USING postgres OPTIONS (table 't', key 'name');
CREATE SINK topic USING kafka OPTIONS (topic 't');
CREATE SINK topic_by_key USING kafka OPTIONS (topic 't', changes 'upsert');
CREATE SINK other USING delta OPTIONS (path '/out/delta');
CREATE SINK wrong USING json OPTIONS (path '/out/wrong', changes 'merge');
CREATE SINK upserted_files USING parquet OPTIONS (path '/out/up', changes 'upsert');
CREATE SINK kept_topic USING kafka OPTIONS (topic 't', changes 'snapshot');
CREATE SINK nowhere USING parquet OPTIONS (changes 'snapshot');
CREATE SINK keyed_log USING kafka OPTIONS (topic 't', changes 'log', key 'name');
CREATE SINK pg_log USING postgres OPTIONS (table 't', changes 'log');
"""
JOINED = "SELECT TABLE o.number, o.line, c.name FROM o JOIN c ON o.customer = c.id"


@pytest.mark.parametrize("sink", ["plain", "topic", "other"])
def test_a_table_into_a_sink_that_only_takes_rows_in_is_refused_with_the_ways_out(
    refusals_of: Refused, sink: str
) -> None:
    [refusal] = refusals_of(f"{TABLES} INSERT INTO {sink} {JOINED};")
    assert refusal.condition == "APPEND_ONLY_SINK"
    assert "`changes 'log'`" in refusal.hint
    assert ("snapshot" in refusal.hint) == (sink == "plain")
    assert refusal.place is not None and refusal.place.text[refusal.place.start : refusal.place.end] == sink


@pytest.mark.parametrize("sink", ["shown", "log", "snapshot", "pg", "jdbc", "topic_by_key"])
def test_a_table_goes_where_changes_are_understood(analyze_sql: Analyzed, sink: str) -> None:
    assert analyze_sql(f"{TABLES} INSERT INTO {sink} {JOINED};").into == sink


@pytest.mark.parametrize("query", ["SELECT TABLE id, count(*) AS n FROM s GROUP BY id", "SELECT TABLE * FROM c"])
def test_groups_and_whole_tables_are_tables_too(refusals_of: Refused, query: str) -> None:
    assert [r.condition for r in refusals_of(f"{TABLES} INSERT INTO plain {query};")] == ["APPEND_ONLY_SINK"]


@pytest.mark.parametrize("sink", ["plain", "pg", "topic", "shown"])
def test_a_stream_goes_anywhere(analyze_sql: Analyzed, sink: str) -> None:
    assert analyze_sql(f"{TABLES} INSERT INTO {sink} SELECT STREAM * FROM s;").into == sink


def test_a_stream_has_no_changes(refusals_of: Refused) -> None:
    assert [r.condition for r in refusals_of(f"{TABLES} INSERT INTO log SELECT STREAM * FROM s;")] == ["WRONG_OUTPUT"]


@pytest.mark.parametrize("sink", ["wrong", "upserted_files", "kept_topic", "nowhere", "pg_log"])
def test_formats_refuse_changes_that_they_cannot_write(refusals_of: Refused, sink: str) -> None:
    [refusal] = refusals_of(f"{TABLES} INSERT INTO {sink} {JOINED};")
    assert refusal.condition == "WRONG_OPTION" and "changes" in refusal.label


@pytest.mark.parametrize("sink", ["by_name", "keyed_log"])
def test_a_key_must_be_among_the_columns(refusals_of: Refused, sink: str) -> None:
    [refusal] = refusals_of(f"{TABLES} INSERT INTO {sink} SELECT TABLE id FROM c;")
    assert (refusal.condition, refusal.parameters["column"]) == ("UNKNOWN_COLUMN", "name")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT TABLE name FROM c",
        "SELECT TABLE * FROM bag",
        "SELECT TABLE o.number, c.name FROM o JOIN c ON o.customer = c.id",
        "SELECT TABLE id + 1 AS id, count(*) AS n FROM s GROUP BY id",
        "SELECT TABLE c.id, bag.note FROM c JOIN bag ON c.id = bag.customer",
        "SELECT TABLE c.id, c.name, o.number FROM c FULL JOIN o ON o.customer = c.id",
    ],
)
def test_an_upsert_without_a_key_is_refused(refusals_of: Refused, query: str) -> None:
    assert [r.condition for r in refusals_of(f"{TABLES} INSERT INTO pg {query};")] == ["SINK_WITHOUT_KEY"]


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("SELECT TABLE name, id AS number FROM c", ("number",)),
        (JOINED, ("number", "line")),
        ("SELECT TABLE c.name, o.* FROM c RIGHT JOIN o ON o.customer = c.id", ("number", "line")),
        ("SELECT TABLE * FROM c FULL JOIN o ON o.customer = c.id", ("id", "number", "line")),
        ("SELECT TABLE * FROM c JOIN o ON o.customer > c.id", ("id", "number", "line")),
        ("SELECT TABLE name, id FROM c LEFT ANTI JOIN bag ON bag.customer = c.id", ("id",)),
        ("SELECT TABLE count(*) AS n, id AS i, note FROM s GROUP BY id, note", ("i", "note")),
        ("SELECT TABLE v.x, v.name FROM (SELECT TABLE id AS x, name FROM c) AS v", ("x",)),
        ("SELECT TABLE s.id AS _key, note FROM s", ("_key",)),
    ],
)
def test_rows_are_distinguished_by_the_keys_that_they_come_from(
    analyze_sql: Analyzed, query: str, key: tuple[str, ...]
) -> None:
    assert result_columns(analyze_sql(f"{TABLES} INSERT INTO pg {query};")) == key


def test_one_table_of_a_database_is_written_by_one_query(refusals_of: Refused, analyze_sql: Analyzed) -> None:
    text = """CREATE STREAM s (id INT);
    CREATE SINK a USING postgres OPTIONS (host 'db', table 't');
    CREATE SINK b USING postgres OPTIONS (host 'db', table 'T');
    INSERT INTO a SELECT STREAM * FROM s; INSERT INTO b SELECT STREAM * FROM s;"""
    assert [r.condition for r in refusals_of(text)] == ["DUPLICATE_TARGET"]
    [refusal] = refusals_of(text)
    assert "`b` and `a` write to one place, table t" in refusal.message, refusal.message


KEYLESS = """
CREATE STREAM o (id BIGINT, item STRING, at TIMESTAMP, WATERMARK FOR at AS at - 5m);
CREATE STREAM p (order_id BIGINT, amount DOUBLE, at TIMESTAMP, WATERMARK FOR at AS at - 5m);
CREATE SINK paid USING kafka OPTIONS (kafka.bootstrap.servers 'x:1', topic 'paid', value.format 'json');
CREATE SINK plain USING kafka OPTIONS (kafka.bootstrap.servers 'x:1', topic 'plain');
INSERT INTO {} SELECT STREAM {} FROM o JOIN p WITHIN 1h ON o.id = p.order_id;
"""


@pytest.mark.parametrize(
    ("sink", "select", "warned"),
    [
        ("paid", "o.item, p.amount", True),
        ("paid", "p.order_id, o.item", True),
        ("paid", "o.id, p.amount", False),
        ("paid", "o.id AS _key, p.amount", False),
        ("plain", "o.item AS value", False),
    ],
)
def test_records_without_a_key_are_said(sink: str, select: str, *, warned: bool) -> None:
    """The key of a record is that of the result, if SELECT shows it."""
    [query] = analyze(read_script(KEYLESS.format(sink, select), "paid.sql"))
    messages = [
        "the records of paid have no key, and go to any partition: SELECT does not show o.id. Add `o.id AS _key` to it."
    ]
    assert [warning.message for warning in query.warnings] == (messages if warned else [])
