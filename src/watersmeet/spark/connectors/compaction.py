"""Merges small files in the folder of a sink into larger ones, while no query writes there.

Lines of text are concatenated byte by byte. Parquet and ORC are read and written by Spark, and count and hashes of the
rows are compared. Only files whose batches are finished and not the last one are merged: Spark may repeat the last one.
"""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.catalog import Sink
from watersmeet.errors import refuse
from watersmeet.formats import sink_format
from watersmeet.formats.base import PATH
from watersmeet.locations import RemoteStorage, Storage, has_scheme, is_local, local_path, location_of
from watersmeet.schema import quote
from watersmeet.spark.connectors.files import (
    COMPACTION_FOLDER,
    ROWS,
    Swap,
    batch_of,
    batch_range,
    begin_swap,
    finish_swap,
    make_merged_name,
)
from watersmeet.spark.private.files import Folder, LocalFolder, folder_of, open_file, place_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField

TEXT, COLUMNAR = ("csv", "json", "text"), ("orc", "parquet")
_MOST = 10_000
"""The number of files that are merged at once."""
_GLOB = re.compile(r"([\[\]{}*?\\])")
_SPARKS_ROWS = b"org.apache.spark.sql.parquet.row.metadata"
"""The key under which Spark keeps the types of the rows in the footer of a Parquet file."""


@dataclass(frozen=True)
class Sizes:
    """Files smaller than ``below`` are merged into files of about ``to`` bytes."""

    below: float
    to: float


@dataclass(frozen=True)
class SmallFile:
    """A file to merge, with the first and the last of its batches."""

    name: str
    size: int
    first: int
    last: int

    @property
    def suffix(self) -> str:
        """The suffix of the name, from its first dot on: the format and the codec."""
        return self.name.partition(".")[2]


@dataclass(frozen=True)
class Compaction:
    """Merges the small files of one sink.

    ``done``: the last batch that its query has finished. ``spark`` starts Spark, if the format needs it.
    """

    sink: Sink
    done: int
    sizes: Sizes
    spark: Callable[[], SparkSession]

    @cached_property
    def folder(self) -> Folder:
        """The folder of the sink."""
        return folder_of_sink(self.sink, self.spark)

    @property
    def place(self) -> Storage:
        """The place of that folder."""
        return place_of(self.folder)

    def compact(self) -> tuple[int, int]:
        """The number of files of rows that the folder had, and that it has now."""
        folder = self.folder
        finish_swap(folder)
        folder.delete(COMPACTION_FOLDER)
        files = {name: size for name, size in self._sizes().items() if batch_of(name) is not None}
        after = len(files)
        for group in self._groups(files):
            (self.place / COMPACTION_FOLDER).mkdir(parents=True)
            suffix = self._rewrite(group) if self.sink.format.lower() in COLUMNAR else self._concatenate(group)
            first, last = min(file.first for file in group), max(file.last for file in group)
            merged = make_merged_name(first, last, uuid4().hex[:8], suffix)
            begin_swap(folder, Swap(merged, [file.name for file in group]))
            finish_swap(folder)
            folder.delete(COMPACTION_FOLDER)
            after += 1 - len(group)
        return len(files), after

    def _sizes(self) -> dict[str, int]:
        """The sizes of the files of the folder, by name."""
        if is_local(self.place):
            return {file.name: file.stat().st_size for file in sorted(self.place.iterdir()) if file.is_file()}
        return self.folder.sizes("")

    def _groups(self, sizes: Mapping[str, int]) -> Iterator[list[SmallFile]]:
        """Small files that can be one file, in the order of their batches."""
        by_layout: defaultdict[Hashable, list[SmallFile]] = defaultdict(list)
        for name, size in sorted(sizes.items()):
            batch = batch_of(name) or 0
            file = SmallFile(name, size, *(batch_range(name) or (batch, batch)))
            layout = self._layout(file) if file.size < self.sizes.below and file.last < self.done else None
            if layout is not None:
                by_layout[layout].append(file)
        for files in by_layout.values():
            yield from (group for group in self._chunks(files) if len(group) > 1)

    def _chunks(self, files: Sequence[SmallFile]) -> Iterator[list[SmallFile]]:
        """The files, cut where one merged file is large enough."""
        chunk: list[SmallFile] = []
        size = 0
        for file in files:
            if chunk and (size + file.size > self.sizes.to or len(chunk) == _MOST):
                yield chunk
                chunk, size = [], 0
            chunk.append(file)
            size += file.size
        yield chunk

    def _layout(self, file: SmallFile) -> Hashable | None:
        """The properties that files must share to be merged: codec, columns, header; None: the file stays as it is."""
        path, format_ = self.place / file.name, self.sink.format.lower()
        if format_ == "parquet":
            with open_file(path) as content:
                schema: Any = pq.read_schema(content)
            return file.suffix, str(schema.metadata and schema.metadata.get(_SPARKS_ROWS)), schema.to_string()
        if format_ == "orc":
            return file.suffix, self._load([file.name]).schema.json()
        if file.suffix.endswith(".gz"):
            return None if self._has_header else file.suffix
        header = self._header(path)
        # A quoted name may have a line break. Files of other codecs cannot be concatenated for every reader.
        is_plain = "." not in file.suffix and b'"' not in header and (not header or self._line_end == b"\n")
        return (file.suffix, header) if is_plain and self._ends_with_line(path, file.size) else None

    @property
    def _has_header(self) -> bool:
        return self.sink.format.lower() == "csv" and self.sink.lowercase_options.get("header", "").lower() == "true"

    @property
    def _line_end(self) -> bytes:
        return self.sink.lowercase_options.get("linesep", "\n").encode()

    def _header(self, path: Storage) -> bytes:
        """The line with the names of the columns; empty for a file without a header."""
        if not self._has_header:
            return b""
        with open_file(path) as file:
            return file.readline()

    def _ends_with_line(self, path: Storage, size: int) -> bool:
        with open_file(path) as file:
            file.seek(-min(len(self._line_end), size), 2)
            return file.read() == self._line_end

    def _concatenate(self, group: Sequence[SmallFile]) -> str:
        """Write the bytes of all files to one, with one header, and read them again; return the suffix of its name."""
        paths, rows = [self.place / file.name for file in group], self.place / ROWS
        header = len(self._header(paths[0]))
        with TemporaryDirectory(prefix="watersmeet-compaction-") as folder:
            written = rows if is_local(rows) else Path(folder) / "rows"
            with written.open("wb") as merged:
                for number, path in enumerate(paths):
                    with open_file(path) as file:
                        file.seek(header if number else 0)
                        shutil.copyfileobj(file, merged, 1 << 20)
            if not is_local(rows):
                cast("RemoteStorage", rows).upload(written)
        with open_file(rows) as merged:
            for number, path in enumerate(paths):
                data = path.read_bytes()[header if number else 0 :]
                if merged.read(len(data)) != data:
                    raise self._differs(path.name)
            if merged.read(1):
                raise self._differs(paths[-1].name)
        return group[0].suffix

    def _rewrite(self, group: Sequence[SmallFile]) -> str:
        """Write the rows of all files to one with Spark, and compare them; return the suffix of its name."""
        rows = self._load([file.name for file in group])
        options = {name: value for name, value in sink_format(self.sink).options.items() if name.lower() != PATH}
        writer = rows.coalesce(1).write.format(self.sink.format).options(**{**options, "maxRecordsPerFile": "0"})
        writer.mode("overwrite").save(location_of(self.place / COMPACTION_FOLDER / "output"))
        names = [name for name in self.folder.names(f"{COMPACTION_FOLDER}/output") if name.startswith("part-")]
        written = [f"{COMPACTION_FOLDER}/output/{name}" for name in names]
        if len(written) != 1 or checksum_rows(self._load(written)) != checksum_rows(rows):
            raise self._differs(group[0].name)
        self.folder.move(written[0], ROWS)
        return names[0].partition(".")[2]

    def _load(self, names: Sequence[str]) -> DataFrame:
        """The rows of files. No setting of the session lets Spark skip one of them."""
        paths = [_GLOB.sub(r"\\\1", location_of(self.place / name)) for name in names]
        strict = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false", "mergeSchema": "false"}
        return self.spark().read.format(self.sink.format).options(**strict).load(paths)

    def _differs(self, name: str) -> Exception:
        reason = f"the merged file does not have the rows of {name} and the files after it"
        return refuse("NOT_COMPACTED", sink=self.sink.name, reason=reason, hint="try again while nothing writes there.")


def folder_of_sink(sink: Sink, spark: Callable[[], SparkSession]) -> Folder:
    """The folder of a sink; ``spark`` is started if it is not on this machine."""
    path = local_path(sink.lowercase_options[PATH])
    return folder_of(spark(), path) if has_scheme(path) else LocalFolder(Path(path))


def checksum_rows(rows: DataFrame) -> dict[str, Any]:
    """The number of rows, and the sum of their hashes: equal for equal rows in any order."""
    hashed = F.xxhash64(*(_hashable(field) for field in rows.schema.fields)).cast("decimal(38,0)")
    return rows.agg(F.count(F.lit(1)).alias("rows"), F.sum(hashed).alias("hashes")).collect()[0].asDict()


def _hashable(field: StructField) -> Column:
    """A column as Spark can hash it: it does not hash maps."""
    column, type_ = F.col(quote(field.name)), field.dataType.simpleString()
    return F.to_json(F.struct(column)) if "map<" in type_ or "variant" in type_ else column
