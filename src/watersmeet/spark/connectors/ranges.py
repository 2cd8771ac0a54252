"""Values that do not fit their declared types, where Spark's readers give other values instead.

Spark's JSON reader takes 200 for the TINYINT -56, computes another time from seconds whose microseconds overflow, and
takes 1e400 for infinity. Its Parquet reader cuts bits off, or gives NULL for a DECIMAL, and its ORC reader gives NULL.
So columns of these types are read as wider ones, see `widen_json`, `widen_file` and `widen_orc`, and then made narrow.
`is_lost` finds what did not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import reduce
from typing import cast

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from watersmeet.schema import quote

NON_NUMERIC = "allowNonNumericNumbers"
"""Spark's option that takes texts as ``NaN`` and ``Infinity`` for numbers of JSON."""
_MOST_SECONDS = (2**63 - 1) // 1_000_000
"""The number of seconds whose microseconds fit in 64 bits."""
_SHOWN_CHARACTERS = 200
_MOST_DIGITS = 38
"""The largest number of digits of a DECIMAL."""
_WIDE_JSON: Mapping[type[DataType], DataType] = {ByteType: ShortType(), TimestampType: VariantType()}
_WIDE_ORC_KEYS: Mapping[type[DataType], DataType] = {
    ByteType: LongType(), ShortType: LongType(), IntegerType: LongType(), FloatType: DoubleType(),
}  # fmt: skip
_WITH_TEXTS = (BooleanType, ByteType, ShortType, IntegerType, LongType, DecimalType, DateType)
"""The types whose values all have a text, the same in every time zone: ORC's reader makes the text of NaN NULL."""
_SUSPICIOUS: Mapping[type[DataType], str] = {
    ByteType: "1[2-9][0-9]|2[0-5][0-9]",
    TimestampType: f"[0-9]{{{len(str(_MOST_SECONDS))}}}",
    FloatType: "[0-9][eE][+]?[0-9]|[0-9]{39}",
    DoubleType: "[0-9][eE][+]?[0-9]|[0-9]{39}",
}
"""By the types that Spark may read other values as: what a text of JSON has in which that can be so."""
DATE_FALLBACK = "enableDateTimeParsingFallback"
"""Spark's option to read dates and times as its first versions did: text of digits is a DATE in days since 1970."""


def has_type(type_: DataType, kinds: tuple[type[DataType], ...]) -> bool:
    """Whether a type is one of these, or has one inside."""
    match type_:
        case ArrayType():
            return has_type(type_.elementType, kinds)
        case MapType():
            return has_type(type_.keyType, kinds) or has_type(type_.valueType, kinds)
        case StructType():
            return any(has_type(field.dataType, kinds) for field in type_)
        case _:
            return isinstance(type_, kinds)


def widen_json(type_: DataType) -> DataType:
    """The type as which JSON is read so that a value that does not fit is detected.

    A VARIANT distinguishes a number from a string, and does no arithmetic with it.
    """
    return _replace_types(type_, _wide_json, _wide_json)


def widen_file(type_: DataType) -> DataType:
    """The type as which a column of a Parquet or Avro file is read such that a value that does not fit can be seen."""
    return _replace_types(
        type_,
        lambda leaf: DecimalType(_MOST_DIGITS, leaf.scale) if isinstance(leaf, DecimalType) else _wide_number(leaf),
        _wide_number,
    )


def widen_orc(type_: DataType) -> DataType:
    """The same of an ORC file, whose reader converts any type to any other: all values have a text, not all a number.

    The text of a time depends on a zone, and NaN has no text, so times, FLOAT and DOUBLE are read as such. The keys of
    a map cannot become NULL: texts that are not numbers are not seen there.
    """
    return _replace_types(
        type_,
        lambda leaf: (
            StringType() if isinstance(leaf, _WITH_TEXTS) else DoubleType() if isinstance(leaf, FloatType) else leaf
        ),
        lambda leaf: _WIDE_ORC_KEYS.get(type(leaf), leaf),
    )


def widen_schema(schema: str, widen: Callable[[DataType], DataType], unchanged: Collection[str] = ()) -> str:
    """A schema with the wider types of its columns, but for those of these names, in lower case.

    Types that are not widened stay as they are written.
    """
    fields = fields_of(schema)
    wide = StructType(
        [
            field if field.name.lower() in unchanged else StructField(field.name, widen(field.dataType), field.nullable)
            for field in fields
        ]
    )
    return schema if all(a.dataType == b.dataType for a, b in zip(wide, fields, strict=True)) else wide.toDDL()


def fields_of(schema: str) -> StructType:
    """The columns of a schema."""
    return cast("StructType", StructType.fromDDL(schema))


def narrow_json(value: Column, type_: DataType, options: Mapping[str, str]) -> Column:
    """A value that was read as `widen_json` says in the type that is declared; NULL, also inside, if it does not fit.

    An infinite number counts as one that does not fit.
    """
    if not has_type(type_, tuple(_SUSPICIOUS)):
        return value
    match type_:
        case ArrayType():
            return F.transform(value, lambda item: narrow_json(item, type_.elementType, options))
        case MapType():
            return F.transform_values(value, lambda _, item: narrow_json(item, type_.valueType, options))
        case StructType():
            names = [field.name for field in type_]
            parts = [narrow_json(value[f.name], f.dataType, options) for f in type_]
            inside = F.struct(*(part.alias(name) for part, name in zip(parts, names, strict=True)))
            return F.when(value.isNotNull(), inside)
        case TimestampType():
            return _narrow_time(value, options)
        case ByteType():
            return value.try_cast(type_)
        case _:
            return _finite(value)


def narrow_columns(read: Mapping[str, Column], types: StructType, options: Mapping[str, str]) -> dict[str, Column]:
    """Columns that were read as `widen_json` says in the types that are declared."""
    return {field.name: narrow_json(read[field.name], field.dataType, options) for field in types}


def finite_columns(read: Mapping[str, Column], types: StructType) -> dict[str, Column]:
    """Columns with NULL in place of infinite numbers."""
    kinds = (FloatType, DoubleType)
    return {f.name: _finite(read[f.name]) if isinstance(f.dataType, kinds) else read[f.name] for f in types}


def _finite(value: Column) -> Column:
    return F.when(F.abs(value) != F.lit(float("inf")), value)


def is_lost(value: Column, fitted: Column, type_: DataType, narrow: DataType) -> Column:
    """Whether something of a value, also inside, is NULL in ``fitted`` only; the types are those of the two."""
    match type_, narrow:
        case ArrayType(), ArrayType():
            pairs = F.zip_with(value, fitted, lambda a, b: is_lost(a, b, type_.elementType, narrow.elementType))
            return F.coalesce(F.exists(pairs, lambda lost: lost), F.lit(False))
        case MapType(), MapType():
            keys = ArrayType(type_.keyType), ArrayType(narrow.keyType)
            values = ArrayType(type_.valueType), ArrayType(narrow.valueType)
            of_keys = is_lost(F.map_keys(value), F.map_keys(fitted), *keys)
            return of_keys | is_lost(F.map_values(value), F.map_values(fitted), *values)
        case StructType(), StructType():
            pairs = zip(type_, narrow, strict=False)
            inside = (is_lost(value[a.name], fitted[b.name], a.dataType, b.dataType) for a, b in pairs)
            return reduce(Column.__or__, inside, value.isNotNull() & fitted.isNull())
        case VariantType(), _:
            return value.isNotNull() & ~F.is_variant_null(value) & fitted.isNull()
        case _:
            return value.isNotNull() & fitted.isNull()


def range_error(
    read: Mapping[str, Column], fitted: Mapping[str, Column], types: StructType, wide: StructType
) -> Column:
    """Describe a value of a row that does not fit its type; NULL if all fit. ``wide``: the types that were read."""
    reasons = [F.lit(None).cast("string")]
    for field in types:
        if has_type(field.dataType, tuple(_SUSPICIOUS)):
            value, type_ = read[field.name], wide[field.name].dataType
            is_json = isinstance(type_, (ArrayType, MapType, StructType, VariantType))
            said = F.concat(
                F.lit(f"`{field.name}` is {field.dataType.simpleString().upper()} and the text has "),
                F.left(F.to_json(value) if is_json else value.cast("string"), F.lit(_SHOWN_CHARACTERS)),
            )
            reasons.append(F.when(is_lost(value, fitted[field.name], type_, field.dataType), said))
    return F.coalesce(*reasons)


def json_range_error(text: Column, schema: str, options: Mapping[str, str]) -> Column:
    """Describe a number of a parsed JSON text that is out of the range of its declared type; NULL if all are in range.

    The text is read a second time, as wider types, if it has enough digits in a row.
    """
    types = StructType([f for f in fields_of(schema) if has_type(f.dataType, tuple(_SUSPICIOUS))])
    if not types.fields:
        return F.lit(None).cast("string")
    wide = cast("StructType", widen_json(types))
    numbers = {name: said for name, said in options.items() if name.lower() != NON_NUMERIC.lower()}
    # Without the option, an infinite value was a number, not the text of one.
    row = F.from_json(text, wide, {**numbers, NON_NUMERIC: "false"})

    def error(row: Column) -> Column:
        read = {f.name: row[f.name] for f in types}
        return range_error(read, narrow_columns(read, types, options), types, wide)

    patterns = dict.fromkeys(said for kind, said in _SUSPICIOUS.items() if has_type(types, (kind,)))
    # As the element of an array the row is read once, however often it is looked at.
    return F.when(text.rlike("|".join(patterns)), F.transform(F.array(row), error)[0])


def read_json(text: Column, schema: str) -> Column:
    """The values of these columns in a JSON text; NULL for a value that is not of its type, or does not fit it."""
    types = fields_of(schema)
    row = F.from_json(text, cast("StructType", widen_json(types)), {DATE_FALLBACK: "false"})
    return F.transform(F.array(row), lambda read: narrow_json(read, types, {}))[0]


def narrow_file(value: Column, actual: DataType, type_: DataType) -> Column:
    """A value of a file, or of another system, in the type that is declared; NULL, also inside, if it does not fit.

    A text of digits is not infinite, which is what a cast makes of one with too many.
    """
    if not has_type(actual, (StringType,)) or not has_type(type_, (FloatType, DoubleType)):
        return value.try_cast(type_)
    match actual, type_:
        case ArrayType(), ArrayType():
            return F.transform(value, lambda item: narrow_file(item, actual.elementType, type_.elementType))
        case MapType(), MapType():
            values = F.transform_values(value, lambda _, item: narrow_file(item, actual.valueType, type_.valueType))
            return values.try_cast(type_)
        case StructType(), StructType() if len(actual) == len(type_):
            pairs = zip(actual, type_, strict=True)
            parts = (narrow_file(value[a.name], a.dataType, b.dataType).alias(b.name) for a, b in pairs)
            return F.when(value.isNotNull(), F.struct(*parts)).try_cast(type_)
        case StringType(), FloatType() | DoubleType():
            fitted = value.try_cast(type_)
            return F.when(_finite(fitted).isNotNull() | ~value.rlike("[0-9]"), fitted)
        case _:
            return value.try_cast(type_)


def csv_range_error(text: Column, row: Column, schema: str, options: Mapping[str, str]) -> Column:
    """Describe a number of a CSV line that is out of the range of its type; NULL if all are in range."""
    fields = fields_of(schema)
    texts = F.from_csv(text, ", ".join(f"{quote(f.name)} STRING" for f in fields), dict(options))
    reasons = [F.lit(None).cast("string")]
    for field in fields:
        if isinstance(field.dataType, (FloatType, DoubleType)):
            value, written = row[field.name], texts[field.name]
            said = F.concat(
                F.lit(f"`{field.name}` is {field.dataType.simpleString().upper()} and the text has "),
                F.left(written, F.lit(_SHOWN_CHARACTERS)),
            )
            # The texts for infinity have no digits.
            reasons.append(F.when(value.isNotNull() & _finite(value).isNull() & written.rlike("[0-9]"), said))
    return F.coalesce(*reasons)


def _wide_json(leaf: DataType) -> DataType:
    return _WIDE_JSON.get(type(leaf), leaf)


def _wide_number(leaf: DataType) -> DataType:
    return IntegerType() if isinstance(leaf, (ByteType, ShortType)) else leaf


def _replace_types(
    type_: DataType, wide: Callable[[DataType], DataType], of_keys: Callable[[DataType], DataType]
) -> DataType:
    match type_:
        case ArrayType():
            return ArrayType(_replace_types(type_.elementType, wide, of_keys), type_.containsNull)
        case MapType():
            key = _replace_types(type_.keyType, of_keys, of_keys)
            return MapType(key, _replace_types(type_.valueType, wide, of_keys), type_.valueContainsNull)
        case StructType():
            fields = ((f, _replace_types(f.dataType, wide, of_keys)) for f in type_)
            return StructType([StructField(f.name, kind, f.nullable) for f, kind in fields])
        case _:
            return wide(type_)


def _narrow_time(value: Column, options: Mapping[str, str]) -> Column:
    """The time that a VARIANT is: seconds since 1970, or a text, as Spark's JSON reader reads them."""
    kind = F.schema_of_variant(value)
    seconds = F.try_variant_get(value, "$", "bigint")
    text = F.when(kind == "STRING", F.try_variant_get(value, "$", "string"))
    said = {name.lower(): option.lower() for name, option in options.items()}
    has_format = not said.keys().isdisjoint(("timestampformat", "timezone", "locale"))
    if has_format or said.get(DATE_FALLBACK.lower(), "false") != "false":
        time = F.from_json(F.to_json(F.struct(text.alias("t"))), "t TIMESTAMP", dict(options)).getField("t")
    else:
        time = text.try_cast("timestamp")
    is_near = (kind == "BIGINT") & seconds.between(-_MOST_SECONDS, _MOST_SECONDS)
    return F.when(is_near, F.timestamp_seconds(seconds)).otherwise(time)
