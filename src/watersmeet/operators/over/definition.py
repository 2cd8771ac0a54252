"""The definition of window functions, one row at a time; it forgets nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from itertools import pairwise
from typing import Any

from watersmeet.operators.core.aggregates import Aggregate
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.operators.core.operator import END_OF_INPUT, Watermarks
from watersmeet.operators.core.rowwise import (
    Row,
    aggregate_rows,
    as_key,
    compare_in_order,
    event_time,
    freeze,
    live_rows,
)
from watersmeet.operators.over.frames import OFFSETS, RANKS, FrameFunction
from watersmeet.operators.over.kernel import OverOperator, TableOverOperator


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
        key = _key(self.rows[place][1], self.over.by)
        group = [entry for entry in self.rows if _key(entry[1], self.over.by) == key]
        own = next(n for n, entry in enumerate(group) if entry is self.rows[place])
        time = group[own][0]
        # A row that LEAD cannot show is as if it were not there.
        near = [entry for entry in group if entry[0] - time <= self.over.wait]
        rows, times = [row for _, row in near], [other for other, _ in near]
        values = [_evaluate(function, rows, times, own) for function in self.over.functions]
        return (*(freeze(group[own][1][name]) for name in self.over.columns), *map(freeze, values))


class TableOverReference:
    """Window functions over a table, one row at a time."""

    def __init__(self, over: TableOverOperator) -> None:
        self.over = over
        self.changes: list[tuple[Row, int]] = []
        self.shown: Counter[tuple[Any, ...]] = Counter()

    def step(
        self, arrivals: Mapping[int, Sequence[Row]], watermarks: Watermarks | None = None
    ) -> Counter[tuple[Any, ...]]:
        """Process one batch; returns what changes, each row with a number."""
        arrived = list(arrivals.get(0, ()))
        position = self.over.position
        if position is not None:
            arrived.sort(key=lambda row: row[position])
        self.changes += [(row, row[WEIGHT]) for row in arrived]
        after = self._show_rows()
        changed = Counter(after)
        changed.subtract(self.shown)
        self.shown = after
        return Counter({row: number for row, number in changed.items() if number})

    def _show_rows(self) -> Counter[tuple[Any, ...]]:
        inputs = (name for function in self.over.functions for name in function.columns)
        columns = [*self.over.columns, *inputs, *self.over.by, *(key.column for key in self.over.order)]
        groups = dict[str, list[Row]]()
        for row, weight in live_rows(self.changes, columns):
            groups.setdefault(_key(row, self.over.by), []).extend([row] * weight)
        shown = Counter[tuple[Any, ...]]()
        for group in groups.values():
            rows = sorted(group, key=cmp_to_key(lambda one, other: compare_in_order(one, other, self.over.order)))
            places = [0]
            for one, other in pairwise(rows):
                places.append(places[-1] + (compare_in_order(one, other, self.over.order) != 0))
            for own, row in enumerate(rows):
                values = [_evaluate(function, rows, places, own) for function in self.over.functions]
                shown[*(freeze(row[name]) for name in self.over.columns), *map(freeze, values)] += 1
        return shown


def _key(row: Row, by: Sequence[str]) -> str:
    return repr(freeze([as_key(row[name]) for name in by]))


def _evaluate(function: FrameFunction, rows: Sequence[Row], times: Sequence[int], own: int) -> Any:
    """The value of a function for one row of its group, whose rows are in order; peers have the same of ``times``."""
    if function.kind in OFFSETS:
        return _value_of_other(function, rows, own)
    if function.kind in RANKS:
        earlier = [time for time in times if time < times[own]]
        return {"row_number": own, "rank": len(earlier), "dense_rank": len(set(earlier))}[function.kind] + 1
    low, high = function.preceding, function.following
    at: Callable[[int], int] = (lambda n: n - own) if function.unit == "rows" else (lambda n: times[n] - times[own])
    frame = [row for n, row in enumerate(rows) if (low is None or at(n) >= -low) and (high is None or at(n) <= high)]
    return aggregate_rows(Aggregate(function.function, function.columns, ""), [(row, 1) for row in frame])


def _value_of_other(function: FrameFunction, rows: Sequence[Row], own: int) -> Any:
    """The value of the row that LAG or LEAD shows, or its default."""
    offset, name = function.preceding or 0, function.columns[0]
    if not offset:
        return rows[own][name]
    others = rows[:own][::-1] if function.kind == "lag" else rows[own + 1 :]
    others = [row for row in others if not function.skips_nulls or row[name] is not None]
    if offset <= len(others):
        return others[offset - 1][name]
    return rows[own][function.columns[1]] if len(function.columns) > 1 else None


def DEFINITION(over: OverOperator | TableOverOperator) -> OverReference | TableOverReference:  # noqa: N802 - the name that every family has
    """The definition of window functions over a stream, or over a table."""
    return OverReference(over) if isinstance(over, OverOperator) else TableOverReference(over)
