"""Conditions across the sides, with three-valued logic, over whole Arrow arrays; and steps over whole columns.

A condition is a small tree of columns, constants and operators. `evaluate` gives one value per row: true, false or null
(unknown). A pair of rows meets only where the condition is true. Comparisons follow Spark: NaN equals NaN and is
greater than every number, -0.0 equals 0.0.

Steps are what workers do to rows on their way to an exchange. `watersmeet.physical.columnar` plans them, and
`watersmeet.spark.exchange.columns` applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import reduce
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.operators.core.matching import Ints

Operator = Literal[
    "and", "or", "not", "is_null",
    "=", "<=>", "<>", "<", "<=", ">", ">=",
    "+", "-", "*", "/", "%", "negate",
]  # fmt: skip


@dataclass(frozen=True)
class ColumnRef:
    """A column of either side, by its name in the exchange."""

    name: str


@dataclass(frozen=True)
class Constant:
    """A literal; an interval is a timedelta."""

    value: int | float | Decimal | str | bool | timedelta | None


@dataclass(frozen=True)
class Apply:
    """An operator and what it is applied to."""

    operator: Operator
    args: tuple[Condition, ...]


Condition = ColumnRef | Constant | Apply


Columns = Callable[[str], pa.Array]
"""A function that finds the values of a column for a condition."""


def evaluate(condition: Condition, columns: Columns, rows: int) -> pa.Array:
    """The value of the condition for each of ``rows`` rows.

    >>> table = pa.table({"a": [1, 2, None], "b": [2, 2, 2]})
    >>> evaluate(Apply("<", (ColumnRef("a"), ColumnRef("b"))), lambda n: table[n].combine_chunks(), 3).to_pylist()
    [True, False, None]
    """
    match condition:
        case ColumnRef(name):
            return columns(name)
        case Constant(value):
            return pa.repeat(pa.scalar(value), rows)
        case Apply("and" | "or" as operator, (first, *rest)):
            value = evaluate(first, columns, rows)
            for part in rest:
                if _can_fail(part):
                    value = _evaluate_guarded(operator, value, part, columns, rows)
                else:
                    value = _apply(operator, [value, evaluate(part, columns, rows)])
            return value
        case Apply(operator, (first, Constant(value))) if operator in _PLAIN and isinstance(value, int | str):
            return _compare_constant(operator, evaluate(first, columns, rows), value)
        case Apply(operator, (left, right)) if operator in _COMPARISONS and (is_shifted(left) or is_shifted(right)):
            return _compare_shifted(operator, (left, right), columns, rows)
        case Apply(operator, args):
            values = [evaluate(arg, columns, rows) for arg in args]
            return _apply(operator, values)


def holds(condition: Condition, columns: Columns, rows: int) -> npt.NDArray[np.bool_]:
    """A mask of the places where the condition is true; unknown is not true."""
    value = evaluate(condition, columns, rows)
    if pa.types.is_null(value.type):
        return np.zeros(rows, np.bool_)
    return pc.fill_null(value, False).to_numpy(zero_copy_only=False)


def is_supported(condition: Condition, schema: pa.Schema) -> bool:
    """Whether the condition can be evaluated over columns of these types and gives a truth value."""
    empty = schema.empty_table()
    try:
        value = evaluate(condition, lambda name: empty.column(name).combine_chunks(), 0)
    except (pa.ArrowException, KeyError, TypeError):
        return False
    return pa.types.is_boolean(value.type) or pa.types.is_null(value.type)


def columns_of(condition: Condition) -> frozenset[str]:
    """The columns a condition reads."""
    match condition:
        case ColumnRef(name):
            return frozenset({name})
        case Constant():
            return frozenset()
        case Apply(_, args):
            return frozenset[str]().union(*(columns_of(arg) for arg in args))


def _can_fail(condition: Condition) -> bool:
    match condition:
        case Apply(operator, args):
            return operator in {"+", "-", "*", "/", "%", "negate"} or any(_can_fail(arg) for arg in args)
        case _:
            return False


def _evaluate_guarded(
    operator: Literal["and", "or"], before: pa.Array, part: Condition, columns: Columns, rows: int
) -> pa.Array:
    """AND or OR that asks a part only where those before it do not decide: they may guard a division by zero."""
    decisive = operator == "or"
    left = _truth(before)
    open_ = pc.fill_null(pc.not_equal(left, decisive), True)
    positions = pa.array(np.flatnonzero(open_.to_numpy(zero_copy_only=False)))
    evaluated = _truth(evaluate(part, lambda name: columns(name).take(positions), len(positions)))
    right = pc.replace_with_mask(pa.repeat(pa.scalar(decisive), rows), open_, evaluated)
    return _apply(operator, [left, right])


def _apply(operator: Operator, values: list[pa.Array]) -> pa.Array:
    match operator:
        case "and" | "or":
            return reduce(pc.and_kleene if operator == "and" else pc.or_kleene, map(_truth, values))
        case "not":
            return pc.invert(_truth(values[0]))
        case "is_null":
            return pc.is_null(values[0])
        case "+" | "-" | "*" | "negate":
            return _ARITHMETIC[operator](*_as_doubles(values))
        case "/" | "%":
            return _divide(operator, values[0], values[1])
        case _:
            return compare(operator, values[0], values[1])


_ARITHMETIC: dict[str, Callable[..., pa.Array]] = {
    "+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked, "negate": pc.negate_checked,
}  # fmt: skip


_PLAIN: dict[str, Callable[..., pa.Array]] = {
    "=": pc.equal, "<>": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip


_COMPARISONS = frozenset({*_PLAIN, "<=>"})


def _compare_constant(operator: Operator, values: pa.Array, constant: int | str) -> pa.Array:
    """A comparison with a constant, which need not become a column where Arrow compares as Spark does."""
    kind = values.type
    if pa.types.is_string(kind) if isinstance(constant, str) else pa.types.is_signed_integer(kind):
        return _PLAIN[operator](values, pa.scalar(constant))
    return compare(operator, values, pa.repeat(pa.scalar(constant), len(values)))


def is_shifted(condition: Condition) -> bool:
    """Whether it is a column plus or less a constant, as time bounds are: where it is compared it never overflows."""
    match condition:
        case Apply("+" | "-", (ColumnRef(), Constant(value))):
            return isinstance(value, int | timedelta) and not isinstance(value, bool)
        case _:
            return False


def _compare_shifted(operator: Operator, args: Sequence[Condition], columns: Columns, rows: int) -> pa.Array:
    """A comparison with a column plus or less a constant, by whole numbers of any size."""
    try:
        return _apply(operator, [evaluate(arg, columns, rows) for arg in args])
    except pa.ArrowInvalid:
        # Hardly any row is so near to the ends of 64 bits.
        return _apply(operator, [_widen(arg, columns, rows) for arg in args])


def _widen(condition: Condition, columns: Columns, rows: int) -> pa.Array:
    match condition:
        case Apply(operator, (column, Constant(value))) if is_shifted(condition):
            constant = value // timedelta(microseconds=1) if isinstance(value, timedelta) else cast("int", value)
            shift = pa.scalar(Decimal(constant if operator == "+" else -constant), pa.decimal128(20, 0))
            return pc.add(_widen(column, columns, rows), shift)
        case _:
            values = evaluate(condition, columns, rows)
            if pa.types.is_timestamp(values.type) or pa.types.is_duration(values.type):
                values = values.view(pa.int64())
            return values.cast(pa.decimal128(19, 0))


def _truth(value: pa.Array) -> pa.Array:
    return value.cast(pa.bool_()) if pa.types.is_null(value.type) else value


def _as_doubles(values: list[pa.Array]) -> list[pa.Array]:
    """Numbers of two types of which one is a float, all as doubles, as Spark casts them: a BIGINT may lose digits."""
    kinds = {value.type for value in values}
    if len(kinds) == 1 or not any(map(pa.types.is_floating, kinds)):
        return values
    return [value if pa.types.is_null(value.type) else value.cast(pa.float64(), safe=False) for value in values]


def _divide(operator: str, dividend: pa.Array, divisor: pa.Array) -> pa.Array:
    zero = pc.fill_null(pc.equal(divisor, pa.scalar(0).cast(divisor.type)), False)
    if pc.any(pc.and_(zero, pc.is_valid(dividend))).as_py():
        raise ZeroDivisionError("division by zero in a join condition")
    dividend, divisor = _as_doubles([dividend, divisor])
    if operator == "/":
        if pa.types.is_decimal(dividend.type) or pa.types.is_decimal(divisor.type):
            raise pa.ArrowNotImplementedError("Arrow rounds the quotient of decimals otherwise than Spark")
        if pa.types.is_integer(dividend.type) and pa.types.is_integer(divisor.type):
            dividend, divisor = dividend.cast(pa.float64(), safe=False), divisor.cast(pa.float64(), safe=False)
        return pc.divide(dividend, divisor)
    if not (pa.types.is_integer(dividend.type) and pa.types.is_integer(divisor.type)):
        raise pa.ArrowNotImplementedError("% is evaluated for integers only")
    # Arrow truncates integer division towards zero, as Spark does, so the remainder takes the dividend's sign.
    return pc.subtract(dividend, pc.multiply(pc.divide(dividend, divisor), divisor))


def compare(operator: Operator, left: pa.Array, right: pa.Array) -> pa.Array:
    """A comparison as Spark makes it, also of nested values where only equality is asked."""
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        if operator == "<=>":
            return pc.and_(pc.is_null(left), pc.is_null(right))
        return pa.nulls(len(left), pa.bool_())
    if operator in {"=", "<>", "<=>"}:
        if operator == "<=>":
            return pa.array(null_safe_equal(left, right))
        equal = pc.if_else(pc.and_(pc.is_valid(left), pc.is_valid(right)), pa.array(null_safe_equal(left, right)), None)
        return equal if operator == "=" else pc.invert(equal)
    left, right = _as_doubles([left, right])
    if operator in {">", ">="}:
        return compare("<" if operator == ">" else "<=", right, left)
    less = pc.less(left, right) if operator == "<" else pc.less_equal(left, right)
    if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        # NaN is greater than every number and equal to itself.
        first, second = _is_nan(left), _is_nan(right)
        above = second if operator == "<=" else pc.and_(second, pc.invert(first))
        return pc.or_(less, above)
    return less


def null_safe_equal(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    """A mask of the places where two arrays are the same; NULL is the same as NULL and NaN as NaN, at every depth."""
    kind = left.type
    if pa.types.is_nested(kind):
        return _equal_nested(left, right)
    if pa.types.is_null(kind) or pa.types.is_null(right.type):
        return _nulls(left) & _nulls(right)
    left, right = _as_doubles([left, right])
    equal = pc.fill_null(pc.equal(left, right), False).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind) or pa.types.is_floating(right.type):
        both_nan = pc.fill_null(pc.and_(_is_nan(left), _is_nan(right)), False)
        equal = equal | both_nan.to_numpy(zero_copy_only=False)
    if left.null_count and right.null_count:
        equal = equal | (_nulls(left) & _nulls(right))
    return equal


def null_safe_equal_at(
    keys: Sequence[pa.Array], at: Ints, others: Sequence[pa.Array], places: Ints
) -> npt.NDArray[np.bool_]:
    """A mask of the positions at which all keys are the same as the others at theirs."""
    equal = np.ones(at.size, np.bool_)
    for mine, theirs in zip(keys, others, strict=True):
        equal &= null_safe_equal(mine.take(pa.array(at)), theirs.take(pa.array(places)))
    return equal


def _equal_nested(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    null_left, null_right = _nulls(left), _nulls(right)
    equal = null_left & null_right
    present = np.flatnonzero(~null_left & ~null_right)
    left, right = left.take(pa.array(present)), right.take(pa.array(present))
    if pa.types.is_struct(left.type):
        fields = [null_safe_equal(left.field(i), right.field(i)) for i in range(left.type.num_fields)]
        equal[present] = reduce(np.logical_and, fields, np.ones(len(present), np.bool_))
        return equal
    if pa.types.is_map(left.type):
        raise pa.ArrowNotImplementedError("maps do not compare")
    lengths = pc.list_value_length(left).to_numpy(zero_copy_only=False)
    same_length = np.flatnonzero(lengths == pc.list_value_length(right).to_numpy(zero_copy_only=False))
    elements = null_safe_equal(left.take(pa.array(same_length)).flatten(), right.take(pa.array(same_length)).flatten())
    starts = np.concatenate([[0], np.cumsum(lengths[same_length])])
    wrong = np.concatenate([[0], np.cumsum(~elements)])
    equal[present[same_length]] = wrong[starts[1:]] == wrong[starts[:-1]]
    return equal


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    return array.is_null().to_numpy(zero_copy_only=False)


def _is_nan(array: pa.Array) -> pa.Array:
    return pc.is_nan(array) if pa.types.is_floating(array.type) else pc.if_else(pc.is_valid(array), False, None)


@dataclass(frozen=True)
class Windows:
    """As many windows as ``number`` at most, counted from the beginning of the one of length ``base`` around a time.

    The window with number n, from 0 on, goes from ``start * n`` to ``first_end + end * n`` behind it; a time lies in
    those of them that end behind it. All lengths are in microseconds.
    """

    base: int
    number: int
    start: int
    first_end: int
    end: int

    @property
    def longest(self) -> int:
        """The length of the longest of them.

        >>> windows_of("CUMULATE", (10, 60)).longest, windows_of("HOP", (10, 25)).longest
        (60, 25)
        """
        return self.first_end + (self.end - self.start) * (self.number - 1)


def windows_of(function: str, lengths: tuple[int, ...]) -> Windows:
    """The windows of a function: TUMBLE has a size, HOP a slide and a size, CUMULATE a step and a size.

    >>> windows_of("CUMULATE", (10, 60))
    Windows(base=60, number=6, start=0, first_end=10, end=10)
    >>> windows_of("HOP", (10, 25))
    Windows(base=10, number=3, start=-10, first_end=25, end=-10)
    """
    step, size = lengths[0], lengths[-1]
    if function == "CUMULATE":
        return Windows(size, size // step, 0, step, step)
    return Windows(step, -(-size // step), -step, size, -step)


@dataclass(frozen=True)
class Filter:
    """Rows for which a condition is not true go no further than their event times.

    ``beats``: what a row does to its table instead, where it is to go on as the delete of its key.
    """

    condition: Condition
    beats: str | None = None


@dataclass(frozen=True)
class DeriveChange:
    """The change that a row makes to its table: the ``column`` that carries it, and the one it may be derived from."""

    column: str
    origin: str


@dataclass(frozen=True)
class AssignWindows:
    """Each row once for every window that its time is in, which becomes a column: its start and its end.

    ``is_outer``: a row without a time is not in the result, but still carries its other event times.
    """

    time: str
    windows: Windows
    name: str
    is_outer: bool


@dataclass(frozen=True)
class FieldAccess:
    """A field of a column of structs."""

    column: str
    name: str


@dataclass(frozen=True)
class Projection:
    """The columns of a view, each with what it shows.

    ``watermarks``: what watermarks are called inside and outside of the view.
    """

    columns: tuple[tuple[str, Condition | FieldAccess], ...]
    watermarks: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Compute:
    """A column more; ``is_dead``: it tells whether the condition is not true."""

    name: str
    condition: Condition
    is_dead: bool = False


Step = Filter | DeriveChange | AssignWindows | Projection | Compute
