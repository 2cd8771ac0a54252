"""The command on Spark: a run that is interrupted and continued, and a small demo."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from pyspark.sql import SparkSession
from tests.conftest import QUICK
from tests.tools.studio.page.test_problems import webhook
from typer.testing import CliRunner

from watersmeet.cli.app import app
from watersmeet.cli.demo import make_streams, run_demo
from watersmeet.cli.init import init_project
from watersmeet.cli.run import Cluster
from watersmeet.cli.script import open_script
from watersmeet.spark.run.running import run_script
from watersmeet.spark.run.watching import Listeners

WATERSMEET = str(Path(sys.executable).with_name("watersmeet"))
ON_LITTLE_DATA = [part for name, value in QUICK.items() for part in ("--conf", f"{name}={value}")]


STARTING = "Starting Spark ...\nWaiting for the first batch ...\n"
"""What the standard error has before the first batch, where it is not a terminal."""


def couriers(shop: Path) -> dict[int, str | None]:
    """The courier of each order that came out, and each came out once."""
    files = (shop / "output" / "joined").glob("*.json")
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    found = {row["order_id"]: row.get("courier") for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.spark
def test_an_interrupted_run_stops_cleanly_and_continues(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    init_project(shop)
    command = [WATERSMEET, "run", str(shop), "--master", "local[2]", *ON_LITTLE_DATA]
    # In a group of its own, as a shell does it: Ctrl-C reaches the JVM and the workers too.
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert first.startswith("joined: batch 0, 5 rows in, 3 out, 2 kept, ")
    assert process.returncode == 130, said
    assert said == f"{STARTING}Stopped. Nothing is lost: `watersmeet run {shop}` continues from {shop}/storage.\n"

    ended = subprocess.run([*command, "--end", "--format", "json"], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert [json.loads(line)["rows_in"] for line in ended.stdout.splitlines()] == [0], "only the end is left"
    assert couriers(shop) == {1: "north", 2: None, 3: None}


def java_of(pid: int) -> int:
    """The JVM among the processes that one has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (java,) = [int(child) for child in children if Path(f"/proc/{child}/comm").read_text() == "java\n"]
    return java


@pytest.mark.spark
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for the JVM in /proc")
def test_a_spark_that_dies_is_reported_without_stacks(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    init_project(shop)
    command = [WATERSMEET, "run", str(shop), "--master", "local[2]", *ON_LITTLE_DATA]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("joined: batch 0, 5 rows in")
        os.kill(java_of(process.pid), signal.SIGKILL)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 5, said
    first, hint = said.removeprefix(STARTING).splitlines()
    assert first.startswith("[SPARK_DIED] The Spark process ended before its queries did (by signal 9).")
    assert hint.startswith("Hint: run again")


def test_a_spark_that_does_not_live_is_started_again_but_not_for_ever(tmp_path: Path) -> None:
    init_project(tmp_path / "shop")
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "21"\' >&2 || exit 1\n')
    java.chmod(0o755)
    command = [WATERSMEET, "run", str(tmp_path / "shop"), "--restart", "on-failure", "--restart-limit", "1"]
    environ = {**os.environ, "JAVA_HOME": str(tmp_path / "home")}
    ended = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 5, ended.stderr
    first, again, second, hint = ended.stderr.replace("Starting Spark ...\n", "").splitlines()
    assert first.startswith("Spark did not start: ") and again == "Restarting in 1 s (1 of 1)."
    assert second.startswith("[SPARK_NOT_STARTED] Spark did not start: ") and "spark.log" in hint


BAD = """
CREATE SINK bad USING json OPTIONS (path 'output/bad');
INSERT INTO bad SELECT STREAM o.order_id, 1 / (o.order_id - 1) AS x, d.courier
FROM orders o JOIN deliveries d ON o.order_id = d.order_id
    AND d.delivery_time BETWEEN o.order_time AND o.order_time + INTERVAL 1 HOUR;
"""


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_query_that_fails_is_started_again_and_takes_no_other_with_it(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    init_project(shop)
    (shop / "sql" / "joined.sql").write_text((shop / "sql" / "joined.sql").read_text() + BAD)
    with (shop / "data" / "orders" / "0001.json").open("a") as orders:
        orders.write('{"order_id": 4, "item": "late", "order_time": "2030-01-01T00:00:00Z"}\n')
    runner = CliRunner()
    stopped = runner.invoke(app, ["run", str(shop), "--end", "--fail-fast"])
    assert (stopped.exit_code, stopped.stderr.count("failed, restarting")) == (4, 0)
    assert "[QUERY_FAILED]" in stopped.stderr and "DIVIDE_BY_ZERO" in stopped.stderr
    assert 4 not in couriers(shop), "nothing was declared finished"

    restarting = ["run", str(shop), "--end", "--restart", "on-failure", "--restart-limit", "1"]
    with webhook() as (url, alerts, _):
        ended = runner.invoke(app, restarting, env={"WATERSMEET_WEBHOOK": url})
    assert [(one["query"], one["level"]) for one in alerts if one["kind"] == "failures" and not one["about"]] == [
        ("bad", "stopped")
    ]
    assert ended.exit_code == 4, ended.stderr
    assert "bad: failed, restarting in 1 s (1 of 1)" in ended.stderr
    assert ended.stderr.count("[QUERY_FAILED]") == 1
    assert couriers(shop) == {1: "north", 2: None, 3: None, 4: None}


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_broker_that_does_not_answer_is_reported_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = f"127.0.0.1:{listening.getsockname()[1]}"
    script = tmp_path / "query.sql"
    script.write_text(
        f"""CREATE STREAM a (id INT, t BIGINT, WATERMARK FOR t AS t - 0) USING kafka
            OPTIONS (subscribe 'orders', 'kafka.bootstrap.servers' '{server}', value.format 'json');
        SELECT STREAM x.id FROM a x JOIN a y WITHIN 5 ON x.id = y.id;"""
    )
    refused = CliRunner().invoke(app, ["run", str(script), "--once"])
    assert refused.exit_code == 4, refused.output
    assert "[BROKER_UNREACHABLE] `a` reads `orders` in Kafka" in refused.stderr
    assert f"{server} (connection refused)" in refused.stderr and f"{script}:1:" in refused.stderr


@pytest.mark.spark
def test_a_run_without_new_rows_says_so_and_ends(spark: SparkSession, tmp_path: Path) -> None:
    init_project(tmp_path / "shop")
    command = ["run", str(tmp_path / "shop"), "--once"]
    first, again = (CliRunner().invoke(app, command) for _ in range(2))
    assert first.stderr.startswith(f"{STARTING}Done: joined is in ") and "batch 0" in first.stdout
    assert (again.exit_code, again.stdout) == (0, "")
    assert again.stderr.startswith(f"{STARTING}joined: no new rows.\nDone: joined is in ")

    # One that goes on says that it waits.
    opened, news = open_script(tmp_path / "shop", "absolute"), list[str]()
    with pytest.raises(KeyboardInterrupt):
        run_script(
            opened.script,
            spark=spark,
            storage=tmp_path / "shop" / "storage",
            trigger="continuous",
            listeners=Listeners(on_news=news.append, is_interrupted=lambda: bool(news)),
        )
    assert news == ["joined: no new rows yet; it waits for some."]


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
    assert "All pairs are correct." in shown
