"""Storages on HDFS and on S3: files, leases and commands, in a process with one session for both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.processes import LONG
from tests.cluster.s3 import Bucket

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]


def exercise(s3: Bucket, *parts: str) -> None:
    """Do what `tests.cluster.exercise` lists."""
    command = [sys.executable, "-m", "tests.cluster.exercise", json.dumps(s3.settings), *parts]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


def test_storage_and_a_lost_executor(hdfs: str, s3: Bucket) -> None:
    exercise(s3, f"{hdfs}/short,files,leases", f"{s3.url}/short,files,store,checkpoints,parquet,lost")


@LONG
@pytest.mark.timeout(600)
def test_attempts_that_fail_in_remote_sinks(hdfs: str, s3: Bucket) -> None:
    exercise(s3, f"{hdfs}/attempts,attempts", f"{s3.url}/attempts,attempts")


@LONG
@pytest.mark.timeout(1800)
def test_all_of_a_storage_on_hdfs(hdfs: str, s3: Bucket) -> None:
    exercise(s3, f"{hdfs}/long")


@LONG
@pytest.mark.timeout(1800)
def test_all_of_a_storage_on_s3(s3: Bucket) -> None:
    exercise(s3, f"{s3.url}/long")
