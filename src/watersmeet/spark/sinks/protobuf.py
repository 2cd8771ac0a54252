"""Values of records in Protobuf, made in Spark's workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import BinaryType, StructField, StructType

from watersmeet.catalog import Sink
from watersmeet.errors import Refusal, WorkerRefusalError, refuse
from watersmeet.formats.binary import SchemaError
from watersmeet.formats.protobuf.descriptor import PROTOBUF
from watersmeet.formats.protobuf.encoding import ProtobufEncoder, ValueOfNoFieldError
from watersmeet.formats.sink import Changes
from watersmeet.plan.expressions import quote
from watersmeet.spark.exchange.consolidate import columns_of
from watersmeet.spark.private.told import arrow_schema
from watersmeet.spark.sinks.outputs import BATCH
from watersmeet.spark.sources.opening import OF_VALUE
from watersmeet.spark.sources.protobuf import messages_of
from watersmeet.spark.sources.records import value_of


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
