"""The rows of an emission in the process: what stands for a missing side, and what is derived.

The same as Spark does after a join, over Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.local.cells import cell
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.operators.core.operator import StreamOperator
from watersmeet.physical import PADDED, Derived, JoinPlan
from watersmeet.plan.expressions import Expr
from watersmeet.plan.relation import Padding
from watersmeet.schema import arrow_type


class NeedsSparkError(Exception):
    """Raised for a query with an expression that only Spark can evaluate."""


FAILURES = (pa.ArrowException, ArithmeticError)
"""What an expression raises over values that stop a query on Spark, too: an overflow, a division by zero."""


def output_schema(operator: StreamOperator, tables: Mapping[int, pa.Table]) -> pa.Schema:
    """The columns of an emission: what it shows of each port, then what the join adds."""
    shown = [tables[port].schema.field(name) for port, names in enumerate(operator.result_columns) for name in names]
    types = operator.extra_types([tables[port].schema for port in sorted(tables)])
    return pa.schema([*(pa.field(f.name, f.type) for f in shown), *map(pa.field, operator.extra, types)])


def complete_rows(plan: JoinPlan, rows: pa.Table) -> pa.Table:
    """The rows with values where a side is missing, and with what is derived, in place of the extra columns."""
    for port, pad in enumerate(plan.pads):
        for name in plan.operator.result_columns[port] if plan.may_miss[port] and pad != "nulls" else ():
            position, kind = rows.column_names.index(name), rows.schema.field(name).type
            value = _padding(pad, name, kind)
            if value is not None:
                is_missing = pc.equal(rows.column(PADDED), port)
                rows = rows.set_column(position, name, pc.if_else(is_missing, value, rows.column(name)))
    for column in plan.derived:
        rows = rows.append_column(column.name, _derive_column(column, rows, dict(plan.extra_types)[column.of]))
    return rows.drop_columns([name for name in plan.operator.extra if name != WEIGHT and name not in plan.columns])


def default_value(kind: pa.DataType) -> Any:
    """The value of a type that stands for nothing: 0, the empty text, false, the beginning of 1970, nothing in it.

    >>> default_value(pa.struct([("a", pa.int32()), ("b", pa.string())]))
    {'a': 0, 'b': ''}
    """
    if pa.types.is_struct(kind):
        return {kind.field(i).name: default_value(kind.field(i).type) for i in range(kind.num_fields)}
    if pa.types.is_nested(kind):
        return []
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return ""
    if pa.types.is_binary(kind):
        return b""
    if pa.types.is_boolean(kind):
        return False
    if pa.types.is_temporal(kind):
        return pa.scalar(0, pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind).as_py()
    return Decimal(0) if pa.types.is_decimal(kind) else 0


def _padding(pad: Padding, name: str, kind: pa.DataType) -> pa.Scalar | None:
    """What a column shows where its side is missing; None: NULL."""
    if isinstance(pad, str):
        return pa.scalar(default_value(kind), kind)
    constant = dict(pad).get(name)
    return None if constant is None else pa.scalar(cell(_constant(constant), kind), kind)


def _constant(expr: Expr) -> Any:
    if expr.op == "literal":
        return expr.value
    if expr.op == "negate" and expr.args[0].op == "literal":
        return -Decimal(str(expr.args[0].value)) if isinstance(expr.args[0].value, float) else -expr.args[0].value  # type: ignore[operator]
    raise NeedsSparkError(expr.sql())


def _derive_column(column: Derived, rows: pa.Table, type_: str) -> pa.Array:
    """What the operator tells, as the frame shows it."""
    values = rows.column(column.of).combine_chunks()
    if column.port is None:
        return values
    kind, port = arrow_type(type_), rows.column(column.port).combine_chunks()
    at = values.cast(pa.timestamp("us")).cast(kind) if pa.types.is_date32(kind) else values.cast(kind)
    side = pa.array(column.sides).take(port)
    return pa.StructArray.from_arrays([side, at], names=["side", "at"], mask=port.is_null())
