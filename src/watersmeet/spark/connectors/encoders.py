"""Encodes record values and keys in workers: Avro and Protobuf.

An Avro value begins with the number that a registry gave its schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import BinaryType, StructField, StructType

from watersmeet.catalog import Sink
from watersmeet.codec.avro_encoding import encode_rows, schema_of
from watersmeet.codec.binary import SchemaError
from watersmeet.errors import Refusal, WatersmeetError, WorkerRefusalError, refuse
from watersmeet.formats.protobuf.descriptor import PROTOBUF
from watersmeet.formats.protobuf.encoding import ProtobufEncoder, ValueOfNoFieldError
from watersmeet.formats.registry import HEADER, MAGIC, Registry, RegistryError
from watersmeet.formats.sink import Changes, SinkFormat
from watersmeet.logical.expressions import quote
from watersmeet.spark.connectors.decoders import OF_KEY, OF_VALUE, RecordPart, messages_of
from watersmeet.spark.connectors.outputs import BATCH
from watersmeet.spark.connectors.records import encode_records, value_of
from watersmeet.spark.exchange.precombine import columns_of
from watersmeet.spark.private.introspection import arrow_schema


def encode_avro(sink: Sink, records: DataFrame, part: RecordPart = OF_VALUE) -> DataFrame:
    """Records whose values, or keys, are structs, with these in Avro. Their schema is registered before the first one.

    A key of one column is that column and no record: then it is never NULL, for a record without a key has none.
    """
    schema, is_whole = _schema(sink, records, part)
    registry = Registry.of(sink.lowercase_options)
    assert registry is not None, "the sink was checked"
    try:
        number = _register(
            registry, part.subject_in(sink.lowercase_options, sink.lowercase_options.get("topic", sink.name)), schema
        )
    except RegistryError as error:
        raise WatersmeetError([registry.refusal(sink.name, error)]) from error
    made = [StructField(part.column, BinaryType()) if f.name == part.column else f for f in records.schema]
    return records.mapInArrow(WriteAvro(number, part.column, is_whole=is_whole), StructType(made))


def check_schemas(format_: SinkFormat, key: Sequence[str], rows: DataFrame) -> None:
    """Refuse rows whose values or keys have no schema."""
    records = encode_records(rows, key, format_.key_format, format_.value_format)
    for part in (OF_VALUE, OF_KEY):
        if isinstance(records.schema[part.column].dataType, StructType):
            _schema(format_.sink, records, part)


def _schema(sink: Sink, records: DataFrame, part: RecordPart) -> tuple[str, bool]:
    """The schema of values or keys as JSON, and whether it is that of a single column."""
    zone = records.sparkSession.conf.get("spark.sql.session.timeZone")
    fields = [*arrow_schema(StructType([records.schema[part.column]]), zone).field(0).type]
    is_whole = part == OF_KEY and len(fields) == 1
    name = re.sub(r"\W", "_", f"_{sink.name}", flags=re.ASCII).removeprefix("_")
    try:
        schema = schema_of([field.with_nullable(False) for field in fields] if is_whole else fields, name)
    except SchemaError as error:
        hint = "rename or cast the column in SELECT."
        raise refuse("AVRO_SCHEMA", name=sink.name, reason=str(error), hint=hint) from error
    return json.dumps(schema["fields"][0]["type"] if is_whole else schema), is_whole


@dataclass(frozen=True)
class WriteAvro:
    """Writes the values or keys of batches, each behind the number of their schema."""

    number: int
    column: str
    is_whole: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write those of the batches of a task."""
        header = bytes([MAGIC]) + self.number.to_bytes(HEADER - 1, "big")
        for batch in batches:
            at = batch.schema.get_field_index(self.column)
            encode = _encode_single if self.is_whole else encode_rows
            yield batch.set_column(at, self.column, encode(batch.column(at), header))


def _encode_single(rows: Any, header: bytes) -> Any:
    """Structs of one column, which is there wherever the struct is, as the bytes of that column."""
    has = np.asarray(rows.is_valid())
    fields = [field.with_nullable(False) for field in rows.type]
    written = encode_rows(pa.StructArray.from_arrays(rows.filter(pa.array(has)).flatten(), fields=fields), header)
    return written.take(pa.array(np.cumsum(has) - 1, mask=~has))


@lru_cache(64)
def _register(registry: Registry, subject: str, schema: str) -> int:
    return registry.register(subject, schema)


def encode_protobuf(sink: Sink, records: DataFrame) -> DataFrame:
    """Records whose values are structs, with these as messages."""
    column = OF_VALUE.column
    made = [StructField(column, BinaryType()) if f.name == column else f for f in records.schema]
    return records.mapInArrow(WriteMessages(sink.name, _make_encoder(sink, records)), StructType(made))


def check_message(sink: Sink, changes: Changes | None, rows: DataFrame) -> None:
    """Refuse rows, as they go to the sink, that are not its message."""
    shown = rows.select(*map(quote, columns_of(rows))) if changes == "upsert" else rows
    shown = shown.withColumn(BATCH, F.lit(0).cast("bigint")) if changes == "log" else shown
    _make_encoder(sink, shown.select(value_of(shown.columns, PROTOBUF).alias(OF_VALUE.column)))


def _make_encoder(sink: Sink, records: DataFrame) -> ProtobufEncoder:
    zone = records.sparkSession.conf.get("spark.sql.session.timeZone")
    messages = messages_of(sink)
    try:
        return ProtobufEncoder(
            messages, arrow_schema(StructType([records.schema[OF_VALUE.column]]), zone).field(0).type
        )
    except SchemaError as error:
        hint = "rename or cast the columns in SELECT to match the fields of the message."
        raise refuse("PROTOBUF_MESSAGE", name=sink.name, reason=str(error), hint=hint) from error


@dataclass(frozen=True)
class WriteMessages:
    """Writes the values of batches."""

    name: str
    encoder: ProtobufEncoder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write those of the batches of a task."""
        for batch in batches:
            at = batch.schema.get_field_index(OF_VALUE.column)
            try:
                values = self.encoder.rows(batch.column(at))
            except ValueOfNoFieldError as error:
                parameters = {"name": self.name, "message": self.encoder.messages.root, "reason": str(error)}
                raise WorkerRefusalError(Refusal("PROTOBUF_VALUE", parameters)) from None
            yield batch.set_column(at, OF_VALUE.column, values)
