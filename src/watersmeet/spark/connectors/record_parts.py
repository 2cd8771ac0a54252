"""The value and the key of a record, which workers open: their columns, options and names in messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from watersmeet.catalog import Field
from watersmeet.codec.avro_schema import KEY_SCHEMA, SCHEMA
from watersmeet.formats.registry import KEY_SUBJECT, SUBJECT, subject_in
from watersmeet.schema import quote
from watersmeet.spark.private.introspection import arrow_schema

RecordDecoder = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Adds the two columns of a `RecordPart` to batches of records."""


@dataclass(frozen=True)
class RecordPart:
    """The value or the key of a record: its column, the options about its schema, and its name in messages.

    ``value_column`` and ``error_column`` are the columns of the decoded value, and of the reason why it could not be
    read.
    """

    column: str
    schema: str
    subject: str
    called: tuple[str, str]

    @property
    def value_column(self) -> str:
        """The column of the decoded value."""
        return f"#opened {self.column}"

    @property
    def error_column(self) -> str:
        """The column that says why it could not be read."""
        return f"#wrong {self.column}"

    def subject_in(self, said: Mapping[str, str], topic: str) -> str:
        """The subject of its schemas."""
        return subject_in(said, self.subject, self.column, topic)


OF_VALUE = RecordPart("value", SCHEMA, SUBJECT, ("it", "its bytes"))
OF_KEY = RecordPart("key", KEY_SCHEMA, KEY_SUBJECT, ("its key", "the bytes of its key"))


def arrow_type(frame: DataFrame, inside: Sequence[Field]) -> Any:
    """The Arrow type of declared columns, as workers must give them."""
    zone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
    return pa.struct([field.with_nullable(True) for field in arrow_schema(_columns(inside), zone)])


def apply_decoder(decoder: RecordDecoder, frame: DataFrame, inside: Sequence[Field], part: RecordPart) -> DataFrame:
    """The frame of records with a part of them opened into the declared columns."""
    plain = StructType([StructField(f.name, f.dataType) for f in _columns(inside)])
    more = (StructField(part.value_column, plain), StructField(part.error_column, StringType()))
    return frame.mapInArrow(decoder, StructType([*frame.schema, *more]))


def _columns(inside: Sequence[Field]) -> StructType:
    return cast("StructType", StructType.fromDDL(", ".join(f"{quote(f.name)} {f.type}" for f in inside)))
