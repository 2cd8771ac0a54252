"""Proposals hold what they say, within a tenth: the SQL that is proposed runs, on the kernels, over other rows."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.tools.advise.generated import Shape, Truth

from watersmeet.local.query import LocalQuery
from watersmeet.operators import OPERATORS
from watersmeet.physical import plan_query
from watersmeet.queries import analyze, read_script
from watersmeet.tools.advise.arrivals import SampledRows, numbers_of
from watersmeet.tools.advise.pair import AdviceRequest, PairAdvice, advise_pair
from watersmeet.tools.advise.report import Advice

BATCHES = 150
TENTH = 0.1
TRUTHS = st.builds(
    Truth,
    shape=st.sampled_from(get_args(Shape)),
    reach=st.sampled_from([30, 300, 900]),
    disorder=st.sampled_from([0, 5, 120]),
    partners=st.sampled_from([0.3, 1.0]),
    spacing=st.sampled_from([0.2, 1.0]),
)


def batches(arrivals: tuple[SampledRows, SampledRows]) -> list[dict[str, pa.Table]]:
    """Rows as they arrive, cut where both sides are about as far in time; the last has what comes after the left."""
    clocks = [
        np.maximum.accumulate(numbers_of(side.column(name))[0])
        for side, name in zip(arrivals, ("at", "done"), strict=True)
    ]
    cuts = np.append(np.linspace(min(map(np.min, clocks)), clocks[0][-1], BATCHES), np.inf)
    places = [np.searchsorted(clock, cuts) for clock in clocks]
    return [
        {side.name: side.rows.slice(at[n], at[n + 1] - at[n]) for side, at in zip(arrivals, places, strict=True)}
        for n in range(BATCHES)
    ]


def ran(advice: Advice, arrivals: tuple[SampledRows, SampledRows]) -> tuple[int, list[int], np.ndarray]:
    """Pairs that met, late rows per side, and rows kept per side in the middle of the run, on average."""
    [query] = analyze(read_script(advice.sql))
    local = LocalQuery(plan_query(query, OPERATORS), "kernel")
    reports = [local.step(batch, {}).report for batch in batches(arrivals)]
    late = [sum(report.late[port] for report in reports) for port in (0, 1)]
    kept = np.array([report.state for report in reports[BATCHES // 3 : BATCHES * 9 // 10]])
    return sum(report.matched for report in reports), late, kept.mean(axis=0)


BEYOND = 20
"""The rows of a sample that may lie beyond both extremes of another: more of them have a chance of 1 in 100,000."""


def chance(share: float, rows: int) -> float:
    """By how much a share may differ between two samples of so many rows: four standard errors of the difference.

    Of a share near 1 the difference is not normal: it is what lies beyond the extremes of the other sample.
    """
    return max(4 * float(np.sqrt(2 * share * (1 - share) / rows)), BEYOND / rows)


def advice_of(truth: Truth, seed: int, keep: float) -> PairAdvice:
    found = advise_pair(AdviceRequest(*truth.streams(seed)), keep)
    assert found is not None
    return found


@settings(max_examples=examples(6))
@given(TRUTHS, st.sampled_from([0.9, 0.99, 0.999]))
@example(Truth("far tail", 900, 120, 0.3, 1.0), 0.99)
@example(Truth("both sides", 900, 0, 1.0, 0.2), 0.9)
def test_proposals_hold_for_other_rows_of_the_kind(truth: Truth, keep: float) -> None:
    found = advice_of(truth, 1, keep)
    assert found.keys == (("id", "order_id"),) and found.chosen is not None
    assert found.chosen.bounds.keeps >= keep

    fresh = truth.streams(2)
    matched, late, kept = ran(Advice.of([found]), fresh)
    pairs = fresh[1].rows.num_rows
    # A late row meets nothing: what is said to be late at most may be missing besides.
    keeps, late_at_most = found.chosen.bounds.keeps, sum(side.lag.late for side in found.sides)
    off = chance(keeps, pairs)
    assert off < TENTH / 2, "far below the tenth that is asked for"
    assert keeps - late_at_most - off <= matched / pairs <= keeps + off
    for side, count in zip(found.sides, late, strict=True):
        assert count / side.rows <= side.lag.late + chance(side.lag.late, side.rows)
    # A batch is an instant: what comes within it has not left yet. Rows that live long must have begun to leave.
    span = truth.rows * truth.spacing * 1e6
    batch = span / BATCHES
    lives = found.chosen.bounds.later + found.sides[1].lag.lag
    for port, side in enumerate(found.sides if lives < span / 3 else ()):
        said = found.chosen.rows[port]
        assert abs(kept[port] - said) <= TENTH * said + side.rate * batch + 5


@settings(max_examples=examples(6))
@given(TRUTHS)
def test_each_bound_and_each_lag_keeps_what_it_says(truth: Truth) -> None:
    found = advice_of(truth, 3, 0.999)
    left, right = truth.streams(4)
    began = numbers_of(left.column("at"))[0][np.argsort(left.column("id").to_numpy())]
    place = np.searchsorted(np.sort(left.column("id").to_numpy()), right.column("order_id").to_numpy())
    apart = numbers_of(right.column("done"))[0] - began[place]
    for cost in found.costs:
        keeps = float(((apart >= -cost.bounds.earlier) & (apart <= cost.bounds.later)).mean())
        assert abs(keeps - cost.bounds.keeps) <= chance(cost.bounds.keeps, len(apart))
    for side, name, arrivals in ((found.sides[0], "at", left), (found.sides[1], "done", right)):
        own = numbers_of(arrivals.column(name))[0]
        behind = np.maximum.accumulate(own) - own
        for lag in side.lags:
            late = float((behind > lag.lag).mean())
            # Rows behind the same late one are behind together, so that they tell less than as many single ones.
            assert abs(late - lag.late) <= TENTH * lag.late + chance(lag.late, len(behind))
