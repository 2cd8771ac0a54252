"""From the records of a join to its rows: their schema, padding, derived columns, net changes, and times as text.

Text names the same instant everywhere: it is in UTC, whatever the time zone of the session is. Text in the session's
zone loses instants. Offsets of the nineteenth century have seconds, which no format of Spark's shows (``+08:05`` stands
for 8 hours, 5 minutes and 43 seconds in Asia/Shanghai), and where clocks are set back two instants have one text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import reduce
from typing import cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    VariantType,
)

from watersmeet.formats.base import SHOWN as MALFORMED_SHOWN
from watersmeet.operators.core.changes import CHANGE, WEIGHT
from watersmeet.physical import PADDED, Derived, JoinPlan, QueryPlan
from watersmeet.schema import quote
from watersmeet.spark.exchange.packing import DUPLICATES_OUTPUT_COLUMN, LATE_OUTPUT_COLUMN, UNMATCHED_OUTPUT_COLUMNS

PORT_OUTPUT_PREFIX = "_port_"
"""The prefix of the columns in which a result shows the ports of a join that have outputs of their own."""


@dataclass(frozen=True)
class JoinSchema:
    """A join, and the schemas of the rows that go into its ports."""

    plan: JoinPlan
    inputs: tuple[StructType, ...]


@dataclass(frozen=True)
class JoinOutput(JoinSchema):
    """A join with the output records of its operator."""

    records: DataFrame


def output_schema(join: JoinSchema) -> StructType:
    """The schema of the rows in a join's records: a side that can be missing is nullable."""
    fields = {
        field.name: StructField(field.name, field.dataType, field.nullable or join.plan.may_miss[port])
        for port, schema in enumerate(join.inputs)
        for field in schema
    }
    types = {PADDED: "TINYINT NOT NULL", WEIGHT: "BIGINT NOT NULL", **dict(join.plan.extra_types)}
    further = (name for name in join.plan.operator.extra if name not in join.plan.columns)
    names = (*join.plan.columns, *further)
    return StructType([ddl_field(name, types[name]) if name in types else fields[name] for name in names])


def ddl_field(name: str, type_: str) -> StructField:
    """A column with a type from its DDL, which may end in ``NOT NULL``."""
    field = cast("StructType", StructType.fromDDL(f"c {type_}"))[0]
    return StructField(name, field.dataType, field.nullable)


def complete_rows(join: JoinOutput, frame: DataFrame) -> DataFrame:
    """The frame with padding values where a side is missing, and with derived columns instead of the extra ones."""
    extra = [name for name in join.plan.operator.extra if name != WEIGHT and name not in join.plan.columns]
    if not extra:
        return frame
    pads = dict(_pads(join))
    columns = [pads.get(name, F.col(quote(name))).alias(name) for name in frame.columns if name not in extra]
    return frame.select(*columns, *map(_make_derived, join.plan.derived))


def port_structs(plan: QueryPlan) -> Iterator[tuple[str, Column]]:
    """The ports that have outputs of their own: under which name each is shown, and its row."""
    if plan.ports_into and isinstance(plan.relation, JoinPlan):
        for number, port in enumerate(plan.relation.ports, 1):
            scan = port.input.scan
            assert scan is not None, "the analysis lets only sources have ports of their own"
            alias, fields = scan.alias, scan.source.fields
            yield (
                f"{PORT_OUTPUT_PREFIX}{number}",
                F.struct(*(F.col(quote(f"{alias}.{f.name}")).alias(f.name) for f in fields)),
            )


def _pads(join: JoinOutput) -> Iterator[tuple[str, Column]]:
    """The columns of sides that can be missing, with their padding."""
    types = {field.name: field.dataType for field in output_schema(join)}
    nullable = {field.name: field.nullable for schema in join.inputs for field in schema}
    for port, pad in enumerate(join.plan.pads):
        if pad == "nulls" or not join.plan.may_miss[port]:
            continue
        constants = {} if pad == "zeros" else dict(pad)
        for name in join.plan.operator.result_columns[port]:
            if pad == "zeros":
                value = zero_value(types[name])
            elif name in constants:
                value = F.expr(constants[name].sql()).cast(types[name])
            else:
                continue
            shown = F.when(F.col(quote(PADDED)) == port, value).otherwise(F.col(quote(name)))
            # A column without NULLs stays so when padded with a value, which Spark only infers from a constant.
            yield name, shown if nullable[name] else F.coalesce(shown, zero_value(types[name]))


def zero_value(type_: DataType) -> Column:  # noqa: PLR0911 - one case per type
    """The value of a type that stands for nothing: 0, the empty text, false, the beginning of 1970, nothing in it."""
    match type_:
        case StructType():
            return F.struct(*(zero_value(field.dataType).alias(field.name) for field in type_)).cast(type_)
        case ArrayType():
            return F.array().cast(type_)
        case MapType():
            return F.create_map().cast(type_)
        case StringType():
            return F.lit("").cast(type_)
        case BinaryType():
            return F.lit(b"")
        case BooleanType():
            return F.lit(False)
        case DateType():
            return F.lit(date(1970, 1, 1))
        case TimestampType():
            return F.timestamp_micros(F.lit(0))
        case TimestampNTZType():
            return F.lit("1970-01-01 00:00:00").cast(type_)
        case DayTimeIntervalType():
            return F.lit(timedelta()).cast(type_)
        case _:
            return F.lit(0).cast(type_)


def _make_derived(column: Derived) -> Column:
    """A derived column from the operator's extra columns."""
    value = F.col(quote(column.of))
    if column.port is None:
        return value.alias(column.name)
    port = F.col(quote(column.port))
    side = F.get(F.array(*map(F.lit, column.sides)), port)
    return F.when(port.isNotNull(), F.struct(side.alias("side"), value.alias("at"))).alias(column.name)


SIDE_OUTPUT_COLUMNS = (LATE_OUTPUT_COLUMN, MALFORMED_SHOWN, *UNMATCHED_OUTPUT_COLUMNS, DUPLICATES_OUTPUT_COLUMN)
"""The columns of a result that hold rows of side outputs."""


def is_row(frame: DataFrame) -> Column:
    """Return whether a row belongs to the result, and not to a side output."""
    conditions = (F.col(name).isNull() for name in SIDE_OUTPUT_COLUMNS if name in frame.columns)
    return reduce(lambda a, b: a & b, conditions, F.lit(True))


def explode_changes(frame: DataFrame) -> DataFrame:
    """Changes as a result shows them: each as often as its weight says, with whether it comes or goes."""
    weight = F.col(quote(WEIGHT))
    times = F.array_repeat(F.when(weight > 0, "+").otherwise("-"), cast("int", F.abs(weight).cast("int")))
    return frame.select("*", F.explode(times).alias(CHANGE)).drop(WEIGHT)


def consolidate(changes: DataFrame) -> DataFrame:
    """The columns of a table and ``#weight``: the net insertions (above 0) or deletions (below) of each row.

    The input has ``_change``, or ``#weight`` already.
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
    """Columns that are equal for equal rows, one for each column, under the names of `comparison_names`."""
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


IN_UTC = {"timeZone": "UTC"}
"""The option of Spark's writers of text that shows times in UTC."""
EXACT = {
    **IN_UTC,
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options with which equal texts are equal times: Spark's own format has milliseconds."""
_OF_TEXT = frozenset({"json", "csv", "xml"})
_UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Z", "+00:00"})
_DAY = 86_400_000_000


def is_text(format_: str) -> bool:
    """Whether a format of Spark writes times as text."""
    return format_.lower() in _OF_TEXT


def text_options(format_: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options of a writer with times in UTC, unless it writes no text or the options say how times are written.

    >>> text_options("json", {"compression": "gzip"})
    {'timeZone': 'UTC', 'compression': 'gzip'}
    >>> text_options("csv", {"timestampformat": "HH:mm"})
    {'timestampformat': 'HH:mm'}
    """
    names = {name.lower() for name in options}
    is_open = is_text(format_) and names.isdisjoint({"timezone", "timestampformat"})
    return {**IN_UTC, **options} if is_open else dict(options)


def text_in_utc(time: Column) -> Column:
    """A TIMESTAMP as Spark shows it in UTC, with all its digits."""
    micros = F.unix_micros(time)
    rest = micros % _DAY
    days = ((micros - rest).cast("decimal(20,0)") / F.lit(_DAY).cast("decimal(20,0)")).cast("int")
    seconds = (rest.cast("decimal(18,0)") / F.lit(1_000_000).cast("decimal(7,0)")).cast("decimal(18,6)")
    midnight = F.lit("1970-01-01").cast("timestamp_ntz")
    return (midnight + F.make_dt_interval(days, secs=seconds)).cast("string")


def key_text(time: Column, zone: str) -> Column:
    """A TIMESTAMP as the text of a key: as Spark shows it in a session in UTC, elsewhere that with a ``Z``."""
    return time.cast("string") if zone in _UTC else F.concat(text_in_utc(time), F.lit("Z"))


def time_for_postgres(time: Column, type_: DataType) -> Column:
    """A TIMESTAMP, TIMESTAMP_NTZ or DATE as Postgres reads it, whatever its year is."""
    assert isinstance(type_, TimestampType | TimestampNTZType | DateType)
    text = text_in_utc(time) if isinstance(type_, TimestampType) else time.cast("string")
    year = F.regexp_extract(text, r"^([+-]?\d+)-", 1).cast("int")
    # Spark counts the year before 1 as 0, and shows a sign before years of more than four digits.
    digits = F.abs(F.when(year > 0, year).otherwise(year - 1)).cast("string")
    shown = F.when(F.length(digits) > 4, digits).otherwise(F.lpad(digits, 4, "0"))
    era = F.when(year > 0, "").otherwise(" BC")
    zone = F.lit("+00" if isinstance(type_, TimestampType) else "")
    rest = F.regexp_replace(text, r"^[+-]?\d+", "")
    return F.when(year.between(1, 9999), F.concat(text, zone)).otherwise(F.concat(shown, rest, zone, era))
