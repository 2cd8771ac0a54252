"""YARN, in client and in cluster mode, with the Python of the machine and with an environment that is shipped.

The commands are those of ``docs/deploy.md``.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from examples.cluster.__main__ import WATERSMEET, make_project, rows
from pyspark.sql import SparkSession
from tests.cluster.processes import LONG
from tests.cluster.yarn import Yarn

from watersmeet.project import resolve_paths
from watersmeet.queries import read_script
from watersmeet.spark.run.running import run_script

pytestmark = [pytest.mark.spark, LONG, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
SUBMIT = Path(sys.executable).with_name("spark-submit")
JOB = ROOT / "examples" / "submit" / "job.py"
PAID = [(1, "lamp", 35.0), (2, "rug", None), (3, "book", 18.5)]
SETTINGS = {
    # The jars of PySpark are on every node, so they are not uploaded.
    "spark.yarn.jars": f"local:{Path(sys.prefix)}/lib/python{sys.version_info[0]}.{sys.version_info[1]}"
    "/site-packages/pyspark/jars/*",
    "spark.executor.instances": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.ui.enabled": "false",
}
QUICK_EXECUTORS = {"spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
OPTIONS = [part for name, value in {**SETTINGS, **QUICK_EXECUTORS}.items() for part in ("--conf", f"{name}={value}")]


def run_client(yarn: Yarn, spark: SparkSession, folder: Path, python: str, *options: str) -> None:
    """Run a project on YARN with the command, and compare its rows with those of local mode."""
    here, there = make_project(folder / "here", orders=400), make_project(folder / "there", orders=400)
    (there.parent / "watersmeet.yml").write_text(
        f"name: shop\nstorage: {yarn.hdfs}/{folder.name}\nlibraries:\n- glob:\n    include: '*.sql'\n"
    )
    command = [WATERSMEET, "run", str(there.parent), "--once", "--master", "yarn", *OPTIONS, *options]
    done = subprocess.run(
        command, cwd=there.parent, env=yarn.environ(python), capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}\n{yarn.last_lines()}"
    script = resolve_paths(read_script(here.read_text(), here.name), here.parent)
    run_script(script, spark=spark, storage=here.parent / "storage", trigger="available_now")
    delivered, expected = rows(there.parent / "joined"), rows(here.parent / "joined")
    assert delivered == expected
    assert 390 < delivered.total() <= 400


def run_submitted(yarn: Yarn, spark: SparkSession, name: str, python: str, *options: str) -> None:
    """Submit a program whose driver runs in a container, with its checkpoint on HDFS, and check its rows."""
    folder = f"{yarn.hdfs}/{name}"
    environs = [f"spark.yarn.appMasterEnv.PYSPARK_PYTHON={python}", f"spark.executorEnv.PYSPARK_PYTHON={python}"]
    command: list[str | Path] = [
        SUBMIT, "--master", "yarn", "--deploy-mode", "cluster", *OPTIONS,
        *(part for environ in environs for part in ("--conf", environ)),
        "--conf", "spark.driver.memory=768m", "--conf", "spark.driver.extraJavaOptions=-Xss4m",
        *options, JOB, folder,
    ]  # fmt: skip
    done = subprocess.run(
        command, env=yarn.environ(sys.executable), capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, f"{done.stderr[-3000:]}\n{yarn.last_lines()}"
    paid = spark.read.json(f"{folder}/paid").select("id", "item", "amount").orderBy("id").collect()
    assert [tuple(row) for row in paid] == PAID
    checkpoint = spark.read.text(f"{folder}/checkpoint/commits").count()
    assert checkpoint > 0


def test_yarn_client_mode(yarn: Yarn, spark: SparkSession, tmp_path: Path) -> None:
    run_client(yarn, spark, tmp_path, sys.executable)


def test_yarn_client_mode_with_an_archive(yarn: Yarn, environment: Path, spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    # The driver's own look at the operator runs the Python of that name, too.
    with tarfile.open(environment) as packed:
        packed.extractall(tmp_path / "there" / "environment", filter="fully_trusted")
    archive = f"spark.yarn.dist.archives={environment}#environment"
    run_client(yarn, spark, tmp_path, "./environment/bin/python", "--conf", archive)


def test_yarn_cluster_mode(yarn: Yarn, spark: SparkSession) -> None:
    run_submitted(yarn, spark, "shared", sys.executable)


def test_yarn_cluster_mode_with_an_archive(yarn: Yarn, environment: Path, spark: SparkSession) -> None:
    run_submitted(yarn, spark, "archive", "./environment/bin/python", "--archives", f"{environment}#environment")
