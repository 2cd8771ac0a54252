"""What is told of rows agrees with what the kernels do: who comes out, alone or not, who is late, who is kept.

For every family, over any rows in any batches, and over every case there is.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.case_files import RUNNING, case_name
from tests.examples import examples

from watersmeet.local.cells import NeedsSparkError, arrow_table, change_table
from watersmeet.local.query import BatchOutput, LocalQuery
from watersmeet.operators import OPERATORS
from watersmeet.operators.core.operator import END_OF_INPUT, NOW
from watersmeet.operators.core.rowwise import freeze
from watersmeet.physical import QueryPlan, join_plans, limits_of, plan_query
from watersmeet.queries import analyze, read_script
from watersmeet.tools.testing import read_case
from watersmeet.tools.testing.case import script_of
from watersmeet.tools.testing.execute import arrivals_of
from watersmeet.tools.trace import Batch, Lineage, trace_query
from watersmeet.tools.trace.answer import summary_of
from watersmeet.tools.trace.query import lineage_of, run_trace
from watersmeet.tools.trace.questions import question_of, trace_batches

STREAMS = """
CREATE STREAM l (k BIGINT, v BIGINT, t BIGINT, WATERMARK FOR t AS t - 1);
CREATE STREAM r (k BIGINT, v BIGINT, t BIGINT, WATERMARK FOR t AS t - 2);
CREATE STREAM s (k BIGINT, v BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
CREATE TABLE c (k BIGINT, v BIGINT, t BIGINT, PRIMARY KEY (k));
CREATE TABLE b (k BIGINT, v BIGINT, t BIGINT);
"""

QUERIES = {
    "interval left": "SELECT STREAM l.t, r.t FROM l LEFT JOIN r ON l.k = r.k AND r.t BETWEEN l.t - 1 AND l.t + 3",
    "interval full": "SELECT STREAM l.t, r.t FROM l FULL JOIN r ON l.k = r.k AND l.v > r.v AND l.v > 1 "
    "AND r.t > l.t - 2 AND r.t <= l.t + 2 WHERE l.v IS NULL OR l.v <> 3",
    "interval semi": "SELECT STREAM l.t FROM l LEFT SEMI JOIN r ON l.k = r.k AND r.t BETWEEN l.t AND l.t + 3",
    "interval anti": "SELECT STREAM l.t FROM l LEFT ANTI JOIN r ON l.k = r.k AND r.t BETWEEN l.t AND l.t + 3",
    "chain": "SELECT STREAM l.t, r.t, s.t FROM l LEFT JOIN r ON l.k = r.k AND r.t BETWEEN l.t AND l.t + 2 "
    "LEFT JOIN s ON l.v = s.v AND s.t BETWEEN l.t AND l.t + 2",
    "window count": "SELECT STREAM l.v, r.v FROM l WINDOW (COUNT 2) LEFT JOIN r WINDOW (COUNT 1 PARTITION BY k) "
    "ON l.k = r.k",
    "window time": "SELECT STREAM l.v, r.v FROM l WINDOW (TIME 2s) FULL JOIN r WINDOW (TIME 1s) ON l.k = r.k",
    "sync": "SELECT STREAM l.v, r.v, s.v FROM l SYNC JOIN r SYNC JOIN s",
    "as-of": "SELECT STREAM l.t, r.t FROM l ASOF LEFT JOIN r MATCH_CONDITION (l.t >= r.t) ON l.k = r.k",
    "as-of inner": "SELECT STREAM l.t, r.t FROM l ASOF JOIN r MATCH_CONDITION (l.t >= r.t) ON l.k = r.k",
    "lookup": "SELECT STREAM l.t, c.v FROM l LEFT JOIN c ON l.k = c.k",
    "lookup inner": "SELECT STREAM l.t, b.v FROM l JOIN b ON l.k = b.k WHERE b.v <> 2",
    "tables": "SELECT TABLE c.k, c.v, b.v FROM c LEFT JOIN b ON c.k = b.k",
    "tables semi": "SELECT TABLE c.k, c.v FROM c LEFT SEMI JOIN b ON c.k = b.k",
    "group": "SELECT TABLE l.k, count(*) AS n, sum(l.v) AS total FROM l GROUP BY l.k",
    "top": "SELECT TABLE l.k, l.v FROM l ORDER BY v DESC LIMIT 2",
}
TABLES = {"c", "b"}

numbers = st.one_of(st.none(), st.integers(0, 3))
streamed = st.tuples(numbers, st.integers(0, 3), st.one_of(st.none(), st.integers(0, 12)))
changed = st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 1))
arriving = st.fixed_dictionaries(
    {name: st.lists(changed if name in TABLES else streamed, max_size=3) for name in "lrscb"}
)
batches_of_rows = st.lists(arriving, min_size=1, max_size=4)


@cache
def plan_of(query: str) -> tuple[QueryPlan, Any]:
    script = read_script(f"{STREAMS}{query};")
    return plan_query(analyze(script)[0], OPERATORS, late="side_output", limits=limits_of(script)), script


def batches_for(script: Any, drawn: list[dict[str, list[Any]]], *, ends: bool) -> list[Batch]:
    made = [
        Batch(
            {
                source.name: (change_table if source.kind == "table" else arrow_table)(source.fields, rows[source.name])
                for source in script.sources
            },
            {NOW: place * 1_000_000},
        )
        for place, rows in enumerate(drawn)
    ]
    if ends:
        nothing = {name: table.slice(0, 0) for name, table in made[0].rows.items()}
        made.append(Batch(nothing, dict.fromkeys(("l.t", "r.t", "s.t"), END_OF_INPUT)))
    return made


def run(plan: QueryPlan, batches: list[Batch], on: Literal["kernel", "reference"] = "kernel") -> list[BatchOutput]:
    query = LocalQuery(plan, on)
    stepped: list[BatchOutput] = []
    for place, batch in enumerate(batches):
        if batch.restart or not place:
            query.restart()
        stepped.append(query.step(batch.rows, batch.watermarks))
    return stepped


def rows_of(table: Any) -> Counter[Any]:
    return Counter(freeze(tuple(row)) for row in zip(*(c.to_pylist() for c in table.columns), strict=True))


def check(plan: QueryPlan, batches: list[Batch]) -> Lineage:
    """That what is told is what the kernels gave; of single joins, also how many rows came to which end."""
    stepped, found = run(plan, batches), trace_query(plan, batches, OPERATORS)
    for number, step in enumerate(stepped):
        shown = [one for one in found.results if one.batch == number]
        if plan.is_changelog:
            net: Counter[Any] = Counter()
            for one in shown:
                net[freeze(tuple(one.values.values()))] += one.sign
            expected: Counter[Any] = Counter()
            for row, times in rows_of(step.rows).items():
                expected[row[1:]] += times * (1 if row[0] == "+" else -1)
            assert {k: n for k, n in net.items() if n} == {k: n for k, n in expected.items() if n}
        else:
            assert Counter(freeze(tuple(one.values.values())) for one in shown) == rows_of(step.rows)
    joins = join_plans(plan.relation)
    if len(joins) == 1 and not plan.is_changelog and len(joins[0].ports) > 1:
        ends = Counter((fate.what, fate.batch) for fate in found.outcomes)
        for number, step in enumerate(stepped):
            assert ends["late", number] == sum(step.report.late)
            assert ends["padded", number] == sum(step.report.padded)
        kept = sum(1 for fate in found.outcomes if fate.what == "alive")
        # Of a table the kernel counts changes that it has not put together yet.
        stored = sum(run(plan, batches, "reference")[-1].report.state)
        # Equal rows of a table without a key are stored once.
        is_bag = any(scan.changes == "weights" for scan in plan.relation.leaves)
        assert kept >= stored if is_bag else kept == stored
    check_summary(plan, batches, stepped, found)
    told_of = {fate.arrival for fate in found.outcomes}
    assert told_of == {arrival.number for arrival in found.arrivals}
    assert all(fate.reason.endswith(".") and fate.reason[0].isupper() for fate in found.outcomes)
    # A group of all rows is there without any, and then made of no arrival.
    has_group_of_all = any(getattr(stage.operator, "keys", None) == () for stage in joins)
    for meeting in found.matches:
        assert len(meeting.arrivals) > 1 or has_group_of_all
    return found


def check_summary(plan: QueryPlan, batches: list[Batch], stepped: list[BatchOutput], told: Lineage) -> None:
    """That the summary, which notes no reasons on its way, adds up to what is told and to the counts of the kernels."""
    summary = summary_of("q", trace_batches(plan, batches, detail="counts"), {})
    counts = summary.counts
    assert sum(group.rows for group in summary.groups) == counts["rows in"] == len(told.arrivals)
    for what in ("matched", "padded", "late", "filtered", "dropped", "alive"):
        assert counts[what] == len({fate.arrival for fate in told.outcomes if fate.what == what})
        assert counts[what] >= sum(group.rows for group in summary.groups if group.end == what)
    has_others = any(len(join.ports) > 1 for join in join_plans(plan.relation))
    for group in summary.groups:
        # Who met nothing has a reason, if there was someone to meet.
        assert group.reason or group.end in ALONE or not has_others, group
        assert [told.end(one.number).what for one in group.examples] == [group.end] * len(group.examples)
    joins = join_plans(plan.relation)
    if len(joins) == 1 and not plan.is_changelog and len(joins[0].ports) > 1:
        # A row can be late in several of its windows.
        assert sum(fate.what == "late" for fate in told.outcomes) == sum(sum(step.report.late) for step in stepped)
        assert counts["padded"] == sum(sum(step.report.padded) for step in stepped)
        assert counts["dropped"] == sum(sum(step.report.dropped) for step in stepped)


ALONE = ("counted", "passed", "replaced", "deleted", "taken back", "alive")
"""Ends of rows that are put together, shown by themselves, or rows of tables."""


@pytest.mark.parametrize("name", QUERIES)
@settings(max_examples=examples(16), database=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=batches_of_rows, ends=st.booleans())
def test_traced_outcomes_are_those_of_the_kernel(name: str, drawn: list[dict[str, list[Any]]], ends: bool) -> None:
    plan, script = plan_of(QUERIES[name])
    check(plan, batches_for(script, drawn, ends=ends))


KEYED = ("interval left", "interval full", "interval anti", "as-of", "lookup", "lookup inner")


@pytest.mark.parametrize("name", KEYED)
@settings(max_examples=examples(8), database=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=batches_of_rows, key=st.sampled_from(["0", "1", "2", "NULL"]))
def test_looking_at_fewer_rows_tells_the_same(name: str, drawn: list[dict[str, list[Any]]], key: str) -> None:
    """A question about some rows looks at those that share their keys; all of them are looked at in parts."""
    plan, script = plan_of(QUERIES[name])
    batches = batches_for(script, drawn, ends=False)
    asked = question_of(script.sources, "l", [f"k={key}"])
    some, parts = (
        lineage_of(trace_batches(plan, batches, asked), "q"),
        lineage_of(run_trace(plan, batches, OPERATORS, buckets=5), "q"),
    )
    whole = trace_query(plan, batches, OPERATORS)
    meant = [one.number for one in whole.arrivals if one.side == "l" and one.values["k"] == asked.values["k"]]
    for number in meant:
        assert some.of(number) == parts.of(number) == whole.of(number)
        assert (
            some.unmatched_reasons.get(number)
            == parts.unmatched_reasons.get(number)
            == whole.unmatched_reasons.get(number)
        )
    assert (whole.watermarks, Counter(whole.matches)) == (parts.watermarks, Counter(parts.matches))
    assert some.watermarks == whole.watermarks


@pytest.mark.parametrize("path", RUNNING, ids=case_name)
def test_every_case_is_traced(path: Path) -> None:
    case = read_case(path)
    script = script_of(case)
    plan = plan_query(analyze(script)[0], OPERATORS, late="side_output", limits=limits_of(script))
    restarts = [*(batch.restart for batch in case.batches), False]
    arrived = zip(arrivals_of(case, plan, script), restarts, strict=False)
    try:
        check(plan, [Batch(tables, marks, restart) for (tables, marks), restart in arrived])
    except NeedsSparkError as needed:
        pytest.skip(f"only Spark can evaluate {needed}")
