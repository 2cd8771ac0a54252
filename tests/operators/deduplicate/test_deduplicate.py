"""The first row of each group within a time: the kernel beside its definition."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operators.top.test_top import ROWS, quick, row_texts, table

from watersmeet.operators.core.operator import END_OF_INPUT
from watersmeet.operators.core.rowwise import freeze
from watersmeet.operators.deduplicate.definition import DeduplicateReference
from watersmeet.operators.deduplicate.kernel import DeduplicateOperator, first_rows
from watersmeet.tools.testing import MemoryStore


@quick
@given(st.data())
def test_deduplication_equals_its_definition_in_every_batch(data: st.DataObject) -> None:
    within = data.draw(st.sampled_from((0, 1, 3, 2**62)))
    by = data.draw(st.sampled_from(((), ("s",), ("s", "x"))))
    position = data.draw(st.sampled_from((None, "#position")))
    order = data.draw(st.sampled_from(("arrival", "time")))
    columns = ("s", "x", "a")
    first = DeduplicateOperator(
        columns, by, "a", within, order, True, position=position, outputs=("t",), late=("a", "x")
    )
    store, reference = MemoryStore(), DeduplicateReference(first)
    marks = [data.draw(st.sampled_from((None, -1, 0, 2, 5))) for _ in range(data.draw(st.integers(1, 6)))]
    for mark in [*marks, END_OF_INPUT, None]:
        times = st.sampled_from((None, 0, 1, 2, 3, 4, 6, -(2**62)))
        rows = [{**row, "a": data.draw(times)} for row in data.draw(st.lists(ROWS, max_size=6))]
        places = data.draw(st.permutations(range(len(rows))))
        given_ = table([{**row, "#position": place} for row, place in zip(rows, places, strict=True)])
        store = store.restart() if data.draw(st.booleans()) else store
        watermarks = {} if mark is None else {"a": mark}
        emission = first.step(store, {0: given_} if rows else {}, watermarks)
        step = reference.step({0: given_.to_pylist()}, watermarks)
        found = Counter(
            tuple(freeze(value) for value in row)
            for one in emission.rows
            for row in zip(*(column.to_pylist() for column in one.columns), strict=True)
        )
        assert row_texts(found) == row_texts(Counter(step.rows))
        repeated = [tuple(row.values()) for _, part in emission.unmatched for row in part.to_pylist()]
        assert sorted(map(repr, repeated)) == sorted(repr(row) for _, row in step.unmatched)
        late = [tuple(row.values())[:2] for _, part in emission.late for row in part.to_pylist()]
        assert sorted(map(repr, late)) == sorted(repr((row["a"], row["x"])) for _, row in step.late)
        report = emission.report
        assert (report.late, report.watermarks) == ((len(step.late),), step.watermarks)
    assert report.state == (0,)


TIMES = st.one_of(st.integers(0, 30), st.sampled_from((-(2**63), 1 - 2**63, -(2**62), 2**62, 2**63 - 2, 2**63 - 1)))


@quick
@given(
    st.lists(st.tuples(st.integers(-1, 1), TIMES), max_size=40),
    st.sampled_from((0, 1, 2, 5, 2**62, 2**63 - 1)),
    st.sampled_from((None, 1, -1)),
)
def test_first_rows_are_those_without_an_earlier_one_in_reach(
    rows: list[tuple[int, int]], within: int, direction: int | None
) -> None:
    if direction is not None:
        rows = sorted(rows, key=lambda row: row[1] * direction)
    shown: list[tuple[int, int]] = []
    expected: list[bool] = []
    for group, time in rows:
        expected.append(not any(other == group and abs(time - at) <= within for other, at in shown))
        shown += [(group, time)] if expected[-1] else []
    ids, times = (np.array([row[place] for row in rows], np.int64) for place in (0, 1))
    assert first_rows(ids, times, within).tolist() == expected


@pytest.mark.parametrize("jitter", [0, 3])
def test_first_rows_of_one_group_take_no_pass_per_stretch_of_time(jitter: int) -> None:
    # With a pass over all rows for each of 20,000 stretches of time this takes minutes.
    times = np.arange(100_000) + np.random.default_rng(0).integers(-jitter, jitter + 1, 100_000)
    is_first = first_rows(np.zeros(len(times), np.int64), times, 4)
    shown = np.sort(times[is_first])
    assert np.diff(shown).min() > 4
    assert (np.abs(times - shown[np.searchsorted(shown, times + 4, "right") - 1]) <= 4).all()
