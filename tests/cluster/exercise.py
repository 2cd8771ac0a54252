"""Exercise a remote storage in one session: ``python -m tests.cluster.exercise SETTINGS URL[,STEP]...``.

``SETTINGS`` are those of the session, as JSON. Without steps, all of them are done. Each step prints a line; a failure
is a traceback.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from tests.cluster.batch_files import check_batch_files
from tests.cluster.checkpoint_files import check_checkpoint_files
from tests.cluster.s3_server import HEEDLESS
from typer.testing import CliRunner

from watersmeet.errors import WatersmeetError
from watersmeet.locations import RemoteStorage, Storage, checkpoint_at, write_whole
from watersmeet.spark import leases
from watersmeet.spark.private.checkpoint_files import local_copies
from watersmeet.spark.private.files import copy_tree, delete_tree, open_storage
from watersmeet.spark.session.doctor import ClusterNeeds, diagnose

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.memory": "512m",
}
LOCAL_CLUSTER = "local-cluster[2,1,640]"
"""Two executors, each a process with a core and 512 MB of heap."""
ON_CLUSTER = {"lost", "attempts"}
"""The steps that need executors."""
REPLACED_READS = 60


def check_files(storage: RemoteStorage) -> None:
    """Files are read, written whole, listed, created once, copied and deleted."""
    file = storage / "folder" / "a.txt"
    assert not file.exists()
    assert not (storage / "folder").is_dir()
    write_whole(file, "one")
    write_whole(file, "two")
    assert file.read_text() == "two"
    assert [entry.name for entry in file.parent.iterdir()] == ["a.txt"]
    assert file.stat().st_size == 3
    assert not file.create("other")
    new = storage / "folder" / "once"
    won: list[int] = []

    def race(number: int) -> None:
        if new.create(str(number)):
            won.append(number)

    threads = [threading.Thread(target=race, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(n) for n in won] == [new.read_text()]
    check_replaced(storage / "folder" / "replaced")
    file.parent.copy_tree(storage / "copy")
    assert [match.name for match in storage.glob("*/*.txt")] == ["a.txt", "a.txt"]
    assert sorted(match.name for match in storage.rglob("*")) == sorted(["a.txt", "once", "replaced"] * 2)
    (storage / "copy").delete_tree()
    assert not (storage / "copy" / "a.txt").exists()
    try:
        (storage / "none").read_text()
    except FileNotFoundError:
        return
    raise AssertionError("a file that is not there was read")


def check_replaced(file: RemoteStorage) -> None:
    """A file is read whole while another replaces it all the time, as heartbeats do."""
    texts = ["a" * 10, "b" * 20]
    write_whole(file, texts[0])
    is_done = threading.Event()

    def replace_often() -> None:
        while not is_done.is_set():
            for text in texts:
                write_whole(file, text)

    writer = threading.Thread(target=replace_often)
    writer.start()
    try:
        assert {file.read_text() for _ in range(REPLACED_READS)} <= {*texts}
    finally:
        is_done.set()
        writer.join()


def with_short_leases(check: Callable[[RemoteStorage], None], storage: RemoteStorage) -> None:
    """Do a check with leases that expire after seconds; runs that follow need longer ones on a busy machine."""
    before = leases.BEAT, leases.TTL, leases.WATCHED
    leases.BEAT, leases.TTL, leases.WATCHED = 0.5, 2.0, 1.2
    try:
        check(storage)
    finally:
        leases.BEAT, leases.TTL, leases.WATCHED = before


def check_leases(storage: RemoteStorage) -> None:
    """One holder at a time; a dead one loses its lease, and finds out before it commits."""
    with leases.hold_leases(storage, "shared", ["joined"]) as held:
        for use, queries, condition in (
            ("shared", ["joined"], "QUERY_IN_USE"), ("alone", [], "CHECKPOINT_IN_USE"),
        ):  # fmt: skip
            try:
                with leases.hold_leases(storage, cast("Any", use), queries):
                    raise AssertionError("the lease was taken twice")
            except WatersmeetError as error:
                assert error.refusals[0].condition == condition, error
                assert f"process {os.getpid()}" in error.refusals[0].message
        with leases.hold_leases(storage, "shared", ["other"]):
            held.check("joined")
        time.sleep(leases.TTL + 1)
        held.check("joined")
    with leases.hold_leases(storage, "shared", ["lost"]) as held:
        held.check_here()
        other = replace(leases.Holder.here(), id="another", host="elsewhere")
        assert (storage / "leases" / "query.lost" / f"{2:010}").create(other.to_text())
        refused = ""
        while "elsewhere" not in refused:
            time.sleep(leases.BEAT)
            try:
                # What a run asks all the time: its heartbeat has found out.
                held.check_here()
            except WatersmeetError as error:
                refused = error.refusals[0].message
    # A holder of another machine that stopped to write heartbeats.
    taken = leases.take_lease(storage, "query.joined")
    assert isinstance(taken, leases.Lease)
    taken.holder = replace(taken.holder, machine="another", host="elsewhere")
    taken.renew()
    found = leases.take_lease(storage, "query.joined")
    assert isinstance(found, leases.Holder)
    assert found.host == "elsewhere"
    time.sleep(leases.TTL + 0.5)
    following = leases.take_lease(storage, "query.joined")
    assert isinstance(following, leases.Lease)
    assert following.number > taken.number
    try:
        leases.Lease.check(taken)
        raise AssertionError("a lease that another has was not missed")
    except WatersmeetError as error:
        assert error.refusals[0].condition == "LEASE_LOST"
    following.release()
    # One whose process has ended on this machine does not have to expire.
    taken = leases.take_lease(storage, "query.joined")
    assert isinstance(taken, leases.Lease)
    taken.holder = replace(taken.holder, start=1)
    taken.renew()
    assert isinstance(leases.take_lease(storage, "query.joined"), leases.Lease)


def check_store(storage: RemoteStorage) -> None:
    """A store is tested once; on one that lets two create the same file, no lease is taken."""
    with leases.hold_leases(storage, "shared", ["joined"]):
        assert (storage / "leases" / leases.TESTED).is_file()
    if not str(storage).startswith("s3a:"):
        return
    heedless = storage / HEEDLESS
    for _ in range(2):
        try:
            with leases.hold_leases(heedless, "shared", ["joined"]):
                raise AssertionError("a lease was taken where two can take it")
        except WatersmeetError as error:
            assert error.refusals[0].condition == "STORAGE_WITHOUT_CONDITIONS", error
    assert not [*heedless.rglob("*")]


OUTPUTS = """
CREATE STREAM orders (WATERMARK FOR at AS at - 60) USING json OPTIONS (path 'orders');
CREATE STREAM deliveries (id BIGINT, at BIGINT, WATERMARK FOR at AS at - 60) USING json OPTIONS (path 'deliveries');
CREATE SINK joined USING json OPTIONS (path '{output}/joined');
CREATE SINK too_late USING json OPTIONS (path '{output}/too_late');
CREATE SINK broken USING json OPTIONS (path '{output}/broken');
INSERT INTO joined SELECT STREAM o.id FROM orders o
  JOIN deliveries d ON o.id = d.id AND d.at BETWEEN o.at AND o.at + 3600
LATE INTO too_late MALFORMED INTO broken;
"""


def check_outputs(url: str, project: Path, output: Storage) -> None:
    """Late and malformed rows, columns that are not declared, compaction, and a checkpoint that was put back."""
    from pyspark.sql import SparkSession

    for folder in ("sql", "orders", "deliveries"):
        (project / folder).mkdir(parents=True)
    (project / "sql" / "joined.sql").write_text(OUTPUTS.format(output=output))
    (project / "watersmeet.yml").write_text(
        f"name: outputs\nstorage: {url}\nlibraries:\n- glob:\n    include: sql/**\n"
    )

    def write(number: int, orders: list[tuple[int, object]], deliveries: list[tuple[int, object]]) -> None:
        for folder, rows in (("orders", orders), ("deliveries", deliveries)):
            text = "".join(json.dumps({"id": id_, "at": at}) + "\n" for id_, at in rows)
            (project / folder / f"{number}.json").write_text(text)

    def sink_rows(sink: str) -> list[dict[str, Any]]:
        files = sorted((output / sink).glob("*.json"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    storage = open_storage(SparkSession.active(), url)
    write(1, [(1, 1000)], [(1, 1010), (2, "?")])
    assert "no problem" in watersmeet("doctor", project)
    watersmeet("run", project, "--once")
    assert len(sink_rows("broken")) == 1
    write(2, [(2, 90_000)], [(2, 90_010)])
    watersmeet("run", project, "--once")
    restored = storage / "restored"
    copy_tree(checkpoint_at(storage, "joined"), restored)
    write(3, [(3, 1000), (4, 90_020)], [(4, 90_030)])
    watersmeet("run", project, "--once")
    assert [row["o"]["id"] for row in sink_rows("too_late")] == [3]
    # The checkpoint as it was before the last batch.
    checkpoint = checkpoint_at(storage, "joined")
    delete_tree(checkpoint)
    copy_tree(restored, checkpoint)
    write(4, [(5, 90_040)], [(5, 90_050)])
    # Its files are replaced.
    watersmeet("run", project, "--once")
    assert sorted(row["id"] for row in sink_rows("joined")) == [1, 2, 4, 5]
    assert [row["o"]["id"] for row in sink_rows("too_late")] == [3]
    said = watersmeet("compact", project)
    assert "joined: " in said and "not compacted" not in said, said
    assert len([*(output / "joined").glob("*-since-*")]) == 1
    write(5, [(6, 90_040)], [(6, 90_050)])
    watersmeet("run", project, "--once")
    assert sorted(row["id"] for row in sink_rows("joined")) == [1, 2, 4, 5, 6]


HISTORY = """
CREATE STREAM orders (id BIGINT, t BIGINT, WATERMARK FOR t AS t) USING json OPTIONS (path 'live')
AFTER json OPTIONS (path '{storage}/history', until '4', maxFilesPerTrigger '1');
CREATE SINK seen USING json OPTIONS (path 'seen');
INSERT INTO seen SELECT STREAM a.id, b.id AS next FROM orders a LEFT JOIN orders b
ON a.id + 1 = b.id AND b.t BETWEEN a.t AND a.t + 9;
"""


def check_history(storage: RemoteStorage, project: Path) -> None:
    """A history that lies there is read to its end, and the stream follows; so does a state that is rebuilt."""
    (project / "sql").mkdir(parents=True)
    for folder, files in (("made/history", (range(3), range(3, 6))), ("live", (range(2, 8),))):
        (project / folder).mkdir(parents=True)
        for number, ids in enumerate(files):
            text = "".join(json.dumps({"id": id_, "t": id_}) + "\n" for id_ in ids)
            (project / folder / f"{number}.json").write_text(text)
    storage.upload(project / "made")
    text = HISTORY.format(storage=storage)
    (project / "watersmeet.yml").write_text(
        f"name: history\nstorage: {storage}/state\nlibraries:\n- glob:\n    include: sql/**\n"
    )
    (project / "sql" / "seen.sql").write_text(text)
    assert "history" in watersmeet("run", project, "--once")
    (project / "sql" / "seen.sql").write_text(text.replace("LEFT JOIN", "FULL JOIN"))
    watersmeet("run", project, "--end", "--rebuild")
    rows = [json.loads(line) for file in (project / "seen").glob("*.json") for line in file.read_text().splitlines()]
    pairs = [(row.get("id", -1), row.get("next", 8)) for row in rows]
    # The first order waits for one that would precede it until the end.
    assert sorted(pairs) == [(n, n + 1) for n in range(-1, 8)], pairs


PARQUET = """
CREATE STREAM orders (id BIGINT, at BIGINT, day INT, name STRING, price DOUBLE, paid DECIMAL(12, 2), made TIMESTAMP,
  WATERMARK FOR at AS at) USING parquet OPTIONS (path '{url}/orders');
CREATE STREAM deliveries (id BIGINT, at BIGINT, wide STRING, WATERMARK FOR at AS at)
  USING parquet OPTIONS (path '{url}/deliver*');
SELECT STREAM o.id, o.day, o.name, o.price, o.paid, o.made, d.wide FROM orders o
  LEFT JOIN deliveries d ON o.id = d.id AND d.at BETWEEN o.at - 5 AND o.at + 5;
"""


def check_parquet(storage: RemoteStorage, folder: Path) -> None:
    """Workers read remote files of Parquet as columns, and get what Spark gets; copies of files do not stay."""
    from pyspark.sql import SparkSession

    import watersmeet as ws

    spark = SparkSession.active()
    write_orders(folder / "made")
    storage.upload(folder / "made")
    rows: dict[str, list[str]] = {}
    for reader, conversion in (("workers", "false"), ("spark", "true")):
        spark.conf.set("spark.sql.parquet.int96TimestampConversion", conversion)
        joined = ws.sql(PARQUET.format(url=storage), spark=spark)
        plan = cast("Any", joined)._jdf.queryExecution().logical().toString()
        assert plan.count("PackFiles") == (2 if reader == "workers" else 0), plan
        out = folder / reader
        writer = joined.writeStream.format("parquet").option("checkpointLocation", str(folder / f"{reader}-checkpoint"))
        writer.trigger(availableNow=True).start(str(out)).awaitTermination()
        rows[reader] = sorted(map(str, spark.read.parquet(str(out)).collect()))
    spark.conf.unset("spark.sql.parquet.int96TimestampConversion")
    assert len(rows["spark"]) > 100
    assert rows["workers"] == rows["spark"]
    # A folder of which most is not needed is left to Spark.
    narrow = "CREATE STREAM d (id BIGINT, at BIGINT, WATERMARK FOR at AS at) USING parquet OPTIONS (path '{url}');"
    query = "SELECT STREAM a.id FROM d a JOIN d b ON a.id = b.id AND a.at BETWEEN b.at AND b.at + 1;"
    plan = ws.sql(narrow.format(url=storage / "deliveries") + query, spark=spark)
    assert "PackFiles" not in cast("Any", plan)._jdf.queryExecution().logical().toString()
    addresses = [str(storage / "deliveries" / name) for name in ("0.parquet", "none.parquet")]
    frame = spark.createDataFrame([(address,) for address in addresses], "path STRING")
    copies = local_copies(spark, "path")
    assert copies is not None
    [there, gone] = [row.copy for row in frame.select(copies.alias("copy")).collect()]
    assert not Path(there).exists()
    assert not Path(gone).exists()


def write_orders(folder: Path) -> None:
    """Files of two streams, with names and values that readers may take differently."""
    for number, day in enumerate(("day=7", "day=8")):
        ids = list(range(number * 60, number * 60 + 60))
        made = [datetime(1500 + number * 600, 1, 1, tzinfo=UTC) + timedelta(microseconds=id_) for id_ in ids]
        columns = {
            "id": [None if id_ % 11 == 0 else id_ for id_ in ids],
            "at": ids,
            "name": [None if id_ % 7 == 0 else f"ü{id_}" for id_ in ids],
            "price": [(float("nan"), -0.0, 1.5, None)[id_ % 4] for id_ in ids],
            "paid": pa.array([Decimal(id_).scaleb(-2) for id_ in ids], pa.decimal128(12, 2)),
            "made": pa.array(made, pa.timestamp("us", "UTC")),
        }
        file = folder / "orders" / day / f"a b%20{number}.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(pa.table(columns), file)
    (folder / "deliveries").mkdir()
    wide = [sha256(bytes([number])).hexdigest() for number in range(40)]
    late = {"id": list(range(0, 120, 3)), "at": list(range(0, 120, 3)), "wide": wide}
    pq.write_table(pa.table(late), folder / "deliveries" / "0.parquet")
    (folder / "deliveries" / "empty.parquet").touch()


TABLE = """
CREATE TABLE items (id BIGINT, n BIGINT, PRIMARY KEY (id)) USING json OPTIONS (path 'items');
CREATE SINK held USING json OPTIONS (path '{output}', changes 'snapshot');
INSERT INTO held SELECT TABLE id, n FROM items;
"""


def check_sink_resume(url: str, project: Path, output: Storage) -> None:
    """A checkpoint that was put back is refused where the sink remembers a later batch, until the sink is rewound."""
    from pyspark.sql import SparkSession

    for folder in ("sql", "items"):
        (project / folder).mkdir(parents=True)
    (project / "sql" / "held.sql").write_text(TABLE.format(output=output))
    (project / "watersmeet.yml").write_text(f"name: held\nstorage: {url}\nlibraries:\n- glob:\n    include: sql/**\n")
    storage = open_storage(SparkSession.active(), url)

    def run(number: int, *options: str, expects: int = 0) -> str:
        (project / "items" / f"{number}.json").write_text(json.dumps({"id": number, "n": number}) + "\n")
        return watersmeet("run", project, "--once", *options, expects=expects)

    run(1)
    copy_tree(checkpoint_at(storage, "held"), storage / "restored")
    run(2)
    checkpoint = checkpoint_at(storage, "held")
    delete_tree(checkpoint)
    copy_tree(storage / "restored", checkpoint)
    assert "--sink-resume" in run(3, expects=1)
    run(3, "--sink-resume")
    current = output / "current"
    shown = output / current.read_text().strip() if current.is_file() else current
    ids = [json.loads(line)["id"] for file in shown.glob("*.json") for line in file.read_text().splitlines()]
    assert sorted(ids) == [1, 2, 3], ids
    watersmeet("compact", project)


CHANGES = "id INT, n INT, _change STRING"
VERSIONS = 4
READ_SECONDS = 0.05


def check_snapshots(spark: SparkSession, storage: RemoteStorage) -> None:
    """A reader sees whole tables while versions follow each other; of two drivers one is refused."""
    from watersmeet.spark.connectors.snapshots import RemoteSnapshot

    table, slow = (RemoteSnapshot(storage / "table", "json", {}, lambda: None) for _ in range(2))

    def write(snapshot: RemoteSnapshot, number: int, rows: list[tuple[int, int, str]]) -> None:
        snapshot.write(spark.createDataFrame(rows, CHANGES), number, "run")

    def read_numbers() -> list[int]:
        current = table.folder / (table.folder / "current").read_text().strip()
        lines = [line for file in current.glob("*.json") for line in file.read_text().splitlines()]
        return sorted(json.loads(line)["n"] for line in lines)

    # All rows of a version have its number.
    write(table, 0, [(id_, 0, "+") for id_ in range(6)])
    seen: list[list[int]] = []
    is_done = threading.Event()

    def read_often() -> None:
        while not is_done.is_set():
            seen.append(read_numbers())
            time.sleep(READ_SECONDS)

    reader = threading.Thread(target=read_often)
    reader.start()
    try:
        for number in range(1, VERSIONS):
            write(
                table, number, [(id_, number - 1, "-") for id_ in range(6)] + [(id_, number, "+") for id_ in range(6)]
            )
    finally:
        is_done.set()
        reader.join()
    assert read_numbers() == [VERSIONS - 1] * 6
    assert seen and all(numbers == [numbers[0]] * 6 for numbers in seen), seen
    # One that began with the same version, and is overtaken while it writes.
    rows_written = slow._write

    def overtake(*arguments: Any) -> None:
        rows_written(*arguments)
        write(table, VERSIONS, [(6, VERSIONS - 1, "+")])

    object.__setattr__(slow, "_write", overtake)
    try:
        write(slow, VERSIONS, [(7, VERSIONS - 1, "+")])
        raise AssertionError("two drivers have written the same batch")
    except WatersmeetError as error:
        assert error.refusals[0].condition == "SINK_FENCED", error
    assert read_numbers() == [VERSIONS - 1] * 7
    names = {entry.name.partition("-run@")[0] for entry in table.folder.iterdir()}
    assert names == {".watersmeet", "current", f"_version-{VERSIONS - 1}", f"_version-{VERSIONS}"}, names


STATIC = """
CREATE TABLE items (id INT, name STRING, PRIMARY KEY (id)) USING json OPTIONS (path '{folder}/items', static 'true');
CREATE SINK copied USING json OPTIONS (path '{folder}/copied', changes 'log');
INSERT INTO copied SELECT TABLE i.* FROM items i;
"""


def check_static_tables(storage: RemoteStorage, folder: Path) -> None:
    """A table is copied once, and a copy that is not whole is written again."""
    from pyspark.sql import SparkSession

    from watersmeet.queries import read_script
    from watersmeet.spark.run.running import run_script

    (folder / "items").mkdir()
    (folder / "items" / "0.json").write_text('{"id": 1, "name": "tea"}\n')
    script, spark = read_script(STATIC.format(folder=folder)), SparkSession.active()
    for number in range(2):
        run_script(script, spark=spark, storage=storage, trigger="available_now")
        lines = [line for file in (folder / "copied").rglob("*.json") for line in file.read_text().splitlines()]
        assert [json.loads(line)["name"] for line in lines] == ["tea"], (number, lines)
    [copy] = (storage / "static").iterdir()
    (copy / "_declaration.json").unlink()
    checkpoint_at(storage, "copied").delete_tree()
    other = read_script(STATIC.format(folder=folder).replace("copied", "again"))
    run_script(other, spark=spark, storage=storage, trigger="available_now")
    assert spark.read.parquet(str(copy)).count() == 1
    assert (copy / "_declaration.json").is_file()


def watersmeet(*arguments: object, expects: int = 0) -> str:
    """The output of a command."""
    from watersmeet.cli.app import app

    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    print("$ watersmeet", *arguments, "\n", done.stdout[-1500:], done.stderr[-1500:], flush=True)
    if done.exit_code != expects:
        raise AssertionError(f"{arguments}: {done.exit_code}") from done.exception
    return done.stdout + done.stderr


def check_run(url: str, folder: Path) -> None:
    """A project with its storage there runs, is refused while another has it, and continues after a rescale."""
    from pyspark.sql import SparkSession

    shop = folder / "shop"
    watersmeet("init", shop)
    move_storage(shop, f"{url}/shop")
    watersmeet("run", shop, "--once")
    watersmeet("state", "rescale", shop, "--shards", "3", "--partitions", "3")
    with leases.hold_leases(open_storage(SparkSession.active(), f"{url}/shop"), "shared", ["joined"]):
        assert "QUERY_IN_USE" in watersmeet("run", shop, "--once", expects=4)
    said = watersmeet("run", shop, "--end")
    assert [row["order_id"] for row in rows_of(shop)] == [1, 2, 3], said


def check_lost_executor(url: str, folder: Path) -> None:
    """A run on two executors delivers all rows though one of them is killed within its batch."""
    from pyspark.sql import SparkSession

    check_doctor(SparkSession.active(), url, folder)
    shop = folder / "shop"
    watersmeet("init", shop)
    move_storage(shop, f"{url}/shop")
    watersmeet("run", shop, "--once")
    killer = threading.Thread(target=kill_executor, args=[SparkSession.active()])
    killer.start()
    said = watersmeet("run", shop, "--end")
    killer.join()
    assert [row["order_id"] for row in rows_of(shop)] == [1, 2, 3], said


def check_doctor(spark: SparkSession, url: str, folder: Path) -> None:
    """Two executors say what they see of folders and servers."""
    for number in range(4):
        write_whole(cast("RemoteStorage", open_storage(spark, f"{url}/read/day=1/{number}.json")), "{}")
    needs = ClusterNeeds(
        f"{url}/doctor", {"here": str(folder)}, {},
        of_driver={"db": "127.0.0.1:1"},
        read={"orders": f"{url}/read/day=*", "nothing": f"{url}/nothing"},
        written={"joined": f"{url}/out/joined"},
    )  # fmt: skip
    results = list(diagnose(spark, needs, 2))
    print(*results, sep="\n", flush=True)
    assert {(result.check, result.message.partition(":")[0]) for result in results if result.status == "problem"} == {
        ("inputs", "nothing"), ("servers", "db"),
    }  # fmt: skip
    messages = [result.message for result in results]
    assert any(message.startswith("2 executors answered") for message in messages)
    assert f"orders: executors read 4 files of {url}/read/day=*" in messages
    assert f"joined: the driver and all executors read and write {url}/out" in messages


def kill_executor(spark: SparkSession) -> None:
    """Kill an executor of a local cluster as soon as a job of its session has tasks that run."""
    tracker = spark.sparkContext.statusTracker()
    jobs: list[int] = []
    while not any((job := tracker.getJobInfo(number)) and job.status == "RUNNING" for number in jobs):
        jobs = [*tracker.getActiveJobsIds()]
        time.sleep(0.01)
    executors = [
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if "CoarseGrainedExecutorBackend" in read_command(process) and f":{driver_port(spark)}" in read_command(process)
    ]
    assert len(executors) == 2, executors
    os.kill(min(executors), signal.SIGKILL)
    print("killed an executor", flush=True)


def read_command(process: Path) -> str:
    """The command line of a process."""
    with suppress(OSError):
        return (process / "cmdline").read_text("utf-8", "replace")
    return ""


def driver_port(spark: SparkSession) -> str:
    """The port that executors of a session connect to."""
    return spark.sparkContext.getConf().get("spark.driver.port") or "?"


def check_commands(url: str, folder: Path) -> None:
    """A project with its storage there is looked into, exported, imported and rebuilt."""
    from pyspark.sql import SparkSession

    import watersmeet as ws

    shop = folder / "looked-into"
    watersmeet("init", shop)
    move_storage(shop, f"{url}/looked-into")
    watersmeet("run", shop, "--once")
    watersmeet("state", "rescale", shop, "--shards", "3", "--partitions", "3")
    kept = json.loads(watersmeet("state", "show", shop, "--format", "json").partition("\n]")[0] + "]")
    assert (kept[0]["query"], kept[0]["shards"], kept[0]["batch"]) == ("joined", 3, 0)
    assert "order_id" in watersmeet("state", "read", shop, "--side", "d")
    watersmeet("state", "read", shop, "--side", "d", "--as", "parquet", "--into", f"{url}/read")
    assert SparkSession.active().read.parquet(f"{url}/read").count()
    watersmeet("explain", shop, "--forecast", "--rate", "10/s", "--conf", "spark.ui.enabled=false")
    archive = f"{url}/joined.tar.gz"
    watersmeet("state", "export", shop, "--to", archive)
    watersmeet("run", shop, "--end")
    for name in (checkpoint_name(f"{url}/looked-into"), "checkpoints/joined"):
        assert "no problems" in watersmeet("state", "check", f"{url}/looked-into/{name}")
    assert "no delivery" not in watersmeet("why", shop, "orders", "order_id=3")
    assert "would continue with its state" in watersmeet("check", shop, "--against", f"{url}/looked-into")
    assert ws.progress(shop)["joined"].rows_in == 5
    check_page(shop)
    pieces = open_storage(SparkSession.active(), f"{url}/looked-into/log").rglob("*")
    logged = "".join(piece.read_text() for piece in pieces)
    assert "joined" in logged, logged
    # The state as it was exported, in another project, with a query that has to rebuild it.
    other = folder / "other"
    watersmeet("init", other)
    move_storage(other, f"{url}/other")
    watersmeet("state", "import", archive, other)
    assert "no problems" in watersmeet("state", "check", other)
    sql = other / "sql" / "joined.sql"
    sql.write_text(sql.read_text().replace("INTERVAL 1 HOUR", "INTERVAL 2 HOURS"))
    assert "is rebuilt" in watersmeet("run", other, "--rebuild", "--once")
    assert "no problems" in watersmeet("state", "check", other)
    assert "The page is at" in watersmeet("run", other, "--end", "--page", "0")


def check_page(project: Path) -> None:
    """The page of a project, by a process of its own, shows the query that has run."""
    from pyspark.sql import SparkSession

    settings = dict(SparkSession.active().sparkContext.getConf().getAll())
    wanted = {name: value for name, value in settings.items() if name.startswith(("spark.hadoop.", "spark.jars"))}
    command = [str(Path(sys.executable).with_name("watersmeet")), "page", str(project), "--port", "0"]
    command += [part for name, value in wanted.items() for part in ("--conf", f"{name}={value}")]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    # The address is in the standard error.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, env=environ
    ) as process:
        assert process.stdout is not None
        try:
            address = next(match[0] for line in process.stdout if (match := re.search(r"http://[\w.:]+", line)))
            with urllib.request.urlopen(f"{address}/api/query/joined", timeout=60) as answer:
                assert json.load(answer)["rows_in"] == 5
        finally:
            process.terminate()


def move_storage(project: Path, url: str) -> None:
    """Let a project have its storage there."""
    settings = project / "watersmeet.yml"
    settings.write_text(settings.read_text().replace("storage: storage", f"storage: {url}"))
    assert f"storage: {url}" in settings.read_text(), settings.read_text()


def checkpoint_name(storage: str) -> str:
    """Where the checkpoint is after a rescale, in a storage."""
    from pyspark.sql import SparkSession

    place = checkpoint_at(open_storage(SparkSession.active(), storage), "joined")
    assert place.name.startswith("joined@")
    return f"checkpoints/{place.name}"


def rows_of(project: Path) -> list[dict[str, Any]]:
    """The rows that a project wrote, by order."""
    files = sorted((project / "output/joined").glob("*.json"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return sorted(rows, key=lambda row: row["order_id"])


def steps_at(spark: SparkSession, url: str, folder: Path) -> dict[str, Callable[[], None]]:
    """The exercises of a storage, by name. ``folder``: for projects, on this machine."""
    storage = cast("RemoteStorage", open_storage(spark, f"{url}/unit"))
    return {
        "files": partial(check_files, storage),
        "checkpoints": partial(check_checkpoint_files, spark, storage / "checkpoints"),
        "store": partial(check_store, storage / "store"),
        "leases": partial(with_short_leases, check_leases, storage),
        "run": partial(check_run, url, folder),
        "lost": partial(check_lost_executor, url, folder),
        "attempts": partial(check_batch_files, spark, storage / "attempts"),
        "commands": partial(check_commands, url, folder),
        "parquet": partial(check_parquet, storage / "parquet", folder / "parquet"),
        "history": partial(check_history, storage / "after", folder / "after"),
        "static": partial(check_static_tables, storage / "tables", folder),
        "outputs": partial(check_outputs, f"{url}/outputs", folder / "outputs", folder / "local"),
        "resume": partial(check_sink_resume, f"{url}/resume", folder / "resume", folder / "held"),
        "rewound": partial(check_sink_resume, f"{url}/rewound", folder / "rewound", storage / "held"),
        "snapshots": partial(check_snapshots, spark, storage / "snapshots"),
        "remote": partial(check_outputs, f"{url}/remote", folder / "remote", storage / "output"),
    }


def main() -> None:
    """Do all of it, or some."""
    from watersmeet.spark.session import session

    settings, *asked = sys.argv[1:]
    began = time.monotonic()
    has_executors = any(ON_CLUSTER & {*part.split(",")} for part in asked)
    # What Spark says of executors that are killed would hide a traceback.
    log = Path(tempfile.mkdtemp(prefix="exercise-")) / "spark.log"
    master = LOCAL_CLUSTER if has_executors else "local[2]"
    spark = session(master, conf={**QUICK, **json.loads(settings)}, log=log)
    print(f"session {time.monotonic() - began:.1f}", flush=True)
    for part in asked:
        url, _, names = part.partition(",")
        with tempfile.TemporaryDirectory() as folder:
            steps = steps_at(spark, url, Path(folder))
            for name in names.split(",") if names else (name for name in steps if name not in ON_CLUSTER):
                steps[name]()
                print(f"{url} {name} {time.monotonic() - began:.1f}", flush=True)


if __name__ == "__main__":
    main()
