"""A run that is killed again and again loses no row and doubles none."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from tests.conftest import QUICK
from tests.spark.frames import run_all, streamed

import watersmeet as ws
from watersmeet.queries import read_script
from watersmeet.spark.run.running import run_script

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

WATERSMEET = str(Path(sys.executable).with_name("watersmeet"))
KILLS = 3
FILES = 18
MINUTES = 3
"""How much event time a file holds."""

SQL = """
CREATE STREAM orders (id BIGINT, t BIGINT, n INT, WATERMARK FOR t AS t - 600)
    USING json OPTIONS (path '{data}/orders', maxFilesPerTrigger '2');
CREATE STREAM deliveries (order_id BIGINT, t BIGINT, n INT, WATERMARK FOR t AS t - 600)
    USING json OPTIONS (path '{data}/deliveries', maxFilesPerTrigger '2');
CREATE SINK joined USING parquet OPTIONS (path '{out}');
INSERT INTO joined
SELECT STREAM o.id, o.t AS ordered, o.n, d.t AS delivered, d.n AS m
FROM orders o LEFT JOIN deliveries d ON o.id = d.order_id AND d.t BETWEEN o.t - 60 AND o.t + 900;
"""
OWN = "left.id = right.order_id AND right.t BETWEEN left.t - 60 AND left.t + 900"


def batches(seed: int) -> list[dict[str, list[dict[str, int]]]]:
    """Rows per file and source: out of order by less than the lag, some never delivered, some delivered twice."""
    chance = random.Random(seed)
    made: list[dict[str, list[dict[str, int]]]] = [{"orders": [], "deliveries": []} for _ in range(FILES)]
    for number in range(FILES * 20):
        moment = chance.randrange(FILES * MINUTES * 60)
        made[moment // (MINUTES * 60)]["orders"].append(
            {"id": number % 97, "t": moment - chance.randrange(300), "n": number}
        )
        for _ in range(chance.choice([0, 1, 1, 2])):
            later = min(moment + chance.randrange(1500), FILES * MINUTES * 60 - 1)
            row = {"order_id": number % 97, "t": later - chance.randrange(300), "n": number}
            made[later // (MINUTES * 60)]["deliveries"].append(row)
    return made


def arrive(data: Path, made: list[dict[str, list[dict[str, int]]]], pause: float) -> None:
    """Write the files one after the other; each appears whole."""
    for number, files in enumerate(made):
        for name, rows in files.items():
            hidden = data / name / f".{number:03}"
            hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
            hidden.rename(data / name / f"{number:03}.json")
        time.sleep(pause)


def start(project: Path, *options: str) -> subprocess.Popen[str]:
    """The command in a process group of its own, so that a kill takes the JVM and the workers with it."""
    command = [WATERSMEET, "run", str(project), "--master", "local[2]", "--format", "json", *options]
    command += [part for name, value in QUICK.items() for part in ("--conf", f"{name}={value}")]
    environ = {**os.environ, "SPARK_LOCAL_DIRS": str(project / "local"), "TMPDIR": str(project / "local")}
    return subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def kill_somewhere(process: subprocess.Popen[str], chance: random.Random) -> list[int]:
    """Let some batches pass, then end the process without a warning, wherever it is; the batches it reported."""
    assert process.stdout is not None
    seen: list[int] = []
    try:
        for _ in range(chance.randrange(1, 3)):
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            seen.append(json.loads(line)["batch"])
        time.sleep(chance.random() * 1.5)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return seen


def finish(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Wait for the end of a run; what it reported. Whatever happens, it is not left running."""
    try:
        said, trouble = process.communicate(timeout=120)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, trouble
    return [json.loads(line) for line in said.splitlines()]


def counted(frame: DataFrame) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row) for row in frame.collect())


def test_a_killed_run_continues_without_a_lost_or_doubled_row(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(20240101)
    made, data, project = batches(1), tmp_path / "data", tmp_path / "shop"
    for name in ("orders", "deliveries"):
        (data / name).mkdir(parents=True)
    (project / "sql").mkdir(parents=True)
    (project / "local").mkdir()
    (project / "watersmeet.yml").write_text("name: shop\n")
    (project / "sql" / "joined.sql").write_text(SQL.format(data=data, out=tmp_path / "killed"))

    writer = threading.Thread(target=arrive, args=(data, made, 0.7), daemon=True)
    writer.start()
    seen = [kill_somewhere(start(project), chance) for _ in range(KILLS)]
    writer.join()
    last = finish(start(project, "--end"))
    assert last and max(batch for part in seen for batch in part) < last[-1]["batch"], (
        "it continued, it did not begin anew"
    )
    assert sum(progress["late"] for progress in last) == 0
    assert [path.name[:15] for path in (project / "local").iterdir()] == ["watersmeet-run-"], "of the killed, nothing"

    rows = spark.read.schema("id BIGINT, t BIGINT, n INT").json(str(data / "orders")).alias("left")
    deliveries = spark.read.schema("order_id BIGINT, t BIGINT, n INT").json(str(data / "deliveries")).alias("right")
    own = rows.join(deliveries, F.expr(OWN), "left").selectExpr("left.id", "left.t", "left.n", "right.t", "right.n")
    expected = counted(own)
    # Any reader will do.
    killed = Counter(duckdb.sql(f"SELECT * FROM '{tmp_path}/killed/*.parquet'").fetchall())
    assert (killed - expected, expected - killed) == (Counter(), Counter())
    assert any(row[3] is None for row in expected) and any(row[3] is not None for row in expected)

    whole = SQL.replace("maxFilesPerTrigger '2'", "maxFilesPerTrigger '100'").format(data=data, out=tmp_path / "whole")
    run_script(read_script(whole), spark=spark, storage=tmp_path / "storage", trigger="end")
    assert counted(spark.read.parquet(str(tmp_path / "whole"))) == expected


def test_a_task_whose_worker_was_killed_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    killed = tmp_path / "killed"

    def die_once(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            if not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    rows = spark.sql("SELECT 1 AS id, TIMESTAMP'2024-01-01 12:00:00' AS t")
    left, right = (streamed(tmp_path / name, [rows]) for name in ("l", "r"))
    dying = left.mapInArrow(die_once, left.schema).withWatermark("t", "1 minute")
    joined = ws.join(dying, right.withWatermark("t", "1 minute"), "left.id = right.id", within="1 hour")
    assert sum(len(found) for found in run_all(joined, tmp_path / "checkpoint")) == 1
    assert killed.exists()
