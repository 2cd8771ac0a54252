"""Queries that ran on an earlier Spark are exported, imported elsewhere, and go on with this one: minutes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from tests.checkpoints.archives import QUERIES, add_rows, run, sink_rows
from tests.cli.test_commands import watersmeet

ROOT = Path(__file__).parents[2]
EARLIER = ROOT / ".venv-spark-4.2.1" / "bin" / "python"
MOVED = ("chain", "partitions", "versions", "grouped")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        pyspark.__version__.startswith(("4.0.", "4.1.", "4.2.")), reason="states of 4.2.1 go on with a later Spark only"
    ),
    pytest.mark.skipif(not EARLIER.exists(), reason="there is no .venv-spark-4.2.1, which `make matrix` makes"),
]


def project(folder: Path) -> Path:
    """A project with some of the queries of the kept checkpoints, and their first rows."""
    assert watersmeet("init", folder).exit_code == 0
    head, *inserts = QUERIES.read_text().split("INSERT INTO ")
    chosen = [insert for insert in inserts if insert.startswith(MOVED)]
    head = re.sub(rf"(?m)^CREATE SINK (?!({'|'.join(MOVED)}) ).*\n", "", head)
    (folder / "sql" / "joined.sql").write_text("INSERT INTO ".join([head, *chosen]))
    for name in ("data", "cases"):
        shutil.rmtree(folder / name)
    add_rows(folder, 0)
    return folder


def with_earlier_spark(*arguments: object) -> None:
    """The command, with the Spark of the other environment."""
    command = [str(EARLIER), "-m", "watersmeet.cli", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_states_go_on_with_a_later_spark(spark: SparkSession, tmp_path: Path) -> None:
    before, after = project(tmp_path / "before"), tmp_path / "after"
    with_earlier_spark("run", before, "--once", "--master", "local[2]")
    shutil.copytree(before, after, ignore=shutil.ignore_patterns("storage", "output"))
    for query in MOVED:
        archive = tmp_path / f"{query}.tar.gz"
        with_earlier_spark("state", "export", before, "--query", query, "--to", archive)
        assert f"Imported {query} into " in watersmeet("state", "import", archive, after).stdout
    told = (after / "storage" / "checkpoints" / "chain" / "watersmeet.json").read_text()
    assert '"spark": "4.2.1"' in told
    assert watersmeet("state", "check", after).stdout.count("no problems") == len(MOVED)
    straight = project(tmp_path / "straight")
    queries = straight / "sql" / "joined.sql"
    run(straight, spark, queries)
    first = sink_rows(straight)
    assert sink_rows(before) == first
    for one in (straight, after):
        add_rows(one, 1)
        run(one, spark, queries)
    expected = {name: rows - first[name] for name, rows in sink_rows(straight).items()}
    found = sink_rows(after)
    assert {name: found.get(name, Counter()) for name in expected} == expected
    assert sum(map(len, expected.values())) > len(MOVED)
