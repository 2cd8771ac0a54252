"""Some of the rows that an operator handed out or refused in a batch, as text, for people who want to see rows.

Whether a row is one of a pair is told by a column of each side in which no row of a pair has NULL: a key or a time.
Where a side shows none, nobody can tell, and its rows count as ``joined``; what has one side joins nothing, ``out``.

Nothing in here may fail a query: rows that cannot be shown are counted, with the reason, as ``dropped``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.operators.core.operator import StreamOperator
from watersmeet.operators.core.python_values import python_rows
from watersmeet.operators.core.shard import LATE_BY, LATE_COLUMN

ROWS_PER_KIND = 3
"""How many of a kind a shard tells in a batch."""
MAX_CHARACTERS = 200
"""How much of a value is told."""
_PADDED = "#padded"


class Examples:
    """Takes what an operator hands out, and keeps the latest few rows of each kind."""

    def __init__(self, operator: StreamOperator) -> None:
        self._certain = [
            next((name for name in side.columns if name in (*side.keys, *side.times)), None) for side in operator.sides
        ]
        self._pads = [bool(side.columns) for side in operator.sides]
        self.by_kind: dict[str, list[dict[str, str | None]]] = {}
        self._dropped = 0

    def take(self, table: pa.Table | pa.RecordBatch) -> None:
        """Take rows of the result."""
        try:
            self._take(table)
        except Exception as error:
            self._drop(error)

    def take_late(self, tables: Sequence[pa.Table]) -> None:
        """Take late rows, each with what it missed."""
        try:
            self._take_late(tables)
        except Exception as error:
            self._drop(error)

    def _take(self, table: pa.Table | pa.RecordBatch) -> None:
        last = table.slice(max(0, table.num_rows - ROWS_PER_KIND))
        is_padded = self._find_padded(last)
        unknown = "joined" if len(self._certain) > 1 else "out"
        for number, row in enumerate(python_rows(last)):
            self._keep(
                unknown if is_padded is None else "padded" if is_padded[number] else "matched", _row_as_text(row)
            )

    def _take_late(self, tables: Sequence[pa.Table]) -> None:
        for table in tables:
            for row in python_rows(table):
                missed = {"late_by": None if row[LATE_BY] is None else str(row[LATE_BY]), "watermark": row[LATE_COLUMN]}
                self._keep("late", _row_as_text(row) | missed)

    def _drop(self, error: Exception) -> None:
        self._dropped += 1
        reason = f"{type(error).__name__}: {error}"[:MAX_CHARACTERS]
        self.by_kind["dropped"] = [{"times": str(self._dropped), "reason": reason}]

    def _keep(self, kind: str, row: dict[str, str | None]) -> None:
        self.by_kind[kind] = [*self.by_kind.get(kind, ()), row][-ROWS_PER_KIND:]

    def _find_padded(self, table: pa.Table | pa.RecordBatch) -> Any:
        """Which rows have no part of some side; None if that cannot be told."""
        names = table.schema.names
        if _PADDED in names:
            return table.column(_PADDED).to_numpy(zero_copy_only=False) >= 0
        if len(self._certain) < 2 or any(
            shows and name not in names for name, shows in zip(self._certain, self._pads, strict=True)
        ):
            return None
        is_padded = np.zeros(table.num_rows, np.bool_)
        for name in (name for name in self._certain if name in names):
            is_padded |= ~table.column(name).is_valid().to_numpy(zero_copy_only=False)
        return is_padded


def _row_as_text(row: dict[str, Any]) -> dict[str, str | None]:
    return {
        name: None if value is None else str(value)[:MAX_CHARACTERS] for name, value in row.items() if "#" not in name
    }
