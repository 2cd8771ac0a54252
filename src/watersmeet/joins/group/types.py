"""The types that the aggregate functions of a grouping give, in Arrow."""

from __future__ import annotations

import pyarrow as pa

from watersmeet.joins.group.aggregates import averaged, function_of, widened


def arrow_result(function: str, types: tuple[pa.DataType, ...]) -> pa.DataType:
    """The same for Arrow types, which the function takes.

    >>> arrow_result("sum", (pa.decimal128(38, 2),)), arrow_result("avg", (pa.int8(),))
    (Decimal128Type(decimal128(38, 2)), DataType(double))
    """
    found = function_of(function)
    if found.gives == "BIGINT":
        return pa.int64()
    if found.gives == "BOOLEAN" or found.gives == "first":
        return types[0]
    if found.gives == "list":
        return pa.list_(types[0])
    if found.gives == "total":
        if pa.types.is_decimal(types[0]):
            widen = widened if found.plain == "sum" else averaged
            return pa.decimal128(*widen(types[0].precision, types[0].scale))
        if pa.types.is_duration(types[0]):
            return types[0]
        if found.plain == "sum" and pa.types.is_integer(types[0]):
            return pa.int64()
    return pa.float64()
