"""What became of rows and why, family by family, as cases say it; and what a case may say."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from watersmeet.errors import WatersmeetError
from watersmeet.tools.testing import parse_case, read_case, run_case
from watersmeet.tools.testing.execute import trace_case

FILES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))

PAIR = """
name: a pair
sql: |
  CREATE STREAM l (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
  CREATE STREAM r (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
  SELECT STREAM l.id, r.t FROM l JOIN r ON l.id = r.id AND r.t BETWEEN l.t AND l.t + 4;
batches:
- {in: {l: [[1, 5]], r: [[1, 6]]}, out: [[1, 6]]}
why:
"""


@pytest.mark.parametrize("on", ["reference", "kernel"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_reasons(path: Path, on: Literal["reference", "kernel"]) -> None:
    result = run_case(read_case(path), on)
    assert result.status == "passed", result.detail


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ("{of: l, row: [1, 5], is: padded}", "- l [1, 5] is padded\n  + l (id 1, t 5) is matched in batch 0"),
        ("{of: l, row: [1, 5], is: matched, says: nothing}", "- l [1, 5] is matched, saying `nothing`"),
        ("{of: l, row: [2, 5], is: matched}", "! l [2, 5] did not arrive"),
    ],
)
def test_a_reason_that_differs_fails_the_case(expected: str, said: str) -> None:
    result = run_case(parse_case(f"{PAIR}- {expected}"), "kernel")
    assert result.status == "failed"
    assert said in result.detail


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ("{of: x, row: [1, 5], is: matched}", "names `x`"),
        ("{of: l, row: [1], is: matched}", "has 1 cells, not 2"),
        ("{of: l, row: [1, 5], is: joined}", "the field `why.1.is` is wrong"),
        ("{of: l, row: [1, 5]}", "the field `why.1.is` is missing"),
    ],
)
def test_a_reason_that_cannot_be_meant_is_refused(expected: str, said: str) -> None:
    with pytest.raises(WatersmeetError, match="WRONG_CASE") as raised:
        run_case(parse_case(f"{PAIR}- {expected}"), "kernel")
    assert said in str(raised.value)


def test_a_group_is_made_of_the_rows_that_are_in_it_now() -> None:
    found = trace_case(read_case(FILES[0].parent / "rows-are-no-longer-counted.yaml"))
    rows = {one.number: one.values["id"] for one in found.arrivals}
    made = [(one.values["city"], one.sign, [rows[n] for n in one.arrivals]) for one in found.results if one.batch == 1]
    assert sorted(made) == [("Lyon", 1, [2]), ("Oslo", -1, [1, 2]), ("Oslo", 1, [1])]
