"""Combines rows before the exchange: equal rows become one, with their multiplicity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.operators.core.changes import MULTIPLICITY, group_rows
from watersmeet.operators.core.columnar import AssignWindows

MIN_ROWS, MIN_RATIO = 1_000, 2
"""Of more rows than so few, one in so many at most must be left if putting them together is to be worth it."""
_SLOT = "#slot"

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Precombine:
    """Combines rows that are equal but for their ``times``: one of them is sent, with their number.

    The times only advance watermarks, so the row that is sent has the latest of them. Skipped where few rows are equal.
    """

    times: tuple[str, ...]

    def __call__(self, batches: Batches) -> Batches:
        """The batches of one map task, with a column more, or with more in it."""
        is_worth_it = True
        for batch in batches:
            combined = self._combine(batch) if is_worth_it and batch.num_rows else _with_multiplicity(batch)
            is_worth_it = is_worth_it and _is_fewer(combined, batch)
            yield combined

    def _combine(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = _group_equal_rows(batch, batch.drop_columns([name for name in self.times if name in batch.schema.names]))
        for name in self.times:
            at, latest = batch.schema.get_field_index(name), pc.max(batch.column(name))
            rows = rows.set_column(at, name, pa.repeat(latest, rows.num_rows))
        return rows


@dataclass(frozen=True)
class WindowPrecombine:
    """The same before rows are unfolded into windows: equal rows whose times are in the same windows."""

    unfold: AssignWindows

    def __call__(self, batches: Batches) -> Batches:
        """The batches of one map task, with a column more; the latest time of a batch is still in it."""
        is_worth_it = True
        for batch in batches:
            can_combine = is_worth_it and batch.num_rows and not batch.column(self.unfold.time).null_count
            combined = self._combine(batch) if can_combine else _with_multiplicity(batch)
            is_worth_it = is_worth_it and _is_fewer(combined, batch)
            yield combined

    def _combine(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        windows = self.unfold.windows
        times: npt.NDArray[np.int64] = batch.column(self.unfold.time).view(pa.int64()).to_numpy()
        # All bounds of windows are whole multiples of it.
        length = gcd(windows.base, windows.first_end, windows.end)
        latest = int(times.argmax())
        # The first of equal rows is sent.
        order = np.concatenate([[latest], np.delete(np.arange(times.size), latest)])
        batch, slots = batch.take(pa.array(order)), times[order] // length
        return _group_equal_rows(batch, batch.drop_columns([self.unfold.time]).append_column(_SLOT, pa.array(slots)))


def _group_equal_rows(batch: pa.RecordBatch, compared: pa.RecordBatch) -> pa.RecordBatch:
    """Of rows whose compared columns are the same the first, with how many they are."""
    if MULTIPLICITY in batch.schema.names:
        weights: npt.NDArray[np.int64] = batch.column(MULTIPLICITY).to_numpy()
        batch, compared = batch.drop_columns([MULTIPLICITY]), compared.drop_columns([MULTIPLICITY])
    else:
        number: int = batch.num_rows
        weights = np.ones(number, np.int64)
    places, multiplicities = group_rows(pa.Table.from_batches([compared]), weights)
    return batch.take(pa.array(places)).append_column(MULTIPLICITY, pa.array(multiplicities, pa.int64()))


def _with_multiplicity(batch: pa.RecordBatch) -> pa.RecordBatch:
    if MULTIPLICITY in batch.schema.names:
        return batch
    number: int = batch.num_rows
    return batch.append_column(MULTIPLICITY, pa.array(np.ones(number, np.int64)))


def _is_fewer(combined: pa.RecordBatch, batch: pa.RecordBatch) -> bool:
    return batch.num_rows < MIN_ROWS or combined.num_rows * MIN_RATIO <= batch.num_rows
