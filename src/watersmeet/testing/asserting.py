"""A case as a test of the user's own."""

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
    """Run a case in a test of your own: if it fails, AssertionError shows what differs.

    ``on``: ``"kernel"`` and ``"reference"`` run in the process, ``"spark"`` in a session. A case that cannot run there
    is skipped.

    Example::

        @pytest.mark.parametrize("path", sorted(Path("cases").glob("*.yaml")))
        def test_case(path):
            ws.test(path)
    """
    check_choice("on", on, ("kernel", "reference", "spark"))
    if spark is not None:
        check_session("spark", spark)
    found = run_case(_case(case), on, spark)
    if found.status == "not run":
        raise SkipTest(found.detail)
    if found.status == "failed":
        raise AssertionError(f"{found.case.path}: {found.case.name}\n{found.detail}")


# pytest would take it for a test wherever it is imported by name.
test.__test__ = False  # pyright: ignore[reportFunctionMemberAccess]


def _case(given: Any) -> Case:
    if isinstance(given, Case):
        return given
    if not isinstance(given, Path | str):
        raise wrong("case", given, "it is no case", 'name its file: ws.test("cases/late.yaml").')
    return read_case(Path(given))
