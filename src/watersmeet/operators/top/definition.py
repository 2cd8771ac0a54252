"""The definition of the top-N: it stores all rows, and sorts them again each time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cmp_to_key
from typing import Any

from watersmeet.operators.core.changes import WEIGHT
from watersmeet.operators.core.operator import Watermarks
from watersmeet.operators.core.rowwise import Row, compare, freeze, live_rows
from watersmeet.operators.top.kernel import SortColumn, TopNOperator


class TopReference:
    """The first n rows, one row at a time."""

    def __init__(self, top: TopNOperator) -> None:
        self.top = top
        self.rows: list[tuple[Row, int]] = []
        self.shown: Counter[tuple[Any, ...]] = Counter()

    def step(
        self, arrivals: Mapping[int, Sequence[Row]], watermarks: Watermarks | None = None
    ) -> Counter[tuple[Any, ...]]:
        """One batch; gives what changes, each row with a number."""
        position = self.top.position
        arrived = list(arrivals.get(0, ()))
        if position is not None:
            arrived.sort(key=lambda row: row[position])
        self.rows += [(row, row[WEIGHT] if self.top.changes else 1) for row in arrived]
        after = self._top_rows()
        changed = Counter(after)
        changed.subtract(self.shown)
        self.shown = after
        return Counter({row: number for row, number in changed.items() if number})

    def _top_rows(self) -> Counter[tuple[Any, ...]]:
        counts: Counter[tuple[Any, ...]] = Counter()
        shown = dict[Any, int]()
        live = self._live_rows()
        for row, weight in sorted(live, key=cmp_to_key(lambda one, other: self._compare(one[0], other[0]))):
            group = self._group(row)
            number = min(weight, self.top.limit - shown.get(group, 0))
            if self.top.ties:
                group_rows = [(other, times) for other, times in live if self._group(other) == group]
                before = sum(times for other, times in group_rows if self._compare(other, row) < 0)
                number = weight if before < self.top.limit else 0
            counts[tuple(freeze(row[name]) for name in self.top.columns)] += number
            shown[group] = shown.get(group, 0) + number
        return +counts

    def _group(self, row: Row) -> Any:
        return freeze([row[name] for name in self.top.by])

    def _live_rows(self) -> list[tuple[Row, int]]:
        """The rows that are there, by arrival; of changes equal ones together, where the last arrived."""
        if not self.top.changes:
            return self.rows
        columns = [*self.top.columns, *(by.column for by in self.top.order), *self.top.by]
        return live_rows(self.rows, columns)

    def _compare(self, left: Row, right: Row) -> int:
        return next(
            (sign for by in self.top.order if (sign := _compare_values(by, left[by.column], right[by.column]))), 0
        )


def _compare_values(by: SortColumn, left: Any, right: Any) -> int:
    if left is None or right is None:
        return ((left is None) - (right is None)) * (1 if by.nulls_last else -1)
    return (compare(left, right) or 0) * (-1 if by.descending else 1)


DEFINITION = TopReference
