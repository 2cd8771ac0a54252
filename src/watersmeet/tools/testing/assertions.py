"""Cases in tests of your own: assert one, or trace its rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import SkipTest

from watersmeet.arguments import check_choice, check_session, wrong
from watersmeet.errors import refuse
from watersmeet.operators import OPERATORS
from watersmeet.operators.time_zones import in_zone_of_script
from watersmeet.physical import limits_of, plan_query
from watersmeet.queries import analyze
from watersmeet.tools.testing.case import Case, read_case, script_of
from watersmeet.tools.testing.execute import Executor, arrivals_of, lineage_of_case, run_case
from watersmeet.tools.trace import Lineage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def trace_case(case: Case) -> Lineage:
    """The outcome of each row of a case, by the definitions; refused as its script is.

    An expression that only Spark can evaluate raises `NeedsSparkError`.

    >>> from watersmeet.tools.testing.case import parse_case
    >>> case = parse_case('''
    ... name: a pair
    ... sql: |
    ...   CREATE STREAM l (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
    ...   CREATE STREAM r (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
    ...   SELECT STREAM l.id, l.t, r.t FROM l LEFT JOIN r ON l.id = r.id AND r.t BETWEEN l.t AND l.t + 4;
    ... batches:
    ... - {in: {l: [[1, 5]]}, out: []}
    ... - {in: {r: [[1, 12]]}, out: [[1, 5, null]]}
    ... ''')
    >>> fate = trace_case(case).end(0)
    >>> fate.what, fate.batch, fate.until, fate.by
    ('padded', 1, 9, 1)
    """
    script = script_of(case)
    queries = analyze(script)
    if len(queries) != 1 or case.fails is not None:
        raise refuse("WRONG_CASE", path=case.path, reason=f"its script has {len(queries)} queries to explain, not one")
    plan = plan_query(in_zone_of_script(queries[0], script), OPERATORS, late="side_output", limits=limits_of(script))
    return lineage_of_case(case, plan, arrivals_of(case, plan, script))


def test(case: Case | Path | str, on: Executor = "kernel", spark: SparkSession | None = None) -> None:
    """Run a case in your own tests. If it fails, an AssertionError shows the difference.

    ``on``: ``"kernel"`` and ``"reference"`` run in this process, ``"spark"`` runs in a session. A case that cannot run
    there is skipped.

    Example::

        @pytest.mark.parametrize("path", sorted(Path("cases").glob("*.yaml")))
        def test_case(path):
            ws.test(path)
    """
    check_choice("on", on, ("kernel", "reference", "spark"))
    if spark is not None:
        check_session("spark", spark)
    result = run_case(_case(case), on, spark)
    if result.status == "not run":
        raise SkipTest(result.detail)
    if result.status == "failed":
        raise AssertionError(f"{result.case.path}: {result.case.name}\n{result.detail}")


# pytest would take it for a test wherever it is imported by name.
test.__test__ = False  # pyright: ignore[reportFunctionMemberAccess]


def _case(case_or_path: Any) -> Case:
    if isinstance(case_or_path, Case):
        return case_or_path
    if not isinstance(case_or_path, Path | str):
        raise wrong("case", case_or_path, "it is not a case", 'name its file: ws.test("cases/late.yaml").')
    return read_case(Path(case_or_path))
