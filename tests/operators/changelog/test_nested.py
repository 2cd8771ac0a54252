"""The nested join gives what its definition says, batch by batch, wherever batches are cut and it restarts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.operators.changelog.test_changelog import database, expect_agreement, expect_same, quick  # noqa: F401  # pyright: ignore[reportUnusedImport] - a fixture
from tests.operators.table_strategies import TINY, changes_of, join_examples

from watersmeet.operators.changelog import kernel
from watersmeet.operators.changelog.kernel import NestedLoopJoinOperator
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.operators.core.condition import Apply, ColumnRef
from watersmeet.operators.core.operator import Port
from watersmeet.tools.testing import MemoryStore

LESS = Apply("<", (ColumnRef("l.a"), ColumnRef("r.b")))


@quick
@given(st.data())
def test_kernel_equals_definition_in_every_batch(data: st.DataObject) -> None:
    drawn = data.draw(join_examples(nested=True))
    batches = data.draw(drawn.histories())
    expect_same(drawn, batches, [data.draw(st.booleans()) for _ in batches])


@settings(quick, max_examples=examples(15))
@given(st.data())
def test_many_batches_merge_runs_without_a_trace(data: st.DataObject) -> None:
    drawn = data.draw(join_examples(nested=True))
    drawn = replace(drawn, join=replace(drawn.join, budget=TINY))
    batches = [batch for _ in range(3) for batch in data.draw(drawn.histories())]
    expect_same(drawn, batches, [i % 4 == 3 for i in range(len(batches))])


@settings(quick, max_examples=examples(25))
@given(st.data())
def test_the_sum_of_all_changes_is_the_join_of_the_tables(
    database: duckdb.DuckDBPyConnection,  # noqa: F811
    data: st.DataObject,
) -> None:
    drawn = data.draw(join_examples(nested=True, plain=True))
    expect_agreement(database, drawn, data.draw(drawn.histories()))


@settings(quick, max_examples=examples(15))
@given(st.data(), st.integers(1, 7))
def test_pairs_are_looked_at_in_parts_without_a_trace(data: st.DataObject, size: int) -> None:
    drawn = data.draw(join_examples(nested=True))
    batches = data.draw(drawn.histories(3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "PAIRS_AT_ONCE", size)
        expect_same(drawn, batches, [False] * len(batches))


def step(join: NestedLoopJoinOperator, store: MemoryStore, port: int, rows: list[tuple[int, int]]) -> dict[Any, int]:
    values, weights = zip(*rows, strict=True)
    table = pa.table({("l.a", "r.b")[port]: values, WEIGHT: pa.array(weights, pa.int64())})
    return dict(changes_of(join, join.step(store, {port: table}, {})))


def test_a_padded_row_goes_when_it_matches_and_comes_back() -> None:
    join, store = NestedLoopJoinOperator("left", Port(("l.a",)), Port(("r.b",)), LESS), MemoryStore()
    # FT-V9: what cancels out within a batch is never seen.
    assert step(join, store, 0, [(1, 1), (9, 1), (9, -1)]) == {(1, None): 1}
    assert step(join, store, 1, [(5, 1), (5, -1)]) == {}
    assert step(join, store, 1, [(5, 2)]) == {(1, 5): 2, (1, None): -1}
    assert step(join, store, 1, [(5, -1)]) == {(1, 5): -1}
    assert step(join, store, 1, [(5, -1)]) == {(1, 5): -1, (1, None): 1}


def test_a_batch_reads_only_the_side_that_its_changes_meet() -> None:
    class CountingStore(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.changed: list[str] = []

        def put(self, name: str, value: bytes) -> None:
            self.changed.append(name)
            super().put(name, value)

    join, store = NestedLoopJoinOperator("left", Port(("l.a",)), Port(("r.b",)), LESS), CountingStore()
    join.step(store, {0: pa.table({"l.a": np.arange(100)})}, {})
    join.step(store, {1: pa.table({"r.b": [50]})}, {})
    store.changed.clear()
    # No left row is below this one: no sum changes, so none is written.
    assert step(join, store, 1, [(0, 1)]) == {}
    assert [name for name in store.changed if name.startswith("note/sums/")] == []
    assert len(step(join, store, 1, [(1, 1)])) == 1
    assert len([name for name in store.changed if name.startswith("note/sums/")]) == 1


def test_rows_cancel_out_whatever_the_order_in_which_they_are_shown() -> None:
    join, store = NestedLoopJoinOperator("left", Port(("l.a", "l.c")), Port(("r.b",)), LESS, max_rows=3), MemoryStore()
    turned = replace(join, left=Port(("l.c", "l.a")))
    assert turned.identity == join.identity
    rows = {"l.a": [1, 2], "l.c": ["x", "y"]}
    assert join.step(store, {0: pa.table({**rows, WEIGHT: [1, 1]})}, {}).report.state == (2, 0)
    assert turned.step(store, {0: pa.table({**rows, WEIGHT: [-1, -1]})}, {}).report.state == (0, 0)
