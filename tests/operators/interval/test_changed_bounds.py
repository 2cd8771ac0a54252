"""A state goes on with other bounds: what comes is what the definition gives when its bounds change in between."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.operators.interval.test_interval import forget_decoded_runs, rows_of
from tests.operators.strategies import UNLIMITED, Batch, arrivals, histories, joins

from watersmeet.operators.core.operator import NOW, Port
from watersmeet.operators.core.watermarks import Bound
from watersmeet.operators.interval.definition import IntervalReference, multiset
from watersmeet.operators.interval.kernel import IntervalJoinOperator
from watersmeet.tools.testing import MemoryStore

quick = settings(
    derandomize=True, max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@st.composite
def joins_with_other_bounds(draw: st.DrawFn, join: IntervalJoinOperator) -> IntervalJoinOperator:
    """The same join with longer or shorter bounds between the times that it compares."""
    more, less = draw(st.integers(-3, 6)), draw(st.integers(-3, 6))
    upper = join.upper if join.upper == UNLIMITED else join.upper + more
    lower = join.lower if join.lower == -UNLIMITED else join.lower - less
    constants = {("l.t", "r.t"): more, ("r.t", "l.t"): less}
    compared = (("l.t", "r.t"), ("r.t", "l.t"))
    bounds = tuple(
        replace(b, constant=b.constant + constants[b.column, b.other]) if (b.column, b.other) in compared else b
        for b in join.bounds
    )
    idle = (
        tuple((f"{side}.t", 3) for side in draw(st.sampled_from(("", "l", "lr")))) if draw(st.booleans()) else join.idle
    )
    return replace(join, lower=lower, upper=upper, bounds=bounds, idle=idle)


@st.composite
def pauses(draw: st.DrawFn, join: IntervalJoinOperator) -> list[Batch]:
    """Rows that come before their marks, so that some of a run expire and others stay; then a change, and more rows."""
    names = (*join.left.times, *join.right.times)
    marks = st.dictionaries(st.sampled_from(names), st.integers(4, 14), min_size=1, max_size=2)
    parts = [draw(arrivals(join)) for _ in range(4)]
    return [
        Batch(parts[0], {}), Batch(((), ()), draw(marks)), Batch(parts[1], {}), Batch(parts[2], draw(marks)),
        Batch(parts[3], draw(marks)),
    ]  # fmt: skip


@quick
@given(st.data())
def test_bounds_may_change_at_any_time(data: st.DataObject) -> None:
    join = data.draw(joins(two_times=data.draw(st.booleans())))
    is_paused = data.draw(st.integers(0, 3)) > 0
    batches = data.draw(pauses(join) if is_paused else histories(join))
    reference, store = IntervalReference(join), MemoryStore()
    for number, batch in enumerate(batches):
        if (is_paused and number in (2, 4)) or data.draw(st.integers(0, 3)) == 0:
            was = json.loads(json.dumps(join.identity))
            join = data.draw(joins_with_other_bounds(join))
            store = store.restart()
            forget_decoded_runs()
            join.take_over(store, was)
            reference.replace_join(join)
        # Only who asks for the clock is told it.
        marks = {name: mark for name, mark in batch.marks.items() if name != NOW or join.needs_clock}
        step = reference.step(dict(enumerate(batch.rows)), marks)
        emission = join.step(store, batch.tables(), marks)
        assert rows_of(emission) == multiset(step.rows)
        assert emission.report.state == step.state


def within(upper: int) -> IntervalJoinOperator:
    bounds = (Bound("l.t", "r.t", upper), Bound("r.t", "l.t", 0))
    return IntervalJoinOperator("left", Port(("l.t",), ("l.t",)), Port(("r.t",), ("r.t",)), 0, upper, bounds)


def test_a_longer_bound_raises_no_row_and_a_shorter_one_lets_them_out_once() -> None:
    # Three rows in one run; the mark ends the first, which stays in its run until all are ended.
    store, rows = MemoryStore(), {0: pa.table({"l.t": [1, 6, 10]})}
    within(3).step(store, rows, {})
    assert rows_of(within(3).step(store, {}, {"r.t": 8})) == multiset([(1, None)])
    longer, shorter = store.restart(), store.restart()
    within(9).take_over(longer, within(3).identity)
    after = within(9).step(longer, {1: pa.table({"r.t": [9]})}, {})
    assert (rows_of(after), after.report.state) == (multiset([(6, 9)]), (2, 1))
    within(1).take_over(shorter, within(3).identity)
    # Two changes without a batch in between: what counts is by what rows have expired.
    within(0).take_over(shorter, within(1).identity)
    assert rows_of(within(0).step(shorter, {}, {})) == multiset([(6, None)])
    assert rows_of(within(0).step(shorter, {}, {})) == multiset([])
