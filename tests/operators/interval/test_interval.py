"""The kernel gives what the reference defines, batch by batch, however rows arrive and wherever it restarts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.operators.strategies import Batch, histories, honest_histories, joins, recut

from watersmeet.operators.core.condition import Apply, ColumnRef
from watersmeet.operators.core.operator import Emission, Port
from watersmeet.operators.core.rowwise import ReferenceStep
from watersmeet.operators.core.watermarks import Bound
from watersmeet.operators.interval.definition import IntervalReference, all_pairs, multiset
from watersmeet.operators.interval.kernel import IntervalJoinOperator
from watersmeet.operators.state import cache
from watersmeet.operators.state.cache import RunCache
from watersmeet.operators.state.spine import ShardState
from watersmeet.tools.testing import MemoryStore

quick = settings(
    derandomize=True,
    max_examples=examples(80),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    # By position: a table of joined rows may carry one name twice.
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def rows_of(emission: Emission) -> Counter[tuple[Any, ...]]:
    return multiset(row for table in emission.rows for row in tuples(table))


def expect_same(join: IntervalJoinOperator, emission: Emission, step: ReferenceStep) -> None:
    for table in emission.rows:
        assert table.column_names == [*join.left.columns, *join.right.columns]
    assert rows_of(emission) == multiset(step.rows)
    late = Counter((port, row[:-2]) for port, table in emission.late for row in tuples(table))
    assert late == Counter((port, tuple(row[c] for c in join.ports[port].late)) for port, row in step.late)
    report = emission.report
    assert report.state == step.state
    assert dict(report.watermarks) == step.watermarks
    assert report.late == tuple(sum(port == p for port, _ in step.late) for p in (0, 1))
    assert report.matched + sum(report.padded) == len(step.rows)


def steps(join: IntervalJoinOperator, batches: list[Batch]) -> list[ReferenceStep]:
    reference = IntervalReference(join)
    return [reference.step(dict(enumerate(batch.rows)), batch.marks) for batch in batches]


def total(given_steps: list[ReferenceStep]) -> Counter[tuple[Any, ...]]:
    return multiset(row for step in given_steps for row in step.rows)


def kernel_total(join: IntervalJoinOperator, batches: list[Batch]) -> Counter[tuple[Any, ...]]:
    store = MemoryStore()
    found: Counter[tuple[Any, ...]] = Counter()
    for batch in batches:
        found += rows_of(join.step(store, batch.tables(), batch.marks))
    return found


def forget_decoded_runs() -> None:
    # What a new process starts with: no decoded run at hand.
    cache.run_cache = RunCache()


@quick
@given(st.data())
def test_a_batch_in_several_steps_is_one_batch(data: st.DataObject) -> None:
    join = data.draw(joins())
    batches = data.draw(histories(join))
    assert join.can_split_batch
    store, split = MemoryStore(), MemoryStore()
    for batch in batches:
        whole = join.step(store, batch.tables(), batch.marks)
        tables, parts = batch.tables(), []
        for port, table in tables.items():
            cut = data.draw(st.integers(0, table.num_rows))
            parts += [{port: table.slice(0, cut)}, {port: table.slice(cut)}]
        pieces = [*(join.step(split, part, {}) for part in parts), join.step(split, {}, batch.marks)]
        assert sum((rows_of(piece) for piece in pieces), Counter()) == rows_of(whole)
        assert pieces[-1].report.state == whole.report.state
        assert pieces[-1].report.watermarks == whole.report.watermarks


@quick
@given(st.data())
def test_kernel_equals_reference_in_every_batch(data: st.DataObject) -> None:
    join = data.draw(joins())
    batches = data.draw(histories(join))
    store = MemoryStore()
    for batch, step in zip(batches, steps(join, batches), strict=True):
        expect_same(join, join.step(store, batch.tables(), batch.marks), step)


@quick
@given(st.data())
def test_kernel_holds_nothing_outside_its_store(data: st.DataObject) -> None:
    join = data.draw(joins())
    batches = data.draw(histories(join))
    restarts = data.draw(st.lists(st.booleans(), min_size=len(batches), max_size=len(batches)))
    store = MemoryStore()
    for batch, step, restart in zip(batches, steps(join, batches), restarts, strict=True):
        if restart:
            store, join = store.restart(), replace(join)
            forget_decoded_runs()
        expect_same(join, join.step(store, batch.tables(), batch.marks), step)


@quick
@given(st.data())
def test_a_failed_batch_can_be_repeated(data: st.DataObject) -> None:
    join = data.draw(joins())
    batches = data.draw(histories(join))
    store = MemoryStore()
    for batch, step in zip(batches, steps(join, batches), strict=True):
        # The first attempt writes to a copy, which is lost.
        join.step(store.restart(), batch.tables(), batch.marks)
        expect_same(join, join.step(store, batch.tables(), batch.marks), step)


@settings(quick, max_examples=examples(40))
@given(st.data())
def test_many_batches_merge_runs_without_a_trace(data: st.DataObject) -> None:
    join = data.draw(joins(two_times=False))
    batches = [batch for _ in range(3) for batch in data.draw(histories(join))]
    batches = [replace(batch, marks={k: min(v, 8) for k, v in batch.marks.items()}) for batch in batches]
    store = MemoryStore()
    for batch, step in zip(batches, steps(join, batches), strict=True):
        expect_same(join, join.step(store, batch.tables(), batch.marks), step)


@quick
@given(st.data())
def test_result_does_not_depend_on_order_or_cuts(data: st.DataObject) -> None:
    join = data.draw(joins())
    batches = data.draw(histories(join))
    shuffled = [replace(b, rows=tuple(tuple(data.draw(st.permutations(p))) for p in b.rows)) for b in batches]
    cut = recut(shuffled[::-1], data.draw(st.lists(st.integers(0, 20), max_size=4)))
    lefts, rights = ([row for batch in batches for row in batch.rows[port]] for port in (0, 1))
    expected = all_pairs(join, lefts, rights)
    assert total(steps(join, cut)) == expected
    assert kernel_total(join, cut) == expected


@quick
@given(st.data())
def test_watermarks_that_hold_lose_no_pair(data: st.DataObject) -> None:
    join = data.draw(joins())
    batches = data.draw(honest_histories(join))
    lefts, rights = ([row for batch in batches for row in batch.rows[port]] for port in (0, 1))
    found = steps(join, batches)
    assert not any(step.late for step in found)
    assert total(found) == all_pairs(join, lefts, rights)
    assert found[-1].state == (0, 0)
    assert kernel_total(join, batches) == total(found)


@quick
@given(st.data())
def test_no_row_falls_below_the_watermarks_of_the_result(data: st.DataObject) -> None:
    join = data.draw(joins())
    names = [*join.left.columns, *join.right.columns]
    before: dict[str, int] = {}
    for step in steps(join, data.draw(histories(join))):
        for row in step.rows:
            for name, value in zip(names, row, strict=True):
                assert value is None or name not in before or value >= before[name]
        for name, mark in step.watermarks.items():
            assert mark >= before.get(name, mark)
        before = step.watermarks


def test_a_state_from_before_strict_bounds_pads_what_is_left_once() -> None:
    left, right = (Port((f"{s}.t",), (f"{s}.t",)) for s in "lr")
    closed = IntervalJoinOperator("left", left, right, 0, 4, (Bound("l.t", "r.t", 5), Bound("r.t", "l.t", 0)))
    strict = replace(closed, bounds=(Bound("l.t", "r.t", 5, strict=True), closed.bounds[1]))
    assert closed.identity == strict.identity
    store = MemoryStore()
    rows = pa.table({"l.t": [1, 2, 3]})
    # As it was: at the mark 7 the row 2 is still there, though nothing before 7 comes any more.
    assert [row for table in closed.step(store, {0: rows}, {"r.t": 7}).rows for row in tuples(table)] == [(1, None)]
    found = [strict.step(store, {}, marks) for marks in ({}, {"r.t": 7}, {"r.t": 8}, {"r.t": 9})]
    assert [[row for table in one.rows for row in tuples(table)] for one in found] == [[(2, None)], [], [(3, None)], []]


def _with_ends(kind: str = "left", bounds: tuple[Bound, ...] = (Bound("r.t", "l.t", 0),)) -> IntervalJoinOperator:
    left = Port(("l.t", "l.e"), ("l.t",), operands=("l.e",), ends=("l.e",))
    right = Port(("r.t",), ("r.t",))
    condition = Apply("<=", (ColumnRef("r.t"), ColumnRef("l.e")))
    upper = max((bound.constant for bound in bounds if bound.column == "l.t"), default=2**63 - 1)
    return IntervalJoinOperator(kind, left, right, 0, upper, bounds, condition, (Bound("l.e", "r.t", 0),))  # pyright: ignore[reportArgumentType]


def test_a_row_with_a_late_end_keeps_no_others() -> None:
    join, store = _with_ends("inner"), MemoryStore()
    ends = [10_000_000 if i % 100 == 0 else 10 + i for i in range(1000)]
    join.step(store, {0: pa.table({"l.t": [0] * 1000, "l.e": ends})}, {})
    stored: list[int] = []
    for mark in range(0, 1100, 50):
        report = join.step(store, {}, {"r.t": mark}).report
        blocks = ShardState(store).directory.runs["left"]
        stored.append(sum(block.rows for run in blocks for block in run))
        assert stored[-1] <= 2 * report.state[0]
    assert stored[-1] <= 20
    # Rewritten when half of them are gone, and not with each batch.
    assert len(set(stored)) <= 8


def test_a_state_from_before_ends_counted_pads_what_is_left_once() -> None:
    bounds = (Bound("l.t", "r.t", 100), Bound("r.t", "l.t", 0))
    ended = _with_ends(bounds=bounds)
    plain = replace(ended, left=replace(ended.left, ends=()), end_bounds=())
    assert plain.identity == ended.identity
    store = MemoryStore()
    rows = pa.table({"l.t": [1, 1, 1, 1], "l.e": [5, 20, 30, 9999]})
    assert not rows_of(plain.step(store, {0: rows}, {"r.t": 10}))
    found = [ended.step(store, {}, marks) for marks in ({}, {"r.t": 21}, {"r.t": 21}, {"r.t": 31}, {"r.t": 102})]
    assert [[row[1] for table in one.rows for row in tuples(table)] for one in found] == [[5], [20], [], [30], [9999]]
    assert [one.report.state[0] for one in found] == [3, 2, 2, 1, 0]
