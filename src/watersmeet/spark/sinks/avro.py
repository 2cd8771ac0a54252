"""Values of records in Avro, made in Spark's workers; each begins with the number that a registry gave their schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StructField, StructType

from watersmeet.catalog import Sink
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.formats.avro.encoding import encoded_rows, schema_of
from watersmeet.formats.avro.schema import SchemaError
from watersmeet.formats.registry import HEADER, MAGIC, SUBJECT, Registry, RegistryError
from watersmeet.spark.private.told import arrow_schema

_VALUE = "value"


def in_avro(sink: Sink, records: DataFrame) -> DataFrame:
    """Records whose values are structs, with these in Avro. Their schema is registered before the first of them."""
    zone = records.sparkSession.conf.get("spark.sql.session.timeZone")
    fields = [*arrow_schema(StructType([records.schema[_VALUE]]), zone).field(0).type]
    registry = Registry.of(sink.said)
    assert registry is not None, "the sink was checked"
    try:
        schema = json.dumps(schema_of(fields, re.sub(r"\W", "_", f"_{sink.name}", flags=re.ASCII).removeprefix("_")))
        number = _registered(registry, sink.said.get(SUBJECT, f"{sink.said.get('topic', sink.name)}-value"), schema)
    except SchemaError as error:
        hint = "name or cast the column otherwise in the SELECT."
        raise refuse("AVRO_SCHEMA", name=sink.name, reason=str(error), hint=hint) from error
    except RegistryError as error:
        raise WatersmeetError([registry.refusal(sink.name, error)]) from error
    made = [StructField(_VALUE, BinaryType()) if field.name == _VALUE else field for field in records.schema]
    return records.mapInArrow(WriteAvro(number), StructType(made))


@dataclass(frozen=True)
class WriteAvro:
    """Writes the values of batches, each behind the number of their schema."""

    number: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the values of the batches of a task."""
        header = bytes([MAGIC]) + self.number.to_bytes(HEADER - 1, "big")
        for batch in batches:
            at = batch.schema.get_field_index(_VALUE)
            yield batch.set_column(at, _VALUE, encoded_rows(batch.column(at), header))


@lru_cache(64)
def _registered(registry: Registry, subject: str, schema: str) -> int:
    return registry.register(subject, schema)
