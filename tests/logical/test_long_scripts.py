"""What is twice as long takes about twice as many steps to check: counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from watersmeet.errors import WatersmeetError
from watersmeet.queries import analyze, read_script

STREAM = "CREATE STREAM s (id BIGINT, t TIMESTAMP, WATERMARK FOR t AS t);"


def _columns(n: int) -> str:
    return ", ".join(f"c{i} BIGINT" for i in range(n))


def _wide(name: str, n: int) -> str:
    return f"CREATE STREAM {name} ({_columns(n)}, t TIMESTAMP, WATERMARK FOR t AS t);"


SCRIPTS: dict[str, Callable[[int], str]] = {
    "conditions": lambda n: f"{STREAM} SELECT STREAM id FROM s WHERE {' AND '.join(f'id <> {i}' for i in range(n))};",
    "columns": lambda n: f"{_wide('s', n)} SELECT STREAM {', '.join(f'c{i}' for i in range(n))} FROM s;",
    "keys": lambda n: (
        f"{_wide('a', n)} {_wide('b', n)} SELECT STREAM a.c0 FROM a JOIN b ON a.t = b.t AND "
        f"{' AND '.join(f'a.c{i} = b.c{i}' for i in range(n))};"
    ),
    "cases": lambda n: (
        f"{STREAM} SELECT STREAM CASE {' '.join(f'WHEN id = {i} THEN {i}' for i in range(n))} END AS x FROM s;"
    ),
    "mistakes": lambda n: f"{STREAM} SELECT STREAM {', '.join(f'x{i}' for i in range(n))} FROM s;",
}


def _steps(text: str) -> int:
    """How many calls, of Python and of C, it takes to read and analyze a script."""
    count = 0

    def note(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        analyze(read_script(text))
    except WatersmeetError:
        pass
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("script", SCRIPTS)
def test_steps_grow_with_the_script(script: str):
    _steps(SCRIPTS[script](2))
    assert _steps(SCRIPTS[script](800)) < 2.3 * _steps(SCRIPTS[script](400))


@pytest.mark.parametrize(
    "expression",
    ["(" * 10_000 + "id > 1" + ")" * 10_000, "NOT " * 10_000 + "id > 1", "abs(" * 10_000 + "id" + ")" * 10_000],
)
def test_what_is_nested_too_deeply_is_refused(expression: str):
    with pytest.raises(WatersmeetError) as raised:
        analyze(read_script(f"{STREAM} SELECT STREAM id FROM s WHERE {expression};"))
    assert [refusal.condition for refusal in raised.value.refusals] == ["SYNTAX_ERROR"]
    # Of so long a line only what is around the place is shown.
    assert len(str(raised.value)) < 5_000


def test_of_very_many_refusals_the_first_are_shown():
    with pytest.raises(WatersmeetError) as raised:
        analyze(read_script(SCRIPTS["mistakes"](150)))
    assert len(raised.value.refusals) == 150
    assert str(raised.value).endswith("And 50 more.")
