"""Times at the ends of 64 bits: sums of times do not overflow, and no time passes for a mark that is not there."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.operators import strategies
from tests.operators import window_strategies as windows
from tests.operators.asof import test_asof
from tests.operators.group import test_group
from tests.operators.interval import test_interval
from tests.operators.sync import test_sync
from tests.operators.window import test_window_properties

from watersmeet.operators.asof.definition import AsofReference
from watersmeet.operators.core.aggregates import Aggregate
from watersmeet.operators.core.condition import Apply, ColumnRef, Condition, Constant, holds
from watersmeet.operators.core.operator import END_OF_INPUT, NOW, Port
from watersmeet.operators.core.rowwise import evaluate
from watersmeet.operators.core.watermarks import Bound, watermark_behind
from watersmeet.operators.group.definition import GroupReference
from watersmeet.operators.group.kernel import GroupByOperator
from watersmeet.operators.interval.definition import IntervalReference
from watersmeet.operators.interval.kernel import UNLIMITED, IntervalJoinOperator
from watersmeet.operators.sync.definition import SyncReference
from watersmeet.operators.window.definition import WindowReference
from watersmeet.operators.window.kernel import WindowJoinOperator, WindowSpec
from watersmeet.tools.testing import MemoryStore

LOWEST, HIGHEST = -(2**63), 2**63 - 1

quick = settings(
    derandomize=True,
    max_examples=examples(120),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)

Stretch = Callable[[Any], Any]

STRETCHES: tuple[Stretch, ...] = (
    lambda time: None if time is None else LOWEST + max(time, 0),
    lambda time: None if time is None else HIGHEST - max(12 - time, 0),
    lambda time: None if time is None else LOWEST + max(time, 0) if time < 6 else HIGHEST - max(12 - time, 0),
)
"""Small times, which go up to about 12, at the lower end of the range, at the upper end, and at both."""


def stretch_rows(rows: Any, stretch: Stretch, *names: str) -> Any:
    """The same rows with the times in columns of these names at the ends."""
    return tuple({key: stretch(value) if key[2:] in names else value for key, value in row.items()} for row in rows)


def stretch_marks(marks: Mapping[str, int], stretch: Stretch) -> dict[str, int]:
    """The same marks at the ends; a mark is the end of input only if it is said to be."""
    return {
        name: mark if name == NOW or mark == END_OF_INPUT else min(stretch(mark), END_OF_INPUT - 1)
        for name, mark in marks.items()
    }


def side(name: str) -> Port:
    return Port((f"{name}.t",), (f"{name}.t",), late=(f"{name}.t",))


def times(name: str, *values: int) -> pa.Table:
    return pa.table({f"{name}.t": pa.array(values, pa.int64())})


@pytest.mark.parametrize(("lower", "time"), [(1, HIGHEST), (-1, LOWEST)])
def test_a_bound_beyond_64_bits_matches_nothing(lower: int, time: int) -> None:
    # l.t + 1 is above every time there is, and so is nothing that r.t could be.
    bounds = (Bound("l.t", "r.t", lower), Bound("r.t", "l.t", -lower))
    join = IntervalJoinOperator("left", side("l"), side("r"), lower, lower, bounds)
    arrivals = {0: times("l", time), 1: times("r", time)}
    assert join.step(MemoryStore(), arrivals, {}).report.matched == 0
    store = MemoryStore()
    join.step(store, {0: arrivals[0]}, {})
    assert join.step(store, {1: arrivals[1]}, {}).report.matched == 0


def test_without_a_bound_times_may_be_any_distance_from_each_other() -> None:
    join = IntervalJoinOperator("inner", side("l"), side("r"), 0, UNLIMITED, (Bound("r.t", "l.t", 0),))
    emission = join.step(MemoryStore(), {0: times("l", LOWEST), 1: times("r", HIGHEST)}, {})
    assert emission.report.matched == 1
    bounded = replace(join, bounds=(*join.bounds, Bound("l.t", "r.t", UNLIMITED)))
    assert bounded.step(MemoryStore(), {0: times("l", LOWEST), 1: times("r", HIGHEST)}, {}).report.matched == 0


def test_a_row_at_the_lowest_time_is_not_late_at_its_own_mark() -> None:
    bounds = (Bound("l.t", "r.t", 5), Bound("r.t", "l.t", 5))
    join, store = IntervalJoinOperator("inner", side("l"), side("r"), -5, 5, bounds), MemoryStore()
    mark = watermark_behind(LOWEST, 0)
    join.step(store, {0: times("l", LOWEST)}, {"l.t": mark, "r.t": mark})
    report = join.step(store, {0: times("l", LOWEST), 1: times("r", LOWEST)}, {}).report
    assert (report.late, report.matched, report.state) == ((0, 0), 2, (2, 1))


def test_lateness_never_wraps_around() -> None:
    bounds = (Bound("l.t", "r.t", 5), Bound("r.t", "l.t", 5))
    join, store = IntervalJoinOperator("inner", side("l"), side("r"), -5, 5, bounds), MemoryStore()
    join.step(store, {}, {"l.t": HIGHEST - 1})
    ((_, late),) = join.step(store, {0: times("l", LOWEST, 0)}, {}).late
    assert late.column("#late_by").to_pylist() == [HIGHEST, HIGHEST - 1]


def test_of_rows_that_are_too_many_those_at_the_highest_time_go_last() -> None:
    bounds = (Bound("l.t", "r.t", 5), Bound("r.t", "l.t", 5))
    join = IntervalJoinOperator("left", side("l"), side("r"), -5, 5, bounds, max_rows=2, overflow="drop_oldest")
    reference, store = IntervalReference(join), MemoryStore()
    # The row at 3 expires, and must not be taken for one at the highest time.
    for rows, marks in (((3, HIGHEST), {}), ((HIGHEST, HIGHEST), {"r.t": 20}), ((), {"r.t": END_OF_INPUT})):
        step = reference.step({0: [{"l.t": time} for time in rows]}, marks)
        emission = join.step(store, {0: times("l", *rows)}, marks)
        assert (emission.report.state, test_interval.rows_of(emission)) == (
            step.state,
            test_interval.multiset(step.rows),
        )


def test_the_highest_order_value_is_known_and_before_those_that_are_not() -> None:
    left, right = Port(("l.o",), order="l.o"), Port(("r.o",), order="r.o")
    two = WindowSpec("count", 2)
    join = WindowJoinOperator("inner", left, right, (two, two), interleaved=True, punctuated=True)
    rows = [{"l.o": None}, {"l.o": HIGHEST}], [{"r.o": HIGHEST}]
    step = WindowReference(join).step(dict(enumerate(rows)), {})
    tables = {port: pa.table({name: [row[name] for row in rows[port]]}) for port, name in enumerate(("l.o", "r.o"))}
    emission = join.step(MemoryStore(), tables, {})
    assert [row for table in emission.rows for row in test_interval.tuples(table)] == step.rows
    assert step.rows == [(HIGHEST, HIGHEST, 1, HIGHEST, 0, True), (None, HIGHEST, 0, None, 0, True)]


@quick
@given(st.data())
def test_an_interval_join_equals_its_definition(data: st.DataObject) -> None:
    join = data.draw(strategies.joins())
    stretch = data.draw(st.sampled_from(STRETCHES))
    reference, store = IntervalReference(join), MemoryStore()
    for drawn in data.draw(strategies.histories(join)):
        left, right = (stretch_rows(rows, stretch, "t", "u", "e") for rows in drawn.rows)
        batch = strategies.Batch((left, right), stretch_marks(drawn.marks, stretch))
        step = reference.step(dict(enumerate(batch.rows)), batch.marks)
        test_interval.expect_same(join, join.step(store, batch.tables(), batch.marks), step)


def test_the_nearest_version_of_a_table_at_the_lowest_time_is_an_answer() -> None:
    join = test_asof.asof("inner", upserts=True, direction="nearest")
    left = [{"l.k": "a", "l.t": LOWEST, "l.u": LOWEST, "l.v": 0, "l.code": 1, "l.dead": False}]
    right = [{"r.k": "a", "r.t": LOWEST, "r.u": LOWEST, "r.v": 0, "r.code": 1, "r.dead": False, "#op": 1}]
    batch = test_asof.Batch(left, right, {"l.t": LOWEST, "r.t": LOWEST + 1})
    step = AsofReference(join).step(batch.dicts(), batch.marks)
    assert len(step.rows) == 1
    test_asof.expect_same(join, join.step(MemoryStore(), batch.tables(), batch.marks), step)


@quick
@given(st.data())
def test_an_asof_join_equals_its_definition(data: st.DataObject) -> None:
    join = data.draw(test_asof.joins())
    stretch = data.draw(st.sampled_from(STRETCHES))
    reference, store = AsofReference(join), MemoryStore()
    for drawn in data.draw(test_asof.histories(join)):
        left, right = (stretch_rows(rows, stretch, "t", "u") for rows in (drawn.left, drawn.right))
        batch = test_asof.Batch(left, right, stretch_marks(drawn.marks, stretch))
        step = reference.step(batch.dicts(), batch.marks)
        test_asof.expect_same(join, join.step(store, batch.tables(), batch.marks), step)


@quick
@given(st.data())
def test_a_sync_join_equals_its_definition(data: st.DataObject) -> None:
    join = data.draw(test_sync.joins())
    stretch = data.draw(st.sampled_from(STRETCHES))
    reference, store = SyncReference(join), MemoryStore()
    for drawn in data.draw(test_sync.histories(join)):
        rows = {port: [(stretch(time), value) for time, value in some] for port, some in drawn.rows.items()}
        batch = test_sync.Batch(rows, stretch_marks(drawn.marks, stretch))
        step = reference.step(batch.dicts(), batch.marks)
        test_sync.expect_same(join, join.step(store, batch.tables(), batch.marks), step)


@quick
@given(st.data())
def test_a_window_join_equals_its_definition(data: st.DataObject) -> None:
    join = data.draw(windows.joins())
    stretch = data.draw(st.sampled_from(STRETCHES))
    reference, store = WindowReference(join), MemoryStore()
    for drawn in data.draw(windows.histories(join)):
        # Order values up to 8: the highest of them becomes the highest there is.
        left, right = (
            stretch_rows(
                stretch_rows(rows, stretch, "d"), lambda time: stretch(None if time is None else time + 4), "o"
            )
            for rows in drawn.rows
        )
        batch = replace(drawn, rows=(left, right))
        step = reference.step(dict(enumerate(batch.rows)), batch.marks)
        test_window_properties.expect_same(join, join.step(store, batch.tables(), batch.marks), step, batch)


@pytest.mark.parametrize("end", ["window_end", "final_key"])
def test_a_group_that_ends_at_the_lowest_time_has_not_ended_before_there_is_a_mark(end: str) -> None:
    ending: dict[str, Any] = (
        {"window_end": "e", "time": "t"} if end == "window_end" else {"final_key": "e", "changes": True}
    )
    grouping = GroupByOperator(("e",), (Aggregate("count", (), "n"),), **ending)
    rows = [{"e": time, "#weight": 1} for time in (LOWEST, 0, HIGHEST)]
    mark = "t" if end == "window_end" else "e"
    reference, store = GroupReference(grouping), MemoryStore()
    for some, marks in ((rows, {}), (rows, {mark: LOWEST}), (rows[1:], {mark: END_OF_INPUT - 1}), ([], {})):
        table = pa.Table.from_pylist(some, schema=pa.schema([("e", pa.int64()), ("#weight", pa.int64())]))
        emission = grouping.step(store, {0: table} if some else {}, marks)
        step = reference.step({0: some}, marks)
        assert test_group.row_texts(test_group.tuples(emission.rows)) == test_group.row_texts(step.rows)
        assert emission.report.state == step.state


OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
"""A NaN of other bits than `math.nan`."""
FLOAT_KEYS = {None: (None, None), 1: (0.0, -0.0), 2: (math.nan, OTHER_NAN), 3: (1.5, 1.5)}


def float_keys(rows: Any, column: str = "k") -> Any:
    """The same rows with a DOUBLE for each whole number in a key column: equal ones that differ in their bits."""
    return tuple(
        {name: FLOAT_KEYS[value][number % 2] if name[2:] == column else value for name, value in row.items()}
        for number, row in enumerate(rows)
    )


def as_tables(tables: dict[int, pa.Table], rows: Any, column: str = "k") -> dict[int, pa.Table]:
    """The tables with the keys that the rows have."""
    found: dict[int, pa.Table] = {}
    for port, table in tables.items():
        at, name = table.schema.get_field_index(f"{'lr'[port]}.{column}"), f"{'lr'[port]}.{column}"
        found[port] = table.set_column(at, name, pa.array([row[name] for row in rows[port]], pa.float64()))
    return found


def with_plain_keys(batch: Any) -> Any:
    """The batch without keys, whose tables get them by `as_tables`."""
    left, right = (tuple({n: None if n[2:] == "k" else v for n, v in row.items()} for row in rows) for rows in batch)
    return left, right


@quick
@given(st.data())
def test_keys_that_are_equal_but_differ_in_their_bits_meet_in_an_interval_join(data: st.DataObject) -> None:
    join = data.draw(strategies.joins())
    reference, store = IntervalReference(join), MemoryStore()
    for drawn in data.draw(strategies.histories(join)):
        rows = tuple(float_keys(some) for some in drawn.rows)
        plain = strategies.Batch(with_plain_keys(rows), drawn.marks)
        step = reference.step(dict(enumerate(rows)), drawn.marks)
        emission = join.step(store, as_tables(plain.tables(), rows), drawn.marks)
        assert test_interval.rows_of(emission) == test_interval.multiset(step.rows)
        assert (emission.report.state, dict(emission.report.watermarks)) == (step.state, step.watermarks)


@quick
@given(st.data())
def test_keys_that_are_equal_but_differ_in_their_bits_meet_in_an_asof_join(data: st.DataObject) -> None:
    join = data.draw(test_asof.joins())
    reference, store = AsofReference(join), MemoryStore()
    numbers = {None: None, "a": 1, "b": 2, "c": 3}
    for drawn in data.draw(test_asof.histories(join)):
        given_rows = [
            [{**r, f"{s}.k": numbers[r[f"{s}.k"]]} for r in rows]
            for s, rows in zip("lr", (drawn.left, drawn.right), strict=True)
        ]
        rows = tuple(map(float_keys, given_rows))
        left, right = with_plain_keys(rows)
        plain = test_asof.Batch(left, right, drawn.marks)
        step = reference.step({port: some for port, some in enumerate(rows) if some}, drawn.marks)
        emission = join.step(store, as_tables(plain.tables(), rows), drawn.marks)
        assert test_group.row_texts(test_asof.tuples(emission.rows)) == test_group.row_texts(step.rows)
        assert (emission.report.late, emission.report.dropped[1]) == (
            tuple(sum(port == p for port, _ in step.late) for p in (0, 1)),
            step.dropped[1],
        )


@quick
@given(st.data())
def test_keys_that_are_equal_but_differ_in_their_bits_are_one_partition_of_a_window(data: st.DataObject) -> None:
    join = data.draw(windows.joins())
    reference, store = WindowReference(join), MemoryStore()
    for drawn in data.draw(windows.histories(join)):
        rows = tuple(float_keys(some) for some in drawn.rows)
        plain = replace(drawn, rows=with_plain_keys(rows))
        step = reference.step(dict(enumerate(rows)), drawn.marks)
        emission = join.step(store, as_tables(plain.tables(), rows), drawn.marks)
        assert test_group.row_texts(test_window_properties.rows_of(emission)) == test_group.row_texts(step.rows)
        report = emission.report
        assert (report.state, report.dropped, report.partitions) == (step.state, step.dropped, step.partitions)


_EXTREMES = (LOWEST, LOWEST + 1, -1, 0, 1, HIGHEST - 1, HIGHEST, None)


@pytest.mark.parametrize("operator", ["=", "<=>", "<>", "<", "<=", ">", ">="])
@pytest.mark.parametrize(("sign", "constant"), [("+", 1), ("-", 1), ("+", HIGHEST), ("-", HIGHEST), ("-", LOWEST)])
def test_a_bound_on_other_columns_does_not_overflow(operator: Any, sign: Any, constant: int) -> None:
    shifted: Condition = Apply(sign, (ColumnRef("b"), Constant(constant)))
    pairs = [(a, b) for a in _EXTREMES for b in _EXTREMES]
    table = pa.table(
        {"a": pa.array([a for a, _ in pairs], pa.int64()), "b": pa.array([b for _, b in pairs], pa.int64())}
    )
    for condition in (Apply(operator, (ColumnRef("a"), shifted)), Apply(operator, (shifted, ColumnRef("a")))):
        expected = [evaluate(condition, {"a": a, "b": b}) is True for a, b in pairs]
        assert holds(condition, lambda name: table.column(name).combine_chunks(), len(pairs)).tolist() == expected
