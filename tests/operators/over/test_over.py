"""Window functions over a stream: the kernel beside its definition, and DuckDB."""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.operators.core.operator import END_OF_INPUT
from watersmeet.operators.core.rowwise import freeze
from watersmeet.operators.over.definition import OverReference
from watersmeet.operators.over.kernel import OverOperator, WindowFunction
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


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@st.composite
def functions(draw: st.DrawFn, number: int) -> WindowFunction:
    kind = draw(
        st.sampled_from(
            ("sum", "avg", "count", "count_if", "min", "max", "first_value", "last", "first filtered", "last filtered",
             "lag", "lead")
        )
    )  # fmt: skip
    names = NUMBERS if kind in ("sum", "avg") else ("b",) if kind == "count_if" else tuple(COLUMNS)
    columns = (draw(st.sampled_from(names)),)
    if kind == "count":
        columns = draw(st.sampled_from(((), columns)))
    if kind.endswith("filtered"):
        columns = (*columns, "b")
    if kind in ("lag", "lead"):
        columns = (*columns, *(columns * draw(st.booleans())))
        return WindowFunction(kind, columns, f"o{number}", "rows", draw(st.integers(0, 3)))
    unit = draw(st.sampled_from(("rows", "range")))
    return WindowFunction(kind, columns, f"o{number}", unit, draw(st.sampled_from((None, 0, 1, 2, 5, 2**62))))


@st.composite
def operators(draw: st.DrawFn) -> OverOperator:
    many = tuple(draw(functions(number)) for number in range(draw(st.integers(1, 4))))
    wait = draw(st.sampled_from((0, 1, 3))) if any(f.kind == "lead" for f in many) else 0
    by = draw(st.sampled_from(((), ("k",), ("k", "s"))))
    position = draw(st.sampled_from((None, "#position")))
    return OverOperator(("k", "t", "i"), many, by, "t", wait, None, position, ("t",))


def rows_of(tables: tuple[pa.Table, ...]) -> list[tuple[Any, ...]]:
    columns = ([column.to_pylist() for column in part.columns] for part in tables)
    return [tuple(freeze(value) for value in row) for part in columns for row in zip(*part, strict=True)]


def spelled(rows: list[tuple[Any, ...]]) -> Counter[str]:
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
        assert spelled(rows_of(emission.rows)) == spelled(step.rows)
        report = emission.report
        assert (report.late, report.watermarks) == ((len(step.late),), step.watermarks)
    assert report.state == (0,)
