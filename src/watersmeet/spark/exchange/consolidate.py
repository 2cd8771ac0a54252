"""Changes put together: those of equal rows added up, so that what cancels out is not seen."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    MapType,
    StringType,
    StructType,
    VarcharType,
    VariantType,
)

from watersmeet.formats.feed import CHANGE
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.plan.expressions import quote
from watersmeet.spark.time_texts import EXACT


def consolidate(changes: DataFrame) -> DataFrame:
    """The columns of a table and ``#weight``: how often each row comes (above 0) or goes (below) on the whole.

    What is given has ``_change``, or ``#weight`` already.
    """
    names = columns_of(changes)
    weight = F.col(quote(WEIGHT)) if WEIGHT in changes.columns else F.when(F.col(CHANGE) == "-", -1).otherwise(1)
    keyed = changes.select(
        *(F.col(quote(n)) for n in names), weight.cast("bigint").alias(WEIGHT), *comparison_columns(changes)
    )
    values = [F.first(quote(name)).alias(name) for name in names]
    summed = keyed.groupBy(*comparison_names(changes)).agg(F.sum(quote(WEIGHT)).alias(WEIGHT), *values)
    return summed.where(F.col(quote(WEIGHT)) != 0).select(*(F.col(quote(n)) for n in (*names, WEIGHT)))


def columns_of(changes: DataFrame) -> list[str]:
    """The columns of the table itself."""
    return [name for name in changes.columns if name not in (CHANGE, WEIGHT)]


def comparison_columns(frame: DataFrame, suffix: str = "") -> Sequence[Column]:
    """What equal rows have in common, one column for each, under the names of `comparison_names`."""
    types = {field.name: field.dataType for field in frame.schema}
    columns: list[Column] = []
    for name, key in zip(columns_of(frame), comparison_names(frame, suffix), strict=True):
        column = F.col(quote(name))
        # A map cannot be compared, and texts may be equal in their collation that are not the same.
        plain = column if _is_plain(types[name]) else F.to_json(F.struct(column.alias("v")), EXACT)
        columns.append(plain.alias(key))
    return columns


def comparison_names(frame: DataFrame, suffix: str = "") -> list[str]:
    """The names of what rows are compared by."""
    return [f"#{number}{suffix}" for number in range(len(columns_of(frame)))]


def _is_plain(type_: DataType) -> bool:
    match type_:
        case MapType() | VariantType():
            return False
        case ArrayType():
            return _is_plain(type_.elementType)
        case StructType():
            return all(_is_plain(field.dataType) for field in type_)
        case CharType() | VarcharType():
            return True
        case StringType():
            return type_.isUTF8BinaryCollation()
        case _:
            return True
