"""A join in Spark Declarative Pipelines, run as users run it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from watersmeet.spark.session.java import prepare_java

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.skipif(find_spec("pyspark.pipelines") is None, reason="this Spark has no pipelines"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline"


def test_a_join_is_a_table_of_a_pipeline(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "pipeline")
    spec = tmp_path / "pipeline" / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/watersmeet-pipeline", f"file://{tmp_path}/storage"))
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    prepare_java(environ)
    environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ["PATH"]])
    command = [str(Path(sys.executable).with_name("spark-pipelines")), "run", "--spec", str(spec)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    rows = pq.read_table([*(tmp_path / "spark-warehouse" / "paid").glob("*.parquet")]).to_pylist()
    # Of twenty orders every other one is paid.
    assert sorted(row["id"] for row in rows) == [*range(0, 20, 2)]
