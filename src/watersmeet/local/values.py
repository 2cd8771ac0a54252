"""Expressions over the rows of a table, in the process: what the kernel's evaluator knows, and a few things besides.

These are fields of structs, casts of whole numbers, event-time windows that follow one another, and those of sources in
``TABLE(...)``. All else that Spark would compute raises `NeedsSparkError`, so that nothing is ever computed otherwise
than Spark does.

Spark casts where two types differ. Where Arrow would not give the same values, or where the result depends on Spark's
settings (ANSI mode, time zone), the expression is left to Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.duration import largest_shift, parse_duration
from watersmeet.local.cells import NeedsSparkError
from watersmeet.logical.expressions import Expr, Reference, windows_in
from watersmeet.operators.core.condition import Apply, ColumnRef, Columns, Condition, Constant, evaluate, holds
from watersmeet.physical.ports import plain_condition
from watersmeet.schema import arrow_type

TypeOf = Callable[[str], pa.DataType]
"""The type of a column."""

_EXACT_AS_FLOAT = 2**24
"""Integers up to this one are the same as FLOAT, so that it does not matter whether Spark compares FLOAT or DOUBLE."""
_EXACT_AS_DOUBLE = 15
"""Decimals of so many digits become the same double wherever they are cast."""
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
"""The digits that Spark gives to integers of this many bits in decimal arithmetic."""
_LONGEST = 38


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
            kinds = [_type_of(arg, types) for arg in args]
            if _CLOCKS_MOVE.get():
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
    """The number of digits that hold the values of both; 0 if they are not decimals."""
    if not (pa.types.is_decimal(left) or pa.types.is_decimal(right)):
        return 0
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        return 0
    (p, s), (q, t) = _precision(left), _precision(right)
    return max(p - s, q - t) + max(s, t)


def _precision(kind: Any) -> tuple[int, int]:
    return (kind.precision, kind.scale) if pa.types.is_decimal(kind) else (_DIGITS[kind.bit_width], 0)


_FIELDS = re.compile(r"(?P<path>(?:\.\w+)+)")
_NUMBERS = re.compile(r"array\((\d+(?:, \d+)*)\)")
_WINDOW = re.compile(r"\s*,\s*'(?P<length>[^']*)'\s*\)(?P<path>(?:\.\w+)*)")


SparkEvaluator = Callable[[str, pa.Table], pa.Array]
"""Evaluates an expression that cannot be evaluated here, as SQL over the columns of a table."""

SPARK_EVALUATOR: ContextVar[SparkEvaluator | None] = ContextVar("elsewhere", default=None)
"""The evaluator for expressions that only Spark can evaluate; None: they are refused."""


_CLOCKS_MOVE: ContextVar[bool] = ContextVar("clocks_move", default=False)


@contextmanager
def in_session_zone(zone: str | None) -> Generator[None]:
    """Evaluate meanwhile as a session with that time zone does; None: in UTC."""
    token = _CLOCKS_MOVE.set(zone is not None and largest_shift(zone) > 0)
    try:
        yield
    finally:
        _CLOCKS_MOVE.reset(token)


_COLLATED = b"watersmeet.collated"


def with_collated(rows: pa.Table, columns: Iterable[str]) -> pa.Table:
    """The rows, which say which of their columns hold strings of a collation: Arrow's types do not."""
    named = sorted(columns)
    return rows.replace_schema_metadata({_COLLATED: json.dumps(named)}) if named else rows


def collation_columns(rows: pa.Table) -> frozenset[str]:
    """The columns with strings of a collation.

    >>> sorted(collation_columns(with_collated(pa.table({"a.k": ["x"], "a.v": [1]}), ["a.k"])))
    ['a.k']
    """
    metadata: dict[bytes, bytes] = rows.schema.metadata or {}
    return frozenset(json.loads(metadata.get(_COLLATED, b"[]")))


def value_of(expr: Expr, rows: pa.Table) -> pa.Array:
    """The value of an expression for every row."""
    _check_collations(expr, rows)
    try:
        return _evaluate_locally(evaluate, expr, rows)
    except NeedsSparkError:
        return evaluate_on_spark(expr.sql(), rows)


def is_true(expr: Expr, rows: pa.Table) -> npt.NDArray[np.bool_]:
    """For which rows a condition is true, and not unknown."""
    _check_collations(expr, rows)
    try:
        return _evaluate_locally(holds, expr, rows)
    except NeedsSparkError:
        return pc.fill_null(evaluate_on_spark(expr.sql(), rows), False).to_numpy(zero_copy_only=False)


def _check_collations(expr: Expr, rows: pa.Table) -> None:
    """Refuse expressions over strings with a collation: the rows have lost it, wherever they are evaluated."""
    read = collation_columns(rows).intersection(ref.column for ref in expr.references)
    if read and expr.op != "column":
        raise NeedsSparkError(f"{expr.sql()}, of strings with a collation")


def has_spark_evaluator() -> bool:
    """Whether Spark is at hand for what cannot be evaluated here."""
    return SPARK_EVALUATOR.get() is not None


def evaluate_on_spark(sql: str, rows: pa.Table) -> pa.Array:
    """The value of an expression that only Spark can evaluate, if there is an evaluator."""
    evaluator = SPARK_EVALUATOR.get()
    if evaluator is None:
        raise NeedsSparkError(sql)
    return evaluator(sql, rows)


def _evaluate_locally(how: Callable[[Condition, Columns, int], Any], expr: Expr, rows: pa.Table) -> Any:
    plain, columns = _extract_columns(expr, rows)
    condition = plain_condition(plain)
    if condition is None:
        raise NeedsSparkError(expr.sql())

    def column(name: str) -> pa.Array:
        return columns[name] if name in columns else _column(rows, name)

    try:
        check_types(condition, lambda name: column(name).type)
        return how(condition, column, rows.num_rows)
    except (pa.ArrowNotImplementedError, NeedsSparkError) as error:
        # Types that do not fit: Spark casts one of them, or refuses the expression.
        raise NeedsSparkError(expr.sql()) from error


def _extract_columns(expr: Expr, rows: pa.Table) -> tuple[Expr, dict[str, Any]]:
    """The expression with fields of structs and casts extracted as columns, and these columns."""
    if expr.op == "column" and expr.refs[0].path:
        try:
            return _as_column(expr, pc.struct_field(_column(rows, expr.refs[0].column), list(expr.refs[0].path)))
        except pa.ArrowNotImplementedError as error:
            raise NeedsSparkError(expr.sql()) from error
    if expr.op == "other" and len(expr.refs) == 1:
        value = _field_or_window(expr, rows)
        return (expr, {}) if value is None else _as_column(expr, value)
    if expr.op == "windows":
        return _as_column(expr, _all_windows(expr, rows))
    if expr.op == "call" and expr.text.lower() == "if" and len(expr.args) == 3:
        return _as_column(expr, _choose(expr, rows))
    if expr.op == "call" and expr.text == "array_repeat" and not (expr.args[0].refs or expr.args[0].args):
        return _as_column(expr, _repeat(expr, rows))
    if expr.op == "other" and (match := _NUMBERS.fullmatch(expr.text)) is not None:
        numbers = pa.scalar([int(number) for number in match[1].split(",")], pa.list_(pa.int32()))
        # Arrow repeats a list at least once.
        return _as_column(expr, pa.repeat(numbers, rows.num_rows) if rows.num_rows else pa.array([], numbers.type))
    if expr.op == "cast":
        value = value_of(expr.args[0], rows)
        kind = arrow_type(str(expr.value))
        is_plain = casts_as_spark(value.type, kind) or _holds_integers(kind, value)
        if not is_plain or "COLLATE" in str(expr.value).upper():
            raise NeedsSparkError(expr.sql())
        return _as_column(expr, value.cast(kind))
    parts = [_extract_columns(arg, rows) for arg in expr.args]
    columns = {name: column for _, part_columns in parts for name, column in part_columns.items()}
    return replace(expr, args=tuple(part for part, _ in parts)), columns


def _holds_integers(kind: pa.DataType, value: pa.Array) -> bool:
    """Whether whole numbers fit a narrower type: what Spark does with others depends on its settings."""
    if not (pa.types.is_signed_integer(kind) and pa.types.is_signed_integer(value.type)):
        return False
    most = 2 ** (kind.bit_width - 1)
    return all(-most <= number < most for number in pc.min_max(value).as_py().values() if number is not None)


def _repeat(expr: Expr, rows: pa.Table) -> pa.Array:
    """A constant as often in an array as a number says."""
    constant, numbers = value_of(expr.args[0], rows), value_of(expr.args[1], rows)
    counts = np.maximum(numbers.cast(pa.int64()).fill_null(0).to_numpy(), 0)
    offsets: pa.Array = pa.array(np.append(0, np.cumsum(counts)), pa.int32())
    places = np.arange(len(counts))
    repeated = constant.take(pa.array(np.repeat(places, counts)))
    return pa.ListArray.from_arrays(offsets, repeated, mask=numbers.is_null())


def _choose(expr: Expr, rows: pa.Table) -> pa.Array:
    """The value of ``if(condition, x, y)``, where both are of one type or one is NULL."""
    condition, *values = expr.args
    some, other = (value_of(value, rows) for value in values)
    kinds = {array.type for array in (some, other) if not pa.types.is_null(array.type)}
    if len(kinds) > 1:
        raise NeedsSparkError(expr.sql())
    for kind in kinds:
        some, other = some.cast(kind), other.cast(kind)
    return pc.if_else(pa.array(is_true(condition, rows)), some, other)


def _field_or_window(expr: Expr, rows: pa.Table) -> pa.Array | None:
    """The value of ``column.field`` or ``window(column, 'length')[.field]``; None for any other text."""
    ref = expr.refs[0]
    before, after = expr.text[: ref.start].strip().lower(), expr.text[ref.end :]
    match = _FIELDS.fullmatch(after) if not before else _WINDOW.fullmatch(after) if before == "window(" else None
    if match is None or ref.path:
        return None
    column = _column(rows, ref.column)
    value = column if not before else _windows(column, match["length"])
    path = [part for part in match["path"].split(".") if part]
    return value if value is None or not path else pc.struct_field(value, path)


def _windows(times: pa.Array, length: str) -> pa.Array | None:
    """The window of each time, aligned to 1970; None where only Spark knows it: it drops rows without a time."""
    if not pa.types.is_timestamp(times.type) or times.null_count:
        return None
    try:
        size = parse_duration(length)
    except ValueError:
        return None
    starts = times.cast(pa.int64()).to_numpy(zero_copy_only=False) // size * size
    bounds = [pa.array(bound, pa.int64()).cast(times.type) for bound in (starts, starts + size)]
    return pa.StructArray.from_arrays(bounds, names=["start", "end"])


def _all_windows(expr: Expr, rows: pa.Table) -> pa.Array:
    """The windows that each time lies in; none for NULL."""
    windows, times = windows_in(expr), value_of(expr.args[0], rows)
    if not pa.types.is_timestamp(times.type):
        raise NeedsSparkError(expr.sql())
    micros = times.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    numbers = np.arange(windows.number)
    base = (micros // windows.base * windows.base)[:, None]
    starts, ends = base + windows.start * numbers, base + windows.first_end + windows.end * numbers
    lies_in = (ends > micros[:, None]) & times.is_valid().to_numpy(zero_copy_only=False)[:, None]
    bounds = [pa.array(bound[lies_in], pa.int64()).cast(times.type) for bound in (starts, ends)]
    offsets = np.concatenate([[0], np.cumsum(lies_in.sum(axis=1))])
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.StructArray.from_arrays(bounds, names=["start", "end"])
    )


def _as_column(expr: Expr, value: pa.Array) -> tuple[Expr, dict[str, Any]]:
    ref = Reference((), 0, 0, "#", expr.sql())
    return Expr("column", refs=(ref,), span=expr.span), {ref.column: value}


def casts_as_spark(kind: pa.DataType, other: pa.DataType) -> bool:
    """Whether Arrow casts a type as Spark does: whole numbers to wider ones and to text."""
    if kind == other:
        return True
    is_wider = pa.types.is_integer(other) and pa.types.is_integer(kind) and other.bit_width >= kind.bit_width
    return is_wider or (pa.types.is_integer(kind) and pa.types.is_string(other))


def _column(rows: pa.Table, name: str) -> pa.Array:
    column = rows.column(name).combine_chunks()
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
