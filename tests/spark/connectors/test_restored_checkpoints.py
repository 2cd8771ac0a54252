"""Sinks whose checkpoint was put back from an older copy, and sinks that two drivers write to."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import psycopg
import pytest
from pyspark.sql import SparkSession

from watersmeet.catalog import Sink
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.formats import SINK_FORMATS, sink_format
from watersmeet.formats.base import Changes, DisplaySink, MemorySink, SinkFormat
from watersmeet.formats.databases import PostgresSink
from watersmeet.formats.kafka import KafkaSink
from watersmeet.formats.lakes import DeltaSink, IcebergSink
from watersmeet.queries import read_script
from watersmeet.spark.connectors.sinks import BatchPlans
from watersmeet.spark.private.files import LocalFolder
from watersmeet.spark.run.prepare import StartOptions
from watersmeet.spark.run.running import run_script
from watersmeet.spark.run.starts import SinkAhead
from watersmeet.spark.run.watching import Listeners

pytestmark = pytest.mark.spark

STREAM = "CREATE STREAM events (id BIGINT, n BIGINT) USING json OPTIONS (path '{folder}/in', maxFilesPerTrigger '1');"
TABLE = """CREATE TABLE events (id BIGINT, n BIGINT, PRIMARY KEY (id))
    USING json OPTIONS (path '{folder}/in', maxFilesPerTrigger '1');"""


@dataclass(frozen=True)
class Case:
    """A sink, whether its query is of a table, and how its rows are read."""

    options: str
    is_table: bool
    rows: Callable[[str, Path, str], list[tuple[Any, ...]]]

    def script(self, folder: Path, address: str, name: str) -> str:
        source = (TABLE if self.is_table else STREAM).format(folder=folder)
        sink = f"CREATE SINK out {self.options.format(folder=folder, address=address, name=name)};"
        return f"{source}\n{sink}\nINSERT INTO out SELECT {'TABLE' if self.is_table else 'STREAM'} id, n FROM events;"


def rows_of_postgres(address: str, folder: Path, name: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(address) as connection:
        return connection.execute(f"SELECT id, n FROM {name} ORDER BY id, n").fetchall()  # type: ignore[arg-type]


def rows_of_files(pattern: str) -> Callable[[str, Path, str], list[tuple[Any, ...]]]:
    def rows(address: str, folder: Path, name: str) -> list[tuple[Any, ...]]:
        lines = [line for file in (folder / "out").glob(pattern) for line in file.read_text().splitlines()]
        return sorted((row["id"], row["n"]) for row in map(json.loads, lines))

    return rows


def rows_of_kafka(address: str, folder: Path, name: str) -> list[tuple[Any, ...]]:
    from faults.topics import read

    return sorted((record.row["id"], record.row["n"]) for record in read(address, name))


CASES = {
    "files": Case("USING json OPTIONS (path '{folder}/out')", False, rows_of_files("part-*")),
    "log": Case("USING json OPTIONS (path '{folder}/out', changes 'log')", True, rows_of_files("*/part-*")),
    "snapshot": Case("USING json OPTIONS (path '{folder}/out', changes 'snapshot')", True, rows_of_files("current/*")),
    "postgres": Case("USING postgres OPTIONS (dsn '{address}', table '{name}')", False, rows_of_postgres),
    "postgres-upsert": Case("USING postgres OPTIONS (dsn '{address}', table '{name}')", True, rows_of_postgres),
    "kafka": Case(
        "USING kafka OPTIONS (kafka.bootstrap.servers '{address}', topic '{name}', partitions '1', "
        "value.format 'json', delivery 'exactly_once')",
        False, rows_of_kafka,
    ),
}  # fmt: skip


WITHOUT_CASE: dict[tuple[type[SinkFormat], Changes | None], str] = {
    (KafkaSink, "log"): "records are written as those of a stream",
    (KafkaSink, "upsert"): "as those of a stream; without delivery 'exactly_once' no batch is remembered",
    **{(kind, changes): "tests/matrix/test_lakes.py" for kind in (DeltaSink, IcebergSink)
       for changes in (None, "log", "upsert")},
    **{(kind, changes): "new with every run" for kind in (DisplaySink, MemorySink) for changes in (None, "log")},
}  # fmt: skip
"""Kinds of sinks, and how they write tables, that are not among the cases: where they are tested, or why not."""


def test_every_kind_of_sink_is_tested_with_a_restored_checkpoint() -> None:
    cases: set[tuple[type[SinkFormat], Changes | None]] = set()
    for case in CASES.values():
        format_ = sink_format(read_script(case.script(Path("folder"), "address", "name")).sinks[0])
        cases.add((type(format_), cast("Changes", format_.changes) if case.is_table else None))
    kinds = {(kind, changes) for kind in SINK_FORMATS for changes in (None, *kind.takes)}
    assert kinds - cases == set(WITHOUT_CASE)


def put(folder: Path, number: int, *rows: tuple[int, int]) -> None:
    (folder / "in").mkdir(exist_ok=True)
    file = folder / "in" / f"{number}.json"
    file.write_text("".join(json.dumps({"id": id_, "n": n}) + "\n" for id_, n in rows))
    os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


@dataclass
class Query:
    """A query of a case in a folder of its own."""

    spark: SparkSession
    case: Case
    folder: Path
    address: str
    name: str
    storage: str = "storage"

    @property
    def checkpoint(self) -> Path:
        return self.folder / self.storage / "checkpoints" / "out"

    def run(self, ahead: SinkAhead = "refuse") -> list[str]:
        """Run it over what is there; what it has told."""
        news: list[str] = []
        script = read_script(self.case.script(self.folder, self.address, self.name))
        run_script(
            script,
            spark=self.spark,
            storage=self.folder / self.storage,
            trigger="available_now",
            options=StartOptions(ahead=ahead),
            listeners=Listeners(on_news=news.append),
        )
        return news

    def refusal(self, ahead: SinkAhead = "refuse") -> Refusal:
        with pytest.raises(WatersmeetError) as raised:
            self.run(ahead)
        return raised.value.refusals[0]

    def copy(self) -> Path:
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        return Path(shutil.copytree(self.checkpoint, copy))

    def put_back(self, copy: Path) -> None:
        shutil.rmtree(self.checkpoint)
        shutil.copytree(copy, self.checkpoint)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return self.case.rows(self.address, self.folder, self.name)


@pytest.fixture
def query(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Query:
    name: str = request.param
    server = name.split("-")[0]
    address = request.getfixturevalue(server) if server in ("postgres", "kafka") else ""
    return Query(spark, CASES[name], tmp_path, address, f"t{uuid4().hex}")


@pytest.mark.parametrize("query", CASES, indirect=True)
def test_an_older_copy_of_the_checkpoint_loses_no_rows(query: Query) -> None:
    put(query.folder, 0, (0, 0))
    query.run()
    copy = query.copy()
    put(query.folder, 1, (1, 1))
    query.run()
    query.put_back(copy)
    # The batch after the copy is planned again, over other rows.
    put(query.folder, 1, (1, 1), (2, 2))
    before = query.rows
    if query.case in (CASES["files"], CASES["log"]):
        query.run()
        assert query.rows == [(0, 0), (1, 1), (2, 2)]
        return
    refusal = query.refusal()
    assert refusal.condition == "SINK_AHEAD_OF_CHECKPOINT"
    assert "it has batch 1, and the checkpoint ends at batch 0" in refusal.message
    assert query.rows == before, "nothing was changed"
    if query.case is CASES["snapshot"]:
        assert "--sink-resume" in refusal.hint
        assert query.run("rewind") == ["out: out is as it was after batch 0."]
        assert query.rows == [(0, 0), (1, 1), (2, 2)]
    else:
        assert "--sink-resume" not in refusal.hint
        assert query.refusal("rewind") == refusal, "it cannot be rewound exactly"


@pytest.mark.parametrize("query", ["files", "snapshot", "postgres-upsert"], indirect=True)
def test_a_trial_on_an_imported_checkpoint_does_not_touch_the_sinks_of_production(query: Query) -> None:
    from watersmeet.spark.state.moving import export_checkpoint, import_checkpoint

    put(query.folder, 0, (0, 0))
    query.run()
    archive = query.folder / "out.state.tar.gz"
    export_checkpoint(query.checkpoint, query.folder, archive)
    import_checkpoint(archive, query.folder / "trial", query.folder)
    put(query.folder, 1, (1, 1))
    storage, query.storage = query.storage, "trial"
    refusal = query.refusal()
    assert "written by a run with another checkpoint" in refusal.message
    assert query.rows == [(0, 0)]
    query.storage = storage
    query.run()
    assert query.rows == [(0, 0), (1, 1)], "production goes on"


# Postgres


def table_in(address: str, key: tuple[str, ...] = ("id",)) -> Any:
    from watersmeet.spark.connectors.postgres import Postgres

    sink = Sink("pg", "postgres", {"url": address, "table": f"t{uuid4().hex}"})
    return Postgres(PostgresSink(sink), "query", key)


def rows_in(table: Any) -> list[tuple[Any, ...]]:
    with table.connect() as connection:
        return sorted(connection.execute(f"SELECT * FROM {table.table}").fetchall(), key=repr)


def changes(spark: SparkSession, *rows: tuple[int | None, str, str]) -> Any:
    return spark.createDataFrame([*rows], "id INT, name STRING, _change STRING")


def plans_in(folder: Path, **planned_at: int) -> BatchPlans:
    """A checkpoint that has planned batches: ``_3=1000`` is batch 3, at that time."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"run"}')
    for name, time in planned_at.items():
        (folder / "offsets" / name[1:]).write_text(f'v1\n{{"batchTimestampMs":{time}}}\n-')
    return BatchPlans(LocalFolder(folder))


def condition_of(call: Callable[[], object]) -> str:
    with pytest.raises(WatersmeetError) as raised:
        call()
    return raised.value.refusals[0].condition


def test_a_batch_of_another_plan_is_not_skipped(spark: SparkSession, postgres: str, tmp_path: Path) -> None:
    from watersmeet.spark.connectors.snapshots import LocalSnapshot

    table, snapshot = table_in(postgres), LocalSnapshot(tmp_path / "out", "parquet", {})
    planned = plans_in(tmp_path / "checkpoint", _0=1000, _1=2000)
    for sink in (table, snapshot):
        sink.write(changes(spark, (1, "a", "+")), 0, "run", planned)
        sink.write(changes(spark, (2, "b", "+")), 1, "run", planned)
        # Repeated after a failure, by this driver or by one that is slow.
        sink.write(changes(spark, (2, "b", "+")), 1, "run", planned)
        sink.write(changes(spark, (1, "a", "+")), 0, "run", planned)
    again = plans_in(tmp_path / "again", _0=1000, _1=3000)
    for sink in (table, snapshot):
        batch = changes(spark, (2, "b", "+"), (3, "c", "+"))
        assert condition_of(partial(sink.write, batch, 1, "run", again)) == "SINK_AHEAD_OF_CHECKPOINT"
    with table.connect() as connection:
        # An earlier version, which does not know of plans, has written the next batch.
        connection.execute("UPDATE watersmeet_batches SET batch = 2 WHERE query = %s", (table.writer,))
    table.write(changes(spark, (4, "d", "+")), 2, "run", plans_in(tmp_path / "later", _1=2000, _2=4000))
    assert rows_in(table) == [(1, "a"), (2, "b")]


def test_a_table_of_batches_of_an_earlier_version_gets_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    from faults.postgres import postgres as started

    with started() as server:
        table = table_in(server.get_uri())
        with table.connect() as connection:
            columns = "(query text PRIMARY KEY, batch bigint NOT NULL, run text NOT NULL)"
            connection.execute(f"CREATE TABLE watersmeet_batches {columns}")
            connection.execute("INSERT INTO watersmeet_batches VALUES (%s, 4, 'run')", (table.writer,))
        plans = plans_in(tmp_path / "checkpoint", _4=1000, _5=2000)
        table.write(changes(spark, (1, "a", "+")), 4, "run", plans)
        table.write(changes(spark, (2, "b", "+")), 5, "run", plans)
        assert rows_in(table) == [(2, "b")]
        assert table.last_batch("run") == plans.sink_batch(5)


def test_of_two_drivers_one_writes_the_first_batch(spark: SparkSession, postgres: str) -> None:
    table = table_in(postgres, ())
    batch = spark.createDataFrame([(1, "a"), (2, "b")], "id INT, name STRING")
    with table.connect() as connection:
        # What both drivers find: the tables are there, and no batch is.
        connection.execute(f"CREATE TABLE {table.table} (id int, name text)")
    table_in(postgres, ()).write(batch, 0, "run")
    with ThreadPoolExecutor(2) as drivers:
        for written in [drivers.submit(table.write, batch, 0, "run") for _ in range(2)]:
            written.result()
    assert rows_in(table) == [(1, "a"), (2, "b")]


def test_a_key_that_is_not_unique_across_batches_stops_the_query(spark: SparkSession, postgres: str) -> None:
    table = table_in(postgres)
    table.write(changes(spark, (1, "a", "+"), (2, "b", "+"), (None, "n", "+")), 0, "run")
    for row in ((1, "other", "+"), (1, "a", "+"), (None, "other", "+")):
        assert condition_of(partial(table.write, changes(spark, row), 1, "run")) == "KEY_NOT_UNIQUE"
    assert rows_in(table) == [(1, "a"), (2, "b"), (None, "n")], "the batch was not written"
    # An update, a key that comes again after it went, and one that moves to another row.
    table.write(
        changes(spark, (1, "a", "-"), (1, "A", "+"), (2, "b", "-"), (None, "n", "-"), (None, "N", "+")), 1, "run"
    )
    table.write(changes(spark, (2, "c", "+")), 2, "run")
    assert rows_in(table) == [(1, "A"), (2, "c"), (None, "N")]


def test_rows_that_were_there_before_the_query_are_replaced(spark: SparkSession, postgres: str) -> None:
    table = table_in(postgres)
    with table.connect() as connection:
        connection.execute(f"CREATE TABLE {table.table} (id int PRIMARY KEY, name text)")
        connection.execute(f"INSERT INTO {table.table} VALUES (1, 'old'), (2, 'old'), (3, 'old')")
    assert table.had_rows()
    table.write(changes(spark, (1, "a", "+")), 0, "run")
    table.write(changes(spark, (2, "b", "+")), 1, "run")
    assert rows_in(table) == [(1, "a"), (2, "b"), (3, "old")]
    # Which rows are the query's own is not known: a second row of a key replaces the first one, and the start says so.
    table.write(changes(spark, (1, "other", "+")), 2, "run")
    assert rows_in(table) == [(1, "other"), (2, "b"), (3, "old")]
    assert table.had_rows()


def test_a_table_that_is_behind_its_checkpoint_is_refused(spark: SparkSession, postgres: str, tmp_path: Path) -> None:
    query = Query(spark, CASES["postgres-upsert"], tmp_path, postgres, f"t{uuid4().hex}")
    put(tmp_path, 0, (0, 0))
    query.run()
    put(tmp_path, 1, (1, 1))
    query.run()
    with psycopg.connect(postgres) as connection:
        # The database was put back to the moment after the first batch.
        connection.execute(f"DELETE FROM {query.name} WHERE id = 1")  # type: ignore[arg-type]
        behind = "UPDATE watersmeet_batches SET batch = 0 WHERE query = %s"
        connection.execute(behind, (f"out into {query.name}",))
    put(tmp_path, 2, (2, 2))
    refusal = query.refusal()
    assert refusal.condition == "SINK_BEHIND_CHECKPOINT" and "ends at batch 0" in refusal.message
    # What the hint says is enough, for those who have put the rows right.
    with psycopg.connect(postgres) as connection:
        connection.execute(f"INSERT INTO {query.name} VALUES (1, 1)")  # type: ignore[arg-type]
        connection.execute(refusal.hint.split("`")[1])  # type: ignore[arg-type]
    query.run()
    assert query.rows == [(0, 0), (1, 1), (2, 2)]


def test_a_database_that_goes_back_while_the_query_runs_stops_it(spark: SparkSession, postgres: str) -> None:
    table = table_in(postgres)
    for number in range(3):
        table.write(changes(spark, (number, "a", "+")), number, "run")
    with table.connect() as connection:
        # A standby took over that had not got the last batch.
        connection.execute(f"DELETE FROM {table.table} WHERE id = 2")
        connection.execute("UPDATE watersmeet_batches SET batch = 1 WHERE query = %s", (table.writer,))
    batch = changes(spark, (3, "a", "+"))
    assert condition_of(partial(table.write, batch, 3, "run")) == "SINK_BEHIND_CHECKPOINT"
    assert rows_in(table) == [(0, "a"), (1, "a")]


# Kafka


@pytest.mark.parametrize("query", ["kafka"], indirect=True)
def test_the_first_batch_is_not_written_twice_when_kafka_has_forgotten_it(query: Query) -> None:
    from faults.topics import forget_groups

    put(query.folder, 0, (0, 0))
    query.run()
    # The batch was written, Spark had not heard of it, and the query was down for longer than Kafka remembers.
    for name in ("0", ".0.crc"):
        (query.checkpoint / "commits" / name).unlink(missing_ok=True)
    forget_groups(query.address, "watersmeet-out-")
    assert "batch 0 may already be in the topic" in query.refusal().message
    assert query.rows == [(0, 0)]


# Files


def files_in(folder: Path, changes: str | None) -> tuple[Any, Any]:
    """Two drivers that write with one checkpoint."""
    from watersmeet.spark.connectors.files import Files
    from watersmeet.spark.connectors.sinks import SinkTarget

    sink = Sink("out", "json", {"path": str(folder / "out")})
    target = SinkTarget(sink, "out", folder / "checkpoint", changes)  # type: ignore[arg-type]
    return Files(target), Files(target)


@pytest.mark.parametrize("changes", [None, "log"])
def test_of_two_drivers_the_later_one_writes_files(spark: SparkSession, tmp_path: Path, changes: str | None) -> None:
    first, second = files_in(tmp_path, changes)
    plans_in(tmp_path / "checkpoint", _0=1000)
    first.write(spark.range(1), 0)
    plans_in(tmp_path / "checkpoint", _0=1000, _1=2000)
    second.write(spark.range(1, 2), 1)
    assert condition_of(partial(first.write, spark.range(1, 2), 1)) == "SINK_FENCED"
    # The batch that the second one repeats is done by now, and the first one has gone on.
    plans_in(tmp_path / "checkpoint", _0=1000, _1=2000, _2=3000)
    third, _ = files_in(tmp_path, changes)
    assert condition_of(partial(third.write, spark.range(1, 2), 1)) == "SINK_FENCED"
    second.write(spark.range(2, 3), 2)
    found = spark.read.json(str(tmp_path / "out")).collect()
    assert sorted(row.id for row in found) == [0, 1, 2]
    assert [p.name for p in (tmp_path / "out" / ".watersmeet").glob("batch*")] == []
