"""Cases on Spark; several at a time, for a batch of few rows is mostly waiting.

Every case runs on the definition and on the kernels. On Spark it costs seconds, so that of cases which differ only in
what a kernel does, one or two run here: those of `ON_SPARK`. ``WATERSMEET_CASES=all`` runs them all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.case_files import FILES, case_name

from watersmeet.operators import OPERATORS
from watersmeet.tools.testing import Case, Result, read_case, run_case

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
AT_ONCE = 3
ON_SPARK = frozenset(
    """
    asof/behind-a-chain asof/condition-tests-the-version asof/default-value asof/deletes asof/tolerance
    changelog/block-nested-full changelog/by-primary-keys changelog/chain-of-three-tables
    changelog/chain-through-with changelog/computed-null-key changelog/foreign-key changelog/join-of-windows
    changelog/keys-of-all-types changelog/null-keys deduplicate/first-within group/aggregates group/by-window
    group/cumulating-windows group/functions-in-berlin
    group/of-a-table-taken-back group/of-decimals-and-floats group/over-a-table-join group/session
    group/structs-of-columns interval/anti-join interval/bounds-of-one-and-four interval/bounds-of-two-pairs
    interval/date-times interval/drop-oldest interval/end interval/ends-computed interval/ends-left-join
    interval/ends-of-timestamps interval/extreme-times interval/full-both-sides-expire interval/heartbeat
    interval/idle-side interval/late-rows interval/late-rows-of-hopping-windows interval/left-null-keys
    interval/residual-unknown interval/restart-keeps-matched interval/self-join interval/semi-join
    interval/timestamps-with-lag interval/tumbling-windows lateral/before-a-join lateral/of-a-table
    latest/of-a-stream lookup/behind-a-left-join lookup/in-a-view lookup/of-a-join lookup/retention nexmark/q5
    over/in-expressions over/lead-within
    sync/idle-of-three top/of-a-table top/of-windows union/idle-part view/impose-order view/of-a-join view/union
    window/count-and-time window/punctuation window/time window/unmatched-to-a-side-output
    window/without-a-condition
    """.split()  # noqa: SIM905 - a list of words is read as one
)
SMOKE = {
    "interval": "interval/bounds-of-one-and-four",
    "window": "window/time",
    "sync": "sync/idle-of-three",
    "asof": "asof/tolerance",
    "lookup": "lookup/of-a-join",
    "changelog": "changelog/foreign-key",
    "group": "group/aggregates",
    "top": "top/of-a-table",
    "deduplicate": "deduplicate/first-within",
    "over": "over/lead-within",
    "latest": "latest/of-a-stream",
}
"""By family, the case that `make smoke` runs."""
ALL = os.environ.get("WATERSMEET_CASES") == "all"
CASES = [read_case(path) for path in FILES if ALL or case_name(path) in ON_SPARK]
assert ALL or len(CASES) == len(ON_SPARK), "a name in ON_SPARK is that of no case"


@pytest.fixture(scope="module")
def results(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Result]]]:
    """How the selected cases go, by the path of each."""
    items = [
        item for item in request.session.items if isinstance(item, pytest.Function) and item.module is request.module
    ]
    cases: list[Any] = [item.callspec.params["case"] for item in items if hasattr(item, "callspec")]
    pool = ThreadPoolExecutor(AT_ONCE)
    yield {case.path: pool.submit(run_case, case, "spark", spark) for case in cases}
    pool.shutdown(cancel_futures=True)


def _parameter(case: Case) -> ParameterSet:
    name = case_name(case.path)
    return pytest.param(case, id=name, marks=[pytest.mark.smoke] if name in SMOKE.values() else [])


def test_every_family_has_a_smoke_case() -> None:
    assert SMOKE.keys() == OPERATORS.keys()
    assert set(SMOKE.values()) <= ON_SPARK


@pytest.mark.parametrize("case", [_parameter(case) for case in CASES if case.fails is None])
def test_case_on_spark(case: Case, results: dict[str, Future[Result]]) -> None:
    result = results[case.path].result()
    assert result.status == "passed", result.detail


def test_a_case_that_spark_refuses_fails_alone(spark: SparkSession, tmp_path: Path) -> None:
    sql = "CREATE STREAM s (id BIGINT, c CHAR(5)); SELECT STREAM id FROM s;"
    (tmp_path / "case.yaml").write_text(
        f"name: CHAR\nsql: |\n  {sql}\nbatches: [{{in: {{s: [[1, a]]}}, out: [[1]]}}]\n"
    )
    result = run_case(read_case(tmp_path / "case.yaml"), "spark", spark)
    assert result.status == "failed"
    assert "the query stops: " in result.detail
    assert "UNSUPPORTED_CHAR_OR_VARCHAR_AS_STRING" in result.detail
