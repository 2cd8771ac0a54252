"""`ws.test`: a case as a test of the user's own."""

from __future__ import annotations

from unittest import SkipTest

import pytest
from tests.case_files import case_file

import watersmeet as ws
from watersmeet import WatersmeetError
from watersmeet.tools.testing import parse_case, read_case

WRONG = """
name: the right row is expected in another place
sql: |
  CREATE STREAM l (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
  CREATE STREAM r (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
  SELECT STREAM l.id, {shown} FROM l JOIN r ON l.id = r.id AND r.t BETWEEN l.t AND l.t + 5;
batches:
- in: {{l: [[1, 10]], r: [[1, 12]]}}
  out: [[1, 13]]
"""


def test_a_case_that_passes_says_nothing() -> None:
    ws.test(case_file("interval/no-equality"))
    ws.test(str(case_file("interval/no-equality")), on="reference")
    ws.test(read_case(case_file("interval/refused/no-bound")))


def test_a_case_that_fails_shows_what_differs() -> None:
    with pytest.raises(AssertionError, match=r"(?s)the right row is expected in another place.*13"):
        ws.test(parse_case(WRONG.format(shown="r.t")))


def test_a_case_that_only_spark_can_run_is_skipped() -> None:
    with pytest.raises(SkipTest, match="md5"):
        ws.test(parse_case(WRONG.format(shown="md5(string(r.t)) AS t")))


@pytest.mark.parametrize(
    ("case", "on"), [(1, "kernel"), (None, "kernel"), ("interval/no-equality.yaml", "sprak"), ("none.yaml", "kernel")]
)
def test_malformed_cases_are_refused(case: object, on: str) -> None:
    with pytest.raises(WatersmeetError, match=r"WRONG_ARGUMENT|FILE_NOT_FOUND"):
        ws.test(case, on)  # type: ignore[arg-type]
