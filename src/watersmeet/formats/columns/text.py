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

from watersmeet.formats.columns.kinds import Kind, NoColumnsError, merged

ROWS = 1000
"""How many rows are looked at of each file."""


def of_text(file: Path, format: str, said: Mapping[str, str]) -> dict[str, Kind]:
    """The columns of a file of that format, with those options, in small letters."""
    with _opened(file, said) as lines:
        rows = _json_rows(lines, said) if format == "json" else _csv_rows(lines, said)
        found: dict[str, Kind] = {}
        for row in islice(rows, ROWS):
            for name, kind in row.items():
                found[name] = merged(found.get(name, ""), kind, name)
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
            name: "" if value in ("", empty, None) else of_value(value, is_dated=is_dated)
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
                kind = merged(kind, _of_json(one, is_dated=is_dated), "")
            return [kind]
        case _:
            return "STRING"


def _of_time(text: str) -> str:
    if _MOMENT.fullmatch(text):
        return "TIMESTAMP"
    return "DATE" if _DAY.fullmatch(text) else "STRING"


def of_value(text: str, *, is_dated: bool = True) -> str:
    """The type of a value of CSV, or in the name of a folder."""
    if _WHOLE.fullmatch(text):
        return "BIGINT"
    if _BROKEN.fullmatch(text):
        return "DOUBLE"
    if text.lower() in ("true", "false"):
        return "BOOLEAN"
    return _of_time(text) if is_dated else "STRING"
