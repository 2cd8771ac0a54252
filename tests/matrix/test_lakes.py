"""Delta and Iceberg, with their own libraries, where there are some for this Spark."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from tests.matrix.lakes import FORMATS, catalog, rows, run

from watersmeet.catalog import Sink, Source
from watersmeet.cli.script import open_script
from watersmeet.errors import WatersmeetError
from watersmeet.formats.columns import columns_of
from watersmeet.formats.records import ddl
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.queries import read_script
from watersmeet.spark.connectors import sink_connector
from watersmeet.spark.connectors.sinks import NewColumns, SinkTarget
from watersmeet.spark.private import spark_version
from watersmeet.spark.run.prepare import StartOptions
from watersmeet.spark.run.running import run_script
from watersmeet.spark.run.watching import Listeners

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_delta_as_a_stream_and_as_a_sink_of_a_stream(lakes: SparkSession, tmp_path: Path) -> None:
    for name, time in (("orders", "ordered"), ("payments", "paid")):
        made = lakes.sql(
            f"SELECT id, TIMESTAMP '2026-03-02 10:00:00' + make_dt_interval(0, 0, id) AS {time} FROM range(9)"
        )
        made.write.format("delta").save(str(tmp_path / name))
    text = f"""
        CREATE STREAM orders (id BIGINT, ordered TIMESTAMP, WATERMARK FOR ordered AS ordered - INTERVAL 1 MINUTE)
        USING delta OPTIONS (path '{tmp_path}/orders');
        CREATE STREAM payments (id BIGINT, paid TIMESTAMP, WATERMARK FOR paid AS paid - INTERVAL 1 MINUTE)
        USING delta OPTIONS (path '{tmp_path}/payments');
        CREATE SINK out USING delta OPTIONS (path '{tmp_path}/out');
        CREATE SINK late USING delta OPTIONS (path '{tmp_path}/late');
        INSERT INTO out SELECT STREAM o.id, o.ordered FROM orders o JOIN payments p WITHIN 5 MINUTES ON o.id = p.id
        LATE INTO late;
    """
    run(lakes, text, tmp_path)
    more = lakes.sql("SELECT 5L AS id, TIMESTAMP '2026-03-02 09:00:00' AS ordered")
    more.write.format("delta").mode("append").save(str(tmp_path / "orders"))
    run(lakes, text, tmp_path)
    assert [row[0] for row in rows(lakes.read.format("delta").load(f"{tmp_path}/out"))] == [*range(9)]
    assert lakes.read.format("delta").load(f"{tmp_path}/late").count() == 1


KINDS = """
    a TINYINT, b SMALLINT, c INT NOT NULL, d BIGINT, e FLOAT, f DOUBLE, g DECIMAL(10,2), h STRING, i BINARY, j BOOLEAN,
    k DATE, l TIMESTAMP, m TIMESTAMP_NTZ, n ARRAY<INT>, o MAP<STRING, STRUCT<`x y`: INT>>, p STRUCT<q: STRUCT<r: DATE>>,
    `the part` STRING, v VARCHAR(5), w CHAR(3), z VOID
"""
"""Columns of all kinds that a table may have."""


def log_columns(format: str, path: Path, changes: str | None = None, **options: str) -> list[tuple[str, str]]:
    """The columns that are read from the log of a table."""
    source = Source("s", (), format=format, options={"path": str(path), **options}, changes=changes)
    return _columns(StructType.fromDDL(ddl(replace(source, fields=columns_of(source).fields))))


def spark_columns(frame: DataFrame) -> list[tuple[str, str]]:
    """The columns that Spark has, but for those of no type."""
    return [column for column in _columns(frame.schema) if column[1] != "void"]


def _columns(schema: Any) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema]


def test_columns_are_those_that_delta_gives_whatever_became_of_its_table(lakes: SparkSession, tmp_path: Path) -> None:
    path, table = tmp_path / "all", f"delta.`{tmp_path}/all`"
    mapped = "'delta.columnMapping.mode' = 'name', delta.enableChangeDataFeed = true, delta.checkpointInterval = 3"
    lakes.sql(f"CREATE TABLE {table} ({KINDS}) USING delta PARTITIONED BY (k, `the part`) TBLPROPERTIES ({mapped})")

    def check() -> None:
        read = lakes.read.format("delta").load(str(path))
        assert (
            log_columns("delta", path)
            == spark_columns(read)
            == spark_columns(lakes.readStream.format("delta").load(str(path)))
        )
        feed = lakes.readStream.format("delta").option("readChangeFeed", "true").load(str(path))
        assert log_columns("delta", path, readChangeFeed="true") == spark_columns(feed)
        assert log_columns("delta", path, "delta", readChangeFeed="true") == spark_columns(read)

    check()
    # Not by ALTER TABLE, for which this Delta lacks a class of this Spark.
    row = lakes.sql("SELECT 1 AS c, DATE '2026-03-02' AS k, 'x' AS `the part`")
    more = row.selectExpr("*", "2L AS `odd name`")
    more.write.format("delta").mode("append").option("mergeSchema", "true").save(str(path))
    check()
    first = lakes.read.format("delta").option("versionAsOf", "0").load(str(path))
    assert log_columns("delta", path, versionAsOf="0") == spark_columns(first)
    for _ in range(3):
        row.write.format("delta").mode("append").save(str(path))
    log = path / "_delta_log"
    checkpoint = max(log.glob("*.checkpoint*.parquet"))
    for file in log.glob("*.json"):
        if file.name < checkpoint.name[:20]:
            file.unlink()
    check()


def test_a_stream_of_delta_keeps_the_columns_of_its_first_start(lakes: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text("""
        CREATE STREAM orders (WATERMARK FOR ordered AS ordered - INTERVAL 1 MINUTE) USING delta OPTIONS (path 'orders');
        CREATE SINK out USING delta OPTIONS (path 'out');
        INSERT INTO out SELECT STREAM * FROM orders;
    """)
    for number, more in enumerate(("", ", 'x' AS more")):
        made = lakes.sql(f"SELECT {number} AS id, TIMESTAMP '2026-03-02 10:00:00' AS ordered{more}")
        made.write.format("delta").mode("append").option("mergeSchema", "true").save(str(tmp_path / "orders"))
        opened = open_script(tmp_path / "q.sql", "absolute")
        storage = tmp_path / "q.storage"
        run_script(opened.script, spark=lakes, storage=storage, analyzed=opened.queries, trigger="available_now")
        out = lakes.read.format("delta").load(f"{tmp_path}/out")
        assert (out.columns, out.count()) == (["id", "ordered"], number + 1)


def test_the_change_feed_of_delta_is_the_table_and_goes_to_another_by_merges(
    lakes: SparkSession, tmp_path: Path
) -> None:
    source = f"delta.`{tmp_path}/stock`"
    lakes.sql(
        f"CREATE TABLE {source} (id INT, place STRING, n INT) USING delta "
        "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    lakes.sql(f"INSERT INTO {source} VALUES (1, 'a', 1), (2, 'a', 2), (3, 'b', 3), (4, 'b', 4)")
    text = f"""
        CREATE TABLE stock (id INT, place STRING, n INT, PRIMARY KEY (id)) CHANGES FROM delta
        USING delta OPTIONS (path '{tmp_path}/stock', startingVersion '0');
        CREATE SINK copy USING delta OPTIONS (path '{tmp_path}/copy', changes 'upsert');
        CREATE SINK sums USING delta OPTIONS (path '{tmp_path}/sums', changes 'upsert');
        INSERT INTO copy SELECT TABLE id, place, n FROM stock;
        INSERT INTO sums SELECT TABLE place, sum(n) AS total FROM stock GROUP BY place;
    """
    steps = [
        [],
        # Several versions in one batch, of which the last counts.
        [f"UPDATE {source} SET n = n + 10 WHERE id = 1", f"UPDATE {source} SET place = 'c' WHERE id = 1",
         f"DELETE FROM {source} WHERE id = 2"],
        # A version that both takes a key away and brings it again.
        [f"INSERT OVERWRITE {source} SELECT id, place, n * 2 FROM {source}"],
        [f"DELETE FROM {source} WHERE place = 'b'"],
    ]  # fmt: skip
    for step in steps:
        for statement in step:
            lakes.sql(statement)
        run(lakes, text, tmp_path)
        want = rows(lakes.read.format("delta").load(f"{tmp_path}/stock"))
        assert rows(lakes.read.format("delta").load(f"{tmp_path}/copy").select("id", "place", "n")) == want
        totals: dict[str, int] = {}
        for _, place, n in want:
            totals[place] = totals.get(place, 0) + n
        assert dict(rows(lakes.read.format("delta").load(f"{tmp_path}/sums").select("place", "total"))) == totals


def test_a_batch_that_is_repeated_is_in_delta_once(lakes: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    added = SinkTarget(Sink("out", "delta", {"path": f"{tmp_path}/added"}), "query", checkpoint)
    merged = SinkTarget(Sink("out", "delta", {"path": f"{tmp_path}/merged"}), "query", checkpoint, "upsert", ("id",))
    for number, id_ in ((0, 1), (1, 2), (1, 3), (2, 4)):
        batch = lakes.sql(f"SELECT {id_} AS id, 'x' AS name")
        sink_connector(added).writer()(batch, number)
        weighed = batch.selectExpr("*", f"1L AS `{WEIGHT}`")
        sink_connector(merged).writer()(weighed, number)
    # Another row under the number of a batch that is there: only a test does that, and so it is seen.
    for name in ("added", "merged"):
        assert [row[0] for row in rows(lakes.read.format("delta").load(f"{tmp_path}/{name}"))] == [1, 2, 4]


SINKS = {
    "delta": ("STREAM", "delta OPTIONS (path '{folder}/out')"),
    "delta-upsert": ("TABLE", "delta OPTIONS (path '{folder}/out', changes 'upsert')"),
    "iceberg": ("STREAM", "iceberg OPTIONS (table 'bay.shop.out')"),
    "iceberg-upsert": ("TABLE", "iceberg OPTIONS (table 'gulf.shop.out', changes 'upsert')"),
    "delta-log": ("TABLE", "delta OPTIONS (path '{folder}/out', changes 'log')"),
    "iceberg-log": ("TABLE", "iceberg OPTIONS (table 'cove.shop.out', changes 'log')"),
}


@pytest.mark.parametrize("sink", SINKS)
def test_an_older_copy_of_the_checkpoint_is_refused(lakes: SparkSession, tmp_path: Path, sink: str) -> None:
    if sink.split("-")[0] not in FORMATS:
        pytest.skip(f"there is no library of {sink} for Spark {spark_version()}")
    kind, options = SINKS[sink]
    if sink == "iceberg":
        catalog(lakes, "bay", tmp_path)
        lakes.sql("CREATE TABLE bay.shop.out (id BIGINT, n BIGINT) USING iceberg")
    elif sink.startswith("iceberg"):
        catalog(lakes, "gulf" if sink == "iceberg-upsert" else "cove", tmp_path)
    key = ", PRIMARY KEY (id)" if kind == "TABLE" else ""
    text = f"""
        CREATE {kind} events (id BIGINT, n BIGINT{key}) USING json OPTIONS (path '{tmp_path}/in');
        CREATE SINK out USING {options.format(folder=tmp_path)};
        INSERT INTO out SELECT {kind} id, n FROM events;
    """
    checkpoint = tmp_path / "storage" / "checkpoints" / "out"
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / "in" / f"{number}.json").write_text(f'{{"id": {number}, "n": 1}}\n')
        run(lakes, text, tmp_path)
        if number == 0:
            shutil.copytree(checkpoint, tmp_path / "copy")
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "copy", checkpoint)
    (tmp_path / "in" / "2.json").write_text('{"id": 2, "n": 1}\n')
    with pytest.raises(WatersmeetError, match="it has batch 1, and the checkpoint ends at batch 0") as raised:
        run(lakes, text, tmp_path)
    assert raised.value.getCondition() == "SINK_AHEAD_OF_CHECKPOINT"


@pytest.mark.parametrize("format_", FORMATS)
def test_a_key_that_is_not_unique_across_batches_stops_the_query(
    lakes: SparkSession, tmp_path: Path, format_: str
) -> None:
    if format_ == "iceberg":
        catalog(lakes, "firth", tmp_path)
    options = {"path": f"{tmp_path}/out"} if format_ == "delta" else {"table": "firth.shop.out"}
    target = SinkTarget(Sink("out", format_, options), "query", tmp_path / "checkpoint", "upsert", ("id",))

    def write(number: int, *changes: str) -> None:
        batch = lakes.sql(f"SELECT * FROM VALUES {', '.join(changes)} AS t (id, name, `{WEIGHT}`)")
        sink_connector(target).writer()(batch, number)

    def table_rows() -> list[tuple[Any, ...]]:
        if format_ == "delta":
            return rows(lakes.read.format("delta").load(f"{tmp_path}/out"))
        lakes.sql("REFRESH TABLE firth.shop.out")
        return rows(lakes.table("firth.shop.out"))

    write(0, "(1, 'a', 1L)", "(2, 'b', 1L)", "(NULL, 'n', 1L)")
    write(0, "(1, 'a', 1L)", "(2, 'b', 1L)", "(NULL, 'n', 1L)")
    for second in ("(1, 'other', 1L)", "(NULL, 'other', 1L)"):
        with pytest.raises(Exception, match="KEY_NOT_UNIQUE"):
            write(1, second, "(3, 'c', 1L)")
    write(1, "(NULL, 'n', -1L)")
    assert table_rows() == [(1, "a"), (2, "b")]
    write(2, "(1, 'a', -1L)", "(1, 'A', 1L)", "(2, 'b', -1L)", "(3, 'c', 1L)")
    write(3, "(2, 'B', 1L)")
    assert table_rows() == [(1, "A"), (2, "B"), (3, "c")]
    # What others have put there is not a row of the query.
    target = SinkTarget(Sink("out", format_, options), "another", tmp_path / "checkpoint", "upsert", ("id",))
    write(0, "(1, 'x', 1L)")
    assert table_rows() == [(1, "x"), (2, "B"), (3, "c")]


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("changes", [None, "upsert"])
def test_a_column_that_select_gains_is_added_or_named(
    lakes: SparkSession, tmp_path: Path, format_: str, changes: str | None
) -> None:
    # A catalog keeps its folder for the session.
    lagoon = f"lagoon_{changes}"
    if format_ == "iceberg":
        catalog(lakes, lagoon, tmp_path)
    name = f"delta.`file://{tmp_path}/out`" if format_ == "delta" else f"{lagoon}.shop.out"
    options = f"path '{tmp_path}/out'" if format_ == "delta" else f"table '{name}'"
    kind, key = ("TABLE", ", PRIMARY KEY (id)") if changes else ("STREAM", "")
    # A table with a key keeps the columns that are read: another one would be another query.
    gained = "substr('abcd', n, 1) AS name" if changes else "name"
    (tmp_path / "in").mkdir()

    def start(columns: str, new_columns: NewColumns = "refuse") -> list[str]:
        text = f"""
            CREATE {kind} rows (id INT, n INT, name STRING{key}) USING json OPTIONS (path '{tmp_path}/in');
            CREATE SINK out USING {format_} OPTIONS ({options}{", changes 'upsert'" if changes else ""});
            INSERT INTO out SELECT {kind} {columns} FROM rows;
        """
        news = list[str]()
        start_options = StartOptions(accepting="rebuild", new_columns=new_columns)
        run_script(
            read_script(text), spark=lakes, storage=tmp_path / "storage", trigger="available_now",
            options=start_options, listeners=Listeners(on_news=news.append),
        )  # fmt: skip
        return [text for text in news if "added" in text]

    def table_rows() -> list[tuple[Any, ...]]:
        if format_ == "iceberg":
            lakes.sql(f"REFRESH TABLE {name}")
        return rows(lakes.sql(f"SELECT * FROM {name}"))

    (tmp_path / "in" / "1.json").write_text('{"id": 1, "n": 1, "name": "a"}')
    start("id, n")
    assert table_rows() == [(1, 1)]
    (tmp_path / "in" / "2.json").write_text('{"id": 2, "n": 2, "name": "b"}')
    with pytest.raises(WatersmeetError, match="SINK_UNFIT") as caught:
        start(f"id, n, {gained}")
    assert f"`ALTER TABLE {name} ADD COLUMNS (`name` string)`" in str(caught.value.refusals[0].hint)
    assert table_rows() == [(1, 1)]
    assert start(f"id, n, {gained}", "add") == ["out: added `name` to the table of out."]
    assert table_rows() == [(1, 1, None), (2, 2, "b")]
    (tmp_path / "in" / "3.json").write_text('{"id": 3, "n": 3, "name": "c"}')
    # Once, and the batches that the table has are still known.
    assert start(f"id, n, {gained}", "add") == []
    assert start(f"id, n, {gained}, n * 2 AS twice", "add") == ["out: added `twice` to the table of out."]
    (tmp_path / "in" / "4.json").write_text('{"id": 4, "n": 4, "name": "d"}')
    assert start(f"id, n, {gained}, n * 2 AS twice") == []
    assert table_rows() == [(1, 1, None, None), (2, 2, "b", None), (3, 3, "c", None), (4, 4, "d", 8)]


@pytest.mark.parametrize("format_", FORMATS)
def test_a_key_that_the_table_would_round_is_refused(lakes: SparkSession, tmp_path: Path, format_: str) -> None:
    if format_ == "iceberg":
        catalog(lakes, "fjord", tmp_path)
    name = f"delta.`file://{tmp_path}/out`" if format_ == "delta" else "fjord.shop.out"
    options = {"path": f"{tmp_path}/out"} if format_ == "delta" else {"table": name}
    lakes.sql(f"CREATE TABLE {name} (id DECIMAL(5, 1), n INT) USING {format_}")
    target = SinkTarget(Sink("out", format_, options), "query", tmp_path / "checkpoint", "upsert", ("id",))
    with pytest.raises(WatersmeetError, match=r"its key `id` is decimal\(5,1\)"):
        sink_connector(target).check_rows(lakes.sql("SELECT CAST(1.25 AS DECIMAL(5, 2)) AS id, 1 AS n"), None)
    sink_connector(target).check_rows(lakes.sql("SELECT CAST(1.25 AS DECIMAL(5, 1)) AS id, 1 AS n"), None)


LOGS = {
    "delta": ("delta OPTIONS (path '{folder}/out', changes 'log')", "delta.`{folder}/out`"),
    "delta-table": ("delta OPTIONS (table 'harbour.out', changes 'log')", "harbour.out"),
    "iceberg": ("iceberg OPTIONS (table 'strait.shop.out', changes 'log')", "strait.shop.out"),
}


@pytest.mark.parametrize("sink", [sink for sink in LOGS if sink.split("-")[0] in FORMATS])
def test_a_log_of_changes_goes_to_a_table(lakes: SparkSession, tmp_path: Path, sink: str) -> None:
    options, name = (text.format(folder=tmp_path) for text in LOGS[sink])
    if sink == "iceberg":
        catalog(lakes, "strait", tmp_path)
    if sink == "delta-table":
        lakes.sql(f"CREATE DATABASE harbour LOCATION '{tmp_path}/harbour'")
    text = f"""
        CREATE TABLE stock (id INT, place STRING, PRIMARY KEY (id)) USING json OPTIONS (path '{tmp_path}/stock');
        CREATE SINK out USING {options};
        INSERT INTO out SELECT TABLE place, count(*) AS n FROM stock GROUP BY place;
    """
    (tmp_path / "stock").mkdir()
    for number, place in enumerate(("a", "a", "b")):
        (tmp_path / "stock" / f"{number}.json").write_text(json.dumps({"id": number % 2, "place": place}))
        run(lakes, text, tmp_path)
        if sink == "iceberg":
            lakes.sql(f"REFRESH TABLE {name}")
    assert rows(lakes.sql(f"SELECT _batch, _change, place, n FROM {name}")) == [
        (0, "+", "a", 1), (1, "+", "a", 2), (1, "-", "a", 1), (2, "+", "a", 1), (2, "+", "b", 1), (2, "-", "a", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("format_", FORMATS)
def test_a_result_and_its_late_rows_go_to_tables_of_a_catalog(
    lakes: SparkSession, tmp_path: Path, format_: str
) -> None:
    if format_ == "iceberg":
        catalog(lakes, "sound", tmp_path)
    else:
        lakes.sql(f"CREATE DATABASE quay LOCATION '{tmp_path}/quay'")
    place = "sound.shop" if format_ == "iceberg" else "quay"
    text = f"""
        CREATE STREAM events (id INT, t INT, WATERMARK FOR t AS t - 5) USING json OPTIONS (path '{tmp_path}/in');
        CREATE SINK out USING {format_} OPTIONS (table '{place}.out');
        CREATE SINK late USING {format_} OPTIONS (table '{place}.late');
        INSERT INTO out SELECT STREAM a.id, a.t FROM events a JOIN events b ON a.id = b.id AND b.t BETWEEN a.t AND a.t
        LATE INTO late;
    """
    (tmp_path / "in").mkdir()
    for number, moment in enumerate((100, 200, 0)):
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"id": number, "t": moment}))
        run(lakes, text, tmp_path)
    for name in ("out", "late"):
        if format_ == "iceberg":
            lakes.sql(f"REFRESH TABLE {place}.{name}")
    assert rows(lakes.table(f"{place}.out")) == [(0, 100), (1, 200)]
    late = lakes.table(f"{place}.late").selectExpr("side", "coalesce(a.id, b.id) AS id")
    assert rows(late) == [("a", 2), ("b", 2)]


def test_iceberg_as_a_stream_and_as_a_sink(lakes: SparkSession, tmp_path: Path) -> None:
    if "iceberg" not in FORMATS:
        pytest.skip(f"there is no library of Iceberg for Spark {spark_version()}")
    lakes.conf.set("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    lakes.conf.set("spark.sql.catalog.lake.type", "hadoop")
    lakes.conf.set("spark.sql.catalog.lake.warehouse", str(tmp_path / "lake"))
    lakes.sql("CREATE TABLE lake.shop.orders (id BIGINT, ordered TIMESTAMP) USING iceberg")
    lakes.sql("CREATE TABLE lake.shop.paid (id BIGINT, ordered TIMESTAMP) USING iceberg")
    text = """
        CREATE STREAM orders (id BIGINT, ordered TIMESTAMP, WATERMARK FOR ordered AS ordered - INTERVAL 1 MINUTE)
        USING iceberg OPTIONS (table 'lake.shop.orders');
        CREATE SINK out USING iceberg OPTIONS (table 'lake.shop.paid');
        INSERT INTO out SELECT STREAM a.id, a.ordered FROM orders a JOIN orders b WITHIN 5 MINUTES ON a.id = b.id;
    """
    for first in (0, 5):
        lakes.sql(
            "INSERT INTO lake.shop.orders SELECT id, TIMESTAMP '2026-03-02 10:00:00' + make_dt_interval(0, 0, id) "
            f"FROM range({first}, {first + 5})"
        )
        run(lakes, text, tmp_path)
        # A session keeps what it knows of a table for a while, and a query has a session of its own.
        lakes.sql("REFRESH TABLE lake.shop.paid")
        assert [row[0] for row in rows(lakes.table("lake.shop.paid"))] == [*range(first + 5)]


@pytest.mark.parametrize("format_", FORMATS)
def test_a_table_is_the_history_of_a_stream(lakes: SparkSession, tmp_path: Path, format_: str) -> None:
    if format_ == "iceberg":
        catalog(lakes, "brook", tmp_path)
        lakes.sql("CREATE TABLE brook.shop.orders (id BIGINT, t TIMESTAMP) USING iceberg")

    def append(*ids: int) -> None:
        """A minute lies between orders; number 10 is of noon."""
        made = lakes.createDataFrame(
            [(n, f"2026-03-01 {(710 + n) // 60}:{(710 + n) % 60:02}:00") for n in ids], "id BIGINT, t STRING"
        )
        made = made.selectExpr("id", "CAST(t AS TIMESTAMP) AS t").coalesce(1)
        if format_ == "iceberg":
            made.writeTo("brook.shop.orders").append()
        else:
            made.write.format("delta").mode("append").save(f"{tmp_path}/orders")

    def arrive(*ids: int) -> None:
        text = "".join(
            json.dumps({"id": n, "t": f"2026-03-01 {(710 + n) // 60}:{(710 + n) % 60:02}:00"}) + "\n" for n in ids
        )
        (tmp_path / "live").mkdir(exist_ok=True)
        (tmp_path / "live" / f"{ids[0]}.json").write_text(text)

    table = "table 'brook.shop.orders'" if format_ == "iceberg" else f"path '{tmp_path}/orders'"
    text = f"""
        CREATE STREAM orders (id BIGINT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 5 MINUTES)
        USING json OPTIONS (path '{tmp_path}/live')
        AFTER {format_} OPTIONS ({table}, until '2026-03-01 12:00:00');
        CREATE SINK out USING json OPTIONS (path '{tmp_path}/out');
        INSERT INTO out SELECT STREAM a.id, b.id AS next FROM orders a LEFT JOIN orders b
        ON a.id + 1 = b.id AND b.t BETWEEN a.t AND a.t + INTERVAL 10 MINUTES;
    """
    # Both have orders 8 to 11.
    append(0, 1, 2, 3)
    append(4, 5, 6, 7, 8, 9, 10, 11)
    arrive(8, 9, 10, 11, 12)
    run(lakes, text, tmp_path)
    assert (
        json.loads((tmp_path / "storage/checkpoints/out/history").read_text())["sources"]["orders"]["format"] == format_
    )
    # A table is read on: a row that comes later counts, unless it is late.
    append(9)
    arrive(13)
    run(lakes, text, tmp_path, "end")
    files = (tmp_path / "out").glob("*.json")
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    expected = [(n, n + 1 if n < 13 else None) for n in range(14)]
    assert sorted((row["id"], row.get("next")) for row in found) == sorted([*expected, (9, 10)])


def test_a_stream_goes_to_the_folder_of_an_iceberg_table(lakes: SparkSession, tmp_path: Path) -> None:
    if "iceberg" not in FORMATS:
        pytest.skip(f"there is no library of Iceberg for Spark {spark_version()}")
    catalog(lakes, "fjord", tmp_path)
    lakes.sql("CREATE TABLE fjord.shop.out (id BIGINT, n BIGINT) USING iceberg")
    folder = tmp_path / "fjord" / "shop" / "out"
    text = f"""
        CREATE STREAM events (id BIGINT, n BIGINT) USING json OPTIONS (path '{tmp_path}/in');
        CREATE SINK out USING iceberg OPTIONS (path '{folder}');
        INSERT INTO out SELECT STREAM id, n FROM events;
    """
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / "in" / f"{number}.json").write_text(f'{{"id": {number}, "n": 1}}\n')
        run(lakes, text, tmp_path)
        # The batch is there, and Spark has not heard of it.
        for name in (str(number), f".{number}.crc"):
            (tmp_path / "storage" / "checkpoints" / "out" / "commits" / name).unlink(missing_ok=True)
        run(lakes, text, tmp_path)
        assert [row[0] for row in rows(lakes.read.format("iceberg").load(str(folder)))] == [*range(number + 1)]


def test_columns_are_those_that_iceberg_gives(lakes: SparkSession, tmp_path: Path) -> None:
    if "iceberg" not in FORMATS:
        pytest.skip(f"there is no library of Iceberg for Spark {spark_version()}")
    lakes.conf.set("spark.sql.catalog.sea", "org.apache.iceberg.spark.SparkCatalog")
    lakes.conf.set("spark.sql.catalog.sea.type", "hadoop")
    lakes.conf.set("spark.sql.catalog.sea.warehouse", str(tmp_path / "sea"))
    columns = re.sub(r"[ab] \w+,|[vwz] \w+(\(\d\))?,?", "", KINDS).strip().rstrip(",")
    lakes.sql(f"CREATE TABLE sea.shop.everything ({columns}) USING iceberg PARTITIONED BY (k)")
    path = tmp_path / "sea" / "shop" / "everything"
    for statement in ("", "ADD COLUMN more INT AFTER c", "RENAME COLUMN d TO odd", "DROP COLUMN e"):
        if statement:
            lakes.sql(f"ALTER TABLE sea.shop.everything {statement}")
        assert log_columns("iceberg", path) == spark_columns(lakes.read.format("iceberg").load(str(path)))
    assert log_columns("iceberg", path) == spark_columns(lakes.readStream.format("iceberg").load(str(path)))


def test_a_table_is_merged_into_iceberg(lakes: SparkSession, tmp_path: Path) -> None:
    if "iceberg" not in FORMATS:
        pytest.skip(f"there is no library of Iceberg for Spark {spark_version()}")
    lakes.conf.set("spark.sql.catalog.pond", "org.apache.iceberg.spark.SparkCatalog")
    lakes.conf.set("spark.sql.catalog.pond.type", "hadoop")
    lakes.conf.set("spark.sql.catalog.pond.warehouse", str(tmp_path / "pond"))
    text = f"""
        CREATE TABLE stock (id INT, place STRING, n INT, PRIMARY KEY (id))
        USING json OPTIONS (path '{tmp_path}/stock');
        CREATE SINK sums USING iceberg OPTIONS (table 'pond.shop.sums', changes 'upsert');
        INSERT INTO sums SELECT TABLE place, sum(n) AS total FROM stock GROUP BY place;
    """
    steps = [
        ([(1, "a", 1), (2, "a", 2), (3, "b", 3)], [("a", 3), ("b", 3)]),
        ([(1, "c", 5), (3, "a", 3)], [("a", 5), ("c", 5)]),
    ]
    for step, want in steps:
        lakes.createDataFrame(step, "id INT, place STRING, n INT").coalesce(1).write.mode("append").json(
            str(tmp_path / "stock")
        )
        run(lakes, text, tmp_path)
        # A session keeps what it knows of a table for a while, and a query has a session of its own.
        lakes.sql("REFRESH TABLE pond.shop.sums")
        assert rows(lakes.table("pond.shop.sums").select("place", "total")) == want
    # A batch that comes again says the same again.
    target = SinkTarget(Sink("out", "iceberg", {"table": "pond.shop.other"}), "query", tmp_path, "upsert", ("id",))
    batch = lakes.sql(f"SELECT * FROM VALUES (1, 'x', 1L), (2, 'y', -1L), (3, 'z', 1L) AS t (id, name, `{WEIGHT}`)")
    for number in (0, 0):
        sink_connector(target).writer()(batch, number)
        assert rows(lakes.table("pond.shop.other")) == [(1, "x"), (3, "z")]
