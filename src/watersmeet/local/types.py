"""Which comparisons and arithmetic of two types are computed in the process as Spark computes them.

Spark casts one of the types, or both. Where Arrow and the definitions would not come to the same values, or where it
depends on Spark's settings (ANSI mode, the time zone), the expression is left to Spark: `NeedsSparkError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from watersmeet.local.rows import NeedsSparkError
from watersmeet.operators.core.condition import Apply, ColumnRef, Condition, Constant, evaluate

TypeOf = Callable[[str], pa.DataType]
"""The type of a column."""

_EXACT_AS_FLOAT = 2**24
"""Integers up to this one are the same as FLOAT, so that it does not matter whether Spark compares FLOAT or DOUBLE."""
_EXACT_AS_DOUBLE = 15
"""Decimals of so many digits become the same double wherever they are cast."""
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
"""How many digits Spark gives to integers of so many bits that meet decimals."""
_LONGEST = 38


def check_types(condition: Condition, types: TypeOf) -> None:
    """Raise `NeedsSparkError` if some part of a condition is not computed here as Spark computes it.

    >>> types = {"a": pa.string(), "b": pa.int32(), "c": pa.int64()}
    >>> check_types(Apply("=", (ColumnRef("b"), ColumnRef("c"))), types.__getitem__)
    >>> check_types(Apply("=", (ColumnRef("a"), ColumnRef("b"))), types.__getitem__)
    Traceback (most recent call last):
    ...
    watersmeet.local.rows.NeedsSparkError: `=` of string and int32
    """
    _type_of(condition, types)


def compares_as_spark(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether values of two types compare here as Spark compares them.

    >>> compares_as_spark(pa.float64(), pa.int64()), compares_as_spark(pa.float32(), pa.int32())
    (True, False)
    >>> compares_as_spark(pa.decimal128(20, 2), pa.int64()), compares_as_spark(pa.decimal128(38, 20), pa.int64())
    (True, False)
    """
    if left == right or pa.types.is_null(left) or pa.types.is_null(right):
        return True
    if _is_number(left) and _is_number(right):
        return _is_exact(left, right) and _is_exact(right, left) and _digits(left, right) <= _LONGEST
    # Between DATE and TIMESTAMP lies the time zone of the session.
    times = [kind for kind in (left, right) if pa.types.is_date32(kind) or pa.types.is_timestamp(kind)]
    return len(times) == 2 and all(pa.types.is_date32(kind) or kind.tz is None for kind in times)


def _type_of(condition: Condition, types: TypeOf) -> pa.DataType:
    match condition:
        case ColumnRef(name):
            return types(name)
        case Constant(value):
            is_small = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _EXACT_AS_FLOAT
            return pa.int16() if is_small else pa.scalar(value).type
        case Apply("and" | "or" | "not" | "is_null", args):
            for arg in args:
                _type_of(arg, types)
            return pa.bool_()
        case Apply("+" | "-" | "*" | "/" | "%" | "negate" as operator, args):
            return _result_type(operator, [_type_of(arg, types) for arg in args])
        case Apply(operator, args):
            left, right = (_type_of(arg, types) for arg in args)
            if not compares_as_spark(left, right):
                raise NeedsSparkError(f"`{operator}` of {left} and {right}")
            return pa.bool_()


def _result_type(operator: Any, kinds: list[pa.DataType]) -> pa.DataType:
    """The type of a sum, a product and so on."""
    words = f"`{operator}` of {' and '.join(map(str, kinds))}"
    if len(kinds) == 2 and all(map(_is_number, kinds)):
        left, right = kinds
        # The definitions compute with doubles.
        is_single = pa.types.is_float32(left) or pa.types.is_float32(right)
        is_decimal = pa.types.is_decimal(left) or pa.types.is_decimal(right)
        is_double = pa.types.is_float64(left) or pa.types.is_float64(right)
        if (is_single and not is_double) or (is_decimal and not is_double and operator == "/"):
            raise NeedsSparkError(words)
        if is_decimal and not is_double:
            return _decimal(operator, left, right, words)
        if is_double and not (_is_exact(left, right) and _is_exact(right, left)):
            raise NeedsSparkError(words)
    try:
        arrays = [pa.array([], kind) for kind in kinds]
        return evaluate(
            Apply(operator, tuple(ColumnRef(str(n)) for n in range(len(kinds)))), lambda name: arrays[int(name)], 0
        ).type
    except (pa.ArrowException, TypeError):
        raise NeedsSparkError(words) from None


def _decimal(operator: str, left: pa.DataType, right: pa.DataType, words: str) -> pa.DataType:
    """The type of a sum or product of decimals; beyond 38 digits Spark cuts off digits behind the point."""
    (p, s), (q, t) = _precision(left), _precision(right)
    digits, scale = (p + q + 1, s + t) if operator == "*" else (max(p - s, q - t) + max(s, t) + 1, max(s, t))
    if digits > _LONGEST:
        raise NeedsSparkError(words)
    return pa.decimal128(digits, scale)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_signed_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _is_exact(left: Any, right: Any) -> bool:
    """Whether casting the first of two numbers to a type in which both compare gives one value, whatever that type."""
    if not pa.types.is_floating(right):
        return True
    if pa.types.is_decimal(left):
        return left.precision <= _EXACT_AS_DOUBLE
    return pa.types.is_float64(right) or pa.types.is_floating(left) or left.bit_width <= 16


def _digits(left: pa.DataType, right: pa.DataType) -> int:
    """How many digits hold the values of both; none where they are no decimals."""
    if not (pa.types.is_decimal(left) or pa.types.is_decimal(right)):
        return 0
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        return 0
    (p, s), (q, t) = _precision(left), _precision(right)
    return max(p - s, q - t) + max(s, t)


def _precision(kind: Any) -> tuple[int, int]:
    return (kind.precision, kind.scale) if pa.types.is_decimal(kind) else (_DIGITS[kind.bit_width], 0)
