"""The definition of the interval join, slow and obvious: the oracle of every test.

Two rows *fit* when their keys are equal (a NULL key equals nothing), ``lower <= right time - left time <= upper``,
and the rest of the condition is true: false and unknown are both "no". A row is *dead* when it can never fit: its side
says so, or its key or its matched time is NULL.

Without time, the result is `all_pairs`: every pair that fits, and every row of a preserved side that fits nothing,
padded.

With time, a join proceeds in batches, and a batch is one instant (`Reference.step`):

1. A new row is *late* if one of its watermarked times is smaller than a mark that its own side received before this
   batch. It is put aside: it meets nothing and is not padded.
2. A new dead row is padded at once if its side is preserved, else dropped. It is never kept.
3. Every other new row meets the kept rows of the other side and the other new rows of the other side. A pair comes out
   in the batch in which its second row arrives, even if that row is already past its limit.
4. The marks of the batch are folded in: a mark never falls. The *limit* of a column is the largest
   ``mark(other) - constant`` among the bounds of that column; a column without a bound has no limit.
5. A row with a watermarked time strictly below that column's limit *expires*: no row that may still come could fit it.
   A kept row is forgotten, a new one never kept. If its side is preserved and it has met nothing, it comes out padded
   now.
6. The watermark of a column in the result is the smaller of its mark and its limit. For a column without a bound it is
   the smaller of its mark and its earliest time still kept, and never falls. While a part is unknown there is none.

A NULL in a watermarked column other than the matched one makes a row neither late nor expired by that column.
A mark of END_OF_INPUT says that its side has ended, whatever the times: it is infinite, and so is every limit that
comes from it. It closes every lifetime that waits for that side, and whatever its side still sends is late, NULL times
included.

Invariants. If nothing is late, every bound follows from the condition, and all inputs end, then the batches together
give `all_pairs`, however the rows were ordered and cut. A row comes out padded at most once, and never if it ever
matched. No row of a later batch has a time below a watermark that the result had before.

Values and conditions are evaluated one row at a time in `rowwise`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from watersmeet.joins.core.operator import END_OF_INPUT, Marks, StateOverflowError
from watersmeet.joins.core.port import Port
from watersmeet.joins.core.rowwise import Hearing, compare, evaluate, event_time, freeze
from watersmeet.joins.interval.operator import IntervalJoin

Row = Mapping[str, Any]

Number = Literal[0, 1]

LEFT: Number = 0
RIGHT: Number = 1


@dataclass(frozen=True)
class Step:
    """What one batch gives.

    - ``rows``: the columns of the left side, then of the right; None where padded
    - ``late``: the late rows with their port
    - ``watermarks``: the watermarks of the result, for the columns that have one
    - ``state``: how many rows are kept, left and right
    """

    rows: list[tuple[Any, ...]]
    late: list[tuple[int, Row]]
    watermarks: dict[str, int]
    state: tuple[int, int]


@dataclass(eq=False)
class _Alive:
    """A row that may still meet others, and whether it ever did."""

    row: Row
    matched: bool = False


@dataclass
class Reference:
    """An interval join in progress.

    >>> from watersmeet.joins.interval.operator import Bound
    >>> left, right = Port(("l",), ("l",)), Port(("r",), ("r",))
    >>> bounds = (Bound("l", "r", 1), Bound("r", "l", 1))
    >>> join = Reference(IntervalJoin("left", left, right, -1, 1, bounds))
    >>> join.step({0: [{"l": 1}, {"l": 9}], 1: [{"r": 8}]}, {}).rows
    [(9, 8)]
    >>> join.step({}, {"r": 5}).rows
    [(1, None)]
    """

    join: IntervalJoin
    _heard: Hearing = field(init=False)
    _emitted: dict[str, int] = field(default_factory=dict[str, int], init=False)
    _kept: tuple[list[_Alive], list[_Alive]] = field(default_factory=lambda: ([], []), init=False)

    def __post_init__(self) -> None:
        self._heard = Hearing(self.join, [(bound.column, bound.other) for bound in self.join.bounds])

    def step(self, arrivals: Mapping[int, Iterable[Row]], marks: Marks) -> Step:
        """One batch: the rows that arrived per port, and the marks that came with them."""
        rows: list[tuple[Any, ...]] = []
        late: list[tuple[int, Row]] = []
        new: tuple[list[_Alive], list[_Alive]] = ([], [])
        for port in (LEFT, RIGHT):
            for row in arrivals.get(port, ()):
                if self._is_late(port, row):
                    late.append((port, row))
                elif is_dead(self.join, port, row):
                    rows += self._alone(port, row)
                else:
                    new[port].append(_Alive(row))
        rows += self._meet(new[LEFT], self._kept[RIGHT] + new[RIGHT])
        rows += self._meet(self._kept[LEFT], new[RIGHT])
        self._heard.hear(marks)
        for port in (LEFT, RIGHT):
            rows += self._expire(port, new[port])
        rows += self._limit()
        state = (len(self._kept[LEFT]), len(self._kept[RIGHT]))
        return Step(rows, late, self._watermarks(), state)

    def _limit(self) -> list[tuple[Any, ...]]:
        """More rows than may be kept: an error, or the rows with the earliest times leave."""
        limit, size = self.join.max_rows, len(self._kept[LEFT]) + len(self._kept[RIGHT])
        if limit is None or size <= limit:
            return []
        if self.join.overflow == "fail":
            raise StateOverflowError((len(self._kept[LEFT]), len(self._kept[RIGHT])), limit)
        times = (self.join.left.time, self.join.right.time)
        ports: tuple[Number, Number] = (LEFT, RIGHT)
        kept: list[tuple[Number, _Alive]] = [(port, one) for port in ports for one in self._kept[port]]
        kept.sort(key=lambda each: event_time(each[1].row[times[each[0]]]) or 0)
        rows: list[tuple[Any, ...]] = []
        for port, one in kept[: size - limit]:
            self._kept[port].remove(one)
            rows += [] if one.matched else self._alone(port, one.row)
        return rows

    def limit(self, column: str) -> int | None:
        """Rows with a smaller time in that column are expired; None as long as nothing expires by it."""
        found = [
            _minus(self._heard.received[bound.other], bound.constant)
            for bound in self.join.bounds
            if bound.column == column and bound.other in self._heard.received
        ]
        return max(found, default=None)

    def _is_late(self, port: Number, row: Row) -> bool:
        return any(_is_below(event_time(row[c]), self._heard.received.get(c)) for c in side_of(self.join, port).times)

    def _meet(self, left: list[_Alive], right: list[_Alive]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for one in left:
            for other in right:
                if fits(self.join, one.row, other.row):
                    once = self.join.kind == "semi" and not one.matched
                    if once or self.join.kind not in ("semi", "anti"):
                        rows.append(pair(self.join, one.row, other.row))
                    one.matched = other.matched = True
        return rows

    def _expire(self, port: Number, new: list[_Alive]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        stay: list[_Alive] = []
        times = side_of(self.join, port).times
        for alive in self._kept[port] + new:
            if not any(_is_below(event_time(alive.row[c]), self.limit(c)) for c in times):
                stay.append(alive)
            elif not alive.matched:
                rows += self._alone(port, alive.row)
        self._kept[port][:] = stay
        return rows

    def _alone(self, port: Number, row: Row) -> list[tuple[Any, ...]]:
        return [padded(self.join, port, row)] if is_preserved(self.join, port) else []

    def _watermarks(self) -> dict[str, int]:
        # As long as one column goes on, the end of another is no end of the result: padded rows have NULL there.
        ended = all(self._heard.received.get(column) == END_OF_INPUT for column in self.join.times)
        highest = END_OF_INPUT if ended else END_OF_INPUT - 1
        for port in (LEFT, RIGHT):
            for column in side_of(self.join, port).times:
                if column not in self._heard.received or column not in self.join.times:
                    continue
                mark = min(self._heard.received[column], highest)
                if any(bound.column == column for bound in self.join.bounds):
                    limit = self.limit(column)
                    if limit is not None:
                        self._emitted[column] = min(mark, limit)
                else:
                    times = [event_time(alive.row[column]) for alive in self._kept[port]]
                    earliest = min((t for t in times if t is not None), default=END_OF_INPUT)
                    self._emitted[column] = max(min(mark, earliest), self._emitted.get(column, min(mark, earliest)))
        return dict(self._emitted)


def all_pairs(join: IntervalJoin, left: Iterable[Row], right: Iterable[Row]) -> Counter[tuple[Any, ...]]:
    """The result of the join without time: each row with the number of times it occurs.

    >>> join = IntervalJoin("full", Port(("l",), ("l",)), Port(("r",), ("r",)), 0, 2, ())
    >>> sorted(all_pairs(join, [{"l": 1}, {"l": 5}], [{"r": 3}, {"r": 2}]).items())
    [((1, 2), 1), ((1, 3), 1), ((5, None), 1)]
    """
    lefts, rights = list(left), list(right)
    met = [(i, j) for i, one in enumerate(lefts) for j, other in enumerate(rights) if fits(join, one, other)]
    shown = [] if join.kind == "anti" else list({i: (i, j) for i, j in met}.values()) if join.kind == "semi" else met
    rows = [pair(join, lefts[i], rights[j]) for i, j in shown]
    if is_preserved(join, LEFT):
        matched = {i for i, _ in met}
        rows += [padded(join, LEFT, row) for i, row in enumerate(lefts) if i not in matched]
    if is_preserved(join, RIGHT):
        matched = {j for _, j in met}
        rows += [padded(join, RIGHT, row) for j, row in enumerate(rights) if j not in matched]
    return multiset(rows)


def multiset(rows: Iterable[Iterable[Any]]) -> Counter[tuple[Any, ...]]:
    """Rows without their order: each with the number of times it occurs. NaN counts as one value, lists as tuples."""
    return Counter(tuple(freeze(value) for value in row) for row in rows)


def fits(join: IntervalJoin, left: Row, right: Row) -> bool:
    """Whether two rows are a pair of the result, time of arrival apart."""
    if is_dead(join, LEFT, left) or is_dead(join, RIGHT, right):
        return False
    keys = zip(join.left.keys, join.right.keys, strict=True)
    if any(compare(left[one], right[other]) != 0 for one, other in keys):
        return False
    left_time, right_time = event_time(left[join.left.time]), event_time(right[join.right.time])
    assert left_time is not None and right_time is not None  # a dead row has been turned away above
    if not join.lower <= right_time - left_time <= join.upper:
        return False
    return join.condition is None or evaluate(join.condition, {**left, **right}) is True


def is_dead(join: IntervalJoin, port: Number, row: Row) -> bool:
    """Whether a row of that port can never be part of a pair."""
    side = side_of(join, port)
    if side.dead is not None and row[side.dead] is not False:
        return True
    return row[side.time] is None or any(row[key] is None for key in side.keys)


def is_preserved(join: IntervalJoin, port: Number) -> bool:
    """Whether a row of that port that matches nothing comes out padded.

    >>> side = Port(("t",), ("t",))
    >>> is_preserved(IntervalJoin("left", side, side, 0, 0, ()), RIGHT)
    False
    """
    return join.kind == "full" or join.kind in (("left", "anti"), ("right",))[port]


def side_of(join: IntervalJoin, port: Number) -> Port:
    """The left side for port 0, the right side for port 1."""
    return join.left if port == LEFT else join.right


def pair(join: IntervalJoin, left: Row, right: Row) -> tuple[Any, ...]:
    """The row of the result that two rows make."""
    return (*(left[c] for c in join.left.columns), *(right[c] for c in join.right.columns))


def padded(join: IntervalJoin, port: Number, row: Row) -> tuple[Any, ...]:
    """The row of the result that a row makes alone."""
    nothing = dict.fromkeys(side_of(join, RIGHT if port == LEFT else LEFT).columns)
    return pair(join, row, nothing) if port == LEFT else pair(join, nothing, row)


def _minus(mark: int, constant: int) -> int:
    # Only the end itself is infinite: a mark far in the future must not pass for it.
    return END_OF_INPUT if mark == END_OF_INPUT else min(mark - constant, END_OF_INPUT - 1)


def _is_below(time: int | None, mark: int | None) -> bool:
    """Strictly: a row exactly at the mark is neither late nor expired. Nothing withstands the end, not even NULL."""
    return mark == END_OF_INPUT or (time is not None and mark is not None and time < mark)


DEFINITION = Reference
