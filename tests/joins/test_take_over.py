"""A state goes on with other bounds: what comes is what the definition gives when its bounds change in between."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.joins.strategies import UNLIMITED, histories, joins
from tests.joins.test_properties import emitted, forget_decoded_runs

from watersmeet.joins.interval.definition import Reference, multiset
from watersmeet.joins.interval.operator import IntervalJoin
from watersmeet.testing import MemoryStore

quick = settings(
    derandomize=True, max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@st.composite
def changed(draw: st.DrawFn, join: IntervalJoin) -> IntervalJoin:
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
    return replace(join, lower=lower, upper=upper, bounds=bounds)


@quick
@given(st.data())
def test_bounds_may_change_at_any_time(data: st.DataObject) -> None:
    join = data.draw(joins())
    batches = data.draw(histories(join))
    reference, store = Reference(join), MemoryStore()
    for batch in batches:
        if data.draw(st.integers(0, 2)) == 0:
            was = json.loads(json.dumps(join.identity))
            join = data.draw(changed(join))
            store = store.restarted()
            forget_decoded_runs()
            join.take_over(store, was)
            reference.join = join
        step = reference.step(dict(enumerate(batch.rows)), batch.marks)
        emission = join.step(store, batch.tables(), batch.marks)
        assert emitted(emission) == multiset(step.rows)
        assert emission.report.state == step.state
