"""Decodes and encodes record values and keys in workers as Avro.

A value either begins with the id of its schema in a registry, or has the schema of the source. A worker fetches
ids that are new while the query runs from the registry. An encoded value begins with the id that the registry gave its
schema.
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
from pyspark.sql.types import BinaryType, StructField, StructType

from watersmeet.catalog import Field, Sink, Source
from watersmeet.codec.avro_schema import AvroSchema, field_of, read_schema
from watersmeet.codec.avro_values import AvroDecoder, encode_rows, schema_of
from watersmeet.codec.binary import SchemaError
from watersmeet.errors import WatersmeetError, WorkerRefusalError, refuse
from watersmeet.formats.registry import (
    HEADER,
    MAGIC,
    IncompatibleSchemaError,
    NotRegisteredError,
    Registry,
    RegistryError,
    Texts,
)
from watersmeet.spark.connectors.record_parts import OF_KEY, OF_VALUE, RecordPart, apply_decoder, arrow_type
from watersmeet.spark.private.introspection import arrow_schema


def decode_avro_key(source: Source, frame: DataFrame, declared: Field | None, inside: Sequence[Field]) -> DataFrame:
    """The frame of records with their keys decoded: as the whole ``declared`` column, or as its fields.

    A key that is not a record is a single column as well.
    """
    if declared is None and _schema_kind(reader_schema(source, OF_KEY)) == "record":
        return decode_avro(source, frame, inside, OF_KEY)
    whole = declared or (inside[0] if len(inside) == 1 else None)
    if whole is None:
        reason, hint = (
            "its keys are not records, which several key columns need",
            "declare one column as the PRIMARY KEY.",
        )
        raise refuse("AVRO_SCHEMA", name=source.name, reason=reason, hint=hint)
    return decode_avro(source, frame, [whole], OF_KEY, whole.name)


def decode_avro(
    source: Source, frame: DataFrame, inside: Sequence[Field], part: RecordPart = OF_VALUE, whole: str = ""
) -> DataFrame:
    """The frame of records with their values or keys decoded; refused if the schema lacks a declared column.

    ``whole``: the only column, which gets the whole value instead of a field of it.
    """
    wanted = arrow_type(frame, inside)
    reader = _as_field(reader_schema(source, part), whole)
    decoder = DecodeAvro(source.name, wanted, reader, Registry.of(source.lowercase_options), part, whole)
    # Primary key columns that the value lacks come from the key of its record.
    key_names = {name.lower() for name in source.primary_key} if part == OF_VALUE else set[str]()
    decoder.check([field for field in inside if field.name.lower() not in key_names])
    return apply_decoder(decoder, frame, inside, part)


def reader_schema(source: Source, part: RecordPart = OF_VALUE) -> Texts:
    """The schema that declared columns are compared with: the latest of the subject, or the one that is given."""
    registry = Registry.of(source.lowercase_options)
    if registry is None:
        return (source.lowercase_options[part.schema],)
    subject = part.subject_in(
        source.lowercase_options, source.lowercase_options.get("subscribe", "").split(",")[0].strip()
    )
    try:
        return registry.latest(subject).texts
    except NotRegisteredError as error:
        reason = f"the registry has no schema for the subject `{subject}`"
        hint = f"name the subject with `{part.subject}`, or write the first value to the topic."
        raise refuse("AVRO_SCHEMA", name=source.name, reason=reason, hint=hint) from error
    except RegistryError as error:
        raise WatersmeetError([registry.refusal(source.name, error)]) from error


def _schema_kind(texts: Texts) -> str:
    """The kind of a schema."""
    schema = _schema(texts)
    return schema.resolve(schema.type).kind


def _as_field(texts: Texts, name: str) -> Texts:
    """A schema as that of a record with it as its one field, which has the same bytes; without a name as it is."""
    if not name:
        return texts
    record = {"type": "record", "name": "watersmeet_whole", "fields": [{"name": name, "type": json.loads(texts[-1])}]}
    return (*texts[:-1], json.dumps(record))


@dataclass(frozen=True)
class DecodeAvro:
    """Decodes the values or keys of batches, as the fields of records, or as the only column ``whole``.

    ``reader``: the schema with the defaults of fields that a writer did not have.
    """

    name: str
    wanted: Any
    reader: Texts
    registry: Registry | None
    part: RecordPart = OF_VALUE
    whole: str = ""

    def check(self, declared: Sequence[Field]) -> None:
        """Refuse columns that the schema of the reader does not have, or has otherwise."""
        try:
            schema = _schema(self.reader)
            _make_decoder(self.reader, self.wanted, self.reader)
            record = schema.resolve(schema.type)
            missing = [f.name for f in declared if field_of(record, f.name) is None]
            if not missing:
                return
            reason = f"the schema has no {' and no '.join(f'`{name}`' for name in missing)}"
            hint = f"declare columns of {', '.join(f'`{field.name}`' for field in record.fields)}."
        except SchemaError as error:
            reason, hint = str(error), "declare the columns as in the schema."
        raise refuse("AVRO_SCHEMA", name=self.name, reason=reason, hint=hint)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Open the values of the batches of a task."""
        for batch in batches:
            values, wrong = self._decode(batch.column(self.part.column).cast(pa.binary()))
            columns = [*batch.columns, values, wrong]
            yield pa.RecordBatch.from_arrays(
                columns, names=[*batch.schema.names, self.part.value_column, self.part.error_column]
            )

    def _decode(self, values: Any) -> tuple[Any, Any]:
        """Structs of the declared columns, and why a value could not be read."""
        has = np.asarray(values.is_valid())
        numbers = _numbers(values, has) if self.registry is not None else np.where(has, 0, -1)
        wrong = np.full(len(values), None, object)
        it, its_bytes = self.part.called
        wrong[has & (numbers < 0)] = f"{it} does not begin with the number of a schema"
        parts: list[Any] = []
        rows: list[Any] = []
        for number in np.unique(numbers[numbers >= 0]).tolist():
            here = np.flatnonzero(numbers == number)
            try:
                decoding = _make_decoder(self._texts(number), self.wanted, self.reader)
            except (SchemaError, NotRegisteredError) as error:
                cause = error if isinstance(error, SchemaError) else "the registry does not have it"
                wrong[here] = f"schema {number}: {cause}"
                continue
            decoded = decoding.rows(values.take(pa.array(here)), HEADER if self.registry is not None else 0)
            of = f"schema {number}" if self.registry is not None else "the schema"
            wrong[here[decoded.bad]] = f"{its_bytes} are not a value of {of}"
            parts.append(decoded.values)
            rows.append(here)
        return _in_place(parts, rows, len(values), self.wanted), pa.array(wrong, pa.string())

    def _texts(self, number: int) -> Texts:
        if self.registry is None:
            return self.reader
        try:
            return _as_field(self.registry.by_id(number), self.whole)
        except NotRegisteredError:
            raise
        except RegistryError as error:
            raise WorkerRefusalError(self.registry.refusal(self.name, error)) from None


def _numbers(values: Any, has: Any) -> Any:
    """The number of the schema that each value begins with; -1 if it does not."""
    flat = values.cast(pa.large_binary())
    _, offsets, data = flat.buffers()
    places = np.frombuffer(offsets, np.int64)[flat.offset : flat.offset + len(flat) + 1]
    stored = np.concatenate([np.frombuffer(data or b"", np.uint8), np.zeros(HEADER, np.uint8)])
    heads = stored[places[:-1, None] + np.arange(HEADER)]
    has_header = has & (np.diff(places) >= HEADER) & (heads[:, 0] == MAGIC)
    return np.where(has_header, np.ascontiguousarray(heads[:, 1:]).view(">u4")[:, 0].astype(np.int64), -1)


def _in_place(parts: list[Any], rows: list[Any], length: int, wanted: Any) -> Any:
    """Values where their rows are, and nothing elsewhere."""
    if not parts:
        return pa.nulls(length, wanted)
    index = np.full(length, -1, np.int64)
    index[np.concatenate(rows)] = np.arange(sum(map(len, rows)))
    return pa.concat_arrays(parts).take(pa.array(index, mask=index < 0))


@lru_cache(256)
def _make_decoder(writer: Texts, wanted: Any, reader: Texts) -> AvroDecoder:
    return AvroDecoder(_schema(writer), wanted, _schema(reader))


def _schema(texts: Texts) -> AvroSchema:
    return read_schema(texts[-1], *texts[:-1])


def encode_avro(sink: Sink, records: DataFrame, part: RecordPart = OF_VALUE) -> DataFrame:
    """Records whose values, or keys, are structs, with these in Avro. Their schema is registered before the first one.

    A key of one column is that column and no record: then it is never NULL, for a record without a key has none.
    """
    schema, is_whole = record_schema(sink, records, part)
    registry = Registry.of(sink.lowercase_options)
    assert registry is not None, "the sink was checked"
    subject = part.subject_in(sink.lowercase_options, sink.lowercase_options.get("topic", sink.name))
    try:
        number = _register(registry, subject, schema)
    except IncompatibleSchemaError as error:
        reason = f"the registry rejects their schema for the subject `{subject}`: it {error}"
        hint = (
            "let a new column be NULL, for example `nullif(n, -1) AS n`, and leave the types of the others as they "
            "were; or change the compatibility of the subject."
        )
        raise refuse("AVRO_SCHEMA", name=sink.name, reason=reason, hint=hint) from error
    except RegistryError as error:
        raise WatersmeetError([registry.refusal(sink.name, error)]) from error
    made = [StructField(part.column, BinaryType()) if f.name == part.column else f for f in records.schema]
    return records.mapInArrow(WriteAvro(number, part.column, is_whole=is_whole), StructType(made))


def record_schema(sink: Sink, records: DataFrame, part: RecordPart) -> tuple[str, bool]:
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
    """Structs with one column, which is not NULL unless the struct is, as the bytes of that column."""
    has = np.asarray(rows.is_valid())
    fields = [field.with_nullable(False) for field in rows.type]
    written = encode_rows(pa.StructArray.from_arrays(rows.filter(pa.array(has)).flatten(), fields=fields), header)
    return written.take(pa.array(np.cumsum(has) - 1, mask=~has))


@lru_cache(64)
def _register(registry: Registry, subject: str, schema: str) -> int:
    return registry.register(subject, schema)
