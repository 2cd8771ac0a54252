"""A table in one shard holds the sum of its changes, however they were cut, merged and restarted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.operators.interval.test_interval import forget_decoded_runs
from tests.operators.table_strategies import TINY

from watersmeet.operators.core.changes import OP, POSITION, WEIGHT
from watersmeet.operators.state.layout import Budget, KeyedRows, RowLayout, concat_rows
from watersmeet.operators.state.spine import ShardState
from watersmeet.operators.state.table import (
    BUDGET,
    StateTable,
    chunk_codes,
    consolidate_rows,
    table_layout,
    with_weights,
)
from watersmeet.tools.testing import MemoryStore

LAYOUT = table_layout(("k", "v"), "k")
SUMMED = table_layout(("k", "v"), "k", ("sums", "number"))
quick = settings(derandomize=True, max_examples=examples(40), deadline=None, database=None)

Change = tuple[int, str, int]
histories = st.lists(
    st.lists(st.tuples(st.integers(0, 7), st.sampled_from("ab"), st.sampled_from([1, 1, -1, 2])), max_size=9),
    max_size=8,
)


def changes(rows: list[Change]) -> KeyedRows:
    keys, values, weights = ([row[i] for row in rows] for i in range(3))
    return with_weights(
        LAYOUT, pa.table({"k": pa.array(keys, pa.int64()), "v": values, WEIGHT: pa.array(weights, pa.int64())})
    )


def open_table(store: MemoryStore, budget: Budget = BUDGET, layout: RowLayout = LAYOUT) -> StateTable:
    return StateTable.of(ShardState(store), "t", layout, budget)


def bag(rows: KeyedRows) -> dict[tuple[int, str], int]:
    found: dict[tuple[int, str], int] = {}
    for row, weight in zip(rows.table.to_pylist(), rows.weights.tolist(), strict=True):
        assert (row["k"], row["v"]) not in found and weight != 0
        found[row["k"], row["v"]] = weight
    assert bool((np.diff(rows.codes) >= 0).all())
    return found


def whole(state: StateTable) -> dict[Any, int]:
    found: dict[Any, int] = {}
    for block in state.spine.merge_runs():
        part = bag(block)
        assert not part.keys() & found.keys()
        found |= part
    return found


@quick
@given(histories, st.lists(st.integers(-1, 9), unique=True))
def test_a_table_is_the_sum_of_its_changes(batches: list[list[Change]], asked: list[int]) -> None:
    store, expected = MemoryStore(), Counter[tuple[int, str]]()
    codes = np.array(sorted(asked), np.int64)
    for batch in batches:
        state = open_table(store, TINY)
        state.spine.add(changes(batch))
        for key, value, weight in batch:
            expected[key, value] += weight
        there = {row: n for row, n in expected.items() if n}
        assert whole(state) == there
        assert bag(state.find_rows(codes)) == {row: n for row, n in there.items() if row[0] in asked}
        for code, count in zip(codes, state.counts(codes), strict=True):
            assert count >= sum(row[0] == code for row in there)
        state.spine.state.save()
        store = store.restart()
        forget_decoded_runs()
        assert whole(open_table(store, TINY)) == there
        assert len(state) >= len(there)


@pytest.mark.parametrize("runs", [1, 5])
def test_a_code_with_many_rows_is_read_and_merged_some_of_them_at_a_time(runs: int) -> None:
    budget = replace(BUDGET, block=300, chunk=200)
    state = open_table(MemoryStore(), budget)
    for number in range(runs):
        rows = [(7, f"{i}", 1) for i in range(number, 2_000, runs)] + [(number, "x", 1), (9, f"{number}", 1)]
        gone = [(7, f"{i}", -1) for i in range(number - 1, 2_000, 10 * runs)] if number else []
        state.spine.add(consolidate_rows(LAYOUT.sort(changes(rows + gone))))
    expected = whole(copy_table(state))
    many = {row: n for row, n in expected.items() if row[0] == 7}
    parts = [bag(part) for part in state.find_parts(np.array([7]))]
    assert len(parts) > 1 and max(map(len, parts)) <= 2 * budget.block
    assert sum(map(len, parts)) == len(many) and dict(row for part in parts for row in part.items()) == many
    assert int(state.counts(np.array([7]))[0]) >= len(many)
    merged = list(state.spine.merge_runs())
    assert max(map(len, merged)) <= 2 * budget.block
    assert [int(part.codes[0]) for part in merged] == sorted(int(part.codes[0]) for part in merged)
    state.spine.compact()
    assert len(state.spine.runs) == 1 and whole(state) == expected


def copy_table(state: StateTable) -> StateTable:
    """The same rows in a table that holds all of them at once."""
    other = open_table(MemoryStore())
    for run in state.spine.runs:
        other.spine.add(concat_rows([state.spine.read(block) for block in run]))
    return other


@quick
@given(histories)
def test_few_runs_and_little_that_cancels_out_stay(batches: list[list[Change]]) -> None:
    state = open_table(MemoryStore(), TINY)
    for batch in batches:
        state.spine.add(changes(batch))
        state.spine.state.save()
        rows = [sum(block.rows for block in run) for run in state.spine.runs]
        assert not rows or sum(rows) - max(rows) < max(*rows, TINY.smallest_tier)
    state.spine.compact()
    state.spine.state.save()
    assert len(state) == len(whole(state))
    assert all(block.rows <= TINY.block for run in state.spine.runs for block in run)


def test_replaced_rows_leave_the_store() -> None:
    store = MemoryStore()
    for sign in (1, -1) * 20:
        state = open_table(store, TINY)
        state.spine.add(changes([(k, "a", sign) for k in range(10)]))
        state.spine.state.save()
        listed = {f"run/{block.name}" for run in state.spine.runs for block in run}
        assert {name for name in store._values if name.startswith("run/")} == listed
    assert len(state) == 0


@quick
@given(st.lists(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("ab"), st.booleans()), max_size=6), max_size=6))
def test_upserts_and_deletes_by_key(batches: list[list[tuple[int, str, bool]]]) -> None:
    store, expected = MemoryStore(), dict[int, str]()
    for batch in batches:
        state = open_table(store, TINY)
        before = dict(expected)
        for key, value, stays in batch:
            expected |= {key: value}
            if not stays:
                del expected[key]
        table = pa.table(
            {
                "k": pa.array([key for key, _, _ in batch], pa.int64()),
                "v": pa.array([value if stays else None for _, value, stays in batch], pa.string()),
                OP: pa.array([1 if stays else -1 for _, _, stays in batch], pa.int8()),
                POSITION: pa.array(range(len(batch)), pa.int64()),
            }
        )
        found = state.upsert_changes(table.take(pa.array(range(len(batch))[::-1], pa.int64())), ["k"])
        delta = Counter(expected.items())
        delta.subtract(before.items())
        assert bag(found) == {row: n for row, n in delta.items() if n}
        state.spine.add(found)
        state.spine.state.save()
        assert whole(state) == dict.fromkeys(expected.items(), 1)


@pytest.mark.whole_blocks
def test_a_question_reads_only_the_blocks_that_hold_its_codes() -> None:
    class CountingStore(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.read: list[str] = []

        def get(self, name: str) -> bytes | None:
            self.read.append(name)
            return super().get(name)

    store, sizes = CountingStore(), Budget(block=100, balanced=True, chunk=262_144)
    state = open_table(store, sizes)
    state.spine.add(changes([(k, "a", 1) for k in range(1_000)]))
    state.spine.state.save()
    forget_decoded_runs()
    store.read.clear()
    state = open_table(store, sizes)
    assert len(state.find_rows(np.array([150, 151, 950, 5_000]))) == 3
    assert len(store.read) == 3
    assert len(state.find_rows(np.array([], np.int64))) == 0
    assert len(store.read) == 3


def test_an_unchanged_table_writes_nothing() -> None:
    store = MemoryStore()
    state = open_table(store)
    state.spine.add(consolidate_rows(changes([(1, "a", 1), (1, "a", -1)])))
    state.spine.state.save()
    assert store._values == {} and state.spine.written == 0


def test_sums_stay_with_their_rows_through_merges() -> None:
    store = MemoryStore()
    for batch in range(12):
        state = open_table(store, TINY, SUMMED)
        for block in state.spine.blocks:
            state.spine.annotate(block, "sums", state.spine.note(block, "sums") + 1)
        new = changes([(k, "ab"[batch % 2], 1) for k in range(5)])
        # A row that is there already has the same number beside it.
        known = {r: s for b in open_table(store, TINY, SUMMED).spine.merge_runs() for r, s in sums(b)}
        found = [known.get((row["k"], row["v"]), -1) + 1 for row in new.table.to_pylist()]
        state.spine.add(new.with_attributes(sums=np.array(found)))
        state.spine.state.save()
        store = store.restart()
        forget_decoded_runs()
    state = open_table(store, TINY, SUMMED)
    assert {r: s for b in state.spine.merge_runs() for r, s in sums(b)} == {
        (k, v): 11 - i for k in range(5) for i, v in enumerate("ab")
    }


def sums(rows: KeyedRows) -> list[tuple[tuple[int, str], int]]:
    return [
        ((r["k"], r["v"]), s) for r, s in zip(rows.table.to_pylist(), rows.attributes["sums"].tolist(), strict=True)
    ]


def test_a_lost_block_is_an_error() -> None:
    store = MemoryStore()
    state = open_table(store)
    state.spine.add(changes([(1, "a", 1)]))
    state.spine.state.save()
    for name in [name for name in store._values if name.startswith("run/")]:
        store.remove(name)
    forget_decoded_runs()
    with pytest.raises(RuntimeError, match="has no run"):
        open_table(store).find_rows(np.array([1]))


def test_runs_are_merged_by_size() -> None:
    sizes = Budget(merge_at=4, smallest_tier=10, balanced=True)
    assert sizes.merge_groups([]) == sizes.merge_groups([5]) == sizes.merge_groups([1_000, 5, 5]) == []
    assert sizes.merge_groups([1_000, 5, 5, 5, 5]) == [[1, 2, 3, 4]]
    assert [sorted(group) for group in sizes.merge_groups([5, 1_000, 5, 30, 5, 30, 5, 30])] == [[0, 2, 3, 4, 5, 6, 7]]
    assert sizes.merge_groups([100, 50, 50]) == [[0, 1, 2]]
    assert Budget(merge_at=4, smallest_tier=10, largest=100).merge_groups([90, 90, 90, 90, 200, 200, 200, 200]) == [
        [0, 1, 2, 3]
    ]
    assert Budget(merge_at=4, smallest_tier=10, smallest_at=2).merge_groups([9, 90, 90, 9]) == [[0, 3]]


@quick
@given(st.lists(st.integers(0, 9)), st.integers(1, 10))
def test_codes_are_taken_in_stretches(counts: list[int], size: int) -> None:
    codes = np.arange(len(counts))
    parts = list(chunk_codes(codes, np.array(counts, np.int64), size))
    assert [code for part in parts for code in part] == codes.tolist()
    assert all(sum(counts[code] for code in part[:-1]) < max(1, size) * 2 for part in parts)
