"""Whether the number of rows bounds the bytes of what crosses to Python."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    NumericType,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from watersmeet.spark.exchange.leaving import OUTPUT_NAMES
from watersmeet.spark.exchange.packing import PACKED
from watersmeet.spark.private.crossings import PythonTransfer

_FIXED = (
    NumericType, BooleanType, DateType, TimestampType, TimestampNTZType, DayTimeIntervalType, YearMonthIntervalType,
)  # fmt: skip
_WIDEST = 16
"""So many bytes does a value of fixed width take at most, as decimals do."""
_OURS = (
    # From the exchange into a join, under the label of the group; out of a join, into rows or into the next exchange.
    ([PACKED.names[0], *PACKED.names], OUTPUT_NAMES),
    (OUTPUT_NAMES, None),
    # Paths of files that workers read, and marks from outside: few rows, and short ones.
    (["path"], PACKED.names),
    (["column", "value"], PACKED.names),
)
"""What crosses in the exchange by the names of its columns, given and made; None: any."""


def is_bounded(crossings: Iterable[PythonTransfer], room: int | None) -> bool:
    """Whether rows cross, and none of them takes more than its room; records of ours have spacers, see `packing`."""
    rows = [one.input_schema for one in crossings if not _is_ours(one)]
    return room is not None and bool(rows) and all(_width(one) <= room for one in rows)


def _is_ours(one: PythonTransfer) -> bool:
    return any(one.input_schema.names == given and made in (None, one.output_schema.names) for given, made in _OURS)


def _width(type_: DataType) -> float:
    """How many bytes a value of a type takes at most."""
    if isinstance(type_, StructType):
        return 1 + sum(_width(field.dataType) for field in type_)
    return _WIDEST if isinstance(type_, _FIXED) else inf
