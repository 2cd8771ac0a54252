"""Records with a key and a value, as Kafka delivers and takes them, from and into columns.

A value is JSON or CSV text. A key is text, a number or bytes as Kafka's own serializers write them. In a table a record
without a value deletes the row of its key.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.analyze.stored_key import KEY_TYPES
from watersmeet.catalog import Field, Source
from watersmeet.errors import refuse
from watersmeet.plan.expressions import quote
from watersmeet.plan.nodes import Script
from watersmeet.spark.compile.frames import CHANGE
from watersmeet.spark.sources.feeds import options_in_lower_case

VALUE_FORMAT, KEY_FORMAT = "value.format", "key.format"
"""Our own options: how the value and the key of a record are encoded."""
KEY = "_key"
"""The column that stands for the key of a record."""

_MANTISSA = 1 << 52


def decoded(script: Script, source: Source, frame: DataFrame) -> DataFrame:
    """The declared columns out of the value of each record, its key as ``_key``, and for a table what it does.

    Columns of the primary key that the value does not have come from the key: a JSON object, or for a single column
    the key itself.
    """
    options = options_in_lower_case(source.options)
    format_, key_format = options[VALUE_FORMAT].lower(), options.get(KEY_FORMAT, "string").lower()
    _check(script, source, VALUE_FORMAT, format_, ("json", "csv"))
    _check(script, source, KEY_FORMAT, key_format, tuple(KEY_TYPES))
    inside = [f for f in source.fields if f.name.lower() != KEY]
    ddl = ", ".join(f"{quote(f.name)} {f.type}" for f in inside)
    value = (F.from_json if format_ == "json" else F.from_csv)(F.col("value").cast("string"), ddl)
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
    return told.select(*columns, own, F.when(F.col("is_empty"), "-").otherwise("+").alias(CHANGE))


def key_of_record(script: Script, source: Source, frame: DataFrame) -> list[Column]:
    """The key of each record as ``_key``, of a source that says how it is written and whose values are columns."""
    format_ = options_in_lower_case(source.options).get(KEY_FORMAT, "").lower()
    if not format_ or source.field(KEY) is not None or all(name.lower() != "key" for name in frame.columns):
        return []
    _check(script, source, KEY_FORMAT, format_, tuple(KEY_TYPES))
    return [decoded_key(F.col("key"), format_).alias(KEY)]


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
    is_told = KEY_FORMAT in options_in_lower_case(source.options)
    return decoded_key(F.col("key"), key_format) if is_told or source.field(KEY) is None else F.col("key")


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


def _check(script: Script, source: Source, option: str, said: str, known: tuple[str, ...]) -> None:
    if said in known:
        return
    what = "value" if option == VALUE_FORMAT else "key"
    reason = f"a {what} can be read as {', '.join(known[:-1])} or {known[-1]}"
    hint = f"write `{option} '{known[0]}'`."
    place, shown = script.place(source.span), f"{option} '{said}'"
    raise refuse("WRONG_OPTION", place, format=source.format, option=shown, reason=reason, hint=hint)
