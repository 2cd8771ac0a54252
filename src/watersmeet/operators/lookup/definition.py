"""The definition of the lookup join: the table is a list of changes, and each stream row is compared with all of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from watersmeet.operators.core.changes import OP, POSITION, WEIGHT
from watersmeet.operators.core.operator import LOADED, NOW, Watermarks
from watersmeet.operators.core.rowwise import (
    ReferenceStep,
    RemovedRow,
    Row,
    WatermarkTracker,
    compare,
    freeze,
    is_dead,
    is_match,
)
from watersmeet.operators.lookup.kernel import LookupJoinOperator


@dataclass
class LookupReference:
    """A lookup join in progress.

    >>> from watersmeet.operators.core.operator import Port
    >>> left, right = (Port((f"{s}.k", f"{s}.v"), (), (f"{s}.k",), f"{s}.k", exact=True) for s in "lr")
    >>> join = LookupReference(LookupJoinOperator("left", left, right))
    >>> join.step({0: [{"l.k": 1, "l.v": "a"}]}, {}).rows
    [(1, 'a', None, None)]
    >>> join.step({1: [{"r.k": 1, "r.v": "b", "#weight": 1}]}, {}).rows
    [(1, 'a', 1, 'b')]
    """

    join: LookupJoinOperator
    _table: list[tuple[Row, int]] = field(default_factory=list[tuple[Row, int]], init=False)
    _waiting: list[tuple[Row, int | None]] = field(default_factory=list[tuple[Row, int | None]], init=False)
    _held: list[Row] = field(default_factory=list[Row], init=False)
    _tracker: WatermarkTracker = field(init=False)
    _clock: int | None = field(default=None, init=False)
    _removed: list[RemovedRow] = field(default_factory=list[RemovedRow], init=False)
    _pairs: list[tuple[Row, ...]] = field(default_factory=list[tuple[Row, ...]], init=False)

    def __post_init__(self) -> None:
        self._tracker = WatermarkTracker(self.join)

    def step(self, arrivals: Mapping[int, Iterable[Row]], watermarks: Watermarks) -> ReferenceStep:
        """Process one batch: the rows that arrived per port, and their watermarks."""
        self._removed = []
        self._advance_watermarks(watermarks)
        if self.join.late_table == "ignore":
            self._waiting = []
        for row in _sort_by_position(arrivals.get(self.join.table, ())):
            self._apply_change(row)
        self._pairs = []
        rows = self._reemit_matches()
        pairs = len(rows)
        self._held += _sort_by_position(arrivals.get(self.join.stream_port, ()))
        if not self.join.load_first or self._tracker.received.get(LOADED, 0) > 0:
            released, self._held = self._held, []
            for row in released:
                matches = self._find_matches(row)
                rows += self._results(row, matches) if matches else self._pad(row)
                pairs += len(matches)
        dropped = 0 if self.join.waiting is None else max(0, len(self._waiting) - self.join.waiting)
        self._removed += [RemovedRow(self.join.stream_port, row, "dropped") for row, _ in self._waiting[:dropped]]
        self._waiting = self._waiting[dropped:]
        dropped_rows = (dropped, 0) if self.join.table else (0, dropped)
        emitted = self._tracker.hold_back_watermarks(self.join.stream_side.times, self._held)
        received = dict(self._tracker.received)
        return ReferenceStep(
            rows, [], emitted, self._state(), dropped_rows, matched=pairs, gone=self._removed, received=received,
            pairs=[*self._pairs],
        )  # fmt: skip

    @property
    def state_rows(self) -> tuple[list[Row], ...]:
        """The rows of the stream that wait or are held back, and those of the table, per port."""
        stream, table = [*(row for row, _ in self._waiting), *self._held], [row for row, _ in self._table_rows()]
        return (stream, table) if self.join.table else (table, stream)

    def _state(self) -> tuple[int, int]:
        streamed, stored = len(self._waiting) + len(self._held), len(self._table_rows())
        return (streamed, stored) if self.join.table else (stored, streamed)

    def _table_rows(self) -> list[tuple[Row, int]]:
        """The rows of the table, equal ones once, each with its count."""
        counted: dict[str, tuple[Row, int]] = {}
        for row, weight in self._table:
            key = repr(freeze(dict(row) | {WEIGHT: 0, POSITION: 0}))
            counted[key] = (row, counted.get(key, (row, 0))[1] + weight)
        return [(row, weight) for row, weight in counted.values() if weight]

    def _advance_watermarks(self, watermarks: Watermarks) -> None:
        """Advance the watermarks, and drop the rows that have waited for too long."""
        self._tracker.merge(watermarks)
        if NOW in watermarks:
            self._clock = watermarks[NOW] if self._clock is None else max(watermarks[NOW], self._clock)
        if self._clock is None:
            return
        now, retention = self._clock, self.join.retention
        arrived = [(row, now if clock is None else clock) for row, clock in self._waiting]
        self._waiting = [(row, clock) for row, clock in arrived if retention is None or now - clock <= retention]
        for row, clock in arrived:
            if retention is not None and now - clock > retention:
                self._removed.append(RemovedRow(self.join.stream_port, row, "evicted"))

    def _apply_change(self, row: Row) -> None:
        """Apply a change of the table."""
        key = self.join.ports[self.join.table].upsert_key
        if not key:
            self._table.append((row, row[WEIGHT]))
            return
        self._table = [(old, n) for old, n in self._table if not _are_equal(old, row, key)]
        if row[OP] > 0:
            self._table.append((row, 1))

    def _reemit_matches(self) -> list[tuple[Any, ...]]:
        """The waiting rows that match now."""
        rows: list[tuple[Any, ...]] = []
        waiting: list[tuple[Row, int | None]] = []
        for row, clock in self._waiting:
            matches = self._find_matches(row)
            rows += self._results(row, matches)
            waiting += [] if matches else [(row, clock)]
        self._waiting = waiting
        return rows

    def _results(self, row: Row, matches: list[Row]) -> list[tuple[Any, ...]]:
        """A stream row with each of its matches; of SEMI the row once, of ANTI nothing."""
        self._pairs += [(row, other) for other in matches]
        shown = {"semi": matches[:1], "anti": []}.get(self.join.kind, matches)
        return [self._result_row(row, other) for other in shown]

    def _find_matches(self, row: Row) -> list[Row]:
        """The table rows that match a stream row, repeated by their weights."""
        mine, theirs = self.join.stream_side, self.join.ports[self.join.table]
        stored = (*theirs.columns, *theirs.keys, *theirs.operands)
        counted: dict[str, tuple[Row, int]] = {}
        for other, weight in self._table:
            if is_match((mine, theirs), self.join.condition, row, other):
                key = repr(freeze([other[name] for name in stored]))
                counted[key] = (other, weight + counted.get(key, (other, 0))[1])
        return [other for other, weight in counted.values() for _ in range(weight)]

    def _pad(self, row: Row) -> list[tuple[Any, ...]]:
        """An unmatched stream row: if the stream is preserved, it is padded, and may wait; ANTI shows it."""
        if self.join.kind in ("inner", "semi"):
            return []
        if self.join.can_reemit and not is_dead(self.join.stream_side, row):
            self._waiting.append((row, self._clock))
        return [self._result_row(row, {})]

    def _result_row(self, row: Row, other: Row) -> tuple[Any, ...]:
        both = {**row, **other}
        return tuple(both.get(name) for name in (*self.join.left.columns, *self.join.right.columns))


def _sort_by_position(rows: Iterable[Row]) -> list[Row]:
    """Rows in the order of delivery."""
    return sorted(rows, key=lambda row: row.get(POSITION, 0))


def _are_equal(left: Row, right: Row, columns: Iterable[str]) -> bool:
    return all(compare(left[name], right[name]) == 0 for name in columns)


DEFINITION = LookupReference
