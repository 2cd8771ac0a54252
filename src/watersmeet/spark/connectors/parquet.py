"""Columns of Parquet files as Spark reads them, or the reason why only Spark can.

Types that may give other values are left to Spark: `AS_SPARK` lists the supported ones. Footer and path decide, before
the first row of a file is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import islice
from os import walk
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from watersmeet.catalog import Source
from watersmeet.errors import Refusal, WorkerRefusalError
from watersmeet.locations import has_scheme, local_path, resolve_references
from watersmeet.spark.connectors.files import NamedColumnsConnector
from watersmeet.spark.connectors.reading import ColumnReader
from watersmeet.spark.private.files import HadoopFile, HadoopStorage

ROWS_PER_BATCH = 131_072
GLOB = "*?[{"
"""Characters that make a pattern of a path."""
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

_INTEGERS = frozenset({"int32", "int64", "double", "decimal"})
_WALL, _MOMENT = "timestamp_ntz", "timestamp"
AS_SPARK = {
    ("BOOLEAN", "None"): {"bool"},
    ("INT32", "None"): _INTEGERS,
    ("INT32", "Int8"): _INTEGERS | {"int8", "int16"},
    ("INT32", "Int16"): _INTEGERS | {"int16"},
    ("INT32", "Int32"): _INTEGERS,
    ("INT32", "UInt8"): {"int32", "int64"},
    ("INT32", "UInt16"): {"int32", "int64"},
    ("INT32", "UInt32"): {"int64"},
    ("INT32", "Date"): {"date32[day]"},
    ("INT32", "Decimal"): {"decimal"},
    ("INT64", "None"): {"int64", "decimal"},
    ("INT64", "Int64"): {"int64", "decimal"},
    ("INT64", "Decimal"): {"decimal"},
    ("INT64", "Timestamp milliseconds"): {_MOMENT, _WALL},
    ("INT64", "Timestamp microseconds"): {_MOMENT, _WALL},
    ("INT96", "None"): {_MOMENT},
    ("FLOAT", "None"): {"float", "double"},
    ("DOUBLE", "None"): {"double"},
    ("BYTE_ARRAY", "None"): {"binary", "string"},
    ("BYTE_ARRAY", "String"): {"binary", "string"},
    ("FIXED_LEN_BYTE_ARRAY", "None"): {"binary"},
    ("FIXED_LEN_BYTE_ARRAY", "Decimal"): {"decimal"},
}
"""By the physical and the logical type of a column, the types as which it can be read with the values of Spark."""

_DIGITS = {"INT32": 10, "INT64": 20}
"""The number of digits before the point that Spark wants of a decimal that is read from integers."""
_CALENDARS = {"Date": ("3.0.0", b"org.apache.spark.legacyDateTime"),
              "Timestamp": ("3.0.0", b"org.apache.spark.legacyDateTime"),
              "INT96": ("3.1.0", b"org.apache.spark.legacyINT96")}  # fmt: skip
"""The Spark since which such values follow our calendar, and what a footer has in which they do not all the same."""
_VERSION = b"org.apache.spark.version"


class UnlikeSparkError(Exception):
    """The reason why a file is not known to give the values of Spark."""


@dataclass(frozen=True)
class ParquetColumns:
    """Reads columns of the files of a source, in a worker.

    - ``columns``: their names in the files, in the order of ``schema``, which has their declared types
    - ``root``: the folder of the source, as an absolute path; it may be a pattern
    - ``folders``: the columns of partition folders ``column=value``, in small letters; None: not partitioned
    - ``skips_missing``: whether a deleted file is skipped
    """

    source: str
    columns: tuple[str, ...]
    schema: pa.Schema
    root: str
    folders: tuple[str, ...] | None = ()
    skips_missing: bool = False

    def check(self, path: str) -> None:
        """Raise why only Spark can read a file, if it is so."""
        if Path(path).stat().st_size:
            with _open_file(path) as file:
                self._resolve_columns(file, path)

    def check_remote(self, remote: HadoopFile) -> None:
        """Raise why only Spark can read a remote file, if it is so, or should because most of it is not needed."""
        if remote.size:
            with remote, _open_file(remote) as file:
                names = {name for name in self._resolve_columns(file, str(remote.place)) if isinstance(name, str)}
                if file.num_row_groups:
                    group = file.metadata.row_group(0)
                    columns = [group.column(number) for number in range(group.num_columns)]
                    needed = sum(c.total_compressed_size for c in columns if c.path_in_schema in names)
                    if needed < LEAST_SHARE * sum(c.total_compressed_size for c in columns):
                        raise UnlikeSparkError("most of it is not needed")

    def read(self, address: str, copy: str | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a file, as they are declared. ``copy``: of a remote file, its copy on this machine."""
        path = local_path(address)
        place = path if copy is None else copy
        try:
            if Path(place).stat().st_size:  # Spark passes over a file without a byte
                with _open_file(place) as file:
                    yield from self._rows(file, self._resolve_columns(file, path))
        except FileNotFoundError as error:
            if not self.skips_missing:
                raise WorkerRefusalError(Refusal("INPUT_FILE_GONE", {"file": path, "more": ""})) from error
        except UnlikeSparkError as error:
            parameters = {"source": self.source, "file": path, "reason": str(error)}
            raise WorkerRefusalError(Refusal("NOT_AS_COLUMNS", parameters)) from error

    def _resolve_columns(self, file: Any, path: str) -> list[str | pa.Scalar]:
        """For every column its name in the file, or its value for all rows of the file."""
        folder_values = {} if self.folders is None else folder_columns(self.root, path)
        if self.folders is not None and tuple(folder_values) != self.folders:
            raise UnlikeSparkError("its folders name other columns than those of other files")
        by_name: dict[str, list[Any]] = {}
        for leaf in (file.schema.column(number) for number in range(len(file.schema))):
            by_name.setdefault(leaf.path.split(".")[0].lower(), []).append(leaf)
        resolved: list[str | pa.Scalar] = []
        for column, field in zip(self.columns, self.schema, strict=True):
            leaves = by_name.get(column.lower(), [])
            if column.lower() in folder_values:
                resolved.append(_of_folder(column, folder_values[column.lower()], field.type))
            elif "." in column or len(leaves) > 1 or any(leaf.path.lower() != column.lower() for leaf in leaves):
                raise UnlikeSparkError(f"it has more than one column `{column}`, or a nested one")
            elif leaves:
                _check_column(leaves[0], field.type, file)
                resolved.append(leaves[0].path)
            else:
                resolved.append(pa.scalar(None, field.type))
        return resolved

    def _rows(self, file: Any, columns: Sequence[str | pa.Scalar]) -> Iterator[pa.RecordBatch]:
        names = list(dict.fromkeys(column for column in columns if isinstance(column, str)))
        for batch in file.iter_batches(ROWS_PER_BATCH, columns=names):
            arrays = [
                cast_as_declared(batch.column(column), field.type)
                if isinstance(column, str)
                else pa.repeat(column, batch.num_rows)
                for column, field in zip(columns, self.schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def cast_as_declared(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values of a file in the declared type."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.type == kind:
        return values
    if pa.types.is_timestamp(kind):
        # A time zone in the file says how to show a moment, and neither reader moves one for it.
        return values.cast(pa.timestamp("us", values.type.tz)).view(pa.int64()).view(kind)
    # Spark takes bytes for text as they are.
    return values.cast(kind, safe=not pa.types.is_string(kind) and not pa.types.is_large_string(kind))


def folder_columns(root: str, path: str) -> dict[str, str]:
    """The partition columns, in small letters, in the path of a file below the root, with the texts of their values.

    >>> folder_columns("/x=1/data", "/x=1/data/Day=7/hour=3/0.parquet"), folder_columns("/data", "/data/sub/0.parquet")
    ({'day': '7', 'hour': '3'}, {})
    """
    pattern = re.search(rf"[^/]*[{re.escape(GLOB)}]", root)
    base = root[: pattern.start()] if pattern else f"{root}/"
    below = path.removeprefix(base).split("/")[:-1]
    if not any("=" in part for part in below):
        return {}
    pairs = [part.partition("=") for part in below]
    names = [name.lower() for name, _, _ in pairs]
    is_plain = all(name and equals and value and "%" not in name + value for name, equals, value in pairs)
    if pattern or not path.startswith(base) or not is_plain or len(set(names)) < len(names):
        raise UnlikeSparkError("only Spark can interpret its folders")
    return dict(zip(names, (value for _, _, value in pairs), strict=True))


def common_folder_columns(root: str, paths: Iterable[str]) -> tuple[str, ...]:
    """The columns of the partition folders of all these files."""
    layouts = {tuple(folder_columns(root, path)) for path in paths}
    if len(layouts) > 1:
        raise UnlikeSparkError("folders name other columns for some files than for others")
    return next(iter(layouts), ())


def _open_file(path: str | HadoopFile) -> Any:
    try:
        return pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise UnlikeSparkError(f"its footer cannot be read ({error})") from error


def _check_column(leaf: Any, kind: pa.DataType, file: Any) -> None:
    """Raise why a column is not known to give the values of Spark in that type."""
    logical: dict[str, Any] = json.loads(leaf.logical_type.to_json())
    type_ = str(logical["Type"])
    stored = type_
    if type_ == "Int":
        stored = f"{'' if logical['isSigned'] else 'U'}Int{logical['bitWidth']}"
    elif type_ == "Timestamp":
        stored = f"Timestamp {logical['timeUnit']}"
    is_flat = leaf.max_repetition_level == 0 and leaf.max_definition_level <= 1
    is_known = _name(kind) in AS_SPARK.get((leaf.physical_type, stored), ()) and _holds(kind, leaf, logical)
    if not (is_flat and is_known and _is_cast(file.schema_arrow.field(leaf.path).type, kind)):
        shown = leaf.physical_type if stored == "None" else f"{leaf.physical_type} ({stored})"
        raise UnlikeSparkError(f"its column `{leaf.path}` is {shown}, declared {_name(kind)}")
    metadata: dict[bytes, bytes] = file.metadata.metadata or {}
    since, legacy = _CALENDARS.get(leaf.physical_type) or _CALENDARS.get(type_) or ("", b"")
    if since and _VERSION in metadata and (metadata[_VERSION].decode() < since or legacy in metadata):
        raise UnlikeSparkError(f"its column `{leaf.path}` follows the legacy calendar")


def _is_cast(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Whether Arrow, which may have stored its own type in the file, casts its values to the declared type."""
    try:
        cast_as_declared(pa.array([], stored), kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return False
    return True


def _holds(kind: Any, leaf: Any, logical: dict[str, Any]) -> bool:
    """Whether a decimal holds all values of a column, as Spark wants it; other types do."""
    if not pa.types.is_decimal(kind):
        return True
    if logical["Type"] != "Decimal":
        return kind.precision - kind.scale >= _DIGITS[leaf.physical_type]
    more = kind.scale - logical["scale"]
    return more >= 0 and kind.precision - logical["precision"] >= more


def _name(kind: Any) -> str:
    """A declared type as `AS_SPARK` calls it."""
    if pa.types.is_timestamp(kind):
        return _MOMENT if kind.tz else _WALL
    return "decimal" if pa.types.is_decimal(kind) else str(kind).removeprefix("large_")


def _of_folder(column: str, text: str, kind: pa.DataType) -> pa.Scalar:
    """The value in the name of a folder."""
    if text == NO_VALUE:
        return pa.scalar(None, kind)
    is_number = pa.types.is_signed_integer(kind) and re.fullmatch(r"0|-?[1-9]\d{0,17}", text, re.ASCII)
    if is_number or _name(kind) == "string":
        try:
            return pa.scalar(int(text) if is_number else text, kind)
        except pa.ArrowInvalid:
            pass
    raise UnlikeSparkError(f"the folder `{column}={text}` has a value that only Spark reads")


SAMPLED, MOST_FILES, REMOTE = 100, 10_000, 10
"""The footers that are read when a query is built, a quarter of a millisecond each: as a sample, and at most. Of remote
files, each of which takes a request, that part."""
LEAST_SHARE = 0.5
"""The part of the bytes of a remote file that must be needed: workers get a copy of the file, and Spark reads parts."""


def parquet_reader(
    source: Source, columns: tuple[str, ...], schema: pa.Schema, *, recovers: bool = False
) -> ParquetColumns | None:
    """A reader of a Parquet source's columns that gives Spark's values; None: some of the files need Spark.

    How many footers are read does not grow with the folder. Where the query ``recovers`` from a file that needs Spark,
    a sample is enough. Else the next start must find such a file here, so all are looked at, and a folder that has too
    many for that is left to Spark.
    """
    said = replace(source, options=resolve_references(source.options)).lowercase_options
    path = local_path(said["path"])
    remote = HadoopStorage(SparkSession.active(), path) if has_scheme(path) else None
    root = str(Path(path).absolute() if remote is None else remote)
    reader = ParquetColumns(
        source.name, columns, schema, root,
        None if _is_true(said.get("recursivefilelookup")) else (),
        _is_true(said.get("ignoremissingfiles")),
    )  # fmt: skip
    if "{" in root + said.get("pathglobfilter", ""):
        return None
    try:
        pattern = said.get("pathglobfilter", "*")
        most = (SAMPLED if recovers else MOST_FILES) // (1 if remote is None else REMOTE)
        found = _files(root, pattern) if remote is None else _remote_files(remote, pattern)
        files = [*islice(found, most + 1)]
        if len(files) > most and not recovers:
            return None
        if reader.folders is not None:
            paths = [file if isinstance(file, str) else str(file.place) for file in files]
            reader = replace(reader, folders=common_folder_columns(root, paths))
        for file in files[:most]:
            if isinstance(file, str):
                reader.check(file)
            else:
                reader.check_remote(file)
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


def _remote_files(root: HadoopStorage, pattern: str) -> Iterator[HadoopFile]:
    """The same, elsewhere."""
    for way, file in root.files_below():
        if not any(map(_is_hidden, way.parts)) and fnmatchcase(file.place.name, pattern):
            yield file


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _is_true(text: str | None) -> bool:
    return (text or "").lower() == "true"


class ParquetConnector(NamedColumnsConnector):
    """Reads files of Parquet."""

    def column_reader(self, columns: tuple[str, ...], schema: Any, *, recovers: bool = False) -> ColumnReader | None:
        """The reader of these columns for workers; None if it is not known to give the same values as Spark."""
        return parquet_reader(self.source, columns, schema, recovers=recovers)
