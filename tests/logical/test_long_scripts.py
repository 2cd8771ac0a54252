"""What is twice as long takes about twice as many steps to check: counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from watersmeet.errors import WatersmeetError
from watersmeet.logical.query import AnalyzedQuery, result_columns
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


def _views(depth: int, n: int) -> str:
    """Views over views that compute all columns of a source, and a query of the last."""
    columns = ", ".join(f"c{i} + 1 AS c{i}" for i in range(n))
    views = (f"CREATE VIEW v{i} AS SELECT STREAM t, {columns} FROM {f'v{i - 1}' if i else 's'};" for i in range(depth))
    return f"{_wide('s', n)} {' '.join(views)} SELECT STREAM * FROM v{depth - 1};"


def _steps(text: str, use: Callable[[AnalyzedQuery], object] | None = None) -> int:
    """How many calls, of Python and of C, it takes to read and analyze a script, and to use its queries."""
    count = 0

    def note(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for query in analyze(read_script(text)):
            if use is not None:
                use(query)
    except WatersmeetError:
        pass
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("script", SCRIPTS)
def test_steps_grow_with_the_script(script: str):
    _steps(SCRIPTS[script](2))
    assert _steps(SCRIPTS[script](800)) < 2.3 * _steps(SCRIPTS[script](400))


def test_steps_to_list_columns_grow_with_the_views_and_with_their_columns():
    _steps(_views(1, 2), result_columns)
    assert _steps(_views(3, 80), result_columns) < 2.3 * _steps(_views(3, 40), result_columns)
    assert _steps(_views(4, 20), result_columns) < 2.5 * _steps(_views(2, 20), result_columns)


@pytest.mark.parametrize(
    "expression",
    ["(" * 10_000 + "id > 1" + ")" * 10_000, "NOT " * 10_000 + "id > 1", "abs(" * 10_000 + "id" + ")" * 10_000],
)
def test_deep_nesting_is_refused(expression: str):
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
