"""Rows of one side of a window join: what is kept of them, and what a step has at hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.matching import HIGHEST, Bools, Ints
from watersmeet.joins.state.layout import Layout, Rows, as_int64

NUMBER, CLOCK, DEAD = "#number", "#clock", "#dead"
"""What is kept of a row besides its own columns: its arrival number, when it was inserted (the highest number: before
there was a clock), and whether it can never match."""

MATCHED = "matched"
"""The note that says which rows have matched."""


@dataclass(frozen=True)
class Window:
    """Rows of one side in order of arrival: what is in its window, then what is new; without clocks if none matter."""

    table: pa.RecordBatch
    numbers: Ints
    codes: Ints
    dead: Bools
    clocks: Ints
    matched: Bools

    def __len__(self) -> int:
        return len(self.numbers)

    @staticmethod
    def of(rows: Rows, code: str | None, first_clock: int | None) -> Window:
        """These rows, those inserted before there was a clock at the first that came."""
        table, none = rows.table, np.zeros(len(rows), np.int64)
        return Window(
            table,
            rows.beside[NUMBER],
            none if code is None else as_int64(table.column(code)),
            table.column(DEAD).to_numpy(zero_copy_only=False).astype(np.bool_),
            inserted(rows.times.get(CLOCK, none[:0]), first_clock),
            rows.beside.get(MATCHED, none).astype(np.bool_),
        )


def layout_of(stored: tuple[str, ...], *, clocked: bool, tracked: bool) -> Layout:
    """How a side's rows are kept: in order of arrival, with clocks, and who has matched, where that matters."""
    times = (CLOCK,) if clocked else ()
    columns = (*stored, DEAD, *times)
    return Layout(columns, times, numbers=(NUMBER,), notes=((MATCHED, "flag"),) if tracked else ())


def inserted(clocks: Ints, first_clock: int | None) -> Ints:
    """When rows with these clocks were inserted."""
    return clocks if first_clock is None else np.where(clocks == HIGHEST, first_clock, clocks)
