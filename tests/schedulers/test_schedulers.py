"""The examples for schedulers: a DAG of Airflow, and the workflow that comments a pull request.

By default, what can be seen without Airflow and Spark. With WATERSMEET_SCHEDULERS=1 (``make schedulers``), Airflow runs
the DAG, and the script of the workflow compares a changed query with its state.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from watersmeet.cli import console
from watersmeet.cli.app import app

ROOT = Path(__file__).parents[2]
DAG, REVIEW = ROOT / "examples/airflow/shop.py", ROOT / "examples/github/review.yml"
AIRFLOW = ROOT / ".venv-airflow/bin/airflow"
WATERSMEET = Path(sys.executable).with_name("watersmeet")

is_long = pytest.mark.skipif(not os.environ.get("WATERSMEET_SCHEDULERS"), reason="make schedulers runs it")


def script_of_review() -> str:
    [job] = yaml.safe_load(REVIEW.read_text("utf-8"))["jobs"].values()
    return next(step["run"] for step in job["steps"] if step.get("id") == "check")


def test_the_dag_retries_after_the_exit_codes_that_may_be_retried() -> None:
    tree = ast.parse(DAG.read_text("utf-8"))
    final = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name) and target.id == "FINAL"
    )
    assert [*ast.literal_eval(final)] == [console.REFUSED, console.WRONG, console.MISTAKE]
    commands = [
        [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "run_watersmeet"
    ]
    assert commands == [["check"], ["run", "--once"]]
    assert "--once" in CliRunner().invoke(app, ["run", "--help"]).stdout


def test_the_script_of_the_review_is_one_that_bash_reads() -> None:
    checked = subprocess.run(["bash", "-n"], input=script_of_review(), capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    workflow = REVIEW.read_text("utf-8")
    outputs = set(re.findall(r"steps\.check\.outputs\.(\w+)", workflow))
    assert outputs == set(re.findall(r'echo "(\w+)=', script_of_review()))


@pytest.fixture
def alerts() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An address, and what was posted there."""
    posted: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", posted
    server.shutdown()
    server.server_close()


@is_long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_airflow_parses_and_runs_the_dag(tmp_path: Path, alerts: tuple[str, list[dict[str, Any]]]) -> None:
    address, posted = alerts
    shop = tmp_path / "shop"
    assert CliRunner().invoke(app, ["init", str(shop)]).exit_code == 0
    environ = {
        **os.environ, "AIRFLOW_HOME": str(tmp_path / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAG.parent), "WATERSMEET": str(WATERSMEET), "WATERSMEET_PROJECT": str(shop),
        "ALERT_URL": address,
    }  # fmt: skip

    def airflow(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([AIRFLOW, *arguments], env=environ, capture_output=True, text=True, timeout=400)

    assert airflow("db", "migrate").returncode == 0
    assert "No data found" in airflow("dags", "list-import-errors").stdout
    ran = airflow("dags", "test", "shop", "2026-03-02")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = [line for file in (shop / "output/joined").glob("*.json") for line in file.read_text().splitlines()]
    assert [json.loads(line)["order_id"] for line in lines] == [1, 2]
    assert posted == []

    sql = shop / "sql/joined.sql"
    sql.write_text(sql.read_text().replace("o.item,", "o.itme,"))
    ran = airflow("dags", "test", "shop", "2026-03-03")
    assert "UNKNOWN_COLUMN" in ran.stdout + ran.stderr
    assert [alert["text"] for alert in posted] == ["shop.check failed: a query was rejected (exit code 1)"]


@is_long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_script_of_the_review_reports_what_an_edit_does(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    assert CliRunner().invoke(app, ["init", str(shop)]).exit_code == 0
    ran = subprocess.run([WATERSMEET, "run", shop, "--once"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr

    def review() -> tuple[str, str]:
        output = tmp_path / "output"
        environ = {
            **os.environ, "PATH": f"{WATERSMEET.parent}:{os.environ['PATH']}", "PROJECT": "shop",
            "STORAGE": str(shop / "storage"), "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(tmp_path / "s"),
        }  # fmt: skip
        output.unlink(missing_ok=True)
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script_of_review()]
        subprocess.run(command, cwd=tmp_path, env=environ, check=True)
        return output.read_text(), (tmp_path / "comment.md").read_text()

    status, comment = review()
    assert (status, comment.splitlines()[0]) == ("status=0\n", "### The edit can be deployed")
    sql = shop / "sql/joined.sql"
    sql.write_text(sql.read_text().replace("INTERVAL 1 HOUR", "INTERVAL 2 HOURS"))
    status, comment = review()
    assert (status, comment.splitlines()[0]) == ("status=1\n", "### The edit needs a decision, or was rejected")
    assert "watersmeet run --accept" in comment
