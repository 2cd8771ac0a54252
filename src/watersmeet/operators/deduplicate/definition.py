"""The definition of deduplication, one row at a time; it forgets nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watersmeet.operators.core.operator import END_OF_INPUT, Watermarks
from watersmeet.operators.core.rowwise import Row, as_key, event_time, freeze
from watersmeet.operators.deduplicate.kernel import DeduplicateOperator


@dataclass(frozen=True)
class DeduplicateStep:
    """The output of one batch: rows that come out, late rows, watermarks, those received so far, and repeated rows."""

    rows: list[tuple[Any, ...]]
    late: list[tuple[int, Row]]
    watermarks: dict[str, int]
    received: dict[str, int]
    unmatched: list[tuple[int, tuple[Any, ...]]]


class DeduplicateReference:
    """The first row of each group within a time."""

    def __init__(self, first: DeduplicateOperator) -> None:
        self.first = first
        self.waiting: list[tuple[int, Row]] = []
        self.shown: list[tuple[Any, int]] = []
        self.watermark: int | None = None

    def step(self, arrivals: Mapping[int, Sequence[Row]], watermarks: Watermarks | None = None) -> DeduplicateStep:
        """Process one batch: the rows that arrived, and their watermark."""
        arrived = list(arrivals.get(0, ()))
        position = self.first.position
        if position is not None:
            arrived.sort(key=lambda row: row[position])
        timed = [(event_time(row[self.first.time]), row) for row in arrived]
        late = [(0, row) for time, row in timed if self._is_passed(time)]
        self.waiting += [(time, row) for time, row in timed if time is not None and not self._is_passed(time)]
        watermark = (watermarks or {}).get(self.first.time)
        if watermark is not None:
            self.watermark = watermark if self.watermark is None else max(self.watermark, watermark)
        due = self.waiting
        if self.first.order == "time":
            due = sorted((entry for entry in self.waiting if self._is_passed(entry[0])), key=lambda entry: entry[0])
        self.waiting = [entry for entry in self.waiting if not any(entry[1] is row for _, row in due)]
        decided = [(row, self._is_first(time, row)) for time, row in due]
        rows = [tuple(freeze(row[name]) for name in self.first.columns) for row, is_first in decided if is_first]
        columns = self.first.columns if self.first.shows_duplicates else ()
        repeated = [(0, tuple(row[name] for name in columns)) for row, is_first in decided if not is_first and columns]
        emitted = {} if self.watermark is None else dict.fromkeys(self.first.outputs, self.watermark)
        received = {} if self.watermark is None else {self.first.time: self.watermark}
        return DeduplicateStep(rows, late, emitted, received, repeated)

    def _is_passed(self, time: int | None) -> bool:
        if self.watermark == END_OF_INPUT:
            return True
        return self.watermark is not None and time is not None and time < self.watermark

    def _is_first(self, time: int, row: Row) -> bool:
        key = repr(freeze([as_key(row[name]) for name in self.first.by]))
        if any(other == key and abs(time - at) <= self.first.within for other, at in self.shown):
            return False
        self.shown.append((key, time))
        return True


DEFINITION = DeduplicateReference
