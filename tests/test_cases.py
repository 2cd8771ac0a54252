"""Every case on the definition and on the kernel; `spark/test_cases_on_spark.py` runs the same files on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from watersmeet.testing import parse_case, read_case, run_case

FILES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))


@pytest.mark.parametrize("on", ["reference", "kernel"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_case(path: Path, on: Literal["reference", "kernel"]) -> None:
    result = run_case(read_case(path), on)
    if result.status == "not run":
        pytest.skip(f"needs Spark: {result.detail}")
    assert result.status == "passed", result.detail


def test_wrong_expectation_fails() -> None:
    case = parse_case((Path(__file__).parent / "cases" / "hz-v2.yaml").read_text().replace("[[6, 10]]", "[[6, 11]]"))
    result = run_case(case, "kernel")
    assert result.status == "failed"
    assert "- [6, 11]" in result.detail and "+ [6, 10]" in result.detail
