"""The changes in Debezium's records."""

from __future__ import annotations

from decimal import Decimal
from functools import reduce
from typing import cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DataType, DecimalType

from watersmeet.catalog import Field, Source
from watersmeet.formats.debezium import DECIMALS, TIME_UNIT, TRUNCATE, Debezium, Unit, is_decimal, type_in_record
from watersmeet.formats.feed import CHANGE
from watersmeet.plan.expressions import quote
from watersmeet.spark.sources.debezium_avro import Form, decode_envelope, form_in_avro
from watersmeet.spark.sources.feeds import refusal_column
from watersmeet.spark.sources.malformed import (
    CORRUPT_RECORD,
    PLACE,
    REASON,
    VALUE,
    describe_misread,
    empty_error_columns,
    error_columns,
    explain_misread,
    permissive_options,
    with_corrupt_record,
)
from watersmeet.spark.sources.ranges import json_range_error
from watersmeet.spark.sources.records import DELETE, INSERT, place_of_record

_OPS = ("c", "r", "u", "d")
"""What Debezium tells of single rows: created, read by a snapshot, updated, deleted."""
_MESSAGE = "m"
_FARTHEST = 400
"""The largest scale of a decimal that comes with its own: Java computes as many digits of it."""
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def debezium_changes(feed: Debezium, frame: DataFrame) -> DataFrame:
    """The changes in Debezium's records: in a column ``value``, or as the columns of `Debezium.record`."""
    source = feed.source
    form = form_in_avro(source) if feed.is_avro else _in_json(feed)
    records = (decode_envelope(source, frame, form) if feed.is_avro else _open_envelope(feed, frame)).where(
        _is_change(source)
    )
    before, after = (_row(feed, form, sign, side) for sign, side in ((DELETE, "before"), (INSERT, "after")))
    goes = F.when(_is_retracted(source), before)
    comes = F.when(F.col("op") != "d", after)
    changes = F.filter(F.array(goes, comes), lambda change: change.isNotNull())
    # A record that nobody can read is a single row, which says so.
    alone = F.array(_row(feed, form, INSERT, "after"))
    rows = F.when(_is_malformed(), alone).otherwise(changes)
    return records.select(F.explode(rows).alias("c"), *error_columns(records)).select("c.*", quote(PLACE), quote(VALUE))


def _in_json(feed: Debezium) -> Form:
    """The form of rows in JSON: whatever a value is, and times in the unit that the source says."""
    unit = cast("Unit", feed.source.lowercase_options.get(TIME_UNIT, "micros").lower())
    return Form(
        {f.name: type_in_record(f.type) for f in feed.source.fields},
        dict.fromkeys((f.name for f in feed.source.fields), unit),
    )


def _open_envelope(feed: Debezium, frame: DataFrame) -> DataFrame:
    """The operation of each record, its row before and after, and what is told of it if it cannot be read."""
    if any(name.lower() == "value" for name in frame.columns):
        text = F.col("value").cast("string")
        record = F.from_json(text, with_corrupt_record(feed.record), permissive_options({}))
        origin = (place_of_record(frame).alias(PLACE), F.col("value").alias(VALUE))
        opened = frame.select(record.alias("r"), F.col("value").isNotNull().alias("is_told"), *origin)
        types = {"op": "STRING", "before": "an object", "after": "an object", "payload": "an object"}
        read = F.struct(*(F.col(f"r.{name}") for name in types))
        reason = explain_misread(F.col("r").getField(CORRUPT_RECORD), read, types, {}, is_json=True)
        reason = F.when(F.col("r").getField(CORRUPT_RECORD).isNotNull(), reason)
        overflow = json_range_error(F.col(quote(VALUE)).cast("string"), feed.record, {})
        opened = opened.withColumn(REASON, F.coalesce(reason, overflow))
    else:
        columns = F.struct("op", "before", "after", "payload").alias("r")
        opened = frame.select(columns, F.lit(True).alias("is_told"), *(error_columns(frame) or empty_error_columns()))
    parts = [
        F.coalesce(F.col(f"r.payload.{part}"), F.col(f"r.{part}")).alias(part) for part in ("op", "before", "after")
    ]
    return opened.select(*parts, "is_told", *error_columns(opened))


def _is_change(source: Source) -> Column:
    """Whether a record changes rows; what cannot be followed stops the query."""
    op, before, after = F.col("op"), F.col("before"), F.col("after")
    ignores_truncate = source.lowercase_options.get(TRUNCATE, "").lower() == "ignore"
    truncated = refusal_column(
        source, "the table was truncated, and no record says which rows were deleted",
        f"start again with a new storage folder, or keep all rows: `OPTIONS ({TRUNCATE} 'ignore')`.",
    )  # fmt: skip
    no_after = refusal_column(source, "it has no `after`", "configure Debezium to send whole rows.")
    no_before = refusal_column(
        source, "it has no `before`, so the old row is not known",
        "declare the PRIMARY KEY of the table, or configure the database to log whole rows (`REPLICA IDENTITY FULL`).",
    )  # fmt: skip
    no_op = refusal_column(
        source, "its `op` is not an operation of Debezium", "leave CHANGES FROM debezium out, or send its records."
    )
    needs_before = op == "d" if source.primary_key else op.isin("u", "d")
    return (
        # Behind the record of a delete Debezium sends one without a value, for the compaction of the topic.
        F.when(~F.col("is_told"), F.lit(False))
        .when(_is_malformed(), F.lit(True))
        .when(op == "t", F.lit(False) if ignores_truncate else truncated)
        .when(op == _MESSAGE, F.lit(False))
        .when(op.isNull() | ~op.isin(*_OPS), no_op)
        .when(needs_before & before.isNull(), no_before)
        .when((op != "d") & after.isNull(), no_after)
        .otherwise(F.lit(True))
    )


def _is_retracted(source: Source) -> Column:
    """Whether the row before the change is taken back: with a primary key, if no row of that key comes."""
    op = F.col("op")
    if not source.primary_key:
        return op.isin("u", "d")
    keys = [f.name for name in source.primary_key if (f := source.field(name)) is not None]
    pairs = [(F.col(f"before.{quote(key)}"), F.col(f"after.{quote(key)}")) for key in keys]
    moved = reduce(lambda a, b: a | b, (old.isNotNull() & ~old.eqNullSafe(new) for old, new in pairs))
    return (op == "d") | ((op == "u") & moved)


def _row(feed: Debezium, form: Form, sign: str, side: str) -> Column:
    """The row of a side with what it does, and why it cannot be read, if so."""
    struct, fields = F.col(side), feed.source.fields
    values = [_value(struct.getField(f.name), f, feed, form).alias(f.name) for f in fields]
    unsaid = f" (say `{DECIMALS} 'precise'` or `'string'`)" if feed.decimals is None and not feed.is_avro else ""
    types = {f.name: f.type + unsaid * is_decimal(f.type) for f in fields if f.type != form.types[f.name]}
    texts = F.from_json(F.to_json(struct), "map<string,string>")
    read = F.struct(*(value for value, f in zip(values, fields, strict=True) if f.name in types))
    wrong = F.nullif(describe_misread(texts, read, types), F.lit("")) if types else F.lit(None).cast("string")
    return F.struct(*values, F.lit(sign).alias(CHANGE), F.coalesce(F.col(quote(REASON)), wrong).alias(REASON))


def _is_malformed() -> Column:
    return F.col(quote(REASON)).isNotNull()


def _value(column: Column, field: Field, feed: Debezium, form: Form) -> Column:
    """A value of a record in its declared type; NULL, too, if it is none of it."""
    if form.types[field.name] == field.type:
        return column
    if is_decimal(field.type):
        in_any_form = form.types[field.name] == "VARIANT"
        return _decimal(column, field.type, feed.decimals) if in_any_form else column.try_cast(field.type)
    unit, column = form.units[field.name], column.cast("string")
    # Debezium gives times as numbers or as text, as it is set up.
    number, type_ = column.try_cast("bigint"), field.type.upper()
    if type_ == "DATE":
        day = F.date_from_unix_date(number.try_cast("int"))
        return F.when(number.isNotNull(), day).otherwise(column.try_cast("date"))
    # What is out of range is NULL, hence malformed: Spark would stop the query, and name no place.
    micros = F.try_multiply(number, F.lit(1000)) if unit == "millis" else number
    micros = _thousandth(number) if unit == "nanos" else micros
    if type_ == "TIMESTAMP_NTZ":
        since = F.timestamp_add("MICROSECOND", micros, F.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'"))
    else:
        since = F.timestamp_micros(micros)
    return F.when(number.isNotNull(), since).otherwise(column.try_cast(field.type))


def _decimal(column: Column, type_: str, form: str | None) -> Column:
    """A decimal: a number, text in one of two forms, or the digits with their own scale.

    Four digits are text of both forms. So what could be either is NULL, hence malformed, unless the form is said.
    """
    text = F.try_variant_get(column, "$", "string")
    is_text = F.schema_of_variant(column) == "STRING"
    is_scaled = F.schema_of_variant(column).startswith("OBJECT")
    plain, declared = text.try_cast(type_), cast("DecimalType", DataType.fromDDL(type_))
    scaled = _decimal_from_base64(
        F.try_variant_get(column, "$.value", "string"), type_, F.try_variant_get(column, "$.scale", "int")
    )
    precise = _decimal_from_base64(text, type_, F.lit(declared.scale))
    written = {"precise": precise, "string": plain}.get(str(form), F.when(~text.rlike(_BASE64), plain))
    return F.when(is_scaled, scaled).when(is_text, written).otherwise(plain)


def _decimal_from_base64(text: Column, type_: str, scale: Column) -> Column:
    """The decimal whose digits, as a whole number in bytes with the highest first, stand there in base 64."""
    bytes_ = F.hex(F.try_to_binary(text, F.lit("base64")))
    is_negative = F.left(bytes_, F.lit(1)) >= "8"
    # Of a number below zero all bits are turned round, and one is missing then.
    turned = F.when(is_negative, F.translate(bytes_, "0123456789ABCDEF", "FEDCBA9876543210")).otherwise(bytes_)
    wide = F.lpad(turned, 32, "0")
    high, low = (
        F.conv(part, 16, 10).cast("decimal(20,0)") for part in (F.left(wide, F.lit(16)), F.right(wide, F.lit(16)))
    )
    size = F.try_add(F.try_multiply(high, F.lit(Decimal(1 << 64))), low + F.when(is_negative, 1).otherwise(0))
    exponent = F.when(scale.between(-_FARTHEST, _FARTHEST), F.negate(scale)).cast("string")
    number = F.concat(F.when(is_negative, "-").otherwise(""), size.cast("string"), F.lit("E"), exponent)
    return F.when(F.length(bytes_).between(1, 32), number.try_cast(type_))


def _thousandth(number: Column) -> Column:
    """A whole number divided by 1000 and rounded down, which a division of doubles would not be."""
    down = F.when(number % 1000 < 0, 1).otherwise(0)
    return F.call_function("div", number, F.lit(1000)) - down
