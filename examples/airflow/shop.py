"""Run the queries of a project every hour with the rows that have arrived, as a DAG of Airflow.

Put it into the folder of DAGs, and set the variables below for the workers. WATERSMEET is a command of an environment
of its own: Airflow and Spark need other versions of the same packages.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from datetime import datetime, timedelta
from typing import Any
from urllib.request import Request, urlopen

from airflow.exceptions import AirflowException, AirflowFailException
from airflow.sdk import dag, task

WATERSMEET = shlex.split(os.environ.get("WATERSMEET", "/opt/watersmeet/bin/watersmeet"))
PROJECT = os.environ.get("WATERSMEET_PROJECT", "/srv/shop")
ALERT_URL = os.environ.get("ALERT_URL", "")
FINAL = {1: "a query was rejected", 2: "a file, a folder or an option is wrong", 3: "there is a bug in Watersmeet"}
"""Exit codes after which the same command would fail again. After 4, 5 and signals, a retry continues the query."""


def run_watersmeet(*arguments: str) -> None:
    """Run a command; fail for good, or so that Airflow tries again, as its exit code says."""
    command = [*WATERSMEET, *arguments]
    print(shlex.join(command), flush=True)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for line in process.stdout or ():
            print(line, end="", flush=True)
    finally:
        # Airflow stops a task by an exception: a second signal would stop the query without waiting.
        if process.poll() is None:
            process.terminate()
        code = process.wait()
    if code in FINAL:
        raise AirflowFailException(f"{FINAL[code]} (exit code {code})")
    if code:
        raise AirflowException(f"the query stopped and can continue (exit code {code})")


def alert(context: dict[str, Any]) -> None:
    """Post the failure of a task that is not tried again."""
    run, error = context["task_instance"], context.get("exception")
    text = f"{run.dag_id}.{run.task_id} failed: {error}"
    print(text, flush=True)
    if ALERT_URL:
        body = json.dumps({"text": text}).encode()
        urlopen(Request(ALERT_URL, body, {"Content-Type": "application/json"}), timeout=10).close()


@dag(
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    # Two runs of one storage exclude each other, and a later run reads what an earlier one missed.
    max_active_runs=1,
    catchup=False,
    default_args={"on_failure_callback": alert},
    tags=["watersmeet"],
)
def shop() -> None:
    """Check the queries, then process what has arrived."""

    @task(retries=0)
    def check() -> None:
        """Refuse an edit that cannot run, before Spark starts."""
        run_watersmeet("check", PROJECT)

    @task(retries=5, retry_delay=timedelta(minutes=1), retry_exponential_backoff=True)
    def run() -> None:
        """Continue from the checkpoint; a retry does so, too."""
        run_watersmeet("run", PROJECT, "--once")

    check() >> run()


shop()
