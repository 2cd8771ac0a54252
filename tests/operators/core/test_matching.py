"""The orders and matches that kernels build on, beside slow ways to get them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.operators.core.matching import COUNTED, HIGHEST, LOWEST, match, sort_order, stable_order, stretches

quick = settings(derandomize=True, max_examples=examples(200), deadline=None, database=None)
few = st.integers(-3, 3)
rows = st.lists(st.tuples(few, few), max_size=30)


@quick
@given(rows)
def test_orders_are_by_code_then_time_then_position(given_rows: list[tuple[int, int]]) -> None:
    codes, times = (np.array([row[i] for row in given_rows], np.int64) for i in (0, 1))
    expected = sorted(range(len(given_rows)), key=lambda i: given_rows[i])
    assert sort_order(codes, times).tolist() == expected


@pytest.mark.parametrize("size", [COUNTED - 1, COUNTED, 3 * COUNTED])
@pytest.mark.parametrize(
    ("lowest", "highest"),
    [(0, 1), (-5, 2**16 - 6), (-5, 2**16 - 5), (7, 2**32 + 6), (7, 2**32 + 7), (0, 2**47), (LOWEST, HIGHEST)],
)
def test_many_codes_of_any_width_are_in_order_and_keep_their_places(lowest: int, highest: int, size: int) -> None:
    rng = np.random.default_rng(size)
    codes = rng.integers(lowest, highest, size, endpoint=True)
    codes[:2] = lowest, highest
    assert stable_order(codes).tolist() == np.argsort(codes, kind="stable").tolist()
    times = rng.integers(0, 3, size)
    assert sort_order(codes, times).tolist() == np.lexsort((times, codes)).tolist()


@pytest.mark.parametrize("common", [1, 2, 1000])
def test_codes_that_differ_only_in_their_last_bits_are_in_order(common: int) -> None:
    rng = np.random.default_rng(common)
    codes = rng.choice([LOWEST, -1, 0, 2**62], COUNTED) + rng.integers(0, common, COUNTED)
    assert stable_order(codes).tolist() == np.argsort(codes, kind="stable").tolist()


def test_a_null_among_small_codes_is_last() -> None:
    codes = np.random.default_rng(5).integers(0, 100_000, COUNTED)
    codes[7] = HIGHEST
    assert stable_order(codes).tolist() == np.argsort(codes, kind="stable").tolist()


def test_runs_one_behind_the_other_are_merged() -> None:
    codes = np.concatenate([np.sort(np.random.default_rng(n).integers(0, 5_000, COUNTED)) for n in range(3)])
    assert stable_order(codes).tolist() == np.argsort(codes, kind="stable").tolist()


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
