"""Spark's functions in this process: one table of names, each with what computes it from the values of its arguments.

Values and types are Spark's, in its ANSI mode: what fails there raises an ArithmeticError here. Whatever is not certain
to be the same raises `NeedsSparkError`: a function or a type that is not listed, and single values, such as doubles
whose digits depend on the version of Java. Such an expression is evaluated on Spark, if there is one.

A function of `FUNCTIONS` takes the expression of its call and the values of its args. Most are made by `by_value`:
their arguments become Python values of the types that they ask for. Those of `CHOICES` compute an argument only for the
rows that need it, since it may fail for others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from decimal import Decimal
from functools import partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import WatersmeetError
from watersmeet.local.casts import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    LONGEST,
    MONTHS,
    TEXT,
    TIME,
    Evaluator,
    Values,
    cast,
    common_type,
    is_ansi_session,
)
from watersmeet.local.cells import NeedsSparkError
from watersmeet.local.collections import COLLECTIONS, field_of, lambda_functions
from watersmeet.local.texts import TEXTS, read_string
from watersmeet.local.times import TIMES, windows_in_list, windows_of_times
from watersmeet.local.values import NUMBERS
from watersmeet.logical.expressions import LISTED, Expr
from watersmeet.operators.core.condition import compare
from watersmeet.parser.expressions import read_structure
from watersmeet.schema import arrow_type

SparkEvaluator = Callable[[str, pa.Table], pa.Array]
"""Evaluates an expression that cannot be evaluated here, as SQL over the columns of a table."""


SPARK_EVALUATOR: ContextVar[SparkEvaluator | None] = ContextVar("elsewhere", default=None)
"""The evaluator for expressions that only Spark can evaluate; None: they are refused."""


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


def value_of(expr: Expr, rows: pa.Table, template: str = "{}") -> pa.Array:
    """The value of an expression, as a template wraps it, for every row."""
    _check_collations(expr, rows)
    try:
        value = evaluate(structure_of(expr, template), rows)
        if value.type == MONTHS:
            raise NeedsSparkError("an interval of months")
        return value
    except (NeedsSparkError, ArithmeticError, ValueError, TypeError, IndexError, pa.ArrowException) as error:
        # What fails here is NULL on Spark, or a number that has run over, if it does not follow ANSI. Arguments that
        # are too many or of other types are refused there.
        if isinstance(error, ArithmeticError | pa.ArrowInvalid) and is_ansi_session():
            raise
        evaluator, sql = SPARK_EVALUATOR.get(), template.format(expr.sql())
        if evaluator is None:
            raise NeedsSparkError(sql) from error
        return evaluator(sql, rows)


def structure_of(expr: Expr, template: str = "{}") -> Expr:
    """An expression, as a template wraps it, with its functions as calls of their args."""
    if template == "{}" and (expr.op == "windows" or _has_windows(expr)):
        return replace(expr, args=tuple(structure_of(arg) if arg.op != "interval" else arg for arg in expr.args))
    try:
        return read_structure(template.format(expr.sql()))
    except WatersmeetError as error:
        raise NeedsSparkError(expr.sql()) from error


def _has_windows(expr: Expr) -> bool:
    return any(arg.op == "windows" or _has_windows(arg) for arg in expr.args)


def is_true(expr: Expr, rows: pa.Table) -> npt.NDArray[np.bool_]:
    """For which rows a condition is true, and not unknown."""
    return _is_true(value_of(expr, rows))


def _check_collations(expr: Expr, rows: pa.Table) -> None:
    """Refuse expressions over strings with a collation: the rows have lost it, wherever they are evaluated."""
    read = collation_columns(rows).intersection(ref.column for ref in expr.references)
    if read and expr.op != "column":
        raise NeedsSparkError(f"{expr.sql()}, of strings with a collation")


def has_spark_evaluator() -> bool:
    """Whether Spark is at hand for what cannot be evaluated here."""
    return SPARK_EVALUATOR.get() is not None


def evaluate(expr: Expr, rows: pa.Table) -> pa.Array:
    """The value of an expression of `read_structure` for every row.

    >>> rows = pa.table({"a.v": [1, None]})
    >>> evaluate(read_structure("coalesce(`a.v` + 1, 0)"), rows).to_pylist()
    [2, 0]
    """
    name = expr.text.lower() if expr.op == "call" else expr.op
    if name in CHOICES:
        return CHOICES[name](expr, rows)
    if expr.op == "windows":
        return windows_in_list(expr, evaluate(expr.args[0], rows))
    if name in FUNCTIONS and expr.args and not _is_negative(expr):
        return FUNCTIONS[name](expr, [evaluate(arg, rows) for arg in expr.args])
    return _repeat(_constant(expr), rows)


def _is_negative(expr: Expr) -> bool:
    """Whether it is a number with a minus, which is a literal to Spark."""
    value = expr.args[0].value if expr.op == "negate" and expr.args[0].op == "literal" else None
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _column(expr: Expr, rows: pa.Table) -> pa.Array:
    name, *path = expr.refs[0].parts
    if name not in rows.column_names:
        raise NeedsSparkError(expr.sql())
    column = rows.column(name).combine_chunks()
    column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    return reduce(field_of, path, column)


def _repeat(value: pa.Scalar, rows: pa.Table) -> pa.Array:
    # Arrow repeats a list at least once.
    return pa.repeat(value, rows.num_rows) if rows.num_rows else pa.array([], value.type)


_SUFFIXES = {"l": BIGINT, "s": pa.int16(), "y": pa.int8(), "d": DOUBLE, "f": pa.float32()}
_CALENDAR = re.compile(r"INTERVAL\s+(?:'\s*([+-]?\d+)\s*'|([+-]?\d+))\s*(MONTH|QUARTER|YEAR)S?", re.IGNORECASE)


def _constant(expr: Expr) -> pa.Scalar:
    """A literal in the type that its text gives it, or an interval."""
    value = expr.value
    if _is_negative(expr):
        (literal,) = expr.args
        return _constant(replace(literal, text=f"-{literal.text}", value=-literal.value))  # type: ignore[operator]
    if expr.op == "interval":
        return pa.scalar(value, BIGINT).cast(pa.duration("us"))
    if (months := _CALENDAR.fullmatch(expr.text) if expr.op == "other" else None) is not None:
        number = int(months[1] or months[2]) * {"month": 1, "quarter": 3, "year": 12}[months[3].lower()]
        return pa.scalar(pa.MonthDayNano([number, 0, 0]), MONTHS)
    if expr.op == "other" and (text := read_string(expr.text)) is not None:
        return pa.scalar(text)
    if expr.op != "literal":
        raise NeedsSparkError(expr.sql())
    if isinstance(value, float | int) and not isinstance(value, bool) and expr.text[-1:].lower() in _SUFFIXES:
        return pa.scalar(value, _SUFFIXES[expr.text[-1:].lower()])
    if isinstance(value, int) and not isinstance(value, bool):
        return pa.scalar(value, INT if -(2**31) <= value < 2**31 else BIGINT)
    if isinstance(value, Decimal):
        _, digits, exponent = value.as_tuple()
        scale = -int(exponent)
        if scale < 0 or max(len(digits), scale) > LONGEST:
            raise NeedsSparkError(expr.sql())
        return pa.scalar(value, pa.decimal128(max(len(digits), scale), scale))
    return pa.scalar(value)


_ALWAYS = Expr("literal", text="TRUE", value=True)
_NULL = Expr("literal", text="NULL")


def _choose(rows: pa.Table, tests: Sequence[Expr | None], values: Sequence[Expr]) -> pa.Array:
    """For each row the value behind the first test that is true, which is computed for no other row.

    A test that is None: whether the value itself is not NULL.
    """
    kind = common_type(evaluate(value, rows.slice(0, 0)).type for value in values)
    chosen, open_ = pa.nulls(rows.num_rows, kind), np.ones(rows.num_rows, np.bool_)
    for test, value in zip(tests, values, strict=True):
        remaining, some = np.flatnonzero(open_), _select(rows, open_)
        if test is None:
            mine = cast(evaluate(value, some), kind)
            is_chosen = mine.is_valid().to_numpy(zero_copy_only=False)
            mine = mine.filter(pa.array(is_chosen))
        else:
            is_chosen = _is_true(evaluate(test, some))
            mine = cast(evaluate(value, _select(some, is_chosen)), kind)
        places = remaining[is_chosen]
        mask = np.zeros(rows.num_rows, np.bool_)
        mask[places] = True
        chosen = _replace(chosen, mask, mine)
        open_[places] = False
    return chosen


def _select(rows: pa.Table, mask: npt.NDArray[np.bool_]) -> pa.Table:
    return rows if mask.all() else rows.filter(pa.array(mask))


def _replace(values: pa.Array, mask: Any, others: pa.Array) -> pa.Array:
    """The values with others in the places of a mask, whatever their type."""
    if pa.types.is_null(values.type):
        return values
    positions = np.arange(len(values))
    positions[mask] = len(values) + np.arange(len(others))
    return pa.concat_arrays([values, others]).take(pa.array(positions))


def _is_true(value: pa.Array) -> npt.NDArray[np.bool_]:
    """A mask of the rows whose value is true; NULL is not."""
    if pa.types.is_null(value.type):
        return np.zeros(len(value), np.bool_)
    if not pa.types.is_boolean(value.type):
        raise NeedsSparkError(f"the truth of {value.type}")
    return pc.fill_null(value, False).to_numpy(zero_copy_only=False)


def _case(expr: Expr, rows: pa.Table) -> pa.Array:
    args = expr.args if len(expr.args) % 2 else (*expr.args, _NULL)
    return _choose(rows, (*args[:-1:2], _ALWAYS), (*args[1::2], args[-1]))


def _coalesce(expr: Expr, rows: pa.Table) -> pa.Array:
    if not expr.args:
        raise NeedsSparkError(expr.sql())
    return _choose(rows, [None] * len(expr.args), expr.args)


def _nvl2(expr: Expr, rows: pa.Table) -> pa.Array:
    test, value, other = expr.args
    return _choose(rows, (Expr("call", (test,), "isnotnull"), _ALWAYS), (value, other))


def _nullif(expr: Expr, rows: pa.Table) -> pa.Array:
    value, other = expr.args
    return _choose(rows, (Expr("=", (value, other)), _ALWAYS), (_NULL, value))


def _logic(decisive: bool, expr: Expr, rows: pa.Table) -> pa.Array:
    """AND or OR: a part is computed only where those before it do not decide."""
    decided = np.zeros(rows.num_rows, np.bool_)
    value: pa.Array = _repeat(pa.scalar(not decisive), rows)
    for arg in expr.args:
        part = evaluate(arg, _select(rows, ~decided))
        if not (pa.types.is_boolean(part.type) or pa.types.is_null(part.type)):
            raise NeedsSparkError(expr.sql())
        whole = _replace(_repeat(pa.scalar(decisive), rows), ~decided, part.cast(BOOLEAN))
        value = (pc.or_kleene if decisive else pc.and_kleene)(value, whole)
        decided = decided | (_is_true(value) if decisive else _is_true(pc.invert(value)))
    return value


def _or(expr: Expr, rows: pa.Table) -> pa.Array:
    """OR, or a value IN a list, all of one type."""
    if expr.value != LISTED:
        return _logic(True, expr, rows)
    values = [evaluate(part, rows) for part in expr.parts]
    kind = common_type(value.type for value in values)
    value, *members = (cast(value, kind) for value in values)
    return reduce(pc.or_kleene, (compare("=", value, member).cast(BOOLEAN) for member in members))


WINDOW = "#window"
"""The column with the window of rows that were unfolded into their windows."""


def find_window(expr: Expr) -> Expr | None:
    """The call of ``window`` or ``session_window`` in an expression."""
    if expr.op == "call" and expr.text.lower() in ("window", "session_window"):
        return expr
    return next((call for arg in expr.args if (call := find_window(arg)) is not None), None)


def _window(expr: Expr, rows: pa.Table) -> pa.Array:
    """The window of each row: of several, and of none, there are as many rows (`windows_of_rows`)."""
    if WINDOW in rows.column_names:
        return rows.column(WINDOW).combine_chunks()
    windows = windows_of_rows(expr, rows)
    if len(windows.values) != rows.num_rows or (np.diff(windows.offsets.to_numpy()) != 1).any():
        raise NeedsSparkError(expr.sql())
    return windows.values


def windows_of_rows(call: Expr, rows: pa.Table) -> pa.ListArray:
    """The windows that each row lies in, by a call of ``window`` or ``session_window``."""
    return windows_of_times(call, evaluate(call.args[0], rows))


def _not(expr: Expr, values: Values) -> pa.Array:
    (value,) = values
    return pc.invert(cast(value, BOOLEAN) if pa.types.is_null(value.type) else value)


def _is_truth(wanted: bool | None, expr: Expr, values: Values) -> pa.Array:
    """IS TRUE, IS FALSE, IS UNKNOWN."""
    value = cast(values[0], BOOLEAN)
    return value.is_null() if wanted is None else pc.fill_null(pc.equal(value, wanted), False)


def _cast(is_try: bool, expr: Expr, values: Values) -> pa.Array:
    if "COLLATE" in str(expr.value).upper() or re.match(r"(VAR)?CHAR\b", str(expr.value), re.IGNORECASE):
        raise NeedsSparkError(expr.sql())
    try:
        kind = arrow_type(str(expr.value))
    except WatersmeetError as error:
        raise NeedsSparkError(expr.sql()) from error
    return cast(values[0], kind, is_try=is_try)


def _cast_call(kind: pa.DataType, expr: Expr, values: Values) -> pa.Array:
    """A type as a function: ``date(x)``, ``to_date(x)``."""
    if len(expr.args) != 1:
        raise NeedsSparkError(expr.sql())
    return cast(values[0], kind)


CHOICES: Mapping[str, Callable[[Expr, pa.Table], pa.Array]] = {
    "column": _column,
    "and": partial(_logic, False),
    "or": _or,
    "case": _case,
    "if": _case,
    "coalesce": _coalesce,
    "ifnull": _coalesce,
    "nvl": _coalesce,
    "nvl2": _nvl2,
    "nullif": _nullif,
    "window": _window,
    "session_window": _window,
    **lambda_functions(evaluate),
}
"""Evaluators of an expression over rows, by its operator, or the name of its call in small letters."""


FUNCTIONS: Mapping[str, Evaluator] = {
    **NUMBERS,
    **TIMES,
    **TEXTS,
    **COLLECTIONS,
    "not": _not,
    "is_null": lambda expr, values: pc.is_null(values[0]),
    "isnull": lambda expr, values: pc.is_null(values[0]),
    "isnotnull": lambda expr, values: pc.is_valid(values[0]),
    "is true": partial(_is_truth, True),
    "is false": partial(_is_truth, False),
    "is unknown": partial(_is_truth, None),
    "cast": partial(_cast, False),
    "try_cast": partial(_cast, True),
    "string": partial(_cast_call, TEXT),
    "boolean": partial(_cast_call, BOOLEAN),
    "tinyint": partial(_cast_call, pa.int8()),
    "smallint": partial(_cast_call, pa.int16()),
    "int": partial(_cast_call, INT),
    "bigint": partial(_cast_call, BIGINT),
    "float": partial(_cast_call, pa.float32()),
    "double": partial(_cast_call, DOUBLE),
    "date": partial(_cast_call, DATE),
    "to_date": partial(_cast_call, DATE),
    "timestamp": partial(_cast_call, TIME),
    "to_timestamp": partial(_cast_call, TIME),
    "timestamp_ltz": partial(_cast_call, TIME),
    "timestamp_ntz": partial(_cast_call, pa.timestamp("us")),
}
"""Evaluators of a call or an operator, by its name in small letters."""
