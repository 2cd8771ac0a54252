"""The latest row per key: a dictionary says what the table has, the kernel how it changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.local.query import MemoryStore
from watersmeet.operators.core.operator import END_OF_INPUT, Port, StateOverflowError
from watersmeet.operators.core.rowwise import freeze
from watersmeet.operators.latest.kernel import LatestOperator
from watersmeet.operators.state.layout import Budget

Row = dict[str, Any]

SMALL = Budget(block=3, merge_at=2, smallest_tier=2, balanced=True, chunk=4)
SCHEMA = pa.schema(
    {
        "k": pa.float64(),
        "j": pa.string(),
        "v": pa.list_(pa.int64()),
        "t": pa.int64(),
        "#code": pa.int64(),
        "#op": pa.int8(),
        "#position": pa.int64(),
        "#dead": pa.bool_(),
    }
)

quick = settings(
    derandomize=True,
    max_examples=examples(40),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def table(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def tuples(tables: Sequence[pa.Table]) -> list[tuple[Any, ...]]:
    return [one for each in tables for one in zip(*(column.to_pylist() for column in each.columns), strict=True)]


arrivals = st.builds(
    # Codes of unequal keys may be equal, those of 0.0 and -0.0 must be.
    lambda row: {**row, "#code": None if row["k"] is None else int(row["k"] or 0) % 2},
    st.fixed_dictionaries(
        {
            "k": st.sampled_from((0.0, -0.0, 1.0, 2.0, 3.0, None)),
            "j": st.sampled_from(("a", "a", "b", None)),
            "v": st.sampled_from((None, [], [1], [1, None], [2])),
            "t": st.integers(0, 2),
            "#op": st.sampled_from((1, 1, -1)),
            "#dead": st.sampled_from((False, False, False, True, None)),
        }
    ),
)


@quick
@given(st.data())
def test_the_changes_are_those_of_a_dictionary(data: st.DataObject) -> None:
    keys = data.draw(st.sampled_from((("k",), ("k", "j"), ())))
    append, dead = data.draw(st.booleans()), data.draw(st.sampled_from((None, "#dead")))
    columns = data.draw(st.sampled_from((("k", "j", "v"), ("v", "t"))))
    latest = LatestOperator(Port(columns, (), keys, "#code" if keys else None, dead=dead), append=append, budget=SMALL)
    store = MemoryStore()
    there: dict[Any, Row] = {}
    for rows in data.draw(st.lists(st.lists(arrivals, max_size=5), min_size=1, max_size=8)):
        store = store.restart() if data.draw(st.booleans()) else store
        order = data.draw(st.permutations(range(len(rows))))
        before, dropped = dict(there), 0
        for row in (rows[place] for place in order):
            key = tuple(row[name] for name in keys)
            if None in key:
                dropped += 1
            elif (append or int(row["#op"] or 0) > 0) and (dead is None or row["#dead"] is False):
                there[key] = row
            else:
                there.pop(key, None)
        placed = [{**row, "#position": order.index(number)} for number, row in enumerate(rows)]
        emission = latest.step(store, {0: table(placed)} if rows else {}, {})
        expected: Counter[str] = Counter()
        for shown, weight in ((before, -1), (there, 1)):
            for row in shown.values():
                expected[repr(freeze(tuple(row[name] for name in columns)))] += weight
        found: Counter[str] = Counter()
        for *values, weight in tuples(emission.rows):
            found[repr(freeze(tuple(values)))] += weight
        assert {row: n for row, n in found.items() if n} == {row: n for row, n in expected.items() if n}
        assert (emission.report.rows, emission.report.dropped) == ((len(rows),), (dropped,))
        assert emission.report.state[0] >= len(there)


def test_equal_rows_change_nothing() -> None:
    latest, store = LatestOperator(Port(("v",), (), ("t",), "t", exact=True), append=True), MemoryStore()
    rows = table([{"t": 1, "v": [1]}, {"t": 1, "v": [2]}]).drop_columns(["#position"])
    assert tuples(latest.step(store, {0: rows}, {}).rows) == [([2], 1)]
    assert latest.step(store, {0: rows}, {}).rows == ()


def test_without_a_position_the_order_is_that_of_the_rows() -> None:
    latest = LatestOperator(Port(("v",), (), ("j",), "#code"))
    rows = [{"j": "a", "#code": 0, "v": [n], "#op": 1 if n < 3 else -1} for n in range(4)]
    for last, expected in ((3, [([2], 1)]), (4, [])):
        some = table(rows[:last]).drop_columns(["#position"])
        assert tuples(latest.step(MemoryStore(), {0: some}, {}).rows) == expected


def test_marks_pass_through() -> None:
    latest, store = LatestOperator(Port(("t",), ("t",), ("k",), "#code"), append=True), MemoryStore()
    assert latest.step(store, {}, {"t": 5, "other": 1}).report.watermarks == {"t": 5}
    assert latest.step(store.restart(), {}, {}).report.watermarks == {"t": 5}
    assert latest.step(store, {}, {"t": END_OF_INPUT}).report.watermarks == {"t": END_OF_INPUT}


def test_too_many_rows_fail_the_batch_but_replaced_ones_do_not_count() -> None:
    latest = LatestOperator(Port(("t",), (), ("t",), "t", exact=True), append=True).with_limit(4, "fail").for_shards(2)
    store = MemoryStore()
    for value in range(9):
        latest.step(store, {0: pa.table({"t": [value % 2]})}, {})
    with pytest.raises(StateOverflowError):
        latest.step(store, {0: pa.table({"t": [7]})}, {})
