"""Every case that is not a refusal, on Spark; several at a time, for a batch of few rows is mostly waiting."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from watersmeet.testing import Case, Result, read_case, run_case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
AT_ONCE = 3
CASES = [read_case(path) for path in sorted((Path(__file__).parents[1] / "cases").glob("*.yaml"))]


@pytest.fixture(scope="module")
def results(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Result]]]:
    """How the selected cases go, by the path of each."""
    items = [
        item for item in request.session.items if isinstance(item, pytest.Function) and item.module is request.module
    ]
    cases: list[Case] = [item.callspec.params["case"] for item in items]
    pool = ThreadPoolExecutor(AT_ONCE)
    yield {case.path: pool.submit(run_case, case, "spark", spark) for case in cases}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("case", [c for c in CASES if c.fails is None], ids=lambda case: Path(case.path).stem)
def test_case_on_spark(case: Case, results: dict[str, Future[Result]]) -> None:
    result = results[case.path].result()
    assert result.status == "passed", result.detail
