"""Tables into sinks: changelogs, Postgres and Kafka, with batches that are repeated and runs that crash."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import psycopg
import pytest

from watersmeet.catalog import Sink
from watersmeet.errors import WatersmeetError
from watersmeet.formats.databases import PostgresSink
from watersmeet.queries import read_script
from watersmeet.spark.connectors.sinks import NewColumns
from watersmeet.spark.run.prepare import StartOptions
from watersmeet.spark.run.running import run_script
from watersmeet.spark.run.watching import Listeners

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from watersmeet.spark.connectors.postgres import Postgres

pytestmark = pytest.mark.spark

Change = tuple[int | None, str | None, str]
"""An id, a name, and whether the row comes or goes."""


def changes(spark: SparkSession, *rows: Change) -> DataFrame:
    return spark.createDataFrame([*rows], "id INT, name STRING, _change STRING")


def fold(batches: Sequence[Sequence[Change]]) -> Counter[tuple[int | None, str | None]]:
    """The table after batches of changes."""
    table = Counter[tuple[int | None, str | None]]()
    for id_, name, sign in (change for batch in batches for change in batch):
        table[id_, name] += 1 if sign == "+" else -1
    return +table


# Changes put together


def test_changes_of_equal_rows_add_up(spark: SparkSession) -> None:
    from watersmeet.spark.connectors.sinks import changelog_rows

    rows = [
        (1, {"a": 1}, "x", "+"), (1, {"a": 1}, "x", "-"),
        (2, {"a": 1}, "x", "+"), (2, {"a": 2}, "x", "-"),
        (3, None, "x", "-"), (3, None, "x", "-"), (3, None, "x", "+"),
        (4, None, "x", "+"), (4, None, "x", "+"),
        (5, None, "x", "-"), (5, None, "X", "+"),
    ]  # fmt: skip
    schema = "id INT, m MAP<STRING, INT>, word STRING COLLATE UTF8_LCASE, _change STRING"
    found = changelog_rows(spark.createDataFrame(rows, schema))
    assert found.columns == ["id", "m", "word", "_change"]
    assert Counter((r.id, json.dumps(r.m), r.word, r["_change"]) for r in found.collect()) == Counter({
        (2, '{"a": 1}', "x", "+"): 1, (2, '{"a": 2}', "x", "-"): 1, (3, "null", "x", "-"): 1,
        (4, "null", "x", "+"): 2, (5, "null", "x", "-"): 1, (5, "null", "X", "+"): 1,
    })  # fmt: skip


def test_a_repeated_batch_of_a_log_replaces_its_files(spark: SparkSession, tmp_path: Path) -> None:
    from watersmeet.spark.connectors import sink_connector
    from watersmeet.spark.connectors.sinks import SinkTarget

    sink = Sink("log", "parquet", {"path": str(tmp_path / "log"), "changes": "log"})
    target = SinkTarget(sink, "log", tmp_path / "checkpoint", "log")
    write = sink_connector(target).writer()
    write(changes(spark, (1, "a", "+"), (2, "b", "+"), (2, "b", "-")), 0)
    write(changes(spark, (1, "a", "-"), (1, "b", "+")), 1)
    write(changes(spark, (1, "a", "-"), (1, "b", "+")), 1)
    write(changes(spark, (7, "x", "+"), (7, "x", "-")), 2)
    found = spark.read.parquet(str(tmp_path / "log")).select("id", "name", "_change", "_batch")
    assert sorted(map(tuple, found.collect())) == [(1, "a", "+", 0), (1, "a", "-", 1), (1, "b", "+", 1)]
    assert not (tmp_path / "log" / "_batch=2").exists()


# Postgres


def table_in(address: str, key: tuple[str, ...] = ("id",), **options: str) -> Postgres:
    from watersmeet.spark.connectors.postgres import Postgres

    name = f"t{uuid4().hex}"
    return Postgres(PostgresSink(Sink("pg", "postgres", {"url": address, "table": name, **options})), "query", key)


def rows_in(one: Postgres) -> list[tuple[Any, ...]]:
    with one.connect() as connection:
        return sorted(connection.execute(f"SELECT * FROM {one.table}").fetchall(), key=repr)  # type: ignore[arg-type]


@pytest.mark.smoke
def test_rows_are_put_in_replaced_and_deleted_by_key(spark: SparkSession, postgres: str) -> None:
    one = table_in(postgres)
    batches: list[list[Change]] = [
        [(1, "a", "+"), (2, "b", "+"), (None, "n", "+")],
        [(1, "a", "-"), (1, "A", "+"), (2, "b", "-"), (3, None, "+")],
        [(None, "n", "-"), (3, None, "-"), (3, "c", "+"), (4, "d", "+"), (4, "d", "-")],
        [],
    ]
    for number, batch in enumerate(batches):
        one.write(changes(spark, *batch), number, "run")
        assert rows_in(one) == sorted(fold(batches[: number + 1]), key=repr)


def test_a_repeated_batch_is_written_once(spark: SparkSession, postgres: str) -> None:
    one, stream = table_in(postgres), table_in(postgres, ())
    rows = spark.createDataFrame([(1, "a"), (1, "a")], "id INT, name STRING")
    for _ in range(2):
        one.write(changes(spark, (1, "a", "+")), 0, "run")
        stream.write(rows, 0, "run")
    one.write(changes(spark, (1, "a", "-")), 1, "run")
    one.write(changes(spark, (1, "a", "+")), 0, "run")
    stream.write(rows, 1, "run")
    assert rows_in(one) == []
    assert rows_in(stream) == [(1, "a")] * 4


def test_a_crash_before_the_commit_leaves_nothing_behind(
    spark: SparkSession, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = table_in(postgres)
    one.write(changes(spark, (1, "a", "+"), (2, "b", "+")), 0, "run")
    batch = changes(spark, (1, "a", "-"), (2, "b", "-"), (2, "B", "+"), (3, "c", "+"))

    def crash(connection: psycopg.Connection[Any]) -> None:
        # All statements of the batch have run; the server loses the client before it hears COMMIT.
        connection.close()
        raise ConnectionError("the machine went down")

    with monkeypatch.context() as patched, pytest.raises(ConnectionError):
        patched.setattr(psycopg.Connection, "commit", crash)
        one.write(batch, 1, "run")
    assert rows_in(one) == [(1, "a"), (2, "b")]
    one.write(batch, 1, "run")
    assert rows_in(one) == [(2, "B"), (3, "c")]


def test_every_type_arrives(spark: SparkSession, postgres: str) -> None:
    one = table_in(postgres)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = spark.sql(
            """SELECT 1 AS id, true AS b, 7Y AS t, 8S AS s, 9L AS l, CAST(1.5 AS FLOAT) AS f, double('NaN') AS d,
            1.20BD AS n, 'tab\\t\\\\ line\\n' AS text, X'00FF5C' AS raw, DATE'2024-02-29' AS day,
            TIMESTAMP'2024-07-01 12:00:00.123456' AS at, TIMESTAMP_NTZ'2024-07-01 12:00:00.5' AS ntz,
            array(1, NULL) AS a, map('k', 2) AS m, named_struct('x', 'y') AS st, CAST(NULL AS STRING) AS nothing,
            INTERVAL '1' DAY AS i, 'Odd' AS `Odd "name"`, '+' AS _change"""
        )
        one.write(frame, 0, "run")
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    [row] = rows_in(one)
    offset = timezone(timedelta(hours=-4))
    assert row[:6] == (1, True, 7, 8, 9, 1.5) and row[6] != row[6]
    assert row[7:11] == (Decimal("1.20"), "tab\t\\ line\n", b"\x00\xff\x5c", date(2024, 2, 29))
    assert row[11] == datetime(2024, 7, 1, 12, 0, 0, 123456, offset)
    assert row[12:17] == (datetime(2024, 7, 1, 12, 0, 0, 500000), [1, None], {"k": 2}, {"x": "y"}, None)
    assert row[18] == "Odd"


@pytest.mark.parametrize("zone", ["Asia/Shanghai", "America/New_York"])
def test_times_arrive_as_the_instants_they_are(spark: SparkSession, postgres: str, zone: str) -> None:
    # Offsets with seconds; both hours that clocks show twice; years that have no four digits.
    texts = ["1900-01-01 00:00:00Z", "1883-11-18 16:59:59.000001Z", "2024-11-03 05:30:00Z", "2024-11-03 06:30:00Z"]
    texts += ["1970-01-01 00:00:00Z", "+12024-02-29 23:59:59.999999Z", "0000-12-31 12:00:00Z", "-0043-03-15 12:00:00Z"]
    values = ", ".join(f"({number}, TIMESTAMP'{text}')" for number, text in enumerate(texts))
    one = table_in(postgres)
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        rows = spark.sql(
            f"""SELECT id, at, CAST(at AS DATE) AS day, TIMESTAMP_NTZ'-0043-03-15 12:00:00' AS ntz,
            named_struct('at', at) AS nested, '+' AS _change FROM VALUES {values} AS v(id, at)"""
        )
        micros = [row.m for row in rows.selectExpr("unix_micros(at) AS m", "id").orderBy("id").collect()]
        days = [row.d for row in rows.selectExpr("unix_date(day) AS d", "id").orderBy("id").collect()]
        one.write(rows, 0, "run")
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    exact = "(extract(epoch FROM at) * 1000000)::bigint, day - DATE '1970-01-01', ntz::text"
    with one.connect() as connection:
        query = f"SELECT {exact}, nested->>'at' FROM {one.table} ORDER BY id"
        found = cast("Any", connection).execute(query).fetchall()
    assert [(row[0], row[1]) for row in found] == list(zip(micros, days, strict=True))
    assert {row[2] for row in found} == {"0044-03-15 12:00:00 BC"}
    assert found[1][3] == "1883-11-18T16:59:59.000001Z"


def test_a_time_that_postgres_does_not_have_stops_the_query_with_the_time(spark: SparkSession, postgres: str) -> None:
    rows = spark.sql("SELECT 1 AS id, timestamp_micros(-9223372036854775808) AS at, '+' AS _change")
    with pytest.raises(psycopg.errors.DatetimeFieldOverflow, match=r"290309-12-21 19:59:05.224192\+00 BC"):
        table_in(postgres).write(rows, 0, "run")


def test_a_key_that_is_a_time_has_one_text_per_instant(spark: SparkSession) -> None:
    from watersmeet.spark.connectors.records import encode_records

    rows = "SELECT TIMESTAMP'2024-11-03 05:30:00Z' AS at UNION ALL SELECT TIMESTAMP'2024-11-03 06:30:00Z'"
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        found = sorted(map(tuple, encode_records(spark.sql(rows), ["at"]).collect()))
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    keys, values = zip(*found, strict=True)
    assert keys == ("2024-11-03 05:30:00Z", "2024-11-03 06:30:00Z")
    assert values == ('{"at":"2024-11-03T05:30:00.000Z"}', '{"at":"2024-11-03T06:30:00.000Z"}')


def test_a_key_of_several_columns_has_all_digits_of_its_times(spark: SparkSession) -> None:
    from watersmeet.spark.connectors.records import key_in

    times = ("00:00:00.000001", "00:00:00.000002", "00:00:00.001", "00:00:00")
    rows = " UNION ALL ".join(f"SELECT TIMESTAMP_NTZ'2024-01-01 {time}' AS t, 1 AS n" for time in times)
    frame = spark.sql(f"SELECT *, CAST(t AS TIMESTAMP) AS at, struct(array(t, NULL) AS ts) AS inside FROM ({rows})")
    shown = ["00:00:00.000001", "00:00:00.000002", "00:00:00.001", "00:00:00.000"]
    for names, format_, text in (
        (("at", "n"), "string", '{"at":"2024-01-01T%sZ","n":1}'),
        (("t",), "json", '{"t":"2024-01-01T%s"}'),
        (("n", "inside"), "string", '{"n":1,"inside":{"ts":["2024-01-01T%s",null]}}'),
    ):
        keys = [row[0] for row in frame.select(key_in(frame, names, format_)).collect()]
        assert keys == [text % time for time in shown]


def test_an_existing_table_is_used_and_without_one_it_may_be_refused(spark: SparkSession, postgres: str) -> None:
    one = table_in(postgres, create="false")
    with pytest.raises(WatersmeetError, match="WRONG_OPTION"):
        one.check(None)
    with one.connect() as connection:
        connection.execute(f"CREATE TABLE {one.table} (name varchar(5), id bigint PRIMARY KEY)")  # type: ignore[arg-type]
    one.check(None)
    one.write(changes(spark, (1, "a", "+")), 0, "run")
    assert rows_in(one) == [("a", 1)]


def test_two_rows_with_one_key_are_refused(spark: SparkSession, postgres: str) -> None:
    one = table_in(postgres)
    with pytest.raises(WatersmeetError) as caught:
        one.write(changes(spark, (1, "a", "+"), (1, "b", "+")), 0, "run")
    assert (caught.value.getCondition(), caught.value.getMessageParameters()["key"]) == ("KEY_NOT_UNIQUE", "id = 1")


@pytest.mark.parametrize(
    ("columns", "key", "first", "equal"),
    [
        ("id int, name char(5) UNIQUE", "name", (1, "x"), (2, "x ")),
        ("id real UNIQUE, name text", "id", (2**24, "a"), (2**24 + 1, "b")),
    ],
)
def test_keys_are_compared_as_the_table_has_them(
    spark: SparkSession, postgres: str, columns: str, key: str, first: tuple[int, str], equal: tuple[int, str]
) -> None:
    one = table_in(postgres, (key,))
    with one.connect() as connection:
        connection.execute(f"CREATE TABLE {one.table} ({columns})")  # type: ignore[arg-type]
    one.write(changes(spark, (*first, "+")), 0, "run")
    with pytest.raises(WatersmeetError, match="KEY_NOT_UNIQUE"):
        one.write(changes(spark, (*equal, "+")), 1, "run")
    one.write(changes(spark, (*first, "-"), (*equal, "+")), 1, "run")
    assert [name.strip() for _, name in rows_in(one)] == [equal[1].strip()]
    one.write(changes(spark, (*equal, "-")), 2, "run")
    assert rows_in(one) == []


def test_a_key_that_does_not_fit_the_table_stops_the_query(spark: SparkSession, postgres: str) -> None:
    one = table_in(postgres, ("name",))
    with one.connect() as connection:
        connection.execute(f"CREATE TABLE {one.table} (id int, name varchar(5) UNIQUE)")  # type: ignore[arg-type]
    with pytest.raises(Exception, match="too long for type"):
        one.write(changes(spark, (2, "longer", "+")), 0, "run")


def test_another_checkpoint_does_not_write_into_the_same_table(spark: SparkSession, postgres: str) -> None:
    one = table_in(postgres)
    one.write(changes(spark, (1, "a", "+")), 0, "first")
    with pytest.raises(WatersmeetError) as caught:
        one.write(changes(spark, (1, "b", "+")), 0, "second")
    assert caught.value.getCondition() == "SINK_OF_ANOTHER_CHECKPOINT"
    forget = caught.value.refusals[0].hint.split("`")[1]
    with one.connect() as connection:
        connection.execute(forget)  # type: ignore[arg-type]
    one.write(changes(spark, (1, "b", "+")), 0, "second")
    assert rows_in(one) == [(1, "b")]


def test_a_database_that_cannot_be_reached_is_refused_without_its_password(tmp_path: Path) -> None:
    from watersmeet.spark.connectors.postgres import Postgres

    options = {"host": str(tmp_path), "user": "me", "password": "secret", "dbname": "shop", "table": "t"}
    for changed, condition in (({}, "DATABASE_UNREACHABLE"), ({"hots": "x"}, "WRONG_OPTION")):
        with pytest.raises(WatersmeetError) as caught:
            Postgres(PostgresSink(Sink("pg", "postgres", {**options, **changed})), "query").check(None)
        assert caught.value.getCondition() == condition and "secret" not in str(caught.value)


def test_postgres_without_its_driver_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from watersmeet.formats import databases
    from watersmeet.spark.connectors.sinks import SinkTarget, check_target

    monkeypatch.setattr(databases, "find_spec", lambda name: None)
    target = SinkTarget(Sink("pg", "postgres", {"table": "t"}), "query", tmp_path)
    with pytest.raises(WatersmeetError, match="POSTGRES_NOT_INSTALLED"):
        check_target(target, None, spark)


# Kafka


def test_a_table_becomes_records_by_key_and_deletes_have_no_value(spark: SparkSession) -> None:
    from watersmeet.spark.connectors.sinks import SinkTarget, upsert_records

    def to(*key: str) -> SinkTarget:
        return SinkTarget(Sink("topic", "kafka", {}), "query", Path(), "upsert", key)

    rows = changes(spark, (1, "a", "-"), (1, "b", "+"), (2, "c", "-"), (3, None, "+"), (4, "d", "+"), (4, "d", "-"))
    found = {row.key: row.value for row in upsert_records(to("id"), rows).collect()}
    assert found == {"1": '{"id":1,"name":"b"}', "2": None, "3": '{"id":3,"name":null}'}
    both = {row.key for row in upsert_records(to("id", "name"), rows).collect()}
    assert '{"id":2,"name":"c"}' in both
    with pytest.raises(Exception, match="KEY_NOT_UNIQUE"):
        upsert_records(to("id"), changes(spark, (1, "a", "+"), (1, "b", "+"))).collect()


def test_rows_become_records_with_their_key(spark: SparkSession, tmp_path: Path) -> None:
    from watersmeet.spark.connectors.sinks import SinkTarget, encode_rows

    rows = spark.createDataFrame([(1, "a", 2.5)], "_key INT, name STRING, x DOUBLE")
    topic = Sink("topic", "kafka", {"topic": "t", "value.format": "json"})
    target = SinkTarget(topic, "query", tmp_path)
    assert [*map(tuple, encode_rows(target, rows).collect())] == [("1", '{"name":"a","x":2.5}')]
    assert target.options == {"topic": "t"}
    [record] = encode_rows(target, rows.drop("_key")).collect()
    assert record.key is None
    [record] = encode_rows(SinkTarget(topic, "query", tmp_path, key=("name", "x")), rows).collect()
    assert tuple(record) == ('{"name":"a","x":2.5}', '{"name":"a","x":2.5}')
    plain = SinkTarget(Sink("topic", "kafka", {"topic": "t"}), "query", tmp_path)
    assert encode_rows(plain, rows).columns == rows.columns


# Whole runs

SCRIPT = """
CREATE TABLE customers (id INT, name STRING, PRIMARY KEY (id))
    USING json OPTIONS (path '{folder}/customers', maxFilesPerTrigger '1');
CREATE TABLE orders (number INT, customer INT, amount INT, PRIMARY KEY (number))
    USING json OPTIONS (path '{folder}/orders', maxFilesPerTrigger '1');
CREATE SINK joined USING postgres OPTIONS (dsn '{postgres}', table '{table}');
INSERT INTO joined SELECT TABLE o.number, c.name, o.amount FROM orders o LEFT JOIN customers c ON o.customer = c.id;
"""


def arrive(folder: Path, number: int, **tables: Sequence[dict[str, Any]]) -> None:
    for name, rows in tables.items():
        (folder / name).mkdir(exist_ok=True)
        path = folder / name / f"{number}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # The file source takes files in the order of their times.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def order(number: int, customer: int, amount: int, **more: str) -> dict[str, Any]:
    return {"number": number, "customer": customer, "amount": amount, **more}


def test_tables_follow_their_sources_through_crashes_and_restarts(
    spark: SparkSession, postgres: str, tmp_path: Path
) -> None:
    table = f"t{uuid4().hex}"
    script = read_script(SCRIPT.format(folder=tmp_path, postgres=postgres, table=table))

    def run() -> list[tuple[Any, ...]]:
        run_script(script, spark=spark, storage=tmp_path / "storage", trigger="available_now")
        with psycopg.connect(postgres) as connection:
            return connection.execute(f"SELECT * FROM {table} ORDER BY number").fetchall()  # type: ignore[arg-type]

    arrive(tmp_path, 1, orders=[order(1, 7, 10), order(2, 8, 20)], customers=[{"id": 7, "name": "John"}])
    arrive(tmp_path, 2, orders=[order(1, 7, 11), order(3, 8, 5)], customers=[{"id": 8, "name": "Rita"}])
    expected = [(1, "John", 11), (2, "Rita", 20), (3, "Rita", 5)]
    assert run() == expected
    # The last batch was written, but Spark had not yet heard of that.
    commits = tmp_path / "storage" / "checkpoints" / "joined" / "commits"
    last = max((p for p in commits.iterdir() if p.name.isdigit()), key=lambda path: int(path.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    gone = [order(2, 0, 0, _change="-"), order(3, 8, 6)]
    arrive(tmp_path, 3, orders=gone, customers=[{"id": 7, "name": "Joe"}])
    assert run() == [(1, "Joe", 11), (3, "Rita", 6)]
    assert last.exists(), "the batch was repeated"


EVOLVED = """
CREATE STREAM orders (number INT, customer INT, amount INT) USING json OPTIONS (path '{folder}/orders');
CREATE SINK out USING {sink};
INSERT INTO out SELECT STREAM {columns} FROM orders;
"""


def run_evolved(spark: SparkSession, folder: Path, sink: str, columns: str, new: NewColumns = "refuse") -> list[str]:
    """What the run of a query that has changed says, of which nothing but its columns did."""
    script = read_script(EVOLVED.format(folder=folder, sink=sink, columns=columns))
    news = list[str]()
    options, listeners = StartOptions(accepting="accept", new_columns=new), Listeners(on_news=news.append)
    storage = folder / "storage"
    run_script(script, spark=spark, storage=storage, trigger="available_now", options=options, listeners=listeners)
    return news


def test_a_column_that_select_gains_is_added_to_the_table_or_named(
    spark: SparkSession, postgres: str, tmp_path: Path
) -> None:
    table = f"t{uuid4().hex}"
    sink = f"postgres OPTIONS (url '{postgres}', table '{table}')"

    def run(columns: str, new: NewColumns = "refuse") -> list[str]:
        return run_evolved(spark, tmp_path, sink, columns, new)

    def query(text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(postgres) as connection:
            cursor = connection.execute(text)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    stored = f"SELECT * FROM {table} ORDER BY number"
    arrive(tmp_path, 1, orders=[order(1, 7, 10)])
    run("number, amount")
    assert query(stored) == [(1, 10)]

    arrive(tmp_path, 2, orders=[order(2, 8, 20)])
    wider = "number, amount, customer, CAST(amount AS DECIMAL(9,2)) AS `Exact amount`"
    with pytest.raises(WatersmeetError, match="SINK_UNFIT") as caught:
        run(wider)
    refusal = caught.value.refusals[0]
    assert "has no column `customer` and no column `Exact amount`" in refusal.message
    assert query(stored) == [(1, 10)], "nothing was written or altered"

    assert run(wider, "add") == ["out: added `customer`, `Exact amount` to the table of out."]
    assert query(stored) == [(1, 10, None, None), (2, 20, 8, Decimal("20.00"))]
    assert run(wider, "add") == [], "they are there"

    # The statement of the refusal does the same.
    query(f'ALTER TABLE {table} DROP COLUMN customer, DROP COLUMN "Exact amount"')
    statement = re.search(r"`(ALTER TABLE .*?)`, or let `watersmeet run --evolve`", refusal.hint or "")
    assert statement is not None
    query(statement[1])
    arrive(tmp_path, 3, orders=[order(3, 9, 30)])
    run(wider)
    assert query(stored)[2] == (3, 30, 9, Decimal("30.00"))

    # Only added: a column that SELECT no longer has stays, and another type is not a new column.
    arrive(tmp_path, 4, orders=[order(4, 7, 5)])
    assert run("number, amount", "add") == []
    assert query(stored)[3] == (4, 5, None, None)
    with pytest.raises(WatersmeetError, match="SINK_UNFIT"):
        run("number, DATE '2026-03-02' AS amount", "add")


def test_a_key_that_a_table_lacks_is_not_added(spark: SparkSession, postgres: str) -> None:
    one = table_in(postgres)
    one.write(changes(spark, (1, "a", "+")), 0, "run")
    rows = spark.createDataFrame([], "id INT, name STRING, place STRING, region STRING, _change STRING")
    by_region = replace(one, key=("id", "region"), new_columns="add")
    with pytest.raises(WatersmeetError, match='column "region"') as caught:
        by_region.check_rows(rows, None)
    assert caught.value.getCondition() == "SINK_UNFIT"
    by_id = replace(one, new_columns="add")
    by_id.check_rows(rows, None)
    assert by_id.add_columns(rows) == ["place", "region"]
    assert rows_in(one) == [(1, "a", None, None)]


def test_files_have_a_new_column_from_the_edit_on(spark: SparkSession, tmp_path: Path) -> None:
    sink = f"parquet OPTIONS (path '{tmp_path}/out')"
    arrive(tmp_path, 1, orders=[order(1, 7, 10)])
    run_evolved(spark, tmp_path, sink, "number, amount")
    arrive(tmp_path, 2, orders=[order(2, 8, 20)])
    run_evolved(spark, tmp_path, sink, "number, customer, amount")
    read = spark.read.option("mergeSchema", "true").parquet(f"{tmp_path}/out")
    rows = read.select("number", "customer", "amount").orderBy("number").collect()
    assert [*map(tuple, rows)] == [(1, None, 10), (2, 8, 20)]
