"""Files read as columns in Spark's workers. Spark still finds the files and remembers which it has had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from watersmeet.formats import source_format
from watersmeet.formats.source import ReadFile, local_path
from watersmeet.plan.nodes import Script
from watersmeet.spark.exchange.packing import Batches, Pack

ROWS_PER_BATCH = 131_072
FILES_SCHEMA = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def find_files(spark: SparkSession, script: Script, given: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """For the sources that may be read as columns, and are not ``given``, the stream of their files' paths.

    It is Spark's own file source with all its options, asked for no content.
    """
    # The rows of a table say what they do to it, which only Spark's reading of them knows.
    streams = [source for source in script.sources if source.kind == "stream" and source.name not in given]
    plain = [source for source in streams if source_format(source).may_be_columns()]
    reader = {s.name: spark.readStream.format("binaryFile").schema(FILES_SCHEMA).options(**s.options) for s in plain}
    return {name: stream.load().select("path") for name, stream in reader.items()}


@dataclass(frozen=True)
class PackFiles:
    """Reads files, with ``read``, and packs their rows.

    ``columns`` are the names in the files, in the order of ``schema``, which has the types that they are declared with.
    """

    pack: Pack
    columns: tuple[str, ...]
    schema: pa.Schema
    read: ReadFile

    def __call__(self, batches: Batches) -> Batches:
        """Pack the files of one map task."""
        paths = (path for batch in batches for path in batch.column(0).to_pylist())
        return self.pack(part for path in paths for part in self.read(path, self.columns, self.schema))


def read_parquet(path: str, columns: tuple[str, ...], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, as they are declared."""
    local = local_path(path)
    with pq.ParquetFile(local, coerce_int96_timestamp_unit="us") as file:
        found = {name.lower(): name for name in file.schema_arrow.names}
        present = [found[column.lower()] for column in columns if column.lower() in found]
        for batch in file.iter_batches(ROWS_PER_BATCH, columns=present):
            rows = {name.lower(): batch.column(name) for name in present}
            arrays = [
                declared(rows[column.lower()], field.type)
                if column.lower() in rows
                else pa.repeat(_of_folder(local, column, field.type), batch.num_rows)
                for column, field in zip(columns, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def declared(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values of a file in the declared type, where Spark would read them so as well."""
    found = values.type
    if found == kind:
        return values
    if pa.types.is_dictionary(found):
        return declared(values.dictionary_decode(), kind)
    numbers = pa.types.is_integer(found) and (pa.types.is_integer(kind) or pa.types.is_floating(kind))
    texts = pa.types.is_binary(found) and pa.types.is_string(kind)
    alike = numbers or texts or any(
        is_such(found) and is_such(kind)
        for is_such in (pa.types.is_timestamp, pa.types.is_floating, pa.types.is_decimal, pa.types.is_large_string)
    )  # fmt: skip
    if not alike:
        raise TypeError(f"a Parquet file has {found} where {kind} is declared")
    return values.cast(kind)


def _of_folder(path: str, column: str, kind: pa.DataType) -> pa.Scalar:
    """The value of a column that is not in the file: told by a folder ``column=value``, else NULL."""
    for part in path.split("/"):
        name, equals, value = part.partition("=")
        if equals and unquote(name).lower() == column.lower() and value != NO_VALUE:
            return pa.scalar(unquote(value)).cast(kind)
    return pa.scalar(None, kind)
