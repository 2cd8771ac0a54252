"""The definition of the top-N: it stores all rows, and sorts them again each time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any

from watersmeet.operators.core.changes import WEIGHT
from watersmeet.operators.core.operator import END_OF_INPUT, Watermarks
from watersmeet.operators.core.rowwise import Row, as_key, compare_in_order, event_time, freeze, live_rows
from watersmeet.operators.top.kernel import TopNOperator


@dataclass(frozen=True)
class TopStep:
    """The output of one batch of windows: changes with their numbers, late rows, how many rows stay, and watermarks."""

    rows: list[tuple[Any, ...]]
    late: list[tuple[int, Row]]
    state: tuple[int]
    watermarks: dict[str, int]


class TopReference:
    """The first n rows, one row at a time."""

    def __init__(self, top: TopNOperator) -> None:
        self.top = top
        self.rows: list[tuple[Row, int]] = []
        self.shown: Counter[tuple[Any, ...]] = Counter()
        self.stored = 0
        self._watermark: int | None = None

    def step(
        self, arrivals: Mapping[int, Sequence[Row]], watermarks: Watermarks | None = None
    ) -> Counter[tuple[Any, ...]] | TopStep:
        """One batch; gives what changes, each row with a number; of windows, also which rows were late."""
        position = self.top.position
        late = [(0, row) for row in arrivals.get(0, ()) if self._is_late(row)]
        arrived = [row for row in arrivals.get(0, ()) if not self._is_late(row)]
        if position is not None:
            arrived.sort(key=lambda row: row[position])
        self.rows += [(row, row[WEIGHT] if self.top.changes else 1) for row in arrived]
        after = self._top_rows()
        changed = Counter(after)
        changed.subtract(self.shown)
        self.shown = after
        changes = Counter({row: number for row, number in changed.items() if number})
        if self.top.time is None:
            return changes
        final_watermarks = self._advance_watermark(watermarks)
        self.rows = [(row, weight) for row, weight in self.rows if not self._is_late(row)]
        self.shown = self._top_rows()
        state = (self.stored,)
        rows = [(*row, number) for row, number in changes.items()]
        if self.top.emit == "final":
            after.subtract(self.shown)
            rows = list(after.elements())
        return TopStep(rows, late, state, final_watermarks)

    def _advance_watermark(self, watermarks: Watermarks | None) -> dict[str, int]:
        """Advance the watermark; returns those of the columns that become final with the windows."""
        watermark = (watermarks or {}).get(self.top.time or "")
        if watermark is not None:
            self._watermark = watermark if self._watermark is None else max(self._watermark, watermark)
        if self._watermark is None:
            return {}
        has_ended = self._watermark == END_OF_INPUT
        return {
            # A row of a stream that has not come out comes after the watermark, not at it.
            name: END_OF_INPUT if has_ended else max(-(2**63), self._watermark - behind + (self.top.emit == "final"))
            for name, behind in self.top.finality_outputs
        }

    def _is_late(self, row: Row) -> bool:
        """Whether the window of a row's group had ended before the batch."""
        if self.top.time is None or self._watermark is None:
            return False
        bound = event_time(row[str(self.top.final_key)])
        if bound is None and self.top.emit == "final":
            return self._watermark == END_OF_INPUT
        return bound is not None and bound + self.top.before_end <= self._watermark

    def _top_rows(self) -> Counter[tuple[Any, ...]]:
        counts: Counter[tuple[Any, ...]] = Counter()
        shown = dict[Any, int]()
        live, order = self._live_rows(), self.top.order
        for row, weight in sorted(live, key=cmp_to_key(lambda one, other: compare_in_order(one[0], other[0], order))):
            group = self._group(row)
            number, before = min(weight, self.top.limit - shown.get(group, 0)), None
            if self.top.ties:
                others = [(other, times) for other, times in live if self._group(other) == group]
                preceding = [(other, times) for other, times in others if compare_in_order(other, row, order) < 0]
                values = {freeze([as_key(other[by.column]) for by in self.top.order]) for other, _ in preceding}
                before = len(values) if self.top.is_dense else sum(times for _, times in preceding)
                number = weight if before < self.top.limit else 0
            for copy in range(number):
                rank = shown.get(group, 0) + copy + 1 if before is None else before + 1
                numbered = () if self.top.number is None else (rank,)
                counts[(*(freeze(row[name]) for name in self.top.columns), *numbered)] += rank > self.top.offset
            shown[group] = shown.get(group, 0) + number
        self.stored = sum(shown.values())
        return +counts

    def _group(self, row: Row) -> Any:
        return freeze([row[name] for name in self.top.by])

    def _live_rows(self) -> list[tuple[Row, int]]:
        """The rows that are there, by arrival; of changes equal ones together, where the last arrived."""
        if not self.top.changes:
            return self.rows
        columns = [*self.top.columns, *(by.column for by in self.top.order), *self.top.by]
        return live_rows(self.rows, columns)


DEFINITION = TopReference
