"""The definition of a grouping: it stores all rows of a group and recomputes its aggregates each time.

Slow and obvious. Arithmetic is exact and rounded once in the end: whole numbers and decimals by nature, doubles as
fractions. Types are not known here, so only a value that no type could hold is an overflow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from watersmeet.operators.core.aggregates import Aggregate, function_of
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.operators.core.operator import END_OF_INPUT, Watermarks
from watersmeet.operators.core.rowwise import aggregate_rows, as_key, event_time, freeze, live_rows
from watersmeet.operators.group.kernel import GroupByOperator

Row = Mapping[str, Any]


@dataclass(frozen=True)
class GroupStep:
    """The output of one batch: rows of the table with their weights, the late rows, and the number of stored groups."""

    rows: list[tuple[Any, ...]]
    late: list[tuple[int, Row]]
    state: tuple[int]
    watermarks: dict[str, int] = field(default_factory=dict[str, int])


@dataclass
class _Group:
    keys: tuple[Any, ...]
    end: int | None
    rows: list[tuple[Row, int]] = field(default_factory=list[tuple[Row, int]])

    @property
    def size(self) -> int:
        return sum(weight for _, weight in self.rows)


@dataclass
class GroupReference:
    """A grouping in progress.

    >>> grouping = GroupReference(GroupByOperator(("k",), (Aggregate("max", ("v",), "most"),)))
    >>> grouping.step({0: [{"k": 1, "v": 3}, {"k": 1, "v": 2}]}, {}).rows
    [(1, 3, 1)]
    >>> grouping.step({0: [{"k": 1, "v": 9}]}, {}).rows
    [(1, 3, -1), (1, 9, 1)]
    """

    grouping: GroupByOperator
    _groups: dict[Any, _Group] = field(default_factory=dict[Any, _Group], init=False)
    _open_rows: list[Row] = field(default_factory=list[Row], init=False)
    _watermark: int | None = field(default=None, init=False)
    _final_watermarks: dict[str, int] = field(default_factory=dict[str, int], init=False)

    def step(self, arrivals: Mapping[int, Iterable[Row]], watermarks: Watermarks) -> GroupStep:
        """Process one batch: the rows that arrived, and their watermarks."""
        before = self._visible_rows()
        if not self.grouping.keys:
            self._groups.setdefault(freeze(()), _Group((), None))
        late: list[tuple[int, Row]] = []
        for row in self._sort_by_position(arrivals.get(0, ())):
            ended_by = self.grouping.window_end or self.grouping.final_key
            end = None if ended_by is None else event_time(row[ended_by])
            end = None if end is None else end + self.grouping.before_end
            if self._has_passed(end):
                late.append((0, row))
                continue
            keys = tuple(as_key(row[name]) for name in self.grouping.keys)
            group = self._groups.setdefault(freeze(keys), _Group(keys, end))
            group.rows.append((row, row[WEIGHT] if self.grouping.changes else 1))
            self._open_rows.append(row)
        if self.grouping.session is not None:
            self._groups = self._merge_sessions(self.grouping.session)
        if self.grouping.keys:
            self._groups = {key: group for key, group in self._groups.items() if group.size}
        after = self._visible_rows()
        changed = {key for key in {*before, *after} if _fingerprint(before.get(key)) != _fingerprint(after.get(key))}
        rows = [(*before[key], -1) for key in before if key in changed]
        rows += [(*after[key], 1) for key in after if key in changed]
        self._advance_watermark(watermarks)
        if self.grouping.emit == "final":
            rows = [row for key, row in after.items() if key not in self._groups]
        return GroupStep(rows, late, (len(self._groups),), self._advance_final_watermarks(watermarks))

    def _advance_final_watermarks(self, watermarks: Watermarks) -> dict[str, int]:
        """Advance the watermarks of final keys: behind the end of windows, or as received."""
        for name, behind in self.grouping.finality_outputs:
            source_watermark = watermarks.get(name) if self.grouping.time is None else self._watermark
            # A group of a stream that has not closed ends after the watermark, not at it.
            behind -= self.grouping.emit == "final"
            if source_watermark is not None:
                watermark = (
                    source_watermark if source_watermark == END_OF_INPUT else max(-(2**63), source_watermark - behind)
                )
                self._final_watermarks[name] = max(watermark, self._final_watermarks.get(name, watermark))
        return dict(self._final_watermarks)

    def _sort_by_position(self, rows: Iterable[Row]) -> list[Row]:
        position = self.grouping.position
        return list(rows) if position is None else sorted(rows, key=lambda row: row[position])

    def _advance_watermark(self, watermarks: Watermarks) -> None:
        """Advance the watermark, and drop the groups whose windows have closed."""
        name = self.grouping.end_watermark
        if name is not None and name in watermarks:
            self._watermark = watermarks[name] if self._watermark is None else max(self._watermark, watermarks[name])
        self._groups = {key: group for key, group in self._groups.items() if not self._has_passed(group.end)}
        remaining = {id(row) for group in self._groups.values() for row, _ in group.rows}
        self._open_rows = [row for row in self._open_rows if id(row) in remaining]

    def _merge_sessions(self, name: str) -> dict[Any, _Group]:
        """The sessions of all rows whose sessions have not ended: windows that touch are one."""
        sessions: list[tuple[list[Any], list[Row]]] = []
        last = dict[Any, tuple[list[Any], list[Row]]]()
        for row in sorted(self._open_rows, key=lambda row: event_time(next(iter(row[name].values()))) or 0):
            others = freeze([as_key(row[key]) for key in self.grouping.keys if key != name])
            start, end = row[name].values()
            if others in last and start <= last[others][0][1]:
                bounds, rows = last[others]
                bounds[1] = max(bounds[1], end)
                rows.append(row)
            else:
                last[others] = ([start, end], [row])
                sessions.append(last[others])
        places = {id(row): place for place, row in enumerate(self._open_rows)}
        groups = dict[Any, _Group]()
        for bounds, rows in sessions:
            session = dict(zip(rows[0][name], bounds, strict=True))
            keys = tuple(session if key == name else as_key(rows[0][key]) for key in self.grouping.keys)
            in_order = sorted(rows, key=lambda row: places[id(row)])
            groups[freeze(keys)] = _Group(keys, event_time(bounds[1]), [(row, 1) for row in in_order])
        return groups

    def _has_passed(self, end: int | None) -> bool:
        if self._watermark is None or end is None:
            # A group without an end stays open up to the end of input.
            return self._watermark == END_OF_INPUT and self.grouping.emit == "final"
        return end <= self._watermark

    def _visible_rows(self) -> dict[Any, tuple[Any, ...]]:
        """The rows that the table shows of the stored groups."""
        visible = {key: group for key, group in self._groups.items() if group.size > 0 or not self.grouping.keys}
        return {
            key: (
                *group.keys,
                *(aggregate_rows(part, self._rows_seen_by(part, group)) for part in self.grouping.aggregates),
            )
            for key, group in visible.items()
        }

    def _rows_seen_by(self, part: Aggregate, group: _Group) -> list[tuple[Row, int]]:
        """The rows of a group as an aggregate sees them.

        One that cannot take a row back by itself sees those that are left: equal rows together, where the last arrived.
        """
        if not self.grouping.changes or function_of(part.function).retractable:
            return group.rows
        columns = [*self.grouping.keys, *(name for each in self.grouping.all_rows_aggregates for name in each.inputs)]
        return live_rows(group.rows, columns)


def _fingerprint(row: tuple[Any, ...] | None) -> str:
    """The text of a row: in nested values -0.0 is not 0.0."""
    return repr(freeze(row))


DEFINITION = GroupReference
