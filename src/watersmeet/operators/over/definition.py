"""The definition of window functions, one row at a time; it forgets nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watersmeet.operators.core.aggregates import Aggregate
from watersmeet.operators.core.operator import END_OF_INPUT, Watermarks
from watersmeet.operators.core.rowwise import Row, aggregate_rows, as_key, event_time, freeze
from watersmeet.operators.over.kernel import FrameFunction, OverOperator


@dataclass(frozen=True)
class OverStep:
    """The output of one batch: rows that come out, late rows, watermarks, and those received so far."""

    rows: list[tuple[Any, ...]]
    late: list[tuple[int, Row]]
    watermarks: dict[str, int]
    received: dict[str, int]


class OverReference:
    """Window functions over a stream, one row at a time."""

    def __init__(self, over: OverOperator) -> None:
        self.over = over
        self.rows: list[tuple[int, Row]] = []
        self.shown = 0
        self.watermark: int | None = None

    def step(self, arrivals: Mapping[int, Sequence[Row]], watermarks: Watermarks | None = None) -> OverStep:
        """Process one batch: the rows that arrived, and their watermark."""
        arrived = list(arrivals.get(0, ()))
        position = self.over.position
        if position is not None:
            arrived.sort(key=lambda row: row[position])
        timed = [(event_time(row[self.over.time]), row) for row in arrived]
        late = [(0, row) for time, row in timed if self._has_passed(time, 0)]
        self.rows += [(time, row) for time, row in timed if time is not None and not self._has_passed(time, 0)]
        # The rows that came out are before all others.
        self.rows.sort(key=lambda entry: entry[0])
        watermark = (watermarks or {}).get(self.over.time)
        if watermark is not None:
            self.watermark = watermark if self.watermark is None else max(self.watermark, watermark)
        before = self.shown
        self.shown = sum(self._has_passed(time, self.over.wait) for time, _ in self.rows)
        rows = [self._show(place) for place in range(before, self.shown)]
        received = {} if self.watermark is None else {self.over.time: self.watermark}
        return OverStep(rows, late, self._output_watermarks(), received)

    def _output_watermarks(self) -> dict[str, int]:
        if self.watermark is None:
            return {}
        is_over = self.watermark == END_OF_INPUT
        watermark = self.watermark if is_over else max(self.watermark - self.over.wait, -(2**63))
        return dict.fromkeys(self.over.outputs, watermark)

    def _has_passed(self, time: int | None, wait: int) -> bool:
        if self.watermark == END_OF_INPUT:
            return True
        return self.watermark is not None and time is not None and time + wait < self.watermark

    def _show(self, place: int) -> tuple[Any, ...]:
        """A row with the values of the functions."""
        key = self._key(self.rows[place][1])
        group = [entry for entry in self.rows if self._key(entry[1]) == key]
        own = next(n for n, entry in enumerate(group) if entry is self.rows[place])
        values = [_evaluate(function, group, own, self.over.wait) for function in self.over.functions]
        return (*(freeze(group[own][1][name]) for name in self.over.columns), *map(freeze, values))

    def _key(self, row: Row) -> str:
        return repr(freeze([as_key(row[name]) for name in self.over.by]))


def _evaluate(function: FrameFunction, group: Sequence[tuple[int, Row]], own: int, wait: int) -> Any:
    """The value of a function for one row of its group, whose rows are in order."""
    time, row = group[own]
    if function.kind in ("lag", "lead"):
        offset = function.preceding or 0
        place = own - offset if function.kind == "lag" else own + offset
        if 0 <= place < len(group) and (function.kind == "lag" or group[place][0] - time <= wait):
            return group[place][1][function.columns[0]]
        return row[function.columns[1]] if len(function.columns) > 1 else None
    if function.unit == "rows":
        reach = own if function.preceding is None else function.preceding
        frame = group[max(own - reach, 0) : own + 1]
    else:
        earliest = None if function.preceding is None else time - function.preceding
        frame = [entry for entry in group if entry[0] <= time and (earliest is None or entry[0] >= earliest)]
    return aggregate_rows(Aggregate(function.function, function.columns, ""), [(each, 1) for _, each in frame])


DEFINITION = OverReference
