"""Lengths in ranges: every length is in the one that it should be in."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.operators.core.matching import RANGES, SAMPLE, bucket_maximum, build_histogram
from watersmeet.operators.state.shard import StepCounters


@given(st.integers(0, 2**62))
def test_a_length_is_in_the_first_range_that_reaches_it(length: int) -> None:
    [number] = np.flatnonzero(build_histogram(np.array([length])))
    # Beyond 2^53 a double knows lengths less finely than that.
    assert bucket_maximum(int(number)) >= length * (1 - 2**-52)
    assert number == 0 or bucket_maximum(int(number) - 1) < length
    assert bucket_maximum(int(number)) <= max(length * 1.25, 1)


def test_some_stand_for_many() -> None:
    tally = StepCounters(2)
    rows = np.arange(100_000)
    tally.record_delays(rows, rows, np.zeros(100_000, np.int64), rows)
    tally.record_lateness(pa.array([None, *range(20_000)], pa.int64()))
    assert tally.delays is not None and tally.lateness is not None
    assert round(tally.delays.sum()) == 100_000 and round(tally.lateness.sum()) == 20_000
    half = next(n for n in range(RANGES) if tally.delays[: n + 1].sum() >= 50_000)
    assert 50_000 <= bucket_maximum(half) < 50_000 * 1.25 + 100_000 / SAMPLE
