"""How the changes of tables come in: Debezium, Delta, Kafka, marks in files, tables that do not change, loading."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from watersmeet.catalog import Field, Source
from watersmeet.errors import WatersmeetError
from watersmeet.metrics.progress import Progress
from watersmeet.queries import read_script
from watersmeet.spark.run.running import Trigger, run_script
from watersmeet.spark.run.watching import Listeners

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

KEYED = Source(
    "customers", (Field("id", "INT"), Field("name", "STRING")), kind="table", primary_key=("id",), changes="debezium"
)
BAG = replace(KEYED, primary_key=())


def values(spark: SparkSession, *records: dict[str, Any] | None) -> DataFrame:
    return spark.createDataFrame([(None if r is None else json.dumps(r),) for r in records], "value STRING").coalesce(1)


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    from watersmeet.spark.connectors.malformed import readable_rows

    return [tuple(row) for row in readable_rows(frame).collect()]


def customer(id_: int, name: str | None = None) -> dict[str, Any]:
    return {"id": id_, "name": name}


# Debezium

RECORDS = (
    {"op": "r", "before": None, "after": customer(1, "a")},
    {"op": "c", "before": None, "after": customer(2, "b"), "source": {"db": "shop"}},
    {"schema": {"type": "struct"}, "payload": {"op": "u", "before": customer(1, "a"), "after": customer(1, "A")}},
    {"op": "u", "before": customer(2, "b"), "after": customer(3, "b")},
    {"op": "m", "message": {}},
    {"op": "d", "before": customer(1, "A"), "after": None},
    None,
)


def test_with_a_primary_key_debezium_tells_upserts_and_deletes(spark: SparkSession) -> None:
    from watersmeet.spark.connectors.debezium import debezium_changes

    assert rows_of(debezium_changes(KEYED, values(spark, *RECORDS))) == [
        (1, "a", "+"), (2, "b", "+"), (1, "A", "+"), (2, "b", "-"), (3, "b", "+"), (1, "A", "-"),
    ]  # fmt: skip
    short = {"op": "u", "before": None, "after": customer(1, "x")}
    assert rows_of(debezium_changes(KEYED, values(spark, short))) == [(1, "x", "+")]


def test_without_a_primary_key_debezium_tells_the_row_before_and_after(spark: SparkSession) -> None:
    from watersmeet.spark.connectors.debezium import debezium_changes

    assert rows_of(debezium_changes(BAG, values(spark, *RECORDS))) == [
        (1, "a", "+"), (2, "b", "+"), (1, "a", "-"), (1, "A", "+"), (2, "b", "-"), (3, "b", "+"), (1, "A", "-"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "record", "reason"),
    [
        (BAG, {"op": "u", "before": None, "after": customer(1)}, "no `before`"),
        (KEYED, {"op": "d", "before": None, "after": None}, "no `before`"),
        (KEYED, {"op": "c", "before": None, "after": None}, "no `after`"),
        (KEYED, {"op": "t", "before": None, "after": None}, "truncated"),
        (KEYED, {"id": 1, "name": "no envelope"}, "its `op` is not"),
    ],
)
def test_changes_that_cannot_be_followed_stop_the_query(
    spark: SparkSession, source: Source, record: dict[str, Any], reason: str
) -> None:
    from watersmeet.spark.connectors.debezium import debezium_changes

    with pytest.raises(Exception, match=f"WRONG_CHANGE.*{reason}"):
        debezium_changes(source, values(spark, record)).collect()


def test_a_truncated_table_may_be_ignored(spark: SparkSession) -> None:
    from watersmeet.spark.connectors.debezium import debezium_changes

    source = replace(KEYED, options={"debezium.truncate": "ignore"})
    assert rows_of(debezium_changes(source, values(spark, {"op": "t"}))) == []


@pytest.mark.parametrize(
    ("unit", "number"), [("millis", 1714979289123), ("micros", 1714979289123000), ("nanos", 1714979289123000999)]
)
def test_times_come_as_numbers_or_as_text(spark: SparkSession, unit: str, number: int) -> None:
    from watersmeet.formats.debezium import Debezium
    from watersmeet.spark.connectors.debezium import debezium_changes

    fields = (Field("at", "TIMESTAMP_NTZ"), Field("zoned", "TIMESTAMP"), Field("day", "DATE"))
    source = replace(BAG, fields=fields, options={"debezium.time": unit})
    rows = [
        {"op": "c", "after": {"at": number, "zoned": number, "day": 19849}},
        {
            "op": "c",
            "after": {"at": "2024-05-06T07:08:09.123", "zoned": "2024-05-06T07:08:09.123Z", "day": "2024-05-06"},
        },
    ]
    frame = debezium_changes(source, values(spark, *rows))
    found = rows_of(frame.selectExpr("at", "CAST(unix_micros(zoned) AS STRING) AS zoned", "day"))
    assert found == [(datetime(2024, 5, 6, 7, 8, 9, 123000), "1714979289123000", date(2024, 5, 6))] * 2
    [refusal] = Debezium(replace(source, options={"debezium.time": "days"})).check()
    assert refusal.condition == "WRONG_OPTION"


# Delta


@pytest.mark.smoke
def test_delta_tells_rows_before_and_after(spark: SparkSession) -> None:
    from watersmeet.spark.connectors.delta import delta_changes

    rows = [
        (1, "a", "insert", 1),
        (1, "a", "update_preimage", 2),
        (1, "b", "update_postimage", 2),
        (1, "b", "delete", 3),
    ]
    frame = spark.createDataFrame(rows, "id INT, name STRING, _change_type STRING, _commit_version BIGINT").coalesce(1)
    assert rows_of(delta_changes(BAG, frame)) == [(1, "a", "+"), (1, "a", "-"), (1, "b", "+"), (1, "b", "-")]
    # By key, what comes in a version does so after what goes in it.
    assert rows_of(delta_changes(KEYED, frame)) == [
        (1, "a", "+", 3), (1, "a", "-", 4), (1, "b", "+", 5), (1, "b", "-", 6),
    ]  # fmt: skip
    without = frame.drop("_commit_version")
    assert rows_of(delta_changes(KEYED, without)) == [(1, "a", "+"), (1, "b", "+"), (1, "b", "-")]
    wrong = spark.createDataFrame([(1, "a", "merge")], "id INT, name STRING, _change_type STRING")
    with pytest.raises(Exception, match="WRONG_CHANGE"):
        delta_changes(KEYED, wrong).collect()


# Kafka

TOPIC = replace(KEYED, changes=None, format="kafka", options={"value.format": "json"})


def records(spark: SparkSession, *pairs: tuple[bytes | None, str | None]) -> DataFrame:
    rows = [(key, None if value is None else value.encode()) for key, value in pairs]
    return spark.createDataFrame(rows, "key BINARY, value BINARY").coalesce(1)


def test_a_record_without_a_value_deletes_the_row_of_its_key(spark: SparkSession) -> None:
    from watersmeet.spark.connectors.records import decode_records

    frame = records(
        spark,
        (b"1", '{"id": 1, "name": "a"}'), (b"2", '{"name": "key alone"}'), (b'{"id": 3}', None),
        (b'{"schema": {}, "payload": {"id": 4}}', None), (b"5", None),
    )  # fmt: skip
    assert [row[:2] + row[3:] for row in rows_of(decode_records(TOPIC, frame))] == [
        (1, "a", "+"), (2, "key alone", "+"), (3, None, "-"), (4, None, "-"), (5, None, "-"),
    ]  # fmt: skip
    both = replace(TOPIC, primary_key=("id", "name"))
    key = b'{"id": 6, "name": "x"}'
    assert rows_of(decode_records(both, records(spark, (key, None))).drop("_key")) == [(6, "x", "-")]
    bag = replace(TOPIC, primary_key=())
    assert rows_of(decode_records(bag, records(spark, (b"1", None), (b"1", '{"id": 1}'))).drop("_key")) == [
        (1, None, "+")
    ]
    stream = decode_records(replace(TOPIC, kind="stream", primary_key=()), frame)
    assert stream.columns[:3] == ["id", "name", "_key"] and stream.count() == 5


@pytest.mark.parametrize(
    ("format_", "key", "value"),
    [
        ("string", b"one", "one"),
        ("int", struct.pack(">i", -5), -5),
        ("long", struct.pack(">q", -(2**62)), -(2**62)),
        ("double", struct.pack(">d", -0.1), -0.1),
        ("double", struct.pack(">d", 5e-324), 5e-324),
        ("double", struct.pack(">d", 1.7976931348623157e308), 1.7976931348623157e308),
        ("double", struct.pack(">d", float("-inf")), float("-inf")),
        ("bytes", b"\x00\xff", b"\x00\xff"),
    ],
)
def test_the_key_of_a_record_is_decoded_by_its_format(
    spark: SparkSession, format_: str, key: bytes, value: object
) -> None:
    from watersmeet.spark.connectors.records import decode_records

    source = replace(TOPIC, options={"value.format": "json", "key.format": format_})
    [row] = decode_records(source, records(spark, (key, "{}"))).collect()
    assert row["_key"] == value


def test_formats_of_records_that_nobody_knows_are_refused(spark: SparkSession) -> None:
    from watersmeet.formats.records import Records
    from watersmeet.spark.connectors import decode_changes

    [refusal] = Records(replace(TOPIC, options={"value.format": "avro"})).check()
    assert refusal.condition == "WRONG_OPTION"
    with pytest.raises(WatersmeetError, match="WRONG_OPTION"):
        decode_changes(replace(TOPIC, options={"value.format": "json", "key.format": "uuid"}), records(spark))


# Files


def arrive(folder: Path, number: int, **files: Sequence[object]) -> None:
    for name, rows in files.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        path = folder / name / f"{number}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # The file source takes files in the order of their times.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def read(spark: SparkSession, sql: str, tmp_path: Path) -> list[tuple[Any, ...]]:
    """The rows of the one source of a script, as a stream delivers them."""
    from tests.spark.frames import run_all

    from watersmeet.spark.connectors.malformed import readable_rows
    from watersmeet.spark.connectors.reading import read_sources

    [frame] = read_sources(spark, read_script(sql), {}).values()
    return [tuple(row) for batch in run_all(readable_rows(frame), tmp_path / "checkpoint") for row in batch]


@pytest.mark.parametrize(
    ("using", "expected"),
    [
        ("USING json OPTIONS (path '{path}')", [(1, "a", None), (2, "b", "-")]),
        ("USING json OPTIONS (path '{path}', deletes 'name = \"a\"')", [(1, "a", "-"), (2, "b", "+")]),
        ("USING csv OPTIONS (path '{path}')", None),
        (
            "USING text OPTIONS (path '{path}', value.format 'json', deletes 'id > 1')",
            [(1, "a", None, "+"), (2, "b", None, "-")],
        ),
        ("CHANGES FROM delta USING json OPTIONS (path '{path}')", [(1, "a", "+"), (2, "b", "-")]),
        ("CHANGES FROM debezium USING json OPTIONS (path '{path}')", [(7, "x", "+"), (8, "y", "-")]),
    ],
)
def test_rows_of_files_say_what_they_do(
    spark: SparkSession, tmp_path: Path, using: str, expected: list[tuple[Any, ...]] | None
) -> None:
    first = {**customer(1, "a"), "_change_type": "insert", "op": "c", "after": customer(7, "x")}
    payload = {"op": "d", "before": customer(8, "y")}
    second = {**customer(2, "b"), "_change": "-", "_change_type": "delete", "payload": payload}
    arrive(tmp_path, 1, c=[first, second])
    declared = f"CREATE TABLE c (id INT, name STRING, PRIMARY KEY (id)) {using};"
    sql = f"{declared} SELECT TABLE v.id FROM (SELECT * FROM c) AS v;"
    found = read(spark, sql.format(path=tmp_path / "c"), tmp_path)
    assert found == expected if expected is not None else all(len(row) == 2 for row in found)


def test_a_wrong_condition_for_deletes_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path, 1, c=[customer(1)])
    sql = f"CREATE TABLE c (id INT) USING json OPTIONS (path '{tmp_path}/c', deletes 'gone'); SELECT TABLE * FROM c;"
    with pytest.raises(WatersmeetError, match="WRONG_OPTION"):
        read(spark, sql, tmp_path)


def test_a_given_frame_of_changes_is_read_as_its_feed(spark: SparkSession) -> None:
    from watersmeet.spark.connectors.reading import read_sources

    sql = "CREATE TABLE c (id INT, name STRING, PRIMARY KEY (id)) CHANGES FROM debezium; SELECT TABLE * FROM c;"
    frames = read_sources(spark, read_script(sql), {"c": values(spark, RECORDS[0])})
    assert rows_of(frames["c"]) == [(1, "a", "+")]
    with pytest.raises(WatersmeetError, match="SCHEMA_MISMATCH"):
        read_sources(spark, read_script(sql), {"c": spark.range(1)})


# Whole runs


def run(spark: SparkSession, folder: Path, sql: str, trigger: Trigger = "available_now") -> list[str]:
    news: list[str] = []
    script = read_script(sql.format(folder=folder))
    run_script(
        script, spark=spark, storage=folder / "storage", trigger=trigger, listeners=Listeners(on_news=news.append)
    )
    return news


@pytest.mark.smoke
def test_debezium_records_become_a_snapshot_and_a_static_table_joins(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path, 1, records=RECORDS[:3], countries=[{"id": 1, "country": "DE"}, {"id": 3, "country": "FR"}])
    sql = """
    CREATE TABLE c (id INT, name STRING, PRIMARY KEY (id)) CHANGES FROM debezium
        USING text OPTIONS (path '{folder}/records');
    CREATE TABLE l (id INT, country STRING, PRIMARY KEY (id))
        USING json OPTIONS (path '{folder}/countries', static 'true');
    CREATE SINK now USING parquet OPTIONS (path '{folder}/now', changes 'snapshot');
    INSERT INTO now SELECT TABLE c.id, c.name, l.country FROM c LEFT JOIN l ON c.id = l.id;"""
    run(spark, tmp_path, sql)
    assert sorted(rows_of(spark.read.parquet(str(tmp_path / "now/current")))) == [(1, "A", "DE"), (2, "b", None)]
    # What is static is read once.
    arrive(tmp_path, 2, records=RECORDS[3:-1], countries=[{"id": 2, "country": "IT"}])
    run(spark, tmp_path, sql)
    assert rows_of(spark.read.parquet(str(tmp_path / "now/current"))) == [(3, "b", "FR")]
    arrive(tmp_path, 3, records=[{"op": "t"}])
    with pytest.raises(WatersmeetError) as caught:
        run(spark, tmp_path, sql)
    assert caught.value.getCondition() == "QUERY_FAILED" and "truncated" in str(caught.value)


def test_an_error_is_not_taken_for_one_that_stands_in_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path, 1, records=RECORDS[:1])
    sql = """
    CREATE TABLE c (id INT, name STRING, PRIMARY KEY (id)) CHANGES FROM debezium
        USING text OPTIONS (path '{folder}/records');
    CREATE SINK log USING json OPTIONS (path '{folder}/log', changes 'log');
    INSERT INTO log SELECT TABLE c.id, CAST(c.name AS INT) AS n FROM c;"""
    with pytest.raises(WatersmeetError, match="CAST_INVALID_INPUT"):
        run(spark, tmp_path, sql)


def test_a_static_table_that_a_stream_looks_up_needs_no_copy(spark: SparkSession, tmp_path: Path) -> None:
    from watersmeet.spark.run.prepare import prepare

    arrive(tmp_path, 1, s=[{"id": 1}], l=[{"id": 1}])
    declared = """CREATE STREAM s (id INT) USING json OPTIONS (path '{folder}/s');
    CREATE TABLE l (id INT, PRIMARY KEY (id)) USING json OPTIONS (path '{folder}/l', static 'true');
    CREATE TABLE c (id INT, PRIMARY KEY (id)) USING json OPTIONS (path '{folder}/s');"""
    queries = "SELECT STREAM * FROM s JOIN l ON s.id = l.id", "SELECT TABLE * FROM c JOIN l ON c.id = l.id"
    script = read_script("".join((declared.format(folder=tmp_path), *(f"{query};" for query in queries))))
    looked_up, joined = prepare(script, spark, tmp_path / "storage")
    assert [len(looked_up.static), len(joined.static)] == [0, 1]
    assert not (tmp_path / "storage").exists(), "nothing is written before all queries may start"


LOOKUP = """
SET watersmeet.table.load = first;
CREATE STREAM s (id INT, n INT) USING json OPTIONS (path '{folder}/s', maxFilesPerTrigger '1');
CREATE TABLE c (id INT, name STRING, PRIMARY KEY (id)) USING json OPTIONS (path '{folder}/c', maxFilesPerTrigger '1');
CREATE SINK looked USING json OPTIONS (path '{folder}/looked');
INSERT INTO looked SELECT STREAM s.n, c.name FROM s JOIN c ON s.id = c.id;
"""


def sink_rows(folder: Path) -> list[tuple[int, str]]:
    lines = [line for file in (folder / "looked").glob("*.json") for line in file.read_text().splitlines()]
    return sorted((row["n"], row["name"]) for row in map(json.loads, lines))


def test_stream_rows_wait_until_the_table_is_loaded(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path, 1, s=[{"id": 1, "n": 1}, {"id": 2, "n": 2}], c=[customer(1, "a")])
    arrive(tmp_path, 2, c=[customer(1, "b"), customer(2, "c")])
    run(spark, tmp_path, LOOKUP)
    # Together, the first batch would have met the first file alone.
    assert sink_rows(tmp_path) == [(1, "b"), (2, "c")]
    arrive(tmp_path, 3, s=[{"id": 2, "n": 3}])
    run(spark, tmp_path, LOOKUP)
    assert sink_rows(tmp_path) == [(1, "b"), (2, "c"), (3, "c")]


def test_a_running_query_lets_rows_go_once_the_table_is_loaded(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path, 1, s=[{"id": 1, "n": 1}, {"id": 2, "n": 2}], c=[customer(1, "a")])
    arrive(tmp_path, 2, c=[customer(1, "b"), customer(2, "c")])
    news: list[str] = []
    batches: list[Progress] = []
    script = read_script(LOOKUP.format(folder=tmp_path))
    with pytest.raises(KeyboardInterrupt):
        run_script(
            script,
            spark=spark,
            storage=tmp_path / "storage",
            trigger="continuous",
            listeners=Listeners(
                on_progress=batches.append,
                on_news=news.append,
                is_interrupted=lambda: sum(batch.rows_out for batch in batches) == 2,
            ),
        )
    assert sink_rows(tmp_path) == [(1, "b"), (2, "c")]
    # Once it is loaded, it does not load again.
    assert news[0] == "looked: loading c: 1 row so far." and news[-1] == "looked: c loaded, 3 rows."


# How far tables are


def progress_of(table: int, stream: int = 1, **offsets: object) -> dict[str, Any]:
    return {
        "sources": [{"numInputRows": table + stream, **offsets}],
        "observedMetrics": {"watersmeet.table:c": {"rows": table}} if table else {},
    }


def test_a_table_is_loaded_when_a_batch_has_no_row_of_it_or_there_is_none_at_all() -> None:
    from watersmeet.spark.connectors.static import Loading

    for last in (progress_of(0), progress_of(0, stream=0)):
        loading = Loading((replace(TOPIC, options={"maxFilesPerTrigger": "1"}),))
        for one in (progress_of(5), progress_of(7), progress_of(1)):
            loading.take(one)
            assert not loading.is_done
        loading.take(last)
        assert (loading.is_done, loading.rows, loading.names) == (True, 13, "customers")


def test_without_a_limit_the_second_batch_has_all_that_was_there() -> None:
    from watersmeet.spark.connectors.static import Loading

    loading = Loading((TOPIC,))
    loading.take(progress_of(5))
    assert not loading.is_done
    loading.take(progress_of(5))
    assert loading.is_done


def test_a_topic_that_never_stops_is_loaded_when_it_is_read_as_far_as_it_went_at_the_start() -> None:
    from watersmeet.spark.connectors.static import Loading

    loading = Loading((replace(TOPIC, options={"subscribe": "c", "maxOffsetsPerTrigger": "5"}),))
    for end, latest in (((5, 2), (9, 2)), ((8, 2), (50, 20))):
        offsets = [{"c": {"0": a, "1": b}, "other": {"0": 1}} for a, b in (end, latest)]
        loading.take(progress_of(5, endOffset=offsets[0], latestOffset=offsets[1]))
        assert not loading.is_done
    loading.take(progress_of(5, endOffset={"c": {"0": 9, "1": 7}}, latestOffset={"c": {"0": 90, "1": 70}}))
    assert loading.is_done
