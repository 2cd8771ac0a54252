"""The kernel of the window join gives what its reference defines, in order, wherever batches are cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.operators.interval.test_interval import forget_decoded_runs
from tests.operators.window_strategies import Batch, cut, histories, joins, sequences, with_partitions_by_key

from watersmeet.local.query import MemoryStore
from watersmeet.operators.core.operator import Emission, StateOverflowError
from watersmeet.operators.core.rowwise import ReferenceStep
from watersmeet.operators.state.state_schema import ShardInspector
from watersmeet.operators.window import kernel as window_batch
from watersmeet.operators.window import matching as window_meet
from watersmeet.operators.window.definition import WindowReference
from watersmeet.operators.window.kernel import PartitionLimit, WindowJoinOperator, WindowSpec

quick = settings(
    derandomize=True,
    max_examples=examples(80),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pieces and runs so small that a few rows fill several."""
    monkeypatch.setattr(window_meet, "ROWS_PER_PIECE", 3)
    monkeypatch.setattr(window_batch, "BUDGET", replace(window_batch.BUDGET, smallest_tier=2))
    yield
    forget_decoded_runs()


def tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def rows_of(emission: Emission) -> list[tuple[Any, ...]]:
    return [row for table in emission.rows for row in tuples(table)]


def rows_without_match(emission: Emission) -> list[tuple[int, tuple[Any, ...]]]:
    return [(port, row) for port, table in emission.unmatched for row in tuples(table)]


def by_port(rows: list[tuple[int, tuple[Any, ...]]]) -> dict[int, list[tuple[Any, ...]]]:
    return {port: [row for p, row in rows if p == port] for port in (0, 1)}


def expect_same(join: WindowJoinOperator, emission: Emission, step: ReferenceStep, batch: Batch) -> None:
    for table in emission.rows:
        assert table.column_names == [*join.left.columns, *join.right.columns, *join.extra]
        assert table.num_rows
    assert rows_of(emission) == step.rows
    assert by_port(rows_without_match(emission)) == by_port(step.unmatched)
    report = emission.report
    assert report.rows == tuple(len(rows) for rows in batch.rows)
    assert (report.matched, report.padded) == (step.matched, step.padded)
    assert (report.state, report.dropped, report.partitions) == (step.state, step.dropped, step.partitions)


def kernel_rows(join: WindowJoinOperator, batches: list[Batch]) -> tuple[list[tuple[Any, ...]], dict[int, Any]]:
    store = MemoryStore()
    emissions = [join.step(store, batch.tables(), batch.marks) for batch in batches]
    alone = by_port([row for emission in emissions for row in rows_without_match(emission)])
    return [row for emission in emissions for row in rows_of(emission)], alone


@settings(quick, max_examples=examples(250))
@given(st.data())
def test_kernel_equals_reference_in_every_batch(data: st.DataObject) -> None:
    join = data.draw(joins())
    store, reference = MemoryStore(), WindowReference(join)
    for batch in data.draw(histories(join)):
        if batch.restarted:
            store, join = store.restart(), replace(join)
            forget_decoded_runs()
        step = reference.step(dict(enumerate(batch.rows)), batch.marks)
        expect_same(join, join.step(store, batch.tables(), batch.marks), step, batch)


@st.composite
def joins_of_other_sizes(draw: st.DrawFn, join: WindowJoinOperator) -> WindowJoinOperator:
    """The same join with windows, and limits on partitions, of other sizes."""
    windows: list[WindowSpec] = []
    for spec in join.windows:
        size = draw(st.integers(0, 4)) * (1_000_000 if spec.kind == "time" else 1)
        limit = spec.limit
        if spec.partition and (limit is None or limit.kind != "age"):
            sizes = st.none() | st.builds(PartitionLimit, st.sampled_from(("count", "rows")), st.integers(1, 4))
            limit = draw(sizes)
        windows.append(replace(spec, size=size, limit=limit))
    return replace(join, windows=(windows[0], windows[1]))


@settings(quick, max_examples=examples(200))
@given(st.data())
def test_the_sizes_of_windows_may_change_at_any_time(data: st.DataObject) -> None:
    join = data.draw(joins())
    store, reference = MemoryStore(), WindowReference(join)
    for batch in data.draw(histories(join)):
        if data.draw(st.booleans()):
            was, join, store = join.identity, data.draw(joins_of_other_sizes(join)), store.restart()
            reference.join = join
            forget_decoded_runs()
            join.take_over(store, was)
        step = reference.step(dict(enumerate(batch.rows)), batch.marks)
        expect_same(join, join.step(store, batch.tables(), batch.marks), step, batch)
        assert "narrowed" not in ShardInspector(store._values).directory.numbers


@settings(quick, max_examples=examples(60))
@given(st.data())
def test_a_failed_batch_can_be_repeated(data: st.DataObject) -> None:
    join = data.draw(joins())
    store, reference = MemoryStore(), WindowReference(join)
    for batch in data.draw(histories(join)):
        # The first attempt writes to a copy, which is lost.
        join.step(store.restart(), batch.tables(), batch.marks)
        step = reference.step(dict(enumerate(batch.rows)), batch.marks)
        expect_same(join, join.step(store, batch.tables(), batch.marks), step, batch)


@quick
@given(st.data())
def test_a_limit_on_all_rows_fails_or_drops_the_oldest(data: st.DataObject) -> None:
    overflow = data.draw(st.sampled_from(("fail", "drop_oldest")))
    join = data.draw(joins()).with_limit(data.draw(st.integers(0, 6)), overflow)
    store, reference = MemoryStore(), WindowReference(join)
    for batch in data.draw(histories(join)):
        try:
            step = reference.step(dict(enumerate(batch.rows)), batch.marks)
        except StateOverflowError as expected:
            with pytest.raises(StateOverflowError) as raised:
                join.step(store, batch.tables(), batch.marks)
            assert raised.value.state_rows == expected.state_rows
            return
        expect_same(join, join.step(store, batch.tables(), batch.marks), step, batch)
        assert sum(step.state) <= (join.max_rows or 0)


@settings(quick, max_examples=examples(60))
@given(st.data())
def test_with_a_declared_order_the_result_does_not_depend_on_cuts(data: st.DataObject) -> None:
    join = data.draw(joins(ordered=True, clocks=False))
    sequence = data.draw(sequences(join))
    once = WindowReference(join).step({p: [r for q, r in sequence if q == p] for p in (0, 1)}, {})
    found, alone = kernel_rows(join, cut(sequence, data.draw(st.lists(st.integers(0, 24), max_size=6))))
    assert found == once.rows
    assert alone == by_port(once.unmatched)


@quick
@given(st.data())
def test_shards_by_a_key_that_partitions_give_the_same_rows(data: st.DataObject) -> None:
    join = data.draw(joins(ordered=True, clocks=False, limits=False).filter(lambda j: j.left.keys[:1] == ("l.k",)))
    join = replace(with_partitions_by_key(join), punctuated=True)
    sequence = data.draw(sequences(join))
    cuts = data.draw(st.lists(st.integers(0, 24), max_size=4))
    whole, alone = kernel_rows(join, cut(sequence, cuts))
    shards = [kernel_rows(join, cut(part, cuts)) for part in by_key(sequence)]
    assert Counter(row for rows, _ in shards for row in rows) == Counter(whole)
    for port in (0, 1):
        assert Counter(row for _, rows in shards for row in rows[port]) == Counter(alone[port])


def by_key(sequence: list[tuple[int, dict[str, Any]]]) -> list[list[tuple[int, dict[str, Any]]]]:
    return [[(p, r) for p, r in sequence if (r[f"{'lr'[p]}.k"] or 0) % 2 == shard] for shard in (0, 1)]


@settings(quick, max_examples=examples(30))
@given(st.data())
def test_runs_stay_few_and_nothing_but_the_windows_is_stored(data: st.DataObject) -> None:
    join = data.draw(joins())
    store = MemoryStore()
    for batch in [batch for _ in range(4) for batch in data.draw(histories(join))]:
        report = join.step(store, batch.tables(), {}).report
        runs = [name for name in store._values if name.startswith("run/")]
        assert len(runs) <= 24
        if not sum(report.state):
            assert not runs
