"""The window join one row at a time, slow and obvious: the oracle of its tests. `kernel` has the definition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from watersmeet.operators.core.operator import LEFT, NOW, RIGHT, RUN, StateOverflowError, Watermarks
from watersmeet.operators.core.rowwise import ReferenceStep, RemovedRow, Row, event_time, freeze, is_match
from watersmeet.operators.window.kernel import PartitionLimit, WindowJoinOperator, WindowSpec

MICROS_PER_SECOND = 1_000_000

OutputRow = tuple[Any, ...]


@dataclass(eq=False)
class _StoredRow:
    """A row, its number, when it was inserted, and whether it ever matched."""

    port: int
    row: Row
    number: int
    clock: int | None
    matched: bool = False


@dataclass
class WindowReference:
    """A window join in progress.

    >>> from watersmeet.operators.core.operator import Port
    >>> two = WindowSpec("count", 2)
    >>> join = WindowReference(WindowJoinOperator("left", Port(("l",), order="l"), Port(("r",), order="r"), (two, two)))
    >>> join.step({0: [{"l": 1}, {"l": 3}], 1: [{"r": 2}]}, {}).rows
    [(1, 2), (3, 2)]
    >>> join.step({0: [{"l": 4}, {"l": 5}]}, {}).rows
    [(4, 2), (5, 2)]
    """

    join: WindowJoinOperator
    _windows: tuple[list[_StoredRow], list[_StoredRow]] = field(default_factory=lambda: ([], []), init=False)
    _number: int = field(default=0, init=False)
    _clock: int | None = field(default=None, init=False)
    _run: int | None = field(default=None, init=False)
    _suspended: list[bool] = field(default_factory=lambda: [False, False], init=False)
    _rows: list[OutputRow] = field(default_factory=list[OutputRow], init=False)
    _unmatched: list[tuple[int, OutputRow]] = field(default_factory=list[tuple[int, OutputRow]], init=False)
    _matched: int = field(default=0, init=False)
    _padded: list[int] = field(default_factory=lambda: [0, 0], init=False)
    _dropped: list[int] = field(default_factory=lambda: [0, 0], init=False)
    _removed: list[RemovedRow] = field(default_factory=list[RemovedRow], init=False)

    def step(self, arrivals: Mapping[int, Iterable[Row]], watermarks: Watermarks) -> ReferenceStep:
        """Process one batch: the rows that arrived per port in the order of delivery, and their watermarks."""
        self._rows, self._unmatched, self._matched, self._padded, self._dropped = [], [], 0, [0, 0], [0, 0]
        self._removed, numbers = [], list[tuple[Row, int, int | None]]()
        self._advance_clock(watermarks)
        self._trigger(None, None, [], [*self._evict_by_time(), *self._evict_narrowed()])
        inserted = [False, False]
        for port, row in self._sort_arrivals(arrivals):
            self._arrive(_StoredRow(port, row, self._number, self._clock))
            numbers.append((row, self._number, self._clock))
            self._number += 1
            inserted[port] = True
        self._suspended = [now and not new for now, new in zip(self._suspended, inserted, strict=True)]
        self._enforce_limit()
        state = (len(self._windows[LEFT]), len(self._windows[RIGHT]))
        partitions = (len(self._partitions(LEFT)), len(self._partitions(RIGHT)))
        padded, dropped = (self._padded[LEFT], self._padded[RIGHT]), (self._dropped[LEFT], self._dropped[RIGHT])
        return ReferenceStep(
            self._rows, [], {}, state, dropped, self._unmatched, self._matched, padded, partitions,
            gone=self._removed, numbers=numbers,
        )  # fmt: skip

    @property
    def state_rows(self) -> tuple[list[Row], ...]:
        """The rows in the windows, per port."""
        return tuple([stored.row for stored in window] for window in self._windows)

    def _advance_clock(self, watermarks: Watermarks) -> None:
        if NOW in watermarks:
            if self._clock is None:
                for stored in (*self._windows[LEFT], *self._windows[RIGHT]):
                    stored.clock = watermarks[NOW]
            self._clock = watermarks[NOW] if self._clock is None else max(self._clock, watermarks[NOW])
        if RUN in watermarks:
            if self._run not in (None, watermarks[RUN]):
                self._suspended = [True, True]
            self._run = watermarks[RUN]

    def _evict_narrowed(self) -> list[_StoredRow]:
        """Evict rows beyond the windows: none, unless windows have become smaller since the last batch."""
        removed: list[_StoredRow] = []
        for port in (LEFT, RIGHT):
            spec = self.join.windows[port]
            for rows in self._partitions(port).values():
                evicted = rows[: max(len(rows) - spec.size, 0)] if spec.kind == "count" else []
                if spec.column is not None:
                    values = [cast("int", event_time(stored.row[spec.column])) for stored in rows]
                    far = [any(later - v > spec.size for later in values[n + 1 :]) for n, v in enumerate(values)]
                    evicted = [stored for stored, is_far in zip(rows, far, strict=True) if is_far]
                for stored in evicted:
                    self._windows[port].remove(stored)
                    self._removed.append(RemovedRow(port, stored.row, "evicted"))
                removed += evicted
            removed += self._discard_oldest(port)
        return removed

    def _evict_by_time(self) -> list[_StoredRow]:
        removed: list[_StoredRow] = []
        for port in (LEFT, RIGHT):
            spec = self.join.windows[port]
            if spec.kind != "time" or self._clock is None or self._suspended[port]:
                continue
            for stored in list(self._windows[port]):
                assert stored.clock is not None
                if self._clock - stored.clock > spec.size:
                    self._windows[port].remove(stored)
                    self._removed.append(RemovedRow(port, stored.row, "evicted"))
                    removed.append(stored)
        return removed

    def _sort_arrivals(self, arrivals: Mapping[int, Iterable[Row]]) -> list[tuple[int, Row]]:
        parts: list[list[tuple[int, Row]]] = []
        for port in (LEFT, RIGHT):
            order = self.join.ports[port].order
            rows = [(port, row) for row in arrivals.get(port, ())]
            parts.append(rows if order is None else sorted(rows, key=lambda item, c=order: _position(item[1][c])))
        left, right = self.join.left.order, self.join.right.order
        if left is None or right is None or not self.join.interleaved:
            return parts[LEFT] + parts[RIGHT]
        # Python's sort is stable: of equal values the left rows stay first.
        return sorted(parts[LEFT] + parts[RIGHT], key=lambda item: _position(item[1][right if item[0] else left]))

    def _arrive(self, new: _StoredRow) -> None:
        matches = [other for other in self._windows[1 - new.port] if self._is_match(new, other)]
        for other in matches:
            other.matched = new.matched = True
        self._matched += len(matches)
        pairs = [(new, other) if new.port == LEFT else (other, new) for other in matches]
        side = self.join.ports[new.port]
        trigger = None if side.order is None else event_time(new.row[side.order])
        self._trigger(new.port, trigger, pairs, self._insert(new))

    def _is_match(self, new: _StoredRow, other: _StoredRow) -> bool:
        left, right = (new.row, other.row) if new.port == LEFT else (other.row, new.row)
        return is_match(self.join.ports, self.join.condition, left, right)

    def _insert(self, new: _StoredRow) -> list[_StoredRow]:
        """Insert a row; returns the rows that leave and may be emitted."""
        spec, window = self.join.windows[new.port], self._windows[new.port]
        if not spec.has_state or (spec.column is not None and new.row[spec.column] is None):
            self._removed.append(RemovedRow(new.port, new.row, "evicted", new.row))
            return [new]
        removed = self._discard_aged(new.port, spec.limit)
        mine = [other for other in window if _partition(spec, other.row) == _partition(spec, new.row)]
        evicted = mine[:1] if spec.kind == "count" and len(mine) == spec.size else []
        if spec.column is not None:
            value = cast("int", event_time(new.row[spec.column]))
            evicted = [old for old in mine if value - cast("int", event_time(old.row[spec.column])) > spec.size]
        for old in evicted:
            window.remove(old)
            self._removed.append(RemovedRow(new.port, old.row, "evicted", new.row))
        window.append(new)
        return removed + evicted + self._discard_oldest(new.port)

    def _discard_aged(self, port: int, limit: PartitionLimit | None) -> list[_StoredRow]:
        removed: list[_StoredRow] = []
        if limit is None or limit.kind != "age" or self._clock is None:
            return removed
        for rows in self._partitions(port).values():
            last = rows[-1].clock
            assert last is not None
            if last // MICROS_PER_SECOND + limit.size // MICROS_PER_SECOND < self._clock // MICROS_PER_SECOND:
                removed += self._discard(port, rows)
        return removed

    def _discard_oldest(self, port: int) -> list[_StoredRow]:
        limit, removed = self.join.windows[port].limit, list[_StoredRow]()
        while limit is not None and limit.kind != "age":
            partitions = self._partitions(port)
            size = len(partitions) if limit.kind == "count" else len(self._windows[port])
            if size <= limit.size:
                break
            removed += self._discard(port, min(partitions.values(), key=lambda rows: rows[-1].number))
        return removed

    def _discard(self, port: int, rows: list[_StoredRow]) -> list[_StoredRow]:
        self._dropped[port] += len(rows)
        for row in rows:
            self._windows[port].remove(row)
            self._removed.append(RemovedRow(port, row.row, "discarded"))
        return rows if self.join.emit_discarded else []

    def _partitions(self, port: int) -> dict[OutputRow, list[_StoredRow]]:
        """The rows of each partition, oldest first."""
        partitions: dict[OutputRow, list[_StoredRow]] = {}
        for stored in self._windows[port]:
            partitions.setdefault(_partition(self.join.windows[port], stored.row), []).append(stored)
        return partitions

    def _enforce_limit(self) -> None:
        limit, stored_rows = self.join.max_rows, [*self._windows[LEFT], *self._windows[RIGHT]]
        if limit is None or len(stored_rows) <= limit:
            return
        if self.join.overflow == "fail":
            raise StateOverflowError((len(self._windows[LEFT]), len(self._windows[RIGHT])), limit)
        oldest = sorted(stored_rows, key=lambda stored: stored.number)[: len(stored_rows) - limit]
        for stored in oldest:
            self._dropped[stored.port] += 1
            self._windows[stored.port].remove(stored)
            self._removed.append(RemovedRow(stored.port, stored.row, "dropped"))
        self._trigger(None, None, [], oldest)

    def _trigger(
        self, port: int | None, order: int | None, pairs: list[tuple[_StoredRow, _StoredRow]], removed: list[_StoredRow]
    ) -> None:
        """Emit the output of one trigger: its matches, then the evicted unmatched rows, oldest first."""
        rows = [(one.row, other.row, -1) for one, other in pairs]
        for stored in sorted(removed, key=lambda stored: stored.number):
            if stored.matched or not self.join.is_preserved[stored.port]:
                continue
            self._padded[stored.port] += 1
            unmatched = self.join.ports[stored.port].unmatched
            if unmatched:
                self._unmatched.append((stored.port, tuple(stored.row[c] for c in unmatched)))
            elif stored.port == LEFT:
                rows.append((stored.row, {}, RIGHT))
            else:
                rows.append(({}, stored.row, LEFT))
        for seq, (left, right, missing) in enumerate(rows):
            values = (*(left.get(c) for c in self.join.left.columns), *(right.get(c) for c in self.join.right.columns))
            padded = () if self.join.padded_column is None else (missing,)
            punctuation = (port, order, seq, seq == len(rows) - 1) if self.join.punctuated else ()
            self._rows.append((*values, *padded, *punctuation))


def _position(order: Any) -> tuple[bool, int]:
    return (order is None, event_time(order) or 0)


def _partition(spec: WindowSpec, row: Row) -> OutputRow:
    return tuple(freeze(row[c]) for c in spec.partition)


DEFINITION = WindowReference
