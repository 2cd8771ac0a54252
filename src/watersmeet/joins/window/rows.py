"""Rows of one side of a window join, in memory and as a run stores them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.matching import HIGHEST, Bools, Ints
from watersmeet.joins.state.layout import as_int64

NUMBER, CLOCK, DEAD = "#number", "#clock", "#dead"
"""What a run holds of a row besides its own columns: its arrival number, when it was inserted (NULL: before there was a
clock), and whether it can never match."""


@dataclass(frozen=True)
class Window:
    """Rows of one side in order of arrival: what is in its window, and during a step also what is new.

    ``table`` holds the columns that are stored (None: no row has ever come, so that not even their types are known);
    ``clocks`` is HIGHEST where no clock is known; ``homes`` is -1 for a row that is in no run yet.
    """

    table: pa.RecordBatch | None
    numbers: Ints
    codes: Ints
    dead: Bools
    clocks: Ints
    matched: Bools
    homes: Ints

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, at: Ints | Bools) -> Window:
        """The rows at these positions, or those for which the mask is true."""
        positions = np.flatnonzero(at) if at.dtype == np.bool_ else at
        return Window(
            None if self.table is None else self.table.take(pa.array(positions)),
            self.numbers[positions],
            self.codes[positions],
            self.dead[positions],
            self.clocks[positions],
            self.matched[positions],
            self.homes[positions],
        )

    def followed_by(self, new: Window) -> Window:
        """These rows, then the new ones."""
        if new.table is None or self.table is None or not len(self):
            return self if new.table is None else new
        # Runs may differ in what does not change a value, such as the time zone a session shows timestamps in.
        old = self.table if self.table.schema.equals(new.table.schema) else self.table.cast(new.table.schema)
        return Window(
            pa.concat_batches([old, new.table]),
            np.concatenate([self.numbers, new.numbers]),
            np.concatenate([self.codes, new.codes]),
            np.concatenate([self.dead, new.dead]),
            np.concatenate([self.clocks, new.clocks]),
            np.concatenate([self.matched, new.matched]),
            np.concatenate([self.homes, new.homes]),
        )

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        return 42 * len(self) + (0 if self.table is None else int(self.table.nbytes))


NO_ROWS = Window(
    None,
    np.empty(0, np.int64),
    np.empty(0, np.int64),
    np.empty(0, np.bool_),
    np.empty(0, np.int64),
    np.empty(0, np.bool_),
    np.empty(0, np.int64),
)


@dataclass(frozen=True)
class Kept:
    """What is stored of a side: its columns, which of them is the code, and whether clocks are."""

    columns: tuple[str, ...]
    code: str | None
    clocked: bool

    def window(self, batch: pa.RecordBatch, homes: Ints, matched: Bools) -> Window:
        """The rows of a run, or of several."""
        table = batch.select(list(self.columns))
        size = batch.num_rows
        codes = np.zeros(size, np.int64) if self.code is None else as_int64(batch.column(self.code))
        clocks = as_int64(batch.column(CLOCK)) if self.clocked else np.full(size, HIGHEST)
        dead = batch.column(DEAD).to_numpy(zero_copy_only=False)
        return Window(table, as_int64(batch.column(NUMBER)), codes, dead, clocks, matched, homes)

    def batch(self, window: Window) -> pa.RecordBatch:
        """The rows as a run stores them."""
        assert window.table is not None
        arrays = [*window.table.columns, pa.array(window.numbers), pa.array(window.dead)]
        names = [*self.columns, NUMBER, DEAD]
        if self.clocked:
            arrays.append(pa.array(window.clocks, mask=window.clocks == HIGHEST))
            names.append(CLOCK)
        return pa.RecordBatch.from_arrays(arrays, names=names)
