"""Change feeds of Debezium on Spark: its records in JSON and Avro."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DataType, DecimalType

from watersmeet.catalog import Field, Source
from watersmeet.codec.avro_schema import AvroType, field_of, read_schema, split_null
from watersmeet.codec.binary import SchemaError
from watersmeet.errors import refuse
from watersmeet.formats.debezium import DECIMALS, TIME_UNIT, TRUNCATE, Debezium, Unit, is_decimal, type_in_record
from watersmeet.operators.core.changes import CHANGE
from watersmeet.schema import is_moment, quote
from watersmeet.spark.connectors.avro import decode_avro, reader_schema
from watersmeet.spark.connectors.malformed import (
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
from watersmeet.spark.connectors.ranges import json_range_error
from watersmeet.spark.connectors.reading import refusal_column
from watersmeet.spark.connectors.record_parts import OF_VALUE
from watersmeet.spark.connectors.records import DELETE, INSERT, place_of_record

_ROWS = ("before", "after")
_UNITS: Mapping[str, Unit] = {
    "io.debezium.time.Timestamp": "millis",
    "io.debezium.time.MicroTimestamp": "micros",
    "io.debezium.time.NanoTimestamp": "nanos",
}
"""The units of Debezium's names for time types; a time without such a name is in the unit of the source."""


@dataclass(frozen=True)
class Form:
    """The form of the columns of a row in a record: the type of each, and the unit of times that come as numbers."""

    types: Mapping[str, str]
    units: Mapping[str, Unit]


def form_in_avro(source: Source) -> Form:
    """The form of the latest schema; refused if it is not a Debezium schema, or lacks a declared column."""
    texts = reader_schema(source)
    try:
        schema = read_schema(texts[-1], *texts[:-1])
        envelope = schema.resolve(schema.type)
        after = field_of(envelope, "after") if envelope.kind == "record" else None
        row = None if after is None else schema.resolve(split_null(schema.resolve(after.type))[0])
        if row is None or row.kind != "record" or field_of(envelope, "op") is None:
            raise SchemaError("it does not have the `op` and `after` of a Debezium record")
        types: dict[str, str] = {}
        for declared in source.fields:
            column = field_of(row, declared.name)
            if column is None:
                raise SchemaError(f"its rows have no `{declared.name}`")
            types[declared.name] = _type(schema.resolve(split_null(schema.resolve(column.type))[0]), declared.type)
    except SchemaError as error:
        hint = "declare the columns as in the table, or leave CHANGES FROM debezium out."
        raise refuse("AVRO_SCHEMA", name=source.name, reason=str(error), hint=hint) from error
    said = cast("Unit", source.lowercase_options.get(TIME_UNIT, "micros").lower())
    named = dict(_time_units(json.loads(texts[-1])))
    return Form(types, {f.name: named.get(f.name.lower(), said) for f in source.fields})


def _type(stored: AvroType, declared: str) -> str:
    """The type that a column is read as: times and decimals in any of their encodings."""
    is_other = not stored.logical and (is_moment(declared) or is_decimal(declared))
    plain = {"int": "BIGINT", "long": "BIGINT", "string": "STRING", "double": "DOUBLE", "float": "DOUBLE"}
    return plain.get(stored.kind, declared) if is_other else declared


def _time_units(envelope: Any) -> Iterator[tuple[str, Unit]]:
    """The columns of a row whose times Debezium gives a name, in small letters."""
    parts = [field["type"] for field in envelope["fields"] if field["name"] in _ROWS]
    rows: list[Any] = [
        candidate
        for part in parts
        for candidate in _branches(part)
        if isinstance(candidate, dict) and "fields" in candidate
    ]
    for field in (field for row in rows for field in row["fields"]):
        for branch in _branches(field["type"]):
            unit = _UNITS.get(str(cast("Any", branch).get("connect.name"))) if isinstance(branch, dict) else None
            if unit is not None:
                yield field["name"].lower(), unit


def _branches(part: Any) -> list[Any]:
    return cast("list[Any]", part) if isinstance(part, list) else [part]


def decode_envelope(source: Source, frame: DataFrame, form: Form) -> DataFrame:
    """The operation of each record, its row before and after, and the reason if it cannot be read."""
    row = ", ".join(f"{quote(name)}: {type_}" for name, type_ in form.types.items())
    inside = [Field("op", "STRING"), *(Field(side, f"STRUCT<{row}>") for side in _ROWS)]
    opened = decode_avro(source, frame, inside)
    parts = (F.col(quote(OF_VALUE.value_column)).getField(f.name).alias(f.name) for f in inside)
    origin = (place_of_record(frame).alias(PLACE), F.col("value").alias(VALUE))
    return opened.select(
        *parts, F.col("value").isNotNull().alias("is_told"), *origin, F.col(quote(OF_VALUE.error_column)).alias(REASON)
    )


_OPS = ("c", "r", "u", "d")
"""Debezium's operations on single rows: created, read by a snapshot, updated, deleted."""
_MESSAGE = "m"
_FARTHEST = 400
"""The largest scale of a decimal that comes with its own: Java computes as many digits of it."""
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def debezium_changes(source: Source, frame: DataFrame) -> DataFrame:
    """The changes in Debezium's records: in a column ``value``, or as the columns of `Debezium.record`."""
    feed = Debezium(source)
    form = form_in_avro(source) if feed.is_avro else _in_json(feed)
    records = (decode_envelope(source, frame, form) if feed.is_avro else _open_envelope(feed, frame)).where(
        _is_change(source)
    )
    before, after = (_row(feed, form, sign, side) for sign, side in ((DELETE, "before"), (INSERT, "after")))
    goes = F.when(_is_retracted(source), before)
    comes = F.when(F.col("op") != "d", after)
    changes = F.filter(F.array(goes, comes), lambda change: change.isNotNull())
    # An unreadable record is a single row with the reason.
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
    """The operation of each record, its row before and after, and the reason if it cannot be read."""
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
    """The row of a side with its change, and the reason if it cannot be read."""
    struct, fields = F.col(side), feed.source.fields
    values = [_value(struct.getField(f.name), f, feed, form).alias(f.name) for f in fields]
    advice = f" (say `{DECIMALS} 'precise'` or `'string'`)" if feed.decimals is None and not feed.is_avro else ""
    types = {f.name: f.type + advice * is_decimal(f.type) for f in fields if f.type != form.types[f.name]}
    texts = F.from_json(F.to_json(struct), "map<string,string>")
    read = F.struct(*(value for value, f in zip(values, fields, strict=True) if f.name in types))
    wrong = F.nullif(describe_misread(texts, read, types), F.lit("")) if types else F.lit(None).cast("string")
    return F.struct(*values, F.lit(sign).alias(CHANGE), F.coalesce(F.col(quote(REASON)), wrong).alias(REASON))


def _is_malformed() -> Column:
    return F.col(quote(REASON)).isNotNull()


def _value(column: Column, field: Field, feed: Debezium, form: Form) -> Column:
    """A value of a record in its declared type; NULL if it does not have that type."""
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
    # A value out of range becomes NULL and hence malformed: Spark would stop the query, without a place.
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
    """The decimal whose unscaled value is base64-encoded, big-endian."""
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
