"""The changes in Debezium's records."""

from __future__ import annotations

from functools import reduce
from typing import cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.catalog import Field, Source
from watersmeet.formats.debezium import TIME_UNIT, TRUNCATE, Debezium, Unit
from watersmeet.formats.feed import CHANGE
from watersmeet.plan.expressions import quote
from watersmeet.spark.sources.feeds import raised
from watersmeet.spark.sources.records import COMES, GOES
from watersmeet.type_names import is_moment

_OPS = ("c", "r", "u", "d")
"""What Debezium tells of single rows: created, read by a snapshot, updated, deleted."""
_MESSAGE = "m"


def debezium_changes(feed: Debezium, frame: DataFrame) -> DataFrame:
    """The changes in Debezium's records: in a column ``value``, or as the columns of `Debezium.record`."""
    source, unit = feed.source, cast("Unit", feed.source.said.get(TIME_UNIT, "micros").lower())
    if any(name.lower() == "value" for name in frame.columns):
        has_value = F.col("value").isNotNull()
        record = F.from_json(F.col("value").cast("string"), feed.record)
    else:
        has_value = F.lit(True)
        record = F.struct("op", "before", "after", "payload")
    opened = frame.select(record.alias("r"), has_value.alias("is_told"))
    parts = [
        F.coalesce(F.col(f"r.payload.{part}"), F.col(f"r.{part}")).alias(part) for part in ("op", "before", "after")
    ]
    told = opened.select(*parts, "is_told").where(_is_change(source))
    before, after = (_row(source, sign, side, unit) for sign, side in ((GOES, "before"), (COMES, "after")))
    goes = F.when(_goes(source), before)
    comes = F.when(F.col("op") != "d", after)
    changes = F.filter(F.array(goes, comes), lambda change: change.isNotNull())
    return told.select(F.explode(changes).alias("c")).select("c.*")


def _is_change(source: Source) -> Column:
    """Whether a record changes rows; what cannot be followed stops the query."""
    op, before, after = F.col("op"), F.col("before"), F.col("after")
    is_kept = source.said.get(TRUNCATE, "").lower() == "ignore"
    truncated = raised(
        source, "the table was truncated, and no record tells which rows went",
        f"start anew with a new storage folder, or go on with all rows: `OPTIONS ({TRUNCATE} 'ignore')`.",
    )  # fmt: skip
    no_after = raised(source, "it has no `after`", "let Debezium send whole rows.")
    no_before = raised(
        source, "it has no `before`, so nobody knows which row goes",
        "declare the PRIMARY KEY of the table, or let the database log whole rows (`REPLICA IDENTITY FULL`).",
    )  # fmt: skip
    no_op = raised(source, "it has no `op` that Debezium has", "leave CHANGES FROM debezium out, or send its records.")
    needs_before = op == "d" if source.primary_key else op.isin("u", "d")
    return (
        # Behind the record of a delete Debezium sends one without a value, for the compaction of the topic.
        F.when(~F.col("is_told"), F.lit(False))
        .when(op == "t", F.lit(False) if is_kept else truncated)
        .when(op == _MESSAGE, F.lit(False))
        .when(op.isNull() | ~op.isin(*_OPS), no_op)
        .when(needs_before & before.isNull(), no_before)
        .when((op != "d") & after.isNull(), no_after)
        .otherwise(F.lit(True))
    )


def _goes(source: Source) -> Column:
    """Whether the row before the change is taken back: with a primary key, if no row of that key comes."""
    op = F.col("op")
    if not source.primary_key:
        return op.isin("u", "d")
    keys = [f.name for name in source.primary_key if (f := source.field(name)) is not None]
    pairs = [(F.col(f"before.{quote(key)}"), F.col(f"after.{quote(key)}")) for key in keys]
    moved = reduce(lambda a, b: a | b, (old.isNotNull() & ~old.eqNullSafe(new) for old, new in pairs))
    return (op == "d") | ((op == "u") & moved)


def _row(source: Source, sign: str, side: str, unit: Unit) -> Column:
    columns = [_value(F.col(f"{side}.{quote(f.name)}"), f, unit).alias(f.name) for f in source.fields]
    return F.struct(*columns, F.lit(sign).alias(CHANGE))


def _value(column: Column, field: Field, unit: Unit) -> Column:
    """A value of a record in its declared type: Debezium gives times as numbers or as text, as it is set up."""
    if not is_moment(field.type):
        return column
    number, type_ = column.try_cast("bigint"), field.type.upper()
    if type_ == "DATE":
        return F.when(number.isNotNull(), F.date_from_unix_date(number.cast("int"))).otherwise(column.cast("date"))
    micros = number * 1000 if unit == "millis" else _thousandth(number) if unit == "nanos" else number
    if type_ == "TIMESTAMP_NTZ":
        since = F.timestamp_add("MICROSECOND", micros, F.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'"))
    else:
        since = F.timestamp_micros(micros)
    return F.when(number.isNotNull(), since).otherwise(column.cast(field.type))


def _thousandth(number: Column) -> Column:
    """A whole number divided by 1000 and rounded down, which a division of doubles would not be."""
    return F.call_function("div", number - F.pmod(number, F.lit(1000)), F.lit(1000))
