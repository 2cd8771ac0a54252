"""What kernels tell besides their rows: how far apart rows are that met, and what their rows take in the state."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from watersmeet.local.cells import arrow_table, change_table
from watersmeet.local.query import LocalQuery
from watersmeet.operators import OPERATORS, state_schema_of
from watersmeet.operators.core.matching import bucket_maximum
from watersmeet.operators.core.operator import NOW, StepReport
from watersmeet.operators.explainer import JoinExplainer
from watersmeet.physical import JoinPlan, join_plans, plan_query
from watersmeet.queries import analyze, read_script

STREAMS = """
CREATE STREAM l (k BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
CREATE STREAM r (k BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
CREATE TABLE c (k BIGINT, t BIGINT, PRIMARY KEY (k));
CREATE TABLE b (k BIGINT, t BIGINT, PRIMARY KEY (k));
"""
ROWS = {"l": [[1, 9]], "r": [[1, 5], [1, 2], [2, 20]], "c": [[1, 0]], "b": [[1, 0]]}


def step_once(query: str) -> tuple[JoinPlan, StepReport]:
    script = read_script(f"{STREAMS}{query};")
    plan = plan_query(analyze(script)[0], OPERATORS)
    local = LocalQuery(plan, "kernel")
    local.restart()
    rows = {
        one.name: (change_table if one.kind == "table" else arrow_table)(one.fields, ROWS[one.name])
        for one in script.sources
    }
    # Right rows of a window come behind the left ones, a second later by the clock.
    later: Mapping[str, int] = {NOW: 3_000_000}
    if "WINDOW" in query:
        local.step({**rows, "r": rows["r"].slice(0, 0)}, {NOW: 2_000_000})
        rows |= {"l": rows["l"].slice(0, 0)}
    return join_plans(plan.relation)[0], local.step(rows, later).report


@pytest.mark.parametrize(
    ("query", "unit", "bound", "lengths"),
    [
        ("SELECT STREAM l.t, r.t AS u FROM l JOIN r ON l.k = r.k AND r.t BETWEEN l.t - 5 AND l.t", "event time", 5,
         [4]),
        ("SELECT STREAM l.t, r.t AS u FROM l ASOF JOIN r MATCH_CONDITION (l.t >= r.t) ON l.k = r.k WITHIN 6",
         "event time", 6, [4]),
        ("SELECT STREAM l.t, r.t AS u FROM l WINDOW (TIME 5s) JOIN r WINDOW (TIME 2s) ON l.k = r.k", "clock",
         5_000_000, [1_000_000] * 2),
        ("SELECT STREAM l.t, r.t AS u FROM l WINDOW (COUNT 5) JOIN r WINDOW (COUNT 2) ON l.k = r.k", "arrivals", None,
         [1, 2]),
        ("SELECT STREAM l.k, r.k AS j FROM l SYNC JOIN r", None, None, []),
        ("SELECT STREAM l.t, c.t AS u FROM l JOIN c ON l.k = c.k", None, None, []),
        ("SELECT TABLE b.k, c.t AS u FROM b JOIN c ON b.k = c.k", None, None, []),
    ],
)  # fmt: skip
def test_distance_of_matched_rows_in_time(query: str, unit: str | None, bound: int | None, lengths: list[int]) -> None:
    plan, report = step_once(query)
    explain = OPERATORS[getattr(plan.analyzed, "family", "")].explain
    assert isinstance(explain, JoinExplainer)
    apart = explain.pair_distance(plan.operator)
    assert (apart.unit, apart.bound) == (unit, bound)
    assert bool(apart.why) == (unit is None)
    counts = [] if report.delays is None else [(bucket_maximum(n), round(c)) for n, c in enumerate(report.delays) if c]
    told = [length for length, count in counts for _ in range(count)]
    assert len(told) == len(lengths)
    assert all(length <= longest <= 1.25 * length for length, longest in zip(lengths, told, strict=True))


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("SELECT STREAM l.t, r.t AS u FROM l JOIN r ON l.k = r.k AND r.t BETWEEN l.t - 9 AND l.t + 99", {0, 1}),
        ("SELECT STREAM l.t, r.t AS u FROM l ASOF JOIN r MATCH_CONDITION (l.t >= r.t) ON l.k = r.k", {1}),
        ("SELECT STREAM l.t, r.t AS u FROM l WINDOW (COUNT 5) JOIN r WINDOW (COUNT 2) ON l.k = r.k", {1}),
        ("SELECT STREAM l.k, r.k AS j FROM l SYNC JOIN r", {0, 1}),
        ("SELECT STREAM l.t, c.t AS u FROM l JOIN c ON l.k = c.k", {1}),
        ("SELECT TABLE b.k, c.t AS u FROM b JOIN c ON b.k = c.k", {0, 1}),
        ("SELECT TABLE l.k, count(*) AS n FROM l GROUP BY l.k", {0}),
        ("SELECT TABLE l.k, l.t FROM l ORDER BY t LIMIT 1", {0}),
    ],
)
def test_written_rows_are_counted_by_side(query: str, kept: set[int]) -> None:
    plan, report = step_once(query)
    keeping = state_schema_of(plan.operator.name)
    ports = {keeping.spine(plan.operator.identity, spine).port for spine in report.stored}
    assert ports >= kept
    assert sum(rows for rows, _ in report.stored.values()) == report.written
    assert all(size > rows > 0 for rows, size in report.stored.values())
