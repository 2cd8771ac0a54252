"""Tables of databases whose drivers come with packages: one that is read, and one whose server does not answer."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SQL = """\
CREATE STREAM o (id BIGINT, t TIMESTAMP, WATERMARK FOR t AS t - INTERVAL 1 HOUR) USING json OPTIONS (path 'in');
CREATE TABLE c (id BIGINT, name STRING, PRIMARY KEY (id)) USING jdbc
    OPTIONS (url 'jdbc:postgresql://127.0.0.1:1/shop', dbtable 'c', user 'me', password 'secret', static 'true');
SELECT STREAM o.id, c.name FROM o JOIN c ON o.id = c.id;
"""
PACKAGE = "org.postgresql:postgresql:42.7.4"
SQLITE = "org.xerial:sqlite-jdbc:3.47.1.0"


def call_cli(folder: Path, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-m", "watersmeet.cli", command, "q.sql", "--format", "json", *options]
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=200)


def refusal_of(folder: Path, command: str, *options: str) -> dict[str, str]:
    """The one refusal of a command, without anything else."""
    said = call_cli(folder, command, *options)
    assert "Traceback" not in said.stderr and "secret" not in said.stdout + said.stderr
    [refusal] = json.loads(said.stdout)["refusals"]
    return {"exit": str(said.returncode), **refusal}


def test_missing_drivers_and_servers_are_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "q.sql").write_text(SQL)
    lacking = refusal_of(tmp_path, "check", "--deep")
    assert lacking["condition"] == "MISSING_CONNECTOR" and f"`--packages {PACKAGE}`" in lacking["hint"]
    for command in (["check", "--deep"], ["run", "--once"]):
        found = refusal_of(tmp_path, *command, "--packages", PACKAGE)
        if found["condition"] == "JARS_NOT_FETCHED":
            pytest.skip(f"the driver cannot be had: {found['message']}")
        assert (found["condition"], found["exit"]) == ("DATABASE_UNREACHABLE", "4"), found
        assert "`c` reads c, but the database cannot be reached: " in found["message"]


def test_a_driver_that_comes_with_a_package_reads_the_table(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 2, "t": "2026-03-02T08:00:00Z"}\n')
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("CREATE TABLE c (id INTEGER, name TEXT)")
        connection.execute("INSERT INTO c VALUES (1, 'one'), (2, 'two')")
    text = SQL.replace("jdbc:postgresql://127.0.0.1:1/shop", f"jdbc:sqlite:{tmp_path}/shop.db")
    into = "CREATE SINK out USING json OPTIONS (path 'out'); INSERT INTO out SELECT STREAM"
    (tmp_path / "q.sql").write_text(text.replace("SELECT STREAM", into))
    said = call_cli(tmp_path, "run", "--once", "--packages", SQLITE)
    if "JARS_NOT_FETCHED" in said.stdout + said.stderr:
        pytest.skip("the driver cannot be had")
    assert said.returncode == 0, said.stderr
    rows = [json.loads(line) for file in (tmp_path / "out").glob("*.json") for line in file.open()]
    assert rows == [{"id": 2, "name": "two"}]
