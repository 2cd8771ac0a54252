"""What came of a batch, and how it differs from what a case expects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from watersmeet.local.cells import cell
from watersmeet.operators.core.python_values import python_values
from watersmeet.operators.core.rowwise import freeze
from watersmeet.testing.case import CaseBatch, RowList


class QueryStoppedError(Exception):
    """Raised where the query of a case stops with an error, with the reason in words."""


@dataclass(frozen=True)
class Outcome:
    """What an executor saw of one batch. Tables, so that types are known; a field it cannot see is None.

    ``late`` holds a table per source, because their columns differ. Watermarks are by ``source.column``, in the type of
    the column.
    """

    out: tuple[pa.Table, ...] = ()
    late: tuple[pa.Table, ...] | None = None
    unmatched_left: tuple[pa.Table, ...] | None = None
    unmatched_right: tuple[pa.Table, ...] | None = None
    state: Mapping[str, int] | None = None
    partitions: Mapping[str, int] | None = None
    watermarks: Mapping[str, Any] | None = field(default=None)


def compare(expected: CaseBatch, actual: Outcome, *, ordered: bool = False) -> str | None:
    """None if the outcome is what the batch expects, else the difference as people read it.

    >>> print(compare(CaseBatch(out=((1, None), (2, 3))), Outcome((pa.table({"a": [2, 4], "b": [3, 4]}),))))
    out:
      - [1, null]
      + [4, 4]
    """
    parts: list[str | None] = [_rows("out", expected.out, actual.out, ordered=ordered)]
    for name in ("late", "unmatched_left", "unmatched_right"):
        rows: RowList | None = getattr(expected, name)
        tables: tuple[pa.Table, ...] | None = getattr(actual, name)
        if rows is not None:
            parts.append(_unseen(name) if tables is None else _rows(name, rows, tables, ordered=False))
    for name in ("state", "partitions", "watermarks"):
        numbers: Mapping[str, Any] | None = getattr(expected, name)
        if numbers is not None:
            parts.append(_values(name, numbers, getattr(actual, name)))
    differences = [part for part in parts if part is not None]
    return "\n".join(differences) or None


def _unseen(name: str) -> str:
    return f"{name}:\n  ! expected by the case, but not reported where it ran"


def _rows(name: str, expected: RowList, tables: Sequence[pa.Table], *, ordered: bool) -> str | None:
    actual = [
        (row, tuple(table.schema.types))
        for table in tables
        for row in zip(*map(python_values, table.columns), strict=True)
    ]
    if ordered:
        return _in_order(name, expected, actual)
    left = list(actual)
    missing: list[tuple[Any, ...]] = []
    for row in expected:
        position = next((i for i, (actual_row, kinds) in enumerate(left) if _is_same(row, actual_row, kinds)), None)
        if position is None:
            missing.append(row)
        else:
            del left[position]
    return _difference(name, missing, [row for row, _ in left])


def _in_order(name: str, expected: RowList, actual: list[tuple[tuple[Any, ...], tuple[Any, ...]]]) -> str | None:
    same = len(expected) == len(actual) and all(
        _is_same(row, actual_row, kinds) for row, (actual_row, kinds) in zip(expected, actual, strict=True)
    )
    return None if same else _difference(f"{name} (in order)", list(expected), [row for row, _ in actual])


def _is_same(expected: Sequence[Any], actual: Sequence[Any], kinds: Sequence[pa.DataType]) -> bool:
    if len(expected) != len(actual):
        return False
    try:
        wanted = tuple(freeze(_cell_value(value, kind)) for value, kind in zip(expected, kinds, strict=True))
    except ValueError:
        return False
    return wanted == tuple(freeze(value) for value in actual)


def _cell_value(value: Any, kind: pa.DataType) -> Any:
    """A cell as the value it stands for; a value that Python cannot hold is compared as the text it is shown as."""
    try:
        return cell(value, kind)
    except ValueError:
        if isinstance(value, str):
            return value
        raise


def _values(name: str, expected: Mapping[str, Any], actual: Mapping[str, Any] | None) -> str | None:
    """Only what the case names is compared. A bare name stands for the one column of that name."""
    if actual is None:
        return _unseen(name)
    lines: list[str] = []
    for key, value in expected.items():
        matches = [v for k, v in actual.items() if k == key or k.rpartition(".")[2] == key]
        if len(matches) > 1:
            lines.append(f"  ! {key} could be any of {', '.join(sorted(actual))}")
        elif not matches:
            lines += [f"  - {key}: {_text(value)}", f"  + {key}: none"]
        elif not _is_same([value], matches, [pa.scalar(matches[0]).type]):
            lines += [f"  - {key}: {_text(value)}", f"  + {key}: {_text(matches[0])}"]
    return "\n".join([f"{name}:", *lines]) if lines else None


def _difference(name: str, missing: Sequence[Sequence[Any]], extra: Sequence[Sequence[Any]]) -> str | None:
    if not missing and not extra:
        return None
    lines = [f"  - {_text(list(row))}" for row in missing] + [f"  + {_text(list(row))}" for row in extra]
    return "\n".join([f"{name}:", *lines])


def _text(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)
