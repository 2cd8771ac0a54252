"""Decodes and encodes record values in workers as messages of Protobuf."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StructField, StructType

from watersmeet.catalog import Field, Sink, Source
from watersmeet.codec.binary import SchemaError
from watersmeet.errors import Refusal, WorkerRefusalError, refuse
from watersmeet.formats.protobuf.descriptor import DESCRIPTOR, MESSAGE, DescriptorError, Messages, read_messages
from watersmeet.formats.protobuf.values import ProtobufDecoder, ProtobufEncoder, ValueOfNoFieldError
from watersmeet.locations import local_path
from watersmeet.spark.connectors.record_parts import OF_VALUE, apply_decoder, arrow_type
from watersmeet.spark.private.introspection import arrow_schema


def messages_of(declared: Source | Sink) -> Messages:
    """The messages that the values of a source or a sink are; refused if the descriptor cannot be read."""
    try:
        return read_messages(local_path(declared.lowercase_options[DESCRIPTOR]), declared.lowercase_options[MESSAGE])
    except DescriptorError as error:
        raise refuse("PROTOBUF_MESSAGE", name=declared.name, reason=str(error), hint=error.hint) from error


def decode_protobuf(source: Source, frame: DataFrame, inside: Sequence[Field]) -> DataFrame:
    """The frame of records with their values decoded; refused if the message lacks a declared column."""
    messages = messages_of(source)
    # Primary key columns that the value lacks come from the key of its record.
    key_names = {name.lower() for name in source.primary_key}
    must = [field.name for field in inside if field.name.lower() not in key_names]
    missing = [name for name in must if messages.root_message.field(name) is None]
    try:
        if missing:
            raise SchemaError(f"{messages.root} has no {' and no '.join(f'`{name}`' for name in missing)}")
        decoder = ProtobufDecoder(messages, arrow_type(frame, inside))
    except SchemaError as error:
        names = ", ".join(f"`{proto_field.name}`" for proto_field in messages.root_message.fields)
        hint = f"declare columns of {names}." if missing else "declare the columns as in the message."
        raise refuse("PROTOBUF_MESSAGE", name=source.name, reason=str(error), hint=hint) from error
    return apply_decoder(DecodeMessages(decoder), frame, inside, OF_VALUE)


@dataclass(frozen=True)
class DecodeMessages:
    """Opens the values of batches."""

    decoder: ProtobufDecoder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Open the values of the batches of a task."""
        for batch in batches:
            values, wrong = self._decode(batch.column(OF_VALUE.column).cast(pa.binary()))
            names = [*batch.schema.names, OF_VALUE.value_column, OF_VALUE.error_column]
            yield pa.RecordBatch.from_arrays([*batch.columns, values, wrong], names=names)

    def _decode(self, values: Any) -> tuple[Any, Any]:
        """Structs of the declared columns, and why a value could not be read; nothing of one that is not there."""
        has = np.asarray(values.is_valid())
        decoded = self.decoder.rows(values.drop_null())
        place = pa.array(np.cumsum(has) - 1, mask=~has)
        reasons = pc.if_else(pa.array(decoded.bad), f"its bytes are not a {self.decoder.messages.root}", None)
        return decoded.values.take(place), reasons.cast(pa.string()).take(place)


def encode_protobuf(sink: Sink, records: DataFrame) -> DataFrame:
    """Records whose values are structs, with these as messages."""
    column = OF_VALUE.column
    made = [StructField(column, BinaryType()) if f.name == column else f for f in records.schema]
    return records.mapInArrow(WriteMessages(sink.name, message_encoder(sink, records)), StructType(made))


def message_encoder(sink: Sink, records: DataFrame) -> ProtobufEncoder:
    """The encoder that writes the values of records as the message of a sink."""
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
