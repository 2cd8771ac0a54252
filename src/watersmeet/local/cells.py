"""Cells of a case as typed values, definitions behind one interface, and the output rows of an emission.

Timestamps and dates are ISO texts (without an offset: UTC), decimals texts or numbers, binary values text in UTF-8 or
YAML's ``!!binary``, maps and structs mappings, intervals numbers of seconds.

Output rows are padded and derived over Arrow as Spark does it after a join.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from importlib import import_module
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import Field
from watersmeet.errors import refuse
from watersmeet.logical.expressions import Expr
from watersmeet.logical.relation import Padding
from watersmeet.logical.words import without_generated_names
from watersmeet.operators.core.changes import CHANGE, WEIGHT, consolidate_changes
from watersmeet.operators.core.operator import Emission, StepReport, StreamOperator, Watermarks
from watersmeet.operators.core.python_values import arrow_values, python_rows, python_value
from watersmeet.physical import PADDED, Derived, JoinPlan
from watersmeet.schema import arrow_type


def arrow_table(fields: Sequence[Field], rows: Iterable[Sequence[Any]], path: str = "case") -> pa.Table:
    """Rows by position as an Arrow table; refused with WRONG_CASE where a row does not fit the fields.

    >>> arrow_table([Field("id", "BIGINT"), Field("day", "DATE")], [[1, "2024-05-01"]]).to_pylist()
    [{'id': 1, 'day': datetime.date(2024, 5, 1)}]
    """
    kinds = [arrow_type(f.type) for f in fields]
    columns: list[list[Any]] = [[] for _ in fields]
    for row in rows:
        if len(row) != len(fields):
            raise refuse("WRONG_CASE", path=path, reason=f"{list(row)} has {len(row)} cells, not {len(fields)}")
        for field, kind, values, column in zip(fields, kinds, row, columns, strict=True):
            try:
                column.append(cell(values, kind))
            except ValueError:
                reason = f"{values!r} is not a value of `{field.name}`, whose type is {field.type}"
                raise refuse("WRONG_CASE", path=path, reason=reason) from None
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.Table.from_arrays(arrays, names=[f.name for f in fields])


def change_table(fields: Sequence[Field], rows: Iterable[Sequence[Any]], path: str = "case") -> pa.Table:
    """Rows of a table, each optionally preceded by ``+`` or ``-``, with that in a last column.

    >>> change_table([Field("id", "BIGINT")], [["-", 1], [2]]).to_pylist()
    [{'id': 1, '_change': '-'}, {'id': 2, '_change': '+'}]
    """
    signs, bare = list[str](), list[Sequence[Any]]()
    for row in rows:
        is_signed = len(row) == len(fields) + 1 and row[0] in ("+", "-")
        signs.append(row[0] if is_signed else "+")
        bare.append(row[1:] if is_signed else row)
    return arrow_table(fields, bare, path).append_column(CHANGE, pa.array(signs, pa.string()))


def to_signed_rows(changes: pa.Table) -> pa.Table:
    """Weighted changes as cases list them: consolidated, each repeated by its weight, with its sign in front.

    >>> to_signed_rows(pa.table({"id": [1, 2, 2], WEIGHT: [2, 1, -1]})).to_pylist()
    [{'_change': '+', 'id': 1}, {'_change': '+', 'id': 1}]
    """
    net = consolidate_changes(changes, changes.column_names[:-1])
    weights = net.column(WEIGHT).to_numpy()
    rows = net.drop_columns([WEIGHT]).take(pa.array(np.repeat(np.arange(len(weights)), np.abs(weights))))
    signs = np.repeat(np.where(weights > 0, "+", "-"), np.abs(weights))
    return rows.add_column(0, CHANGE, pa.array(signs.tolist(), pa.string()))


def cell(value: Any, kind: pa.DataType) -> Any:
    """A cell as the value that Arrow gives back for its type; ValueError if the cell cannot be converted.

    >>> cell("1.5", pa.decimal128(10, 2))
    Decimal('1.50')
    >>> cell("123456789012345678901234567890.12", pa.decimal128(32, 2))
    Decimal('123456789012345678901234567890.12')
    """
    if value is None:
        return None
    try:
        return python_value(pa.scalar(_convert(value, kind), kind))
    except (pa.ArrowException, TypeError, InvalidOperation, OverflowError) as error:
        raise ValueError(f"{value!r} is not of type {kind}") from error


def _convert(value: Any, kind: pa.DataType) -> Any:  # noqa: PLR0911 - one case per type
    if value is None:
        return None
    if pa.types.is_nested(kind):
        return _convert_nested(value, kind)
    if pa.types.is_timestamp(kind):
        return _timestamp(value, is_zoned=kind.tz is not None)
    if pa.types.is_date(kind):
        return date.fromisoformat(value) if isinstance(value, str) else value
    if pa.types.is_decimal(kind):
        # Python's own 28 digits are fewer than a DECIMAL has.
        return Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale), context=Context(prec=76))
    if pa.types.is_binary(kind):
        return value.encode() if isinstance(value, str) else value
    if pa.types.is_duration(kind):
        return value if isinstance(value, timedelta) else timedelta(seconds=value)
    if pa.types.is_floating(kind):
        return float(value)
    # YAML's true would pass for 1.
    if isinstance(value, bool) != pa.types.is_boolean(kind):
        raise ValueError(f"{value!r} is not of type {kind}")
    return value


def _timestamp(value: Any, *, is_zoned: bool) -> datetime:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        raise ValueError(f"{value!r} is not a timestamp")
    if is_zoned:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return value.replace(tzinfo=None)


def _convert_nested(value: Any, kind: Any) -> Any:
    if pa.types.is_map(kind):
        pairs = cast("Mapping[Any, Any]", value).items() if isinstance(value, Mapping) else value
        return [(_convert(k, kind.key_type), _convert(v, kind.item_type)) for k, v in pairs]
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        parts = dict(cast("Any", value) if isinstance(value, Mapping) else zip(names, value, strict=True))
        if set(parts) - set(names):
            raise ValueError(f"{value!r} is not of type {kind}")
        return {name: _convert(parts.get(name), kind.field(name).type) for name in names}
    if not isinstance(value, list | tuple):
        raise ValueError(f"{value!r} is not a list")
    return [_convert(part, kind.value_type) for part in cast("list[Any]", value)]


class NeedsSparkError(Exception):
    """Raised for a query with an expression that only Spark can evaluate."""

    def __str__(self) -> str:
        return without_generated_names(super().__str__())


FAILURES = (pa.ArrowException, ArithmeticError)
"""The errors of an expression over values that stop a query on Spark, too: an overflow, a division by zero."""


def output_schema(operator: StreamOperator, tables: Mapping[int, pa.Table]) -> pa.Schema:
    """The columns of an emission: those of each port, then the extra ones of the join."""
    shown = [tables[port].schema.field(name) for port, names in enumerate(operator.result_columns) for name in names]
    types = operator.extra_types([tables[port].schema for port in sorted(tables)])
    return pa.schema([*(pa.field(f.name, f.type) for f in shown), *map(pa.field, operator.extra, types)])


def complete_rows(plan: JoinPlan, rows: pa.Table) -> pa.Table:
    """The rows with padding values where a side is missing, and with derived columns instead of the extra ones."""
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
    """The default value of a type: 0, the empty string, false, 1970-01-01, an empty list.

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
    """The value of a column where its side is missing; None: NULL."""
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
    """A derived column from the operator's extra columns."""
    values = rows.column(column.of).combine_chunks()
    if column.port is None:
        return values
    kind, port = arrow_type(type_), rows.column(column.port).combine_chunks()
    at = values.cast(pa.timestamp("us")).cast(kind) if pa.types.is_date32(kind) else values.cast(kind)
    side = pa.array(column.sides).take(port)
    return pa.StructArray.from_arrays([side, at], names=["side", "at"], mask=port.is_null())


Row = Mapping[str, Any]

_REPORT_FIELDS = ("state", "partitions", "watermarks")
"""The fields of a report that a definition may have as an operator does."""


class Definition(Protocol):
    """A join in progress, as its family's definition has it."""

    def step(self, arrivals: Mapping[int, Iterable[Row]], watermarks: Watermarks) -> Any:
        """Process one batch: the rows that arrived per port, and their watermarks."""
        ...


def definition_of(operator: StreamOperator) -> Definition:
    """The definition of an operator's output: ``DEFINITION`` of the module next to it.

    >>> from watersmeet.operators.core.operator import Port
    >>> from watersmeet.operators.latest.kernel import LatestOperator
    >>> type(definition_of(LatestOperator(Port(("k",), (), ("k",))))).__name__
    'LatestReference'
    """
    folder = type(operator).__module__.rpartition(".")[0]
    return import_module(f"{folder}.definition").DEFINITION(operator)


def step_by_definition(
    definition: Definition, operator: StreamOperator, tables: Mapping[int, pa.Table], watermarks: Watermarks
) -> Emission:
    """Run one batch by the definition, and return its result as an operator would emit it."""
    arrivals = {port: python_rows(table) for port, table in tables.items() if table.num_rows}
    step = definition.step(arrivals, watermarks)
    if isinstance(step, Counter):
        rows = [(*row, number) for row, number in cast("Counter[tuple[Any, ...]]", step).items()]
        return Emission((output_table(rows, operator, tables),))
    late = tuple(
        (port, _late_table([row for p, row in step.late if p == port], table.schema)) for port, table in tables.items()
    )
    unmatched_rows: Sequence[tuple[int, Any]] = getattr(step, "unmatched", ())
    unmatched = tuple(
        (
            port,
            _make_unmatched_table(
                [row for p, row in unmatched_rows if p == port], operator.ports[port].unmatched, table
            ),
        )
        for port, table in tables.items()
    )
    report_values = {name: getattr(step, name) for name in _REPORT_FIELDS if hasattr(step, name)}
    return Emission((output_table(step.rows, operator, tables),), late, StepReport(**report_values), unmatched)


def output_table(rows: Sequence[Sequence[Any]], operator: StreamOperator, tables: Mapping[int, pa.Table]) -> pa.Table:
    """Rows of a join as it hands them out."""
    schema = output_schema(operator, tables)
    columns = [arrow_values([row[i] for row in rows], f.type) for i, f in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def _make_unmatched_table(rows: Sequence[Sequence[Any]], columns: Sequence[str], table: pa.Table) -> pa.Table:
    """Unmatched rows, with the columns of their side."""
    values = [arrow_values([row[i] for row in rows], table.schema.field(name).type) for i, name in enumerate(columns)]
    return pa.Table.from_arrays(values, names=list(columns))


def _late_table(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    columns = [arrow_values([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)
