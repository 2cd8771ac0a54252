"""The columns of files, read without a JVM: of Parquet from the footers, of JSON and CSV from a sample of rows."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, cast

from watersmeet.catalog import Field, Source
from watersmeet.formats.protobuf.descriptor import DESCRIPTOR, MESSAGE, OPTIONS, PROTOBUF, DescriptorError, columns_in
from watersmeet.formats.source import local_path
from watersmeet.plan.words import word

FILES, ROWS = 10, 1000
"""How many files are looked into, and how many rows of text of each."""

Kind = str | dict[str, Any] | list[Any]
"""What a value is: a type; the fields of an object by name; a list with the kind of the elements. "": only NULL."""


class NoColumnsError(Exception):
    """Columns that cannot be known, and why."""


_RATE = (("timestamp", "TIMESTAMP"), ("value", "BIGINT"))
_KAFKA = (
    ("key", "BINARY"), ("value", "BINARY"), ("topic", "STRING"), ("partition", "INT"), ("offset", "BIGINT"),
    ("timestamp", "TIMESTAMP"), ("timestampType", "INT"),
)  # fmt: skip
FIXED = {"rate": _RATE, "rate-micro-batch": _RATE, "text": (("value", "STRING"),), "kafka": _KAFKA}
"""Formats whose columns are always the same."""


@dataclass(frozen=True)
class Found:
    """The columns of a source, and the file that has them, the first of several; empty: the format has them."""

    fields: tuple[Field, ...]
    file: str


def columns_of(source: Source) -> Found:
    """The columns of the files that a source reads; `NoColumnsError` if they cannot be known."""
    format_ = (source.format or "").lower()
    if source.changes is not None or "value.format" in source.said:
        return _of_records(source)
    if format_ in FIXED and "includeheaders" not in source.said:
        return Found(tuple(Field(name, type_) for name, type_ in FIXED[format_]), "")
    if format_ not in ("parquet", "json", "csv"):
        raise NoColumnsError(f"columns are read from files of parquet, json and csv, not from {format_}")
    path = local_path(source.said.get("path", ""))
    if not path:
        raise NoColumnsError("no `path` is named")
    if "://" in path:
        raise NoColumnsError("columns are read from files of this machine only")
    files = [*islice(_files(Path(path), source.said), FILES)]
    if not files:
        raise NoColumnsError(f"no file lies in {path} yet")
    kinds: dict[str, Kind] = {}
    for file in files:
        for name, kind in _kinds(file, format_, source.said).items():
            kinds[name] = _merged(kinds.get(name, ""), kind, name)
    kinds |= {name: kind for name, kind in _folders(path, files).items() if name not in kinds}
    if not kinds:
        raise NoColumnsError(f"{files[0]} has no row")
    return Found(tuple(Field(name, _type(kind)) for name, kind in kinds.items()), str(files[0]))


def _of_records(source: Source) -> Found:
    """The columns of values, where a file says what they are."""
    said = source.said
    is_told = said.get("value.format", "").lower() == PROTOBUF and said.keys() >= OPTIONS
    if source.changes is not None or not is_told:
        raise NoColumnsError("records do not tell the columns of their values")
    try:
        return Found(columns_in(local_path(said[DESCRIPTOR]), said[MESSAGE]), said[DESCRIPTOR])
    except DescriptorError as error:
        raise NoColumnsError(str(error)) from error


def _files(path: Path, said: Mapping[str, str]) -> Iterator[Path]:
    """The files that Spark would read, by name."""
    deep = said.get("recursivefilelookup", "").lower() == "true"
    pattern = said.get("pathglobfilter", "*")
    for root in sorted(map(Path, glob(str(path)))):  # noqa: PTH207 - the pattern may be absolute
        for file in sorted(root.rglob(pattern)) if root.is_dir() else [root]:
            inside = file.relative_to(root).parts
            is_hidden = any(part.startswith(("_", ".")) and "=" not in part for part in inside)
            is_below = all("=" in part for part in inside[:-1])
            if file.is_file() and not is_hidden and (deep or is_below) and file.stat().st_size:
                yield file


def _folders(path: str, files: Iterable[Path]) -> dict[str, Kind]:
    """The columns that folders called ``name=value`` below the path make."""
    found: dict[str, Kind] = {}
    for file in files:
        for part in file.parts[:-1]:
            name, equals, value = part.partition("=")
            if equals and part not in Path(path).parts:
                kind = "" if value == "__HIVE_DEFAULT_PARTITION__" else _of_text(value)
                found[name] = _merged(found.get(name, ""), kind, name)
    return found


def _kinds(file: Path, format: str, said: Mapping[str, str]) -> dict[str, Kind]:
    if format == "parquet":
        return _of_parquet(file)
    with _opened(file, said) as lines:
        rows = _json_rows(lines, said) if format == "json" else _csv_rows(lines, said)
        found: dict[str, Kind] = {}
        for row in islice(rows, ROWS):
            for name, kind in row.items():
                found[name] = _merged(found.get(name, ""), kind, name)
    return found


def _opened(file: Path, said: Mapping[str, str]) -> TextIO:
    encoding = said.get("encoding") or said.get("charset") or "utf-8-sig"
    if file.suffix == ".gz":
        return cast("TextIO", gzip.open(file, "rt", encoding=encoding, errors="replace", newline=""))
    return file.open(encoding=encoding, errors="replace", newline="")


def _json_rows(lines: TextIO, said: Mapping[str, str]) -> Iterator[dict[str, Kind]]:
    if said.get("multiline", "").lower() == "true":
        raise NoColumnsError("a row of JSON stands on several lines")
    is_dated = not {"timestampformat", "dateformat"} & said.keys()
    for line in lines:
        # What cannot be read is malformed, and says so when the query runs.
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict):
                values = cast("dict[str, object]", row)
                yield {name: _of_json(value, is_dated=is_dated) for name, value in values.items()}


def _csv_rows(lines: TextIO, said: Mapping[str, str]) -> Iterator[dict[str, Kind]]:
    if said.get("header", "").lower() != "true":
        raise NoColumnsError("its files have no names of columns, or `header 'true'` does not say so")
    is_dated = not {"timestampformat", "dateformat"} & said.keys()
    empty = said.get("nullvalue", "")
    separator = said.get("sep") or said.get("delimiter") or ","
    for row in csv.DictReader(lines, delimiter=separator, quotechar=said.get("quote") or '"'):
        yield {
            name: "" if value in ("", empty, None) else _of_text(value, is_dated=is_dated)
            for name, value in row.items()
            if isinstance(value, str | None) and name is not None  # pyright: ignore[reportUnnecessaryComparison]
        }


_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
_BROKEN = re.compile(r"-?(0|[1-9]\d*)\.\d+([eE][+-]?\d+)?")


def _of_json(value: object, *, is_dated: bool) -> Kind:
    match value:
        case None:
            return ""
        case bool():
            return "BOOLEAN"
        case int():
            return "BIGINT" if -(2**63) <= value < 2**63 else "DECIMAL(38,0)"
        case float():
            return "DOUBLE"
        case str():
            return _of_time(value) if is_dated else "STRING"
        case dict():
            inner = cast("dict[str, object]", value)
            return {name: _of_json(one, is_dated=is_dated) for name, one in inner.items()}
        case list():
            kind: Kind = ""
            for one in cast("list[object]", value):
                kind = _merged(kind, _of_json(one, is_dated=is_dated), "")
            return [kind]
        case _:
            return "STRING"


def _of_time(text: str) -> str:
    if _MOMENT.fullmatch(text):
        return "TIMESTAMP"
    return "DATE" if _DAY.fullmatch(text) else "STRING"


def _of_text(text: str, *, is_dated: bool = True) -> str:
    """The type of a value of CSV, or of a folder's name."""
    if _WHOLE.fullmatch(text):
        return "BIGINT"
    if _BROKEN.fullmatch(text):
        return "DOUBLE"
    if text.lower() in ("true", "false"):
        return "BOOLEAN"
    return _of_time(text) if is_dated else "STRING"


_WIDER = (
    ("TINYINT", "SMALLINT", "INT", "BIGINT", "DECIMAL(38,0)"),
    ("FLOAT", "DOUBLE"), ("BIGINT", "DOUBLE"), ("DATE", "TIMESTAMP"),
)  # fmt: skip
"""Types in the order in which one holds the values of those before it."""


def _merged(a: Kind, b: Kind, name: str) -> Kind:
    """What holds both; text, if nothing else does."""
    if a == b or b == "":
        return a
    if a == "":
        return b
    if isinstance(a, dict) and isinstance(b, dict):
        return {
            key: _merged(a.get(key, ""), b.get(key, ""), f"{name}.{key}") for key in (*a, *(k for k in b if k not in a))
        }
    if isinstance(a, list) and isinstance(b, list):
        return [_merged(a[0], b[0], name)]
    order = next((wider for wider in _WIDER if a in wider and b in wider), None)
    return "STRING" if order is None else max(str(a), str(b), key=order.index)


def _type(kind: Kind) -> str:
    match kind:
        case "":
            return "STRING"
        case dict():
            return f"STRUCT<{', '.join(f'{word(name)}: {_type(inner)}' for name, inner in kind.items())}>"
        case list():
            return f"ARRAY<{_type(kind[0])}>"
        case _:
            return kind


def _of_parquet(file: Path) -> dict[str, Kind]:
    # Imported late: reading a script must not wait for Arrow.
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        read: Any = pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise NoColumnsError(f"{file} is no Parquet file ({str(error).splitlines()[0]})") from error
    leaves = [read.schema.column(i) for i in range(len(read.schema.names))]
    old = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    return {field.name: _of_arrow(field.type, field.name, is_int96=field.name in old) for field in read.schema_arrow}


_ARROW = {
    "int8": "TINYINT", "int16": "SMALLINT", "int32": "INT", "int64": "BIGINT", "uint8": "SMALLINT", "uint16": "INT",
    "uint32": "BIGINT", "uint64": "DECIMAL(20,0)", "float": "FLOAT", "double": "DOUBLE", "bool": "BOOLEAN",
    "string": "STRING", "large_string": "STRING", "string_view": "STRING", "binary": "BINARY", "null": "STRING",
    "large_binary": "BINARY", "binary_view": "BINARY", "date32[day]": "DATE",
}  # fmt: skip


def _of_arrow(type: Any, name: str, *, is_int96: bool = False) -> Kind:
    """The type that Spark reads a column of Parquet as."""
    import pyarrow as pa

    if pa.types.is_dictionary(type):
        return _of_arrow(type.value_type, name)
    if pa.types.is_decimal(type) and type.precision <= 38:
        return f"DECIMAL({type.precision},{type.scale})"
    if pa.types.is_timestamp(type) and (type.unit in ("us", "ms") or is_int96):
        return "TIMESTAMP" if type.tz or is_int96 else "TIMESTAMP_NTZ"
    if pa.types.is_fixed_size_binary(type):
        return "BINARY"
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return [_of_arrow(type.value_type, name)]
    if pa.types.is_struct(type):
        return {inner.name: _of_arrow(inner.type, f"{name}.{inner.name}") for inner in type}
    if pa.types.is_map(type):
        key, value = (_type(_of_arrow(inner, name)) for inner in (type.key_type, type.item_type))
        return f"MAP<{key}, {value}>"
    if str(type) not in _ARROW:
        raise NoColumnsError(f"its column `{name}` is {type}, which has no type in Spark")
    return _ARROW[str(type)]
