"""The as-of join: the vectors by hand, the kernel beside its definition, and DuckDB's ASOF JOIN."""

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
from tests.operators.strategies import conditions

from watersmeet.operators.asof import versions as asof_versions
from watersmeet.operators.asof.definition import AsofReference
from watersmeet.operators.asof.kernel import AsofJoinOperator
from watersmeet.operators.core.changes import OP, POSITION
from watersmeet.operators.core.operator import END_OF_INPUT, NOW, Emission, Port, StateOverflowError
from watersmeet.operators.core.rowwise import ReferenceStep
from watersmeet.operators.state import table as timeline
from watersmeet.operators.state.layout import Budget
from watersmeet.tools.testing import MemoryStore

Row = dict[str, Any]
Rows = list[Row]

END = {"l.t": END_OF_INPUT, "l.u": END_OF_INPUT, "r.t": END_OF_INPUT}

quick = settings(
    derandomize=True,
    max_examples=examples(60),
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
    """What one batch brings."""

    left: Sequence[Row]
    right: Sequence[Row]
    marks: Mapping[str, int]

    def dicts(self) -> dict[int, Sequence[Row]]:
        return {p: rows for p, rows in enumerate((self.left, self.right)) if rows}

    def tables(self) -> dict[int, pa.Table]:
        return {p: table("lr"[p], rows) for p, rows in self.dicts().items()}


def table(side: str, rows: Sequence[Row], time: pa.DataType | None = None) -> pa.Table:
    kinds = {"k": pa.string(), "t": time or pa.int64(), "u": pa.int64(), "v": pa.int64(), "code": pa.int64()}
    fields = [pa.field(f"{side}.{name}", kind) for name, kind in {**kinds, "dead": pa.bool_()}.items()]
    fields += [pa.field(OP, pa.int8())] if side == "r" else []
    return pa.Table.from_pylist(list(rows), schema=pa.schema(fields))


def row(
    side: str, key: str | None, time: Any, value: int = 0, other: int | None = None, *, dead: bool = False, op: int = 1
) -> Row:
    # Codes of unequal keys may be equal: a and c.
    code = None if key is None else ord(key) % 2
    values = {"k": key, "t": time, "u": other, "v": value, "code": code, "dead": dead}
    change = {OP: op} if side == "r" else {}
    return {**{f"{side}.{name}": one for name, one in values.items()}, **change}


def asof(
    kind: str = "left", *, keyed: bool = True, exact: bool = False, upserts: bool = False, **options: Any
) -> AsofJoinOperator:
    def side(s: str) -> Port:
        shown, late = (f"{s}.k", f"{s}.t", f"{s}.v"), (f"{s}.t", f"{s}.v")
        keys, code = ((f"{s}.k",), f"{s}.code") if keyed else ((), None)
        upsert_key = (f"{s}.k",) if s == "r" and upserts else ()
        operands = (f"{s}.v",)
        return Port(shown, (f"{s}.t",), keys, code, exact, f"{s}.dead", operands, late, upsert_key=upsert_key)

    return AsofJoinOperator(kind, side("l"), side("r"), **options)  # pyright: ignore[reportArgumentType]


def tuples(tables: Sequence[pa.Table]) -> list[tuple[Any, ...]]:
    return [one for each in tables for one in zip(*(column.to_pylist() for column in each.columns), strict=True)]


def expect_same(join: AsofJoinOperator, emission: Emission, step: ReferenceStep) -> None:
    for one in emission.rows:
        assert one.column_names == [*join.left.columns, *join.right.columns, *join.extra]
    assert Counter(tuples(emission.rows)) == Counter(step.rows)
    late = Counter((port, one[:-2]) for port, each in emission.late for one in tuples([each]))
    assert late == Counter((port, tuple(one[c] for c in join.ports[port].late)) for port, one in step.late)
    report = emission.report
    assert dict(report.watermarks) == step.watermarks
    assert report.late == tuple(sum(port == p for port, _ in step.late) for p in (0, 1))
    assert report.dropped == step.dropped
    assert report.matched + sum(report.padded) == len(step.rows)


def run(join: AsofJoinOperator, batches: Sequence[Batch]) -> list[Emission]:
    store = MemoryStore()
    return [join.step(store, batch.tables(), batch.marks) for batch in batches]


def total(join: AsofJoinOperator, batches: Sequence[Batch]) -> Counter[tuple[Any, ...]]:
    return Counter(one for emission in run(join, batches) for one in tuples(emission.rows))


@contextmanager
def sizes(longest: int, short_runs: int, small: int) -> Generator[None]:
    before, half = (timeline.TIMELINE_BUDGET, asof_versions.BUDGET), longest // 2
    timeline.TIMELINE_BUDGET = Budget(
        block=longest, smallest_tier=half, smallest_at=short_runs + 1, largest=half, sparse=1
    )
    asof_versions.BUDGET = replace(asof_versions.BUDGET, smallest_tier=small)
    try:
        yield
    finally:
        timeline.TIMELINE_BUDGET, asof_versions.BUDGET = before


@st.composite
def joins(draw: st.DrawFn) -> AsofJoinOperator:
    keyed = draw(st.sampled_from((True, True, False)))
    join = asof(
        draw(st.sampled_from(("inner", "left"))),
        keyed=keyed,
        upserts=keyed and draw(st.booleans()),
        direction=draw(st.sampled_from(("backward", "forward", "nearest"))),
        strict=draw(st.booleans()),
        tolerance=draw(st.sampled_from((None, 0, 1, 3))),
        padded_column=draw(st.sampled_from((None, "#padded"))),
        condition=draw(conditions()) if draw(st.booleans()) else None,
        idle=tuple((f"{s}.t", 3) for s in draw(st.sampled_from(("", "", "l", "r", "lr")))),
        unions=draw(st.sampled_from(((), (), (("r.t", ("r.t#0", "r.t#1")),)))),
    )
    if draw(st.booleans()):
        join = replace(join, left=replace(join.left, times=("l.t", "l.u")))
    return join


def some_rows(side: str, *, exact: bool) -> st.SearchStrategy[Row]:
    """Rows whose keys and times collide, and may be NULL."""
    keys = ("a", "b") if exact else ("a", "a", "b", "c", None)
    times = range(13) if exact else (*range(13), None)
    dead = (False,) if exact else (False, False, False, True)
    op = (1,) if exact else (1, 1, -1)
    parts = st.tuples(*map(st.sampled_from, (keys, times, range(10), (*range(13), None), dead, op)))
    return parts.map(lambda part: row(side, *part[:4], dead=part[4], op=part[5]))


@st.composite
def histories(draw: st.DrawFn, join: AsofJoinOperator) -> list[Batch]:
    """Batches with marks of any kind: promises that rows keep or break, and the end at any time."""
    names = ["l.t", "l.u", "r.t", "l.t#@a", "l.t#@b", "r.t#0#@a", *(part for _, parts in join.unions for part in parts)]
    mark = st.integers(-2, 15) | st.integers(-2, 15) | st.integers(-2, 15) | st.just(END_OF_INPUT)
    marks = st.dictionaries(st.sampled_from(names), mark, max_size=3)
    rows = [st.lists(some_rows(s, exact=False), max_size=5) for s in "lr"]
    batches = draw(st.lists(st.builds(Batch, rows[0], rows[1], marks), min_size=1, max_size=7))
    clock = sorted(draw(st.lists(st.integers(0, 12), min_size=len(batches), max_size=len(batches))))
    return [replace(b, marks={**b.marks, NOW: now}) for b, now in zip(batches, clock, strict=True)]


@settings(quick, max_examples=examples(180))
@given(st.data())
def test_kernel_equals_reference_in_every_batch_across_restarts(data: st.DataObject) -> None:
    join = data.draw(joins())
    reference, store = AsofReference(join), MemoryStore()
    size = data.draw(st.sampled_from(((8192, 8, 1024), (2, 1, 1), (1, 100, 2))))
    with sizes(*size):
        for batch in data.draw(histories(join)):
            if data.draw(st.booleans()):
                store, join = store.restart(), replace(join)
            # A first attempt that fails leaves no trace.
            join.step(store.restart(), batch.tables(), batch.marks)
            emission = join.step(store, batch.tables(), batch.marks)
            step = reference.step(batch.dicts(), batch.marks)
            expect_same(join, emission, step)
            if size[2] == 1024:
                assert emission.report.state == step.state
            else:
                assert emission.report.state[0] == step.state[0]
                assert emission.report.state[1] >= step.state[1]


@quick
@given(st.data())
def test_the_tolerance_may_change_at_any_time(data: st.DataObject) -> None:
    join = data.draw(joins())
    wider = (1, 3, 9) if join.direction != "backward" else (None, 1, 3, 9)
    reference, store = AsofReference(join), MemoryStore()
    with sizes(3, 1, data.draw(st.sampled_from((1, 64)))):
        for batch in data.draw(histories(join)):
            if data.draw(st.booleans()):
                was = join.identity
                join = replace(join, tolerance=data.draw(st.sampled_from(wider)))
                reference.join = join
                store = store.restart()
                join.take_over(store, was)
            step = reference.step(batch.dicts(), batch.marks)
            expect_same(join, join.step(store, batch.tables(), batch.marks), step)


def test_a_longer_tolerance_brings_no_version_back() -> None:
    join, store = asof(tolerance=1), MemoryStore()
    # One run, of which one version is out of reach once the mark has come to 5.
    join.step(store, {1: table("r", [row("r", "a", 1), row("r", "c", 6), row("r", "c", 30)])}, {})
    with sizes(64, 64, 1):
        join.step(store, {}, {"l.t": 5})
        longer = replace(join, tolerance=9)
        longer.take_over(store, join.identity)
        asked = [row("l", "a", 7), row("l", "c", 7)]
        emission = longer.step(store, {0: table("l", asked)}, {"r.t": 20, "l.t": 7})
    assert sorted((one[0], one[3]) for one in tuples(emission.rows)) == [("a", None), ("c", "c")]


@quick
@given(st.data())
def test_shards_by_key_give_the_same(data: st.DataObject) -> None:
    join = data.draw(joins().filter(lambda join: bool(join.left.keys)))
    batches = data.draw(histories(join))
    alone = run(join, batches)
    shards = [
        run(
            join,
            [
                Batch([r for r in b.left if r["l.k"] in keys], [r for r in b.right if r["r.k"] in keys], b.marks)
                for b in batches
            ],
        )
        for keys in (("a", None), ("b", "c"))
    ]
    for whole, *parts in zip(alone, *shards, strict=True):
        assert Counter(one for part in parts for one in tuples(part.rows)) == Counter(tuples(whole.rows))
        assert tuple(map(sum, zip(*(part.report.late for part in parts), strict=True))) == whole.report.late


@st.composite
def cut_into_batches(draw: st.DrawFn, left: Rows, right: Rows) -> list[Batch]:
    """The same rows in any order and cut anywhere, with marks that they keep, and the end."""
    sides = [draw(st.permutations(rows)) for rows in (left, right)]
    cuts = [sorted(draw(st.lists(st.integers(0, len(rows)), min_size=3, max_size=3))) for rows in sides]
    batches: list[Batch] = []
    for number in range(4):
        parts = [rows[([0, *cut])[number] : ([*cut, len(rows)])[number]] for rows, cut in zip(sides, cuts, strict=True)]
        marks: dict[str, int] = {}
        for side, rows, cut in zip("lr", sides, cuts, strict=True):
            rest = [one[f"{side}.t"] for one in rows[([*cut, len(rows)])[number] :]]
            if draw(st.booleans()):
                marks[f"{side}.t"] = min(rest, default=20)
        batches.append(Batch(parts[0], parts[1], marks))
    return [*batches, Batch([], [], END)]


def unique_versions(rows: Rows) -> Rows:
    return list({(one["r.k"], one["r.t"]): one for one in rows}.values())


OPERATORS = {("backward", False): ">=", ("backward", True): ">", ("forward", False): "<=", ("forward", True): "<"}


@quick
@given(st.data())
def test_asof_join_of_duckdb_gives_the_same(database: duckdb.DuckDBPyConnection, data: st.DataObject) -> None:
    direction, strict = data.draw(st.sampled_from(tuple(OPERATORS)))
    kind = data.draw(st.sampled_from(("inner", "left")))
    left = data.draw(st.lists(some_rows("l", exact=True), max_size=10))
    right = unique_versions(data.draw(st.lists(some_rows("r", exact=True), max_size=10)))
    asof_join = "ASOF JOIN" if kind == "inner" else "ASOF LEFT JOIN"
    columns = "unnest(?::VARCHAR[]) AS k, unnest(?::BIGINT[]) AS t, unnest(?::BIGINT[]) AS v"
    found = database.execute(
        f"SELECT l.k, l.t, l.v, r.k, r.t, r.v FROM (SELECT {columns}) l {asof_join} (SELECT {columns}) r "
        f"ON l.k = r.k AND l.t {OPERATORS[direction, strict]} r.t",
        [[one[f"{s}.{name}"] for one in rows] for s, rows in (("l", left), ("r", right)) for name in "ktv"],
    ).fetchall()
    join = asof(kind, direction=direction, strict=strict, exact=data.draw(st.booleans()))
    batches = data.draw(cut_into_batches(left, right))
    emissions = run(join, batches)
    assert Counter(one for emission in emissions for one in tuples(emission.rows)) == Counter(found)
    assert emissions[-1].report.state == (0, 0)
    assert not any(sum(emission.report.late + emission.report.dropped) for emission in emissions)


@quick
@given(st.data())
def test_a_condition_over_versions_is_what_duckdb_says_behind_its_asof_join(
    database: duckdb.DuckDBPyConnection, data: st.DataObject
) -> None:
    # In the ON of DuckDB's ASOF JOIN the condition chooses; behind the join it tests what was chosen, as ours does.
    left = data.draw(st.lists(some_rows("l", exact=True), max_size=10))
    right = unique_versions(data.draw(st.lists(some_rows("r", exact=True), max_size=10)))
    flagged = [{**one, "r.dead": one["r.v"] % 2 == 0} for one in right]
    columns = "unnest(?::VARCHAR[]) AS k, unnest(?::BIGINT[]) AS t, unnest(?::BIGINT[]) AS v"
    shown = ", ".join(f"CASE WHEN r.v % 2 = 1 THEN r.{name} END" for name in "ktv")
    found = database.execute(
        f"SELECT l.k, l.t, l.v, {shown} FROM (SELECT {columns}) l ASOF LEFT JOIN (SELECT {columns}) r "
        "ON l.k = r.k AND l.t >= r.t",
        [[one[f"{s}.{name}"] for one in rows] for s, rows in (("l", left), ("r", right)) for name in "ktv"],
    ).fetchall()
    upserts = data.draw(st.booleans())
    assert total(asof(upserts=upserts), data.draw(cut_into_batches(left, flagged))) == Counter(found)
    matched = Counter([one for one in found if one[3] is not None])
    assert total(asof("inner", upserts=upserts), data.draw(cut_into_batches(left, flagged))) == matched


def brute_force(join: AsofJoinOperator, left: Rows, right: Rows) -> Counter[tuple[Any, ...]]:
    """The nearest version that fits, over everything at once."""
    out: Counter[tuple[Any, ...]] = Counter()
    for one in left:
        fits: list[tuple[int, int, Row]] = []
        for other in (r for r in right if r["r.k"] == one["l.k"]):
            apart = other["r.t"] - one["l.t"]
            on_side = {"backward": apart <= 0, "forward": apart >= 0, "nearest": True}[join.direction]
            if on_side and not (join.strict and apart == 0) and abs(apart) <= (join.tolerance or 10**6):
                fits.append((abs(apart), apart, other))
        best = min(fits, key=lambda each: each[:2])[2] if fits else None
        if best is not None or join.kind == "left":
            theirs = (None, None, None) if best is None else (best["r.k"], best["r.t"], best["r.v"])
            out[(one["l.k"], one["l.t"], one["l.v"], *theirs)] += 1
    return out


@quick
@given(st.data())
def test_any_order_and_batching_gives_the_nearest_version_that_fits(data: st.DataObject) -> None:
    direction = data.draw(st.sampled_from(("nearest", "nearest", "forward", "backward")))
    options: dict[str, Any] = {
        "strict": data.draw(st.booleans()),
        "tolerance": data.draw(st.sampled_from((None, 1, 4))),
    }
    join = asof(data.draw(st.sampled_from(("inner", "left"))), direction=direction, **options)
    left = data.draw(st.lists(some_rows("l", exact=True), max_size=10))
    right = unique_versions(data.draw(st.lists(some_rows("r", exact=True), max_size=10)))
    expected = brute_force(join, left, right)
    with sizes(*data.draw(st.sampled_from(((8192, 8, 1024), (2, 1, 1))))):
        assert total(join, data.draw(cut_into_batches(left, right))) == expected


def questions(*times: int, key: str = "a") -> Rows:
    return [row("l", key, t) for t in times]


def versions(**times: int) -> Rows:
    """Versions of the key a: ``t10=100`` is the value 100 from time 10."""
    return [row("r", "a", int(name[1:]), value) for name, value in times.items()]


def answers(emission: Emission) -> list[tuple[int, int | None]]:
    return sorted((one[1], one[5]) for one in tuples(emission.rows))


def test_rt_v8_a_question_waits_until_its_time_is_covered() -> None:
    batches = [
        Batch(questions(1), [], {"l.t": 1}),
        Batch([], versions(t10=100, t20=200), {"r.t": 20}),
        Batch(questions(5, 10, 15, 20, 25), [], {"l.t": 25}),
        Batch([], versions(t30=300), {"r.t": 30}),
    ]
    for keyed in (True, False):
        found = run(asof(keyed=keyed, padded_column="#padded"), batches)
        expected = [[], [(1, None)], [(5, None), (10, 100), (15, 100), (20, 200)], [(25, 200)]]
        assert [answers(emission) for emission in found] == expected
        assert [one[-1] for one in tuples(found[2].rows) if one[1] == 5] == [1]
        assert [one[-1] for one in tuples(found[3].rows)] == [-1]
        assert [emission.report.state for emission in found] == [(1, 0), (0, 2), (1, 1), (0, 2)]


def test_a_question_at_the_mark_waits_unless_its_version_is_there() -> None:
    found = run(asof("inner"), [Batch(questions(7, 8), versions(t5=50, t7=70), {"r.t": 8}), Batch([], [], {"r.t": 9})])
    assert [answers(emission) for emission in found] == [[(7, 70)], [(8, 70)]]


def test_strict_needs_an_earlier_version() -> None:
    batches = [Batch(questions(7), versions(t5=50, t7=70), {"r.t": 6}), Batch([], [], {"r.t": 7})]
    assert [answers(emission) for emission in run(asof(strict=True), batches)] == [[], [(7, 50)]]


def test_forward_waits_for_an_earlier_version_within_tolerance() -> None:
    join = asof(direction="forward", tolerance=10)
    found = run(
        join,
        [
            Batch(questions(1, 20, 40), versions(t9=90), {"r.t": 5}),
            Batch([], versions(t7=70, t20=200), {"r.t": 8}),
            Batch([], [], {"r.t": 51}),
        ],
    )
    assert [answers(emission) for emission in found] == [[], [(1, 70), (20, 200)], [(40, None)]]


def test_nearest_prefers_the_earlier_of_two_and_answers_as_soon_as_nothing_nearer_can_come() -> None:
    join = asof(direction="nearest", tolerance=100)
    found = run(
        join,
        [
            Batch(questions(10, 13), versions(t8=80), {"r.t": 10}),
            Batch([], versions(t12=120), {"r.t": 12}),
            Batch([], [], {"r.t": 14}),
        ],
    )
    assert [answers(emission) for emission in found] == [[], [(10, 80)], [(13, 120)]]


def test_the_first_version_of_a_time_wins_and_the_other_is_counted() -> None:
    batches = [
        Batch([], [row("r", "a", 5, 1), row("r", "a", 5, 2), row("r", "c", 5, 3)], {}),
        Batch(questions(6), [row("r", "a", 5, 4)], {"r.t": 7}),
    ]
    found = run(asof(), batches)
    assert answers(found[1]) == [(6, 1)]
    assert [emission.report.dropped for emission in found] == [(0, 1), (0, 1)]


def test_rows_that_nothing_can_fit_come_out_at_once() -> None:
    left = [row("l", None, 5), row("l", "a", None), row("l", "a", 5, dead=True), row("l", "a", 5)]
    right = [row("r", None, 1), row("r", "a", None), row("r", "a", 2, dead=True)]
    found = run(asof(), [Batch(left, right, {})])[0]
    assert found.report.padded == (3, 0)
    assert (found.report.state, found.report.dropped) == ((1, 1), (0, 0))
    # A change of a table that cannot be placed is missing from then on, so that it is counted.
    assert run(asof(upserts=True), [Batch(left, right, {})])[0].report.dropped == (0, 2)
    assert run(asof("inner"), [Batch(left, right, {})])[0].rows == ()


def test_late_rows_say_which_mark_they_missed() -> None:
    batches = [Batch([], [], {"l.t": 5, "r.t": 7}), Batch(questions(4, 5), versions(t6=60, t7=70), {})]
    found = run(asof(), batches)[1]
    assert found.report.late == (1, 1)
    assert [one.to_pylist() for _, one in found.late] == [
        [{"l.t": 4, "l.v": 0, "#late_column": "l.t", "#late_by": 1}],
        [{"r.t": 6, "r.v": 60, "#late_column": "r.t", "#late_by": 1}],
    ]


def test_open_questions_hold_the_marks_of_the_result_back() -> None:
    batches = [
        Batch(questions(5, 9), [], {"l.t": 9, "r.t": 3}),
        Batch([], [], {"r.t": 6, "l.t": END_OF_INPUT}),
        Batch([], [], {"r.t": 10}),
    ]
    found = [emission.report.watermarks for emission in run(asof(), batches)]
    assert found == [{"l.t": 5}, {"l.t": 9}, {"l.t": END_OF_INPUT}]


def test_versions_are_retained_only_as_long_as_they_can_be_looked_up() -> None:
    right = [row("r", key, t) for key in "ab" for t in (1, 3, 5, 8)]
    batches = [Batch([], right, {}), Batch([], [], {"l.t": 4}), Batch([], [], {"l.t": 8}), Batch([], [], END)]
    kept = [[e.report.state[1] for e in run(join, batches)] for join in (asof(), asof(strict=True), asof(tolerance=2))]
    assert kept == [[8, 6, 2, 0], [8, 6, 4, 0], [8, 6, 2, 0]]
    forward = [e.report.state[1] for e in run(asof(direction="forward", tolerance=2), batches)]
    assert forward == [8, 4, 2, 0]


def test_an_open_question_keeps_its_version() -> None:
    batches = [Batch(questions(4), versions(t3=30, t6=60), {"l.t": 9}), Batch([], [], {"r.t": 5})]
    found = run(asof(), batches)
    assert answers(found[1]) == [(4, 30)]
    assert [emission.report.state for emission in found] == [(1, 2), (0, 1)]


def test_large_states_shrink_and_a_small_batch_writes_little() -> None:
    class CountingStore(MemoryStore):
        written = 0

        def put(self, name: str, value: bytes) -> None:
            self.written += len(value)
            super().put(name, value)

    left = Port(("lt",), ("lt",), ("k",), "k", exact=True)
    right = Port(("rt", "v"), ("rt",), ("k",), "k", exact=True)
    join, store, keys = AsofJoinOperator("left", left, right), CountingStore(), 20_000

    def update(time: int, some: int) -> int:
        times = pa.array([time] * some)
        table = pa.table({"k": pa.array(range(some)), "rt": times, "v": times})
        return join.step(store, {1: table}, {"lt": min(time, 90), "rt": min(time, 90)}).report.state[1]

    assert update(0, keys) == keys
    whole, store.written = store.written, 0
    for time in range(1, 61):
        kept = update(time, 100)
        assert keys <= kept <= keys + 3 * asof_versions.BUDGET.smallest_tier
    assert store.written < 8 * whole
    for time in range(61, 91):
        kept = update(time, keys)
        assert keys <= kept <= 5 * keys
    update(100, keys)
    question = {0: pa.table({"k": [7, 19_999, 20_000], "lt": [95, 100, 100]})}
    found = join.step(store.restart(), question, {"rt": 101})
    assert sorted(tuples(found.rows), key=str) == [(100, 100, 100), (100, None, None), (95, 90, 90)]


def test_versions_far_ahead_leave_once_the_questions_have_passed_them() -> None:
    left, right = (Port((time,), (time,), ("k",), "k", exact=True) for time in ("lt", "rt"))
    join, store = AsofJoinOperator("inner", left, right), MemoryStore()
    everything = pa.table({"k": [k for k in range(10) for _ in range(2_000)], "rt": [*range(2_000)] * 10})
    assert join.step(store, {1: everything}, {}).report.state == (0, 20_000)
    for mark, most in ((500, 20_000), (1_100, 10_000), (1_700, 5_000), (1_990, 2_000)):
        assert join.step(store, {}, {"lt": mark}).report.state[1] <= most


def test_too_many_rows_fail_the_batch_or_the_earliest_leave() -> None:
    batch = Batch(questions(1, 4), versions(t2=20, t3=30), {})
    with pytest.raises(StateOverflowError) as raised:
        run(asof(max_rows=3), [batch])
    assert raised.value.state_rows == (2, 2)
    found = run(asof(max_rows=1, overflow="drop_oldest"), [batch])[0]
    assert answers(found) == [(1, None)]
    assert (found.report.state, found.report.dropped) == ((1, 0), (1, 2))


@pytest.mark.parametrize(
    ("kind", "times", "tolerance"),
    [
        (pa.timestamp("us"), [datetime(2024, 1, 1) + timedelta(seconds=s) for s in range(4)], 1_000_000),
        (pa.timestamp("us", "UTC"), [datetime(1969, 1, 1, tzinfo=UTC) + timedelta(seconds=s) for s in range(4)], None),
        (pa.date32(), [date(1969, 12, 30) + timedelta(days=d) for d in range(4)], 86_400_000_000),
        (pa.int32(), [-2, -1, 0, 1], 1),
    ],
)
def test_times_of_every_type(kind: pa.DataType, times: list[Any], tolerance: int | None) -> None:
    left, right = [row("l", "a", times[1]), row("l", "a", times[3])], [row("r", "a", times[0])]
    expected = [times[0], None if tolerance is not None else times[0]]
    join, store = asof(tolerance=tolerance), MemoryStore()
    join.step(store, {0: table("l", left, kind)}, {})
    found = join.step(store.restart(), {1: table("r", right, kind)}, END)
    assert sorted([(one[1], one[4]) for one in tuples(found.rows)]) == list(zip(times[1::2], expected, strict=True))
    reference = AsofReference(join)
    step = reference.step({0: left, 1: right}, END)
    assert sorted((one[1], one[4]) for one in step.rows) == list(zip(times[1::2], expected, strict=True))


def test_times_at_the_ends_of_their_range() -> None:
    low, high = -(2**63) + 1, 2**63 - 2
    batches = [Batch(questions(low, high), versions(**{f"t{low}": 1, f"t{high}": 2}), {}), Batch([], [], END)]
    for direction in ("backward", "forward", "nearest"):
        assert total(asof(direction=direction), batches) == Counter(
            {("a", low, 0, "a", low, 1): 1, ("a", high, 0, "a", high, 2): 1}
        )


def test_identity_tells_what_the_state_means() -> None:
    join = asof()
    changed = replace(join.with_limit(5, "drop_oldest"), idle=(("l.t", 3),), padded_column="#padded")
    assert join.identity == changed.identity
    assert join.identity != asof(tolerance=3).identity
    assert asof(max_rows=10).for_shards(4).max_rows == 3


def test_a_void_version_ends_the_one_before_it() -> None:
    right = [row("r", "a", 0, 102), row("r", "a", 5, 90, dead=True), row("r", "a", 9, 110)]
    batch = Batch(questions(1, 6, 9), right, {"r.t": 20})
    assert answers(run(asof(), [batch])[0]) == [(1, 102), (6, None), (9, 110)]
    assert answers(run(asof("inner"), [batch])[0]) == [(1, 102), (9, 110)]
    forward = run(asof(direction="forward", tolerance=5), [batch])[0]
    assert answers(forward) == [(1, None), (6, 110), (9, 110)]


def test_a_delete_ends_its_row_until_another_one_comes() -> None:
    join = asof(upserts=True)
    batches = [
        Batch([], [row("r", "a", 0, 5), row("r", "b", 3, op=-1)], {"r.t": 4}),
        Batch([], [row("r", "a", 8, 5, op=-1)], {"r.t": 8}),
        Batch(questions(7, 9, 12), [row("r", "a", 11, 6)], {"r.t": 20, "l.t": 12}),
        Batch(questions(13, key="b"), [], {"l.t": 13}),
    ]
    found = run(join, batches)
    assert answers(found[2]) == [(7, 5), (9, None), (12, 6)]
    # The key that is never there has a version that says so.
    assert answers(found[3]) == [(13, None)]
    assert found[3].report.state == (0, 2)


@pytest.mark.parametrize("small", [1, 1024])
def test_the_last_change_of_a_time_counts(small: int) -> None:
    # In one batch the position decides; the run of the first batch is too large to be merged with the next one.
    changes = [row("r", "a", 5, 1), row("r", "a", 5, 2), *(row("r", "b", t, t) for t in range(20))]
    placed = table("r", changes).append_column(POSITION, pa.array([7, 3, *range(8, 28)]))
    for direction in ("backward", "forward", "nearest"):
        join, store = asof(upserts=True, direction=direction, tolerance=3), MemoryStore()
        with sizes(64, 64, small):
            first = join.step(store, {1: placed}, {"r.t": 5})
            # The version of its very time is there, and may still be replaced.
            emission = join.step(store, {0: table("l", questions(5))}, {})
            replaced = join.step(store.restart(), {1: table("r", [row("r", "a", 5, 3)])}, {"r.t": 6})
            deleted = join.step(store.restart(), {1: table("r", [row("r", "a", 5, op=-1)])}, {"r.t": 6})
            kept = join.step(store, {}, {"r.t": 6})
        assert (first.report.dropped, emission.rows, replaced.report.dropped) == ((0, 1), (), (0, 1))
        assert [answers(one) for one in (replaced, deleted, kept)] == [[(5, 3)], [(5, None)], [(5, 1)]]


def test_versions_of_before_go_on_as_rows_of_a_table() -> None:
    stream, store = asof("left"), MemoryStore()
    stream = replace(stream, right=replace(stream.right, dead=None))
    stream.step(store, {1: table("r", versions(t1=10, t5=50))}, {})
    join = replace(stream, right=replace(stream.right, upsert_key=("r.k",)))
    join.take_over(store, stream.identity)
    join.step(store, {0: table("l", questions(3, 6)), 1: table("r", [row("r", "a", 7, op=-1)])}, {})
    found = join.step(store.restart(), {0: table("l", questions(8))}, {"r.t": 9})
    assert answers(found) == [(3, 10), (6, 50), (8, None)]
