"""The window join on examples worked out by hand, for the kernel and its reference alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.local.query import MemoryStore
from watersmeet.operators.core import rowwise
from watersmeet.operators.core.operator import NOW, RUN, Port, StepReport, Watermarks
from watersmeet.operators.window.definition import WindowReference
from watersmeet.operators.window.eviction import discard_visits, first_above, partition_limit_ends, row_limit_ends
from watersmeet.operators.window.kernel import PartitionLimit, WindowJoinOperator, WindowKind, WindowSpec

Rows = list[tuple[Any, ...]]
Step = Callable[..., tuple[Rows, dict[int, Rows], rowwise.ReferenceStep | StepReport]]

SECOND = 1_000_000
COUNT = {n: WindowSpec("count", n) for n in range(6)}


def on_reference(join: WindowJoinOperator) -> Step:
    reference = WindowReference(join)

    def step(arrivals: Mapping[int, list[dict[str, Any]]], marks: Watermarks | None = None) -> Any:
        found = reference.step(arrivals, marks or {})
        return found.rows, {p: [row for q, row in found.unmatched if q == p] for p in (0, 1)}, found

    return step


def on_kernel(join: WindowJoinOperator) -> Step:
    store = MemoryStore()

    def step(arrivals: Mapping[int, list[dict[str, Any]]], marks: Watermarks | None = None) -> Any:
        tables = {port: table(rows) for port, rows in arrivals.items()}
        found = join.step(store, tables, marks or {})
        alone = {p: [row for q, table in found.unmatched if q == p for row in tuples(table)] for p in (0, 1)}
        return [row for table in found.rows for row in tuples(table)], alone, found.report

    return step


def table(rows: list[dict[str, Any]]) -> pa.Table:
    columns = {name: pa.array([row[name] for row in rows]) for name in rows[0]}
    return pa.table({name: c.cast(pa.int64()) if pa.types.is_null(c.type) else c for name, c in columns.items()})


def tuples(table: pa.Table) -> Rows:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.fixture(params=[on_reference, on_kernel])
def run(request: pytest.FixtureRequest) -> Callable[[WindowJoinOperator], Step]:
    return request.param


Side = tuple[Port, WindowSpec]


def window_join(kind: WindowKind, left: Side, right: Side, **more: Any) -> WindowJoinOperator:
    return WindowJoinOperator(kind, left[0], right[0], (left[1], right[1]), **more)


def side(name: str, spec: WindowSpec, columns: str = "k v", **more: Any) -> Side:
    shown = tuple(f"{name}{c}" for c in columns.split())
    return Port(shown, (), (f"{name}k",), f"{name}k", exact=True, **more), spec


def row_of_left(k: int | None, v: Any = None) -> dict[int, list[dict[str, Any]]]:
    return {0: [{"lk": k, "lv": v}]}


def right(k: int | None, v: Any = None) -> dict[int, list[dict[str, Any]]]:
    return {1: [{"rk": k, "rv": v}]}


Runner = Callable[[WindowJoinOperator], Step]


def test_matches_come_before_evicted_rows_and_end_with_the_last(run: Runner) -> None:
    step = run(window_join("left", side("l", COUNT[1]), side("r", COUNT[2]), punctuated=True, padded_column="p"))
    step(row_of_left(1, 10))
    step(right(2, 20))
    step(right(2, 21))
    rows, _, _ = step(row_of_left(2, 11))
    assert rows == [
        (2, 11, 2, 20, -1, 0, None, 0, False),
        (2, 11, 2, 21, -1, 0, None, 1, False),
        (1, 10, None, None, 1, 0, None, 2, True),
    ]


def test_insertions_evict_in_the_same_window_only(run: Runner) -> None:
    step = run(window_join("full", side("l", COUNT[1]), side("r", COUNT[1])))
    step(row_of_left(1, 1))
    for value in range(3):
        rows, _, report = step(right(9, value))
        assert rows == ([] if value == 0 else [(None, None, 9, value - 1)])
    assert report.state == (1, 1)


def test_a_window_of_no_rows_only_asks(run: Runner) -> None:
    delta = WindowSpec("delta", 10, "rv", ("rk",))
    step = run(window_join("left", side("l", COUNT[0]), side("r", delta)))
    assert step(row_of_left(1))[0] == [(1, None, None, None)]
    step(right(1, 0))
    assert step(row_of_left(1))[0] == [(1, None, 1, 0)]
    step(right(1, 10))
    assert step(row_of_left(1))[0] == [(1, None, 1, 0), (1, None, 1, 10)]
    step(right(1, 11))
    rows, _, report = step(row_of_left(1))
    assert rows == [(1, None, 1, 10), (1, None, 1, 11)]
    assert (report.state, report.partitions) == ((0, 2), (0, 1))


def test_disorder_in_a_delta_window_evicts_whatever_is_too_far_below(run: Runner) -> None:
    step = run(window_join("right", side("l", COUNT[0]), side("r", WindowSpec("delta", 5, "rv"))))
    for value in (10, 4, 9, 3):
        assert step(right(0, value))[0] == []
    assert step(right(0, 10))[0] == [(None, None, 0, 4), (None, None, 0, 3)]
    assert step(right(0, None))[0] == [(None, None, 0, None)]


def test_unmatched_rows_go_to_an_output_of_their_own(run: Runner) -> None:
    sides = (side("l", COUNT[0], unmatched=("lv",)), side("r", COUNT[1], unmatched=("rv", "rk")))
    step = run(window_join("full", *sides, punctuated=True))
    assert step(row_of_left(1, 7))[:2] == ([], {0: [(7,)], 1: []})
    step(right(1, 8))
    assert step(right(1, 9))[:2] == ([], {0: [], 1: [(8, 1)]})
    assert step(row_of_left(1, 7))[0] == [(1, 7, 1, 9, 0, None, 0, True)]


def test_time_evicts_before_the_arrivals_and_strictly_after_its_size(run: Runner) -> None:
    step = run(window_join("left", side("l", WindowSpec("time", 10 * SECOND)), side("r", COUNT[5]), punctuated=True))
    step(row_of_left(1), {NOW: 0})
    step(row_of_left(2), {NOW: 3 * SECOND})
    assert step(right(2), {NOW: 4 * SECOND})[0] == [(2, None, 2, None, 1, None, 0, True)]
    assert step({}, {NOW: 10 * SECOND})[0] == []
    assert step({}, {NOW: 11 * SECOND})[0] == [(1, None, None, None, None, None, 0, True)]
    rows, _, report = step({}, {NOW: 14 * SECOND})
    assert (rows, report.state) == ([], (0, 1))


def test_after_a_restart_time_pauses_until_the_next_insertion(run: Runner) -> None:
    step = run(window_join("left", side("l", WindowSpec("time", 10 * SECOND)), side("r", COUNT[5])))
    step(row_of_left(1), {NOW: 9 * SECOND, RUN: 1})
    assert step({}, {NOW: 20 * SECOND, RUN: 2})[0] == []
    assert step(right(7), {NOW: 21 * SECOND, RUN: 2})[0] == []
    assert step(row_of_left(2), {NOW: 22 * SECOND, RUN: 2})[0] == []
    assert step({}, {NOW: 30 * SECOND, RUN: 2})[0] == [(1, None, None, None)]


def test_aged_partitions_are_discarded_at_the_next_insertion(run: Runner) -> None:
    aged = WindowSpec("delta", 10, "rv", ("rp",), PartitionLimit("age", 60 * SECOND + 999_999))
    step = run(window_join("full", side("l", COUNT[0]), side("r", aged)))

    def insert(key: int, partition: int | None, seconds: int) -> tuple[int, ...]:
        return step({1: [{"rk": key, "rv": 0, "rp": partition}]}, {NOW: seconds * SECOND})[2].partitions

    assert insert(1, 1, 0) == (0, 1)
    assert insert(2, None, 30) == (0, 2)
    assert step(row_of_left(1), {NOW: 61 * SECOND})[0] == [(1, None, 1, 0)]
    assert insert(3, 3, 61) == (0, 2)
    rows, _, report = step({1: [{"rk": 4, "rv": 1, "rp": 3}]}, {NOW: 100 * SECOND})
    assert (rows, report.partitions, report.dropped) == ([], (0, 1), (0, 1))
    assert step(row_of_left(2), {NOW: 100 * SECOND})[0] == [(2, None, None, None)]


@pytest.mark.parametrize("emit", [False, True])
def test_partitions_beyond_a_count_go_least_recently_inserted_first(run: Runner, emit: bool) -> None:
    two = WindowSpec("count", 3, None, ("rk",), PartitionLimit("count", 2))
    step = run(window_join("right", side("l", COUNT[0]), side("r", two), emit_discarded=emit))
    step(right(1, 1))
    step(right(2, 2))
    step(right(1, 3))
    rows, _, report = step(right(3, 4))
    assert rows == ([(None, None, 2, 2)] if emit else [])
    assert (report.dropped, report.state, report.partitions) == ((0, 1), (0, 3), (0, 2))


def test_rows_beyond_a_limit_take_their_partition_along(run: Runner) -> None:
    four = WindowSpec("count", 9, None, ("rk",), PartitionLimit("rows", 3))
    step = run(window_join("inner", side("l", COUNT[0]), side("r", four)))
    for key in (1, 1, 2):
        step(right(key))
    assert step(right(1))[2].state == (0, 3)
    report = step({1: [{"rk": 1, "rv": 0}]})[2]
    assert (report.state, report.partitions, report.dropped) == ((0, 0), (0, 0), (0, 4))


def test_null_keys_and_dead_rows_are_stored_and_evict_but_never_match(run: Runner) -> None:
    step = run(window_join("left", side("l", COUNT[2], dead="ldead"), side("r", COUNT[5])))
    step(right(1, 5))
    rows = [{"lk": 1, "lv": 0, "ldead": True}, {"lk": None, "lv": 1, "ldead": False}, {"lk": 1, "lv": 2, "ldead": None}]
    assert step({0: rows})[0] == [(1, 0, None, None)]
    rows = [{"lk": 1, "lv": 3, "ldead": False}, {"lk": 1, "lv": 4, "ldead": False}]
    expected = [(1, 3, 1, 5), (None, 1, None, None), (1, 4, 1, 5), (1, 2, None, None)]
    assert step({0: rows})[0] == expected


def test_the_declared_order_decides_within_a_batch_and_the_left_comes_first_among_equals(run: Runner) -> None:
    def side_with_order(name: str) -> Side:
        return Port((f"{name}t",), order=f"{name}t"), COUNT[1]

    step = run(window_join("inner", side_with_order("l"), side_with_order("r"), punctuated=True))
    rows, _, _ = step({0: [{"lt": 3}, {"lt": 1}], 1: [{"rt": 3}, {"rt": 2}]})
    assert rows == [(1, 2, 1, 2, 0, True), (3, 2, 0, 3, 0, True), (3, 3, 1, 3, 0, True)]
    apart = run(window_join("inner", side_with_order("l"), side_with_order("r"), interleaved=False))
    assert apart({0: [{"lt": 3}, {"lt": 1}], 1: [{"rt": 3}, {"rt": 2}]})[0] == [(3, 2), (3, 3)]


@pytest.mark.parametrize(
    ("old", "new", "size"),
    [
        (datetime(2024, 1, 1, 0, 0, 0), datetime(2024, 1, 1, 0, 0, 10), 10 * SECOND),
        (date(2024, 1, 1), date(2024, 1, 3), 2 * 86_400 * SECOND),
        (-(2**63), 2**63 - 2, 2**63 - 1),
    ],
)
def test_delta_counts_timestamps_and_dates_in_microseconds(run: Runner, old: Any, new: Any, size: int) -> None:
    fits = size >= 2**63 - 1
    for width, left_over in ((size, 1 if fits else 2), (size - 1, 1)):
        step = run(window_join("inner", side("l", COUNT[0]), side("r", WindowSpec("delta", width, "rv"))))
        step(right(1, old))
        assert step(right(1, new))[2].state == (0, left_over)


def test_partitions_are_what_group_by_distinguishes(run: Runner) -> None:
    one = WindowSpec("count", 1, None, ("rv", "rs"))
    step = run(window_join("inner", side("l", COUNT[0]), side("r", one)))
    values = [(0.0, "a"), (-0.0, "a"), (float("nan"), "a"), (float("nan"), "a"), (None, "a"), (None, "a"), (0.0, None)]
    report = step({1: [{"rk": 1, "rv": value, "rs": text} for value, text in values]})[2]
    assert (report.state, report.partitions) == ((0, 4), (0, 4))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: PartitionLimit("count", 0),
        lambda: PartitionLimit("rows", 0),
        lambda: PartitionLimit("age", -1),
        lambda: WindowSpec("count", -1),
        lambda: WindowSpec("delta", 1),
        lambda: WindowSpec("time", 1, "t"),
    ],
)
def test_nonsense_is_refused(wrong: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"window|limit"):
        wrong()


def test_window_join_describes_itself() -> None:
    time = WindowSpec("time", 1)
    aged = WindowSpec("count", 1, None, ("rk",), PartitionLimit("age", 1))
    join = window_join("inner", side("l", COUNT[1]), side("r", aged), padded_column="p", max_rows=7)
    assert join.needs_clock and not join.needs_run
    assert window_join("inner", side("l", time), side("r", COUNT[1])).needs_run
    assert join.result_columns == (("lk", "lv"), ("rk", "rv")) and join.extra == ("p",)
    assert join.for_shards(2).max_rows == 4 and join.with_limit(None, "fail").max_rows is None
    assert join.identity == join.with_limit(1, "drop_oldest").identity
    assert join.identity != window_join("inner", side("l", COUNT[2]), side("r", aged), padded_column="p").identity


visits = st.lists(st.integers(0, 5), max_size=20)


@settings(derandomize=True, max_examples=examples(200), deadline=None, database=None)
@given(visits, st.integers(1, 4))
def test_partitions_beyond_a_count_one_visit_at_a_time(partitions: list[int], limit: int) -> None:
    ends, recent = [len(partitions)] * len(partitions), dict[int, int]()
    for visit, name in enumerate(partitions):
        recent.pop(name, None)
        recent[name] = visit
        if len(recent) > limit:
            ends[recent.pop(next(iter(recent)))] = visit
    assert partition_limit_ends(np.array(partitions, np.int64), limit).tolist() == ends


@settings(derandomize=True, max_examples=examples(100), deadline=None, database=None)
@given(visits, st.integers(1, 4))
def test_with_one_row_each_a_limit_on_rows_is_one_on_partitions(partitions: list[int], limit: int) -> None:
    names = np.array(partitions, np.int64)
    last = {name: visit for visit, name in reversed(list(enumerate(partitions)))}
    evicted: list[tuple[int, int]] = []
    for visit, name in enumerate(partitions):
        if visit > last[name]:
            evicted.append((visit, last[name]))
        last[name] = visit
    killers, victims = (np.array([pair[i] for pair in evicted], np.int64) for i in (0, 1))
    none = np.empty(0, np.int64)
    assert row_limit_ends(names, none, killers, victims, limit).tolist() == partition_limit_ends(names, limit).tolist()


@settings(derandomize=True, max_examples=examples(100), deadline=None, database=None)
@given(visits, st.data())
def test_rows_of_a_visit_last_until_the_next_end_of_their_partition(partitions: list[int], data: Any) -> None:
    size = len(partitions)
    ends = [data.draw(st.integers(visit, size)) for visit in range(size)]
    expected = [min(ends[j] for j in range(i, size) if partitions[j] == partitions[i]) for i in range(size)]
    assert discard_visits(np.array(partitions, np.int64), np.array(ends, np.int64)).tolist() == expected


@settings(derandomize=True, max_examples=examples(200), deadline=None, database=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.data())
def test_the_first_value_above_a_bound(values: list[int], data: Any) -> None:
    size = len(values)
    asked = data.draw(st.lists(st.tuples(st.integers(0, size), st.integers(-1, 9)), max_size=8))
    start, bound = (np.array([question[i] for question in asked], np.int64) for i in (0, 1))
    expected = [next((i for i in range(s, size) if values[i] > b), size) for s, b in asked]
    assert first_above(np.array(values, np.int64), start, bound).tolist() == expected
