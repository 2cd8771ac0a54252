"""The sync join one row at a time, slow and obvious: the oracle of its tests. What it means is told in `operator`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from watersmeet.joins.core.operator import Marks, StateOverflowError
from watersmeet.joins.core.rowwise import Gone, Hearing, Row, Step, event_time, is_below
from watersmeet.joins.sync.operator import DisorderError, SyncJoin


@dataclass
class SyncReference:
    """A sync join in progress.

    >>> from watersmeet.joins.core.port import Port
    >>> join = SyncReference(SyncJoin((Port(("a",), ("a",)), Port(("b",), ("b",)))))
    >>> join.step({0: [{"a": 1}, {"a": 2}]}, {"a": 2}).state
    (2, 0)
    >>> join.step({1: [{"b": 2}]}, {"b": 2}).rows
    [(2, 2)]
    """

    join: SyncJoin
    _waiting: list[dict[int, Row]] = field(default_factory=list[dict[int, Row]], init=False)
    _seen: list[set[int]] = field(default_factory=list[set[int]], init=False)
    _gone: list[Gone] = field(default_factory=list[Gone], init=False)
    _heard: Hearing = field(init=False)

    def __post_init__(self) -> None:
        """Nothing waits on any port."""
        self._waiting = [{} for _ in self.join.ports]
        self._seen = [set() for _ in self.join.ports]
        self._heard = Hearing(self.join, list(permutations(self.join.times, 2)), slowest=True)

    def step(self, arrivals: Mapping[int, Iterable[Row]], marks: Marks) -> Step:
        """One batch: the rows that arrived per port in the order of delivery, and the marks that came with them."""
        late: list[tuple[int, Row]] = []
        self._gone = []
        for port in sorted(arrivals):
            late += [(port, row) for row in arrivals[port] if not self._accepts(port, row)]
        rows: list[tuple[Any, ...]] = []
        for time in sorted(set(self._waiting[0]).intersection(*self._waiting[1:])):
            found = [waiting.pop(time) for waiting in self._waiting]
            rows.append(tuple(row[c] for port, row in zip(self.join.ports, found, strict=True) for c in port.columns))
        self._heard.hear(marks)
        self._prune()
        dropped = self._limit()
        state = tuple(len(waiting) for waiting in self._waiting)
        received = dict(self._heard.received)
        return Step(rows, late, self._watermarks(), state, dropped, gone=self._gone, received=received)

    @property
    def kept(self) -> tuple[list[Row], ...]:
        """The rows that wait, per port."""
        return tuple(list(waiting.values()) for waiting in self._waiting)

    def _accepts(self, port: int, row: Row) -> bool:
        """Let a row wait, unless it has no time or is disorder."""
        name = self.join.ports[port].time
        time = event_time(row[name])
        if time is None:
            return False
        if is_below(time, self._heard.received.get(name)) or time in self._seen[port]:
            if self.join.disorder == "error":
                raise DisorderError(port, name, time)
            return False
        self._seen[port].add(time)
        self._waiting[port][time] = row
        return True

    def _prune(self) -> None:
        """Forget the rows that wait for a port which has passed their time, and the times no row can have again."""
        marks = [self._heard.received.get(name) for name in self.join.times]
        for time in set[int]().union(*self._waiting):
            missing = [port for port, waiting in enumerate(self._waiting) if time not in waiting]
            passed = [port for port in missing if is_below(time, marks[port])]
            for port, waiting in enumerate(self._waiting) if passed else ():
                if time in waiting:
                    self._gone.append(Gone(port, waiting.pop(time), "expired", column=self.join.times[passed[0]]))
        for port, mark in enumerate(marks):
            self._seen[port] = {time for time in self._seen[port] if not is_below(time, mark)}

    def _limit(self) -> tuple[int, ...]:
        """More rows than may be kept: an error, or the rows with the earliest times leave."""
        limit, kept = self.join.max_rows, [len(waiting) for waiting in self._waiting]
        dropped = [0] * len(kept)
        if limit is not None and sum(kept) > limit:
            if self.join.overflow == "fail":
                raise StateOverflowError(tuple(kept), limit)
            everything = sorted((time, port) for port, waiting in enumerate(self._waiting) for time in waiting)
            for time, port in everything[: sum(kept) - limit]:
                self._gone.append(Gone(port, self._waiting[port].pop(time), "dropped"))
                dropped[port] += 1
            self._prune()
        return tuple(dropped)

    def _watermarks(self) -> dict[str, int]:
        if any(name not in self._heard.received for name in self.join.times):
            return {}
        return dict.fromkeys(self.join.times, min(self._heard.received[name] for name in self.join.times))


DEFINITION = SyncReference
