"""The definition of the lookup join: the table is a list of changes, and each stream row asks all of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from watersmeet.joins.core.changes import OP, POSITION, WEIGHT
from watersmeet.joins.core.operator import LOADED, NOW, Marks
from watersmeet.joins.core.rowwise import Gone, Hearing, Row, Step, compare, fits, freeze, is_dead
from watersmeet.joins.lookup.operator import LookupJoin


@dataclass
class LookupReference:
    """A lookup join in progress.

    >>> from watersmeet.joins.core.port import Port
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
    _heard: Hearing = field(init=False)
    _clock: int | None = field(default=None, init=False)
    _gone: list[Gone] = field(default_factory=list[Gone], init=False)

    def __post_init__(self) -> None:
        self._heard = Hearing(self.join)

    def step(self, arrivals: Mapping[int, Iterable[Row]], marks: Marks) -> Step:
        """One batch: the rows that arrived per port, and the marks that came with them."""
        self._gone = []
        self._hear(marks)
        if self.join.late_table == "ignore":
            self._waiting = []
        for row in _in_order(arrivals.get(self.join.table, ())):
            self._change(row)
        rows = self._show_again()
        pairs = len(rows)
        self._held += _in_order(arrivals.get(self.join.stream_port, ()))
        if not self.join.load_first or self._heard.received.get(LOADED, 0) > 0:
            released, self._held = self._held, []
            for row in released:
                met = self._meet(row)
                rows += met or self._alone(row)
                pairs += len(met)
        dropped = 0 if self.join.waiting is None else max(0, len(self._waiting) - self.join.waiting)
        self._gone += [Gone(self.join.stream_port, row, "dropped") for row, _ in self._waiting[:dropped]]
        self._waiting = self._waiting[dropped:]
        lost = (dropped, 0) if self.join.table else (0, dropped)
        watermarks = self._heard.held_back(self.join.stream_side.times, self._held)
        received = dict(self._heard.received)
        return Step(rows, [], watermarks, self._state(), lost, matched=pairs, gone=self._gone, received=received)

    @property
    def kept(self) -> tuple[list[Row], ...]:
        """The rows of the stream that wait or are held back, and those of the table, per port."""
        stream, table = [*(row for row, _ in self._waiting), *self._held], [row for row, _ in self._stored()]
        return (stream, table) if self.join.table else (table, stream)

    def _state(self) -> tuple[int, int]:
        kept, stored = len(self._waiting) + len(self._held), len(self._stored())
        return (kept, stored) if self.join.table else (stored, kept)

    def _stored(self) -> list[tuple[Row, int]]:
        """The rows of the table, equal ones once, with how often each is there."""
        found: dict[str, tuple[Row, int]] = {}
        for row, weight in self._table:
            look = repr(freeze(dict(row) | {WEIGHT: 0, POSITION: 0}))
            found[look] = (row, found.get(look, (row, 0))[1] + weight)
        return [(row, weight) for row, weight in found.values() if weight]

    def _hear(self, marks: Marks) -> None:
        """Fold the marks in, and forget the rows that have waited for too long."""
        self._heard.hear(marks)
        if NOW in marks:
            self._clock = marks[NOW] if self._clock is None else max(marks[NOW], self._clock)
        if self._clock is None:
            return
        now, retention = self._clock, self.join.retention
        arrived = [(row, now if clock is None else clock) for row, clock in self._waiting]
        self._waiting = [(row, clock) for row, clock in arrived if retention is None or now - clock <= retention]
        for row, clock in arrived:
            if retention is not None and now - clock > retention:
                self._gone.append(Gone(self.join.stream_port, row, "evicted"))

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
        mine, theirs = self.join.stream_side, self.join.sides[self.join.table]
        stored = (*theirs.columns, *theirs.keys, *theirs.operands)
        found: dict[str, tuple[Row, int]] = {}
        for other, weight in self._table:
            if fits((mine, theirs), self.join.condition, row, other):
                look = repr(freeze([other[name] for name in stored]))
                found[look] = (other, weight + found.get(look, (other, 0))[1])
        return [self._shown(row, other) for other, weight in found.values() for _ in range(weight)]

    def _alone(self, row: Row) -> list[tuple[Any, ...]]:
        """What becomes of a stream row that meets nothing: if the stream is preserved, it is padded, and may wait."""
        if self.join.kind == "inner":
            return []
        if self.join.late_table == "reemit" and not is_dead(self.join.stream_side, row):
            self._waiting.append((row, self._clock))
        return [self._shown(row, {})]

    def _shown(self, row: Row, other: Row) -> tuple[Any, ...]:
        both = {**row, **other}
        return tuple(both.get(name) for name in (*self.join.left.columns, *self.join.right.columns))


def _in_order(rows: Iterable[Row]) -> list[Row]:
    """Rows in the order of delivery."""
    return sorted(rows, key=lambda row: row.get(POSITION, 0))


def _are_equal(one: Row, other: Row, columns: Iterable[str]) -> bool:
    return all(compare(one[name], other[name]) == 0 for name in columns)


DEFINITION = LookupReference
