"""The columns of data, read without a JVM.

Parquet and Avro files have a schema; for JSON and CSV a sample of rows is read; Delta and Iceberg tables have a log.
For records a schema gives the columns of their values.

Columns that were read when a query first started are used while its checkpoint exists: a file in ``columns`` of the
storage holds them for each query.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any

from watersmeet.catalog import Field, Source
from watersmeet.formats.columns.avro import avro_columns, record_columns, schema_option_columns
from watersmeet.formats.columns.files import (
    Kind,
    NoColumnsError,
    merge_kinds,
    parquet_columns,
    text_columns,
    type_of,
    value_kind,
)
from watersmeet.formats.columns.lakes import FEED, delta_columns, iceberg_columns
from watersmeet.locations import Storage, checkpoint_at, local_path, write_whole

__all__ = ["FIXED", "NoColumnsError", "SourceColumns", "columns_of"]

FILES = 10
"""The number of files that are looked into."""

_RATE = (("timestamp", "TIMESTAMP"), ("value", "BIGINT"))
_KAFKA = (
    ("key", "BINARY"), ("value", "BINARY"), ("topic", "STRING"), ("partition", "INT"), ("offset", "BIGINT"),
    ("timestamp", "TIMESTAMP"), ("timestampType", "INT"),
)  # fmt: skip
FIXED = {"rate": _RATE, "rate-micro-batch": _RATE, "text": (("value", "STRING"),), "kafka": _KAFKA}
"""Formats whose columns are always the same."""
_OF_FILES, _TYPED = ("parquet", "avro", "json", "csv"), ("parquet", "avro")
"""File formats with readable columns, and those of them with typed values."""
_OF_TABLES = {"delta": delta_columns, "iceberg": iceberg_columns}
"""Formats of tables that have a log, and what reads the columns of a folder from it."""


@dataclass(frozen=True)
class SourceColumns:
    """The columns of a source, and where they were read, the first of several files; empty: from the format."""

    fields: tuple[Field, ...]
    file: str


def columns_of(source: Source) -> SourceColumns:
    """The columns of what a source reads; `NoColumnsError` if they cannot be known."""
    format_, said = (source.format or "").lower(), source.lowercase_options
    if source.changes not in (None, "delta") or "value.format" in said:
        kinds, file = record_columns(source)
    elif format_ in FIXED and "includeheaders" not in said:
        kinds, file = dict[str, Kind](FIXED[format_]), ""
    elif format_ in _OF_TABLES:
        kinds, file = _OF_TABLES[format_](_folder(said), said)
    elif format_ in _OF_FILES:
        declared = schema_option_columns(said) if format_ == "avro" else None
        kinds, file = _file_columns(format_, _folder(said), said) if declared is None else declared
    else:
        origins = f"files of {', '.join(_OF_FILES[:-1])} and {_OF_FILES[-1]} and from tables of delta and iceberg"
        raise NoColumnsError(f"columns are read from {origins}, not from {format_}")
    # The metadata columns of a change feed are not columns of the table.
    hidden = FEED.keys() if source.changes is not None else ()
    return SourceColumns(tuple(Field(name, type_of(kind)) for name, kind in kinds.items() if name not in hidden), file)


def _folder(said: Mapping[str, str]) -> str:
    path = local_path(said.get("path", ""))
    if not path:
        raise NoColumnsError("only its catalog knows them" if "table" in said else "no `path` is named")
    if "://" in path:
        raise NoColumnsError("columns are read only from files on this machine")
    return path


def _file_columns(format: str, path: str, said: Mapping[str, str]) -> tuple[dict[str, Kind], str]:
    """The columns of all of the first files together, and those that folders make."""
    files = [*islice(_files(Path(path), format, said), FILES)]
    if not files:
        raise NoColumnsError(f"{path} has no files yet")
    kinds: dict[str, Kind] = {}
    for file in files:
        for name, kind in _kinds(file, format, said).items():
            kinds[name] = merge_kinds(kinds.get(name, ""), kind, name, is_typed=format in _TYPED)
    kinds |= {name: kind for name, kind in _folders(path, files).items() if name not in kinds}
    if not kinds:
        raise NoColumnsError(f"{files[0]} has no rows")
    return kinds, str(files[0])


def _kinds(file: Path, format: str, said: Mapping[str, str]) -> dict[str, Kind]:
    match format:
        case "parquet":
            return parquet_columns(file)
        case "avro":
            return avro_columns(file, said)
        case _:
            return text_columns(file, format, said)


def _files(path: Path, format: str, said: Mapping[str, str]) -> Iterator[Path]:
    """The files that Spark would read, by name."""
    deep = said.get("recursivefilelookup", "").lower() == "true"
    pattern = said.get("pathglobfilter", "*")
    ending = ".avro" if format == "avro" and said.get("ignoreextension", "").lower() == "false" else ""
    for root in sorted(map(Path, glob(str(path)))):  # noqa: PTH207 - the pattern may be absolute
        for file in sorted(root.rglob(pattern)) if root.is_dir() else [root]:
            inside = file.relative_to(root).parts
            is_hidden = any(part.startswith(("_", ".")) and "=" not in part for part in inside)
            is_below = all("=" in part for part in inside[:-1])
            is_read = file.is_file() and file.name.endswith(ending) and file.stat().st_size
            if is_read and not is_hidden and (deep or is_below):
                yield file


def _folders(path: str, files: Iterable[Path]) -> dict[str, Kind]:
    """The columns that folders called ``name=value`` below the path make."""
    kinds: dict[str, Kind] = {}
    for file in files:
        for part in file.parts[:-1]:
            name, equals, value = part.partition("=")
            if equals and part not in Path(path).parts:
                kind = "" if value == "__HIVE_DEFAULT_PARTITION__" else value_kind(value)
                kinds[name] = merge_kinds(kinds.get(name, ""), kind, name)
    return kinds


FOLDER = "columns"


def save_columns(storage: Storage, query: str, sources: Iterable[Source]) -> None:
    """Keep the columns of those sources of a query that declare none, unless an earlier start did."""
    read = [source for source in sources if source.read_from]
    file = storage / FOLDER / f"{query}.json"
    if not read or (file.exists() and checkpoint_at(storage, query).exists()):
        return
    entries = [
        {
            "source": source.name,
            "format": source.format,
            "path": _path(source),
            "columns": [[field.name, field.type] for field in source.fields if not field.hidden],
        }
        for source in read
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: a run killed here must not leave half of it.
    write_whole(file, json.dumps(entries, indent=2) + "\n")


def load_columns(storage: Storage, source: Source) -> tuple[Field, ...]:
    """The columns that a source had when a query first started that still has its checkpoint; none: none has."""
    for file in sorted((storage / FOLDER).glob("*.json"), key=str):
        if not checkpoint_at(storage, file.stem).exists():
            continue
        entries: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))
        for entry in entries:
            is_same = (entry["format"], entry["path"]) == (source.format, _path(source))
            if entry["source"].lower() == source.name.lower() and is_same:
                return tuple(Field(name, type_) for name, type_ in entry["columns"])
    return ()


def _path(source: Source) -> str:
    return local_path(source.lowercase_options.get("path", "")).rstrip("/")
