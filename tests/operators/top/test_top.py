"""The first n rows in an order: the kernel beside its definition, and DuckDB."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.operators.core.operator import END_OF_INPUT
from watersmeet.operators.core.order import MOST_RANKS, SortColumn
from watersmeet.operators.core.rowwise import freeze
from watersmeet.operators.state.spine import ShardState
from watersmeet.operators.top.definition import TopReference, TopStep
from watersmeet.operators.top.kernel import TopNOperator
from watersmeet.tools.testing import MemoryStore

quick = settings(
    derandomize=True, max_examples=examples(80), deadline=None, database=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
SCHEMA = pa.schema(
    {"a": pa.int64(), "x": pa.float64(), "s": pa.string(), "#weight": pa.int64(), "#position": pa.int64()}
)
ROWS = st.fixed_dictionaries(
    {
        "a": st.sampled_from((None, 0, 1, 2, 3, 2**63 - 1, -(2**63))),
        "x": st.sampled_from((None, 0.0, -0.0, 1.5, math.nan, -math.inf)),
        "s": st.sampled_from((None, "", "a", "b")),
    }
)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@st.composite
def tops(draw: st.DrawFn) -> TopNOperator:
    names = draw(st.lists(st.sampled_from(("a", "x", "s")), min_size=1, max_size=2, unique=True))
    order = tuple(SortColumn(name, draw(st.booleans()), draw(st.booleans())) for name in names)
    columns = draw(st.sampled_from((("a", "x", "s"), ("s",), ("a", "s"))))
    position = draw(st.sampled_from((None, "#position")))
    by = draw(st.sampled_from(((), (), ("s",), ("x",), ("a", "x"))))
    ties = draw(st.booleans())
    return TopNOperator(
        columns, order, draw(st.sampled_from((1, 2, 3, 4, MOST_RANKS))), draw(st.booleans()), position, by, ties=ties,
        is_dense=ties and draw(st.booleans()), offset=draw(st.sampled_from((0, 0, 1, 2))),
        number=draw(st.sampled_from((None, "rank"))),
    )  # fmt: skip


@quick
@given(st.data())
def test_groups_that_come_out_once_equal_their_definition(data: st.DataObject) -> None:
    top = data.draw(tops())
    before_end = data.draw(st.sampled_from((0, 1, 4)))
    top = replace(
        top,
        changes=False,
        by=("a", "s")[: data.draw(st.integers(1, 2))],
        final_key="a",
        time="t",
        before_end=before_end,
        emit="final",
        finality_outputs=(("a", before_end), ("s", 9)),
    )
    store, reference = MemoryStore(), TopReference(top)
    marks = [data.draw(st.sampled_from((None, -1, 0, 1, 2, 5))) for _ in range(data.draw(st.integers(1, 6)))]
    for mark in [*marks, END_OF_INPUT, END_OF_INPUT]:
        times = st.sampled_from((None, 0, 1, 2, 3))
        rows = [{**row, "a": data.draw(times), "#weight": 1} for row in data.draw(st.lists(ROWS, max_size=5))]
        places = data.draw(st.permutations(range(len(rows))))
        given_ = table([{**row, "#position": place} for row, place in zip(rows, places, strict=True)])
        store = store.restart() if data.draw(st.booleans()) else store
        watermarks = {} if mark is None else {"t": mark}
        emission = top.step(store, {0: given_} if rows else {}, watermarks)
        step = reference.step({0: given_.to_pylist()}, watermarks)
        assert isinstance(step, TopStep)
        found = Counter(
            tuple(freeze(value) for value in row)
            for one in emission.rows
            for row in zip(*(column.to_pylist() for column in one.columns), strict=True)
        )
        assert row_texts(found) == row_texts(Counter(step.rows))
        report = emission.report
        assert (report.late, report.state, report.watermarks) == ((len(step.late),), step.state, step.watermarks)
    assert report.state == (0,)


def changes_of(tables: tuple[pa.Table, ...]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for one in tables:
        for *row, weight in zip(*(column.to_pylist() for column in one.columns), strict=True):
            found[tuple(freeze(value) for value in row)] += weight
    return found


def row_texts(found: Counter[Any]) -> Counter[str]:
    spelled: Counter[str] = Counter()
    for row, number in found.items():
        # A row with -0.0 is counted with its equals, and shown as one of them.
        spelled[repr(row).replace("-0.0", "0.0")] += number
    return spelled


@quick
@given(st.data())
def test_kernel_equals_definition_in_every_batch(data: st.DataObject) -> None:
    top = data.draw(tops())
    store, reference = MemoryStore(), TopReference(top)
    there: list[dict[str, Any]] = []
    for _ in range(data.draw(st.integers(1, 8))):
        rows = [
            {**row, "#weight": data.draw(st.sampled_from((1, 1, 2)))} for row in data.draw(st.lists(ROWS, max_size=5))
        ]
        taken = data.draw(st.lists(st.sampled_from(there), max_size=4, unique_by=id)) if there else []
        there = [row for row in there if not any(row is other for other in taken)] + rows
        if top.changes:
            rows = data.draw(st.permutations([*rows, *({**row, "#weight": -row["#weight"]} for row in taken)]))
        places = data.draw(st.permutations(range(len(rows))))
        given_ = table([{**row, "#position": place} for row, place in zip(rows, places, strict=True)])
        store = store.restart() if data.draw(st.booleans()) else store
        emission = top.step(store, {0: given_} if rows else {}, {})
        expected = reference.step({0: given_.to_pylist()})
        assert isinstance(expected, Counter)
        assert row_texts(changes_of(emission.rows)) == row_texts(expected)
        assert top.changes or emission.report.state == (reference.stored,)


@quick
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), unique_by=lambda row: row[0], max_size=20),
    st.sampled_from((
        (TopNOperator(("id",), (SortColumn("v", descending=True), SortColumn("id")), 3, changes=True),
         "ROW_NUMBER", ", id"),
        (TopNOperator(("id",), (SortColumn("v", descending=True),), 3, changes=True, ties=True), "RANK", ""),
    )),
    st.data(),
)  # fmt: skip
def test_duckdb_says_the_same(
    rows: list[tuple[int, int]], asked: tuple[TopNOperator, str, str], data: st.DataObject
) -> None:
    (top, function, then), store = asked, MemoryStore()
    gone = [row for row in rows if data.draw(st.booleans())]
    changes = [*((*row, 1) for row in rows), *((*row, -1) for row in gone)]
    shown: Counter[Any] = Counter()
    while changes:
        size = data.draw(st.integers(1, 6))
        names = ("id", "v", "#weight")
        part = pa.table(dict(zip(names, (list(column) for column in zip(*changes[:size], strict=True)), strict=True)))
        shown.update(changes_of(top.step(store, {0: part}, {}).rows))
        changes = changes[size:]
    left = [row for row in rows if row not in gone]
    with duckdb.connect(":memory:", config={"threads": 1}) as database:
        database.execute("CREATE TABLE t (id BIGINT, v BIGINT)")
        if left:
            database.executemany("INSERT INTO t VALUES (?, ?)", left)
        over = f"{function}() OVER (ORDER BY v DESC{then})"
        expected = database.execute(f"SELECT id FROM t QUALIFY {over} <= 3").fetchall()
    assert Counter({row: number for row, number in shown.items() if number}) == Counter(expected)


def test_of_a_stream_only_what_is_shown_is_stored() -> None:
    top, store = TopNOperator(("v",), (SortColumn("v", descending=True),), 3), MemoryStore()
    for batch in range(30):
        report = top.step(store, {0: pa.table({"v": list(range(batch, batch + 100))})}, {}).report
    assert report.state == (3,)
    assert sum(block.rows for runs in ShardState(store).directory.runs.values() for run in runs for block in run) == 3


def test_a_row_that_goes_and_comes_again_stands_where_it_came_last() -> None:
    top = TopNOperator(("v",), (SortColumn("k"),), 1, changes=True)

    def rows(*changes: tuple[str, int]) -> dict[int, pa.Table]:
        return {
            0: pa.table({"k": [0] * len(changes), "v": [v for v, _ in changes], "#weight": [w for _, w in changes]})
        }

    for batches in ([rows(("a", -1), ("a", 1))], [rows(("a", -1)), rows(("a", 1))]):
        store, shown = MemoryStore(), Counter[Any]()
        for batch in (rows(("a", 1), ("b", 1)), *batches):
            shown.update(changes_of(top.step(store, batch, {}).rows))
        assert {row for row, number in shown.items() if number} == {("b",)}
