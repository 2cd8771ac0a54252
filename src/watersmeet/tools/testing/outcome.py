"""The output of a batch and the outcomes of its rows, compared with what a case expects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from watersmeet.catalog import Source
from watersmeet.errors import refuse
from watersmeet.local.cells import arrow_table, cell
from watersmeet.operators.core.python_values import python_rows, python_values
from watersmeet.operators.core.rowwise import freeze
from watersmeet.operators.outcomes import row_in_words
from watersmeet.tools.testing.case import Case, CaseBatch, CaseRow, CaseWhy, RowList, cells_of
from watersmeet.tools.trace import Lineage, RowArrival


class QueryStoppedError(Exception):
    """Raised where the query of a case stops with an error, with the reason in words."""


@dataclass(frozen=True)
class Outcome:
    """The output of one batch on an executor. Tables, so that types are known; a field it cannot observe is None.

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
        _ActualRow(row, table.schema)
        for table in tables
        for row in zip(*map(python_values, table.columns), strict=True)
    ]
    if ordered:
        return _in_order(name, expected, actual)
    left = list(actual)
    missing: list[CaseRow] = []
    for row in expected:
        position = next((i for i, candidate in enumerate(left) if candidate.fits(row)), None)
        if position is None:
            missing.append(row)
        else:
            del left[position]
    return _difference(name, missing, left)


@dataclass(frozen=True)
class _ActualRow:
    """A row of an outcome with the columns of its table."""

    values: tuple[Any, ...]
    schema: pa.Schema

    def fits(self, expected: CaseRow) -> bool:
        """Whether the values are those of an expected row, which may name their columns."""
        try:
            cells = cells_of(expected, self.schema.names, "the result")
        except ValueError:
            return False
        return _is_same(cells, self.values, self.schema.types)


def _in_order(name: str, expected: RowList, actual: Sequence[_ActualRow]) -> str | None:
    same = len(expected) == len(actual) and all(row.fits(e) for e, row in zip(expected, actual, strict=True))
    return None if same else _difference(f"{name} (in order)", expected, actual)


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


def _difference(name: str, missing: Sequence[CaseRow], extra: Sequence[_ActualRow]) -> str | None:
    """The rows that differ; where a missing one names its columns, those that came instead do, too."""
    if not missing and not extra:
        return None
    named = any(isinstance(row, Mapping) for row in missing)
    shown = [dict(zip(row.schema.names, row.values, strict=True)) if named else row.values for row in extra]
    lines = [f"  - {_text(row)}" for row in missing] + [f"  + {_text(row)}" for row in shown]
    return "\n".join([f"{name}:", *lines])


def _text(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def _plain(row: CaseRow) -> list[Any] | dict[str, Any]:
    """A row as people write it."""
    return dict(row) if isinstance(row, Mapping) else list(row)


def compare_reasons(case: Case, lineage: Lineage, sources: Mapping[str, Source]) -> str | None:
    """How what became of rows differs from what a case says; None: not at all."""
    lines = [line for expected in case.why for line in _differences(case, expected, lineage, sources)]
    return "\n".join(["why:", *lines]) if lines else None


def _differences(case: Case, expected: CaseWhy, lineage: Lineage, sources: Mapping[str, Source]) -> Iterator[str]:
    arrivals = [arrival for arrival in lineage.arrivals if expected.of in (arrival.side, arrival.source)]
    if not arrivals:
        raise refuse("WRONG_CASE", path=case.path, reason=f"`why` names `{expected.of}`, which has no rows")
    meant = [arrival for arrival in arrivals if _is_meant(case, expected, arrival, sources)]
    if not meant:
        yield f"  ! {expected.of} {_plain(expected.row)} did not arrive"
    elif not any(_fits(expected, arrival, lineage) for arrival in meant):
        says = f", saying `{expected.says}`" if expected.says is not None else ""
        yield f"  - {expected.of} {_plain(expected.row)} is {expected.what}{says}"
        for arrival in meant:
            yield from (
                f"  + {arrival.side} {row_in_words(arrival.values)} is {text}"
                for text in _outcome_texts(lineage, arrival)
            )


def _is_meant(case: Case, expected: CaseWhy, arrival: RowArrival, sources: Mapping[str, Source]) -> bool:
    source = sources[arrival.source]
    try:
        cells = cells_of(expected.row, [declared.name for declared in source.fields], f"`{source.name}`")
    except ValueError as error:
        raise refuse("WRONG_CASE", path=case.path, reason=error) from None
    row = python_rows(arrow_table(source.fields, [cells], case.path))[0]
    return freeze(list(row.values())) == freeze([arrival.values[name] for name in row])


def _fits(expected: CaseWhy, arrival: RowArrival, lineage: Lineage) -> bool:
    if all(outcome.what != expected.what for outcome in lineage.of(arrival.number)):
        return False
    return expected.says is None or any(expected.says in text for text in _outcome_texts(lineage, arrival))


def _outcome_texts(lineage: Lineage, arrival: RowArrival) -> list[str]:
    miss = lineage.unmatched_reasons.get(arrival.number)
    why = "" if miss is None else f" {miss.text}"
    return [f"{outcome.what} in batch {outcome.batch}: {outcome.reason}{why}" for outcome in lineage.of(arrival.number)]
