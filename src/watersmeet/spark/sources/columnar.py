"""Files read as columns in Spark's workers. Spark still finds the files and remembers which it has had."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import islice
from os import walk
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, is_remote

from watersmeet.catalog import Source
from watersmeet.formats import source_format
from watersmeet.formats.feed import CHANGE
from watersmeet.formats.source import ColumnReader
from watersmeet.locations import local_path
from watersmeet.plan.nodes import Script
from watersmeet.references import resolve_references
from watersmeet.spark.exchange.alike import Batches
from watersmeet.spark.exchange.columns import FILE, ColumnPipeline
from watersmeet.spark.exchange.packing import Pack
from watersmeet.spark.sources.file_order import file_of_row
from watersmeet.spark.sources.parquet import GLOB, ParquetColumns, UnlikeSparkError, common_folder_columns
from watersmeet.spark.sources.reading import is_static

FILES_SCHEMA = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"
MISSING = "spark.sql.files.ignoreMissingFiles"
SETTINGS = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    MISSING: "false",
    "spark.sql.parquet.enableVectorizedReader": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96TimestampConversion": "false",
}
"""Settings of a session under which workers read as Spark does."""
SAMPLED, MOST_FILES = 100, 10_000
"""How many footers are looked at when a query is built, a quarter of a millisecond each: as a sample, and at most."""


def find_files(
    spark: SparkSession, script: Script, frames: Mapping[str, DataFrame], by_spark: Collection[str] = ()
) -> dict[str, DataFrame]:
    """For the sources that may be read as columns, and are not ``frames``, the stream of their files' paths.

    It is Spark's own file source with all its options, asked for no content. Sources ``by_spark`` are left to it.
    """
    # A Connect server has files of its own, of which nothing can be told before rows flow.
    if is_remote() or any(spark.conf.get(name, usual) != usual for name, usual in SETTINGS.items()):
        return {}
    sources = [source for source in script.sources if source.name not in frames and not _has_changes(source)]
    plain = [s for s in sources if source_format(s).can_read_columns() and s.name not in by_spark]
    reader = {s.name: spark.readStream.format("binaryFile").schema(FILES_SCHEMA).options(**s.options) for s in plain}
    files = {s.name: (s, reader[s.name].load()) for s in plain}
    return {
        n: frame.select("path", file_of_row(frame, s.lowercase_options).alias("file"))
        for n, (s, frame) in files.items()
    }


def _has_changes(source: Source) -> bool:
    """Whether rows of a table say what they do to it, which only Spark's reading of them knows, or are no stream."""
    return source.kind == "table" and (
        source.changes is not None or source.field(CHANGE) is not None or is_static(source) or source.is_static
    )


@dataclass(frozen=True)
class PackFiles:
    """Reads files, with ``reader``, goes the way of their rows to the exchange, and packs them."""

    pack: Pack
    reader: ColumnReader
    columns: ColumnPipeline

    def __call__(self, batches: Batches) -> Batches:
        """Pack the files of one map task."""
        if FILE in self.pack.names:
            return self.pack(self._rows_with_files(batches))
        paths = (path for batch in batches for path in batch.column(0).to_pylist())
        return self.pack(self.columns(part for path in paths for part in self.reader.read(path)))

    def _rows_with_files(self, batches: Batches) -> Batches:
        """The rows as they go to the exchange, each with the file that it is of."""
        for batch in batches:
            for number, path in enumerate(batch.column(0).to_pylist()):
                file = batch.column(1).slice(number, 1)
                for rows in self.columns(self.reader.read(path)):
                    none = pa.array(np.zeros(rows.num_rows, np.int32))
                    yield rows.append_column(FILE, pa.DictionaryArray.from_arrays(none, file))


def parquet_reader(
    source: Source, columns: tuple[str, ...], schema: pa.Schema, *, recovers: bool = False
) -> ParquetColumns | None:
    """What reads columns of a Parquet source as Spark would; None: of the files that are there some need Spark.

    How many footers are read does not grow with the folder. Where the query ``recovers`` from a file that needs Spark,
    a sample is enough. Else the next start must find such a file here, so all are looked at, and a folder that has too
    many for that is left to Spark.
    """
    said = replace(source, options=resolve_references(source.options)).lowercase_options
    root = str(Path(local_path(said["path"])).absolute())
    reader = ParquetColumns(
        source.name, columns, schema, root,
        None if _is_true(said.get("recursivefilelookup")) else (),
        _is_true(said.get("ignoremissingfiles")),
    )  # fmt: skip
    if "{" in root + said.get("pathglobfilter", ""):
        return None
    try:
        most = SAMPLED if recovers else MOST_FILES
        paths = [*islice(_files(root, said.get("pathglobfilter", "*")), most + 1)]
        if len(paths) > most and not recovers:
            return None
        if reader.folders is not None:
            reader = replace(reader, folders=common_folder_columns(root, paths))
        for path in paths[:most]:
            reader.check(path)
    except UnlikeSparkError:
        return None
    except OSError:
        # It went or changed while we looked; a worker looks again.
        return reader
    return reader


def _files(root: str, pattern: str) -> Iterator[str]:
    """The files that a source may read; Spark passes over hidden ones."""
    for base in Path("/").glob(root.strip("/")) if any(c in root for c in GLOB) else [Path(root)]:
        if base.is_file():
            yield str(base)
        for folder, folders, names in walk(base, followlinks=True):
            folders[:] = [name for name in folders if not _is_hidden(name)]
            yield from (f"{folder}/{n}" for n in names if not _is_hidden(n) and fnmatchcase(n, pattern))


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _is_true(text: str | None) -> bool:
    return (text or "").lower() == "true"
