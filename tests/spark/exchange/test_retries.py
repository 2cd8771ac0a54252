"""What `make retries` does, in short: tasks that fail after their state was committed, and run again elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from faults.retries.__main__ import main

ROOT = Path(__file__).parents[3]


def test_retries_say_what_they_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "make retries" in capsys.readouterr().out


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_retried_tasks_leave_the_rows_and_the_state_of_an_undisturbed_run() -> None:
    # In a process of its own: one process has one session of Spark, and this one has two executors.
    asked = ["--only", "interval", "--kinds", "fail", "--batches", "4"]
    done = subprocess.run(
        [sys.executable, "-m", "faults.retries", *asked], cwd=ROOT, capture_output=True, text=True, timeout=390
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3_000:]
    for point in ("after commit", "before commit", "before read", "after write", "before the sink"):
        assert f"fail {point}" in done.stdout, done.stdout
