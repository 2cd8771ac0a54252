"""The definition of the lookup join: the table is a list of changes, and each stream row asks all of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from watersmeet.joins.core.changes import OP, POSITION, WEIGHT
from watersmeet.joins.core.operator import END_OF_INPUT, LOADED, NOW, Marks
from watersmeet.joins.core.port import Port
from watersmeet.joins.core.rowwise import compare, evaluate, event_time, freeze
from watersmeet.joins.lookup.operator import LookupJoin

Row = Mapping[str, Any]


@dataclass(frozen=True)
class LookupStep:
    """What one batch gives.

    - ``rows``: the columns of the left side, then of the right; None where padded. ``matched`` of them are pairs
    - ``state``: per port, how many stream rows wait or are held back, and how many rows the table has
    - ``dropped``: how many stream rows were forgotten because too many wait
    - ``watermarks``: those of the result; no row is ``late``
    """

    rows: list[tuple[Any, ...]]
    matched: int
    state: tuple[int, int]
    dropped: int
    watermarks: dict[str, int]
    late: list[tuple[int, Row]] = field(default_factory=list[tuple[int, Row]])


@dataclass
class LookupReference:
    """A lookup join in progress.

    >>> left, right = (Port((f"{s}.k", f"{s}.v"), (), (f"{s}.k",), f"{s}.k", exact=True) for s in "lr")
    >>> join = LookupReference(LookupJoin("left", left, right))
    >>> join.step({0: [{"l.k": 1, "l.v": "a"}]}, {}).rows
    [(1, 'a', None, None)]
    >>> join.step({1: [{"r.k": 1, "r.v": "b", "#weight": 1}]}, {}).rows
    [(1, 'a', 1, 'b')]
    """

    join: LookupJoin
    _table: list[tuple[Row, int]] = field(default_factory=list[tuple[Row, int]], init=False)
    _waiting: list[tuple[Row, int | None]] = field(default_factory=list[tuple[Row, int | None]], init=False)
    _held: list[Row] = field(default_factory=list[Row], init=False)
    _received: dict[str, int] = field(default_factory=dict[str, int], init=False)
    _emitted: dict[str, int] = field(default_factory=dict[str, int], init=False)
    _clock: int | None = field(default=None, init=False)

    def step(self, arrivals: Mapping[int, Iterable[Row]], marks: Marks) -> LookupStep:
        """One batch: the rows that arrived per port, and the marks that came with them."""
        self._hear(marks)
        for row in _in_order(arrivals.get(self.join.table, ())):
            self._change(row)
        rows = self._show_again()
        pairs = len(rows)
        self._held += _in_order(arrivals.get(self.join.stream_port, ()))
        if not self.join.load_first or self._received.get(LOADED, 0) > 0:
            released, self._held = self._held, []
            for row in released:
                met = self._meet(row)
                rows += met or self._alone(row)
                pairs += len(met)
        dropped = 0 if self.join.waiting is None else max(0, len(self._waiting) - self.join.waiting)
        self._waiting = self._waiting[dropped:]
        return LookupStep(rows, pairs, self._state(), dropped, self._watermarks())

    def _state(self) -> tuple[int, int]:
        weights: dict[str, int] = {}
        for row, weight in self._table:
            look = repr(freeze(dict(row) | {WEIGHT: 0, POSITION: 0}))
            weights[look] = weights.get(look, 0) + weight
        kept, stored = len(self._waiting) + len(self._held), sum(1 for weight in weights.values() if weight)
        return (kept, stored) if self.join.table else (stored, kept)

    def _hear(self, marks: Marks) -> None:
        """Fold the marks in, and forget the rows that have waited for too long."""
        for name, mark in marks.items():
            if name == NOW:
                self._clock = mark if self._clock is None else max(mark, self._clock)
            else:
                self._received[name] = max(mark, self._received.get(name, mark))
        for column, parts in self.join.unions:
            if all(part in self._received for part in parts):
                slowest = min(self._received[part] for part in parts)
                self._received[column] = max(slowest, self._received.get(column, slowest))
        if self._clock is None:
            return
        now = self._clock
        arrived = [(row, now if clock is None else clock) for row, clock in self._waiting]
        retention = self.join.retention
        self._waiting = [(row, clock) for row, clock in arrived if retention is None or now - clock <= retention]

    def _change(self, row: Row) -> None:
        """Apply a change of the table."""
        key = self.join.sides[self.join.table].upsert_key
        if not key:
            self._table.append((row, row[WEIGHT]))
            return
        self._table = [(old, n) for old, n in self._table if not _are_equal(old, row, key)]
        if row[OP] > 0:
            self._table.append((row, 1))

    def _show_again(self) -> list[tuple[Any, ...]]:
        """The rows that waited and meet something now."""
        rows: list[tuple[Any, ...]] = []
        still: list[tuple[Row, int | None]] = []
        for row, clock in self._waiting:
            met = self._meet(row)
            rows += met
            still += [] if met else [(row, clock)]
        self._waiting = still
        return rows

    def _meet(self, row: Row) -> list[tuple[Any, ...]]:
        """The stream row beside each table row that it meets, as often as the table has that."""
        mine, theirs = self.join.sides[self.join.stream_port], self.join.sides[self.join.table]
        if not _may_match(mine, row):
            return []
        stored = (*theirs.columns, *theirs.keys, *theirs.operands)
        found: dict[str, tuple[Row, int]] = {}
        for other, weight in self._table:
            if _may_match(theirs, other) and self._fits(row, other):
                look = repr(freeze([other[name] for name in stored]))
                found[look] = (other, weight + found.get(look, (other, 0))[1])
        return [self._shown(row, other) for other, weight in found.values() for _ in range(weight)]

    def _fits(self, row: Row, other: Row) -> bool:
        mine, theirs = self.join.sides[self.join.stream_port], self.join.sides[self.join.table]
        if any(compare(row[a], other[b]) != 0 for a, b in zip(mine.keys, theirs.keys, strict=True)):
            return False
        return self.join.condition is None or evaluate(self.join.condition, {**row, **other}) is True

    def _alone(self, row: Row) -> list[tuple[Any, ...]]:
        """What becomes of a stream row that meets nothing: if the stream is preserved, it is padded, and may wait."""
        if self.join.kind == "inner":
            return []
        if self.join.late_table == "reemit" and _may_match(self.join.sides[self.join.stream_port], row):
            self._waiting.append((row, self._clock))
        return [self._shown(row, {})]

    def _shown(self, row: Row, other: Row) -> tuple[Any, ...]:
        both = {**row, **other}
        return tuple(both.get(name) for name in (*self.join.left.columns, *self.join.right.columns))

    def _watermarks(self) -> dict[str, int]:
        """The marks of the stream, held back by rows that are held back."""
        for name in self.join.sides[self.join.stream_port].times:
            if name in self._received:
                times = [event_time(row[name]) for row in self._held]
                holds = [END_OF_INPUT - 1 if time is None else min(time, END_OF_INPUT - 1) for time in times]
                mark = min([self._received[name], *holds])
                self._emitted[name] = max(mark, self._emitted.get(name, mark))
        return dict(self._emitted)


def _in_order(rows: Iterable[Row]) -> list[Row]:
    """Rows in the order of delivery."""
    return sorted(rows, key=lambda row: row.get(POSITION, 0))


def _may_match(side: Port, row: Row) -> bool:
    return all(row[name] is not None for name in side.keys) and (side.dead is None or row[side.dead] is False)


def _are_equal(one: Row, other: Row, columns: Iterable[str]) -> bool:
    return all(compare(one[name], other[name]) == 0 for name in columns)


DEFINITION = LookupReference
