"""Decoded runs at hand: never wrong, never more than the budget, shared by the workers of a machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.operators.core.operator import Port
from watersmeet.operators.core.watermarks import Bound
from watersmeet.operators.interval.kernel import IntervalJoinOperator
from watersmeet.operators.state import cache as caches
from watersmeet.operators.state import format as blocks_format
from watersmeet.operators.state import spine as spines
from watersmeet.operators.state.cache import RunCache
from watersmeet.tools.testing import MemoryStore


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = caches.run_cache
    caches.run_cache = RunCache()
    monkeypatch.setattr(caches, "SMALLEST", 0)
    yield
    caches.run_cache = before


def batch(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"a": pa.array(values, pa.int64())})


def names(cache: RunCache) -> set[str]:
    return {name for name in "abcd" if cache.find("owner", name) is not None}


@pytest.mark.parametrize("shared", [False, True])
def test_the_oldest_runs_go_when_the_budget_is_spent(tmp_path: Path, shared: bool) -> None:
    run = batch(*range(1000))
    cache = RunCache(budget=3 * 9000, folder=tmp_path if shared else None)
    for name in "abcd":
        cache.put("owner", name, run)
    assert "d" in names(cache) and "a" not in names(cache)
    assert cache.find("owner", "d") == run


@pytest.mark.parametrize("shared", [False, True])
def test_most_of_a_state_that_does_not_fit_is_there_when_it_is_read_again(tmp_path: Path, shared: bool) -> None:
    run, rounds, found = batch(*range(1000)), 12, 0
    cache = RunCache(budget=3 * 9000, folder=tmp_path if shared else None)
    for name in "abcd" * rounds:
        if cache.find("owner", name) is None:
            assert cache.put_read("owner", name, run) == run
        else:
            found += 1
    assert found > 2 * rounds


@pytest.mark.parametrize("shared", [False, True])
def test_runs_that_nobody_reads_leave_room_in_the_end(tmp_path: Path, shared: bool) -> None:
    run = batch(*range(1000))
    cache = RunCache(budget=3 * 9000, folder=tmp_path if shared else None)
    for name in "abc":
        cache.put("ended", name, run)
    for _ in range(3 * caches.ADMIT_EVERY):
        for name in "ab":
            if cache.find("owner", name) is None:
                cache.put_read("owner", name, run)
    assert names(cache) == {"a", "b"}


@pytest.mark.parametrize("shared", [False, True])
def test_a_shard_keeps_only_what_it_still_has(tmp_path: Path, shared: bool) -> None:
    cache = RunCache(folder=tmp_path if shared else None)
    for name in "abc":
        cache.put("owner", name, batch(1))
    cache.put("another", "a", batch(2))
    cache.retain("owner", frozenset("c"))
    assert names(cache) == {"c"}
    assert cache.find("another", "a") == batch(2)


def test_another_process_finds_what_one_has_put(tmp_path: Path) -> None:
    RunCache(folder=tmp_path).put("owner", "a", batch(1, 2))
    other = RunCache(folder=tmp_path)
    assert other.find("owner", "a") == batch(1, 2)
    other.drop("owner", "a")
    assert RunCache(folder=tmp_path).find("owner", "a") is None


def test_a_small_run_is_held_but_has_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "SMALLEST", 17)
    cache = RunCache(folder=tmp_path)
    cache.put("owner", "a", batch(1, 2))
    cache.put("owner", "b", batch(1, 2, 3))
    assert names(cache) == {"a", "b"}
    assert [path.stem for path in (tmp_path / "owner").iterdir()] == ["b"]


def run_bytes(folder: Path) -> int:
    """The bytes of all files of runs, unfinished ones included."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() and path.name != caches.LEDGER else 0
    return total


def test_runs_of_others_count_to_the_budget(tmp_path: Path) -> None:
    cache = RunCache(budget=160_000, folder=tmp_path)
    cache.put("owner", "a", batch(*range(1_000)))
    RunCache(budget=320_000, folder=tmp_path).put("owner", "b", batch(*range(30_000)))
    assert {path.stem for path in (tmp_path / "owner").iterdir()} == {"a", "b"}
    cache.put("owner", "c", batch(*range(1_000)))
    assert {path.stem for path in (tmp_path / "owner").iterdir()} == {"c"}
    assert cache.bytes_used == run_bytes(tmp_path)


operations = st.lists(
    st.tuples(
        st.sampled_from(("put", "put", "put", "put_read", "find", "drop", "retain", "killed", "budget")),
        st.integers(0, 2),
        st.integers(0, 1),
        st.integers(0, 9),
        st.sampled_from(("", *(caches.INDEX, caches.FILTER, caches.REST))),
    ),
    max_size=60,
)


@settings(derandomize=True, max_examples=examples(60), deadline=None, database=None)
@given(operations, st.booleans())
def test_a_cache_never_exceeds_its_budget(history: list[tuple[str, int, int, int, str]], shared: bool) -> None:
    # The bytes are counted at every write, while a file is unfinished too.
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder, budget = Path(name), 60_000
        made = [RunCache(budget, folder if shared else None) for _ in range(3)]
        seen, replace = list[int](), Path.replace

        def watch(path: Path, target: Path) -> Path:
            seen.append(run_bytes(folder))
            return replace(path, target)

        patch.setattr(Path, "replace", watch)
        sizes = {number: 1 + 1_600 * (number % 6) for number in range(10)}
        for what, process, owner, number, suffix in history:
            cache, key = made[process], (f"owner {owner}", f"{number}{suffix}")
            run = batch(*range(number, number + sizes[number]))
            if what == "put":
                cache.put(*key, run)
            elif what == "put_read":
                assert cache.put_read(*key, run) == run
            elif what == "find":
                found = cache.find(*key)
                assert found is None or found == run
            elif what == "drop":
                cache.drop(*key)
                assert cache.find(*key) is None
            elif what == "retain":
                cache.retain(key[0], frozenset(str(other) for other in range(number)))
            elif what == "killed":
                # A worker ends while it writes, and another one takes its place.
                with patch.context() as dying:
                    dying.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
                    with suppress(KeyboardInterrupt):
                        cache.put(*key, run)
                made[process] = RunCache(budget, folder if shared else None)
            else:
                budget = 30_000 + 10_000 * (number % 4)
                for other in made:
                    other.set_budget(budget)
            assert all(other.size <= budget for other in made)
            assert run_bytes(folder) <= budget
            assert not shared or cache.bytes_used >= run_bytes(folder)
        assert all(size <= 60_000 for size in seen)


def _write_many(folder: Path, process: int, failed: Synchronized[int]) -> None:
    cache = RunCache(budget=1_000_000, folder=folder)
    for number in range(150):
        cache.put(f"owner {process % 2}", f"{process} {number}", batch(*range(1_000 + 100 * (number % 50))))
        if number % 7 == 0:
            cache.drop(f"owner {process % 2}", f"{process} {number}")
        # Others wait as long as files are counted, or a file could count that is gone when the next one is seen.
        with caches.RunFiles(folder)._lock_ledger():
            if run_bytes(folder) > 1_000_000:
                failed.value = 1


def test_processes_that_write_at_once_never_exceed_the_budget(tmp_path: Path) -> None:
    context = get_context("fork")
    failed = context.Value("i", 0)
    processes = [context.Process(target=_write_many, args=(tmp_path, number, failed)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert not failed.value and all(process.exitcode == 0 for process in processes)
    assert 800_000 < run_bytes(tmp_path) <= 1_000_000
    assert RunCache(folder=tmp_path).bytes_used == run_bytes(tmp_path)


def test_a_run_that_is_larger_than_the_budget_evicts_nothing(tmp_path: Path) -> None:
    cache = RunCache(budget=20_000, folder=tmp_path)
    cache.put("owner", "a", batch(*range(1_000)))
    cache.put("owner", "b", batch(*range(10_000)))
    assert names(cache) == {"a"}


def test_a_smaller_budget_holds_at_once(tmp_path: Path) -> None:
    caches.share_runs(tmp_path, 60_000)
    for name in "abcd":
        caches.run_cache.put("owner", name, batch(*range(1_000)))
    caches.share_runs(tmp_path, 20_000)
    assert run_bytes(tmp_path) <= 20_000 and "d" in names(caches.run_cache) and "a" not in names(caches.run_cache)


def test_a_file_that_another_process_removed_is_not_held(tmp_path: Path) -> None:
    cache = RunCache(folder=tmp_path)
    for name in "ab":
        cache.put("owner", name, batch(1))
    RunCache(folder=tmp_path).drop("owner", "a")
    cache.retain("owner", frozenset("ab"))
    assert not cache.has("owner", "a") and cache.has("owner", "b")


def test_most_files_of_a_state_stay_mapped_when_all_are_read_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "HELD", 20 * 8_000)
    writer, reader = RunCache(folder=tmp_path), RunCache(folder=tmp_path)
    for number in range(30):
        writer.put("owner", f"{number}", batch(*range(1_000)))
    held = 0
    for _ in range(10):
        for number in range(30):
            held += reader.has("owner", f"{number}")
            assert reader.find("owner", f"{number}") == batch(*range(1_000))
    assert held > 10 * 30 // 3 and reader.size <= 20 * 8_000


def test_indexes_and_filters_go_after_everything_else(tmp_path: Path) -> None:
    cache = RunCache(budget=60_000, folder=tmp_path)
    for number in range(20):
        for suffix in (caches.INDEX, caches.FILTER, caches.REST):
            cache.put("owner", f"{number}{suffix}", batch(*range(1_000 if suffix == caches.REST else 50)))
    kept = {suffix: len(list(tmp_path.rglob(f"*{suffix}.arrow"))) for suffix in (".index", ".filter", ".rest")}
    assert kept[".index"] == kept[".filter"] == 20 and 0 < kept[".rest"] < 6


def test_the_default_leaves_most_of_the_disk_and_counts_its_own_files_as_free(tmp_path: Path) -> None:
    cache = RunCache(folder=tmp_path)
    before = caches.default_budget(tmp_path)
    cache.put("owner", "a", batch(*range(1_000_000)))
    assert 0 < before <= shutil.disk_usage(tmp_path).total // caches.OF_DISK
    assert abs(caches.default_budget(tmp_path) - before) < before // 10


def test_a_folder_that_cannot_be_written_costs_the_help_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = RunCache(folder=tmp_path / "file")
    cache.put("owner", "a", batch(1))
    assert cache.find("owner", "a") is None
    cache.retain("owner", frozenset())


def test_a_half_written_file_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "a.arrow").write_bytes(b"ARROW1")
    assert RunCache(folder=tmp_path).find("owner", "a") is None


def test_a_join_gives_the_same_from_files_as_from_its_state(tmp_path: Path) -> None:
    bounds = (Bound("l.t", "r.t", 5), Bound("r.t", "l.t", 5))
    join = IntervalJoinOperator("left", Port(("l.t",), ("l.t",)), Port(("r.t",), ("r.t",)), -5, 5, bounds)

    def outcome() -> list[list[tuple[object, ...]]]:
        store, out = MemoryStore(), []
        for moment in range(0, 60, 2):
            marks = {"l.t": moment - 3, "r.t": moment - 3}
            emission = join.step(store, {0: pa.table({"l.t": [moment]}), 1: pa.table({"r.t": [moment + 20]})}, marks)
            out.append(sorted(tuple(row.values()) for table in emission.rows for row in table.to_pylist()))
        return out

    from_state = outcome()
    caches.share_runs(tmp_path / "runs")
    assert outcome() == from_state
    assert any(rows for rows in from_state)
    assert list((tmp_path / "runs").iterdir())


def test_leftovers_of_a_killed_worker_go_as_well(tmp_path: Path) -> None:
    (tmp_path / "owner").mkdir()
    left = [tmp_path / "owner" / f"{name}.123" for name in "ab"]
    for path in left:
        path.write_bytes(bytes(9000))
    cache = RunCache(folder=tmp_path)
    cache.retain("owner", frozenset("b"))
    assert [path.exists() for path in left] == [False, True]
    RunCache(budget=9000, folder=tmp_path).put("owner", "c", batch(1))
    assert not left[1].exists() and RunCache(folder=tmp_path).bytes_used == run_bytes(tmp_path)


@pytest.mark.whole_blocks
@pytest.mark.parametrize("budget", [3_000_000, 8_000_000])
def test_a_join_with_large_blocks_stays_within_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    # Blocks of 2 MB are written and merged, and most of a state of 12 MB does not fit.
    monkeypatch.setattr(blocks_format, "SPLIT_AT", 500_000)
    monkeypatch.setattr(blocks_format, "PART_BYTES", 100_000)
    monkeypatch.setattr(spines, "BLOCK_BYTES", 2_000_000)
    seen, replace = list[int](), Path.replace

    def watch(path: Path, target: Path) -> Path:
        seen.append(run_bytes(tmp_path))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", watch)
    columns = {side: (f"{side}.k", f"{side}.t", *(f"{side}.v{n}" for n in range(10))) for side in "lr"}
    ports = [Port(columns[side], (f"{side}.t",), (f"{side}.k",), f"{side}.k", exact=True) for side in "lr"]
    bounds = (Bound("l.t", "r.t", 10**9), Bound("r.t", "l.t", 10**9))
    join = IntervalJoinOperator("inner", ports[0], ports[1], -(10**9), 10**9, bounds)
    rng = np.random.default_rng(0)

    def outcome() -> list[int]:
        store, matched = MemoryStore(), list[int]()
        for moment in range(20):
            arrivals = {
                port: pa.table(
                    {
                        f"{side}.k": np.random.default_rng(moment + port % 2).integers(0, 10**6, 3_000),
                        f"{side}.t": np.full(3_000, moment),
                        **{f"{side}.v{n}": rng.random(3_000) for n in range(10)},
                    }
                )
                for port, side in enumerate("lr")
            }
            emission = join.step(store, arrivals, {"l.t": 0, "r.t": 0})
            matched.append(sum(table.num_rows for table in emission.rows))
        return matched

    caches.share_runs(tmp_path, budget)
    monkeypatch.setattr(caches, "SMALLEST", 10_000)
    matched = outcome()
    assert budget // 2 < max(seen) <= budget and run_bytes(tmp_path) == caches.run_cache.bytes_used <= budget
    caches.run_cache = RunCache()
    assert outcome() == matched and sum(matched) > 20_000
