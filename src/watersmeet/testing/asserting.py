"""``ws.test``: a case in your own tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import SkipTest

from watersmeet.arguments import check_choice, check_session, wrong
from watersmeet.testing.case import Case, read_case
from watersmeet.testing.execute import Executor, run_case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
