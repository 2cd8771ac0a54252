"""Records of JSON that workers decode as columns, and those among them that only Spark decodes.

A first worker decodes the plain records of a task and packs them for the exchange. All others it hands on as they came,
so that Spark decodes these, with everything that it does to malformed ones. A second worker packs what Spark has
decoded, behind the records that are packed already. Each topic is read once. Where most of a sample are odd, all of the
batch goes to Spark as it is, so that few records are gone over twice.

This changes the order of rows within a task, so ports for which the order matters are left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructField, StructType

from watersmeet.catalog import Source
from watersmeet.codec.json_columns import JsonColumns, Mask, is_plain_type
from watersmeet.formats import source_format
from watersmeet.formats.base import MalformedPolicy
from watersmeet.formats.records import value_fields
from watersmeet.schema import normalise_type, quote
from watersmeet.spark.connectors.malformed import PACKED_RECORD, count_malformed, readable_rows
from watersmeet.spark.connectors.records import decode_records
from watersmeet.spark.exchange.columns import Batches, ColumnPipeline
from watersmeet.spark.exchange.packing import PACKED, PACKED_DDL, PARTITION, Pack
from watersmeet.spark.private.checkpoint_files import records_in_blocks

PARTS = ("value", "partition", "offset")
"""The columns of a record that are read: its value, and its place; its topic, if there may be several."""
SAMPLE = 512
"""The first records of a batch; if most of them are odd, all are handed on as they came."""
BYTES_WAITING = 16 * 2**20
"""The bytes of records for Spark that a worker collects at most before it hands them on."""
_HEAD = 12
"""The bytes of a block before the name of its topic."""
_UTC = frozenset({"UTC", "Etc/UTC"})
_TIME_PARSER = "spark.sql.legacy.timeParserPolicy"


def record_decoder(source: Source, frame: DataFrame, schema: pa.Schema) -> JsonColumns | None:
    """The decoder of columns of a source in workers; None: only Spark can decode them.

    ``frame`` has the declared columns in the types that Spark gives them; ``schema`` the wanted ones, by their names.
    """
    conf = frame.sparkSession.conf
    actual = {field.name: normalise_type(field.dataType.simpleString()) for field in frame.schema}
    types = {field.name: actual.get(field.name, "") for field in value_fields(source)}
    is_legacy = str(conf.get(_TIME_PARSER)).upper() == "LEGACY"
    if is_legacy or not all(map(is_plain_type, types.values())) or not set(schema.names) <= types.keys():
        return None
    required = frozenset(field.name for field in value_fields(source) if not field.nullable)
    if not required <= set(schema.names):
        return None
    decoder = JsonColumns(types, schema, required, str(conf.get("spark.sql.session.timeZone")) in _UTC)
    return decoder if decoder.can_decode() else None


@dataclass(frozen=True)
class RecordPacking:
    """The way of records to the exchange: ``columns`` of the rows of a leaf, and the pack of its port.

    ``leaf``: the names that the columns have there, the partition among them.
    """

    decoder: JsonColumns
    columns: ColumnPipeline
    pack: Pack
    leaf: tuple[str, ...]

    def apply(self, source: Source, records: DataFrame, policy: MalformedPolicy, *, with_example: bool) -> DataFrame:
        """Return the records of the exchange; malformed records are counted and treated as ``policy`` says."""
        names = self.decoder.schema.names
        topics = source_format(source).topics
        topic = topics[0] if len(topics) == 1 else None
        records = records.select(*PARTS, *([] if topic else ["topic"]))
        packed = StructField(PACKED_RECORD, StructType.fromDDL(PACKED_DDL))
        schema = StructType([packed, *(StructField(field.name, field.dataType) for field in records.schema)])
        blocks = records_in_blocks(records)
        pack = PackPlainRecords(self, topic, in_blocks=blocks is not None)
        packed_records = (records if blocks is None else blocks).mapInArrow(pack, schema)
        packed_records = packed_records.withColumn("topic", F.lit(topic)) if topic else packed_records
        opened = decode_records(source, packed_records)
        rows = readable_rows(count_malformed(source, opened, policy, with_example=with_example))
        rows = rows.select(*(F.col(quote(name)) for name in (PACKED_RECORD, *names, PARTITION)))
        named = rows.toDF(*(f"c{n}" for n in range(len(rows.columns))))
        return named.mapInArrow(PackDecodedRecords(self), PACKED_DDL)


@dataclass(frozen=True)
class PackPlainRecords:
    """Packs the plain records of a task, and hands the others on; ``topic``: the only one, if it is not a column.

    ``in_blocks``: the records come in blocks.
    """

    packing: RecordPacking
    topic: str | None
    in_blocks: bool = False

    def __call__(self, batches: Batches) -> Batches:
        """Pack the records of one map task."""
        remaining, schema = self._records(batches) if self.in_blocks else batches, None
        for first in remaining:
            schema = first.schema
            others: list[pa.RecordBatch] = []
            rows = self._rows(first, remaining, others)
            for records in self.packing.pack(self.packing.columns(rows)):
                yield _with_parts(records, schema)
            for batch in others:
                yield _as_records(batch)

    def _rows(
        self, first: pa.RecordBatch, remaining: Iterator[pa.RecordBatch], others: list[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """The plain rows, until the ``others`` have enough bytes."""
        batch: pa.RecordBatch | None = first
        while batch is not None:
            rows, is_plain = self._split(batch.column(0))
            topics = batch.column("topic").cast(pa.string()) if self.topic is None else pa.scalar(self.topic)
            partitions = pc.binary_join_element_wise(topics, batch.column("partition").cast(pa.string()), "-")
            if not is_plain.all():
                others.append(batch.filter(pa.array(~is_plain)))
                partitions = partitions.filter(pa.array(is_plain))
            if rows.num_rows:
                yield _leaf_rows(self.packing, [*rows.columns, partitions])
            batch = None if sum(part.nbytes for part in others) > BYTES_WAITING else next(remaining, None)

    def _records(self, batches: Batches) -> Batches:
        for batch in batches:
            for block in batch.column(0):
                yield read_block(block.as_buffer(), has_topic=self.topic is None)

    def _split(self, values: pa.Array) -> tuple[pa.RecordBatch, Mask]:
        """The plain rows of a batch, and which records they are; none, where most of a sample are odd."""
        rows, is_plain = self.packing.decoder.split(values[:SAMPLE])
        if len(values) <= SAMPLE:
            return rows, is_plain
        if 2 * rows.num_rows < SAMPLE:
            return rows.slice(0, 0), np.zeros(len(values), np.bool_)
        return self.packing.decoder.split(values)


@dataclass(frozen=True)
class PackDecodedRecords:
    """Packs the rows that Spark has decoded, behind the records that are packed already."""

    packing: RecordPacking

    def __call__(self, batches: Batches) -> Batches:
        """Pack the rows of one task."""
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            packed = batch.column(0)
            if packed.null_count < len(packed):
                columns = zip(packed.drop_null().flatten(), PACKED, strict=True)
                yield pa.RecordBatch.from_arrays([column.cast(f.type) for column, f in columns], schema=PACKED)
            if packed.null_count:
                rows = batch.filter(packed.is_null())
                waiting.append(_leaf_rows(self.packing, rows.columns[1:]))
            if sum(rows.nbytes for rows in waiting) > BYTES_WAITING:
                yield from self.packing.pack(self.packing.columns(iter(waiting)))
                waiting = []
        if waiting:
            yield from self.packing.pack(self.packing.columns(iter(waiting)))


def read_block(block: pa.Buffer, *, has_topic: bool) -> pa.RecordBatch:
    """The records of a block, with the columns of `PARTS`; the values are not copied."""
    number, partition, size = np.frombuffer(block, "<i4", 3).tolist()
    start = _HEAD + size
    places = np.frombuffer(block, "<i8", number, start)
    lengths = np.frombuffer(block, "<i4", number, start + 8 * number)
    is_value = lengths >= 0
    ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(np.maximum(lengths, 0), dtype=np.int32)])
    validity = None if is_value.all() else pa.py_buffer(np.packbits(is_value, bitorder="little"))
    values = pa.Array.from_buffers(
        pa.binary(), number, [validity, pa.py_buffer(ends), block.slice(start + 12 * number)]
    )
    columns = [values, pa.repeat(pa.scalar(partition, pa.int32()), number), pa.array(places)]
    if has_topic:
        columns.append(pa.repeat(block.slice(_HEAD, size).to_pybytes().decode(), number))
    return pa.RecordBatch.from_arrays(columns, names=[*PARTS, *(["topic"] if has_topic else [])])


def _leaf_rows(packing: RecordPacking, columns: list[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(columns, names=[*packing.leaf])


def _with_parts(records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Packed records, each as one value, with NULL for the parts of the records that are in them."""
    packed = pa.StructArray.from_arrays(records.columns, fields=[*records.schema])
    columns = [packed, *(pa.nulls(records.num_rows, field.type) for field in schema)]
    return pa.RecordBatch.from_arrays(columns, names=[PACKED_RECORD, *schema.names])


def _as_records(others: pa.RecordBatch) -> pa.RecordBatch:
    """Records that are not packed, with NULL where packed ones would be."""
    none = pa.nulls(others.num_rows, pa.struct([*PACKED]))
    return pa.RecordBatch.from_arrays([none, *others.columns], names=[PACKED_RECORD, *others.schema.names])
