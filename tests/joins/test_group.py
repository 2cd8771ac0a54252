"""GROUP BY: values by hand as Spark has them, the kernel beside its definition, and DuckDB."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.joins.core.operator import END_OF_INPUT, Emission, StateOverflowError
from watersmeet.joins.core.rowwise import freeze
from watersmeet.joins.group import groups as stored_groups
from watersmeet.joins.group.aggregates import FUNCTIONS, canonical, function_of, result_type
from watersmeet.joins.group.definition import GroupReference, GroupStep
from watersmeet.joins.group.limbs import as_integers, carried, decimals, divided, limbs_of
from watersmeet.joins.group.operator import Aggregate, GroupBy
from watersmeet.joins.state.budget import Budget
from watersmeet.testing.store import MemoryStore

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
    grouping = GroupBy((), (Aggregate(function, names, "out"),))
    emission = grouping.step(MemoryStore(), {0: pa.table(dict(zip(names, (values, *others), strict=True)))}, {})
    return emission.rows[-1].column("out")[0].as_py()


def expect_same(grouping: GroupBy, emission: Emission, step: GroupStep, rows: Sequence[Row]) -> None:
    for each in emission.rows:
        assert each.column_names == [*grouping.keys, *grouping.extra]
        assert each.schema.types[len(grouping.keys) :] == list(grouping.extra_types([SCHEMA]))
        assert each.num_rows
    if not any(function_of(part.function).fold == "moments" for part in grouping.aggregates):
        assert spelled(tuples(emission.rows)) == spelled(step.rows)
    report = emission.report
    assert (report.rows, report.late, report.state) == ((len(rows),), (len(step.late),), step.state)


def spelled(rows: Sequence[Any]) -> Counter[str]:
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
)  # fmt: skip


@st.composite
def groupings(draw: st.DrawFn, *, changes: bool) -> GroupBy:
    calls = [call for call in CALLS if not changes or function_of(call[0]).retractable]
    chosen = draw(st.lists(st.sampled_from(calls), max_size=5))
    aggregates = tuple(Aggregate(function, columns, f"a{i}") for i, (function, columns) in enumerate(chosen))
    keys = draw(st.sampled_from(KEYS))
    windowed = draw(st.booleans())
    return GroupBy(
        (*keys, "end") if windowed else keys,
        aggregates,
        changes=changes,
        position=draw(st.sampled_from((None, "#position"))),
        window_end="end" if windowed else None,
        time="t" if windowed else None,
    )


rows_of_values = st.fixed_dictionaries(
    {
        "k": st.sampled_from(("a", "b", "c", None)),
        "f": st.sampled_from((0.0, -0.0, math.nan, 1.5, None)),
        "g": st.sampled_from((None, {"a": 1, "b": ["x", None]}, {"a": 1, "b": None}, {"a": None, "b": []})),
        "v": st.sampled_from((None, 0, 1, -2, 3, 7)),
        "n": st.sampled_from((None, Decimal("0.01"), Decimal("-1.00"), Decimal("99999999.99"), Decimal("0.33"))),
        "x": st.sampled_from((None, 0.5, -0.0, 0.0, 2.25, -7.5, math.nan, math.inf, -math.inf)),
        "b": st.sampled_from((True, False, None)),
        "t": st.sampled_from((None, EPOCH, EPOCH + timedelta(seconds=1), EPOCH - timedelta(days=3))),
        "s": st.sampled_from(("", "ab", "é", "z", None)),
        "i": st.sampled_from((None, timedelta(0), timedelta(microseconds=-5), timedelta(days=2))),
        "m": st.sampled_from((None, [], [0.0], [-0.0], [math.nan, None])),
        "end": st.sampled_from([EPOCH + timedelta(seconds=s) for s in (1, 2, 3)]),
    }
)


@st.composite
def histories(draw: st.DrawFn, grouping: GroupBy) -> list[tuple[list[Row], Mapping[str, int], bool]]:
    """Batches of rows or changes, in which only what is there is taken away; the mark, and whether all starts anew."""
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
        store = store.restarted() if restarted else store
        emission = grouping.step(store, {0: table(rows)} if rows else {}, marks)
        step = reference.step({0: table(rows).to_pylist()}, marks)
        expect_same(grouping, emission, step, rows)
        for found, counter in ((tuples(emission.rows), shown), (step.rows, expected)):
            for *row, weight in found:
                counter[freeze(tuple(row))] += weight
        shown, expected = +shown, +expected
        assert all(number == 1 for number in shown.values())
    expect_close(shown, expected)


@settings(quick, max_examples=examples(20))
@given(st.lists(rows_of_values, min_size=1, max_size=30), st.lists(st.integers(0, 30), max_size=4))
def test_every_function_is_what_duckdb_says(rows: list[Row], cuts: list[int]) -> None:
    rows = [{**row, "x": row["x"] if row["x"] is None or math.isfinite(row["x"]) else 1.25} for row in rows]
    calls = {
        "count": "v", "sum": "v", "avg": "x", "min": "s", "max": "v", "bool_and": "b", "bool_or": "b", "bit_and": "v",
        "bit_or": "v", "bit_xor": "v", "stddev_samp": "x", "stddev_pop": "x", "var_samp": "v", "var_pop": "v",
    }  # fmt: skip
    grouping = GroupBy(("k",), tuple(Aggregate(name, (column,), name) for name, column in calls.items()))
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
    grouping = GroupBy((), (Aggregate("sum", ("v",), "s"),))
    store = MemoryStore()
    grouping.step(store, {0: pa.table({"v": [2**63 - 1]})}, {})
    with pytest.raises(ArithmeticError):
        grouping.step(store.restarted(), {0: pa.table({"v": [1]})}, {})
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
    assert as_integers(carried(limbs * 3)) == [3 * number for number in numbers]
    half_up = [((2 * abs(n) * scale + by) // (2 * by)) * (-1 if n < 0 else 1) for n in numbers]
    assert as_integers(divided(limbs, scale, np.full(len(numbers), by))) == half_up


def test_nan_is_the_greatest_and_zero_has_no_sign() -> None:
    values = pa.array([1.0, math.nan, -0.0])
    assert math.isnan(one("max", values))
    assert math.copysign(1, one("min", values)) == 1
    assert one("max_by", pa.array(["a", "b", "c"]), values) == "b"


def test_ties_take_the_last_to_arrive_and_what_is_null_is_passed_over() -> None:
    assert one("min_by", pa.array(["a", "b", "c"]), pa.array([1, 1, None])) == "b"
    assert one("max_by", pa.array(["a", None, "c"]), pa.array([1, 1, None])) is None
    assert one("first", pa.array([None, 1])) is None
    assert one("sum", pa.array([None], pa.int64())) is None
    assert one("stddev", pa.array([1.0])) is None
    assert one("var_pop", pa.array([1.0])) == 0.0
    assert math.isnan(one("stddev", pa.array([1.0, math.inf])))


def test_a_group_without_rows_disappears_but_the_group_of_all_stays() -> None:
    for keys, last in ((("k",), []), ((), [(0, 1)])):
        grouping = GroupBy(keys, (Aggregate("count", (), "n"),), changes=True)
        store = MemoryStore()
        rows = [{"k": "a", "#weight": 2}]
        assert tuples(grouping.step(store, {0: table(rows)}, {}).rows)[-1][-2:] == (2, 1)
        gone = tuples(grouping.step(store, {0: table([{"k": "a", "#weight": -2}])}, {}).rows)
        assert [row[-2:] for row in gone] == [(2, -1), *last]
        assert grouping.step(store, {}, {}).report.state == ((0,) if keys else (1,))


def test_groups_of_windows_that_have_ended_leave_nothing_behind() -> None:
    grouping = GroupBy(("k", "end"), (Aggregate("count", (), "n"),), window_end="end", time="t")
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
    grouping = GroupBy(("k",), (), code=None).limited(2, "fail").for_shards(2)
    with pytest.raises(StateOverflowError):
        grouping.step(MemoryStore(), {0: table([{"k": "a"}, {"k": "b"}])}, {})


def test_runs_stay_few_however_many_batches_there_are() -> None:
    grouping = GroupBy(("v",), (Aggregate("sum", ("v",), "s"),), changes=True)
    store = MemoryStore()
    for number in range(60):
        rows = [{"v": number % 13, "#weight": 1}, {"v": (number + 6) % 13, "#weight": 1 if number < 7 else -1}]
        report = grouping.step(store, {0: table(rows)}, {}).report
        assert len([name for name in store._values if name.startswith("run/")]) <= 20
    assert report.state[0] <= 13


def test_equal_codes_of_different_keys_are_told_apart() -> None:
    grouping = GroupBy(("k",), (Aggregate("count", (), "n"),), code="#code")
    store = MemoryStore()
    found: list[Any] = []
    for _ in range(9):
        rows = pa.table({"k": ["a", "b", None, "a"], "#code": pa.array([1, 1, 1, 1])})
        found = tuples(grouping.step(store, {0: rows}, {}).rows)
    assert sorted(found[3:], key=str) == [("a", 18, 1), ("b", 9, 1), (None, 9, 1)]


@pytest.mark.parametrize("most", [2**63 - 1, -(2**63)])
def test_a_variance_forgets_what_is_taken_back(most: int) -> None:
    grouping = GroupBy((), (Aggregate("var_pop", ("v",), "var"),), changes=True)
    store = MemoryStore()
    grouping.step(store, {0: pa.table({"v": [1, 2, most, most], "#weight": [1, 1, 1, 3]})}, {})
    last = grouping.step(store, {0: pa.table({"v": [most], "#weight": [-4]})}, {})
    assert last.rows[-1].column("var").to_pylist() == [0.25]


def test_a_group_leaves_exactly_as_it_came() -> None:
    grouping, store = GroupBy(("k",), (Aggregate("count", (), "n"),)), MemoryStore()
    first, second = (grouping.step(store, {0: pa.table({"k": [{"x": zero}]})}, {}) for zero in (0.0, -0.0))
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
        ("collect_list", ("INT",), None),
    ],
)  # fmt: skip
def test_result_types_are_those_of_spark(function: str, types: tuple[str, ...], expected: str | None) -> None:
    assert result_type(function, types) == expected


def test_every_function_is_called_in_these_tests() -> None:
    assert {canonical(name) for name, _ in CALLS} | {"stddev_samp", "var_samp"} == {
        function.name for function in FUNCTIONS
    }


def test_what_cannot_be_taken_back_is_refused() -> None:
    with pytest.raises(ValueError, match="max"):
        GroupBy((), (Aggregate("max", ("v",), "m"),), changes=True)
    with pytest.raises(ValueError, match="collect_list"):
        Aggregate("collect_list", ("v",), "m")
