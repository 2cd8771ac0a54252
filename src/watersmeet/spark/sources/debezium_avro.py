"""Debezium's records in Avro: in which form the schema has the columns of a row, and the records opened."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.catalog import Field, Source
from watersmeet.errors import refuse
from watersmeet.formats.avro.schema import AvroType, field_of, read_schema, split_null
from watersmeet.formats.binary import SchemaError
from watersmeet.formats.debezium import TIME_UNIT, Unit, is_decimal
from watersmeet.plan.expressions import quote
from watersmeet.spark.sources.avro import decode_avro, reader_schema
from watersmeet.spark.sources.malformed import PLACE, REASON, VALUE
from watersmeet.spark.sources.opening import OF_VALUE
from watersmeet.spark.sources.records import place_of_record
from watersmeet.type_names import is_moment

_ROWS = ("before", "after")
_UNITS: Mapping[str, Unit] = {
    "io.debezium.time.Timestamp": "millis",
    "io.debezium.time.MicroTimestamp": "micros",
    "io.debezium.time.NanoTimestamp": "nanos",
}
"""What Debezium calls times that it counts in a unit; one without such a name is in the unit that the source says."""


@dataclass(frozen=True)
class Form:
    """How the columns of a row come in a record: the type of each, and the unit of times that come as numbers."""

    types: Mapping[str, str]
    units: Mapping[str, Unit]


def form_in_avro(source: Source) -> Form:
    """The form that the latest schema has; refused if it is no schema of Debezium's, or has not what is declared."""
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
    """What a column is read as: times and decimals in whichever of their forms they come."""
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
    """The operation of each record, its row before and after, and what is told of it if it cannot be read."""
    row = ", ".join(f"{quote(name)}: {type_}" for name, type_ in form.types.items())
    inside = [Field("op", "STRING"), *(Field(side, f"STRUCT<{row}>") for side in _ROWS)]
    opened = decode_avro(source, frame, inside)
    parts = (F.col(quote(OF_VALUE.value_column)).getField(f.name).alias(f.name) for f in inside)
    origin = (place_of_record(frame).alias(PLACE), F.col("value").alias(VALUE))
    return opened.select(
        *parts, F.col("value").isNotNull().alias("is_told"), *origin, F.col(quote(OF_VALUE.error_column)).alias(REASON)
    )
