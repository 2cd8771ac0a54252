"""The types of Spark in Postgres, and their values as the text that COPY reads."""

from __future__ import annotations

from typing import LiteralString

from psycopg.sql import SQL, Composable
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from watersmeet.plan.expressions import quote

_NESTED = (ArrayType, MapType, StructType, VariantType)
_TYPES: dict[type[DataType], LiteralString] = {
    BooleanType: "boolean",
    ByteType: "smallint",
    ShortType: "smallint",
    IntegerType: "integer",
    LongType: "bigint",
    FloatType: "real",
    DoubleType: "double precision",
    BinaryType: "bytea",
    DateType: "date",
    TimestampType: "timestamptz",
    TimestampNTZType: "timestamp",
}
"""The types that have a name of their own; nested values become jsonb, whatever else there is becomes text."""


def type_in_postgres(type_: DataType) -> Composable:
    """The type of a column in Postgres.

    >>> type_in_postgres(DecimalType(10, 2)).as_string()
    'numeric(10, 2)'
    >>> type_in_postgres(ArrayType(LongType())).as_string()
    'jsonb'
    """
    if isinstance(type_, DecimalType):
        return SQL("numeric({}, {})").format(type_.precision, type_.scale)
    return SQL("jsonb" if isinstance(type_, _NESTED) else _TYPES.get(type(type_), "text"))


def text_for_postgres(field: StructField) -> Column:
    """The values of a column as the text from which Postgres reads its type."""
    column = F.col(quote(field.name))
    match field.dataType:
        case ArrayType() | MapType() | StructType() | VariantType():
            text = F.to_json(column)
        case BinaryType():
            text = F.concat(F.lit("\\x"), F.hex(column))
        case TimestampType():
            # With its offset, so that the time zones of Spark and of Postgres need not be the same.
            text = F.date_format(column, "yyyy-MM-dd HH:mm:ss.SSSSSSxxx")
        case _:
            text = column.cast("string")
    return text.alias(field.name)
