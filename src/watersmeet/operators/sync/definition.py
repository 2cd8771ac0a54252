"""The sync join one row at a time, slow and obvious: the oracle of its tests. Its definition is in `kernel`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from watersmeet.operators.core.operator import StateOverflowError, Watermarks
from watersmeet.operators.core.rowwise import ReferenceStep, RemovedRow, Row, WatermarkTracker, event_time, is_below
from watersmeet.operators.sync.kernel import DisorderError, SyncJoinOperator


@dataclass
class SyncReference:
    """A sync join in progress.

    >>> from watersmeet.operators.core.operator import Port
    >>> join = SyncReference(SyncJoinOperator((Port(("a",), ("a",)), Port(("b",), ("b",)))))
    >>> join.step({0: [{"a": 1}, {"a": 2}]}, {"a": 2}).state
    (2, 0)
    >>> join.step({1: [{"b": 2}]}, {"b": 2}).rows
    [(2, 2)]
    """

    join: SyncJoinOperator
    _waiting: list[dict[int, Row]] = field(default_factory=list[dict[int, Row]], init=False)
    _seen: list[set[int]] = field(default_factory=list[set[int]], init=False)
    _gone: list[RemovedRow] = field(default_factory=list[RemovedRow], init=False)
    _tracker: WatermarkTracker = field(init=False)

    def __post_init__(self) -> None:
        """Nothing waits on any port."""
        self._waiting = [{} for _ in self.join.ports]
        self._seen = [set() for _ in self.join.ports]
        self._tracker = WatermarkTracker(self.join, list(permutations(self.join.times, 2)), slowest=True)

    def step(self, arrivals: Mapping[int, Iterable[Row]], watermarks: Watermarks) -> ReferenceStep:
        """Process one batch: the rows that arrived per port in the order of delivery, and their watermarks."""
        late: list[tuple[int, Row]] = []
        self._gone = []
        for port in sorted(arrivals):
            late += [(port, row) for row in arrivals[port] if not self._accept(port, row)]
        rows: list[tuple[Any, ...]] = []
        for time in sorted(set(self._waiting[0]).intersection(*self._waiting[1:])):
            matches = [waiting.pop(time) for waiting in self._waiting]
            rows.append(tuple(row[c] for port, row in zip(self.join.ports, matches, strict=True) for c in port.columns))
        self._tracker.merge(watermarks)
        self._prune()
        dropped = self._enforce_limit()
        state = tuple(len(waiting) for waiting in self._waiting)
        received = dict(self._tracker.received)
        return ReferenceStep(rows, late, self._watermarks(), state, dropped, gone=self._gone, received=received)

    @property
    def state_rows(self) -> tuple[list[Row], ...]:
        """The rows that wait, per port."""
        return tuple(list(waiting.values()) for waiting in self._waiting)

    def _accept(self, port: int, row: Row) -> bool:
        """Let a row wait, unless it has no time or is disorder."""
        name = self.join.ports[port].time
        time = event_time(row[name])
        if time is None:
            return False
        if is_below(time, self._tracker.received.get(name)) or time in self._seen[port]:
            if self.join.disorder == "error":
                raise DisorderError(port, name, time)
            return False
        self._seen[port].add(time)
        self._waiting[port][time] = row
        return True

    def _prune(self) -> None:
        """Forget the rows that wait for a port which has passed their time, and the times no row can have again."""
        watermarks = [self._tracker.received.get(name) for name in self.join.times]
        for time in set[int]().union(*self._waiting):
            missing = [port for port, waiting in enumerate(self._waiting) if time not in waiting]
            passed = [port for port in missing if is_below(time, watermarks[port])]
            for port, waiting in enumerate(self._waiting) if passed else ():
                if time in waiting:
                    self._gone.append(RemovedRow(port, waiting.pop(time), "expired", column=self.join.times[passed[0]]))
        for port, watermark in enumerate(watermarks):
            self._seen[port] = {time for time in self._seen[port] if not is_below(time, watermark)}

    def _enforce_limit(self) -> tuple[int, ...]:
        """Enforce the limit: fail, or drop the rows with the earliest times."""
        limit, sizes = self.join.max_rows, [len(waiting) for waiting in self._waiting]
        dropped = [0] * len(sizes)
        if limit is not None and sum(sizes) > limit:
            if self.join.overflow == "fail":
                raise StateOverflowError(tuple(sizes), limit)
            everything = sorted((time, port) for port, waiting in enumerate(self._waiting) for time in waiting)
            for time, port in everything[: sum(sizes) - limit]:
                self._gone.append(RemovedRow(port, self._waiting[port].pop(time), "dropped"))
                dropped[port] += 1
            self._prune()
        return tuple(dropped)

    def _watermarks(self) -> dict[str, int]:
        if any(name not in self._tracker.received for name in self.join.times):
            return {}
        return dict.fromkeys(self.join.times, min(self._tracker.received[name] for name in self.join.times))


DEFINITION = SyncReference
