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
    opens = F.from_json if source.said[VALUE_FORMAT].lower() == JSON else F.from_csv
    value = opens(F.col("value").cast("string"), ddl)
    has_key = any(name.lower() == "key" for name in frame.columns)
    key = F.col("key") if has_key else F.lit(None).cast("binary")
    opened = frame.select(value.alias("value"), key.alias("key"), F.col("value").isNull().alias("is_empty"))
    shown = _key(source, key_format) if has_key else F.lit(None)
    field = source.field(KEY)
    columns = [_column(source, f, key_format) for f in inside]
    own = shown.cast(KEY_TYPES[key_format] if field is None else field.type).alias(KEY)
    if source.kind == "stream":
        return opened.select(*columns, own)
    # Without a primary key nothing tells which row a record without a value would delete.
    told = opened if source.primary_key else opened.where(~F.col("is_empty"))
    rows = told.select(*columns, own, F.when(F.col("is_empty"), GOES).otherwise(COMES).alias(CHANGE))
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
