"""Records with a key and a value, as Kafka delivers and takes them, from and into columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampNTZType, TimestampType

from watersmeet.catalog import Field, Source
from watersmeet.codec.avro_schema import AVRO
from watersmeet.errors import WatersmeetError
from watersmeet.formats.protobuf.descriptor import PROTOBUF
from watersmeet.formats.records import (
    CSV,
    JSON,
    KEY_FORMAT,
    KEY_TYPES,
    KEYS,
    RAW,
    RECORD_METADATA,
    VALUE_FORMAT,
    Feed,
    wrong_format,
)
from watersmeet.operators.core.changes import CHANGE
from watersmeet.schema import quote
from watersmeet.spark.connectors.avro import decode_avro, decode_avro_key
from watersmeet.spark.connectors.malformed import (
    CORRUPT_RECORD,
    PACKED_RECORD,
    PLACE,
    REASON,
    VALUE,
    error_columns,
    explain_misread,
    permissive_options,
    place_of,
    with_corrupt_record,
)
from watersmeet.spark.connectors.protobuf import decode_protobuf
from watersmeet.spark.connectors.ranges import csv_range_error, json_range_error, read_json
from watersmeet.spark.connectors.record_parts import OF_KEY, OF_VALUE
from watersmeet.spark.exchange.packing import PARTITION
from watersmeet.spark.exchange.rows import EXACT, IN_UTC, key_text

KEY = "_key"
"""The column that stands for the key of a record."""
_DECODERS = {AVRO: decode_avro, PROTOBUF: decode_protobuf}
"""The formats of values that workers open, and by what."""
INSERT, DELETE = "+", "-"
"""The values of ``_change`` in a row of a table."""

_LOST = "#lost"
"""The reason why the metadata of a record is not a value of its declared column."""
_MANTISSA = 1 << 52


def decode_records(source: Source, frame: DataFrame) -> DataFrame:
    """The declared columns from the value of each record, its key as ``_key``, and for a table its change.

    Metadata columns, such as the offset, come from the record. Columns of the primary key that the value lacks come
    from the key: a JSON object, or for a single column the key itself. Records that are packed already pass through.
    """
    key_format = _key_format(source, KEYS)
    metadata = _metadata_columns(source, frame)
    inside = [f for f in source.fields if f.name.lower() not in (KEY, *metadata)]
    format_ = source.lowercase_options[VALUE_FORMAT].lower()
    # The value is not decoded where only metadata is selected.
    frame = _DECODERS[format_](source, frame, inside) if format_ in _DECODERS and inside else frame
    value = _value_column(format_, inside)
    has_key = any(name.lower() == "key" for name in frame.columns)
    in_key = _key_fields(source) if key_format == AVRO and has_key else ()
    if key_format == AVRO and not in_key:
        key_format = "bytes"
    frame = decode_avro_key(source, frame, source.field(KEY), in_key) if in_key else frame
    of_key = [F.col(quote(name)) for name in (OF_KEY.value_column, OF_KEY.error_column) if in_key]
    key = F.col("key") if has_key else F.lit(None).cast("binary")
    origin = (place_of_record(frame).alias(PLACE), F.col("value").alias(VALUE))
    is_empty = F.col("value").isNull().alias("is_empty")
    lost = _metadata_error(source, frame).alias(_LOST)
    packed = [F.col(quote(PACKED_RECORD))] if PACKED_RECORD in frame.columns else []
    opened = frame.select(
        value.alias("value"), key.alias("key"), is_empty, *origin, lost, *metadata.values(), *of_key, *packed
    )
    reason = F.coalesce(_record_error(source, inside, key_format, format_), F.col(quote(_LOST)))
    reason = F.when(packed[0].isNull(), reason) if packed else reason
    opened = opened.withColumn(REASON, reason)
    shown = _key(source, key_format) if has_key else F.lit(None)
    field = source.field(KEY)
    columns = [*(_column(source, f, key_format) for f in inside), *metadata]
    own = _cast_key(shown, key_format, field)
    if field is not None and has_key and key_format in KEY_TYPES:
        lost = F.when(
            shown.isNotNull() & own.isNull(), F.lit(f"its key is not a value of `{KEY}`, which is {field.type}")
        )
        opened = opened.withColumn(REASON, F.coalesce(F.col(quote(REASON)), lost))
    own = own.alias(KEY)
    if source.kind == "stream":
        return opened.select(*columns, own, *error_columns(opened), partition_of(F.col(quote(PLACE))), *packed)
    # Without a primary key, it is unknown which row a record without a value would delete.
    relevant = opened if source.primary_key else opened.where(~F.col("is_empty"))
    change = F.when(F.col("is_empty"), DELETE).otherwise(INSERT).alias(CHANGE)
    rows = relevant.select(*columns, own, change, *error_columns(opened))
    return rows.withColumn(CHANGE, F.when(is_deleted(source), DELETE).otherwise(F.col(CHANGE)))


def _cast_key(shown: Column, key_format: str, field: Field | None) -> Column:
    """The key in its declared type; NULL, which makes the record malformed, where it is not a value of that."""
    if field is None:
        return shown.cast(KEY_TYPES.get(key_format, "BINARY"))
    is_bytes = KEY_TYPES.get(key_format, "BINARY") == "BINARY"
    return shown.cast(field.type) if is_bytes else shown.try_cast(field.type)


def _key_fields(source: Source) -> tuple[Field, ...]:
    """The columns of a key with fields: the one with the whole key, or those of the primary key."""
    whole = source.field(KEY)
    if whole is not None:
        return (whole,)
    named = (source.field(name) for name in source.primary_key)
    return tuple(field for field in named if field is not None)


def partition_of(place: Column) -> Column:
    """The partition of a record: each has its own watermark, since partitions progress independently."""
    topic, partition = place.getField("topic"), place.getField("partition")
    return F.concat(topic, F.lit("-"), partition.cast("string")).alias(PARTITION)


def _metadata_columns(source: Source, frame: DataFrame) -> dict[str, Column]:
    """The declared metadata columns of each record, by their names in small letters."""
    return {f.name.lower(): fitted.alias(f.name) for f, _, fitted in _metadata(source, frame)}


def _metadata(source: Source, frame: DataFrame) -> Iterator[tuple[Field, Column, Column]]:
    """The declared metadata columns of each record: the value, and the value in the declared type."""
    names = {name.lower(): name for name in frame.columns}
    for field in source.fields:
        name = names.get(RECORD_METADATA.get(field.name.lower(), ""))
        if name is not None:
            value = F.col(quote(name))
            is_nested = isinstance(frame.schema[name].dataType, ArrayType)
            yield field, value, value.cast(field.type) if is_nested else value.try_cast(field.type)


def _metadata_error(source: Source, frame: DataFrame) -> Column:
    """The reason why the metadata of a record is not a value of the declared type; NULL if it is."""
    reasons = [
        F.when(
            value.isNotNull() & fitted.isNull(),
            F.lit(f"its {RECORD_METADATA[field.name.lower()]} is not a value of `{field.name}`, which is {field.type}"),
        )
        for field, value, fitted in _metadata(source, frame)
    ]
    return F.coalesce(*reasons, F.lit(None).cast("string"))


def _value_column(format_: str, inside: Sequence[Field]) -> Column:
    """The declared columns out of the value, and its text, or the reason, if it could not be read."""
    value = F.col("value")
    if format_ in _DECODERS and not inside:
        return F.struct(F.lit(None).cast("string").alias(CORRUPT_RECORD))
    if format_ in _DECODERS:
        columns = (F.col(quote(OF_VALUE.value_column)).getField(f.name).alias(f.name) for f in inside)
        return F.struct(*columns, F.col(quote(OF_VALUE.error_column)).alias(CORRUPT_RECORD))
    if format_ == RAW:
        return F.struct(
            value.cast(inside[0].type).alias(inside[0].name), F.lit(None).cast("string").alias(CORRUPT_RECORD)
        )
    ddl = _ddl(inside)
    opens = F.from_json if format_ == JSON else F.from_csv
    return opens(value.cast("string"), with_corrupt_record(ddl), permissive_options({}))


def _ddl(inside: Sequence[Field]) -> str:
    return ", ".join(f"{quote(f.name)} {f.type}" for f in inside)


def is_deleted(source: Source) -> Column:
    """Whether the option ``deletes`` takes a row of a table for one that goes."""
    return F.coalesce(F.expr(source.lowercase_options.get("deletes", "false")), F.lit(False))


def key_of_record(source: Source, frame: DataFrame) -> list[Column]:
    """The key of each record as ``_key``, of a source that says how it is written and whose values are columns."""
    is_shown = KEY_FORMAT in source.lowercase_options and source.field(KEY) is None
    if not is_shown or all(name.lower() != "key" for name in frame.columns):
        return []
    return [decode_key(F.col("key"), _key_format(source)).alias(KEY)]


def key_error_columns(source: Source, frame: DataFrame) -> tuple[Column, ...]:
    """The error columns for the keys of records whose values are columns."""
    reason = key_error(F.col("key"), _key_format(source))
    return reason.alias(REASON), place_of_record(frame).alias(PLACE), F.col("key").alias(VALUE)


def place_of_record(frame: DataFrame) -> Column:
    """The origin of a record, from those of Kafka's columns that it has."""
    named = {name.lower(): F.col(quote(name)) for name in frame.columns}
    return place_of(**{name: named[name] for name in ("topic", "partition", "offset") if name in named})


def _record_error(source: Source, inside: Sequence[Field], key_format: str, format_: str) -> Column:
    """The reason why a record is malformed; NULL if it is not."""
    types = {f.name: f.type for f in inside}
    unread = F.col("value").getField(CORRUPT_RECORD)
    read = F.struct(*(F.col("value").getField(name).alias(name) for name in types))
    empty = source.kind == "stream" and bool(inside)
    misread = unread if format_ in _DECODERS else explain_misread(unread, read, types, {}, is_json=format_ == JSON)
    text, overflow = F.col(quote(VALUE)).cast("string"), F.lit(None).cast("string")
    if format_ == JSON and inside:
        overflow = json_range_error(text, _ddl(inside), {})
    elif format_ == CSV and inside:
        overflow = csv_range_error(text, read, _ddl(inside), {})
    return F.coalesce(
        F.when(F.lit(empty) & F.col("is_empty"), F.lit("it has no value")),
        F.when(unread.isNotNull(), misread),
        overflow,
        F.col(quote(OF_KEY.error_column)) if key_format == AVRO else key_error(F.col("key"), key_format),
    )


def key_error(key: Column, format_: str) -> Column:
    """The reason why the bytes of a key are not of its format; NULL if they are."""
    length = {"int": 4, "long": 8, "double": 8}.get(format_)
    if length is None:
        return F.lit(None).cast("string")
    size = F.length(key.cast("binary"))
    said = F.concat(F.lit(f"its key is a {format_} of {length} bytes and has "), size.cast("string"))
    return F.when(size != length, said)


def _column(source: Source, field: Field, key_format: str) -> Column:
    value = F.col(f"value.{quote(field.name)}")
    key = [name.lower() for name in source.primary_key]
    if source.kind != "table" or field.name.lower() not in key:
        return value.alias(field.name)
    if key_format == AVRO:
        whole = source.field(KEY)
        held = F.col(quote(OF_KEY.value_column)) if whole is None else F.col(quote(OF_KEY.value_column)).getField(KEY)
        is_inside = whole is None or whole.type.upper().startswith("STRUCT")
        return F.coalesce(value, held.getField(field.name) if is_inside else held.try_cast(field.type)).alias(
            field.name
        )
    text = F.col("key").cast("string")
    ddl = f"{quote(field.name)} {field.type}, payload STRUCT<{quote(field.name)}: {field.type}>"
    opened = read_json(F.when(text.startswith("{"), text), ddl)
    value_or_key = F.coalesce(value, opened.getField(field.name), opened.getField("payload").getField(field.name))
    if len(key) == 1:
        is_text = key_format == "bytes" and field.type.upper() != "BINARY"
        whole = decode_key(F.col("key"), "string" if is_text else key_format)
        value_or_key = F.coalesce(value_or_key, F.when(~text.startswith("{"), whole.try_cast(field.type)))
    return value_or_key.alias(field.name)


def _key(source: Source, key_format: str) -> Column:
    """The key as ``_key`` shows it; a declared column of that name without a format casts the bytes itself."""
    if key_format == AVRO and source.field(KEY) is not None:
        return F.col(quote(OF_KEY.value_column)).getField(KEY)
    has_format = KEY_FORMAT in source.lowercase_options or source.field(KEY) is None
    return decode_key(F.col("key"), key_format) if has_format else F.col("key")


def decode_key(key: Column, format_: str) -> Column:
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
    # Of more bytes than a number has Spark would stop the query; such a key is malformed.
    fits = F.length(key.cast("binary")) <= 8
    return F.when(fits, F.conv(F.hex(key.cast("binary")), 16, -10)).try_cast("bigint")


def _double(bits: Column) -> Column:
    """The double of these 64 bits: sign, exponent and mantissa put together exactly."""
    exponent = F.shiftrightunsigned(bits, 52).bitwiseAND(F.lit(0x7FF))
    mantissa = bits.bitwiseAND(F.lit(_MANTISSA - 1))
    special = F.when(mantissa == 0, F.lit(float("inf"))).otherwise(F.lit(float("nan")))
    whole = (mantissa + _MANTISSA).cast("double") * F.pow(F.lit(2.0), (exponent - 1075).cast("double"))
    small = mantissa.cast("double") * F.pow(F.lit(2.0), F.lit(-1074.0))
    size = F.when(exponent == 0x7FF, special).when(exponent == 0, small).otherwise(whole)
    return F.when(bits < 0, -size).otherwise(size)


def encode_records(
    frame: DataFrame, key: Sequence[str] = (), key_format: str = "string", value_format: str = JSON
) -> DataFrame:
    """Rows as records: the columns ``key``, else ``_key`` if there is one, as the key, and the others as the value.

    What stands in ``_key`` is not repeated in the value; other columns are.
    """
    chosen = tuple(key) or tuple(name for name in frame.columns if name.lower() == KEY)
    value = value_of(frame.columns, value_format)
    return frame.select(key_in(frame, chosen, key_format).alias("key"), value.alias("value"))


def key_in(frame: DataFrame, names: Sequence[str], format_: str = "string") -> Column:
    """Columns of a frame as the key of a record: `key_of`, with one text per time."""
    types = {field.name.lower(): field.dataType for field in frame.schema}
    chosen = [(F.col(quote(name)), types[name.lower()]) for name in names]
    if format_ == "string" and len(chosen) == 1 and isinstance(chosen[0][1], TimestampType):
        return key_text(chosen[0][0], str(frame.sparkSession.conf.get("spark.sql.session.timeZone")))
    key, has_micros = key_of(names, format_), [test for column in chosen for test in _micros_tests(*column)]
    if not has_micros or format_ == AVRO or (len(names) == 1 and format_ != JSON):
        return key
    # Spark shows milliseconds, which most times have: only the keys of others have more digits.
    return F.when(reduce(Column.__or__, has_micros), _object(names, EXACT)).otherwise(key)


def _micros_tests(value: Column, type_: DataType) -> Iterator[Column]:
    """For each time in a value, whether it has digits below milliseconds."""
    match type_:
        case TimestampType() | TimestampNTZType():
            yield F.coalesce(F.extract(F.lit("SECOND"), value) * 1000 % 1 != 0, F.lit(False))
        case StructType():
            for field in type_:
                yield from _micros_tests(value.getField(field.name), field.dataType)
        case ArrayType():
            if [*_micros_tests(F.lit(None).cast(type_.elementType), type_.elementType)]:

                def has_micros(element: Column) -> Column:
                    return reduce(Column.__or__, _micros_tests(element, type_.elementType))

                yield F.coalesce(F.exists(value, has_micros), F.lit(False))
        case MapType():
            yield from _micros_tests(F.map_keys(value), ArrayType(type_.keyType))
            yield from _micros_tests(F.map_values(value), ArrayType(type_.valueType))
        case _:
            pass


def key_of(names: Sequence[str], format_: str = "string") -> Column:
    """Columns as the key of a record: a single one in that format, several as a JSON object, none as NULL.

    For Avro they are a struct.
    """
    if not names:
        return F.lit(None).cast("string")
    if format_ == AVRO:
        inside = F.struct(*(F.col(quote(name)) for name in names))
        return F.when(F.col(quote(names[0])).isNotNull(), inside) if len(names) == 1 else inside
    if len(names) == 1 and format_ != JSON:
        return encode_key(F.col(quote(names[0])), format_)
    return _object(names)


def encode_key(value: Column, format_: str) -> Column:
    """A value as a key, by its format: what `decode_key` reads."""
    match format_:
        case "int":
            bits = value.cast("int").cast("bigint").bitwiseAND(F.lit(0xFFFFFFFF))
            return F.unhex(F.lpad(F.hex(bits), 8, "0"))
        case "long":
            return F.unhex(F.lpad(F.hex(value.cast("bigint")), 16, "0"))
        case "double":
            number = value.cast("double")
            bits = F.java_method(F.lit("java.lang.Double"), F.lit("doubleToLongBits"), F.coalesce(number, F.lit(0.0)))
            return F.when(number.isNotNull(), F.unhex(F.lpad(F.hex(bits.cast("bigint")), 16, "0")))
        case "bytes":
            return value.cast("binary")
        case _:
            return value.cast("string")


def value_of(names: Sequence[str], format_: str = JSON) -> Column:
    """Columns as the value of a record, all but ``_key``: a JSON object, NULLs among them; a struct for workers."""
    inside = [name for name in names if name.lower() != KEY]
    return F.struct(*(F.col(quote(name)) for name in inside)) if format_ in _DECODERS else _object(inside)


def _object(names: Sequence[str], times: Mapping[str, str] = IN_UTC) -> Column:
    # In UTC, since text in the session's time zone may stand for two instants.
    return F.to_json(F.struct(*(F.col(quote(name)) for name in names)), {"ignoreNullFields": "false", **times})


def _key_format(source: Source, formats: tuple[str, ...] = tuple(KEY_TYPES)) -> str:
    """The writer of keys; refused here if they cannot be read, since only what reads them needs to."""
    wrong = [*wrong_format(Feed(source), KEY_FORMAT, formats)]
    if wrong:
        raise WatersmeetError(wrong)
    return source.lowercase_options.get(KEY_FORMAT, "string").lower()
