"""Values of records in Protobuf, opened in Spark's workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from watersmeet.catalog import Field, Sink, Source
from watersmeet.errors import refuse
from watersmeet.formats.binary import SchemaError
from watersmeet.formats.protobuf.decoding import ProtobufDecoder
from watersmeet.formats.protobuf.descriptor import DESCRIPTOR, MESSAGE, DescriptorError, Messages, read_messages
from watersmeet.locations import local_path
from watersmeet.spark.sources.opening import OF_VALUE, apply_decoder, arrow_type


def messages_of(declared: Source | Sink) -> Messages:
    """The messages that the values of a source or a sink are; refused if the descriptor cannot be read."""
    try:
        return read_messages(local_path(declared.lowercase_options[DESCRIPTOR]), declared.lowercase_options[MESSAGE])
    except DescriptorError as error:
        raise refuse("PROTOBUF_MESSAGE", name=declared.name, reason=str(error), hint=error.hint) from error


def decode_protobuf(source: Source, frame: DataFrame, inside: Sequence[Field]) -> DataFrame:
    """The frame of records with their values opened; refused if the message has not what is declared."""
    messages = messages_of(source)
    # What a value does not have of the primary key comes from the key of its record.
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
