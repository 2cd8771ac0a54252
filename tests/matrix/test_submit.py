"""A program that `spark-submit` starts: it keeps the master that it is submitted to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from watersmeet.spark.session.java import prepare_java

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
SUBMIT = Path(sys.executable).with_name("spark-submit")


def test_a_submitted_program_keeps_its_master_and_settings(tmp_path: Path) -> None:
    # Neither this process nor the session of the other tests is asked: the program has a JVM of its own.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    prepare_java(environ)
    environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    settings = {
        "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", "spark.sql.codegen.wholeStage": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -Xss4m",
    }  # fmt: skip
    told = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    job = ROOT / "examples" / "submit" / "job.py"
    command = [str(SUBMIT), "--master", "local[2,3]", *told, str(job), str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "master: local[2,3]", "rows: [(1, 'lamp', 35.0), (2, 'rug', None), (3, 'book', 18.5)]",
    ], done.stderr[-2000:]  # fmt: skip
