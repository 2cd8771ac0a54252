"""The types of Spark in Postgres, and their values as the text that COPY reads."""

from __future__ import annotations

from psycopg.sql import SQL, Composable
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from watersmeet.plan.expressions import quote
from watersmeet.spark.time_texts import EXACT, time_for_postgres
from watersmeet.type_names import parse_type_name


def type_in_postgres(type_: DataType) -> Composable:
    """The type of a column in Postgres.

    >>> type_in_postgres(DecimalType(10, 2)).as_string()
    'numeric(10, 2)'
    >>> type_in_postgres(ArrayType(BinaryType())).as_string()
    'jsonb'
    """
    if isinstance(type_, DecimalType):
        return SQL("numeric({}, {})").format(type_.precision, type_.scale)
    type_name = parse_type_name(type_.simpleString())
    return SQL(type_name.postgres if type_name else "text")


def text_for_postgres(field: StructField) -> Column:
    """The values of a column as the text from which Postgres reads its type."""
    column = F.col(quote(field.name))
    match field.dataType:
        case ArrayType() | MapType() | StructType() | VariantType():
            text = F.to_json(column, EXACT)
        case BinaryType():
            text = F.concat(F.lit("\\x"), F.hex(column))
        case TimestampType() | TimestampNTZType() | DateType():
            text = time_for_postgres(column, field.dataType)
        case _:
            text = column.cast("string")
    return text.alias(field.name)
