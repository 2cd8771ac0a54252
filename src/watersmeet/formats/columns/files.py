"""The columns of JSON and CSV, from a sample of rows, and of Parquet, from the footers of its files."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, cast

from watersmeet.logical.words import word

Kind = str | dict[str, Any] | list[Any]
"""The kind of a value: a type; the fields of an object by name; a list with the kind of the elements. "": only NULL."""


class NoColumnsError(Exception):
    """Columns that cannot be known, and why."""


_WIDER = (
    ("TINYINT", "SMALLINT", "INT", "BIGINT", "DECIMAL(38,0)"),
    ("FLOAT", "DOUBLE"), ("BIGINT", "DOUBLE"), ("DATE", "TIMESTAMP"),
)  # fmt: skip
"""Types in the order in which one holds the values of those before it."""
_WIDENED = (("TINYINT", "SMALLINT", "INT", "BIGINT"), ("FLOAT", "DOUBLE"))
"""The same, of files that have types: Spark reads an earlier type as a later one."""


def merge_kinds(a: Kind, b: Kind, name: str, *, is_typed: bool = False) -> Kind:
    """The narrowest kind that holds both; else text, but only for files without types."""
    if a == b or b == "":
        return a
    if a == "":
        return b
    if isinstance(a, dict) and isinstance(b, dict):
        return {
            key: merge_kinds(a.get(key, ""), b.get(key, ""), f"{name}.{key}", is_typed=is_typed)
            for key in (*a, *(k for k in b if k not in a))
        }
    if isinstance(a, list) and isinstance(b, list):
        return [merge_kinds(a[0], b[0], name, is_typed=is_typed)]
    order = next((wider for wider in (_WIDENED if is_typed else _WIDER) if a in wider and b in wider), None)
    if order is None and is_typed:
        raise NoColumnsError(f"its column `{name}` is {type_of(a)} in one file and {type_of(b)} in another")
    return "STRING" if order is None else max(str(a), str(b), key=order.index)


def type_of(kind: Kind) -> str:
    """The type of a column, in the words of Spark's DDL."""
    match kind:
        case "":
            return "STRING"
        case dict():
            return f"STRUCT<{', '.join(f'{word(name)}: {type_of(inner)}' for name, inner in kind.items())}>"
        case list():
            return f"ARRAY<{type_of(kind[0])}>"
        case _:
            return kind


ROWS = 1000
"""The number of rows of each file that are looked at."""


def text_columns(file: Path, format: str, said: Mapping[str, str]) -> dict[str, Kind]:
    """The columns of a file of that format, with those options, in small letters."""
    with _open_text(file, said) as lines:
        rows = _json_rows(lines, said) if format == "json" else _csv_rows(lines, said)
        kinds: dict[str, Kind] = {}
        for row in islice(rows, ROWS):
            for name, kind in row.items():
                kinds[name] = merge_kinds(kinds.get(name, ""), kind, name)
    return kinds


def _open_text(file: Path, said: Mapping[str, str]) -> TextIO:
    encoding = said.get("encoding") or said.get("charset") or "utf-8-sig"
    if file.suffix == ".gz":
        return cast("TextIO", gzip.open(file, "rt", encoding=encoding, errors="replace", newline=""))
    return file.open(encoding=encoding, errors="replace", newline="")


def _json_rows(lines: TextIO, said: Mapping[str, str]) -> Iterator[dict[str, Kind]]:
    if said.get("multiline", "").lower() == "true":
        raise NoColumnsError("a JSON row spans several lines")
    is_dated = not {"timestampformat", "dateformat"} & said.keys()
    for line in lines:
        # What cannot be read is malformed, and says so when the query runs.
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict):
                values = cast("dict[str, object]", row)
                yield {name: _json_kind(value, is_dated=is_dated) for name, value in values.items()}


def _csv_rows(lines: TextIO, said: Mapping[str, str]) -> Iterator[dict[str, Kind]]:
    if said.get("header", "").lower() != "true":
        raise NoColumnsError("its files have no header, or `header 'true'` is missing")
    is_dated = not {"timestampformat", "dateformat"} & said.keys()
    empty = said.get("nullvalue", "")
    separator = said.get("sep") or said.get("delimiter") or ","
    for row in csv.DictReader(lines, delimiter=separator, quotechar=said.get("quote") or '"'):
        yield {
            name: "" if value in ("", empty, None) else value_kind(value, is_dated=is_dated)
            for name, value in row.items()
            if isinstance(value, str | None) and name is not None  # pyright: ignore[reportUnnecessaryComparison]
        }


_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
_BROKEN = re.compile(r"-?(0|[1-9]\d*)\.\d+([eE][+-]?\d+)?")


def _json_kind(value: object, *, is_dated: bool) -> Kind:
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
            return _time_kind(value) if is_dated else "STRING"
        case dict():
            inner = cast("dict[str, object]", value)
            return {name: _json_kind(element, is_dated=is_dated) for name, element in inner.items()}
        case list():
            kind: Kind = ""
            for element in cast("list[object]", value):
                kind = merge_kinds(kind, _json_kind(element, is_dated=is_dated), "")
            return [kind]
        case _:
            return "STRING"


def _time_kind(text: str) -> str:
    if _MOMENT.fullmatch(text):
        return "TIMESTAMP"
    return "DATE" if _DAY.fullmatch(text) else "STRING"


def value_kind(text: str, *, is_dated: bool = True) -> str:
    """The type of a value of CSV, or in the name of a folder."""
    if _WHOLE.fullmatch(text):
        return "BIGINT"
    if _BROKEN.fullmatch(text):
        return "DOUBLE"
    if text.lower() in ("true", "false"):
        return "BOOLEAN"
    return _time_kind(text) if is_dated else "STRING"


def parquet_columns(file: Path) -> dict[str, Kind]:
    """The columns of a file."""
    # Imported late: reading a script must not wait for Arrow.
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        read: Any = pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise NoColumnsError(f"{file} is not a Parquet file ({str(error).splitlines()[0]})") from error
    leaves = [read.schema.column(i) for i in range(len(read.schema.names))]
    old = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    return {field.name: _arrow_kind(field.type, field.name, is_int96=field.name in old) for field in read.schema_arrow}


_ARROW = {
    "int8": "TINYINT", "int16": "SMALLINT", "int32": "INT", "int64": "BIGINT", "uint8": "SMALLINT", "uint16": "INT",
    "uint32": "BIGINT", "uint64": "DECIMAL(20,0)", "float": "FLOAT", "double": "DOUBLE", "bool": "BOOLEAN",
    "string": "STRING", "large_string": "STRING", "string_view": "STRING", "binary": "BINARY", "null": "STRING",
    "large_binary": "BINARY", "binary_view": "BINARY", "date32[day]": "DATE",
}  # fmt: skip


def _arrow_kind(type: Any, name: str, *, is_int96: bool = False) -> Kind:
    """The type that Spark reads a column of Parquet as."""
    import pyarrow as pa

    if pa.types.is_dictionary(type):
        return _arrow_kind(type.value_type, name)
    if pa.types.is_decimal(type) and type.precision <= 38:
        return f"DECIMAL({type.precision},{type.scale})"
    if pa.types.is_timestamp(type) and (type.unit in ("us", "ms") or is_int96):
        return "TIMESTAMP" if type.tz or is_int96 else "TIMESTAMP_NTZ"
    if pa.types.is_fixed_size_binary(type):
        return "BINARY"
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return [_arrow_kind(type.value_type, name)]
    if pa.types.is_struct(type):
        return {inner.name: _arrow_kind(inner.type, f"{name}.{inner.name}") for inner in type}
    if pa.types.is_map(type):
        key, value = (type_of(_arrow_kind(inner, name)) for inner in (type.key_type, type.item_type))
        return f"MAP<{key}, {value}>"
    if str(type) not in _ARROW:
        raise NoColumnsError(f"its column `{name}` is {type}, which Spark has no type for")
    return _ARROW[str(type)]
