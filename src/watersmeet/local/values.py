"""Expressions over the rows of a table, in the process: what the kernel's evaluator knows, and a few things besides.

These are fields of structs, casts of whole numbers, event-time windows that follow one another, and those of sources in
``TABLE(...)``. All else that Spark would compute raises `NeedsSparkError`, so that nothing is ever computed otherwise
than Spark does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.duration import parse_duration
from watersmeet.local.rows import NeedsSparkError
from watersmeet.local.types import check_types
from watersmeet.operators.core.condition import Columns, Condition, evaluate, holds
from watersmeet.physical.condition import plain_condition
from watersmeet.plan.expressions import Expr, Reference, windows_in
from watersmeet.schema import arrow_type

_FIELDS = re.compile(r"(?P<path>(?:\.\w+)+)")
_WINDOW = re.compile(r"\s*,\s*'(?P<length>[^']*)'\s*\)(?P<path>(?:\.\w+)*)")


SparkEvaluator = Callable[[str, pa.Table], pa.Array]
"""What evaluates an expression, as SQL over the columns of a table, that cannot be evaluated here."""

SPARK_EVALUATOR: ContextVar[SparkEvaluator | None] = ContextVar("elsewhere", default=None)
"""Where to ask for what only Spark can evaluate; None: nowhere, so that it is refused."""


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
    """Refuse what is computed of strings of a collation: the rows have lost it, wherever that is evaluated."""
    read = collation_columns(rows).intersection(ref.column for ref in expr.references)
    if read and expr.op != "column":
        raise NeedsSparkError(f"{expr.sql()}, of strings with a collation")


def has_spark_evaluator() -> bool:
    """Whether Spark is at hand for what cannot be evaluated here."""
    return SPARK_EVALUATOR.get() is not None


def evaluate_on_spark(sql: str, rows: pa.Table) -> pa.Array:
    """The value of an expression that only Spark can evaluate, if somebody does."""
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
    """The expression with fields of structs and casts as columns of their own, and these columns."""
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
    if expr.op == "cast":
        value = value_of(expr.args[0], rows)
        kind = arrow_type(str(expr.value))
        if not casts_as_spark(value.type, kind) or "COLLATE" in str(expr.value).upper():
            raise NeedsSparkError(expr.sql())
        return _as_column(expr, value.cast(kind))
    parts = [_extract_columns(arg, rows) for arg in expr.args]
    columns = {name: column for _, part_columns in parts for name, column in part_columns.items()}
    return replace(expr, args=tuple(part for part, _ in parts)), columns


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
    """The window of each time, counted from 1970 on; None where only Spark can tell: it drops rows without a time."""
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
