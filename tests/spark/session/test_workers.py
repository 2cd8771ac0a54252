"""Sessions that are not ours: workers run this interpreter, or it is told at the call that they cannot run a join."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]

JOB = """
import json, os, sys
from pathlib import Path

source, folder = sys.argv[1:]
sys.path.insert(0, source)
from pyspark.sql import SparkSession
import watersmeet as ws
from watersmeet.spark.session import workers

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
Path(folder, "rows").mkdir()
Path(folder, "rows", "1.json").write_text('{"id": 1, "t": "2024-01-01T12:00:00Z"}')


def plain_session():
    # As anybody builds one: nothing of ours is set.
    spark = SparkSession.builder.master("local[1]").config("spark.sql.shuffle.partitions", "1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def joined(spark):
    rows = spark.readStream.schema("id INT, t TIMESTAMP").json(f"{folder}/rows").withWatermark("t", "1 second")
    return ws.join(rows, rows, "left.id = right.id", within="1 second")


def refusal(spark):
    try:
        joined(spark)
    except ws.WatersmeetError as error:
        return [error.getCondition(), error.refusals[0].message, error.refusals[0].hint]


told = {}
spark = plain_session()
result = joined(spark)
query = result.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint")
query = query.trigger(availableNow=True).start()
query.awaitTermination()
told["python"] = spark.sparkContext.pythonExec
told["matched"] = ws.progress(query).matched
spark.conf.set(PROVIDER, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
told["provider"] = refusal(spark)
spark.stop()
os.environ["PYSPARK_PYTHON"] = "python3"
spark = plain_session()
told["bare"] = refusal(spark)
spark.stop()
# What another version on the executors looks like from here.
os.environ["PYSPARK_PYTHON"], workers.__version__ = sys.executable, "99.0.0"
told["version"] = refusal(plain_session())
print(json.dumps(told))
"""


def test_workers_of_a_plain_session(tmp_path: Path) -> None:
    """The job is run as users do, by an interpreter that is not ``python3`` of the PATH: that one has no package."""
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    (tmp_path / "job.py").write_text(JOB)
    environ = {k: v for k, v in os.environ.items() if k not in ("PYSPARK_PYTHON", "PYTHONPATH", "SPARK_LOCAL_DIRS")}
    environ |= {"PATH": f"{tmp_path / 'bare' / 'bin'}{os.pathsep}{environ['PATH']}"}
    command = [sys.executable, "job.py", str(ROOT / "src"), str(tmp_path)]
    found = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=280)
    assert found.returncode == 0, found.stderr[-3000:]
    record: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])

    assert (record["python"], record["matched"]) == (sys.executable, 1), "it ran, with this interpreter and RocksDB"
    assert record["provider"][0] == "STATE_STORE_PROVIDER" and "HDFSBacked" in record["provider"][1]
    condition, message, hint = record["bare"]
    assert condition == "WORKERS_UNFIT" and ("pyarrow" in message.lower() or "watersmeet" in message)
    assert hint == 'add `os.environ["PYSPARK_PYTHON"] = sys.executable` before the session starts.'
    assert record["version"][0] == "WORKERS_UNFIT" and "this is 99.0.0" in record["version"][1]
