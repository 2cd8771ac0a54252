"""GROUP BY: values by hand as Spark has them, the kernel beside its definition, and DuckDB."""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.local.query import MemoryStore
from watersmeet.operators.core import exact_sums as wide
from watersmeet.operators.core.aggregates import FUNCTIONS, Aggregate, canonical_name, function_of, result_type
from watersmeet.operators.core.exact_sums import as_integers, carry, decimals, divide, limbs_of
from watersmeet.operators.core.operator import END_OF_INPUT, Emission, StateOverflowError
from watersmeet.operators.core.order import SortColumn
from watersmeet.operators.core.rowwise import freeze
from watersmeet.operators.group import groups as stored_groups
from watersmeet.operators.group.definition import GroupReference, GroupStep
from watersmeet.operators.group.kernel import GroupByOperator
from watersmeet.operators.state.format import FORMAT
from watersmeet.operators.state.layout import Budget
from watersmeet.operators.state.spine import ShardState

Row = dict[str, Any]

quick = settings(
    derandomize=True,
    max_examples=examples(50),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

SCHEMA = pa.schema(
    {
        "k": pa.string(),
        "f": pa.float64(),
        "g": pa.struct({"a": pa.int32(), "b": pa.list_(pa.string())}),
        "v": pa.int32(),
        "n": pa.decimal128(10, 2),
        "x": pa.float64(),
        "b": pa.bool_(),
        "t": pa.timestamp("us", "UTC"),
        "s": pa.string(),
        "i": pa.duration("us"),
        "m": pa.list_(pa.float64()),
        "end": pa.timestamp("us", "UTC"),
        "#weight": pa.int64(),
        "#position": pa.int64(),
    }
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and runs so small that a few groups fill several."""
    monkeypatch.setattr(stored_groups, "BUDGET", Budget(block=3, merge_at=3, smallest_tier=2, in_order=True, chunk=5))


def table(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def tuples(tables: Sequence[pa.Table]) -> list[tuple[Any, ...]]:
    return [one for each in tables for one in zip(*(column.to_pylist() for column in each.columns), strict=True)]


def one(function: str, values: pa.Array, *others: pa.Array) -> Any:
    """The value of an aggregate over one group."""
    names = ("v", "w")[: 1 + len(others)]
    grouping = GroupByOperator((), (Aggregate(function, names, "out"),))
    emission = grouping.step(MemoryStore(), {0: pa.table(dict(zip(names, (values, *others), strict=True)))}, {})
    return emission.rows[-1].column("out")[0].as_py()


def expect_same(grouping: GroupByOperator, emission: Emission, step: GroupStep, rows: Sequence[Row]) -> None:
    for each in emission.rows:
        assert each.column_names == [*grouping.keys, *grouping.extra]
        # Before the first row the type of a NULL is unknown.
        assert not rows or each.schema.types[len(grouping.keys) :] == list(grouping.extra_types([SCHEMA]))
        assert each.num_rows
    assert row_texts(tuples(emission.rows)) == row_texts(step.rows)
    report = emission.report
    assert (report.rows, report.late, report.state) == ((len(rows),), (len(step.late),), step.state)


def row_texts(rows: Sequence[Any]) -> Counter[str]:
    """The rows as texts: what is equal but looks different is not the same."""
    return Counter(repr(freeze(row)) for row in rows)


def close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(close, one, other))
    return one == other


def expect_close(found: Counter[Any], expected: Counter[Any]) -> None:
    """The same rows, but for the rounding of doubles."""
    assert set(found.values()) <= {1}
    left = list(expected.elements())
    for row in found:
        same = next((other for other in left if close(row, other)), None)
        assert same is not None, (row, left)
        left.remove(same)
    assert not left


KEYS = ((), ("k",), ("k",), ("f",), ("k", "f"), ("g",), ("v", "t"))
CALLS = (
    ("count", ()), ("count", ("v",)), ("count", ("v", "s")), ("sum", ("v",)), ("sum", ("n",)), ("sum", ("x",)),
    ("sum", ("i",)), ("avg", ("v",)), ("mean", ("n",)), ("avg", ("x",)), ("avg", ("i",)), ("count_if", ("b",)),
    ("stddev", ("v",)), ("stddev_pop", ("x",)), ("variance", ("n",)), ("var_pop", ("v",)),
    ("min", ("v",)), ("max", ("x",)), ("min", ("x",)), ("min", ("s",)), ("max", ("t",)), ("max", ("n",)),
    ("min", ("i",)), ("max", ("b",)), ("every", ("b",)), ("any", ("b",)), ("bit_and", ("v",)), ("bit_or", ("v",)),
    ("bit_xor", ("v",)), ("min_by", ("s", "v")), ("max_by", ("v", "x")), ("max_by", ("m", "t")), ("first", ("v",)),
    ("any_value", ("m",)), ("last", ("s",)), ("first_value", ("g",)),
    ("first filtered", ("v", "b")), ("last_value filtered", ("g", "b")), ("count distinct", ("v",)),
    ("count distinct", ("x", "s")), ("collect_list", ("v",)), ("array_agg", ("g",)), ("collect_set", ("x",)),
    ("collect_set", ("s",)), ("collect_list distinct", ("t",)), ("max distinct", ("v",)), ("min distinct", ("s",)),
    ("sum distinct", ("x",)), ("avg distinct", ("n",)), ("sum distinct", ("v",)), ("stddev distinct", ("x",)),
    ("mean distinct", ("i",)), ("var_pop distinct", ("v",)), ("var_samp distinct", ("x",)),
    ("stddev_pop distinct", ("n",)),
    ("listagg", ("s",), (), (", ",)), ("string_agg distinct", ("s",), (), ("",)), ("median", ("x",), (), (0.5,)),
    ("percentile_cont", ("n",), (SortColumn("n", descending=True),), (0.3,)), ("percentile", ("i",), (), (0.77,)),
    ("percentile_disc", ("v",), (), (0.5,)), ("percentile list", ("v",), (), (0.0, 0.1, 1.0)),
    ("percentile_disc list", ("x",), (SortColumn("x", descending=True),), (0.4, 0.9)),
    ("array_agg", ("v",), (SortColumn("s", descending=True, nulls_last=True), SortColumn("x"))),
    ("listagg", ("s",), (SortColumn("x"),), ("",)),
    ("string_agg distinct", ("s",), (SortColumn("s", descending=True, nulls_last=True),), ("-",)),
    ("first", ("v",), (SortColumn("x", nulls_last=True),)), ("last", ("g",), (SortColumn("s"), SortColumn("b"))),
    ("last filtered", ("s", "b"), (SortColumn("n", descending=True),)),
    ("first filtered", ("v", "b"), (SortColumn("t"),)),
    ("collect_list distinct", ("v",), (SortColumn("v", descending=True, nulls_last=True),)),
)  # fmt: skip
"""Calls of all functions: the columns, then the order and the constants."""


DOWN = SortColumn("s", descending=True, nulls_last=True)


def aggregates_of(calls: Sequence[tuple[Any, ...]]) -> tuple[Aggregate, ...]:
    return tuple(Aggregate(call[0], call[1], f"a{n}", *call[2:]) for n, call in enumerate(calls))


@st.composite
def groupings(draw: st.DrawFn, *, changes: bool) -> GroupByOperator:
    chosen = draw(st.lists(st.sampled_from(CALLS), max_size=5))
    aggregates = aggregates_of(chosen)
    keys = draw(st.sampled_from(KEYS))
    windowed = draw(st.booleans())
    return GroupByOperator(
        (*keys, "end") if windowed else keys,
        aggregates,
        changes=changes,
        position=draw(st.sampled_from((None, "#position"))),
        window_end="end" if windowed else None,
        time="t" if windowed else None,
    )


WIDE = st.sampled_from((1e16, 0.1, 0.3, -1e16, 1e308, -1e308, 5e-324, 1e-300, 2.0**53, 1e200)) | st.floats(
    allow_nan=False, allow_infinity=False
)
"""Doubles of all sizes."""

rows_of_values = st.fixed_dictionaries(
    {
        "k": st.sampled_from(("a", "b", "c", None)),
        "f": st.sampled_from((0.0, -0.0, math.nan, 1.5, None)),
        "g": st.sampled_from((None, {"a": 1, "b": ["x", None]}, {"a": 1, "b": None}, {"a": None, "b": []})),
        "v": st.sampled_from((None, 0, 1, -2, 3, 7)),
        "n": st.sampled_from((None, Decimal("0.01"), Decimal("-1.00"), Decimal("99999999.99"), Decimal("0.33"))),
        "x": st.sampled_from((None, 0.5, -0.0, 0.0, 2.25, -7.5, math.nan, math.inf, -math.inf)) | WIDE,
        "b": st.sampled_from((True, False, None)),
        "t": st.sampled_from((None, EPOCH, EPOCH + timedelta(seconds=1), EPOCH - timedelta(days=3))),
        "s": st.sampled_from(("", "ab", "é", "z", None)),
        "i": st.sampled_from((None, timedelta(0), timedelta(microseconds=-5), timedelta(days=2))),
        "m": st.sampled_from((None, [], [0.0], [-0.0], [math.nan, None])),
        "end": st.sampled_from([EPOCH + timedelta(seconds=s) for s in (1, 2, 3)]),
    }
)


@st.composite
def histories(draw: st.DrawFn, grouping: GroupByOperator) -> list[tuple[list[Row], Mapping[str, int], bool]]:
    """Batches of rows or changes, in which only what is there is taken away; the mark, and whether all starts again."""
    batches: list[tuple[list[Row], Mapping[str, int], bool]] = []
    there: list[Row] = []
    for _ in range(draw(st.integers(1, 8))):
        rows = [{**row, "#weight": 1} for row in draw(st.lists(rows_of_values, max_size=5))]
        if grouping.changes:
            taken = draw(st.lists(st.sampled_from(there), max_size=4, unique_by=id)) if there else []
            there = [row for row in there if not any(row is other for other in taken)]
            more = [{**row, "#weight": draw(st.sampled_from((1, 2)))} for row in rows]
            there += more
            rows = draw(st.permutations([*more, *({**row, "#weight": -row["#weight"]} for row in taken)]))
        order = draw(st.permutations(range(len(rows))))
        mark = draw(st.sampled_from((None, None, 0, 1, 2)))
        marks = {} if mark is None else {"t": mark * 1_000_000}
        batch = [{**row, "#position": place} for row, place in zip(rows, order, strict=True)]
        batches.append((batch, marks, draw(st.sampled_from((False, False, True)))))
    return batches


@settings(quick, max_examples=examples(60))
@given(st.data())
def test_kernel_equals_definition_in_every_batch(data: st.DataObject) -> None:
    grouping = data.draw(groupings(changes=data.draw(st.booleans())))
    store, reference = MemoryStore(), GroupReference(grouping)
    shown: Counter[Any] = Counter()
    expected: Counter[Any] = Counter()
    for rows, marks, restarted in data.draw(histories(grouping)):
        store = store.restart() if restarted else store
        emission = grouping.step(store, {0: table(rows)} if rows else {}, marks)
        step = reference.step({0: table(rows).to_pylist()}, marks)
        expect_same(grouping, emission, step, rows)
        for found, counter in ((tuples(emission.rows), shown), (step.rows, expected)):
            for *row, weight in found:
                counter[freeze(tuple(row))] += weight
        shown, expected = +shown, +expected
        assert all(number == 1 for number in shown.values())
    assert row_texts(list(shown)) == row_texts(list(expected))


@settings(quick, max_examples=examples(60))
@given(st.data())
def test_groups_that_come_out_once_equal_their_definition_in_every_batch(data: st.DataObject) -> None:
    grouping = data.draw(groupings(changes=data.draw(st.booleans())).filter(lambda one: one.time is not None))
    by_key = data.draw(st.booleans()) and not grouping.changes
    window = {"final_key": "end", "before_end": data.draw(st.sampled_from((0, 1, 500_000)))} if by_key else {}
    grouping = replace(
        grouping, emit="final", finality_outputs=(("end", 0), ("start", 7)),
        window_end=None if by_key else "end", **window,
    )  # fmt: skip
    store, reference = MemoryStore(), GroupReference(grouping)
    ended: list[tuple[list[Row], Mapping[str, int], bool]] = [([], {"t": END_OF_INPUT}, True)]
    for rows, marks, restarted in [*data.draw(histories(grouping)), *ended, *ended]:
        store = store.restart() if restarted else store
        emission = grouping.step(store, {0: table(rows)} if rows else {}, marks)
        step = reference.step({0: table(rows).to_pylist()}, marks)
        expect_same(grouping, emission, step, rows)
        assert emission.report.watermarks == step.watermarks
        closed = [row[grouping.keys.index("end")] for row in tuples(emission.rows)]
        mark = marks.get("t", END_OF_INPUT)
        assert all(mark == END_OF_INPUT or micros(end) + grouping.before_end <= mark for end in closed)
    assert emission.report.state == (0,)


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def test_a_group_comes_out_once_however_batches_are_cut() -> None:
    calls = aggregates_of(CALLS)
    grouping = GroupByOperator(("k", "end"), calls, window_end="end", time="t", emit="final")
    values = (("a", 1, 1), ("b", 2, 1), ("a", 3, 2), ("a", 4, 1), (None, 5, 2), ("b", 6, 3))
    nulls = dict.fromkeys(SCHEMA.names)
    rows = [
        {**nulls, "k": k, "v": v, "x": v / 3, "s": str(v), "n": Decimal(v), "end": EPOCH + timedelta(seconds=end)}
        for k, v, end in values
    ]
    expected = Counter[str]()
    for cuts in ((6,), (1, 2, 6), (3, 6), (1, 2, 3, 4, 5, 6)):
        store, shown, start = MemoryStore(), list[Any](), 0
        for cut in cuts:
            shown += tuples(grouping.step(store, {0: table(rows[start:cut])}, {}).rows)
            start, store = cut, store.restart()
        assert not shown
        for second in (1, 2, 2, 3):
            shown += tuples(grouping.step(store, {}, {"t": second * 1_000_000}).rows)
            store = store.restart()
        expected = expected or row_texts(shown)
        assert len(shown) == 5
        assert row_texts(shown) == expected


def finite(row: Row) -> Row:
    return row if row["x"] is None or math.isfinite(row["x"]) else {**row, "x": 1.25}


@settings(quick, max_examples=examples(20))
@given(st.lists(rows_of_values, min_size=1, max_size=30))
def test_ordered_values_and_percentiles_are_what_duckdb_says(rows: list[Row]) -> None:
    rows = [{**finite(row), "#position": place} for place, row in enumerate(rows)]
    by_s, by_v = 's DESC NULLS LAST, "#position"', 'v ASC NULLS FIRST, "#position"'
    asked = {
        f"array_agg(v ORDER BY {by_s}) FILTER (v IS NOT NULL)": ("collect_list", ("v",), (DOWN,)),
        f"string_agg(s, ', ' ORDER BY {by_v})": ("listagg", ("s",), (SortColumn("v"),), (", ",)),
        "string_agg(DISTINCT s, '-' ORDER BY s DESC)": ("listagg distinct", ("s",), (DOWN,), ("-",)),
        f"first(v ORDER BY {by_s})": ("first", ("v",), (DOWN,)),
        f"last(s ORDER BY {by_v})": ("last", ("s",), (SortColumn("v"),)),
        "quantile_cont(v::DOUBLE, 0.3)": ("percentile", ("v",), (), (0.3,)),
        "quantile_disc(v::DOUBLE, [0.5, 0.9])": ("percentile_disc list", ("v",), (), (0.5, 0.9)),
        "median(x)": ("median", ("x",), (), (0.5,)),
    }
    grouping = GroupByOperator(("k",), aggregates_of(list(asked.values())))
    found = Counter(freeze(row[:-1]) for row in tuples(grouping.step(MemoryStore(), {0: table(rows)}, {}).rows))
    given = table(rows).drop_columns(["g", "m"])
    with duckdb.connect(":memory:", config={"threads": 1}) as database:
        expected = (
            database.register("given", given).execute(f"SELECT k, {', '.join(asked)} FROM given GROUP BY k").fetchall()
        )
    # Spark's lists are empty where there is nothing to collect.
    expect_close(found, Counter(freeze((k, values or [], *others)) for k, values, *others in expected))


@settings(quick, max_examples=examples(20))
@given(st.lists(rows_of_values, min_size=1, max_size=30), st.lists(st.integers(0, 30), max_size=4))
def test_every_function_is_what_duckdb_says(rows: list[Row], cuts: list[int]) -> None:
    rows = [{**row, "x": None if row["x"] is None else math.remainder(row["x"], 1e3)} for row in map(finite, rows)]
    calls = {
        "count": "v", "sum": "v", "avg": "x", "min": "s", "max": "v", "bool_and": "b", "bool_or": "b", "bit_and": "v",
        "bit_or": "v", "bit_xor": "v", "stddev_samp": "x", "stddev_pop": "x", "var_samp": "v", "var_pop": "v",
    }  # fmt: skip
    grouping = GroupByOperator(("k",), tuple(Aggregate(name, (column,), name) for name, column in calls.items()))
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    store = MemoryStore()
    shown: Counter[Any] = Counter()
    for start, stop in pairwise(edges):
        for *row, weight in tuples(grouping.step(store, {0: table(rows[start:stop])}, {}).rows):
            shown[freeze(tuple(row))] += weight
    given = table(rows).drop_columns(["g", "m"])
    asked = ", ".join(f"{name}({column})" for name, column in calls.items())
    with duckdb.connect(":memory:", config={"threads": 1}) as database:
        expected = database.execute(f"SELECT k, {asked} FROM given GROUP BY k").fetchall()
    assert given.num_rows == len(rows)
    expect_close(+shown, Counter(map(freeze, expected)))


@pytest.mark.parametrize(
    ("values", "type_", "expected"),
    [
        (("1", "0", "0"), (10, 0), "0.3333"),
        (("2", "0", "0"), (10, 0), "0.6667"),
        (("-2", "0", "0"), (10, 0), "-0.6667"),
        # A half is rounded away from zero: 0.00625 / 2 = 0.003125 at four digits more than 2 is exact, /8 is not.
        (("0.01", *("0.00",) * 31), (10, 2), "0.000313"),
        (("-0.01", *("0.00",) * 31), (10, 2), "-0.000313"),
        (("0.03", *("0.00",) * 31), (10, 2), "0.000938"),
        # The scale cannot pass 38, nor the precision: decimal(38,36) gives decimal(38,38).
        (("0." + "0" * 35 + "1", "0." + "0" * 36), (38, 36), "0." + "0" * 36 + "50"),
        (("0." + "0" * 36 + "1", "0." + "0" * 37, "0." + "0" * 37), (38, 37), "0." + "0" * 37 + "3"),
        (("9" * 28, "9" * 28), (28, 0), "9" * 28 + ".0000"),
    ],
)
def test_an_average_of_decimals_is_rounded_half_up(
    values: tuple[str, ...], type_: tuple[int, int], expected: str
) -> None:
    assert one("avg", pa.array(list(map(Decimal, values)), pa.decimal128(*type_))) == Decimal(expected)


def test_an_average_of_intervals_is_rounded_half_up() -> None:
    micros = pa.array([-5, 0], pa.duration("us"))
    assert one("avg", micros) == timedelta(microseconds=-3)
    assert one("sum", micros) == timedelta(microseconds=-5)


@pytest.mark.parametrize("bits", [31, 63])
def test_sums_of_integers_are_exact_and_do_not_wrap_around(bits: int) -> None:
    most = 2**bits - 1
    kind = pa.int32() if bits == 31 else pa.int64()
    assert one("sum", pa.array([most, most, -most, -most - 1], kind)) == -1
    assert one("sum", pa.array([-(2**63), 0])) == -(2**63)
    with pytest.raises(ArithmeticError, match=r"sum\(v\) overflows: 9223372036854775808 .* does not fit BIGINT"):
        one("sum", pa.array([2**63 - 1, 1]))


def test_sums_of_decimals_overflow_their_type() -> None:
    nines = pa.array([Decimal("9" * 38)] * 2, pa.decimal128(38, 0))
    with pytest.raises(ArithmeticError, match=r"DECIMAL\(38,0\)"):
        one("sum", nines)
    with pytest.raises(ArithmeticError, match=r"DECIMAL\(38,0\)"):
        one("avg", nines)
    with pytest.raises(ArithmeticError, match=r"DECIMAL\(38,38\)"):
        one("avg", pa.array([Decimal(1)], pa.decimal128(38, 36)))
    assert one("sum", pa.array([Decimal("-9.99")] * 3, pa.decimal128(3, 2))) == Decimal("-29.97")


def test_an_overflow_over_batches_fails_the_batch_that_brings_it() -> None:
    grouping = GroupByOperator((), (Aggregate("sum", ("v",), "s"),))
    store = MemoryStore()
    grouping.step(store, {0: pa.table({"v": [2**63 - 1]})}, {})
    with pytest.raises(ArithmeticError):
        grouping.step(store.restart(), {0: pa.table({"v": [1]})}, {})
    last = grouping.step(store, {0: pa.table({"v": [-1]})}, {})
    assert tuples(last.rows) == [(2**63 - 1, -1), (2**63 - 2, 1)]


@settings(quick, max_examples=examples(30))
@given(
    st.lists(st.integers(1 - 10**38, 10**38 - 1), min_size=1, max_size=8),
    st.integers(1, 2**47 - 1),
    st.sampled_from((1, 10, 10_000)),
)
def test_limbs_compute_like_whole_numbers(numbers: list[int], by: int, scale: int) -> None:
    limbs = limbs_of(pa.array(list(map(Decimal, numbers)), pa.decimal128(38, 0)))
    assert decimals(limbs, pa.decimal128(38, 0)).to_pylist() == list(map(Decimal, numbers))
    assert as_integers(carry(limbs * 3)) == [3 * number for number in numbers]
    half_up = [((2 * abs(n) * scale + by) // (2 * by)) * (-1 if n < 0 else 1) for n in numbers]
    assert as_integers(divide(limbs, scale, np.full(len(numbers), by))) == half_up


def test_nan_is_the_greatest() -> None:
    values = pa.array([1.0, math.nan, -0.0])
    assert math.isnan(one("max", values))
    assert one("max_by", pa.array(["a", "b", "c"]), values) == "b"


@pytest.mark.parametrize("function", ["min", "max", "first", "last", "any_value", "min_by", "max_by"])
def test_a_stored_value_keeps_the_sign_of_zero(function: str) -> None:
    values = pa.array([-0.0])
    assert repr(one(function, values, *([values] if function.endswith("_by") else []))) == "-0.0"


def test_a_list_keeps_the_sign_of_zero_and_a_set_does_not() -> None:
    assert repr(one("collect_list", pa.array([-0.0, 0.0]))) == repr(one("array_agg", pa.array([-0.0, 0.0])))
    assert repr(one("collect_list", pa.array([-0.0, 0.0]))) == "[-0.0, 0.0]"
    assert repr(one("collect_list", pa.array([[-0.0], [0.0]]))) == "[[-0.0], [0.0]]"
    assert repr(one("collect_set", pa.array([-0.0, 0.0]))) == "[0.0]"
    assert repr(one("collect_list distinct", pa.array([-0.0]))) == "[0.0]"


@pytest.mark.parametrize(
    ("function", "taken", "left"),
    [("collect_list", -0.0, "[0.0]"), ("collect_list", 0.0, "[-0.0]"), ("min", -0.0, "0.0"), ("max", 0.0, "-0.0")],
)
def test_the_zero_that_is_taken_back_is_the_one_that_came(function: str, taken: float, left: str) -> None:
    grouping = GroupByOperator(("k",), (Aggregate(function, ("v",), "out"),), changes=True)
    store = MemoryStore()
    grouping.step(store, {0: pa.table({"k": [1, 1], "v": [-0.0, 0.0], "#weight": [1, 1]})}, {})
    last = grouping.step(store, {0: pa.table({"k": [1], "v": [taken], "#weight": [-1]})}, {})
    shown = {row[2]: repr(row[1]) for row in tuples(last.rows)}
    assert shown.get(1, left) == left


@pytest.mark.parametrize("function", ["min", "last"])
def test_another_zero_is_another_row(function: str) -> None:
    grouping, store = GroupByOperator(("k",), (Aggregate(function, ("v",), "out"),)), MemoryStore()
    grouping.step(store, {0: pa.table({"k": [1], "v": [0.0]})}, {})
    last = grouping.step(store, {0: pa.table({"k": [1], "v": [-0.0]})}, {})
    assert repr(tuples(last.rows)) == "[(1, 0.0, -1), (1, -0.0, 1)]"


def test_a_state_from_before_shows_zeros_as_it_did() -> None:
    grouping, store = GroupByOperator(("k",), (Aggregate("max", ("v",), "out"),)), MemoryStore()
    grouping.step(store, {0: pa.table({"k": [{"x": -0.0}], "v": [-0.0]})}, {})
    state = ShardState(store, grouping.canonical_names)
    numbers = {name: value for name, value in state.directory.numbers.items() if name != stored_groups.KEEPS_ZERO_SIGN}
    state.save(numbers=numbers)
    last = grouping.step(store, {0: pa.table({"k": [{"x": 0.0}], "v": [1.0]})}, {})
    assert [repr(row[1:]) for row in tuples(last.rows)] == ["(0.0, -1)", "(1.0, 1)"]
    again = grouping.step(store, {0: pa.table({"k": [{"x": -0.0}, {"x": -0.0}], "v": [2.0, -0.0]})}, {})
    assert [repr(row[1:]) for row in tuples(again.rows)] == ["(1.0, -1)", "(2.0, 1)"]


@pytest.mark.parametrize("function", ["collect_list", "array_agg", "collect_set", "collect_list distinct"])
def test_a_list_of_no_rows_is_empty(function: str) -> None:
    grouping = GroupByOperator((), (Aggregate(function, ("v",), "out"),), changes=True)
    reference, store = GroupReference(grouping), MemoryStore()
    for rows, shown in (([], [([], 1)]), ([(5, 1)], [([], -1), ([5], 1)]), ([(5, -1)], [([5], -1), ([], 1)])):
        table = pa.table({"v": [v for v, _ in rows], "#weight": [weight for _, weight in rows]})
        emission = grouping.step(store, {0: table} if rows else {}, {})
        step = reference.step({0: [{"v": v, "#weight": weight} for v, weight in rows]}, {})
        assert tuples(emission.rows) == step.rows == shown
    assert one(function, pa.array([None], pa.int32())) == []


def test_ties_take_the_last_to_arrive_and_what_is_null_is_passed_over() -> None:
    assert one("min_by", pa.array(["a", "b", "c"]), pa.array([1, 1, None])) == "b"
    assert one("max_by", pa.array(["a", None, "c"]), pa.array([1, 1, None])) is None
    assert one("first", pa.array([None, 1])) is None
    assert one("sum", pa.array([None], pa.int64())) is None
    assert one("stddev", pa.array([1.0])) is None
    assert one("var_pop", pa.array([1.0])) == 0.0
    assert math.isnan(one("stddev", pa.array([1.0, math.inf])))


def change_group(
    store: MemoryStore, grouping: GroupByOperator, values: Sequence[float], weights: Sequence[int]
) -> dict[str, Any]:
    """The row of the group of all after these changes."""
    emission = grouping.step(store, {0: pa.table({"v": pa.array(values, pa.float64()), "#weight": weights})}, {})
    return emission.rows[-1].to_pylist()[0]


DOUBLES = GroupByOperator(
    (), tuple(Aggregate(name, ("v",), name) for name in ("sum", "avg", "stddev_pop", "var_samp")), changes=True
)


def test_sums_of_doubles_forget_what_is_taken_back() -> None:
    store = MemoryStore()
    assert change_group(store, DOUBLES, [1e16, 0.1, 1e300, -0.0], [1, 1, 2, 1])["sum"] == 2e300
    assert change_group(store, DOUBLES, [1e300, 0.0], [-2, -1])["sum"] == 1e16
    store = store.restart()
    found = change_group(store, DOUBLES, [1e16], [-1])
    assert (found["sum"], found["avg"], found["stddev_pop"], found["var_samp"]) == (0.1, 0.1, 0.0, None)
    assert change_group(store, DOUBLES, [0.1], [-1]) == dict.fromkeys((*found,)) | {"#weight": 1}


@pytest.mark.parametrize(
    ("values", "total", "mean"),
    [
        ([1.7e308, 1.7e308, -1.7e308], 1.7e308, 1.7e308 / 3),
        ([1.7e308, 1.7e308], math.inf, 1.7e308),
        ([-1.7e308, -1.7e308], -math.inf, -1.7e308),
        ([5e-324, 5e-324, 0.0], 1e-323, 5e-324),
        ([5e-324, 0.0], 5e-324, 0.0),
        ([2.0**53, 1.0, 2.0**-1074], 2.0**53 + 2, (2**53 + 1) / 3),
        ([2.0**53, 1.0], 2.0**53, 2.0**52),
        ([0.1] * 10, 1.0, 0.1),
        ([-0.0, -0.0], 0.0, 0.0),
    ],
)
def test_sums_of_doubles_are_rounded_once(values: list[float], total: float, mean: float) -> None:
    for order in (values, values[::-1]):
        assert (one("sum", pa.array(order)), one("avg", pa.array(order))) == (total, mean)


def test_infinite_values_are_counted_and_can_be_taken_back() -> None:
    store = MemoryStore()
    assert change_group(store, DOUBLES, [math.inf, 1.5], [1, 2])["sum"] == math.inf
    assert math.isnan(change_group(store, DOUBLES, [-math.inf], [1])["sum"])
    assert change_group(store, DOUBLES, [math.inf], [-1])["sum"] == -math.inf
    assert math.isnan(change_group(store, DOUBLES, [math.nan], [1])["avg"])
    last = change_group(store, DOUBLES, [math.nan, -math.inf], [-1, -1])
    assert last == {"sum": 3.0, "avg": 1.5, "stddev_pop": 0.0, "var_samp": 0.0, "#weight": 1}


@pytest.mark.parametrize("value", [0.1, 1e-170, 5e-324, -1.7e308, 12345.678])
def test_equal_values_do_not_deviate(value: float) -> None:
    for function in ("stddev", "stddev_pop", "variance", "var_pop"):
        assert one(function, pa.array([value] * 7)) == 0.0


def test_a_deviation_is_finite_where_its_square_is_not() -> None:
    assert one("stddev_pop", pa.array([1e200, -1e200])) == 1e200
    assert one("var_pop", pa.array([1e200, -1e200])) == math.inf
    assert one("stddev_pop", pa.array([3e-200, -3e-200])) == 3e-200
    assert one("stddev_pop", pa.array([5e-324, -5e-324])) == 5e-324


@settings(quick, max_examples=examples(40))
@given(st.data())
def test_exact_sums_are_those_of_fractions(data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, 9))
    whole, squares = [Fraction(0)] * groups, [Fraction(0)] * groups
    first = second = pa.nulls(groups)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wide, "GROUPS_AT_ONCE", 4)
        patch.setattr(wide, "ROWS_AT_ONCE", 3)
        for _ in range(data.draw(st.integers(1, 4))):
            term = st.tuples(st.integers(0, groups - 1), WIDE, st.sampled_from((1, 1, -1, 0, 7, 2**24)))
            terms = sorted(data.draw(st.lists(term, max_size=12)), key=itemgetter(0))
            ids, weights = (np.array([term[n] for term in terms], np.int64) for n in (0, 2))
            values = np.array([term[1] for term in terms], np.float64)
            first = wide.add_doubles(first, ids, values, weights)
            second = wide.add_doubles(second, ids, values, weights, power=2)
            for group, value, weight in terms:
                whole[group] += Fraction(value) * weight
                squares[group] += Fraction(value) ** 2 * weight
        unit = Fraction(2) ** wide.UNIT
        assert [number * unit * 2 ** (32 * place) for place, number in wide.decode_numbers(first)] == whole
        assert [number * unit**2 * 2 ** (32 * place) for place, number in wide.decode_numbers(second)] == squares
        counts = data.draw(st.lists(st.integers(1, 2**47 - 1) | st.integers(1, 9), min_size=groups, max_size=groups))
        assert wide.round_to_double(first).tolist() == list(map(nearest, whole))
        expected = [nearest(part / count) for part, count in zip(whole, counts, strict=True)]
        assert wide.round_to_double(first, np.array(counts)).tolist() == expected


def nearest(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def test_groups_of_format_1_go_on_from_the_doubles_they_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    record = json.loads((Path(__file__).parents[2] / "checkpoints" / "groups-format-1.json").read_text())
    calls = ("sum", "avg", "stddev", "var_pop")
    names = (("key", "0.k"), ("value", "0.x"))
    grouping = GroupByOperator(("key",), tuple(Aggregate(f, ("value",), f) for f in calls), changes=True, names=names)
    old = MemoryStore({name: base64.b64decode(value) for name, value in record.items()})

    def step_groups(store: MemoryStore, rows: Sequence[tuple[str, float | None, int]]) -> dict[str, list[Any]]:
        schema = pa.schema({"key": pa.string(), "value": pa.float64(), "#weight": pa.int64()})
        arrivals = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
        found = tuples(grouping.step(store, {0: arrivals}, {}).rows)
        return {key: values for key, *values, weight in found if weight > 0}

    # Once that blocks of both formats are asked, and once that they are merged.
    for merge_at in (3, 1):
        monkeypatch.setattr(stored_groups, "BUDGET", Budget(block=3, merge_at=merge_at, smallest_tier=2, in_order=True))
        store = old.restart()
        first = step_groups(store, [("a", 1e10, -2), ("b", 1.5, 2), ("c", math.inf, -1), ("d", 1.0, 1), ("f", 3.0, -1)])
        # What a sum of doubles had lost is lost: 0.1 + 0.2 + 3e10, rounded, less 3e10.
        assert first["a"][:2] == [pytest.approx(0.3, abs=1e-5), pytest.approx(0.15, abs=1e-5)]
        assert first["a"][0] != 0.1 + 0.2
        assert first["b"] == [-12.0, -3.0, pytest.approx(27**0.5), 20.25]
        assert first["c"] == [2.0, 2.0, None, 0.0]
        assert first["d"][0] == math.inf
        assert first["f"] == [9.0, 4.5, pytest.approx(0.5**0.5), 0.25]
        later = step_groups(store.restart(), [("b", -7.5, -2), ("e", 0.1, 3), ("f", 5.0, -1)])
        assert later == {
            "b": [3.0, 1.5, 0.0, 0.0],
            "e": [0.30000000000000004, 0.1, 0.0, 0.0],
            "f": [4.0, 4.0, None, 0.0],
        }
        assert json.loads(store.get("directory") or b"")["format"] == FORMAT


def is_constant(name: str) -> bool:
    return function_of(name).has_constants


def test_the_group_of_all_is_there_from_the_first_batch_on() -> None:
    functions = {function.name: (("v",) if function.args == 1 else ("v", "v")) for function in FUNCTIONS}
    functions |= {
        "count_if": ("b",),
        "bool_and": ("b",),
        "bool_or": ("b",),
        "listagg": ("s",),
        "listagg distinct": ("s",),
    }
    constants = {name: ("",) if name.startswith("listagg") else (0.5,) for name in functions if is_constant(name)}
    grouping = GroupByOperator(
        (), tuple(Aggregate(name, columns, name, (), constants.get(name, ())) for name, columns in functions.items())
    )
    store = MemoryStore()
    nothing = {name: 0 if name.startswith("count") else [] if "collect" in name else None for name in functions}
    [first] = grouping.step(store, {}, {}).rows
    assert first.to_pylist() == [{**nothing, "#weight": 1}]
    again = grouping.step(store.restart(), {}, {})
    assert (again.rows, again.report.state) == ((), (1,))
    [changes] = grouping.step(store.restart(), {0: table([{"v": 3}])}, {}).rows
    old, new = changes.to_pylist()
    assert old == {**nothing, "#weight": -1}
    some = {"count": 1, "sum": 3, "first": 3, "max_by": 3, "collect_set": [3], "#weight": 1}
    assert {name: new[name] for name in some} == some


def test_a_group_without_rows_disappears_but_the_group_of_all_stays() -> None:
    for keys, last in ((("k",), []), ((), [(0, 1)])):
        grouping = GroupByOperator(keys, (Aggregate("count", (), "n"),), changes=True)
        store = MemoryStore()
        rows = [{"k": "a", "#weight": 2}]
        assert tuples(grouping.step(store, {0: table(rows)}, {}).rows)[-1][-2:] == (2, 1)
        gone = tuples(grouping.step(store, {0: table([{"k": "a", "#weight": -2}])}, {}).rows)
        assert [row[-2:] for row in gone] == [(2, -1), *last]
        assert grouping.step(store, {}, {}).report.state == ((0,) if keys else (1,))


def test_groups_of_windows_that_have_ended_leave_nothing_behind() -> None:
    grouping = GroupByOperator(("k", "end"), (Aggregate("count", (), "n"),), window_end="end", time="t")
    store = MemoryStore()
    for second in range(1, 30):
        rows = [{"k": k, "end": EPOCH + timedelta(seconds=second)} for k in "abcdefg"]
        late = [{"k": "a", "end": EPOCH + timedelta(seconds=second - 2)}]
        emission = grouping.step(store, {0: table([*rows, *late])}, {"t": (second - 1) * 1_000_000})
        assert (emission.report.late, emission.report.state) == ((int(second > 1),), (7,))
        runs = [name for name in store._values if name.startswith("run/")]
        assert len(runs) <= 12
    grouping.step(store, {}, {"t": END_OF_INPUT})
    assert not [name for name in store._values if name.startswith("run/")]


def test_too_many_groups_fail_the_batch() -> None:
    grouping = GroupByOperator(("k",), (), code=None).with_limit(2, "fail").for_shards(2)
    with pytest.raises(StateOverflowError):
        grouping.step(MemoryStore(), {0: table([{"k": "a"}, {"k": "b"}])}, {})


def test_runs_stay_few_however_many_batches_there_are() -> None:
    grouping = GroupByOperator(("v",), (Aggregate("sum", ("v",), "s"),), changes=True)
    store = MemoryStore()
    for number in range(60):
        rows = [{"v": number % 13, "#weight": 1}, {"v": (number + 6) % 13, "#weight": 1 if number < 7 else -1}]
        report = grouping.step(store, {0: table(rows)}, {}).report
        assert len([name for name in store._values if name.startswith("run/")]) <= 20
    assert report.state[0] <= 13


def test_equal_codes_of_different_keys_are_distinguished() -> None:
    grouping = GroupByOperator(("k",), (Aggregate("count", (), "n"),), code="#code")
    store = MemoryStore()
    found: list[Any] = []
    for _ in range(9):
        rows = pa.table({"k": ["a", "b", None, "a"], "#code": pa.array([1, 1, 1, 1])})
        found = tuples(grouping.step(store, {0: rows}, {}).rows)
    assert sorted(found[3:], key=str) == [("a", 18, 1), ("b", 9, 1), (None, 9, 1)]


@pytest.mark.parametrize("most", [2**63 - 1, -(2**63)])
def test_a_variance_forgets_what_is_taken_back(most: int) -> None:
    grouping = GroupByOperator((), (Aggregate("var_pop", ("v",), "var"),), changes=True)
    store = MemoryStore()
    grouping.step(store, {0: pa.table({"v": [1, 2, most, most], "#weight": [1, 1, 1, 3]})}, {})
    last = grouping.step(store, {0: pa.table({"v": [most], "#weight": [-4]})}, {})
    assert last.rows[-1].column("var").to_pylist() == [0.25]


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0), (-0.0, -0.0)])
def test_a_group_leaves_exactly_as_it_came(zeros: tuple[float, float]) -> None:
    grouping, store = GroupByOperator(("k",), (Aggregate("count", (), "n"),)), MemoryStore()
    first, second = (grouping.step(store, {0: pa.table({"k": [{"x": zero}]})}, {}) for zero in zeros)
    assert repr(tuples(first.rows)) == "[({'x': 0.0}, 1, 1)]"
    assert repr(tuples(second.rows)) == "[({'x': 0.0}, 1, -1), ({'x': 0.0}, 2, 1)]"


@pytest.mark.parametrize(
    ("function", "types", "expected"),
    [
        ("count", (), "BIGINT"), ("count", ("MAP<INT, INT>", "INT"), "BIGINT"), ("sum", ("tinyint",), "BIGINT"),
        ("sum", ("float",), "DOUBLE"), ("sum", ("decimal(30, 5)",), "DECIMAL(38,5)"),
        ("sum", ("INTERVAL DAY TO SECOND",), "INTERVAL DAY TO SECOND"), ("sum", ("INTERVAL YEAR",), None),
        ("avg", ("BIGINT",), "DOUBLE"), ("mean", ("DECIMAL(38,18)",), "DECIMAL(38,22)"),
        ("avg", ("DECIMAL",), "DECIMAL(14,4)"),
        ("avg", ("INTERVAL HOUR",), "INTERVAL DAY TO SECOND"), ("max", ("STRING",), "STRING"),
        ("max", ("STRING COLLATE UNICODE_CI",), None), ("min", ("ARRAY<INT>",), None), ("min", ("MAP<INT,INT>",), None),
        ("min_by", ("MAP<INT,INT>", "DATE"), "MAP<INT,INT>"), ("min_by", ("DATE", "MAP<INT,INT>"), None),
        ("min_by", ("DATE",), None), ("bit_or", ("SMALLINT",), "SMALLINT"), ("bit_or", ("DOUBLE",), None),
        ("every", ("BOOLEAN",), "BOOLEAN"), ("some", ("INT",), None), ("count_if", ("BOOLEAN",), "BIGINT"),
        ("std", ("DECIMAL(9,3)",), "DOUBLE"), ("variance", ("STRING",), None),
        ("last", ("STRUCT<a: INT>",), "STRUCT<a: INT>"),
        ("median", ("INT",), "DOUBLE"), ("mode", ("INT",), None),
        ("percentile list", ("DECIMAL(9,2)",), "ARRAY<DOUBLE>"),
        ("percentile", ("INTERVAL HOUR",), "INTERVAL DAY TO SECOND"), ("percentile", ("STRING",), None),
        ("listagg", ("STRING",), "STRING"), ("listagg", ("INT",), None), ("collect_list", ("INT",), "ARRAY<INT>"),
        ("count distinct", ("INT", "DATE"), "BIGINT"),
    ],
)  # fmt: skip
def test_result_types_are_those_of_spark(function: str, types: tuple[str, ...], expected: str | None) -> None:
    assert result_type(function, types) == expected


def test_every_function_is_called_in_these_tests() -> None:
    assert {canonical_name(name) for name, *_ in CALLS} | {"stddev_samp", "var_samp"} == {
        function.name for function in FUNCTIONS
    }


def test_other_functions_than_aggregates_are_refused() -> None:
    with pytest.raises(ValueError, match="mode"):
        Aggregate("mode", ("v",), "m")


def test_members_that_are_gone_leave_nothing_in_the_state() -> None:
    grouping = GroupByOperator(
        ("k",), (Aggregate("max", ("v",), "m"), Aggregate("count distinct", ("v",), "n")), changes=True
    )
    store = MemoryStore()
    for batch in range(40):
        rows = [{"k": "ab"[n % 2], "v": batch + n, "#weight": weight} for n in range(10) for weight in (1, -1)]
        kept = {"k": "a", "v": batch % 3, "#weight": 1 if batch % 2 == 0 else -1}
        last = grouping.step(store, {0: table([*rows, {**kept, "v": batch // 2 % 3}])}, {})
    assert tuples(last.rows) == [("a", 1, 1, -1)]
    assert sum(block.rows for run in ShardState(store).directory.runs.get("members", ()) for block in run) <= 8


def test_more_members_than_the_limit_fail_the_batch() -> None:
    grouping = GroupByOperator(("k",), (Aggregate("max", ("v",), "m"),), changes=True, max_rows=3)
    store = MemoryStore()
    rows = [{"k": "a", "v": n % 3, "#weight": 1} for n in range(9)]
    assert tuples(grouping.step(store, {0: table(rows)}, {}).rows) == [("a", 2, 1)]
    with pytest.raises(StateOverflowError):
        grouping.step(store, {0: table([{"k": "a", "v": 7, "#weight": 1}])}, {})


@settings(quick, max_examples=examples(20))
@given(st.lists(rows_of_values, min_size=1, max_size=30), st.data())
def test_over_rows_that_are_taken_back_duckdb_says_the_same(rows: list[Row], data: st.DataObject) -> None:
    rows = [{**row, "x": None if row["x"] is None else math.remainder(row["x"], 1e3)} for row in map(finite, rows)]
    calls = {
        "min(s)": ("min", "s"), "max(v)": ("max", "v"), "bool_and(b)": ("bool_and", "b"), "bit_or(v)": ("bit_or", "v"),
        "bit_xor(v)": ("bit_xor", "v"), "count(DISTINCT v)": ("count distinct", "v"), "max(x)": ("max", "x"),
        "count(DISTINCT s)": ("count distinct", "s"),
        "list_sort(list(v) FILTER (v IS NOT NULL))": ("collect_list", "v"),
        "list_sort(list(DISTINCT t) FILTER (t IS NOT NULL))": ("collect_set", "t"),
    }  # fmt: skip
    aggregates = tuple(Aggregate(name, (column,), str(n)) for n, (name, column) in enumerate(calls.values()))
    grouping = GroupByOperator(("k",), aggregates, changes=True)
    gone = [row for row in rows if data.draw(st.booleans())]
    changes = [*({**row, "#weight": 1} for row in rows), *({**row, "#weight": -1} for row in gone)]
    store = MemoryStore()
    shown: Counter[Any] = Counter()
    while changes:
        size = data.draw(st.integers(1, 12))
        for *row, weight in tuples(grouping.step(store, {0: table(changes[:size])}, {}).rows):
            row[9] = sorted(row[9])
            shown[freeze(tuple(row))] += weight
        changes = changes[size:]
    given = table([row for row in rows if not any(row is other for other in gone)]).drop_columns(["g", "m"])
    with duckdb.connect(":memory:", config={"threads": 1}) as database:
        found = database.execute(f"SELECT k, {', '.join(calls)} FROM given GROUP BY k").fetchall()
    assert given.num_rows == len(rows) - len(gone)
    # Of no values DuckDB makes no list.
    plain = [(*row[:9], *(part or [] for part in row[9:])) for row in found]
    expect_close(+shown, Counter(map(freeze, plain)))


def test_a_row_that_goes_and_comes_again_is_the_last_however_batches_are_cut() -> None:
    grouping = GroupByOperator(
        (), (Aggregate("last", ("s",), "l"), Aggregate("collect_list", ("s",), "c")), changes=True
    )
    again = [{"s": "a", "#weight": -1}, {"s": "a", "#weight": 1}]
    for batches in ([again], [again[:1], again[1:]]):
        store = MemoryStore()
        for rows in ([{"s": "a", "#weight": 1}, {"s": "b", "#weight": 1}], *batches):
            emission = grouping.step(store, {0: table(rows)}, {})
        assert tuples(emission.rows)[-1] == ("a", ["b", "a"], 1)
