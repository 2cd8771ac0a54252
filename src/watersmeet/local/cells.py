"""Cells of a case, as YAML gives them, to values of declared types.

Timestamps and dates are ISO texts (without an offset: UTC), decimals texts or numbers, binary values text in UTF-8 or
YAML's ``!!binary``, maps and structs mappings, intervals numbers of seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, cast

import numpy as np
import pyarrow as pa

from watersmeet.catalog import Field
from watersmeet.errors import refuse
from watersmeet.formats.feed import CHANGE
from watersmeet.operators.core.changes import WEIGHT, consolidate_changes
from watersmeet.operators.core.python_values import python_value
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
    """Rows of a table, of which each may begin with ``+`` or ``-``, with that in a last column.

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
    """Changes with weights as cases list them: put together, each as often as its weight says, what it does in front.

    >>> to_signed_rows(pa.table({"id": [1, 2, 2], WEIGHT: [2, 1, -1]})).to_pylist()
    [{'_change': '+', 'id': 1}, {'_change': '+', 'id': 1}]
    """
    net = consolidate_changes(changes, changes.column_names[:-1])
    weights = net.column(WEIGHT).to_numpy()
    rows = net.drop_columns([WEIGHT]).take(pa.array(np.repeat(np.arange(len(weights)), np.abs(weights))))
    signs = np.repeat(np.where(weights > 0, "+", "-"), np.abs(weights))
    return rows.add_column(0, CHANGE, pa.array(signs.tolist(), pa.string()))


def cell(value: Any, kind: pa.DataType) -> Any:
    """A cell as the value that Arrow gives back for its type; ValueError if it is none.

    >>> cell("1.5", pa.decimal128(10, 2))
    Decimal('1.50')
    """
    if value is None:
        return None
    try:
        return python_value(pa.scalar(_convert(value, kind), kind))
    except (pa.ArrowException, TypeError, InvalidOperation, OverflowError) as error:
        raise ValueError(f"{value!r} is not of type {kind}") from error


def _convert(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_nested(kind):
        return _convert_nested(value, kind)
    if pa.types.is_timestamp(kind):
        return _timestamp(value, is_zoned=kind.tz is not None)
    if pa.types.is_date(kind):
        return date.fromisoformat(value) if isinstance(value, str) else value
    if pa.types.is_decimal(kind):
        return Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale))
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
