"""States of every family in other numbers of shards, into all kinds of sinks, and a command that is killed: minutes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.checkpoints.kept import HERE, add_rows, extract, run, written
from tests.spark.test_rescale import arrive
from tests.spark.test_rescale import run as run_chain
from tests.spark.test_rescale import written as rows_of

from watersmeet.errors import WatersmeetError
from watersmeet.spark.state.rescale import Scale, rescale

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

NOT_TOLD = {"nested"}
"""Queries whose states do not tell where their rows belong."""


def test_every_family_goes_on_in_other_numbers(spark: SparkSession, tmp_path: Path) -> None:
    project = extract(HERE / "format-2.tar.gz", tmp_path)
    expected = json.loads((project / "expected.json").read_text())
    before, refused = written(project), set[str]()
    for checkpoint in sorted((project / "storage" / "checkpoints").iterdir()):
        try:
            rescale(spark, checkpoint, checkpoint.name, Scale(5, 3))
        except WatersmeetError as error:
            assert error.getCondition() == "NOT_RESCALED"
            refused.add(checkpoint.name)
            rescale(spark, checkpoint, checkpoint.name, Scale(2, 3))
    assert refused == NOT_TOLD
    add_rows(project, 1)
    run(project, spark)
    after = {name: sorted((rows - before[name]).elements()) for name, rows in written(project).items()}
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
