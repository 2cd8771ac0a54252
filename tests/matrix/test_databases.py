"""A table of a database whose driver comes with a package: `check --deep` and `run`, where no server answers."""

from __future__ import annotations

import json
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


def refused(folder: Path, command: str, *options: str) -> dict[str, str]:
    """The one refusal of a command, without anything else."""
    arguments = [sys.executable, "-m", "watersmeet.cli", command, "q.sql", "--format", "json", *options]
    said = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=200)
    assert "Traceback" not in said.stderr and "secret" not in said.stdout + said.stderr
    [refusal] = json.loads(said.stdout + said.stderr)["refusals"]
    return {"exit": str(said.returncode), **refusal}


def test_what_to_do_without_a_driver_and_without_a_server(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "q.sql").write_text(SQL)
    lacking = refused(tmp_path, "check", "--deep")
    assert lacking["condition"] == "MISSING_CONNECTOR" and f"`--packages {PACKAGE}`" in lacking["hint"]
    for command in (["check", "--deep"], ["run", "--once"]):
        found = refused(tmp_path, *command, "--packages", PACKAGE)
        if found["condition"] == "JARS_NOT_FETCHED":
            pytest.skip(f"the driver cannot be had: {found['message']}")
        assert (found["condition"], found["exit"]) == ("DATABASE_UNREACHABLE", "4"), found
        assert "`c` reads c of a database" in found["message"] and "onnection refused" in found["message"]
