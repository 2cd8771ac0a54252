"""Records with a key and a value, as Kafka delivers and takes them, from and into columns."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.catalog import Field, Source
from watersmeet.errors import WatersmeetError
from watersmeet.formats.feed import CHANGE, Feed
from watersmeet.formats.records import JSON, KEY_FORMAT, KEY_TYPES, VALUE_FORMAT, wrong_format
from watersmeet.plan.expressions import quote
from watersmeet.spark.sources.malformed import (
    PLACE,
    REASON,
    UNREAD,
    VALUE,
    along,
    misread_text,
    place_of,
    unread_as,
    with_unread,
)

KEY = "_key"
"""The column that stands for the key of a record."""
COMES, GOES = "+", "-"
"""What ``_change`` says of a row of a table."""

_MANTISSA = 1 << 52


def decoded(source: Source, frame: DataFrame) -> DataFrame:
    """The declared columns out of the value of each record, its key as ``_key``, and for a table what it does.

    Columns of the primary key that the value does not have come from the key: a JSON object, or for a single column
    the key itself.
    """
    key_format = _key_format(source)
    inside = [f for f in source.fields if f.name.lower() != KEY]
    ddl = ", ".join(f"{quote(f.name)} {f.type}" for f in inside)
    is_json = source.said[VALUE_FORMAT].lower() == JSON
    opens = F.from_json if is_json else F.from_csv
    value = opens(F.col("value").cast("string"), with_unread(ddl), unread_as({}))
    has_key = any(name.lower() == "key" for name in frame.columns)
    key = F.col("key") if has_key else F.lit(None).cast("binary")
    told = (place_of_record(frame).alias(PLACE), F.col("value").alias(VALUE))
    opened = frame.select(value.alias("value"), key.alias("key"), F.col("value").isNull().alias("is_empty"), *told)
    opened = opened.withColumn(REASON, _wrong_record(source, inside, key_format, is_json=is_json))
    shown = _key(source, key_format) if has_key else F.lit(None)
    field = source.field(KEY)
    columns = [_column(source, f, key_format) for f in inside]
    own = shown.cast(KEY_TYPES[key_format] if field is None else field.type).alias(KEY)
    if source.kind == "stream":
        return opened.select(*columns, own, *along(opened))
    # Without a primary key nothing tells which row a record without a value would delete.
    known = opened if source.primary_key else opened.where(~F.col("is_empty"))
    change = F.when(F.col("is_empty"), GOES).otherwise(COMES).alias(CHANGE)
    rows = known.select(*columns, own, change, *along(opened))
    return rows.withColumn(CHANGE, F.when(is_deleted(source), GOES).otherwise(F.col(CHANGE)))


def is_deleted(source: Source) -> Column:
    """Whether the option ``deletes`` takes a row of a table for one that goes."""
    return F.coalesce(F.expr(source.said.get("deletes", "false")), F.lit(False))


def key_of_record(source: Source, frame: DataFrame) -> list[Column]:
    """The key of each record as ``_key``, of a source that says how it is written and whose values are columns."""
    is_shown = KEY_FORMAT in source.said and source.field(KEY) is None
    if not is_shown or all(name.lower() != "key" for name in frame.columns):
        return []
    return [decoded_key(F.col("key"), _key_format(source)).alias(KEY)]


def told_of_key(source: Source, frame: DataFrame) -> tuple[Column, ...]:
    """What is told of the keys of records whose values are columns."""
    reason = wrong_key(F.col("key"), _key_format(source))
    return reason.alias(REASON), place_of_record(frame).alias(PLACE), F.col("key").alias(VALUE)


def place_of_record(frame: DataFrame) -> Column:
    """Where a record comes from, as far as the columns tell that Kafka's have."""
    named = {name.lower(): F.col(quote(name)) for name in frame.columns}
    return place_of(**{name: named[name] for name in ("topic", "partition", "offset") if name in named})


def _wrong_record(source: Source, inside: Sequence[Field], key_format: str, *, is_json: bool) -> Column:
    """Why a record is malformed; NULL if it is not."""
    types = {f.name: f.type for f in inside}
    unread = F.col("value").getField(UNREAD)
    read = F.struct(*(F.col("value").getField(name).alias(name) for name in types))
    empty = source.kind == "stream" and bool(inside)
    return F.coalesce(
        F.when(F.lit(empty) & F.col("is_empty"), F.lit("it has no value")),
        F.when(unread.isNotNull(), misread_text(unread, read, types, {}, is_json=is_json)),
        wrong_key(F.col("key"), key_format),
    )


def wrong_key(key: Column, format_: str) -> Column:
    """Why the bytes of a key are none of its format; NULL if they are."""
    length = {"int": 4, "long": 8, "double": 8}.get(format_)
    if length is None:
        return F.lit(None).cast("string")
    found = F.length(key.cast("binary"))
    said = F.concat(F.lit(f"its key is a {format_} of {length} bytes and has "), found.cast("string"))
    return F.when(found != length, said)


def _column(source: Source, field: Field, key_format: str) -> Column:
    value = F.col(f"value.{quote(field.name)}")
    key = [name.lower() for name in source.primary_key]
    if source.kind != "table" or field.name.lower() not in key:
        return value.alias(field.name)
    text = F.col("key").cast("string")
    ddl = f"{quote(field.name)} {field.type}, payload STRUCT<{quote(field.name)}: {field.type}>"
    opened = F.from_json(F.when(text.startswith("{"), text), ddl)
    found = F.coalesce(value, opened.getField(field.name), opened.getField("payload").getField(field.name))
    if len(key) == 1:
        is_text = key_format == "bytes" and field.type.upper() != "BINARY"
        whole = decoded_key(F.col("key"), "string" if is_text else key_format)
        found = F.coalesce(found, F.when(~text.startswith("{"), whole.try_cast(field.type)))
    return found.alias(field.name)


def _key(source: Source, key_format: str) -> Column:
    """The key as ``_key`` shows it; a declared column of that name without a format casts the bytes itself."""
    is_told = KEY_FORMAT in source.said or source.field(KEY) is None
    return decoded_key(F.col("key"), key_format) if is_told else F.col("key")


def decoded_key(key: Column, format_: str) -> Column:
    """The value of a key, by its format: numbers are big-endian, as Kafka's serializers write them."""
    match format_:
        case "string" | "json":
            return key.cast("string")
        case "int":
            wide = _long(key)
            return F.shiftright(F.shiftleft(wide, 32), 32).cast("int")
        case "long":
            return _long(key)
        case "double":
            return _double(_long(key))
        case _:
            return key.cast("binary")


def _long(key: Column) -> Column:
    return F.conv(F.hex(key.cast("binary")), 16, -10).try_cast("bigint")


def _double(bits: Column) -> Column:
    """The double of these 64 bits: sign, exponent and mantissa put together exactly."""
    exponent = F.shiftrightunsigned(bits, 52).bitwiseAND(F.lit(0x7FF))
    mantissa = bits.bitwiseAND(F.lit(_MANTISSA - 1))
    special = F.when(mantissa == 0, F.lit(float("inf"))).otherwise(F.lit(float("nan")))
    whole = (mantissa + _MANTISSA).cast("double") * F.pow(F.lit(2.0), (exponent - 1075).cast("double"))
    small = mantissa.cast("double") * F.pow(F.lit(2.0), F.lit(-1074.0))
    size = F.when(exponent == 0x7FF, special).when(exponent == 0, small).otherwise(whole)
    return F.when(bits < 0, -size).otherwise(size)


def encoded(frame: DataFrame, key: Sequence[str] = ()) -> DataFrame:
    """Rows as records: the columns ``key``, else ``_key`` if there is one, as the key, and a JSON value.

    What stands in ``_key`` is not repeated in the value; other columns are.
    """
    chosen = tuple(key) or tuple(name for name in frame.columns if name.lower() == KEY)
    return frame.select(key_of(chosen).alias("key"), value_of(frame.columns).alias("value"))


def key_of(names: Sequence[str]) -> Column:
    """Columns as the key of a record: a single one as its text, several as a JSON object, none as NULL."""
    if not names:
        return F.lit(None).cast("string")
    if len(names) == 1:
        return F.col(quote(names[0])).cast("string")
    return _object(names)


def value_of(names: Sequence[str]) -> Column:
    """Columns as the value of a record: a JSON object of all but ``_key``, NULLs among them."""
    return _object([name for name in names if name.lower() != KEY])


def _object(names: Sequence[str]) -> Column:
    return F.to_json(F.struct(*(F.col(quote(name)) for name in names)), {"ignoreNullFields": "false"})


def _key_format(source: Source) -> str:
    """How keys are written; refused here if they cannot be read, since only what reads them needs to."""
    wrong = [*wrong_format(Feed(source), KEY_FORMAT, tuple(KEY_TYPES))]
    if wrong:
        raise WatersmeetError(wrong)
    return source.said.get(KEY_FORMAT, "string").lower()
