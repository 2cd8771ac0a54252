"""The orders and matches that kernels build on, beside slow ways to get them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.joins.core.matching import match, merge_order, sort_order, stretches

quick = settings(derandomize=True, max_examples=examples(200), deadline=None, database=None)
few = st.integers(-3, 3)
rows = st.lists(st.tuples(few, few), max_size=30)


@quick
@given(rows)
def test_orders_are_by_code_then_time_then_position(given_rows: list[tuple[int, int]]) -> None:
    codes, times = (np.array([row[i] for row in given_rows], np.int64) for i in (0, 1))
    expected = sorted(range(len(given_rows)), key=lambda i: given_rows[i])
    assert sort_order(codes, times).tolist() == expected
    assert merge_order(codes, times).tolist() == expected


@quick
@given(rows, st.lists(st.tuples(few, few, few), max_size=10), st.integers(1, 5))
def test_matches_are_those_of_two_loops_in_pieces_of_any_size(
    given_rows: list[tuple[int, int]], probes: list[tuple[int, int, int]], size: int
) -> None:
    run = sorted(given_rows)
    codes, times = (np.array([row[i] for row in run], np.int64) for i in (0, 1))
    asked = [np.array([probe[i] for probe in probes], np.int64) for i in (0, 1, 2)]
    expected = [
        (p, b)
        for p, (code, low, high) in enumerate(probes)
        for b, row in enumerate(run)
        if row[0] == code and low <= row[1] <= high
    ]
    whole = match(codes, times, *asked)
    assert list(zip(whole.probe.tolist(), whole.build.tolist(), strict=True)) == expected
    pieces = list(stretches(codes, times, *asked).pieces(size))
    assert [pair for piece in pieces for pair in zip(*(p.tolist() for p in piece), strict=True)] == expected
    assert all(len(piece.probe) <= size for piece in pieces)
