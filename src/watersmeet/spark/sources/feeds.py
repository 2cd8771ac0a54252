"""How the changes of a table come in.

Whatever the form, the frame of a table has its declared columns and ``_change``: ``+`` for a row that comes, ``-`` for
one that goes; with a primary key, ``+`` is an upsert and ``-`` deletes the row of its key. Changes are delivered in the
order in which the source tells them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Literal, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.catalog import Field, Source
from watersmeet.errors import Refusal, refuse
from watersmeet.plan.expressions import quote
from watersmeet.plan.nodes import Script
from watersmeet.spark.compile.frames import CHANGE
from watersmeet.type_names import is_moment

CHANGE_TYPE = "_change_type"
"""Where Delta tells what a row of its change data feed does."""

TRUNCATE, TIME_UNIT = "debezium.truncate", "debezium.time"
"""Our own options of a Debezium feed: ``ignore`` truncated tables; the unit of times that come as numbers."""

Unit = Literal["millis", "micros", "nanos"]
"""What a time that Debezium gives as a number counts since 1970."""

_OPS = ("c", "r", "u", "d")
"""What Debezium tells of single rows: created, read by a snapshot, updated, deleted."""
_MESSAGE = "m"
_COMES, _GOES = "+", "-"


def debezium_ddl(source: Source) -> str:
    """The columns of a Debezium record as Spark reads a schema, with or without the envelope ``payload``.

    >>> debezium_ddl(Source("c", (Field("id", "INT"), Field("at", "TIMESTAMP"))))
    '`op` STRING, `before` STRUCT<`id`: INT, `at`: STRING>, `after` STRUCT<`id`: INT, `at`: STRING>, \
`payload` STRUCT<`op`: STRING, `before`: STRUCT<`id`: INT, `at`: STRING>, `after`: STRUCT<`id`: INT, `at`: STRING>>'
    """
    inside = ", ".join(f"{quote(f.name)}: {'STRING' if is_moment(f.type) else f.type}" for f in source.fields)
    row = f"STRUCT<{inside}>"
    fields = (("op", "STRING"), ("before", row), ("after", row))
    payload = ", ".join(f"{quote(name)}: {type_}" for name, type_ in fields)
    return ", ".join([*(f"{quote(name)} {type_}" for name, type_ in fields), f"`payload` STRUCT<{payload}>"])


def debezium_changes(script: Script, source: Source, frame: DataFrame) -> DataFrame:
    """The changes in Debezium's records: in a column ``value``, or as the columns of `debezium_ddl`."""
    unit = _unit(script, source)
    if any(name.lower() == "value" for name in frame.columns):
        has_value = F.col("value").isNotNull()
        record = F.from_json(F.col("value").cast("string"), debezium_ddl(source))
    else:
        has_value = F.lit(True)
        record = F.struct("op", "before", "after", "payload")
    opened = frame.select(record.alias("r"), has_value.alias("is_told"))
    parts = [
        F.coalesce(F.col(f"r.payload.{part}"), F.col(f"r.{part}")).alias(part) for part in ("op", "before", "after")
    ]
    told = opened.select(*parts, "is_told").where(_is_change(source))
    before, after = (_row(source, sign, side, unit) for sign, side in ((_GOES, "before"), (_COMES, "after")))
    goes = F.when(_goes(source), before)
    comes = F.when(F.col("op") != "d", after)
    changes = F.filter(F.array(goes, comes), lambda change: change.isNotNull())
    return told.select(F.explode(changes).alias("c")).select("c.*")


def delta_changes(source: Source, frame: DataFrame) -> DataFrame:
    """The changes in rows of Delta's change data feed; of an upsert by key the row before it does not matter."""
    kind = F.col(CHANGE_TYPE)
    reason = "its `_change_type` is none that Delta has"
    hint = "read Delta's change data feed, or leave CHANGES FROM out."
    sign = (
        F.when(kind.isin("insert", "update_postimage"), _COMES)
        .when(kind.isin("delete", "update_preimage"), _GOES)
        .otherwise(_raised(source, reason, hint, "string"))
    )
    rows = frame.where(kind.isNull() | (kind != "update_preimage")) if source.primary_key else frame
    return rows.select(*declared_columns(source), sign.alias(CHANGE))


def marked_changes(source: Source, frame: DataFrame, deletes: str | None, further: Sequence[Column] = ()) -> DataFrame:
    """The declared columns and ``_change``: told by a condition, by a column of that name, or not at all: always ``+``.

    ``further`` are columns that come along.
    """
    columns = [*declared_columns(source), *further]
    if deletes is not None:
        sign = F.when(F.coalesce(F.expr(deletes), F.lit(False)), _GOES).otherwise(_COMES).alias(CHANGE)
        return frame.select(*columns, sign)
    told = source.field(CHANGE) is None and any(name.lower() == CHANGE for name in frame.columns)
    return frame.select(*columns, *((F.col(CHANGE).cast("string"),) if told else ()))


def declared_columns(source: Source) -> list[Column]:
    """The declared columns, in the declared types."""
    return [F.col(quote(f.name)).cast(f.type).alias(f.name) for f in source.fields]


def also_deleted(frame: DataFrame, deletes: str) -> DataFrame:
    """Changes of which those are deletes too for which a condition holds."""
    sign = F.when(F.coalesce(F.expr(deletes), F.lit(False)), _GOES).otherwise(F.col(CHANGE))
    return frame.withColumn(CHANGE, sign)


def _is_change(source: Source) -> Column:
    """Whether a record changes rows; what cannot be followed stops the query."""
    op, before, after = F.col("op"), F.col("before"), F.col("after")
    is_kept = _option(source, TRUNCATE) == "ignore"
    truncated = _raised(
        source, "the table was truncated, and no record tells which rows went",
        f"start anew with a new storage folder, or go on with all rows: `OPTIONS ({TRUNCATE} 'ignore')`.",
    )  # fmt: skip
    no_after = _raised(source, "it has no `after`", "let Debezium send whole rows.")
    no_before = _raised(
        source, "it has no `before`, so nobody knows which row goes",
        "declare the PRIMARY KEY of the table, or let the database log whole rows (`REPLICA IDENTITY FULL`).",
    )  # fmt: skip
    no_op = _raised(source, "it has no `op` that Debezium has", "leave CHANGES FROM debezium out, or send its records.")
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


def _unit(script: Script, source: Source) -> Unit:
    said = _option(source, TIME_UNIT) or "micros"
    for unit in get_args(Unit):
        if said == unit:
            return unit
    reason, hint = "a time counts millis, micros or nanos", f"write `{TIME_UNIT} 'millis'`, for example."
    place, option = script.place(source.span), f"{TIME_UNIT} '{said}'"
    raise refuse("WRONG_OPTION", place, format=source.format, option=option, reason=reason, hint=hint)


def _option(source: Source, name: str) -> str | None:
    found = options_in_lower_case(source.options).get(name)
    return None if found is None else found.lower()


def options_in_lower_case(options: Mapping[str, str]) -> dict[str, str]:
    """Options by their names in small letters, as Spark compares them."""
    return {name.lower(): value for name, value in options.items()}


def _raised(source: Source, reason: str, hint: str, type_: str = "boolean") -> Column:
    """What stops the query with a refusal when it is evaluated."""
    text = Refusal("WRONG_CHANGE", {"source": source.name, "reason": reason, "hint": hint}).travelling()
    return F.raise_error(F.lit(text)).cast(type_)
