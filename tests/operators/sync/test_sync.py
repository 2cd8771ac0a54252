"""The sync join: the vectors by hand, the kernel beside its definition, and SQL's inner join on time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.operators.core.operator import END_OF_INPUT, NOW, Emission, Port, StateOverflowError
from watersmeet.operators.core.rowwise import ReferenceStep
from watersmeet.operators.state import table as timeline
from watersmeet.operators.state.layout import Budget
from watersmeet.operators.sync.definition import SyncReference
from watersmeet.operators.sync.kernel import DisorderError, SyncJoinOperator
from watersmeet.tools.testing import MemoryStore

Row = dict[str, Any]

quick = settings(
    derandomize=True,
    max_examples=examples(100),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        yield connection


@dataclass(frozen=True)
class Batch:
    """What one batch brings: rows as (time, value) per port."""

    rows: Mapping[int, Sequence[tuple[int | None, Any]]]
    marks: Mapping[str, int]

    def dicts(self) -> dict[int, list[Row]]:
        return {p: [{f"{p}.t": t, f"{p}.v": v} for t, v in rows] for p, rows in self.rows.items() if rows}

    def tables(self) -> dict[int, pa.Table]:
        return {p: table(p, rows) for p, rows in self.dicts().items()}


def table(port: int, rows: list[Row], kind: pa.DataType | None = None) -> pa.Table:
    schema = pa.schema([pa.field(f"{port}.t", kind or pa.int64()), pa.field(f"{port}.v", pa.string())])
    return pa.Table.from_pylist(rows, schema=schema)


def sync(ports: int, **options: Any) -> SyncJoinOperator:
    named = tuple(Port((f"{p}.v", f"{p}.t"), (f"{p}.t",), late=(f"{p}.t", f"{p}.v")) for p in range(ports))
    return SyncJoinOperator(named, **options)


def tuples(tables: Sequence[pa.Table]) -> list[tuple[Any, ...]]:
    return [row for one in tables for row in zip(*(column.to_pylist() for column in one.columns), strict=True)]


def expect_same(join: SyncJoinOperator, emission: Emission, step: ReferenceStep) -> None:
    for one in emission.rows:
        assert one.column_names == [name for port in join.ports for name in port.columns]
    assert Counter(tuples(emission.rows)) == Counter(step.rows)
    late = Counter((port, row[:-2]) for port, one in emission.late for row in tuples([one]))
    assert late == Counter((port, tuple(row[c] for c in join.ports[port].late)) for port, row in step.late)
    report = emission.report
    assert report.state == step.state
    assert dict(report.watermarks) == step.watermarks
    assert report.late == tuple(sum(port == p for port, _ in step.late) for p in range(len(join.ports)))
    assert (report.matched, report.dropped) == (len(step.rows), step.dropped)


def run(join: SyncJoinOperator, batches: list[Batch]) -> list[Emission]:
    store = MemoryStore()
    return [join.step(store, batch.tables(), batch.marks) for batch in batches]


def total(join: SyncJoinOperator, batches: list[Batch]) -> Counter[tuple[Any, ...]]:
    return Counter(row for emission in run(join, batches) for row in tuples(emission.rows))


@contextmanager
def runs_of(longest: int, short_runs: int) -> Generator[None]:
    before, half = timeline.TIMELINE_BUDGET, longest // 2
    timeline.TIMELINE_BUDGET = Budget(
        block=longest, smallest_tier=half, smallest_at=short_runs + 1, largest=half, sparse=1
    )
    try:
        yield
    finally:
        timeline.TIMELINE_BUDGET = before


@st.composite
def joins(draw: st.DrawFn) -> SyncJoinOperator:
    ports = draw(st.integers(2, 4))
    idle = tuple((f"{p}.t", 3) for p in draw(st.sampled_from(((), (), (0,), (1,), (0, 1)))))
    limit = draw(st.sampled_from((None, None, 3)))
    unions = draw(st.sampled_from(((), (), (("0.t", ("0.t#0", "0.t#1")),))))
    return sync(ports, idle=idle, max_rows=limit, overflow="drop_oldest", unions=unions)


@st.composite
def histories(draw: st.DrawFn, join: SyncJoinOperator) -> list[Batch]:
    """Batches with rows that break every rule, and marks of any kind."""
    ports = range(len(join.ports))
    names = (
        [f"{p}.t" for p in ports]
        + ["1.t#@a", "1.t#@b", "0.t#0#@a"]
        + [part for _, parts in join.unions for part in parts]
    )
    mark = st.integers(-2, 10) | st.integers(-2, 10) | st.integers(-2, 10) | st.just(END_OF_INPUT)
    rows = st.lists(st.tuples(st.sampled_from((*range(9), None)), st.sampled_from("abc")), max_size=4)
    batch = st.builds(
        Batch,
        st.fixed_dictionaries(dict.fromkeys(ports, rows)),
        st.dictionaries(st.sampled_from(names), mark, max_size=3),
    )
    batches = draw(st.lists(batch, min_size=1, max_size=8))
    clock = sorted(draw(st.lists(st.integers(0, 12), min_size=len(batches), max_size=len(batches))))
    return [replace(b, marks={**b.marks, NOW: now}) for b, now in zip(batches, clock, strict=True)]


@quick
@given(st.data())
def test_kernel_equals_reference_in_every_batch_across_restarts(data: st.DataObject) -> None:
    join = data.draw(joins())
    reference, store = SyncReference(join), MemoryStore()
    with runs_of(*data.draw(st.sampled_from(((8192, 8), (2, 1), (1, 100))))):
        for batch in data.draw(histories(join)):
            if data.draw(st.booleans()):
                store, join = store.restart(), replace(join)
            # A first attempt that fails leaves no trace.
            join.step(store.restart(), batch.tables(), batch.marks)
            emission = join.step(store, batch.tables(), batch.marks)
            expect_same(join, emission, reference.step(batch.dicts(), batch.marks))


@settings(quick, max_examples=examples(40))
@given(st.data())
def test_shards_by_time_give_the_same(data: st.DataObject) -> None:
    join = replace(data.draw(joins()), max_rows=None)
    batches = data.draw(histories(join))
    shards = [
        [Batch({p: [r for r in rows if (r[0] or 0) % 3 == s] for p, rows in b.rows.items()}, b.marks) for b in batches]
        for s in range(3)
    ]
    alone = run(join, batches)
    for number, parts in enumerate(zip(*(run(join, shard) for shard in shards), strict=True)):
        rows = Counter(row for part in parts for row in tuples(part.rows))
        assert rows == Counter(tuples(alone[number].rows))
        for name in ("state", "late"):
            summed = tuple(map(sum, zip(*(getattr(part.report, name) for part in parts), strict=True)))
            assert summed == getattr(alone[number].report, name)


@st.composite
def port_rows(draw: st.DrawFn) -> list[list[tuple[int, str]]]:
    """Two to four ports whose times increase strictly."""
    ports = draw(st.integers(2, 4))
    times = [sorted(draw(st.sets(st.integers(0, 14), max_size=12))) for _ in range(ports)]
    return [[(t, f"{p}{t}") for t in port] for p, port in enumerate(times)]


def interleave(data: st.DataObject, ports: list[list[tuple[int, str]]], lag: int) -> list[Batch]:
    """The rows of each port in order, the ports interleaved and cut in any way, the marks as the rows make them."""
    queues = [list(port) for port in ports]
    batches: list[Batch] = []
    turns = data.draw(st.permutations([p for p, port in enumerate(ports) for _ in port]))
    while turns:
        size = data.draw(st.integers(1, len(turns)))
        now, turns = turns[:size], turns[size:]
        rows = {p: [queues[p].pop(0) for _ in range(now.count(p))] for p in set(now)}
        batches.append(Batch(rows, {f"{p}.t": some[-1][0] - lag for p, some in rows.items()}))
    return batches


@settings(quick, max_examples=examples(60))
@given(st.data())
def test_any_interleaving_and_batching_gives_the_inner_join_on_time(
    database: duckdb.DuckDBPyConnection, data: st.DataObject
) -> None:
    ports = data.draw(port_rows())
    join = sync(len(ports))
    tables = [
        f'(SELECT unnest(?::BIGINT[]) AS "{p}.t", unnest(?::VARCHAR[]) AS "{p}.v") p{p}' for p in range(len(ports))
    ]
    on = " ".join(f'JOIN {one} ON "{p}.t" = "0.t"' for p, one in enumerate(tables) if p)
    names = ", ".join(f'"{name}"' for port in join.ports for name in port.columns)
    values = [[one[part] for one in port] for port in ports for part in (0, 1)]
    expected = Counter(database.execute(f"SELECT {names} FROM {tables[0]} {on}", values).fetchall())
    for lag in (0, 3):
        batches = interleave(data, ports, lag)
        *found, ended = run(join, [*batches, Batch({}, {f"{p}.t": END_OF_INPUT for p in range(len(ports))})])
        assert Counter(row for emission in found for row in tuples(emission.rows)) == expected
        assert not any(sum(emission.report.late) for emission in found)
        assert ended.report.state == (0,) * len(ports)
        assert set(ended.report.watermarks.values()) == {END_OF_INPUT}


def port_batches(*batches: tuple[int, list[tuple[int, Any]]]) -> list[Batch]:
    """One port per batch, with a mark at its latest time."""
    return [Batch({port: rows}, {f"{port}.t": max(t for t, _ in rows)}) for port, rows in batches]


def test_rt_v1_two_messages_of_one_time_meet() -> None:
    found = run(sync(2), port_batches((0, [(1, "42")]), (1, [(1, "24")])))
    assert [tuples(emission.rows) for emission in found] == [[], [("42", 1, "24", 1)]]
    assert found[-1].report.state == (0, 0)


def test_rt_v4_a_port_that_passes_a_time_prunes_the_other() -> None:
    batches = port_batches((0, [(1, "1"), (2, "2"), (3, "3")]), (1, [(2, "20")]), (1, [(3, "30")]), (0, [(4, "4")]))
    found = run(sync(2), batches)
    assert [tuples(emission.rows) for emission in found] == [[], [("2", 2, "20", 2)], [("3", 3, "30", 3)], []]
    assert [emission.report.state for emission in found] == [(3, 0), (1, 0), (0, 0), (1, 0)]


@pytest.mark.parametrize(
    "batches",
    [
        (
            *((0, [(1, "a")]), (1, [(2, "x")]), (0, [(2, "b")]), (1, [(3, "y")])),
            *((1, [(5, "z")]), (0, [(4, "c")]), (0, [(5, "d")])),
        ),
        ((0, [(1, "a"), (2, "b"), (4, "c"), (5, "d")]), (1, [(2, "x"), (3, "y"), (5, "z")])),
        ((1, [(2, "x"), (3, "y"), (5, "z")]), (0, [(1, "a"), (2, "b")]), (0, [(4, "c"), (5, "d")])),
    ],
)  # fmt: skip
def test_rt_v5_the_table_does_not_depend_on_arrival(batches: tuple[tuple[int, list[tuple[int, str]]], ...]) -> None:
    assert total(sync(2), port_batches(*batches)) == Counter([("b", 2, "x", 2), ("d", 5, "z", 5)])


def test_a_second_row_of_a_time_is_disorder_even_after_the_first_was_used() -> None:
    batches = port_batches((0, [(5, "a")]), (1, [(5, "x")]), (0, [(5, "b")]), (1, [(5, "y"), (4, "z"), (6, "n")]))
    found = run(sync(2), batches)
    assert [tuples(emission.rows) for emission in found] == [[], [("a", 5, "x", 5)], [], []]
    assert [emission.report.late for emission in found] == [(0, 0), (0, 0), (1, 0), (0, 2)]
    late = found[3].late[0][1].to_pylist()
    assert late == [
        {"1.t": 5, "1.v": "y", "#late_column": "1.t", "#late_by": 0},
        {"1.t": 4, "1.v": "z", "#late_column": "1.t", "#late_by": 1},
    ]


def test_a_row_exactly_at_the_mark_is_in_time_if_none_was_there() -> None:
    found = run(sync(2), [Batch({}, {"0.t": 5, "1.t": 5}), Batch({0: [(5, "a")], 1: [(5, "x")]}, {})])
    assert tuples(found[1].rows) == [("a", 5, "x", 5)]


def test_the_first_delivered_of_two_equal_times_wins() -> None:
    found = run(sync(2), [Batch({0: [(3, "first"), (1, "m"), (3, "second")], 1: [(3, "x")]}, {})])
    assert tuples(found[0].rows) == [("first", 3, "x", 3)]
    assert found[0].report.late == (1, 0)


def test_three_ports_wait_for_each_other() -> None:
    batches = port_batches((0, [(1, "a"), (2, "b")]), (1, [(1, "A"), (2, "B")]), (2, [(2, "!")]))
    found = run(sync(3), batches)
    assert [tuples(emission.rows) for emission in found] == [[], [], [("b", 2, "B", 2, "!", 2)]]
    assert [emission.report.state for emission in found] == [(2, 0, 0), (2, 2, 0), (0, 0, 0)]


def test_a_port_that_lacks_a_time_prunes_it_though_a_third_is_silent() -> None:
    batches = port_batches((0, [(t, "a") for t in range(1, 9)]), (1, [(4, "A"), (8, "B")]))
    found = run(sync(3), batches)
    assert found[-1].report.state == (2, 2, 0)


def test_disorder_is_an_error_on_request() -> None:
    join = sync(2, disorder="error")
    store = MemoryStore()
    join.step(store, Batch({0: [(5, "a")]}, {"0.t": 5}).tables(), {"0.t": 5})
    for rows, time in ((((7, "b"), (4, "c")), 4), (((5, "b"),), 5), (((6, "a"), (6, "b")), 6)):
        with pytest.raises(DisorderError) as raised:
            join.step(store.restart(), Batch({0: rows}, {}).tables(), {})
        assert (raised.value.port, raised.value.time) == (0, time)
    assert join.step(store, Batch({0: [(None, "n"), (6, "b")]}, {}).tables(), {}).report.late == (1, 0)


def test_too_many_rows_fail_the_batch() -> None:
    with pytest.raises(StateOverflowError) as raised:
        run(sync(3, max_rows=2), port_batches((0, [(1, "a"), (2, "b"), (3, "c")])))
    assert raised.value.state_rows == (3, 0, 0)


@pytest.mark.parametrize(
    ("kind", "times"),
    [
        (pa.timestamp("us", "UTC"), [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=s) for s in range(4)]),
        (pa.date32(), [date(1969, 12, 30) + timedelta(days=d) for d in range(4)]),
        (pa.int32(), [-2, -1, 0, 1]),
    ],
)
def test_times_of_every_type(kind: pa.DataType, times: list[Any]) -> None:
    join, store = sync(2), MemoryStore()
    join.step(store, {0: table(0, [{"0.t": t, "0.v": "a"} for t in times], kind)}, {})
    found = join.step(store.restart(), {1: table(1, [{"1.t": t, "1.v": "b"} for t in times[1:3]], kind)}, {})
    assert tuples(found.rows) == [("a", t, "b", t) for t in times[1:3]]


def test_a_batch_writes_about_what_it_touches() -> None:
    class CountingStore(MemoryStore):
        written = 0

        def put(self, name: str, value: bytes) -> None:
            self.written += len(value)
            super().put(name, value)

    join, store = sync(2), CountingStore()
    for start in range(0, 200_000, 50_000):
        rows = [{"0.t": t, "0.v": f"value {t}"} for t in range(start, start + 50_000)]
        join.step(store, {0: table(0, rows)}, {})
    whole, store.written = store.written, 0
    emission = join.step(store, Batch({1: [(t, "x") for t in range(100)]}, {"1.t": 99}).tables(), {"1.t": 99})
    assert (emission.report.matched, emission.report.state) == (100, (199_900, 0))
    assert store.written < whole / 10


def test_identity_tells_what_the_state_means() -> None:
    join = sync(2)
    assert join.identity == replace(join.with_limit(5, "drop_oldest"), disorder="error", idle=(("0.t", 3),)).identity
    assert join.identity != sync(3).identity
    assert sync(2, max_rows=10).for_shards(4).max_rows == 3
    with pytest.raises(ValueError, match="two ports"):
        sync(1)
