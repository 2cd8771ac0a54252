"""Imports point one way: the contracts of import-linter in pyproject.toml, and what the command loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_contracts_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.parametrize(
    "module",
    [
        "watersmeet.cli.app",
        "watersmeet.cli.check",
        "watersmeet.project",
        "watersmeet.demo.streams",
        "watersmeet.formats",
    ],
)
def test_no_spark_is_loaded_before_it_is_needed(module: str) -> None:
    program = f"import sys, {module}; print([m for m in ('pyspark', 'pandas', 'py4j') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_the_command_itself_loads_next_to_nothing() -> None:
    heavy = ("pyarrow", "numpy", "sqlglot", "pydantic", "pyspark")
    program = f"import sys, watersmeet.cli.app; print([m for m in {heavy} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
