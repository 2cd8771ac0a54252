"""Cells of the board: text as a person types it, and the values of a case.

An empty cell and ``null`` are NULL. A text needs no quotes, unless it is to be empty or the word null; whatever is no
text, time or decimal is written as YAML: ``5``, ``true``, ``[1, 2]``, ``{a: 1}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import yaml


def cell_text(value: Any) -> str:
    """A value of a case as its cell shows it.

    >>> [cell_text(value) for value in (None, 1, "a", "", "null", True, [1, None])]
    ['', '1', 'a', '""', '"null"', 'true', '[1, null]']
    """
    match value:
        case None:
            return ""
        case str():
            return f'"{value}"' if value.strip().lower() in ("", "null") or value.startswith('"') else value
        case bytes():
            return _bytes_text(value)
        case datetime():
            return value.replace(tzinfo=None).isoformat(" ")
        case timedelta():
            return f"{value.total_seconds():g}"
        case date() | Decimal():
            return str(value)
        case _:
            return _flow_yaml(plain_value(value))


def parse_cell(text: str, kind: pa.DataType | None) -> Any:
    """What a cell of a column of that type holds, as a case would have it; None as a type: it is not known.

    >>> parse_cell("5", pa.int64())
    5
    >>> [parse_cell(text, pa.string()) for text in ("5", " ", '""')]
    ['5', None, '']
    """
    stripped = text.strip()
    if stripped.lower() in ("", "null"):
        return None
    if stripped.startswith(('"', "!!binary")) or not (kind is None or _is_text(kind)):
        try:
            return yaml.safe_load(stripped)
        except (yaml.YAMLError, ValueError):
            return text
    return text if kind is not None and pa.types.is_string(kind) else stripped


def plain_value(value: Any) -> Any:
    """A value as YAML and JSON have it, in the form that a case is read from.

    >>> plain_value(Decimal("1.50")), plain_value(datetime(2026, 3, 2, 8)), plain_value([("a", 1)])
    ('1.50', '2026-03-02 08:00:00', [['a', 1]])
    """
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return value
        case datetime() | date() | Decimal() | timedelta():
            return cell_text(value) if not isinstance(value, timedelta) else value.total_seconds()
        case Mapping():
            return {str(name): plain_value(part) for name, part in cast("Mapping[Any, Any]", value).items()}
        case _:
            return [plain_value(part) for part in value]


def _is_text(kind: pa.DataType) -> bool:
    """Whether what is typed is the value, and not YAML for it."""
    type_checks = (pa.types.is_string, pa.types.is_timestamp, pa.types.is_date, pa.types.is_decimal, pa.types.is_binary)
    return any(is_type(kind) for is_type in type_checks)


def _bytes_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return _flow_yaml(value)


def _flow_yaml(value: Any) -> str:
    """YAML on one line."""
    dumped = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False)
    return " ".join(dumped.removesuffix("\n").removesuffix("...").split("\n")).strip()
