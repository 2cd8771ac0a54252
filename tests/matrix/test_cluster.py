"""A standalone cluster gives what local mode gives, to executors that have the package only because it was shipped."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from examples.cluster.__main__ import make_project, rows, run
from examples.cluster.job import join_streams
from examples.cluster.standalone import DRIVER, package_zip, standalone_cluster
from pyspark.sql import SparkSession
from tests.conftest import QUICK

from watersmeet.project import resolve_paths
from watersmeet.queries import read_script
from watersmeet.spark.run.running import run_script

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
CONF = QUICK | DRIVER | {"spark.executor.extraJavaOptions": QUICK["spark.driver.extraJavaOptions"]}

HIDE = """\
import os, sys
sys.path[:] = [part for part in sys.path if not os.path.isdir(os.path.join(part, "watersmeet"))]
"""
"""What an interpreter runs first that shall not see the installed package."""

PROGRAM = """
import json, sys
from pathlib import Path
from pyspark.errors import PySparkException
from examples.cluster.job import imported_from, join_streams
from watersmeet.spark.session import session

master, conf, package, project = sys.argv[1:]
spark = session(master, conf=json.loads(conf))
try:
    before = [str(imported_from(spark))]
except PySparkException as error:
    before = [line for line in str(error).splitlines() if "ModuleNotFoundError" in line]
spark.sparkContext.addPyFile(package)
after = sorted(imported_from(spark))
join_streams(spark, Path(project) / "data", Path(project) / "in_python")
print(json.dumps({"before": before[0], "after": after}))
spark.stop()
"""


@dataclass(frozen=True)
class ClusterWithPackage:
    """A cluster and the package that can be shipped to it."""

    master: str
    package: Path


def hide_package(folder: Path) -> Path:
    """A folder that, on the PYTHONPATH of an interpreter, keeps it from seeing the installed package."""
    made = folder / "hiding"
    made.mkdir()
    (made / "sitecustomize.py").write_text(HIDE)
    return made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterWithPackage]:
    """A master and two workers whose executors do not see the installed package."""
    folder = tmp_path_factory.mktemp("cluster")
    with standalone_cluster(folder / "spark", environ={"PYTHONPATH": str(hide_package(folder))}) as master:
        yield ClusterWithPackage(master, package_zip(folder / "watersmeet.zip"))


def test_a_script_runs_on_a_cluster_as_in_local_mode(
    spark: SparkSession, cluster: ClusterWithPackage, tmp_path: Path
) -> None:
    here, there = make_project(tmp_path / "here", orders=400), make_project(tmp_path / "there", orders=400)
    run(there, cluster.master, {**CONF, "spark.submit.pyFiles": str(cluster.package)})
    script = resolve_paths(read_script(here.read_text(), here.name), here.parent)
    run_script(script, spark=spark, storage=here.parent / "storage", trigger="available_now")
    found, expected = rows(there.parent / "joined"), rows(here.parent / "joined")
    assert found == expected
    alone = [row for row in found if row[-1] is None]
    assert 390 < found.total() <= 400 and 100 < len(alone) < 200


def test_the_python_call_runs_on_what_was_shipped(
    spark: SparkSession, cluster: ClusterWithPackage, tmp_path: Path
) -> None:
    make_project(tmp_path, orders=400)
    command = [sys.executable, "-c", PROGRAM, cluster.master, json.dumps(CONF), str(cluster.package), str(tmp_path)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert said.returncode == 0, said.stderr
    record = json.loads(said.stdout)
    assert "No module named 'watersmeet'" in record["before"]
    assert record["after"] and all(file.endswith("watersmeet.zip/watersmeet/__init__.py") for file in record["after"])
    join_streams(spark, tmp_path / "data", tmp_path / "here")
    found = rows(tmp_path / "in_python")
    assert found == rows(tmp_path / "here") and found.total() > 390
