"""The as-of join one row at a time, slow and obvious: the oracle of its tests. Its definition is in `kernel`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from watersmeet.operators.asof.kernel import AsofJoinOperator
from watersmeet.operators.core.changes import OP
from watersmeet.operators.core.operator import END_OF_INPUT, LEFT, RIGHT, Port, StateOverflowError, Watermarks
from watersmeet.operators.core.rowwise import (
    ReferenceStep,
    RemovedRow,
    Row,
    WatermarkTracker,
    compare,
    event_time,
    is_dead,
)


@dataclass
class AsofReference:
    """An as-of join in progress.

    >>> join = AsofReference(AsofJoinOperator("left", Port(("q",), ("q",)), Port(("t",), ("t",))))
    >>> join.step({0: [{"q": 1}, {"q": 7}], 1: [{"t": 5}]}, {"t": 5}).rows
    [(1, None)]
    >>> join.step({}, {"t": 8}).rows
    [(7, 5)]
    """

    join: AsofJoinOperator
    _questions: list[Row] = field(default_factory=list[Row], init=False)
    _versions: list[Row] = field(default_factory=list[Row], init=False)
    _gone: list[RemovedRow] = field(default_factory=list[RemovedRow], init=False)
    _tracker: WatermarkTracker = field(init=False)

    def __post_init__(self) -> None:
        """Each side waits for the other."""
        left, right = self.join.left.time, self.join.right.time
        self._tracker = WatermarkTracker(self.join, [(left, right), (right, left)])

    def step(self, arrivals: Mapping[int, Iterable[Row]], watermarks: Watermarks) -> ReferenceStep:
        """Process one batch: the rows that arrived per port in the order of delivery, and their watermarks."""
        rows: list[tuple[Any, ...]] = []
        self._gone = []
        came = [(p, side, row) for p, side in enumerate(self.join.ports) for row in arrivals.get(p, ())]
        late = [(p, row) for p, side, row in came if self._tracker.is_late(side, row)]
        timely = [
            [row for p, side, row in came if p == port and not self._tracker.is_late(side, row)] for port in (0, 1)
        ]
        dropped = [0, self._add_versions(timely[RIGHT])]
        for row in timely[LEFT]:
            if is_dead(self.join.left, row, self.join.left.time):
                rows += self._pad_question(row)
            else:
                self._questions.append(row)
        self._tracker.merge(watermarks)
        for question in list(self._questions):
            if self._is_final(question):
                self._questions.remove(question)
                chosen = self._choose_version(question)
                is_alone = chosen is None or self._is_void(chosen)
                rows += self._pad_question(question) if is_alone else [self._result_row(question, chosen)]
        candidates, self._versions = self._versions, []
        for version in candidates:
            if self._is_useful(version, candidates):
                self._versions.append(version)
            else:
                self._gone.append(
                    RemovedRow(RIGHT, version, "expired", self._next_version(version, candidates), self.join.right.time)
                )
        rows += self._enforce_limit(dropped)
        state = (len(self._questions), len(self._versions))
        emitted = self._tracker.hold_back_watermarks(self.join.times, self._questions)
        received = dict(self._tracker.received)
        return ReferenceStep(rows, late, emitted, state, tuple(dropped), gone=self._gone, received=received)

    @property
    def state_rows(self) -> tuple[list[Row], ...]:
        """The questions that are open, and the versions."""
        return (self._questions, self._versions)

    def _next_version(self, version: Row, versions: list[Row]) -> Row | None:
        """The version of its key that comes after one."""
        time = _time(self.join.right, version)
        later = [v for v in self._versions_of_key(version, versions) if _time(self.join.right, v) > time]
        return min(later, key=lambda v: _time(self.join.right, v), default=None)

    def _add_versions(self, rows: list[Row]) -> int:
        """Keep new versions; returns how many were dropped: second ones of a key and time, changes without either."""
        horizon, versions = self._horizon(), list(self._versions)
        dropped = 0
        for row in rows:
            if any(row[name] is None for name in (*self.join.right.keys, self.join.right.time)):
                dropped += self.join.upserts
                self._gone += [RemovedRow(RIGHT, row, "dropped")] if self.join.upserts else []
                continue
            if not self._is_useful(row, versions, horizon):
                self._gone.append(RemovedRow(RIGHT, row, "expired", column=self.join.right.time))
                continue
            time = _time(self.join.right, row)
            same = [v for v in self._versions_of_key(row, self._versions) if _time(self.join.right, v) == time]
            dropped += len(same)
            if same and not self.join.upserts:
                self._gone.append(RemovedRow(RIGHT, row, "dropped"))
                continue
            self._gone += [RemovedRow(RIGHT, version, "dropped", by=row) for version in same]
            self._versions = [version for version in self._versions if not any(version is other for other in same)]
            self._versions.append(row)
        return dropped

    def _is_void(self, version: Row) -> bool:
        """Whether a version is the delete of its key, or one for which the condition of its side is not true."""
        dead = self.join.right.dead
        return (self.join.upserts and version[OP] < 0) or (dead is not None and version[dead] is not False)

    def _versions_of_key(self, row: Row, versions: list[Row]) -> list[Row]:
        keys = self.join.right.keys
        return [v for v in versions if all(compare(row[key], v[key]) == 0 for key in keys)]

    def _is_useful(self, version: Row, versions: list[Row], horizon: int | None = None) -> bool:
        """Whether a question at or after the horizon may get a version, now that these are known."""
        horizon = self._horizon() if horizon is None else horizon
        time = _time(self.join.right, version)
        if horizon == END_OF_INPUT:
            return False
        if self.join.direction == "forward":
            return time > horizon if self.join.strict else time >= horizon
        if self.join.tolerance is not None and time < horizon - self.join.tolerance:
            return False
        later = [t for t in (_time(self.join.right, v) for v in self._versions_of_key(version, versions)) if t > time]
        return not any(t < horizon or (t == horizon and not self.join.strict) for t in later)

    def _horizon(self) -> int:
        """The earliest time that an open question has or that one may come with."""
        watermark = self._tracker.received.get(self.join.left.time, -(2**63))
        return min([watermark, *(_time(self.join.left, question) for question in self._questions)])

    def _is_final(self, question: Row) -> bool:
        """Whether no version that may still arrive would be preferred to the best known one.

        The best that may arrive is a version as near to the question as the watermark still allows.
        """
        watermark, time = self._tracker.received.get(self.join.right.time), _time(self.join.left, question)
        if watermark == END_OF_INPUT:
            return True
        near = [t for t in (time - 1, time, time + 1) if -(2**63) <= t < 2**63]
        coming = near if watermark is None else [watermark, *(t for t in near if t >= watermark)]
        chosen = self._choose_version(question)
        return not any(self._is_preferred(t, question, chosen) for t in coming)

    def _is_preferred(self, coming: int, question: Row, chosen: Row | None) -> bool:
        """Whether a version of that time would be chosen instead."""
        distance = self._distance(question, coming)
        if distance is None or chosen is None:
            return distance is not None
        best = self._distance(question, _time(self.join.right, chosen)) or (0, 0)
        return distance < best or (self.join.upserts and distance == best)

    def _choose_version(self, question: Row) -> Row | None:
        """The nearest version that fits by its key and time, whatever else is true of it."""
        keys = list(zip(self.join.left.keys, self.join.right.keys, strict=True))
        best: Row | None = None
        for version in self._versions:
            if all(compare(question[mine], version[theirs]) == 0 for mine, theirs in keys):
                time = _time(self.join.right, version)
                if self._distance(question, time) is not None and self._is_preferred(time, question, best):
                    best = version
        return best

    def _distance(self, question: Row, version: int) -> tuple[int, int] | None:
        """The distance of a version, an earlier one a little less; None if it does not fit."""
        time = _time(self.join.left, question)
        if (self.join.direction == "backward" and version > time) or (self.join.strict and version == time):
            return None
        if self.join.direction == "forward" and version < time:
            return None
        if self.join.tolerance is not None and abs(version - time) > self.join.tolerance:
            return None
        return (abs(version - time), int(version > time))

    def _enforce_limit(self, dropped: list[int]) -> list[tuple[Any, ...]]:
        """Enforce the limit: fail, or drop the rows with the earliest times."""
        limit, sizes = self.join.max_rows, (len(self._questions), len(self._versions))
        rows: list[tuple[Any, ...]] = []
        if limit is None or sum(sizes) <= limit:
            return rows
        if self.join.overflow == "fail":
            raise StateOverflowError(sizes, limit)
        both = [(_time(self.join.left, row), LEFT, row) for row in self._questions]
        both += [(_time(self.join.right, row), RIGHT, row) for row in self._versions]
        for _, port, row in sorted(both, key=lambda each: each[:2])[: sum(sizes) - limit]:
            (self._questions, self._versions)[port].remove(row)
            dropped[port] += 1
            self._gone.append(RemovedRow(port, row, "dropped"))
            rows += self._pad_question(row) if port == LEFT else []
        return rows

    def _pad_question(self, question: Row) -> list[tuple[Any, ...]]:
        return [self._result_row(question, None)] if self.join.kind == "left" else []

    def _result_row(self, question: Row, version: Row | None) -> tuple[Any, ...]:
        theirs = [None if version is None else version[name] for name in self.join.right.columns]
        extra = [-1 if version is not None else RIGHT] * len(self.join.extra)
        return (*(question[name] for name in self.join.left.columns), *theirs, *extra)


def _time(side: Port, row: Row) -> int:
    time = event_time(row[side.time])
    assert time is not None  # a row without a time has been turned away
    return time


DEFINITION = AsofReference
