"""Points of the definition that no other test pins down one by one."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.operators.core import condition as vectorised
from watersmeet.operators.core.condition import Apply, ColumnRef, Condition, Constant
from watersmeet.operators.core.operator import END_OF_INPUT, Port
from watersmeet.operators.core.rowwise import compare, evaluate, event_time
from watersmeet.operators.core.watermarks import Bound
from watersmeet.operators.interval.definition import IntervalReference
from watersmeet.operators.interval.kernel import IntervalJoinOperator

NAN = float("nan")


def orders() -> IntervalJoinOperator:
    """The worked example of keyed watermarks: r.r >= l.d - 1 and l.d >= r.r - 4; no bound on l.o."""
    bounds = (Bound("r", "d", 1), Bound("d", "r", 4))
    return IntervalJoinOperator(
        "inner", Port(("o", "d"), ("o", "d"), compared="d"), Port(("r",), ("r",)), -1, 4, bounds
    )


def test_a_column_without_a_bound_follows_the_earliest_row_in_the_state() -> None:
    join = IntervalReference(orders())
    join.step({0: [{"o": 102, "d": 101}]}, {})
    join.step({0: [{"o": 102, "d": 103}]}, {})
    assert join.step({}, {"o": 103}).watermarks == {"o": 102}
    assert join.step({1: [{"r": 100}]}, {}).rows == [(102, 101, 100)]
    assert join.step({}, {"d": 102}).watermarks == {"o": 102}
    last = join.step({}, {"r": 110})
    assert last.watermarks == {"o": 103, "d": 102, "r": 101}
    # r = 100 is below its limit, 102 - 1; both left rows are below theirs, 110 - 4.
    assert last.state == (0, 0)


def test_a_row_late_by_any_of_its_times_is_late() -> None:
    join = IntervalReference(orders())
    join.step({}, {"o": 10})
    step = join.step({0: [{"o": 9, "d": 50}, {"o": None, "d": 50}, {"o": 10, "d": 50}]}, {})
    assert [row for _, row in step.late] == [{"o": 9, "d": 50}]
    assert step.state == (2, 0)


def test_the_largest_of_several_limits_counts() -> None:
    sides = (Port(("l",), ("l",)), Port(("r", "s"), ("r", "s")))
    join = IntervalReference(IntervalJoinOperator("left", *sides, -9, 9, (Bound("l", "r", 9), Bound("l", "s", 2))))
    join.step({0: [{"l": 5}]}, {"r": 10})
    assert join.limit("l") == 1
    assert join.step({}, {"s": 8}).rows == [(5, None, None)]
    assert join.limit("l") == 6


def test_a_negative_constant_lifts_the_limit_above_the_mark() -> None:
    join = IntervalReference(
        IntervalJoinOperator("inner", Port(("l",), ("l",)), Port(("r",), ("r",)), 0, 0, (Bound("l", "r", -10),))
    )
    join.step({}, {"r": 5})
    assert join.limit("l") == 15


def test_marks_never_fall_and_the_end_saturates() -> None:
    join = IntervalReference(orders())
    join.step({}, {"r": 7})
    join.step({}, {"r": 3})
    assert join.limit("d") == 3
    step = join.step({}, {"r": END_OF_INPUT, "d": END_OF_INPUT, "o": END_OF_INPUT})
    assert join.limit("d") == END_OF_INPUT
    assert step.watermarks == dict.fromkeys(("o", "d", "r"), END_OF_INPUT)


def test_event_times_count_in_microseconds() -> None:
    assert event_time(datetime(1970, 1, 1, 1, tzinfo=UTC)) == 3_600_000_000
    assert event_time(datetime(1969, 12, 31, 23, 59, 59, 999_999)) == -1
    assert event_time(date(1970, 1, 2)) == 86_400_000_000
    assert event_time(None) is None
    assert event_time(12) == 12


@pytest.mark.parametrize(
    ("one", "other", "order"),
    [(NAN, NAN, 0), (NAN, float("inf"), 1), (1, NAN, -1), (-0.0, 0.0, 0), (Decimal("1.50"), Decimal("1.5"), 0),
     (Decimal("0.1"), 0.1, 0), ("a", "b", -1), (b"\x01", b"\x00", 1), ([1, None], [1, 0], -1), ([1], [1, 2], -1),
     ({"a": 1, "b": NAN}, {"a": 1, "b": NAN}, 0), (date(2024, 1, 1), datetime(2024, 1, 1), 0), (None, None, None)],
)  # fmt: skip
def test_values_compare_as_in_spark(one: Any, other: Any, order: int | None) -> None:
    found = compare(one, other)
    assert found == order if order in (0, None) else found is not None and found * order > 0


def apply(operator: Any, *values: Any) -> Any:
    return evaluate(Apply(operator, tuple(Constant(value) for value in values)), {})


def test_arithmetic_is_that_of_ansi_spark() -> None:
    assert apply("/", 7, 2) == 3.5
    assert apply("%", -7, 3) == -1
    assert apply("%", 7, -3) == 1
    assert apply("%", -7.5, 2.0) == -1.5
    assert apply("+", Decimal("9" * 30), Decimal("0.1")) == Decimal("9" * 30 + ".1")
    assert apply("+", timedelta(seconds=1), 1) == 1_000_001
    assert apply("/", None, 0) is None
    for operator, one, other in (("/", 1, 0), ("%", 1, 0), ("/", 1.0, 0.0), ("+", 2**63 - 1, 1), ("*", 2**62, 2)):
        with pytest.raises(ArithmeticError):
            apply(operator, one, other)


NUMBERS = st.sampled_from(("a", "b", "x", "y")).map(ColumnRef) | st.sampled_from((0, 2, -1.5)).map(Constant)
SUMS = st.builds(lambda o, p, q: Apply(o, (p, q)), st.sampled_from(("+", "-", "*")), NUMBERS, NUMBERS)
OPERANDS = NUMBERS | SUMS | st.builds(lambda p: Apply("negate", (p,)), NUMBERS)
COMPARISONS = st.builds(
    lambda o, p, q: Apply(o, (p, q)),
    st.sampled_from(("=", "<=>", "<>", "<", "<=", ">", ">=")),
    OPERANDS | st.just(Constant(None)),
    OPERANDS | st.just(Constant(None)),
)
CONDITIONS = st.recursive(
    COMPARISONS | st.builds(lambda p: Apply("is_null", (p,)), OPERANDS) | st.sampled_from((True, None)).map(Constant),
    lambda inner: (
        st.builds(lambda o, p, q: Apply(o, (p, q)), st.sampled_from(("and", "or")), inner, inner)
        | st.builds(lambda p: Apply("not", (p,)), inner)
    ),
    max_leaves=4,
)
ROWS = st.fixed_dictionaries(
    {
        "a": st.sampled_from((0, 1, 2, -3, None)),
        "b": st.sampled_from((0, 1, 2, -3, None)),
        "x": st.sampled_from((0.0, -0.0, 1.0, -1.5, NAN, float("inf"), None)),
        "y": st.sampled_from((0.0, -0.0, 1.0, -1.5, NAN, float("inf"), None)),
    }
)
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("x", pa.float64()), ("y", pa.float64())])


@settings(derandomize=True, max_examples=examples(400), deadline=None, database=None)
@given(CONDITIONS, st.lists(ROWS, min_size=1, max_size=8))
def test_both_evaluators_agree(condition: Condition, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    found = vectorised.evaluate(condition, lambda name: table.column(name).combine_chunks(), len(rows)).to_pylist()
    assert found == [evaluate(condition, row) for row in rows]
