"""A block is called by its bytes, and what is at hand of it is what others read from the state."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.operators.state import cache
from watersmeet.operators.state.format import RUN, cut_rows, decode_rows, encode_block
from watersmeet.operators.state.layout import Budget, RowLayout
from watersmeet.operators.state.spine import ShardState
from watersmeet.tools.testing import MemoryStore

LAYOUT = RowLayout(("k", "v", "b"), code="k")
APART = Budget(block=3, merge_at=100)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "run_cache", cache.RunCache())


def add_rows(store: MemoryStore, keys: list[int], budget: Budget = APART) -> ShardState:
    """The state after a step that adds rows; those of low keys have no NULL."""
    table = pa.table(
        {
            "k": keys,
            "v": [None if key > 3 else "x" * key for key in keys],
            "b": pa.array([None if key > 3 else key % 2 == 0 for key in keys], pa.bool_()),
        }
    )
    state = ShardState(store)
    state.spine("rows", LAYOUT, budget).add(LAYOUT.rows(table))
    state.save()
    return state


def test_equal_blocks_have_names_of_their_own() -> None:
    store = MemoryStore(owner="a shard")
    for _ in range(3):
        state = add_rows(store, [1, 2])
    names = [block.name for block in state.spine("rows", LAYOUT).blocks]
    assert len(set(names)) == 3
    again = ShardState(store)
    spine = again.spine("rows", LAYOUT, APART)
    spine.drop(spine.blocks[1])
    again.save()
    left = ShardState(store).spine("rows", LAYOUT)
    assert [block.name for block in left.blocks] == [names[0], names[2]]
    assert [left.read(block).table["k"].to_pylist() for block in left.blocks] == [[1, 2], [1, 2]]
    # A name that is free again is taken for the same bytes, and no other.
    assert [block.name for block in add_rows(store, [1, 2]).spine("rows", LAYOUT).blocks] == [
        names[0],
        names[2],
        names[1],
    ]


def test_shards_and_spines_have_names_of_their_own() -> None:
    found = {
        block.name for owner in "ab" for block in add_rows(MemoryStore(owner=owner), [1]).spine("rows", LAYOUT).blocks
    }
    assert len(found) == 2
    store = MemoryStore(owner="a")
    state = ShardState(store)
    for spine in ("left", "right"):
        state.spine(spine, LAYOUT).add(LAYOUT.rows(pa.table({"k": [1], "v": ["x"], "b": [True]})))
    state.save()
    assert len([name for name in store.values if name.startswith(RUN)]) == 2


@pytest.mark.whole_blocks
def test_cached_blocks_are_those_of_the_state() -> None:
    store = MemoryStore(owner="a shard")
    state = add_rows(store, [1, 2, 3, 4, 5, 6, 7])
    blocks = state.spine("rows", LAYOUT).blocks
    assert [block.rows for block in blocks] == [3, 3, 1]
    for block in blocks:
        held, stored = cache.run_cache.find("a shard", block.name), decode_rows(store.values[RUN + block.name])
        assert held is not None and held.equals(stored)
        assert held.nbytes == stored.nbytes
        for ours, theirs in zip(held.columns, stored.columns, strict=True):
            # The first of these blocks are parts of columns with NULLs, and have none themselves.
            assert [part is None for part in ours.buffers()] == [part is None for part in theirs.buffers()]


def test_merged_runs_are_the_same_whether_they_were_at_hand_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    merging = Budget(block=1_000, merge_at=2, smallest_tier=1_000)
    random = np.random.default_rng(5)
    batches = [random.integers(0, 7, 50).tolist() for _ in range(6)]
    stores = [MemoryStore(owner="a shard") for _ in range(2)]
    for keys in batches:
        for number, store in enumerate(stores):
            if number:
                monkeypatch.setattr(cache, "run_cache", cache.RunCache())
            add_rows(store, keys, merging)
        assert stores[0].values == stores[1].values


def test_blocks_are_cut_by_their_values_alone() -> None:
    # The slice has a bitmap of NULLs, and no NULL.
    rows = pa.record_batch({"a": range(200_000), "b": range(200_000), "c": range(200_000)})
    same = pa.record_batch({name: [None, *range(200_000)] for name in "abc"}).slice(1)
    assert rows.equals(same)
    assert rows.nbytes != same.nbytes
    assert cut_rows(rows, 200_000, 2**20) == cut_rows(same, 200_000, 2**20)
    assert encode_block(rows, "a", []).content == encode_block(same, "a", []).content
