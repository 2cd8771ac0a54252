"""States of every family in other numbers of shards, into all kinds of sinks, and a command that is killed: minutes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.checkpoints.archives import HERE, add_rows, extract, run, sink_rows
from tests.spark.conftest import broker, kafka, postgres  # noqa: F401  # pyright: ignore[reportUnusedImport] - fixtures
from tests.spark.state.test_rescale import arrive
from tests.spark.state.test_rescale import run as run_chain
from tests.spark.state.test_rescale import sink_lines as rows_of

from watersmeet.errors import WatersmeetError
from watersmeet.queries import read_script
from watersmeet.spark.run.running import run_script
from watersmeet.spark.state.rescale import Parallelism, rescale

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

NOT_TOLD = {"nested"}
"""Queries whose states do not tell where their rows belong."""


def test_every_family_goes_on_in_other_numbers(spark: SparkSession, tmp_path: Path) -> None:
    project = extract(HERE / "format-2.tar.gz", tmp_path)
    expected = json.loads((project / "expected.json").read_text())
    before, refused = sink_rows(project), set[str]()
    for checkpoint in sorted((project / "storage" / "checkpoints").iterdir()):
        try:
            rescale(spark, checkpoint, checkpoint.name, Parallelism(5, 3))
        except WatersmeetError as error:
            assert error.getCondition() == "NOT_RESCALED"
            refused.add(checkpoint.name)
            rescale(spark, checkpoint, checkpoint.name, Parallelism(2, 3))
    assert refused == NOT_TOLD
    add_rows(project, 1)
    run(project, spark)
    after = {name: sorted((rows - before[name]).elements()) for name, rows in sink_rows(project).items()}
    assert after == {name: sorted(rows) for name, rows in expected.items()}


def test_a_command_that_is_killed_leaves_the_old_state(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path, 0)
    run_chain(spark, tmp_path, "moved")
    checkpoints = tmp_path / "storage-moved" / "checkpoints"
    before = {file: file.read_bytes() for file in checkpoints.rglob("*") if file.is_file()}
    command = [sys.executable, "-m", "watersmeet.cli", "state", "rescale", str(checkpoints.parent), "--shards", "7"]
    process = subprocess.Popen(command, start_new_session=True)
    while not list(checkpoints.glob(".new-*/seed/checkpoint")) and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert {file: file.read_bytes() for file in before} == before
    arrive(tmp_path, 1)
    run_chain(spark, tmp_path, "moved")
    run_chain(spark, tmp_path, "straight")
    assert rows_of(tmp_path, "moved") == rows_of(tmp_path, "straight")
    assert [file.name for file in checkpoints.iterdir()] == ["chain"]


STREAM = "(k STRING, t BIGINT, WATERMARK FOR t AS t - 100) USING json OPTIONS (path '{}')"
INTO = """
CREATE STREAM a {a};
CREATE STREAM b {b};
CREATE SINK counts USING postgres OPTIONS (dsn '{postgres}', table 'rescaled');
CREATE SINK pairs USING kafka
    OPTIONS (kafka.bootstrap.servers '{kafka}', topic 'rescaled', value.format 'json', partitions '2');
INSERT INTO counts SELECT TABLE a.k, count(*) AS n FROM a JOIN b WITHIN 4 ON a.k = b.k GROUP BY a.k;
INSERT INTO pairs SELECT STREAM a.k, a.t, b.t AS u FROM a JOIN b WITHIN 4 ON a.k = b.k;
"""


def test_into_a_database_and_a_topic(
    spark: SparkSession,
    tmp_path: Path,
    postgres: str,  # noqa: F811 - a fixture
    kafka: str,  # noqa: F811 - a fixture
) -> None:
    psycopg = pytest.importorskip("psycopg")
    topics = pytest.importorskip("faults.topics", reason="confluent-kafka is not installed", exc_type=ImportError)
    streams = {name: STREAM.format(tmp_path / name) for name in "ab"}
    script = read_script(INTO.format(postgres=postgres, kafka=kafka, **streams))
    for batch, scale in enumerate((Parallelism(5, 1), Parallelism(1, 2), Parallelism(3, 3))):
        arrive(tmp_path, batch)
        run_script(script, spark=spark, storage=tmp_path / "storage", trigger="available_now")
        for name in ("counts", "pairs"):
            rescale(spark, tmp_path / "storage" / "checkpoints" / name, name, scale)
    sides = [[json.loads(line) for file in (tmp_path / s).iterdir() for line in file.open()] for s in "ab"]
    pairs = [
        (a["k"], a["t"], b["t"]) for a in sides[0] for b in sides[1] if a["k"] == b["k"] and abs(a["t"] - b["t"]) <= 4
    ]
    with psycopg.connect(postgres) as connection:
        assert dict(connection.execute("SELECT k, n FROM rescaled").fetchall()) == Counter(k for k, _, _ in pairs)
    assert Counter(tuple(record.row.values()) for record in topics.read(kafka, "rescaled")) == Counter(pairs)
