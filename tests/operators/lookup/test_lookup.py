"""The lookup join: the vectors by hand, and the kernel beside its definition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.operators.strategies import conditions

from watersmeet.local.query import MemoryStore
from watersmeet.operators.core.operator import END_OF_INPUT, LOADED, NOW, Emission, Port, StateOverflowError
from watersmeet.operators.core.rowwise import ReferenceStep
from watersmeet.operators.lookup import kernel as lookup_batch
from watersmeet.operators.lookup.definition import LookupReference
from watersmeet.operators.lookup.kernel import LookupJoinOperator
from watersmeet.operators.state.layout import Budget

Row = dict[str, Any]

SMALL = Budget(block=3, merge_at=2, smallest_tier=2, balanced=True, chunk=4)

quick = settings(
    derandomize=True,
    max_examples=examples(60),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces and runs so small that a few rows fill several."""
    monkeypatch.setattr(lookup_batch, "ROWS_PER_PIECE", 3)
    monkeypatch.setattr(lookup_batch, "WAITING", Budget(merge_at=2, smallest_tier=2))
    monkeypatch.setattr(lookup_batch, "HELD", Budget(block=4, merge_at=2, smallest_tier=2, largest=4, chunk=3))


@dataclass(frozen=True)
class Batch:
    """What one batch brings to the stream (l) and the table (r), and whether the query was restarted before it."""

    stream: Sequence[Row]
    table: Sequence[Row]
    marks: Mapping[str, int]
    restarted: bool = False

    def rows(self, join: LookupJoinOperator) -> dict[int, Sequence[Row]]:
        return {join.stream_port: self.stream, join.table: self.table}

    def tables(self, join: LookupJoinOperator) -> dict[int, pa.Table]:
        sides = {join.stream_port: "l", join.table: "r"}
        return {port: table(sides[port], rows) for port, rows in self.rows(join).items() if rows}


def table(side: str, rows: Sequence[Row]) -> pa.Table:
    kinds = {"k": pa.string(), "id": pa.int64(), "v": pa.int64(), "t": pa.int64(), "code": pa.int64()}
    fields = [pa.field(f"{side}.{name}", kind) for name, kind in {**kinds, "dead": pa.bool_()}.items()]
    fields += [pa.field(n, pa.int64()) for n in ("#weight", "#op", "#position") if rows and n in rows[0]]
    return pa.Table.from_pylist(list(rows), schema=pa.schema(fields))


def row(side: str, key: str | None, value: int | None = 0, *, dead: bool | None = False, **more: Any) -> Row:
    # Codes of unequal keys may be equal: a and c.
    code = None if key is None else ord(key) % 2
    values = {"k": key, "v": value, "id": None, "t": None, "code": code, "dead": dead}
    return {f"{side}.{name}": one for name, one in values.items()} | more


def lookup(kind: str = "left", *, keyed: bool = True, exact: bool = False, **options: Any) -> LookupJoinOperator:
    def side(s: str) -> Port:
        keys, code = ((f"{s}.id",), f"{s}.id") if exact else ((f"{s}.k",), f"{s}.code") if keyed else ((), None)
        times = ("l.t",) if s == "l" else ()
        return Port((f"{s}.k", f"{s}.v"), times, keys, code, exact, f"{s}.dead", (f"{s}.v",))

    sides = (side("l"), side("r")) if kind != "right" else (side("r"), side("l"))
    return LookupJoinOperator(kind, *sides, table=0 if kind == "right" else 1, **options)  # pyright: ignore[reportArgumentType]


def tuples(tables: Sequence[pa.Table]) -> list[tuple[Any, ...]]:
    return [one for each in tables for one in zip(*(column.to_pylist() for column in each.columns), strict=True)]


def visible_rows(join: LookupJoinOperator, step: ReferenceStep) -> Counter[tuple[Any, ...]]:
    """The rows of the definition as the kernel shows them.

    A semi join shows no columns of the table; the definition says which row it was that matched.
    """
    hidden = len(join.right.columns) if join.kind == "semi" else 0
    return Counter((*row[: len(row) - hidden], *[None] * hidden) for row in step.rows)


def expect_same(join: LookupJoinOperator, emission: Emission, step: ReferenceStep, batch: Batch) -> None:
    for each in emission.rows:
        assert each.column_names == [*join.left.columns, *join.right.columns]
        assert each.num_rows
    assert Counter(tuples(emission.rows)) == visible_rows(join, step)
    report, port = emission.report, join.stream_port
    assert report.rows == tuple(len(rows) for _, rows in sorted(batch.rows(join).items()))
    shown = {"semi": 0, "anti": len(step.rows)}
    padded = shown.get(join.kind, len(step.rows) - step.matched)
    assert (report.matched, sum(report.padded)) == (step.matched, padded)
    assert (report.state[port], report.dropped[port]) == (step.state[port], step.dropped[port])
    assert dict(report.watermarks) == step.watermarks


@st.composite
def joins(draw: st.DrawFn) -> LookupJoinOperator:
    join = lookup(
        draw(st.sampled_from(("inner", "left", "left", "right", "right", "semi", "anti"))),
        keyed=draw(st.sampled_from((True, True, True, False))),
        exact=draw(st.booleans()),
        condition=draw(conditions()) if draw(st.booleans()) else None,
        late_table=draw(st.sampled_from(("reemit", "reemit", "reemit", "ignore"))),
        retention=draw(st.sampled_from((None, 0, 2, 5))),
        waiting=draw(st.sampled_from((None, None, 0, 2, 4))),
        load_first=draw(st.sampled_from((False, False, True))),
        unions=draw(st.sampled_from(((), (("l.t", ("l.t#0", "l.t#1")),)))),
        budget=SMALL,
    )
    if draw(st.booleans()) and join.left.keys:
        # The join's key follows from the primary key, as where old and new row of a primary key meet in one shard.
        choices = (("r.id",),) if join.left.exact else (("r.k",), ("r.k", "r.id"))
        side = "left" if join.table == 0 else "right"
        key = draw(st.sampled_from(choices))
        join = replace(join, **{side: replace(join.ports[join.table], upsert_key=key)})
    return join


keys = st.sampled_from(("a", "a", "b", "c", "d", None))
values = st.sampled_from((0, 1, 2, 3, None))
deaths = st.sampled_from((False, False, False, False, True, None))
stream_rows = st.builds(
    lambda key, value, dead, time, number: row("l", key, value, dead=dead, **{"l.t": time, "l.id": number}),
    keys, values, deaths, st.sampled_from((*range(8), None)), st.sampled_from((0, 1, 2, None)),
)  # fmt: skip
table_rows = st.builds(
    lambda key, value, dead, number: row("r", key, value, dead=dead, **{"r.id": number}),
    keys, values, deaths, st.integers(0, 1),
)  # fmt: skip


@st.composite
def histories(draw: st.DrawFn, join: LookupJoinOperator) -> list[Batch]:
    """Batches in which the table gains and loses rows, the clock may stand still, go back or be missing."""
    batches: list[Batch] = []
    there: list[Row] = []
    now = 0
    for _ in range(draw(st.integers(1, 8))):
        stream = draw(st.lists(stream_rows, max_size=5))
        changes = [{**one, "#op": draw(st.sampled_from((1, 1, -1)))} for one in draw(st.lists(table_rows, max_size=4))]
        if not join.ports[join.table].upsert_key:
            gone = draw(st.lists(st.sampled_from(there), max_size=3)) if there else []
            there += changes
            changes = [{**one, "#weight": draw(st.sampled_from((1, 1, 2)))} for one in changes]
            changes += [{**one, "#weight": -1} for one in gone]
        if draw(st.booleans()):
            for rows in (stream, changes):
                order = draw(st.permutations(range(len(rows))))
                rows[:] = [{**one, "#position": place} for one, place in zip(rows, order, strict=True)]
        now += draw(st.sampled_from((0, 1, 3, -2)))
        marks = {NOW: now} if draw(st.sampled_from((True, True, False))) else {}
        for name in ("l.t", "l.t#0", "l.t#1"):
            if draw(st.sampled_from((False, False, True))):
                marks[name] = draw(st.sampled_from((*range(8), END_OF_INPUT)))
        if draw(st.sampled_from((False, False, False, True))):
            marks[LOADED] = 1
        batches.append(Batch(stream, changes, marks, draw(st.sampled_from((False, False, True)))))
    return batches


@settings(quick, max_examples=examples(60))
@given(st.data())
def test_kernel_equals_definition_in_every_batch(data: st.DataObject) -> None:
    join = data.draw(joins())
    store, reference = MemoryStore(), LookupReference(join)
    for batch in data.draw(histories(join)):
        if batch.restarted:
            store, join = store.restart(), replace(join)
        step = reference.step(batch.rows(join), batch.marks)
        expect_same(join, join.step(store, batch.tables(join), batch.marks), step, batch)


@settings(quick, max_examples=examples(60))
@given(st.data())
def test_late_table_rows_may_begin_and_cease_to_count_at_any_time(data: st.DataObject) -> None:
    join = data.draw(joins().filter(lambda join: join.is_outer))
    store, reference = MemoryStore(), LookupReference(join)
    for batch in data.draw(histories(join)):
        if data.draw(st.booleans()):
            was, late = join.identity, data.draw(st.sampled_from(("reemit", "ignore")))
            store, join = store.restart(), replace(join, late_table=late)
            reference.join = join
            join.take_over(store, was)
        step = reference.step(batch.rows(join), batch.marks)
        expect_same(join, join.step(store, batch.tables(join), batch.marks), step, batch)


def run(join: LookupJoinOperator, batches: Sequence[Batch]) -> list[list[tuple[Any, ...]]]:
    store = MemoryStore()
    return [tuples(join.step(store, batch.tables(join), batch.marks).rows) for batch in batches]


def row_with_weight(key: str, value: int, weight: int = 1) -> Row:
    return row("r", key, value) | {"#weight": weight}


FRANK, JOHN, JACK = 1, 2, 3


@pytest.mark.parametrize("upserts", [False, True])
def test_the_late_row_of_the_table_shows_the_stream_row_once_more(upserts: bool) -> None:
    """LN-V6: a row that had been padded comes again with its match, one that matched does not."""
    join = lookup("left")
    join = replace(join, right=replace(join.right, upsert_key=("r.k",) if upserts else ()))

    def change(key: str, new: int, old: int | None = None) -> Batch:
        if upserts:
            return Batch([], [row("r", key, new) | {"#op": 1}], {})
        return Batch([], [row_with_weight(key, new), *([row_with_weight(key, old, -1)] if old is not None else [])], {})

    found = run(
        join,
        [
            change("a", FRANK),
            Batch([row("l", "a", 10)], [], {}),
            Batch([row("l", "b", 11)], [], {}),
            change("a", JOHN, FRANK),
            change("b", JOHN),
            change("b", JACK, JOHN),
        ],
    )
    assert found == [[], [("a", 10, "a", FRANK)], [("b", 11, None, None)], [], [("b", 11, "b", JOHN)], []]


def test_an_inner_join_never_shows_a_row_later() -> None:
    """LN-V7a and LN-V7b."""
    batches = [Batch([row("l", "a", 10)], [], {}), Batch([], [row_with_weight("a", FRANK)], {})]
    assert run(lookup("left"), batches) == [[("a", 10, None, None)], [("a", 10, "a", FRANK)]]
    assert run(lookup("inner"), batches) == [[], []]
    assert run(lookup("left", late_table="ignore"), batches) == [[("a", 10, None, None)], []]


def test_the_changes_of_a_batch_come_before_its_stream_rows() -> None:
    batch = Batch([row("l", "a", 10)], [row_with_weight("a", FRANK), row_with_weight("a", JOHN, 2)], {})
    assert sorted(run(lookup("inner"), [batch])[0]) == [("a", 10, "a", FRANK), *[("a", 10, "a", JOHN)] * 2]


def test_the_table_may_stand_on_the_left() -> None:
    batches = [Batch([row("l", "a", 10)], [], {}), Batch([], [row_with_weight("a", FRANK)], {})]
    assert run(lookup("right"), batches) == [[(None, None, "a", 10)], [("a", FRANK, "a", 10)]]
    with pytest.raises(ValueError, match="preserve the table"):
        replace(lookup("left"), kind="right")


def test_a_row_waits_to_the_last_microsecond_of_its_retention() -> None:
    join = lookup("left", retention=5)
    for now, expected in ((5, [("a", 10, "a", FRANK)]), (6, [])):
        batches = [Batch([row("l", "a", 10)], [], {NOW: 0}), Batch([], [row_with_weight("a", FRANK)], {NOW: now})]
        assert run(join, batches)[1] == expected


def test_rows_of_one_run_expire_each_at_its_time() -> None:
    """Rows come one by one, so that runs are merged; at 13, those that came before 5 have waited for too long."""
    arrivals = [Batch([row("l", "a", now)], [], {NOW: now}) for now in (3, 7, 8, 9)]
    batches = [Batch([row("l", "a", 0)], [], {}), *arrivals, Batch([], [row_with_weight("a", FRANK)], {NOW: 13})]
    found = run(lookup("left", retention=8), batches)[-1]
    assert sorted(found) == [("a", value, "a", FRANK) for value in (7, 8, 9)]
    assert len(run(lookup("left", retention=10), batches)[-1]) == 5


def test_rows_that_were_held_back_wait_in_the_order_of_their_arrival() -> None:
    join = lookup("left", load_first=True, waiting=4)
    batches = [Batch([row("l", "ab"[n % 2], n) for n in range(first, first + 4)], [], {}) for first in (0, 4)]
    last = [Batch([], [], {LOADED: 1}), Batch([], [row_with_weight("a", FRANK), row_with_weight("b", JOHN)], {})]
    found = run(join, [*batches, *last])
    assert [len(rows) for rows in found] == [0, 0, 8, 4]
    assert sorted(value for _, value, _, _ in found[-1]) == [4, 5, 6, 7]


def test_stream_rows_are_held_back_until_the_table_is_loaded() -> None:
    join, store = lookup("left", load_first=True), MemoryStore()
    held = Batch([row("l", "a", 10) | {"l.t": 3}], [], {"l.t": 9})
    first = join.step(store, held.tables(join), held.marks)
    assert (tuples(first.rows), first.report.state, dict(first.report.watermarks)) == ([], (1, 0), {"l.t": 3})
    loaded = Batch([row("l", "b", 11)], [row_with_weight("a", FRANK)], {LOADED: 1})
    second = join.step(store.restart(), loaded.tables(join), loaded.marks)
    assert tuples(second.rows) == [("a", 10, "a", FRANK), ("b", 11, None, None)]
    assert (second.report.state, dict(second.report.watermarks)) == ((1, 1), {"l.t": 9})


def test_too_many_rows_forget_those_that_wait_and_else_fail() -> None:
    join, store = lookup("left").with_limit(3, "drop_oldest"), MemoryStore()
    waiting = Batch([row("l", "a", n) for n in range(3)], [row_with_weight("b", FRANK)], {})
    report = join.step(store, waiting.tables(join), {}).report
    assert (report.state, report.dropped) == ((2, 1), (1, 0))
    changes = Batch([], [row_with_weight("a", n) for n in range(3)], {})
    with pytest.raises(StateOverflowError):
        join.step(store.restart(), changes.tables(join), {})
    with pytest.raises(StateOverflowError):
        lookup("left").with_limit(3, "fail").step(MemoryStore(), waiting.tables(join), {})


def test_limits_are_divided_among_the_shards() -> None:
    join = lookup("left", waiting=7).with_limit(10, "fail").for_shards(4)
    assert (join.waiting, join.max_rows) == (2, 3)
    assert join.identity == lookup("left").identity != lookup("inner").identity
    assert lookup("left", retention=1).needs_clock
    assert not lookup("inner", retention=1).needs_clock


def test_runs_of_rows_that_wait_stay_few() -> None:
    join, store = lookup("left", waiting=9), MemoryStore()
    for number in range(60):
        batch = Batch([row("l", "abcd"[number % 4], number)], [], {})
        report = join.step(store, batch.tables(join), {}).report
        assert report.state == (min(number + 1, 9), 0)
        assert len([name for name in store._values if name.startswith("run/")]) <= 12
    last = Batch([], [row_with_weight(key, FRANK) for key in "abcd"], {})
    found = tuples(join.step(store, last.tables(join), {}).rows)
    assert sorted(value for _, value, _, _ in found) == list(range(51, 60))


@pytest.mark.parametrize("load_first", [False, True])
def test_rows_that_wait_or_are_held_back_outlive_the_aliases_of_the_query(load_first: bool) -> None:
    def join_of(stream: str) -> LookupJoinOperator:
        port = Port((f"{stream}.k",), (f"{stream}.t",), (f"{stream}.k",), f"{stream}.k", exact=True)
        other = Port(("r.k", "r.v"), (), ("r.k",), "r.k", exact=True)
        names = tuple((f"{stream}.{name}", f"0.{name}") for name in "kt")
        return LookupJoinOperator("left", port, other, load_first=load_first, names=names)

    store, row = MemoryStore(), pa.table({"l.k": [7], "l.t": [3]})
    assert dict(join_of("l").step(store, {0: row}, {"l.t": 5}).report.watermarks) == {"l.t": 3 if load_first else 5}
    gained = pa.table({"r.k": [7], "r.v": [1], "#weight": [1]})
    last = join_of("x").step(store.restart(), {1: gained}, {LOADED: 1})
    assert tuples(last.rows) == [(7, 7, 1)]
    assert dict(last.report.watermarks) == {"x.t": 5}
