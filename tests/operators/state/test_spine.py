"""A spine holds what was added and has not left, with what was noted beside it, however runs are cut and merged."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.operators.interval.test_interval import forget_decoded_runs

from watersmeet.operators.core.identity import CanonicalNames
from watersmeet.operators.state import cache
from watersmeet.operators.state import format as stored_format
from watersmeet.operators.state.format import DIRECTORY, FORMAT, UnknownFormatError
from watersmeet.operators.state.layout import Budget, KeyedRows, RowLayout
from watersmeet.operators.state.spine import ShardState, Spine
from watersmeet.tools.testing import MemoryStore

LAYOUT = RowLayout(("l.k", "l.t", "l.v"), ("l.t",), "l.t", "l.k", notes=(("matched", "flag"), ("sums", "number")))
NAMES = CanonicalNames([("l.k", "0.k"), ("l.t", "0.t")])
OTHER = RowLayout(("x.k", "x.t", "l.v"), ("x.t",), "x.t", "x.k", notes=LAYOUT.notes)
OTHER_NAMES = CanonicalNames([("x.k", "0.k"), ("x.t", "0.t")])
SIZES = st.sampled_from((None, 0, 200))
"""From how many bytes on blocks have parts; None: as in a run."""
quick = settings(derandomize=True, max_examples=examples(60), deadline=None, database=None)

budgets = st.builds(
    Budget,
    block=st.sampled_from((2, 3, 1_000)),
    merge_at=st.integers(2, 4),
    smallest_tier=st.integers(1, 4),
    smallest_at=st.sampled_from((None, 2)),
    largest=st.sampled_from((5, 10**9)),
    balanced=st.booleans(),
    in_order=st.booleans(),
    sparse=st.sampled_from((None, 1, 2)),
    chunk=st.sampled_from((3, 10**9)),
)
Kept = tuple[int, int, int, bool, int]
"""A row: its key, time and value, and what is noted beside it."""
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=6)),
        st.tuples(st.sampled_from(("remove", "note", "drop")), st.sets(st.integers(0, 9))),
        st.tuples(st.sampled_from(("save", "restart", "compact")), st.none()),
    ),
    max_size=25,
)


def rows(given_rows: list[tuple[int, int]], first: int) -> KeyedRows:
    keys, times = ([row[i] for row in given_rows] for i in (0, 1))
    columns = {"l.k": keys, "l.t": times, "l.v": [first + i for i in range(len(keys))]}
    table = pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
    return LAYOUT.rows(table).with_attributes(matched=np.zeros(len(keys), np.bool_), sums=np.arange(len(keys)))


def read_rows(spine: Spine) -> list[Kept]:
    found: list[Kept] = []
    for block in spine.blocks:
        part = spine.read(block)
        order = list(zip(part.codes.tolist(), part.times["l.t"].tolist(), strict=True))
        assert order == sorted(order)
        some = np.arange(0, len(part), 2)
        assert spine.select(block, some).table.equals(part.take(some).table)
        assert spine.index(block).codes.tolist() == part.codes.tolist()
        for low, high in ((-1, 2), (2, 2), (3, 9)):
            between = list(spine.rows_between(block, low, high))
            here = part.where(spine.live_mask(block) & (part.codes >= low) & (part.codes <= high))
            assert between[0].table.equals(here.table) if between else not len(here)
        searched = np.array([1, 1, 3, 7])
        found_rows, positions, probes = spine.find(block, searched)
        if probes is not None:
            assert probes.tolist() == np.flatnonzero(np.isin(searched, part.codes)).tolist()
        assert (probes is not None) == (block.parts > 0)
        if positions is None:
            assert found_rows.table.equals(part.table)
        else:
            assert positions.tolist() == np.flatnonzero(np.isin(part.codes, [1, 3])).tolist()
            assert found_rows.codes.tolist() == part.codes[positions].tolist()
        part = part.where(spine.live_mask(block))
        assert len(part) == block.left > 0
        assert block.lowest["l.t"] <= part.times["l.t"].min() and part.times["l.t"].max() <= block.highest["l.t"]
        assert block.lowest_code <= part.codes.min() and part.codes.max() <= block.highest_code
        columns = [part.table[name].to_pylist() for name in LAYOUT.columns]
        found += zip(*columns, *(part.attributes[name].tolist() for name in ("matched", "sums")), strict=True)
    return sorted(found)


@quick
@given(budgets, steps, SIZES)
def test_a_spine_is_a_list_however_it_is_stored(
    budget: Budget, history: list[tuple[str, Any]], split_at: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if split_at is not None:
            in_parts(patch, split_at)
        check_history(budget, history)


def in_parts(patch: pytest.MonkeyPatch, split_at: int = 0, part: int = 40) -> None:
    """Store blocks of more bytes in parts of so many."""
    patch.setattr(stored_format, "SPLIT_AT", split_at)
    patch.setattr(stored_format, "PART_BYTES", part)


def check_history(budget: Budget, history: list[tuple[str, Any]]) -> None:
    def open_spine() -> Spine:
        return ShardState(store, NAMES).spine("rows", LAYOUT, budget, lambda found, _: found)

    store, there, number = MemoryStore(), list[Kept](), 0
    spine = open_spine()
    for what, given_values in history:
        if what == "add":
            spine.add(rows(given_values, number))
            there += [(k, t, number + i, False, i) for i, (k, t) in enumerate(given_values)]
            number += len(given_values)
        elif what == "compact":
            spine.compact()
        elif what in ("save", "restart"):
            spine.state.save()
            parts = [part for block in spine.blocks for part in stored_format.part_names(block.name, block.parts)]
            listed = {*parts, *(f"run/{block.name}" for block in spine.blocks)}
            assert {name for name in store._values if name.startswith(("run/", "part/"))} == listed
            if what == "restart":
                store = store.restart()
                forget_decoded_runs()
            spine = open_spine()
        else:
            there = change_rows(spine, what, given_values, there)
        assert read_rows(spine) == sorted(there)
        assert len(spine) == len(there)
        earliest = spine.earliest("l.t")
        assert not there if earliest is None else earliest <= min(row[1] for row in there)


def change_rows(spine: Spine, what: str, times: set[int], there: list[Kept]) -> list[Kept]:
    """Let something happen to the rows of these times; gives the rows there are then."""
    for block in spine.blocks:
        part = spine.read(block)
        hit = np.isin(part.times["l.t"], sorted(times)) & spine.live_mask(block)
        if what == "remove":
            spine.remove(block, hit)
        elif what == "note" and hit.any():
            spine.annotate(block, "matched", part.attributes["matched"] | hit)
            spine.annotate(block, "sums", part.attributes["sums"] + 10 * hit)
        elif what == "drop" and hit[spine.live_mask(block)].all():
            spine.drop(block)
            gone = set(part.table["l.v"].to_pylist())
            there = [row for row in there if row[2] not in gone]
    if what == "remove":
        return [row for row in there if row[1] not in times]
    if what == "note":
        return [(k, t, v, True, s + 10) if t in times else (k, t, v, m, s) for k, t, v, m, s in there]
    return there


def test_blocks_are_decoded_when_they_are_read_and_notes_are_separate() -> None:
    store = MemoryStore()
    state = ShardState(store)
    spine = state.spine("rows", LAYOUT, Budget(block=2))
    spine.add(rows([(k, 0) for k in range(6)], 0))
    state.save()
    before = dict(store._values)
    state = ShardState(store)
    spine = state.spine("rows", LAYOUT, Budget(block=2))
    spine.annotate(spine.blocks[1], "matched", np.array([True, False]))
    state.save()
    assert {name for name in store._values if store._values[name] != before.get(name)} == {
        f"note/matched/{spine.blocks[1].name}"
    }
    assert state.rows_written == 0


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def get(self, name: str) -> bytes | None:
        self.read.append(name)
        return super().get(name)


def test_a_probe_reads_filters_and_of_a_block_that_matches_its_index_and_one_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_parts(monkeypatch)
    monkeypatch.setattr(cache, "run_cache", cache.RunCache())
    store, budget = CountingStore(), Budget(block=100)
    state = ShardState(store)
    state.spine("rows", LAYOUT, budget).add(rows([(3 * k, 0) for k in range(400)], 0))
    state.save()
    forget_decoded_runs()
    spine = ShardState(store).spine("rows", LAYOUT, budget)
    store.read.clear()
    absent = np.array([k for k in range(1_200) if k % 3])
    missed = [block for block in spine.blocks if not spine.candidates(block, absent[::40]).size]
    assert len(missed) > 1 and {name.split("/")[1] for name in store.read} == {"filter"}
    store.read.clear()
    block = spine.blocks[2]
    found, positions, _ = spine.find(block, np.array([660]))
    assert positions is not None and found.table["l.k"].to_pylist() == [660]
    notes = [f"note/{note}/{block.name}" for note in ("matched", "sums")]
    assert block.parts > 10 and store.read == [f"run/{block.name}", *notes, f"part/4/{block.name}"]


def test_rows_are_searched_where_they_are_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts(monkeypatch)
    monkeypatch.setattr(cache, "run_cache", cache.RunCache())
    store, budget = CountingStore(), Budget(block=100)
    state = ShardState(store)
    state.spine("rows", LAYOUT, budget).add(rows([(3 * k, 0) for k in range(400)], 0))
    state.save()
    spine = ShardState(store).spine("rows", LAYOUT, budget)
    store.read.clear()
    block = spine.blocks[2]
    whole, positions, probes = spine.find(block, np.array([-1, 660, 661]))
    assert probes is not None and probes.tolist() == [1]
    assert positions is None and len(whole) == block.rows and 660 in whole.table["l.k"].to_pylist()
    absent = np.array([code for code in range(block.lowest_code, block.highest_code) if code % 3])
    missed = absent[[not spine.candidates(block, absent[[place]]).size for place in range(absent.size)]]
    nothing, positions, _ = spine.find(block, missed)
    assert missed.size and not len(nothing) and positions is not None and not positions.size
    assert not [name for name in store.read if name.startswith(("run/", "part/"))]


@pytest.mark.whole_blocks
def test_no_value_is_large_unless_a_row_is() -> None:
    wide = RowLayout(("k", "v"), code="k")
    values = [b"x" * size for size in [200] * 40_000 + [3_000_000] + [200] * 40_000]
    store = MemoryStore()
    state = ShardState(store)
    spine = state.spine("rows", wide)
    spine.add(wide.rows(pa.table({"k": np.arange(len(values)), "v": pa.array(values, pa.binary())})))
    state.save()
    blocks = ShardState(store).spine("rows", wide).blocks
    sizes = sorted(
        len(stored_format.decode_rows(v)["v"].buffers()[2])
        for n, v in store.values.items()
        if "/filter/" not in n and n.startswith("part/")
    )
    assert sum(block.rows for block in blocks) == len(values) and all(block.parts for block in blocks)
    assert 3_000_000 <= sizes[-1] < 3_000_000 + 1.5 * stored_format.PART_BYTES
    assert sizes[-2] < 1.5 * stored_format.PART_BYTES


def test_stored_entries_have_canonical_names() -> None:
    store = MemoryStore()
    state = ShardState(store, NAMES)
    state.spine("rows", LAYOUT).add(rows([(1, 5)], 7))
    state.save(received={"l.t": 3, "l.t#1": 4}, emitted={"l.t": 2}, active={"#now": 9})
    assert b"l.t" not in store._values[DIRECTORY]
    for read_from in (store, store.restart()):
        state = ShardState(read_from, OTHER_NAMES)
        known = state.directory
        assert (known.received, known.emitted, known.active) == ({"x.t": 3, "x.t#1": 4}, {"x.t": 2}, {"#now": 9})
        spine = state.spine("rows", OTHER)
        assert spine.read(spine.blocks[0]).table.to_pylist() == [{"x.k": 1, "x.t": 5, "l.v": 7}]
        assert spine.earliest("x.t") == 5
        forget_decoded_runs()


def test_a_column_that_has_two_names_is_stored_once() -> None:
    layout, names = RowLayout(("a", "b"), code="a"), CanonicalNames([("a", "0.a"), ("b", "0.a")])
    store = MemoryStore()
    state = ShardState(store, names)
    state.spine("rows", layout).add(layout.rows(pa.table({"a": [1], "b": [1]})))
    state.save()
    forget_decoded_runs()
    spine = ShardState(store, names).spine("rows", layout)
    assert spine.read(spine.blocks[0]).table.to_pylist() == [{"a": 1, "b": 1}]


@pytest.mark.parametrize("found", [None, FORMAT + 1])
def test_another_format_is_refused(found: int | None) -> None:
    store = MemoryStore({DIRECTORY: json.dumps({"format": found} if found else {"runs": []}).encode()})
    with pytest.raises(UnknownFormatError) as raised:
        ShardState(store)
    assert raised.value.condition == "STATE_FORMAT"
    assert raised.value.parameters == {"found": str(found or "none"), "known": "1, 2 and 3"}


def test_empty_and_unchanged_directories_are_not_written() -> None:
    class CountingStore(MemoryStore):
        puts = 0

        def put(self, name: str, value: bytes) -> None:
            self.puts += 1
            super().put(name, value)

    store = CountingStore()
    state = ShardState(store)
    state.spine("rows", LAYOUT)
    state.save()
    assert store.puts == 0
    ShardState(store).save(received={"t": 1})
    ShardState(store).save(received={"t": 1})
    assert store.puts == 1


@pytest.mark.parametrize("lost", ["run/", "note/"])
def test_a_lost_value_is_an_error(lost: str) -> None:
    store = MemoryStore()
    state = ShardState(store)
    state.spine("rows", LAYOUT).add(rows([(1, 5)], 0))
    state.save()
    for name in [name for name in store._values if name.startswith(lost)]:
        store.remove(name)
    forget_decoded_runs()
    spine = ShardState(store).spine("rows", LAYOUT)
    with pytest.raises(RuntimeError, match="the state has no"):
        spine.read(spine.blocks[0])
