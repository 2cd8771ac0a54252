"""The types that the aggregate functions of a grouping give, in Arrow."""

from __future__ import annotations

import pyarrow as pa

from watersmeet.joins.group.aggregates import average_precision, function_of, sum_precision


def arrow_result(function: str, types: tuple[pa.DataType, ...]) -> pa.DataType:
    """The same for Arrow types, which the function takes.

    >>> arrow_result("sum", (pa.decimal128(38, 2),)), arrow_result("avg", (pa.int8(),))
    (Decimal128Type(decimal128(38, 2)), DataType(double))
    """
    aggregate = function_of(function)
    if aggregate.gives == "BIGINT":
        return pa.int64()
    if aggregate.gives == "BOOLEAN" or aggregate.gives == "first":
        return types[0]
    if aggregate.gives == "list":
        return pa.list_(types[0])
    if aggregate.gives == "total":
        if pa.types.is_decimal(types[0]):
            precision_of = sum_precision if aggregate.base_name == "sum" else average_precision
            return pa.decimal128(*precision_of(types[0].precision, types[0].scale))
        if pa.types.is_duration(types[0]):
            return types[0]
        if aggregate.base_name == "sum" and pa.types.is_integer(types[0]):
            return pa.int64()
    return pa.float64()
