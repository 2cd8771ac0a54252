"""Rows that are alike travel to a grouping as one, and count as what they are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.operators.core.changes import MULTIPLICITY
from watersmeet.operators.core.operator import Emission
from watersmeet.operators.group.kernel import Aggregate, GroupByOperator
from watersmeet.spark.exchange.columns import MIN_ROWS, Precombine
from watersmeet.tools.testing import MemoryStore

FUNCTIONS = ("count", "sum", "avg", "var_pop", "min", "max")
GROUPING = GroupByOperator(
    ("k",),
    (Aggregate("count", (), "n"), *(Aggregate(function, ("v",), function) for function in FUNCTIONS)),
    window_end="end",
    time="t",
)
ROWS = st.lists(
    st.tuples(st.sampled_from([1, 2, None]), st.sampled_from([5, 7, None]), st.integers(0, 30)), min_size=1, max_size=30
)


def batch(rows: list[tuple[int | None, int | None, int]]) -> pa.RecordBatch:
    keys, values, times = zip(*rows, strict=True)
    at = np.array(times)
    columns = {"k": pa.array(keys, pa.int64()), "v": pa.array(values, pa.int64()), "t": pa.array(at)}
    return pa.RecordBatch.from_pydict(columns | {"end": pa.array((at // 10 + 1) * 10)})


def summary(emission: Emission) -> tuple[object, ...]:
    rows = sorted(str(row) for table in emission.rows for row in table.to_pylist())
    return rows, emission.report.rows, emission.report.late, emission.report.state


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_a_row_that_stands_for_others_counts_as_these(batches: list[list[tuple[int | None, int | None, int]]]) -> None:
    stores = MemoryStore(), MemoryStore()
    for rows in map(batch, batches):
        (alike,) = Precombine(("t",))(iter([rows]))
        assert alike.column("t").to_numpy().max() == rows.column("t").to_numpy().max()
        assert alike.column(MULTIPLICITY).to_numpy().sum() == rows.num_rows
        marks = {"t": int(rows.column("t").to_numpy().max())}
        found = [
            summary(GROUPING.step(store, {0: pa.Table.from_batches([one])}, marks))
            for store, one in zip(stores, (rows, alike), strict=True)
        ]
        assert found[0] == found[1]


def test_rows_are_no_longer_merged_where_few_are_equal() -> None:
    apart = pa.RecordBatch.from_pydict({"k": pa.array(range(MIN_ROWS)), "t": pa.array([0] * MIN_ROWS)})
    equal = pa.RecordBatch.from_pydict({"k": pa.array([1] * MIN_ROWS), "t": pa.array(range(MIN_ROWS))})
    assert [one.num_rows for one in Precombine(("t",))(iter([equal, apart, equal]))] == [1, MIN_ROWS, MIN_ROWS]


@pytest.mark.parametrize(
    ("aggregates", "given", "is_so"),
    [
        ((Aggregate("count", (), "n"),), {}, True),
        ((Aggregate("count distinct", ("v",), "n"),), {}, False),
        ((Aggregate("bit_xor", ("v",), "n"),), {}, False),
        ((Aggregate("first", ("v",), "n"),), {"position": "#position"}, False),
        ((Aggregate("count", (), "n"),), {"changes": True}, False),
    ],
)
def test_operators_that_keep_rows_or_their_order_combine_none(
    aggregates: tuple[Aggregate, ...], given: dict[str, object], is_so: bool
) -> None:
    assert GroupByOperator(("k",), aggregates, **given).can_precombine is is_so  # pyright: ignore[reportArgumentType]
