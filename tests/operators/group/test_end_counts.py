"""Counts of groups by the end of their windows: what a batch reads and writes does not grow with the state."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.operators.core.aggregates import Aggregate
from watersmeet.operators.core.operator import END_OF_INPUT, StateOverflowError
from watersmeet.operators.group.kernel import GroupByOperator
from watersmeet.operators.state import shard
from watersmeet.operators.state.shard import EndCounts
from watersmeet.operators.state.spine import DIRECTORY, ShardState
from watersmeet.tools.testing import MemoryStore

GAP = 1_000
SESSIONS = GroupByOperator(
    ("k", "w"), (Aggregate("count", (), "n"),), window_end="end", time="t", session="w", finality_outputs=()
)
TUMBLING = GroupByOperator(("k", "end"), (Aggregate("count", (), "n"),), window_end="end", time="t")


class CountingStore(MemoryStore):
    """Counts the bytes that a step puts, and those of the directory that it reads."""

    put_bytes = read_bytes = 0

    def get(self, name: str) -> bytes | None:
        value = super().get(name)
        self.read_bytes += len(value or b"") if name == DIRECTORY else 0
        return value

    def put(self, name: str, value: bytes) -> None:
        self.put_bytes += len(value)
        super().put(name, value)


def arrivals(keys: range, time_of: Any = lambda key: 7 * key) -> dict[int, pa.Table]:
    """A row for each of the keys, each with a session and a window of its own."""
    times = np.array([time_of(key) for key in keys], np.int64)
    moments = [pa.array(part, pa.timestamp("us")) for part in (times, times + GAP)]
    session = pa.StructArray.from_arrays(moments, names=["start", "end"])
    return {0: pa.table({"k": pa.array(list(keys)), "w": session, "end": moments[1]})}


def bytes_of_one_row(grouping: GroupByOperator, stored: int) -> tuple[int, int]:
    """How much a batch of one row reads of the directory and writes, beside a state of so many groups."""
    store = CountingStore()
    grouping.step(store, arrivals(range(stored)), {})
    found: list[tuple[int, int]] = []
    for key in range(stored, stored + 3):
        store.put_bytes = store.read_bytes = 0
        grouping.step(store, arrivals(range(key, key + 1)), {})
        found.append((store.read_bytes, store.put_bytes))
    # Runs are merged now and then, which is paid for by the batches between.
    return min(found)


@pytest.mark.parametrize("grouping", [SESSIONS, TUMBLING], ids=["sessions", "windows"])
def test_a_batch_of_one_row_costs_the_same_with_ten_times_the_state(grouping: GroupByOperator) -> None:
    small, large = (bytes_of_one_row(grouping, stored) for stored in (4_000, 40_000))
    assert large[0] < 1.5 * small[0]
    assert large[1] < 1.5 * small[1]


@pytest.mark.parametrize("grouping", [SESSIONS, TUMBLING], ids=["sessions", "windows"])
def test_a_state_that_lists_every_end_goes_on(grouping: GroupByOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    with monkeypatch.context() as before:
        before.setattr(shard, "MOST_ENDS", 10**9)
        grouping.step(store, arrivals(range(3_000)), {})
    assert len(ShardState(store, grouping.canonical_names).directory.numbers["groups"]) == 3_000
    assert grouping.step(store, arrivals(range(3_000, 3_001)), {}).report.state == (3_001,)
    numbers = ShardState(store, grouping.canonical_names).directory.numbers
    assert len(numbers["groups"]) <= shard.MOST_ENDS
    json.dumps(numbers)
    # The key 0 has the first end, which is GAP: 1,000 sessions have ended by 7 * 999 + GAP.
    report = grouping.step(store, {}, {"t": 7 * 999 + GAP}).report
    assert 2_001 <= report.state[0] <= 2_001 + numbers["grain"]
    assert grouping.step(store, {}, {"t": END_OF_INPUT}).report.state == (0,)


def test_the_limit_is_that_of_groups_that_have_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "MOST_ENDS", 4)
    limited = SESSIONS.with_limit(100, "fail")
    store = MemoryStore()
    limited.step(store, arrivals(range(100)), {})
    # Half of the sessions end, which coarse counts do not tell; as many come.
    limited.step(store, {}, {"t": 7 * 49 + GAP})
    assert limited.step(store, arrivals(range(100, 150)), {}).report.state == (100,)
    with pytest.raises(StateOverflowError):
        limited.step(store, arrivals(range(150, 151)), {})


@settings(derandomize=True, max_examples=examples(100), deadline=None, database=None)
@given(st.data())
def test_coarse_counts_are_never_below_the_exact_ones(data: st.DataObject) -> None:
    most, shard.MOST_ENDS = shard.MOST_ENDS, data.draw(st.sampled_from((8, 12, 1_024)))
    end = st.integers(-40, 40) | st.sampled_from((-(2**63), 2**63 - 1, 2**63 - 2))
    try:
        counts, alive = EndCounts(), list[int]()
        for _ in range(data.draw(st.integers(1, 5))):
            come = data.draw(st.lists(end, max_size=12))
            go = data.draw(st.lists(st.sampled_from(alive), max_size=5, unique=True)) if alive else []
            for one in go:
                alive.remove(one)
            alive += come
            ends = np.array([*come, *go], np.int64)
            counts = counts.with_changes(ends, np.array([1] * len(come) + [-1] * len(go), np.int64))
            assert counts.total == len(alive)
            assert len(counts.counts) <= shard.MOST_ENDS
            mark = data.draw(st.integers(-50, 50))
            alive = [one for one in alive if one > mark]
            counts = EndCounts.of(json.loads(json.dumps(counts.open_after(mark).numbers)))
            assert counts.total >= len(alive)
            assert all(number > 0 for number in counts.counts.values())
            # What has ended and is still counted ends within the grain.
            assert counts.open_after(min(mark + counts.grain, 2**63 - 3)).total <= len(alive)
            if counts.total != len(alive):
                assert counts.grain > 1
                break
        assert counts.open_after(END_OF_INPUT).total == 0
    finally:
        shard.MOST_ENDS = most
