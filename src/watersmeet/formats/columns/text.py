"""The columns of JSON and CSV, from a sample of rows."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TextIO, cast

from watersmeet.formats.columns.kinds import Kind, NoColumnsError, merge_kinds

ROWS = 1000
"""How many rows are looked at of each file."""


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
