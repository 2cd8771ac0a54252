"""The changes that rows of a table tell: in Delta's form, in ``_change``, or by a condition."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DataType

from watersmeet.catalog import Field, Source
from watersmeet.errors import Refusal
from watersmeet.formats import source_format
from watersmeet.formats.delta import CHANGE_TYPE, VERSION
from watersmeet.formats.feed import CHANGE
from watersmeet.plan.expressions import quote
from watersmeet.spark.exchange.packing import ORDER
from watersmeet.spark.sources.malformed import error_columns
from watersmeet.spark.sources.ranges import is_lost
from watersmeet.spark.sources.records import (
    DELETE,
    INSERT,
    is_deleted,
    key_error_columns,
    key_of_record,
    partition_of,
    place_of_record,
)


def delta_changes(source: Source, frame: DataFrame) -> DataFrame:
    """The changes in rows of Delta's change data feed.

    By key, they count in the order of their versions, and within one what goes does so before anything comes: Delta
    delivers them otherwise. Rows in its form that have no version count as they are delivered; of an upsert the row
    before it is left out then.
    """
    kind = F.col(CHANGE_TYPE)
    reason = "its `_change_type` is not a change type of Delta"
    hint = "read Delta's change data feed, or leave CHANGES FROM out."
    sign = (
        F.when(kind.isin("insert", "update_postimage"), INSERT)
        .when(kind.isin("delete", "update_preimage"), DELETE)
        .otherwise(refusal_column(source, reason, hint, "string"))
    )
    changes = frame.withColumn(CHANGE, sign)
    columns = (*cast_columns(source, frame), F.col(CHANGE), *error_columns(frame))
    if not source.primary_key:
        return changes.select(*columns)
    if VERSION not in frame.columns:
        return changes.where(kind.isNull() | (kind != "update_preimage")).select(*columns)
    order = F.col(VERSION).cast("bigint") * 2 + (F.col(CHANGE) == INSERT).cast("bigint")
    return changes.select(*columns, order.alias(ORDER))


def row_changes(source: Source, frame: DataFrame) -> DataFrame:
    """The declared columns and the key of a record, if there is one.

    For a table also ``_change``: told by a condition, by a column of that name, or not at all: always ``+``.
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
    return [_cast_column(source, f, types.get(f.name.lower())) for f in source.fields]


def _cast_column(source: Source, field: Field, found: DataType | None) -> Column:
    value = F.col(quote(field.name))
    declared = DataType.fromDDL(field.type)
    if found is None or found.simpleString() == declared.simpleString():
        return value.cast(field.type).alias(field.name)
    parameters = {
        "source": source.name,
        "column": field.name,
        "type": field.type,
        "found": found.simpleString().upper(),
    }
    text = Refusal("VALUE_OUT_OF_RANGE", parameters).to_message()
    fitted = value.try_cast(field.type)
    # Not a plain cast: in ANSI mode it names no place, and in the other mode it gives another value.
    lost = is_lost(value, fitted, found, declared)
    return F.when(lost, F.raise_error(F.lit(text)).cast(field.type)).otherwise(fitted).alias(field.name)


def refusal_column(source: Source, reason: str, hint: str, type_: str = "boolean") -> Column:
    """What stops the query with a refusal when it is evaluated."""
    text = Refusal("WRONG_CHANGE", {"source": source.name, "reason": reason, "hint": hint}).to_message()
    return F.raise_error(F.lit(text)).cast(type_)
