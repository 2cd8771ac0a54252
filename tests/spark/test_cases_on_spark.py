"""Every case that is not a refusal, on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from watersmeet.testing import read_case, run_case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
CASES = [read_case(path) for path in sorted((Path(__file__).parents[1] / "cases").glob("*.yaml"))]


@pytest.mark.parametrize("case", [c for c in CASES if c.fails is None], ids=lambda case: Path(case.path).stem)
def test_case_on_spark(case, spark: SparkSession) -> None:
    result = run_case(case, "spark", spark)
    assert result.status == "passed", result.detail
