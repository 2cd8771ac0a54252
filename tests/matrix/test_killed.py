"""Exactly once, through kills of the process and its JVM at the moments at which rows could be lost or doubled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from watersmeet.cli.servers import broker

topics = pytest.importorskip("faults.topics", reason="confluent-kafka is not installed", exc_type=ImportError)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

# What `watersmeet run` does, and at one moment the end of its process group: nothing of it can clean up.
KILLED = """
import os, signal, sys
from watersmeet.cli import main
from watersmeet.spark.connectors import kafka

_, moment, project = sys.argv

def kill():
    os.killpg(os.getpgrp(), signal.SIGKILL)

class Killed(kafka.Producer):
    def commit_transaction(self, *arguments):
        if moment == "within":
            self.flush()
            kill()
        super().commit_transaction(*arguments)

write = kafka.Transactions.write

def killed_after(self, batch, number):
    write(self, batch, number)
    if moment == "between" and number == 1:
        kill()

kafka.Producer, kafka.Transactions.write = Killed, killed_after
sys.argv = ["watersmeet", "run", project, "--once", "--master", "local[2]"]
main()
"""
BATCHES = 4


def test_rows_are_there_once_whenever_the_process_is_killed(tmp_path: Path) -> None:
    project, data, said = tmp_path / "paid.sql", tmp_path / "in", tmp_path / "said.txt"
    data.mkdir()
    for batch in range(BATCHES):
        file = data / f"{batch}.json"
        file.write_text("".join(f"{json.dumps({'id': 10 * batch + n})}\n" for n in range(10)))
        # Spark takes files in the order of their times.
        os.utime(file, (1_700_000_000 + batch, 1_700_000_000 + batch))
    with broker() as kafka:
        project.write_text(
            "CREATE STREAM paid (id BIGINT) USING json OPTIONS (path 'in', maxFilesPerTrigger '1');\n"
            f"CREATE SINK out USING kafka OPTIONS (kafka.bootstrap.servers '{kafka.address}', topic 'out', "
            "value.format 'json', partitions '2', delivery 'exactly_once');\n"
            "INSERT INTO out SELECT STREAM id FROM paid;\n"
        )
        checkpoint = tmp_path / "paid.storage" / "checkpoints" / "out"

        def ran(moment: str) -> int:
            command = [sys.executable, "-c", KILLED, moment, str(project)]
            with said.open("ab") as file:
                own: dict[str, Any] = {"stdout": file, "stderr": file, "start_new_session": True}
                return subprocess.run(command, timeout=200, check=False, **own).returncode

        def state(isolation: str = "read_committed") -> tuple[int, int, list[int]]:
            """The latest batch that Spark has planned, the latest that it has committed, and the rows in the topic."""
            planned, committed = (
                max(int(file.name) for file in (checkpoint / name).iterdir() if file.name.isdecimal())
                for name in ("offsets", "commits")
            )
            return planned, committed, sorted(one.row["id"] for one in topics.read(kafka.address, "out", isolation))

        assert ran("between") == -signal.SIGKILL, said.read_text()
        # Kafka has a batch of which Spark does not know that it is written.
        assert state() == (1, 0, [*range(20)])
        assert ran("within") == -signal.SIGKILL, said.read_text()
        # The repeated batch was not written again; of the next one rows are there that nobody may read.
        assert state("read_uncommitted") == (2, 1, [*range(30)])
        assert ran("never") == 0, said.read_text()
        assert state() == (BATCHES - 1, BATCHES - 1, [*range(10 * BATCHES)])
        assert len(state("read_uncommitted")[2]) == 10 * BATCHES + 10, "what was left open was ended and written anew"
