"""The command on Spark: a run that is interrupted and continued, and a small demo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from watersmeet.cli.demo import run_demo
from watersmeet.cli.init import init_project
from watersmeet.cli.run import Cluster
from watersmeet.demo.streams import make_streams

WATERSMEET = str(Path(sys.executable).with_name("watersmeet"))


@pytest.mark.spark
def test_an_interrupted_run_stops_cleanly_and_continues(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    init_project(shop)
    command = [WATERSMEET, "run", str(shop), "--master", "local[2]"]
    # In a group of its own, as a shell does it: Ctrl-C reaches the JVM and the workers too.
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert (first["query"], first["rows_in"]) == ("joined", 5)
    assert process.returncode == 0, said
    assert said == f"Stopped. Nothing is lost: `watersmeet run {shop}` continues from {shop}/storage.\n"

    ended = subprocess.run([*command, "--end", "--format", "json"], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert [json.loads(line)["rows_in"] for line in ended.stdout.splitlines()] == [0], "only the end is left"
    rows = [
        json.loads(line)
        for file in (shop / "output" / "joined").glob("*.json")
        for line in file.read_text().splitlines()
    ]
    assert sorted((row["order_id"], row.get("courier")) for row in rows) == [(1, "north"), (2, None), (3, None)]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_demo_agrees_with_the_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    streams = make_streams(orders=600, files=8)
    assert streams.truth.late > 0
    with pytest.raises(typer.Exit) as ended:
        run_demo(tmp_path / "demo", Cluster(master="local[2]"), streams, seconds=1)
    shown = capsys.readouterr().out
    assert ended.value.exit_code == 0, shown
    assert shown.count("✓") == 3
    assert "Every pair is the right one." in shown
