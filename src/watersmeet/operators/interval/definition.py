"""The definition of the interval join, slow and obvious: the oracle of every test.

Two rows *fit* when their keys are equal (a NULL key equals nothing), ``lower <= right time - left time <= upper``, and
the rest of the condition is true: false and unknown are both "no". Times are whole numbers of 64 bits; their sums and
differences are whole numbers of any size, so that no bound overflows. A row is *dead* when it can never fit: its side
says so, or its key, its matched time or an end that it carries is NULL.

Without time, the result is `all_pairs`: every pair that fits, and every row of a preserved side that fits nothing,
padded.

With time, a join proceeds in batches, and a batch is one instant (`IntervalReference.step`):

1. A new row is *late* if one of its watermarked times is smaller than the watermark of that column before this batch.
   It goes to the side output: it matches nothing and is not padded. Where a side has one row per window of its time
   (`Port.window`), a row is late if its window is closed; only the row of the last window goes to the side output, and
   those of the others are dropped.
2. A new dead row is padded at once if its side is preserved, else dropped. It is never stored.
3. Every other new row is matched with the stored and the new rows of the other side. A pair is emitted in the batch in
   which its second row arrives, even if that row is already beyond its limit.
4. The watermarks of the batch are applied: a watermark never falls. The *limit* of a column is the largest
   ``watermark(other) - constant`` among the bounds of that column, for a strict bound the time after that; a column
   without a bound has no limit. A column that holds the *ends* of rows is not watermarked, and its limit follows from
   its end bounds in the same way.
5. A row with a watermarked time or an end strictly below that column's limit *expires*: no row that may still arrive
   could fit it. A stored row is dropped, a new one never stored. If its side is preserved and it has no match, it is
   emitted padded now.
6. The watermark of a column in the result is the smaller of its watermark and its limit. For a column without a bound
   it is the smaller of its watermark and its earliest stored time, and never falls. It is undefined while a part of it
   is unknown.

A NULL in a watermarked column other than the matched one makes a row neither late nor expired by that column. A
watermark of END_OF_INPUT means that its side has ended, whatever the times: it is infinite, and so is every limit
derived from it. It expires every row that waits for that side, and every later row of its side is late, NULL times
included.

Invariants. If no row is late, every bound follows from the condition, and all inputs end, then the batches together
give `all_pairs`, however the rows were ordered and cut. A row is emitted padded at most once, and never if it ever
matched. No row of a later batch has a time below a watermark that the result had before.

Values and conditions are evaluated one row at a time in `rowwise`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from watersmeet.operators.core.operator import END_OF_INPUT, LEFT, RIGHT, StateOverflowError, Watermarks
from watersmeet.operators.core.rowwise import (
    ReferenceStep,
    RemovedRow,
    Row,
    WatermarkTracker,
    event_time,
    freeze,
    is_below,
    is_dead,
    is_match,
    is_of_last_window,
)
from watersmeet.operators.interval.kernel import IntervalJoinOperator


@dataclass(eq=False)
class _LiveRow:
    """A row that may still match, and whether it ever did."""

    row: Row
    matched: bool = False


@dataclass
class IntervalReference:
    """An interval join in progress.

    >>> from watersmeet.operators.core.watermarks import Bound
    >>> from watersmeet.operators.core.operator import Port
    >>> left, right = Port(("l",), ("l",)), Port(("r",), ("r",))
    >>> bounds = (Bound("l", "r", 1), Bound("r", "l", 1))
    >>> join = IntervalReference(IntervalJoinOperator("left", left, right, -1, 1, bounds))
    >>> join.step({0: [{"l": 1}, {"l": 9}], 1: [{"r": 8}]}, {}).rows
    [(9, 8)]
    >>> join.step({}, {"r": 5}).rows
    [(1, None)]
    """

    join: IntervalJoinOperator
    _tracker: WatermarkTracker = field(init=False)
    _emitted: dict[str, int] = field(default_factory=dict[str, int], init=False)
    _state: tuple[list[_LiveRow], list[_LiveRow]] = field(default_factory=lambda: ([], []), init=False)
    _pairs: list[tuple[Row, ...]] = field(default_factory=list[tuple[Row, ...]], init=False)
    _gone: list[RemovedRow] = field(default_factory=list[RemovedRow], init=False)

    def __post_init__(self) -> None:
        waits = [(bound.column, bound.other) for bound in self.join.bounds]
        for side in self.join.ports:
            # A row end has no watermark, so the times of its row stand in for it.
            waits += [
                (time, end_bound.other)
                for end_bound in self.join.end_bounds
                if end_bound.column in side.ends
                for time in side.times
            ]
        self._tracker = WatermarkTracker(self.join, waits)

    def replace_join(self, join: IntervalJoinOperator) -> None:
        """Continue as another join: the same but for its bounds and its idle timeouts."""
        self.join = self._tracker.operator = join

    def step(self, arrivals: Mapping[int, Iterable[Row]], watermarks: Watermarks) -> ReferenceStep:
        """Process one batch: the rows that arrived per port, and their watermarks."""
        rows: list[tuple[Any, ...]] = []
        late: list[tuple[int, Row]] = []
        self._pairs, self._gone = [], []
        new: tuple[list[_LiveRow], list[_LiveRow]] = ([], [])
        for port in (LEFT, RIGHT):
            for row in arrivals.get(port, ()):
                side = self.join.ports[port]
                if self._tracker.is_late(side, row) and not is_of_last_window(side, row):
                    assert side.window is not None
                    self._gone.append(RemovedRow(port, row, "expired", column=side.window.end))
                elif self._tracker.is_late(side, row):
                    late.append((port, row))
                elif is_dead(self.join.ports[port], row, self.join.ports[port].time, *self.join.ports[port].ends):
                    rows += self._pad_unmatched(port, row)
                else:
                    new[port].append(_LiveRow(row))
        rows += self._match_rows(new[LEFT], self._state[RIGHT] + new[RIGHT])
        rows += self._match_rows(self._state[LEFT], new[RIGHT])
        self._tracker.merge(watermarks)
        for port in (LEFT, RIGHT):
            rows += self._expire(port, new[port])
        rows += self._enforce_limit()
        state = (len(self._state[LEFT]), len(self._state[RIGHT]))
        received = dict(self._tracker.received)
        return ReferenceStep(
            rows, late, self._watermarks(), state, pairs=self._pairs, gone=self._gone, received=received
        )

    @property
    def state_rows(self) -> tuple[list[Row], ...]:
        """The rows that are alive, per port."""
        return tuple([alive.row for alive in side] for side in self._state)

    def _enforce_limit(self) -> list[tuple[Any, ...]]:
        """Enforce the limit: fail, or drop the rows with the earliest times."""
        limit, size = self.join.max_rows, len(self._state[LEFT]) + len(self._state[RIGHT])
        if limit is None or size <= limit:
            return []
        if self.join.overflow == "fail":
            raise StateOverflowError((len(self._state[LEFT]), len(self._state[RIGHT])), limit)
        candidates = [(port, candidate) for port in (LEFT, RIGHT) for candidate in self._state[port]]
        candidates.sort(key=lambda each: event_time(each[1].row[self.join.ports[each[0]].time]) or 0)
        rows: list[tuple[Any, ...]] = []
        for port, candidate in candidates[: size - limit]:
            self._state[port].remove(candidate)
            self._gone.append(RemovedRow(port, candidate.row, "dropped"))
            rows += [] if candidate.matched else self._pad_unmatched(port, candidate.row)
        return rows

    def limit(self, column: str) -> int | None:
        """The limit of a column: rows with a smaller time are expired; None as long as no row expires by it."""
        limits = [
            _watermark_behind(
                self._tracker.received[bound.other], bound.constant - 1 if bound.strict else bound.constant
            )
            for bound in (*self.join.bounds, *self.join.end_bounds)
            if bound.column == column and bound.other in self._tracker.received
        ]
        return max(limits, default=None)

    def _match_rows(self, left: list[_LiveRow], right: list[_LiveRow]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for live in left:
            for other in right:
                if is_pair(self.join, live.row, other.row):
                    once = self.join.kind == "semi" and not live.matched
                    if once or self.join.kind not in ("semi", "anti"):
                        rows.append(join_pair(self.join, live.row, other.row))
                    live.matched = other.matched = True
                    self._pairs.append((live.row, other.row))
        return rows

    def _expire(self, port: int, new: list[_LiveRow]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        stay: list[_LiveRow] = []
        limits = {c: self.limit(c) for c in (*self.join.ports[port].times, *self.join.ports[port].ends)}
        for alive in self._state[port] + new:
            passed = [c for c, limit in limits.items() if is_below(event_time(alive.row[c]), limit)]
            if not passed:
                stay.append(alive)
                continue
            self._gone.append(RemovedRow(port, alive.row, "expired", column=passed[0]))
            if not alive.matched:
                rows += self._pad_unmatched(port, alive.row)
        self._state[port][:] = stay
        return rows

    def _pad_unmatched(self, port: int, row: Row) -> list[tuple[Any, ...]]:
        return [pad_row(self.join, port, row)] if self.join.is_preserved[port] else []

    def _watermarks(self) -> dict[str, int]:
        # While one column continues, the end of another does not end the result: padded rows have NULL there.
        ended = all(self._tracker.received.get(column) == END_OF_INPUT for column in self.join.times)
        highest = END_OF_INPUT if ended else END_OF_INPUT - 1
        for port in (LEFT, RIGHT):
            for column in self.join.ports[port].times:
                if column not in self._tracker.received or column not in self.join.times:
                    continue
                watermark = min(self._tracker.received[column], highest)
                window = self.join.ports[port].window
                if window is not None and window.time == column and self._tracker.received[column] != END_OF_INPUT:
                    # Rows whose windows are open may still arrive.
                    watermark = max(watermark - window.size, -(2**63))
                if any(bound.column == column for bound in self.join.bounds):
                    limit = self.limit(column)
                    if limit is not None:
                        self._emitted[column] = min(watermark, limit)
                else:
                    times = [event_time(alive.row[column]) for alive in self._state[port]]
                    earliest = min((t for t in times if t is not None), default=END_OF_INPUT)
                    self._emitted[column] = max(
                        min(watermark, earliest), self._emitted.get(column, min(watermark, earliest))
                    )
        return dict(self._emitted)


def all_pairs(join: IntervalJoinOperator, left: Iterable[Row], right: Iterable[Row]) -> Counter[tuple[Any, ...]]:
    """The result of the join without time: each row with the number of times it occurs.

    >>> from watersmeet.operators.core.operator import Port
    >>> join = IntervalJoinOperator("full", Port(("l",), ("l",)), Port(("r",), ("r",)), 0, 2, ())
    >>> sorted(all_pairs(join, [{"l": 1}, {"l": 5}], [{"r": 3}, {"r": 2}]).items())
    [((1, 2), 1), ((1, 3), 1), ((5, None), 1)]
    """
    lefts, rights = list(left), list(right)
    matches = [
        (i, j)
        for i, left_row in enumerate(lefts)
        for j, right_row in enumerate(rights)
        if is_pair(join, left_row, right_row)
    ]
    shown = (
        []
        if join.kind == "anti"
        else list({i: (i, j) for i, j in matches}.values())
        if join.kind == "semi"
        else matches
    )
    rows = [join_pair(join, lefts[i], rights[j]) for i, j in shown]
    if join.is_preserved[LEFT]:
        matched = {i for i, _ in matches}
        rows += [pad_row(join, LEFT, row) for i, row in enumerate(lefts) if i not in matched]
    if join.is_preserved[RIGHT]:
        matched = {j for _, j in matches}
        rows += [pad_row(join, RIGHT, row) for j, row in enumerate(rights) if j not in matched]
    return multiset(rows)


def multiset(rows: Iterable[Iterable[Any]]) -> Counter[tuple[Any, ...]]:
    """Rows without their order: each with the number of times it occurs. NaN counts as one value, lists as tuples."""
    return Counter(tuple(freeze(value) for value in row) for row in rows)


def is_pair(join: IntervalJoinOperator, left: Row, right: Row) -> bool:
    """Whether two rows are a pair of the result, regardless of when they arrive."""
    left_time, right_time = event_time(left[join.left.time]), event_time(right[join.right.time])
    if left_time is None or right_time is None:
        return False
    lower, upper = join.span(LEFT)
    distance = right_time - left_time
    if (lower is not None and distance < lower) or (upper is not None and distance > upper):
        return False
    return is_match(join.ports, join.condition, left, right)


def join_pair(join: IntervalJoinOperator, left: Row, right: Row) -> tuple[Any, ...]:
    """The row of the result that two rows make."""
    return (*(left[c] for c in join.left.columns), *(right[c] for c in join.right.columns))


def pad_row(join: IntervalJoinOperator, port: int, row: Row) -> tuple[Any, ...]:
    """The result row of an unmatched row."""
    nulls = dict.fromkeys(join.ports[1 - port].columns)
    return join_pair(join, row, nulls) if port == LEFT else join_pair(join, nulls, row)


def _watermark_behind(watermark: int, constant: int) -> int:
    # Only the end itself is infinite: a watermark far in the future must not equal it. No time is before the lowest.
    return END_OF_INPUT if watermark == END_OF_INPUT else max(-(2**63), min(watermark - constant, END_OF_INPUT - 1))


DEFINITION = IntervalReference
