"""Rows of several files in one batch arrive by the time of their file, its path, and their place in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.frames import run_all

import watersmeet as ws
from watersmeet.queries import analyze, read_script
from watersmeet.spark.connectors.reading import read_sources
from watersmeet.spark.run.build import build
from watersmeet.spark.run.rebuild_input import ReplayRange, replay_stream
from watersmeet.spark.run.running import run_script
from watersmeet.spark.state.offset_log import read_log
from watersmeet.tools.trace import questions
from watersmeet.tools.trace.input_history import read_input_history

pytestmark = pytest.mark.spark

ALL = os.environ.get("WATERSMEET_CASES") == "all"
"""Whether every query is run with every reader; else each with one of the two, in turn."""
KEYS = 4
LINES = {"b.json": 2, "a b%41.json": 900, "c.json": 5, "z.json": 1, "d.json": 300, "a.json": 1}
"""Files by their times, oldest first, and how many rows each has: Spark packs the largest first."""
EQUAL_TIMES = ("c.json", "z.json")

SETTINGS = {"spark.sql.files.maxPartitionBytes": "4096", "spark.sql.files.openCostInBytes": "512"}
"""A large file becomes several tasks, and small ones share one."""

TABLE = """CREATE TABLE t (id INT, n INT, PRIMARY KEY (id)) USING {format} OPTIONS (path '{folder}/t'{options});
"""
STREAM = """CREATE STREAM t (id INT, n INT, at TIMESTAMP, WATERMARK FOR at AS at)
    USING {format} OPTIONS (path '{folder}/t'{options});
"""
ASKED = """CREATE STREAM q (id INT, at TIMESTAMP, WATERMARK FOR at AS at)
    USING {format} OPTIONS (path '{folder}/q');
"""
LAST = {
    "upserts": f"{TABLE}SELECT TABLE id, n FROM t;",
    "latest": f"{STREAM}SELECT TABLE id AS _key, id, n FROM t;",
    "lookup": f"{TABLE}{ASKED}SELECT STREAM q.id, t.n FROM q JOIN t ON q.id = t.id;",
    "changelog": f"{TABLE}{TABLE.replace(' t (', ' u (')}SELECT TABLE t.id, u.n FROM t JOIN u ON t.id = u.id;",
    "last": f"{STREAM}SELECT TABLE id, last(n) AS n FROM t GROUP BY id;",
    "count window": f"""{STREAM}{ASKED}SELECT STREAM q.id, t.n
        FROM t WINDOW (COUNT 1 PARTITION BY id) JOIN q WINDOW (COUNT 9) ON q.id = t.id;""",
}
"""Queries whose result has the last row of every key."""
FIRST = {
    "first": f"{STREAM}SELECT TABLE id, first(n) AS n FROM t GROUP BY id;",
    "top": f"{STREAM}SELECT TABLE id, n FROM t QUALIFY row_number() OVER (PARTITION BY id ORDER BY at) <= 1;",
    "as-of": f"""{STREAM}{ASKED}SELECT STREAM q.id, t.n FROM q
        ASOF JOIN t MATCH_CONDITION (q.at >= t.at) ON q.id = t.id;""",
}
"""Queries whose result has the first row of every key; all rows have the same time."""


def write(folder: Path, *, as_parquet: bool) -> list[dict[str, Any]]:
    """Files with rows of every key; gives the rows in their order of arrival."""
    rows: list[tuple[tuple[int, str, int], dict[str, Any]]] = []
    (folder / "t").mkdir(parents=True)
    (folder / "q").mkdir()
    for age, (name, lines) in enumerate(LINES.items()):
        second = 1_700_000_000 + (age if name not in EQUAL_TIMES else 10)
        own = [{"id": line % KEYS, "n": age * 1_000 + line, "at": "2024-01-01T00:00:00Z"} for line in range(lines)]
        rows += [((second, name, line), row) for line, row in enumerate(own)]
        _write_file(folder / "t" / name, own, second, as_parquet=as_parquet)
    asked = [{"id": key, "at": "2024-01-01T00:00:00Z"} for key in range(KEYS)]
    _write_file(folder / "q" / "0.json", asked, 1_700_000_000, as_parquet=as_parquet)
    return [row for _, row in sorted(rows, key=lambda row: row[0])]


def _write_file(file: Path, rows: Sequence[Mapping[str, Any]], second: int, *, as_parquet: bool) -> None:
    if as_parquet:
        table = pa.Table.from_pylist(list(rows))
        at = pa.repeat(pa.scalar(1_704_067_200_000_000), len(rows)).cast(pa.timestamp("us", tz="UTC"))
        fields = {"id": table["id"].cast(pa.int32()), "at": at}
        fields |= {"n": table["n"].cast(pa.int32())} if "n" in table.column_names else {}
        pq.write_table(pa.table(fields), file, row_group_size=50)
    else:
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    os.utime(file, (second, second))


@pytest.fixture
def small_tasks(spark: SparkSession) -> Iterator[SparkSession]:
    before = {name: spark.conf.get(name) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, str(value))


def result(frame: DataFrame, folder: Path) -> dict[int, set[int]]:
    """What a query has for each key when all is read, in a single batch with rows."""
    batches = run_all(frame, folder / "checkpoint")
    assert sum(bool(rows) for rows in batches) == 1
    found: dict[int, set[int]] = {}
    for rows in batches:
        for row in rows:
            assert row.asDict().get("_change", "+") == "+"
            found.setdefault(row.id, set()).add(row.n)
    return found


@pytest.mark.parametrize(
    ("query", "reading"),
    [
        *(
            (query, reading)
            for place, query in enumerate((*LAST, *FIRST))
            for turn, reading in enumerate(("json", "parquet by workers"))
            if ALL or place == 0 or place % 2 == turn
        ),
        ("upserts", "parquet by Spark"),
    ],
)
def test_rows_of_several_files_arrive_in_the_order_of_the_files(
    small_tasks: SparkSession, tmp_path: Path, query: str, reading: str
) -> None:
    spark, format_ = small_tasks, reading.partition(" ")[0]
    arrived = write(tmp_path, as_parquet=format_ == "parquet")
    text = {**LAST, **FIRST}[query].format(format=format_, folder=tmp_path, options="")
    if reading == "parquet by Spark":
        script = read_script(text)
        frame = build(spark, script, read_sources(spark, script, {}))[0].compiled.result
    else:
        frame = ws.sql(text, spark=spark)
    plan = cast("Any", frame)._jdf.queryExecution().logical().toString()
    assert ("PackFiles" in plan) == (reading == "parquet by workers")
    arrived = arrived if query in LAST else arrived[::-1]
    assert result(frame, tmp_path) == {row["id"]: {row["n"]} for row in arrived}


DEBEZIUM = """CREATE TABLE t (id INT, n INT, PRIMARY KEY (id)) CHANGES FROM debezium
    USING text OPTIONS (path '{folder}/t');
SELECT TABLE id, n FROM t;"""
UNION = """CREATE STREAM t (id INT, n INT) USING json OPTIONS (path '{folder}/t');
CREATE STREAM u (id INT, n INT) USING json OPTIONS (path '{folder}/u');
SELECT TABLE id AS _key, id, n FROM (SELECT STREAM id, n FROM t UNION ALL SELECT STREAM id, n FROM u) AS b;"""


def test_changes_of_debezium_in_files_apply_in_the_order_of_the_files(
    small_tasks: SparkSession, tmp_path: Path
) -> None:
    arrived = write(tmp_path, as_parquet=False)
    for file in (tmp_path / "t").iterdir():
        moment, lines = file.stat().st_mtime, file.read_text().splitlines()
        file.write_text("".join(f'{{"op": "u", "after": {line}}}\n' for line in lines))
        os.utime(file, (moment, moment))
    frame = ws.sql(DEBEZIUM.format(folder=tmp_path), spark=small_tasks)
    assert result(frame, tmp_path) == {row["id"]: {row["n"]} for row in arrived}


def test_files_of_a_union_arrive_part_by_part(small_tasks: SparkSession, tmp_path: Path) -> None:
    first = write(tmp_path / "0", as_parquet=False)
    write(tmp_path / "1", as_parquet=False)
    (tmp_path / "0" / "t").rename(tmp_path / "t")
    (tmp_path / "1" / "t").rename(tmp_path / "u")
    # The first row of the second part is the oldest of all, and comes after all rows of the first.
    for file in (tmp_path / "u").iterdir():
        moment = file.stat().st_mtime - 100_000_000
        file.write_text(file.read_text().replace('"n": ', '"n": 1'))
        os.utime(file, (moment, moment))
    frame = ws.sql(UNION.format(folder=tmp_path), spark=small_tasks)
    assert result(frame, tmp_path) == {row["id"]: {int(f"1{row['n']}")} for row in first}


@pytest.mark.parametrize("how", ["as it is", "in other tasks", "without a file"])
def test_a_stream_that_is_given_says_which_file_a_row_is_of(
    small_tasks: SparkSession, tmp_path: Path, how: str
) -> None:
    arrived = write(tmp_path, as_parquet=True)
    given = small_tasks.readStream.schema("id INT, n INT").parquet(str(tmp_path / "t"))
    given = given.repartition(3) if how == "in other tasks" else given
    given = given.select("id", "n").dropDuplicates(["n"]) if how == "without a file" else given
    text = "CREATE TABLE t (id INT, n INT, PRIMARY KEY (id));\nSELECT TABLE id, n FROM t;"
    found = result(ws.sql(text, t=given, spark=small_tasks), tmp_path)
    if how == "as it is":
        assert found == {row["id"]: {row["n"]} for row in arrived}
    else:
        # Of rows of one file the order is lost; the last of a key are those of its last file.
        assert found.keys() == set(range(KEYS))
    if how == "in other tasks":
        last_of_file = {row["id"]: row["n"] // 1_000 for row in arrived}
        assert {key: {n // 1_000 for n in numbers} for key, numbers in found.items()} == {
            key: {age} for key, age in last_of_file.items()
        }


@pytest.mark.parametrize("format_", ["json", "parquet"])
def test_latest_first_is_the_order_of_one_file_after_the_other(
    small_tasks: SparkSession, tmp_path: Path, format_: str
) -> None:
    write(tmp_path, as_parquet=format_ == "parquet")
    text = LAST["upserts"].format(format=format_, folder=tmp_path, options=", latestFirst 'true'")
    found = result(ws.sql(text, spark=small_tasks), tmp_path)
    oldest = {line % KEYS: line for line in range(LINES["b.json"])}
    second = {line % KEYS: 1_000 + line for line in range(LINES["a b%41.json"])}
    assert found == {key: {n} for key, n in (second | oldest).items()}


def test_files_that_spark_noted_before_the_driver_died_come_first(spark: SparkSession, tmp_path: Path) -> None:
    """Spark notes a file, and dies before it plans the batch: the next batch has this file and another one."""
    folder = tmp_path / "t"
    folder.mkdir()
    text = LAST["upserts"].format(format="json", folder=tmp_path, options=", maxFilesPerTrigger '1'")
    frame = ws.sql(text, spark=spark)
    _write_file(folder / "0.json", [{"id": 1, "n": 0}], 1_700_000_000, as_parquet=False)
    assert [[row.n for row in rows] for rows in run_all(frame, tmp_path / "checkpoint")] == [[0]]
    _write_file(folder / "z.json", [{"id": 1, "n": 1}], 1_700_000_001, as_parquet=False)
    _write_file(folder / "a.json", [{"id": 1, "n": 2}, *({"id": 2, "n": n} for n in range(99))], 1_700_000_002,
                as_parquet=False)  # fmt: skip
    (log,) = (tmp_path / "checkpoint" / "sources").iterdir()
    head, entry = (log / "0").read_text().splitlines()
    noted = json.loads(entry) | {"path": f"file://{folder}/z.json", "timestamp": 1_700_000_001_000, "batchId": 1}
    (log / "1").write_text(f"{head}\n{json.dumps(noted)}")
    batches = run_all(frame, tmp_path / "checkpoint")
    assert len(batches) == 1, "both files come in one batch"
    assert sorted((row.id, row.n, row["_change"]) for row in batches[0]) == [(1, 0, "-"), (1, 2, "+"), (2, 98, "+")]


def test_repeated_reads_have_the_same_order(small_tasks: SparkSession, tmp_path: Path) -> None:
    arrived = write(tmp_path, as_parquet=False)
    text = f"{LAST['upserts']}".replace("SELECT", "INSERT INTO out SELECT")
    sink = "CREATE SINK out USING json OPTIONS (path '{folder}/out', changes 'log');\n"
    script = read_script((sink + text).format(format="json", folder=tmp_path, options=""))
    storage = tmp_path / "storage"
    run_script(script, spark=small_tasks, storage=storage, trigger="available_now")
    [query] = questions.find_queries(script, analyze(script), storage, "", None)
    log = read_log(query.checkpoint)
    history = read_input_history(small_tasks, query.script, query.plan, log, storage)
    numbers = [row["n"] for row in arrived]
    assert [batch.rows["t"].column("n").to_pylist() for batch in history.batches if batch.rows["t"]] == [numbers]
    replay = ReplayRange(log, log.batches, log.batches[0], {})
    [source] = script.sources
    replayed = replay_stream(small_tasks, script, source, storage, replay, tmp_path / "replay", "out")
    files = sorted((tmp_path / "replay" / "batches").glob("*.parquet"))
    assert [n for file in files for n in pq.read_table(file)["n"].to_pylist()] == numbers
    assert replayed.columns[:2] == ["id", "n"]
