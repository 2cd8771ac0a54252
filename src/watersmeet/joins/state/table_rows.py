"""Weighted rows of a table in memory, and what of a table is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.changes import WEIGHT, grouped, joined_tables
from watersmeet.joins.core.matching import Bools, Ints, Stretches
from watersmeet.joins.state.runs import Layout, Rows


@dataclass(frozen=True)
class TableRows:
    """Rows with their codes and weights at hand; ``sums``: the numbers kept beside them, if there are any."""

    table: pa.RecordBatch
    codes: Ints
    weights: Ints
    sums: Ints | None = None

    def __len__(self) -> int:
        return self.table.num_rows

    def take(self, positions: Ints) -> TableRows:
        """The rows at these positions, in that order."""
        sums = None if self.sums is None else self.sums[positions]
        return TableRows(self.table.take(pa.array(positions)), self.codes[positions], self.weights[positions], sums)

    def where(self, keep: Bools) -> TableRows:
        """The rows for which ``keep`` is true, in the order they have."""
        return self if bool(keep.all()) else self.take(np.flatnonzero(keep))

    def slice(self, start: int, stop: int) -> TableRows:
        """The rows from ``start`` to before ``stop``, without copying them."""
        stop = min(stop, len(self))
        sums = None if self.sums is None else self.sums[start:stop]
        return TableRows(self.table.slice(start, stop - start), self.codes[start:stop], self.weights[start:stop], sums)

    def of_codes(self, codes: Ints) -> list[TableRows]:
        """The rows of these codes as one part, or none; the rows and the codes are in order."""
        start = np.searchsorted(self.codes, codes, "left")
        # Most codes miss most runs, and a row's code tells a miss at once: the second search is for the others.
        start = start[self.codes[np.minimum(start, self.codes.size - 1)] == codes]
        if not start.size:
            return []
        stop = np.searchsorted(self.codes, self.codes[start], "right")
        total = int((stop - start).sum())
        if total == start.size:
            return [self.take(start)]
        return [self.take(pairs.build) for pairs in Stretches(start, start, stop).pieces(total)]

    def by_code(self) -> TableRows:
        """The rows in the order of their codes."""
        is_sorted = self.codes.size < 2 or bool((self.codes[1:] >= self.codes[:-1]).all())
        return self if is_sorted else self.take(np.argsort(self.codes, kind="stable"))

    @property
    def stored(self) -> Rows:
        """The rows as a block of a run."""
        columns = [*self.table.columns, pa.array(self.weights)]
        names = [*self.table.schema.names, WEIGHT]
        return Rows(pa.RecordBatch.from_arrays(columns, names=names), self.codes, {})

    @property
    def changes(self) -> pa.Table:
        """The rows as a table with `WEIGHT`."""
        return pa.Table.from_batches([self.stored.table])


@dataclass(frozen=True)
class TableLayout:
    """What is stored of a table's rows: rows that agree in all ``columns`` are one row with a larger weight.

    ``code`` is one of the columns, int64, equal wherever the keys are equal; None: all rows have the same code.
    """

    columns: tuple[str, ...]
    code: str | None

    def rows(self, table: pa.Table | pa.RecordBatch) -> TableRows:
        """The table's columns as rows in the order they have; without a column `WEIGHT` each has weight one.

        >>> TableLayout(("k",), "k").rows(pa.table({"k": [7, 8], "v": ["a", "b"]})).weights.tolist()
        [1, 1]
        """
        if WEIGHT not in table.schema.names:
            table = table.append_column(WEIGHT, pa.array(np.ones(table.num_rows, np.int64)))
        return self.of(self.stored.rows(table))

    def of(self, rows: Rows) -> TableRows:
        """The rows of a block."""
        weights = rows.table.column(WEIGHT).to_numpy(zero_copy_only=False)
        return TableRows(rows.table.select(list(self.columns)), rows.codes, weights)

    @cached_property
    def stored(self) -> Layout:
        """How a block is stored: the columns, then the weights; a table has no times."""
        return Layout((*self.columns, WEIGHT), (), "", self.code)

    @cached_property
    def nothing(self) -> TableRows:
        """No rows; their columns have no types."""
        empty = pa.RecordBatch.from_arrays([pa.nulls(0)] * len(self.columns), names=list(self.columns))
        return TableRows(empty, np.zeros(0, np.int64), np.zeros(0, np.int64))

    def consolidated(self, rows: TableRows) -> TableRows:
        """The rows in the order of their codes, equal ones put together, those of weight zero gone.

        >>> layout = TableLayout(("k", "v"), "k")
        >>> changes = pa.table({"k": [2, 1, 2], "v": ["b", "a", "b"], WEIGHT: [1, 1, -1]})
        >>> layout.consolidated(layout.rows(changes)).table.to_pylist()
        [{'k': 1, 'v': 'a'}]
        """
        rows = rows.by_code()
        codes = rows.codes
        shared = np.zeros(codes.size, np.bool_)
        same = codes[1:] == codes[:-1]
        shared[1:] |= same
        shared[:-1] |= same
        if not shared.any():
            return rows.where(rows.weights != 0)
        # Only rows of one code can be equal, and with most keys a code has one row.
        many = np.flatnonzero(shared)
        some = rows.take(many)
        first, totals = grouped(pa.Table.from_batches([some.table]), some.weights)
        weights = np.where(shared, 0, rows.weights)
        weights[many[first]] = totals
        return replace(rows, weights=weights).where(weights != 0)


def together(parts: Sequence[TableRows]) -> TableRows:
    """Parts of one table one behind the other; only numbers that all have are kept beside them."""
    parts = [part for part in parts if len(part)] or list(parts[-1:])
    if len(parts) == 1:
        return parts[0]
    schema = parts[0].table.schema
    if all(part.table.schema.equals(schema) for part in parts):
        batch = pa.concat_batches([part.table for part in parts])
    else:
        batch = pa.concat_batches(joined_tables([pa.Table.from_batches([part.table]) for part in parts]).to_batches())
    sums = [part.sums for part in parts if part.sums is not None]
    return TableRows(
        batch,
        np.concatenate([part.codes for part in parts]),
        np.concatenate([part.weights for part in parts]),
        np.concatenate(sums) if len(sums) == len(parts) else None,
    )
