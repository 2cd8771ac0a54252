"""Types and numbers as Spark has them: in which type two values compare, arithmetic, rounding.

Below that, conditions across the sides of a join, which its kernel computes: Spark casts where two types differ. Where
the kernel would not give the same values, the condition is left to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Decimal, localcontext
from functools import partial
from math import copysign, fmod, isfinite, nan, sqrt
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.duration import DAY, largest_shift
from watersmeet.local.casts import (
    BIGINT,
    DIGITS,
    DOUBLE,
    INT,
    INTEGERS,
    LONGEST,
    MONTHS,
    TEXT,
    TIME,
    Evaluator,
    Values,
    by_value,
    cast,
    common_type,
    decimal_of,
    is_number,
    local_micros,
    map_values,
    precision_of,
    round_digits,
    session_zone,
    skip_nulls,
)
from watersmeet.local.cells import NeedsSparkError
from watersmeet.local.times import shift_days, shift_months
from watersmeet.logical.expressions import Expr
from watersmeet.operators.core import condition as conditions
from watersmeet.operators.core.condition import Apply, ColumnRef, Condition, Constant, evaluate


def _compare(expr: Expr, values: Values) -> pa.Array:
    left, right = values
    kind = common_type([left.type, right.type])
    if pa.types.is_map(kind) or (pa.types.is_nested(kind) and expr.op not in ("=", "<=>", "<>")):
        raise NeedsSparkError(expr.sql())
    operands = [cast(value, kind) for value in (left, right)]
    if pa.types.is_boolean(kind) and expr.op not in ("=", "<=>", "<>"):
        operands = [value.cast(pa.int8()) for value in operands]
    return conditions.compare(expr.op, *operands)  # type: ignore[arg-type]


def _arithmetic(expr: Expr, values: Values, symbol: str = "") -> pa.Array:
    symbol = symbol or (expr.text.lower() if expr.op == "call" else expr.op)
    left, right = values
    if is_number(left.type) and is_number(right.type):
        return _compute(symbol, *_as_numbers(symbol, expr, left, right), expr)
    for value, other in ((left, right), (right, left)):
        if is_number(value.type) and (pa.types.is_null(other.type) or other.type == TEXT):
            kind = value.type if pa.types.is_null(other.type) else common_type([value.type, TEXT])
            return _compute(symbol, *_as_numbers(symbol, expr, cast(left, kind), cast(right, kind)), expr)
    return _time_arithmetic(symbol, expr, left, right)


def _as_numbers(symbol: str, expr: Expr, left: pa.Array, right: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Both operands as Spark widens them; decimals keep their own precision."""
    kinds = (left.type, right.type)
    if any(map(pa.types.is_decimal, kinds)) and not any(map(pa.types.is_floating, kinds)):
        left, right = (
            value if pa.types.is_decimal(value.type) else cast(value, pa.decimal128(_digits(arg, value.type), 0))
            for arg, value in zip(expr.args, (left, right), strict=True)
        )
        return left, right
    kind = DOUBLE if symbol == "/" else common_type(kinds)
    return cast(left, kind), cast(right, kind)


def _digits(expr: Expr, kind: Any) -> int:
    """The digits of an integer beside a decimal: those that a literal has, or those of its type."""
    literal = expr.args[0] if expr.op == "negate" else expr
    return len(str(abs(int(literal.value or 0)))) if literal.op == "literal" else DIGITS[kind.bit_width]


_OVER_INTEGERS: Mapping[str, Callable[..., pa.Array]] = {
    "+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked,
}  # fmt: skip


def _compute(symbol: str, left: pa.Array, right: pa.Array, expr: Expr) -> pa.Array:
    """Two numbers of one kind."""
    if pa.types.is_decimal(left.type):
        return _decimals(symbol, left, right)
    if symbol in ("/", "%", "div"):
        zero = pc.fill_null(pc.equal(right, pa.scalar(0).cast(right.type)), False)
        if pc.any(pc.and_(zero, left.is_valid())).as_py():
            raise ZeroDivisionError(f"division by zero in {expr.sql()}")
        right = pc.if_else(zero, None, right)
    if symbol in _OVER_INTEGERS:
        if pa.types.is_floating(left.type):
            return _OVER_FLOATS[symbol](left, right)
        return _OVER_INTEGERS[symbol](left, right)
    if symbol == "/":
        return pc.divide(left, right)
    if symbol == "div":
        if pa.types.is_floating(left.type):
            raise NeedsSparkError(expr.sql())
        return pc.divide_checked(left.cast(BIGINT), right.cast(BIGINT))
    if pa.types.is_floating(left.type):
        if left.type != DOUBLE:
            raise NeedsSparkError(expr.sql())
        return map_values(lambda a, b: fmod(a, b) if isfinite(a) else float("nan"), DOUBLE, left, right)
    return map_values(lambda a, b: int(copysign(1, a)) * (abs(a) % abs(b)), left.type, left, right)


_OVER_FLOATS: Mapping[str, Callable[..., pa.Array]] = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}


def _decimals(symbol: str, left: pa.Array, right: pa.Array) -> pa.Array:
    """Two decimals, in the type of Spark's result: beyond 38 digits it gives up digits behind the point, down to 6."""
    (p, s), (q, t) = precision_of(left.type), precision_of(right.type)
    match symbol:
        case "*":
            precision, scale = p + q + 1, s + t
        case "/":
            scale = max(6, s + q + 1)
            precision = p - s + t + scale
        case "%":
            scale = max(s, t)
            precision = min(p - s, q - t) + scale
        case "div":
            precision, scale = max(p - s + t, 1), 0
        case _:
            scale = max(s, t)
            precision = max(p - s, q - t) + scale + 1
    if precision > LONGEST:
        precision, scale = LONGEST, max(LONGEST - (precision - scale), min(scale, 6))
    kind = BIGINT if symbol == "div" else pa.decimal128(precision, scale)

    def value(a: Decimal, b: Decimal) -> Any:
        if symbol in ("/", "%", "div") and not b:
            raise ZeroDivisionError(f"{a} {symbol} {b}")
        with localcontext(prec=120):
            match symbol:
                case "*":
                    return decimal_of(a * b, kind)
                case "/":
                    # Spark divides to 39 digits behind the point first.
                    return decimal_of((a / b).quantize(Decimal(1).scaleb(-39), ROUND_HALF_UP), kind)
                case "%":
                    return decimal_of(a % b, kind)
                case "div":
                    return int(a / b)
                case _:
                    return decimal_of(a + b if symbol == "+" else a - b, kind)

    return map_values(value, kind, left, right)


def _negate(expr: Expr, values: Values) -> pa.Array:
    (value,) = values
    if pa.types.is_decimal(value.type) or pa.types.is_floating(value.type):
        return pc.negate(_as_short(value))
    if value.type in INTEGERS or pa.types.is_duration(value.type):
        return pc.negate_checked(value)
    raise NeedsSparkError(expr.sql())


_DAYS = re.compile(r"INTERVAL\s+'?[^a-zA-Z]*'?\s*(?:DAY|WEEK)S?", re.IGNORECASE)


def _time_arithmetic(  # noqa: PLR0911 - one case per pair of types
    symbol: str, expr: Expr, left: pa.Array, right: pa.Array
) -> pa.Array:
    """Sums and differences of times, dates, intervals and numbers."""
    one, other = (_kind_of(value.type) for value in (left, right))
    match one, symbol, other:
        case ("date" | "time", "+" | "-", "months"):
            number = _months(right)
            return shift_months(left, number if symbol == "+" else pc.negate_checked(number))
        case ("months", "+", "date" | "time"):
            return shift_months(right, _months(left))
        case ("date", "+" | "-", "integer"):
            return shift_days(left, right if symbol == "+" else pc.negate_checked(right.cast(INT)))
        case ("integer", "+", "date"):
            return shift_days(right, left)
        case ("date", "-", "date"):
            return pc.multiply(pc.subtract(left.cast(INT).cast(BIGINT), right.cast(INT).cast(BIGINT)), DAY).cast(
                pa.duration("us")
            )
        case ("time", "-", "time") if left.type == right.type:
            return pc.subtract_checked(local_micros(left), local_micros(right)).cast(pa.duration("us"))
        case ("time" | "date", "+" | "-", "interval"):
            return _add_interval(expr.args[1], left, right if symbol == "+" else pc.negate_checked(right))
        case ("interval", "+", "time" | "date"):
            return _add_interval(expr.args[0], right, left)
        case ("interval", "+" | "-", "interval"):
            return _OVER_INTEGERS[symbol](left.cast(BIGINT), right.cast(BIGINT)).cast(pa.duration("us"))
        case ("interval", "*", "integer") | ("integer", "*", "interval"):
            return pc.multiply_checked(left.cast(BIGINT), right.cast(BIGINT)).cast(pa.duration("us"))
        case _:
            raise NeedsSparkError(expr.sql())


def _months(intervals: pa.Array) -> pa.Array:
    return pa.array([None if one is None else one.months for one in intervals.to_pylist()], BIGINT)


def _kind_of(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "time"
    if pa.types.is_date(kind):
        return "date"
    if kind == MONTHS:
        return "months"
    return "interval" if pa.types.is_duration(kind) else "integer" if kind in INTEGERS else "other"


def _add_interval(expr: Expr, times: pa.Array, intervals: pa.Array) -> pa.Array:
    """Times plus intervals, whose whole days are calendar days of the session's zone."""
    if pa.types.is_date(times.type):
        if expr.op != "interval":
            raise NeedsSparkError(f"a date and {expr.sql()}")
        if _DAYS.fullmatch(expr.text):
            return shift_days(times, pc.divide(intervals.cast(BIGINT), DAY))
        times = cast(times, TIME)
    micros = intervals.cast(BIGINT)
    days = pc.divide(micros, DAY)
    return shift_days(times, days, pc.subtract(micros, pc.multiply(days, DAY)))


def _abs(expr: Expr, values: Values) -> pa.Array:
    (value,) = values
    if not is_number(value.type):
        raise NeedsSparkError(expr.sql())
    return pc.abs_checked(_as_short(value))


def _as_short(value: pa.Array) -> pa.Array:
    """A column whose decimals have no more digits than Scala keeps where it changes a sign."""
    if pa.types.is_decimal(value.type) and value.type.precision > _LONGEST_OF_SCALA:
        most = Decimal(10) ** (_LONGEST_OF_SCALA - value.type.scale)
        if any(number is not None and abs(number) >= most for number in value.to_pylist()):
            raise NeedsSparkError(f"the sign of {value.type}")
    return value


_LONGEST_OF_SCALA = 34


def _round(expr: Expr, values: Values) -> pa.Array:
    """``round(x)`` and ``round(x, scale)``, whose scale is a constant."""
    numbers, scale = values[0], _constant_of(expr.args[1]) if len(expr.args) == 2 else 0
    if not isinstance(scale, int) or len(expr.args) > 2:
        raise NeedsSparkError(expr.sql())
    kind: Any = numbers.type
    if kind in INTEGERS and scale >= 0:
        return numbers
    if pa.types.is_decimal(kind):
        whole = kind.precision - kind.scale + 1
        new = max(min(kind.scale, scale), 0)
        precision = max(whole, -scale + 1) if scale < 0 else whole + new
        kind = pa.decimal128(min(precision, LONGEST), new)
        step = Decimal(1).scaleb(-min(scale, new) if scale < 0 else -new)
        return map_values(lambda number: decimal_of(_half_up(number, step), kind), kind, numbers)
    if pa.types.is_floating(kind):
        step = Decimal(1).scaleb(-scale)
        return map_values(partial(_round_double, step), kind, numbers)
    raise NeedsSparkError(expr.sql())


def _constant_of(expr: Expr) -> Any:
    if expr.op == "negate" and isinstance(expr.args[0].value, int):
        return -expr.args[0].value
    return expr.value if expr.op == "literal" else None


def _half_up(number: Decimal, step: Decimal) -> Decimal:
    with localcontext(prec=800):
        return number.quantize(step, ROUND_HALF_UP)


def _round_double(step: Decimal, number: float) -> float:
    # -0.0 becomes 0.0.
    return float(round_digits(number, lambda digits: _half_up(digits, step))) + 0.0 if isfinite(number) else number


def _whole(rounding: str, expr: Expr, values: Values) -> pa.Array:
    """``floor`` or ``ceil``."""
    if len(values) != 1:
        raise NeedsSparkError(expr.sql())
    (numbers,) = values
    kind: Any = numbers.type
    if kind in INTEGERS:
        return numbers.cast(BIGINT)
    if pa.types.is_decimal(kind):
        whole = kind if kind.scale == 0 else pa.decimal128(min(kind.precision - kind.scale + 1, LONGEST), 0)
        return map_values(lambda number: decimal_of(number.to_integral_value(rounding), whole), whole, numbers)
    if not pa.types.is_floating(kind):
        raise NeedsSparkError(expr.sql())

    def number_of(number: float) -> int:
        if number != number:
            return 0
        whole = Decimal(number).to_integral_value(rounding) if isfinite(number) else Decimal(2**64)
        if not -(2**63) <= whole < 2**63:
            raise ArithmeticError(f"{number} does not fit a BIGINT")
        return int(whole)

    return map_values(number_of, BIGINT, numbers)


def _sign(expr: Expr, values: Values) -> pa.Array:
    (value,) = values
    if not is_number(value.type) or pa.types.is_decimal(value.type):
        raise NeedsSparkError(expr.sql())
    return map_values(
        lambda number: number if number != number or number == 0 else copysign(1.0, number), DOUBLE, cast(value, DOUBLE)
    )


def _extreme(operator: str, expr: Expr, values: Values) -> pa.Array:
    """``greatest`` or ``least``: NULLs do not count, and NaN is the greatest number."""
    kind = common_type(value.type for value in values)
    if len(values) < 2 or pa.types.is_nested(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        raise NeedsSparkError(expr.sql())
    best, *others = (cast(value, kind) for value in values)
    for other in others:
        is_better = pc.or_(best.is_null(), pc.fill_null(conditions.compare(operator, other, best), False))  # type: ignore[arg-type]
        if pa.types.is_floating(kind) and _differ_in_sign_of_zero(best, other):
            raise NeedsSparkError("which of 0.0 and -0.0 is greater")
        best = pc.if_else(is_better, other, best)
    return best


def _differ_in_sign_of_zero(left: pa.Array, right: pa.Array) -> bool:
    first, second = (pc.fill_null(value, 1).to_numpy(zero_copy_only=False) for value in (left, right))
    return bool(((first == 0) & (second == 0) & (np.signbit(first) != np.signbit(second))).any())


def _pmod(expr: Expr, values: Values) -> pa.Array:
    kind = common_type(value.type for value in values)
    if kind not in (INT, BIGINT):
        raise NeedsSparkError(expr.sql())

    def rest(a: int, b: int) -> int:
        if b <= 0:
            raise ZeroDivisionError("pmod by zero") if b == 0 else NeedsSparkError(expr.sql())
        return a % b

    return map_values(rest, kind, *(cast(value, kind) for value in values))


def _try(symbol: str, expr: Expr, values: Values) -> pa.Array:
    """An operator that gives NULL where it fails; its arguments may still fail."""
    try:
        return _arithmetic(expr, values, symbol)
    except (ArithmeticError, pa.ArrowInvalid):
        size = len(values[0])
        if size == 1:
            return pa.nulls(1, _arithmetic(expr, [value.slice(0, 0) for value in values], symbol).type)
        parts = ((0, size // 2), (size // 2, size))
        return pa.concat_arrays(
            [_try(symbol, expr, [value.slice(start, end - start) for value in values]) for start, end in parts]
        )


def _isnan(expr: Expr, values: Values) -> pa.Array:
    (value,) = values
    if not pa.types.is_floating(value.type):
        raise NeedsSparkError(expr.sql())
    return pc.fill_null(pc.is_nan(value), False)


NUMBERS: Mapping[str, Evaluator] = {
    **dict.fromkeys(("=", "<=>", "<>", "<", "<=", ">", ">="), skip_nulls(_compare)),
    **dict.fromkeys(("+", "-", "*", "/", "%", "div"), skip_nulls(_arithmetic)),
    "mod": partial(_arithmetic, symbol="%"),
    "negate": _negate,
    "negative": _negate,
    "try_add": partial(_try, "+"),
    "try_subtract": partial(_try, "-"),
    "try_multiply": partial(_try, "*"),
    "try_divide": partial(_try, "/"),
    "try_mod": partial(_try, "%"),
    "pmod": _pmod,
    "abs": _abs,
    "round": _round,
    "floor": partial(_whole, ROUND_FLOOR),
    "ceil": partial(_whole, ROUND_CEILING),
    "ceiling": partial(_whole, ROUND_CEILING),
    "sign": _sign,
    "signum": _sign,
    "sqrt": by_value(DOUBLE, lambda number: sqrt(number) if number >= 0 else nan, DOUBLE),
    "isnan": _isnan,
    "greatest": partial(_extreme, ">"),
    "least": partial(_extreme, "<"),
}
"""Operators and functions of numbers, and comparisons of any values."""


TypeOf = Callable[[str], pa.DataType]
"""The type of a column."""


_EXACT_AS_FLOAT = 2**24
"""Integers up to this one are the same as FLOAT, so that it does not matter whether Spark compares FLOAT or DOUBLE."""


_EXACT_AS_DOUBLE = 15
"""Decimals of so many digits become the same double wherever they are cast."""


def check_types(condition: Condition, types: TypeOf) -> None:
    """Raise `NeedsSparkError` if some part of a condition is not computed here as Spark computes it.

    >>> types = {"a": pa.string(), "b": pa.int32(), "c": pa.int64()}
    >>> check_types(Apply("=", (ColumnRef("b"), ColumnRef("c"))), types.__getitem__)
    >>> check_types(Apply("=", (ColumnRef("a"), ColumnRef("b"))), types.__getitem__)
    Traceback (most recent call last):
    ...
    watersmeet.local.cells.NeedsSparkError: `=` of string and int32
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
    if is_number(left) and is_number(right):
        return _is_exact(left, right) and _is_exact(right, left) and _common_digits(left, right) <= LONGEST
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
            kinds = [_type_of(arg, types) for arg in args]
            if largest_shift(session_zone()) > 0:
                _check_days(operator, args, kinds)
            return _result_type(operator, kinds)
        case Apply(operator, args):
            left, right = (_type_of(arg, types) for arg in args)
            if not compares_as_spark(left, right):
                raise NeedsSparkError(f"`{operator}` of {left} and {right}")
            return pa.bool_()


def _check_days(operator: str, args: Iterable[Condition], kinds: list[pa.DataType]) -> None:
    """Leave days, and differences of TIMESTAMPs, to Spark where the clocks of its session move."""
    is_time = any(pa.types.is_timestamp(kind) and kind.tz is not None for kind in kinds)
    constants = [arg.value for arg in args if isinstance(arg, Constant)]
    is_short = any(isinstance(value, timedelta) and abs(value) < timedelta(days=1) for value in constants)
    if is_time and not is_short:
        raise NeedsSparkError(f"`{operator}` of {' and '.join(map(str, kinds))} in a zone whose clocks move")


def _result_type(operator: Any, kinds: list[pa.DataType]) -> pa.DataType:
    """The type of a sum, a product and so on."""
    words = f"`{operator}` of {' and '.join(map(str, kinds))}"
    if len(kinds) == 2 and all(map(is_number, kinds)):
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
    (p, s), (q, t) = precision_of(left), precision_of(right)
    digits, scale = (p + q + 1, s + t) if operator == "*" else (max(p - s, q - t) + max(s, t) + 1, max(s, t))
    if digits > LONGEST:
        raise NeedsSparkError(words)
    return pa.decimal128(digits, scale)


def _is_exact(left: Any, right: Any) -> bool:
    """Whether casting the first of two numbers to a type in which both compare gives one value, whatever that type."""
    if not pa.types.is_floating(right):
        return True
    if pa.types.is_decimal(left):
        return left.precision <= _EXACT_AS_DOUBLE
    return pa.types.is_float64(right) or pa.types.is_floating(left) or left.bit_width <= 16


def _common_digits(left: pa.DataType, right: pa.DataType) -> int:
    """The number of digits that hold the values of both; 0 if they are not decimals."""
    if not (pa.types.is_decimal(left) or pa.types.is_decimal(right)):
        return 0
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        return 0
    (p, s), (q, t) = precision_of(left), precision_of(right)
    return max(p - s, q - t) + max(s, t)
