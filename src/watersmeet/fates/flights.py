"""Rows on their way through a query: each is an arrival, or was made of several."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from watersmeet.fates.words import row_in_words
from watersmeet.formats.feed import CHANGE
from watersmeet.local.query import WHERE
from watersmeet.operators.core.python_values import python_value
from watersmeet.operators.core.rowwise import freeze


@dataclass(frozen=True)
class _Chunk:
    """The rows of a source that arrived on a side in a batch, numbered from ``first`` on."""

    first: int
    side: str
    source: str
    batch: int
    columns: tuple[tuple[str, pa.Array], ...]


@dataclass(frozen=True)
class RawArrival:
    """An arrival as it came from its source."""

    side: str
    source: str
    batch: int
    values: Mapping[str, object]
    where: str
    sign: int

    def __str__(self) -> str:
        return f"the {self.source} row {row_in_words(self.values)}"


@dataclass
class TracedRows:
    """All rows of a query by number. Of the first numbers each is an arrival; others are made of some.

    >>> flights = TracedRows()
    >>> flights.arrive("l", "s", 0, pa.table({"a": [1, 2]})).to_pylist()
    [0, 1]
    >>> made = flights.derive_row(0, (0, 1))
    >>> flights.arrivals(made), str(flights.raw(1))
    ((0, 1), 'the s row (a 2)')
    """

    _chunks: list[_Chunk] = field(default_factory=list[_Chunk])
    _of: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    _places: list[int] = field(default_factory=list[int])
    _arrived: int = 0
    _made: dict[Any, int] = field(default_factory=dict[Any, int])

    def arrive(self, side: str, source: str, batch: int, rows: pa.Table) -> pa.Array:
        """The numbers of rows that arrive."""
        numbers = range(len(self._of), len(self._of) + rows.num_rows)
        columns = tuple((name, rows.column(name).combine_chunks()) for name in rows.column_names)
        self._chunks.append(_Chunk(self._arrived, side, source, batch, columns))
        self._of += [(self._arrived + place,) for place in range(rows.num_rows)]
        self._arrived += rows.num_rows
        return pa.array(numbers, pa.int64())

    def derive_row(self, where: int, parents: Iterable[int]) -> int:
        """The number of the row that some rows make at a place; the same rows make the same there."""
        name = (where, tuple(parents))
        if name not in self._made:
            self._made[name] = len(self._of)
            self._of.append(tuple(dict.fromkeys(arrival for parent in name[1] for arrival in self._of[parent])))
        return self._made[name]

    def arrivals(self, row_id: int) -> tuple[int, ...]:
        """The arrivals that a row is made of."""
        return self._of[row_id]

    def side(self, arrival: int) -> str:
        """The side on which an arrival came."""
        return self._chunk(arrival).side

    def _chunk(self, arrival: int) -> _Chunk:
        # Chunks without rows share their first number with the next one that has some.
        return self._chunks[bisect_right(self._chunks, arrival, key=lambda chunk: chunk.first) - 1]

    def raw(self, arrival: int) -> RawArrival:
        """An arrival as it came."""
        chunk = self._chunk(arrival)
        place = arrival - chunk.first
        values = {name: python_value(column[place]) for name, column in chunk.columns}
        sign = -1 if values.pop(CHANGE, "+") == "-" else 1
        return RawArrival(chunk.side, chunk.source, chunk.batch, values, str(values.pop(WHERE, "") or ""), sign)

    @property
    def count(self) -> int:
        """How many rows arrived."""
        return self._arrived


def same_row(values: Mapping[str, object]) -> Any:
    """What equal rows of a table without a primary key have in common."""
    return repr(freeze(dict(values)))
