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

Values are what Spark says they are: NaN equals NaN and is greater than every number, -0.0 equals 0.0. Arithmetic is
that of Spark's ANSI mode: ``/`` on integers gives a double, ``%`` takes the sign of the dividend, division by zero and
overflow of 64 bits are errors. Timestamps, dates and intervals count in microseconds, dates from midnight UTC. All of
it is written here one row at a time and independently of `condition`, so that each can be checked by the other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any, Literal, cast

from watersmeet.joins.condition import Apply, Column, Condition, Constant
from watersmeet.joins.interval import IntervalJoin, Side
from watersmeet.joins.operator import END_OF_INPUT, Marks

Row = Mapping[str, Any]
Port = Literal[0, 1]

LEFT: Port = 0
RIGHT: Port = 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


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


@dataclass
class _Alive:
    """A row that may still meet others, and whether it ever did."""

    row: Row
    matched: bool = False


@dataclass
class Reference:
    """An interval join in progress.

    >>> from watersmeet.joins.interval import Bound
    >>> left, right = Side(("l",), ("l",)), Side(("r",), ("r",))
    >>> bounds = (Bound("l", "r", 1), Bound("r", "l", 1))
    >>> join = Reference(IntervalJoin("left", left, right, "l", "r", -1, 1, bounds))
    >>> join.step({0: [{"l": 1}, {"l": 9}], 1: [{"r": 8}]}, {}).rows
    [(9, 8)]
    >>> join.step({}, {"r": 5}).rows
    [(1, None)]
    """

    join: IntervalJoin
    _received: dict[str, int] = field(default_factory=dict[str, int], init=False)
    _emitted: dict[str, int] = field(default_factory=dict[str, int], init=False)
    _kept: tuple[list[_Alive], list[_Alive]] = field(default_factory=lambda: ([], []), init=False)

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
        for name, mark in marks.items():
            self._received[name] = max(mark, self._received.get(name, mark))
        for port in (LEFT, RIGHT):
            rows += self._expire(port, new[port])
        state = (len(self._kept[LEFT]), len(self._kept[RIGHT]))
        return Step(rows, late, self._watermarks(), state)

    def limit(self, column: str) -> int | None:
        """Rows with a smaller time in that column are expired; None as long as nothing expires by it."""
        found = [
            _minus(self._received[bound.other], bound.constant)
            for bound in self.join.bounds
            if bound.column == column and bound.other in self._received
        ]
        return max(found, default=None)

    def _is_late(self, port: Port, row: Row) -> bool:
        return any(_is_below(event_time(row[c]), self._received.get(c)) for c in side_of(self.join, port).times)

    def _meet(self, left: list[_Alive], right: list[_Alive]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for one in left:
            for other in right:
                if fits(self.join, one.row, other.row):
                    one.matched = other.matched = True
                    rows.append(pair(self.join, one.row, other.row))
        return rows

    def _expire(self, port: Port, new: list[_Alive]) -> list[tuple[Any, ...]]:
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

    def _alone(self, port: Port, row: Row) -> list[tuple[Any, ...]]:
        return [padded(self.join, port, row)] if is_preserved(self.join, port) else []

    def _watermarks(self) -> dict[str, int]:
        for port in (LEFT, RIGHT):
            for column in side_of(self.join, port).times:
                if column not in self._received:
                    continue
                mark = self._received[column]
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

    >>> join = IntervalJoin("full", Side(("l",), ("l",)), Side(("r",), ("r",)), "l", "r", 0, 2, ())
    >>> sorted(all_pairs(join, [{"l": 1}, {"l": 5}], [{"r": 3}, {"r": 2}]).items())
    [((1, 2), 1), ((1, 3), 1), ((5, None), 1)]
    """
    lefts, rights = list(left), list(right)
    met = [(i, j) for i, one in enumerate(lefts) for j, other in enumerate(rights) if fits(join, one, other)]
    rows = [pair(join, lefts[i], rights[j]) for i, j in met]
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
    left_time, right_time = event_time(left[join.left_time]), event_time(right[join.right_time])
    assert left_time is not None and right_time is not None  # a dead row has been turned away above
    if not join.lower <= right_time - left_time <= join.upper:
        return False
    return join.condition is None or evaluate(join.condition, {**left, **right}) is True


def is_dead(join: IntervalJoin, port: Port, row: Row) -> bool:
    """Whether a row of that port can never be part of a pair."""
    side, time = (join.left, join.left_time) if port == LEFT else (join.right, join.right_time)
    if side.dead is not None and row[side.dead]:
        return True
    return row[time] is None or any(row[key] is None for key in side.keys)


def is_preserved(join: IntervalJoin, port: Port) -> bool:
    """Whether a row of that port that matches nothing comes out padded.

    >>> side = Side(("t",), ("t",))
    >>> is_preserved(IntervalJoin("left", side, side, "t", "t", 0, 0, ()), RIGHT)
    False
    """
    return join.kind == "full" or join.kind == ("left", "right")[port]


def side_of(join: IntervalJoin, port: Port) -> Side:
    """The left side for port 0, the right side for port 1."""
    return join.left if port == LEFT else join.right


def pair(join: IntervalJoin, left: Row, right: Row) -> tuple[Any, ...]:
    """The row of the result that two rows make."""
    return (*(left[c] for c in join.left.columns), *(right[c] for c in join.right.columns))


def padded(join: IntervalJoin, port: Port, row: Row) -> tuple[Any, ...]:
    """The row of the result that a row makes alone."""
    nothing = dict.fromkeys(side_of(join, RIGHT if port == LEFT else LEFT).columns)
    return pair(join, row, nothing) if port == LEFT else pair(join, nothing, row)


def _minus(mark: int, constant: int) -> int:
    # Only the end itself is infinite: a mark far in the future must not pass for it.
    return END_OF_INPUT if mark == END_OF_INPUT else min(mark - constant, END_OF_INPUT - 1)


def _is_below(time: int | None, mark: int | None) -> bool:
    """Strictly: a row exactly at the mark is neither late nor expired. Nothing withstands the end, not even NULL."""
    return mark == END_OF_INPUT or (time is not None and mark is not None and time < mark)


def event_time(value: int | datetime | date | None) -> int | None:
    """An event time as a number: microseconds since 1970 for timestamps and dates, integers as they are.

    >>> event_time(date(1970, 1, 2))
    86400000000
    >>> event_time(datetime(1970, 1, 1, 0, 0, 1))
    1000000
    """
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (aware - _EPOCH) // _MICROSECOND
    if isinstance(value, date):
        return (datetime(value.year, value.month, value.day, tzinfo=UTC) - _EPOCH) // _MICROSECOND
    return value


def freeze(value: Any) -> Any:
    """The value as one that can be counted: lists as tuples, structs as tuples of pairs, every NaN the same.

    >>> freeze({"a": [1, None]})
    (('a', (1, None)),)
    """
    if isinstance(value, float) and math.isnan(value):
        return math.nan
    if isinstance(value, dict):
        return tuple((name, freeze(part)) for name, part in cast("dict[str, Any]", value).items())
    if isinstance(value, list | tuple):
        return tuple(freeze(part) for part in cast("list[Any]", value))
    return value


def evaluate(condition: Condition, row: Mapping[str, Any]) -> Any:
    """The value of a condition for one row, or pair of rows; None is unknown.

    >>> evaluate(Apply("<", (Column("a"), Constant(3))), {"a": 2})
    True
    >>> evaluate(Apply("and", (Constant(None), Constant(False))), {})
    False
    """
    match condition:
        case Column(name):
            return _plain(row[name])
        case Constant(value):
            return _plain(value)
        case Apply("and" | "or" as operator, args):
            return _logic(operator == "or", args, row)
        case Apply("is_null", (arg,)):
            return evaluate(arg, row) is None
        case Apply("not", (arg,)):
            value = evaluate(arg, row)
            return None if value is None else not value
        case Apply("negate", (arg,)):
            value = evaluate(arg, row)
            return None if value is None else _in_range(-value)
        case Apply(operator, (one, other)):
            return _binary(operator, evaluate(one, row), evaluate(other, row))
        case Apply(operator, args):
            raise ValueError(f"{operator} does not take {len(args)} arguments")


def compare(one: Any, other: Any) -> int | None:
    """Negative, zero or positive as one value is before, equal to or after the other; None if either is NULL.

    >>> compare(float("nan"), float("inf")), compare(-0.0, 0.0), compare(None, 1)
    (1, 0, None)
    """
    one, other = _plain(one), _plain(other)
    if one is None or other is None:
        return None
    if isinstance(one, dict | list | tuple):
        return _compare_parts(_parts(one), _parts(other))
    one, other = _same_kind(one, other)
    if isinstance(one, float):
        nan, other_nan = math.isnan(one), math.isnan(other)
        if nan or other_nan:
            return nan - other_nan
    return (one > other) - (one < other)


def _plain(value: Any) -> Any:
    if isinstance(value, date):  # a datetime is one, too
        return event_time(value)
    if isinstance(value, timedelta):
        return value // _MICROSECOND
    return value


def _logic(decisive: bool, args: tuple[Condition, ...], row: Mapping[str, Any]) -> bool | None:
    unknown = False
    for arg in args:
        value = evaluate(arg, row)
        if value is decisive:
            return decisive
        unknown = unknown or value is None
    return None if unknown else not decisive


def _binary(operator: str, one: Any, other: Any) -> Any:
    if operator == "<=>":
        return one is other if one is None or other is None else compare(one, other) == 0
    if one is None or other is None:
        return None
    match operator, compare(one, other) or 0:
        case "=", order:
            return order == 0
        case "<>", order:
            return order != 0
        case "<", order:
            return order < 0
        case "<=", order:
            return order <= 0
        case ">", order:
            return order > 0
        case ">=", order:
            return order >= 0
        case _:
            return _arithmetic(operator, *_same_kind(one, other))


def _arithmetic(operator: str, one: Any, other: Any) -> Any:
    if operator in "/%" and other == 0:
        raise ZeroDivisionError(f"{one} {operator} {other}")
    with localcontext(prec=76):
        match operator:
            case "+":
                return _in_range(one + other)
            case "-":
                return _in_range(one - other)
            case "*":
                return _in_range(one * other)
            case "/":
                return one / other if isinstance(one, Decimal) else float(one) / float(other)
            case "%":
                return _remainder(one, other)
            case _:
                raise ValueError(f"{operator} is not an operator")


def _remainder(one: Any, other: Any) -> Any:
    if isinstance(one, float):
        return math.fmod(one, other)
    # Python's % on integers takes the sign of the divisor; on Decimal it takes that of the dividend, as Spark's does.
    return one % other if isinstance(one, Decimal) else int(math.copysign(1, one)) * (abs(one) % abs(other))


def _in_range(value: Any) -> Any:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise OverflowError(f"{value} does not fit 64 bits")
    return value


def _same_kind(one: Any, other: Any) -> tuple[Any, Any]:
    """Both as doubles if one is, else both as decimals if one is: Spark's widening."""
    for kind in (float, Decimal):
        if isinstance(one, kind) or isinstance(other, kind):
            return kind(one), kind(other)
    return one, other


def _parts(value: Any) -> list[Any]:
    return list(cast("dict[str, Any]", value).values()) if isinstance(value, dict) else list(value)


def _compare_parts(one: list[Any], other: list[Any]) -> int:
    for a, b in zip(one, other, strict=False):
        # Inside a nested value NULL is a value like any other, and comes first.
        order = (a is not None) - (b is not None) if a is None or b is None else compare(a, b)
        if order:
            return order
    return len(one) - len(other)
