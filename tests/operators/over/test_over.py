"""Window functions over streams and tables: the kernels beside their definition, and DuckDB."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any, Literal

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.operators.core.operator import END_OF_INPUT
from watersmeet.operators.core.order import SortColumn
from watersmeet.operators.core.rowwise import freeze
from watersmeet.operators.over import kernel
from watersmeet.operators.over.definition import OverReference, TableOverReference
from watersmeet.operators.over.frames import FrameFunction, maximum_of_frames
from watersmeet.operators.over.kernel import OverOperator, TableOverOperator
from watersmeet.operators.state.layout import Budget
from watersmeet.tools.testing import MemoryStore

quick = settings(
    derandomize=True, max_examples=examples(80), deadline=None, database=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
COLUMNS = {
    "i": (pa.int32(), (None, 0, 1, -5, 2**31 - 1)),
    "x": (pa.float64(), (None, 0.0, -0.0, 1.5, 0.1, 1e16, -1e300, 5e-324, math.nan, math.inf, -math.inf)),
    "f": (pa.float32(), (None, 0.5, -0.0, math.nan)),
    "d": (pa.decimal128(12, 2), (None, Decimal("1.25"), Decimal("-0.01"), Decimal("9999999999.99"))),
    "s": (pa.string(), (None, "", "a", "b")),
    "b": (pa.bool_(), (None, True, False)),
}
SCHEMA = pa.schema(
    {
        "k": pa.float64(), "t": pa.int64(), **{name: type_ for name, (type_, _) in COLUMNS.items()},
        "#position": pa.int64(),
    }
)  # fmt: skip
KEYS = (None, 0.0, -0.0, math.nan, 1.0)
ROWS = st.fixed_dictionaries(
    {"k": st.sampled_from(KEYS), **{name: st.sampled_from(values) for name, (_, values) in COLUMNS.items()}}
)
NUMBERS = ("i", "x", "f", "d")
FRAMES: dict[str, tuple[tuple[int | None, int | None], ...]] = {
    "rows": ((None, 0), (None, None), (1, 1), (0, None), (3, -1), (-1, 2), (None, -2), (0, 0)),
    "range": ((None, 0), (None, None), (0, None), (0, 0)),
}
"""How far frames over a table reach back, and how far ahead."""


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@st.composite
def functions(draw: st.DrawFn, number: int, *, is_table: bool = False) -> FrameFunction:
    kind = draw(
        st.sampled_from(
            ("sum", "avg", "count", "count_if", "min", "max", "first_value", "last", "first filtered", "last filtered",
             "lag", "lead", "lag ignore nulls", "lead ignore nulls", "row_number", "rank", "dense_rank")
        )
    )  # fmt: skip
    if kind in ("row_number", "rank", "dense_rank"):
        return FrameFunction(kind, (), f"o{number}", "rows")
    names = NUMBERS if kind in ("sum", "avg") else ("b",) if kind == "count_if" else tuple(COLUMNS)
    columns = (draw(st.sampled_from(names)),)
    if kind == "count":
        columns = draw(st.sampled_from(((), columns)))
    if kind.endswith("filtered"):
        columns = (*columns, "b")
    if kind.startswith(("lag", "lead")):
        columns = (*columns, *(columns * draw(st.booleans())))
        return FrameFunction(kind, columns, f"o{number}", "rows", draw(st.integers(0, 3)))
    unit = draw(st.sampled_from(("rows", "range")))
    preceding, following = draw(st.sampled_from((None, None, None, 0, 1, 2, 5, 2**62))), 0
    if is_table:
        preceding, following = draw(st.sampled_from(FRAMES[unit]))
    elif preceding:
        following = -draw(st.integers(0, 3))
    return FrameFunction(kind, columns, f"o{number}", unit, preceding, following)


@st.composite
def operators(draw: st.DrawFn) -> OverOperator:
    many = tuple(draw(functions(number)) for number in range(draw(st.integers(1, 4))))
    wait = draw(st.sampled_from((0, 1, 3))) if any(f.kind == "lead" for f in many) else 0
    by = draw(st.sampled_from(((), ("k",), ("k", "s"))))
    position = draw(st.sampled_from((None, "#position")))
    return OverOperator(("k", "t", "i"), by, "t", many, wait, position=position, outputs=("t",), late=("t", "s"))


def rows_of(tables: tuple[pa.Table, ...]) -> list[tuple[Any, ...]]:
    columns = ([column.to_pylist() for column in part.columns] for part in tables)
    return [tuple(freeze(value) for value in row) for part in columns for row in zip(*part, strict=True)]


def row_texts(rows: list[tuple[Any, ...]]) -> Counter[str]:
    return Counter(map(repr, rows))


@quick
@given(st.data())
def test_window_functions_equal_their_definition_in_every_batch(data: st.DataObject) -> None:
    over = data.draw(operators())
    store, reference = MemoryStore(), OverReference(over)
    marks = [data.draw(st.sampled_from((None, -1, 0, 2, 4, 6, 9))) for _ in range(data.draw(st.integers(1, 6)))]
    for mark in [*marks, END_OF_INPUT, None]:
        times = st.sampled_from((None, 0, 1, 2, 3, 4, 6, 8, -(2**62)))
        rows = [{**row, "t": data.draw(times)} for row in data.draw(st.lists(ROWS, max_size=6))]
        places = data.draw(st.permutations(range(len(rows))))
        given_ = table([{**row, "#position": place} for row, place in zip(rows, places, strict=True)])
        store = store.restart() if data.draw(st.booleans()) else store
        watermarks = {} if mark is None else {"t": mark}
        emission = over.step(store, {0: given_} if rows else {}, watermarks)
        step = reference.step({0: given_.to_pylist()}, watermarks)
        assert row_texts(rows_of(emission.rows)) == row_texts(step.rows)
        late = [table.select(["t", "s"]) for _, table in emission.late]
        assert row_texts(rows_of(tuple(late))) == row_texts([(row["t"], row["s"]) for _, row in step.late])
        report = emission.report
        assert (report.late, report.watermarks) == ((len(step.late),), step.watermarks)
    assert report.state == (0,)


@pytest.mark.parametrize("wait", [0, 3])
def test_a_range_reaches_back_from_rows_that_wait_for_lead(wait: int) -> None:
    functions = (FrameFunction("count", (), "n", "range", 5), FrameFunction("lead", ("t",), "next", "rows", 1))
    over, store = OverOperator(("t",), ("k",), "t", functions, wait), MemoryStore()
    rows = [[{"k": 1.0, "t": time} for time in times] for times in ((0, 5), (8,), ())]
    found = [
        over.step(store, {0: table(batch)} if batch else {}, {"t": 6 + 3 * n}).rows for n, batch in enumerate(rows)
    ]
    expected = [(0, 1, None), (5, 2, 8 if wait else None), (8, 2, None)]
    assert [row for tables in found for row in rows_of(tables)] == expected


@quick
@given(st.data())
def test_a_changed_query_continues_with_the_rows_that_its_functions_need(data: st.DataObject) -> None:
    before = replace(data.draw(operators()), columns=("k", "t", *COLUMNS))
    others = tuple(data.draw(functions(number)) for number in range(10, 14))
    stay = tuple(function for function in before.functions if data.draw(st.booleans()))
    chosen = (*stay, *(function for function in others if before.keeps_rows_for(function)))
    after = replace(before, functions=chosen, columns=("k", "t"))
    store, reference = MemoryStore(), OverReference(after)
    batches = data.draw(
        st.lists(st.tuples(st.lists(ROWS, max_size=6), st.sampled_from((None, 1, 3, 5, 8))), max_size=6)
    )
    change = data.draw(st.integers(min(1, len(batches)), len(batches)))
    for number, (rows, mark) in enumerate([*batches, ([], END_OF_INPUT)]):
        rows = [{**row, "t": data.draw(st.sampled_from((None, 0, 1, 2, 3, 4, 6, 8)))} for row in rows]
        given_ = table([{**row, "#position": place} for place, row in enumerate(rows)])
        over, watermarks = (before if number < change else after), {} if mark is None else {"t": mark}
        emission = over.step(store, {0: given_} if rows else {}, watermarks)
        step = reference.step({0: given_.to_pylist()}, watermarks)
        if number >= change:
            assert row_texts(rows_of(emission.rows)) == row_texts(step.rows)


def test_another_bound_of_lead_neither_loses_rows_nor_moves_the_watermark_back() -> None:
    lead = FrameFunction("lead", ("t",), "next", "rows", 1)
    short = OverOperator(("t",), (), "t", (lead,), 1, outputs=("t",))
    long, store = replace(short, wait=5), MemoryStore()
    found, marks = list[tuple[Any, ...]](), list[int]()
    batches = [(short, [1, 2, 4], 5), (long, [6], 7), (long, [9], 10), (short, [11], 12), (short, [], END_OF_INPUT)]
    for over, times, mark in batches:
        emission = over.step(store, {0: table([{"t": time} for time in times])} if times else {}, {"t": mark})
        found += rows_of(emission.rows)
        marks.append(emission.report.watermarks["t"])
    assert found == [(1, 2), (2, None), (4, 6), (6, None), (9, None), (11, None)]
    assert marks == [4, 4, 5, 11, END_OF_INPUT]


def every_function() -> tuple[FrameFunction, ...]:
    """Each function over each type that it takes, with each kind of frame."""
    frames: list[tuple[Literal["rows", "range"], int | None]] = [
        *(("rows", preceding) for preceding in (None, 0, 3)),
        *(("range", preceding) for preceding in (None, 0, 3)),
    ]
    calls = [(kind, (name,)) for kind in ("sum", "avg") for name in NUMBERS]
    calls += [(kind, (name,)) for kind in ("min", "max", "first", "last", "count") for name in COLUMNS]
    calls += [(kind, (name, "b")) for kind in ("first filtered", "last filtered") for name in ("x", "s")]
    calls += [("count", ()), ("count_if", ("b",)), ("count", ("s", "b"))]
    made = [FrameFunction(*call, "", unit, preceding) for call in calls for unit, preceding in frames]
    lags = ("lag", "lag ignore nulls")
    made += [
        FrameFunction(lag, columns, "", "rows", n) for lag in lags for columns in (("x",), ("s", "s")) for n in (1, 3)
    ]
    made += [FrameFunction("lag", ("x",), "", "rows", 0)]
    made += [FrameFunction(kind, (), "", "rows") for kind in ("row_number", "rank", "dense_rank")]
    made += [FrameFunction("sum", ("x",), "", unit, 3, -1) for unit in ("rows", "range")]
    return tuple(replace(function, output=f"o{n}") for n, function in enumerate(made))


def random_rows(random: np.random.Generator, count: int, time: int) -> list[dict[str, Any]]:
    def pick(values: tuple[Any, ...]) -> Any:
        return values[int(random.integers(len(values)))]

    return [
        {
            "k": pick(KEYS),
            "t": pick((None, *range(time - 3, time + 4))),
            **{name: pick(values) for name, (_, values) in COLUMNS.items()},
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("reads_rows", [True, False])
def test_every_function_equals_its_definition_over_many_batches(
    seed: int, reads_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Runs are merged in almost every batch, and rows that no frame reads any more are gone from them.
    monkeypatch.setattr(kernel, "BUDGET", Budget(block=4, smallest_tier=1, merge_at=2, balanced=True))
    random = np.random.default_rng(seed)
    functions = every_function()
    if not reads_rows:
        # Then only time says which rows are still needed.
        functions = tuple(f for f in functions if f.unit == "range" and f.preceding is not None)
    over = OverOperator(("k", "t"), ("k",), "t", functions, outputs=("t",))
    store, reference = MemoryStore(), OverReference(over)
    for number in range(12):
        rows = random_rows(random, int(random.integers(9)), 2 * number)
        watermarks = {"t": END_OF_INPUT if number == 11 else 2 * number - 2}
        store = store.restart() if number % 3 == 0 else store
        emission = over.step(store, {0: table(rows)} if rows else {}, watermarks)
        step = reference.step({0: table(rows).to_pylist()}, watermarks)
        assert row_texts(rows_of(emission.rows)) == row_texts(step.rows)
    assert emission.report.state == (0,)


def test_a_group_keeps_what_frames_of_later_rows_read() -> None:
    functions = (
        FrameFunction("sum", ("i",), "near", "rows", 2), FrameFunction("max", ("x",), "most"),
        FrameFunction("lag", ("i",), "before", "rows", 1),
    )  # fmt: skip
    over, store = OverOperator(("k",), ("k",), "t", functions), MemoryStore()
    sizes = list[int]()
    for time in range(200):
        rows = [{"k": float(key), "t": time, "i": 1, "x": 0.5} for key in range(3)]
        sizes += over.step(store, {0: table(rows)}, {"t": time}).report.state
    # Runs up to the smallest size are merged when there are enough of them: a bound, not a line that grows.
    assert max(sizes[100:]) <= max(sizes[:100])


ORACLE = """
    SELECT k, i, sum(i) OVER w, count(i) OVER (w ROWS 2 PRECEDING), max(s) OVER (w RANGE 3 PRECEDING), lag(i, 2) OVER w,
      min(i) OVER (w ROWS 3 PRECEDING), first_value(s) OVER w, last_value(i) OVER (w RANGE 3 PRECEDING),
      avg(i) OVER (w RANGE 2 PRECEDING), CASE WHEN lead(t) OVER w - t <= {wait} THEN lead(i) OVER w END
    FROM rows WINDOW w AS (PARTITION BY k ORDER BY t, n)
"""


@quick
@given(st.data())
def test_rows_are_those_of_duckdb_whatever_the_batches_restarts_and_shards(data: st.DataObject) -> None:
    functions = (
        FrameFunction("sum", ("i",), "o0", "rows"), FrameFunction("count", ("i",), "o1", "rows", 2),
        FrameFunction("max", ("s",), "o2", "range", 3), FrameFunction("lag", ("i",), "o3", "rows", 2),
        FrameFunction("min", ("i",), "o4", "rows", 3), FrameFunction("first", ("s",), "o5", "rows"),
        FrameFunction("last", ("i",), "o6", "range", 3), FrameFunction("avg", ("i",), "o7", "range", 2),
        FrameFunction("lead", ("i",), "o8", "rows", 1),
    )  # fmt: skip
    wait = data.draw(st.sampled_from((0, 2, 1_000)))
    over = OverOperator(("k", "i"), ("k",), "t", functions, wait)
    drawn = data.draw(st.lists(st.tuples(ROWS, st.integers(0, 30)), max_size=30))
    # DuckDB's RANGE takes one sort key, so no two rows have one time here.
    times = sorted({time for _, time in drawn})
    rows: list[dict[str, Any]] = [
        {**row, "k": row["k"] and 1.0, "t": time}
        for (row, _), time in zip(drawn, times, strict=False)
        if row["k"] is None or row["k"] == row["k"]
    ]
    with duckdb.connect() as connection:
        connection.register("rows", table(rows).append_column("n", pa.array(range(len(rows)), pa.int64())))
        expected = connection.execute(ORACLE.format(wait=wait).replace("t, n", "t")).fetchall()
    shards, found = [MemoryStore() for _ in range(data.draw(st.integers(1, 3)))], list[tuple[Any, ...]]()
    while rows:
        batch, rows = rows[: (cut := data.draw(st.integers(1, 8)))], rows[cut:]
        batch = data.draw(st.permutations(batch))
        for number, store in enumerate(shards):
            own = [row for row in batch if (0 if row["k"] is None else int(row["k"]) + 1) % len(shards) == number]
            store = shards[number] = store.restart() if data.draw(st.booleans()) else store
            watermarks = {"t": rows[0]["t"]} if rows else {"t": END_OF_INPUT}
            found += rows_of(over.step(store, {0: table(own)} if own else {}, watermarks).rows)
    assert row_texts(found) == row_texts([tuple(freeze(value) for value in row) for row in expected])


@st.composite
def table_operators(draw: st.DrawFn) -> TableOverOperator:
    many = tuple(draw(functions(number, is_table=True)) for number in range(draw(st.integers(1, 4))))
    keys = [SortColumn(n, draw(st.booleans()), draw(st.booleans())) for n in ("t", "x", "s", "d")]
    order = tuple(draw(st.permutations(keys))[: draw(st.integers(0, 2))])
    by = draw(st.sampled_from(((), ("k",), ("k", "s"))))
    return TableOverOperator(("k", "t", "i"), many, by, order, None, draw(st.sampled_from((None, "#position"))))


@quick
@given(st.data())
def test_window_functions_over_a_table_equal_their_definition_in_every_batch(data: st.DataObject) -> None:
    over = data.draw(table_operators())
    store, reference = MemoryStore(), TableOverReference(over)
    present = list[dict[str, Any]]()
    for _ in range(data.draw(st.integers(1, 5))):
        store = store.restart() if data.draw(st.booleans()) else store
        changes = list[dict[str, Any]]()
        for row in data.draw(st.lists(ROWS, max_size=5)):
            new = {**row, "t": data.draw(st.sampled_from((None, 0, 1, 2)))}
            weight = data.draw(st.integers(1, 2))
            present += [new] * weight
            changes.append({**new, "#weight": weight})
            if data.draw(st.booleans()):
                gone = present.pop(data.draw(st.integers(0, len(present) - 1)))
                changes.append({**gone, "#weight": -1})
        given_ = pa.Table.from_pylist(
            [{**row, "#position": place} for place, row in enumerate(changes)],
            schema=SCHEMA.append(pa.field("#weight", pa.int64())),
        )
        if over.position and changes:
            given_ = given_.take(data.draw(st.permutations(range(len(changes)))))
        emission = over.step(store, {0: given_} if changes else {}, {})
        step = reference.step({0: given_.to_pylist()})
        shown = Counter[str]()
        for row in rows_of(emission.rows):
            shown[repr(row[:-1])] += row[-1]
        assert shown == Counter({repr(row): number for row, number in step.items()})


@quick
@given(st.data())
def test_a_changed_query_over_a_table_continues_with_its_rows(data: st.DataObject) -> None:
    before, other = data.draw(table_operators()), data.draw(table_operators())
    after = replace(before, functions=other.functions, order=other.order)
    inputs = (name for function in after.functions for name in function.columns)
    columns = dict.fromkeys((*before.columns, *inputs, *(key.column for key in after.order)))
    before = replace(before, columns=tuple(columns))
    store, reference = MemoryStore(), TableOverReference(after)
    for number, rows in enumerate(data.draw(st.lists(st.lists(ROWS, min_size=1, max_size=5), min_size=2, max_size=4))):
        changes = [{**row, "t": 1, "#weight": 1, "#position": place} for place, row in enumerate(rows)]
        given_ = pa.Table.from_pylist(changes, schema=SCHEMA.append(pa.field("#weight", pa.int64())))
        emission = (after if number else before).step(store, {0: given_}, {})
        step, shown = reference.step({0: given_.to_pylist()}), Counter[str]()
        for row in rows_of(emission.rows):
            # To the definition, rows that differ in the sign of zero are one.
            shown[repr(row[:-1]).replace("-0.0", "0.0")] += row[-1]
        expected = {repr(row).replace("-0.0", "0.0"): weight for row, weight in step.items()}
        assert not number or shown == Counter(expected)


TABLE_ORACLE = """
    SELECT k, i, sum(i) OVER w, count(i) OVER (w ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING), lead(s, 2) OVER w,
      max(s) OVER (PARTITION BY k), lag(i IGNORE NULLS) OVER w, rank() OVER (PARTITION BY k ORDER BY t),
      dense_rank() OVER (PARTITION BY k ORDER BY t), row_number() OVER w,
      last_value(s) OVER (w ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING),
      min(i) OVER (PARTITION BY k ORDER BY t RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)
    FROM rows WINDOW w AS (PARTITION BY k ORDER BY t DESC NULLS FIRST, i NULLS FIRST, s NULLS LAST)
"""


@quick
@given(st.data())
def test_a_table_with_window_functions_is_that_of_duckdb_after_any_changes(data: st.DataObject) -> None:
    down = (SortColumn("t", True), SortColumn("i"), SortColumn("s", nulls_last=True))
    # Functions of one order run together; those of another in a stage of their own.
    by_order: dict[tuple[SortColumn, ...], tuple[tuple[int, FrameFunction], ...]] = {
        down: (
            (0, FrameFunction("sum", ("i",), "o0")), (1, FrameFunction("count", ("i",), "o1", "rows", 2, 1)),
            (2, FrameFunction("lead", ("s",), "o2", "rows", 2)),
            (4, FrameFunction("lag ignore nulls", ("i",), "o4", "rows", 1)),
            (7, FrameFunction("row_number", (), "o7", "rows")),
            (8, FrameFunction("last", ("s",), "o8", "rows", 0, None)),
        ),
        (): ((3, FrameFunction("max", ("s",), "o3", "range", None, None)),),
        (SortColumn("t", nulls_last=True),): (
            (5, FrameFunction("rank", (), "o5", "rows")), (6, FrameFunction("dense_rank", (), "o6", "rows")),
            (9, FrameFunction("min", ("i",), "o9", "range", 0, None)),
        ),
    }  # fmt: skip
    present, batches = list[dict[str, Any]](), list[list[dict[str, Any]]]()
    for rows in data.draw(st.lists(st.lists(ROWS, max_size=6), max_size=4)):
        new = [
            {**row, "k": row["k"] and 1.0, "t": data.draw(st.sampled_from((None, 1, 2, 3)))}
            for row in rows
            if row["k"] is None or row["k"] == row["k"]
        ]
        gone = [row for row in present if data.draw(st.booleans())]
        present = [row for row in present if not any(row is one for one in gone)] + new
        batches.append([*({**row, "#weight": -1} for row in gone), *({**row, "#weight": 1} for row in new)])
    with duckdb.connect() as connection:
        connection.register("rows", table(present))
        expected = connection.execute(TABLE_ORACLE).fetchall()
    for order, some in by_order.items():
        over = TableOverOperator(("k", "i"), tuple(function for _, function in some), ("k",), order)
        store, shown = MemoryStore(), Counter[str]()
        for batch in batches:
            changes = pa.Table.from_pylist(batch, schema=SCHEMA.append(pa.field("#weight", pa.int64())))
            for row in rows_of(over.step(store, {0: changes} if batch else {}, {}).rows):
                shown[repr(row[:-1])] += row[-1]
        chosen = [(*row[:2], *(row[2 + number] for number, _ in some)) for row in expected]
        wanted = row_texts([tuple(map(freeze, row)) for row in chosen])
        assert +shown == wanted


def test_the_greatest_of_a_long_frame_takes_no_pass_per_row() -> None:
    values = np.random.default_rng(0).permutation(200_000)
    high = np.arange(1, values.size + 1)
    assert (maximum_of_frames(values, np.zeros_like(high), high) == np.maximum.accumulate(values)).all()
    low = np.maximum(high - 1_000, 0)
    expected = [int(values[max(n - 1_000, 0) : n].max()) for n in range(1, 200_001, 999)]
    assert maximum_of_frames(values, low, high)[::999].tolist() == expected
