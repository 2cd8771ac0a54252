"""Changes of plain tables: from a condition, from a column ``_change``, or always ``+``; and declared columns."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DataType

from watersmeet.catalog import Source
from watersmeet.errors import Refusal
from watersmeet.formats import source_format
from watersmeet.operators.core.changes import CHANGE
from watersmeet.spark.connectors.malformed import error_columns, fit_column
from watersmeet.spark.connectors.records import (
    DELETE,
    INSERT,
    is_deleted,
    key_error_columns,
    key_of_record,
    partition_of,
    place_of_record,
)


def row_changes(source: Source, frame: DataFrame) -> DataFrame:
    """The declared columns and the key of a record, if there is one.

    For a table also ``_change``: from a condition, from a column of that name, or always ``+``.
    """
    key = key_of_record(source, frame)
    columns = [
        *cast_columns(source, frame),
        *key,
        *(error_columns(frame) or (key_error_columns(source, frame) if key else ())),
    ]
    if source.kind == "stream":
        names = {name.lower() for name in frame.columns}
        is_kafka = source_format(source).has_partitions and names.issuperset(("topic", "partition"))
        return frame.select(*columns, *((partition_of(place_of_record(frame)),) if is_kafka else ()))
    if "deletes" in source.lowercase_options:
        return frame.select(*columns, F.when(is_deleted(source), DELETE).otherwise(INSERT).alias(CHANGE))
    has_change = source.field(CHANGE) is None and any(name.lower() == CHANGE for name in frame.columns)
    return frame.select(*columns, *((F.col(CHANGE).cast("string"),) if has_change else ()))


def cast_columns(source: Source, frame: DataFrame) -> list[Column]:
    """The declared columns, in the declared types; a value that does not fit stops the query."""
    types = {field.name.lower(): field.dataType for field in frame.schema}
    return [fit_column(source, f.name, DataType.fromDDL(f.type), types.get(f.name.lower())) for f in source.fields]


def refusal_column(source: Source, reason: str, hint: str, type_: str = "boolean") -> Column:
    """A column that stops the query with a refusal when it is evaluated."""
    text = Refusal("WRONG_CHANGE", {"source": source.name, "reason": reason, "hint": hint}).to_message()
    return F.raise_error(F.lit(text)).cast(type_)
