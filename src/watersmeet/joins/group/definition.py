"""The definition of a grouping: all rows of a group are kept, and its aggregates computed anew each time.

Slow and obvious. Arithmetic is exact and rounded once in the end: whole numbers and decimals by nature, doubles as
fractions. Types are not known here, so only what no type could hold is an overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction
from functools import cmp_to_key, reduce
from typing import Any, cast

from watersmeet.joins.core.changes import WEIGHT
from watersmeet.joins.core.operator import END_OF_INPUT, Marks
from watersmeet.joins.core.rowwise import compare, event_time, freeze
from watersmeet.joins.group.aggregates import DISTINCT, function_of
from watersmeet.joins.group.operator import Aggregate, GroupBy

Row = Mapping[str, Any]


@dataclass(frozen=True)
class GroupStep:
    """What one batch gives: rows of the table with their weights, the late rows, and how many groups are kept."""

    rows: list[tuple[Any, ...]]
    late: list[tuple[int, Row]]
    state: tuple[int]
    watermarks: dict[str, int] = field(default_factory=dict[str, int])


@dataclass
class _Group:
    keys: tuple[Any, ...]
    end: int | None
    rows: list[tuple[Row, int]] = field(default_factory=list[tuple[Row, int]])

    @property
    def size(self) -> int:
        return sum(weight for _, weight in self.rows)


@dataclass
class GroupReference:
    """A grouping in progress.

    >>> grouping = GroupReference(GroupBy(("k",), (Aggregate("max", ("v",), "most"),)))
    >>> grouping.step({0: [{"k": 1, "v": 3}, {"k": 1, "v": 2}]}, {}).rows
    [(1, 3, 1)]
    >>> grouping.step({0: [{"k": 1, "v": 9}]}, {}).rows
    [(1, 3, -1), (1, 9, 1)]
    """

    grouping: GroupBy
    _groups: dict[Any, _Group] = field(default_factory=dict[Any, _Group], init=False)
    _open: list[Row] = field(default_factory=list[Row], init=False)
    _mark: int | None = field(default=None, init=False)
    _settles: dict[str, int] = field(default_factory=dict[str, int], init=False)

    def step(self, arrivals: Mapping[int, Iterable[Row]], marks: Marks) -> GroupStep:
        """One batch: the rows that arrived, and the marks that came with them."""
        before = self._table()
        if not self.grouping.keys:
            self._groups.setdefault(freeze(()), _Group((), None))
        late: list[tuple[int, Row]] = []
        for row in self._in_order(arrivals.get(0, ())):
            ended_by = self.grouping.window_end or self.grouping.settled
            end = None if ended_by is None else event_time(row[ended_by])
            if self._has_passed(end):
                late.append((0, row))
                continue
            keys = tuple(_plain(row[name]) for name in self.grouping.keys)
            group = self._groups.setdefault(freeze(keys), _Group(keys, end))
            group.rows.append((row, row[WEIGHT] if self.grouping.changes else 1))
            self._open.append(row)
        if self.grouping.session is not None:
            self._groups = self._sessions(self.grouping.session)
        if self.grouping.keys:
            self._groups = {key: group for key, group in self._groups.items() if group.size}
        after = self._table()
        changed = {key for key in {*before, *after} if _look(before.get(key)) != _look(after.get(key))}
        rows = [(*before[key], -1) for key in before if key in changed]
        rows += [(*after[key], 1) for key in after if key in changed]
        self._hear(marks)
        return GroupStep(rows, late, (len(self._groups),), self._settled(marks))

    def _settled(self, marks: Marks) -> dict[str, int]:
        """How far what the groups are by is settled: behind the end of windows, or as far as it came."""
        for name, behind in self.grouping.settles:
            own = marks.get(name) if self.grouping.time is None else self._mark
            if own is not None:
                mark = own if own == END_OF_INPUT else max(-(2**63), own - behind)
                self._settles[name] = max(mark, self._settles.get(name, mark))
        return dict(self._settles)

    def _in_order(self, rows: Iterable[Row]) -> list[Row]:
        position = self.grouping.position
        return list(rows) if position is None else sorted(rows, key=lambda row: row[position])

    def _hear(self, marks: Marks) -> None:
        """Fold the mark in, and forget the groups whose windows have ended."""
        name = self.grouping.ending
        if name is not None and name in marks:
            self._mark = marks[name] if self._mark is None else max(self._mark, marks[name])
        self._groups = {key: group for key, group in self._groups.items() if not self._has_passed(group.end)}
        left = {id(row) for group in self._groups.values() for row, _ in group.rows}
        self._open = [row for row in self._open if id(row) in left]

    def _sessions(self, name: str) -> dict[Any, _Group]:
        """The sessions of all rows whose sessions have not ended: windows that touch are one."""
        made: list[tuple[list[Any], list[Row]]] = []
        last = dict[Any, tuple[list[Any], list[Row]]]()
        for row in sorted(self._open, key=lambda row: event_time(next(iter(row[name].values()))) or 0):
            others = freeze([_plain(row[key]) for key in self.grouping.keys if key != name])
            start, end = row[name].values()
            if others in last and start <= last[others][0][1]:
                bounds, rows = last[others]
                bounds[1] = max(bounds[1], end)
                rows.append(row)
            else:
                last[others] = ([start, end], [row])
                made.append(last[others])
        places = {id(row): place for place, row in enumerate(self._open)}
        groups = dict[Any, _Group]()
        for bounds, rows in made:
            session = dict(zip(rows[0][name], bounds, strict=True))
            keys = tuple(session if key == name else _plain(rows[0][key]) for key in self.grouping.keys)
            in_order = sorted(rows, key=lambda row: places[id(row)])
            groups[freeze(keys)] = _Group(keys, event_time(bounds[1]), [(row, 1) for row in in_order])
        return groups

    def _has_passed(self, end: int | None) -> bool:
        return self._mark is not None and end is not None and end <= self._mark

    def _table(self) -> dict[Any, tuple[Any, ...]]:
        """The rows that the table shows of the groups that are kept."""
        shown = {key: group for key, group in self._groups.items() if group.size > 0 or not self.grouping.keys}
        return {
            key: (*group.keys, *(value(part, self._rows(part, group)) for part in self.grouping.aggregates))
            for key, group in shown.items()
        }

    def _rows(self, part: Aggregate, group: _Group) -> list[tuple[Row, int]]:
        """The rows of a group as an aggregate sees them.

        One that cannot take a row back by itself sees those that are left: equal rows together, where the last arrived.
        """
        if not self.grouping.changes or function_of(part.function).retractable:
            return group.rows
        read = [*self.grouping.keys, *(name for each in self.grouping.seeing_all for name in each.columns)]
        weights, last = dict[Any, int](), dict[Any, tuple[int, Row]]()
        for place, (row, weight) in enumerate(group.rows):
            same = repr(freeze([row[name] for name in read]))
            weights[same] = weights.get(same, 0) + weight
            if weight > 0:
                last[same] = (place, row)
        left = sorted((last[same][0], same) for same, weight in weights.items() if weight > 0)
        return [(last[same][1], weights[same]) for _, same in left]


def value(aggregate: Aggregate, rows: Sequence[tuple[Row, int]]) -> Any:
    """The value of an aggregate over rows with weights, in the order in which they arrived.

    >>> value(Aggregate("avg", ("v",), "mean"), [({"v": Decimal("1.00")}, 1), ({"v": Decimal("0.00")}, 2)])
    Decimal('0.333333')
    """
    function, columns = aggregate.kind, aggregate.columns
    match function:
        case "count":
            return sum(weight for row, weight in rows if all(row[name] is not None for name in columns))
        case "count_if":
            return sum(weight for row, weight in rows if row[columns[0]])
        case "first" | "last":
            return rows[0 if function == "first" else -1][0][columns[0]] if rows else None
        case "first filtered" | "last filtered":
            found = [row for row, _ in rows if row[columns[1]]]
            return found[0 if function == "first filtered" else -1][columns[0]] if found else None
        case "count distinct":
            found = [[row[name] for name in columns] for row, _ in rows]
            return len({repr(freeze([_plain(one) for one in each])) for each in found if None not in each})
        case "collect_list":
            found = [(row[columns[0]], weight) for row, weight in rows]
            return [one for one, weight in found if one is not None for _ in range(weight)]
        case "collect_set" | "collect_list distinct":
            found = {repr(one): one for row, _ in rows if (one := _plain(row[columns[0]])) is not None}
            return sorted(found.values(), key=cmp_to_key(lambda one, other: compare(one, other) or 0))
        case "min" | "bool_and" | "min_by" | "max" | "bool_or" | "max_by" | "min distinct" | "max distinct":
            found = [row for row, _ in rows if row[columns[-1]] is not None]
            return _extreme(found, columns[-1], -1 if function in _LEAST else 1).get(columns[0])
        case "bit_and" | "bit_or" | "bit_xor":
            found = [(row[columns[0]], weight) for row, weight in rows if row[columns[0]] is not None]
            # A value twice is not what it is once for bit_xor alone.
            each = [one for one, weight in found for _ in range(weight)]
            return reduce(_BITS[function], each) if each else None
        case _:
            found = [(row[columns[0]], weight) for row, weight in rows if row[columns[0]] is not None]
            if function.endswith(DISTINCT):
                found = [(one, 1) for one in {repr(_plain(one)): _plain(one) for one, _ in found}.values()]
            return _total(function.removesuffix(DISTINCT), found)


_LEAST = ("min", "bool_and", "min_by", "min distinct")
_BITS: Mapping[str, Callable[[int, int], int]] = {
    "bit_and": lambda a, b: a & b,
    "bit_or": lambda a, b: a | b,
    "bit_xor": lambda a, b: a ^ b,
}


def _extreme(rows: list[Row], column: str, direction: int) -> Row:
    """The row with the least or greatest value, the last of them; nothing if there are no rows."""
    best: Row = {}
    for row in rows:
        if not best or (compare(row[column], best[column]) or 0) * direction >= 0:
            best = row
    return best


def _total(function: str, values: list[tuple[Any, int]]) -> Any:
    """A sum, average, variance or deviation of values that are not NULL."""
    count = sum(weight for _, weight in values)
    if count <= 0:
        return None
    if function in ("sum", "avg"):
        if isinstance(values[0][0], float):
            return _sum_of_doubles(values, 1 if function == "sum" else count)
        if isinstance(values[0][0], Decimal):
            return _decimal(function, values, count)
        total = sum((_whole(one) * weight for one, weight in values), 0)
        if isinstance(values[0][0], timedelta):
            micros = total if function == "sum" else _half_up(Fraction(total, count))
            return timedelta(microseconds=micros)
        return total if function == "sum" else total / count
    return _deviation(function, values, count)


def _whole(one: int | timedelta) -> int:
    return one // timedelta(microseconds=1) if isinstance(one, timedelta) else int(one)


def _half_up(number: Fraction) -> int:
    return int(math.copysign(1, number)) * math.floor(abs(number) + Fraction(1, 2))


def _decimal(function: str, values: list[tuple[Any, int]], count: int) -> Decimal:
    with localcontext(prec=120):
        total = sum((one * weight for one, weight in values), Decimal(0))
        scale = -int(values[0][0].as_tuple().exponent)
        if function == "sum":
            return total.quantize(Decimal(1).scaleb(-scale))
        return (total / count).quantize(Decimal(1).scaleb(-min(38, scale + 4)), ROUND_HALF_UP)


def _sum_of_doubles(values: list[tuple[float, int]], by: int) -> float:
    odd: dict[str, int] = {}
    for one, weight in values:
        if not math.isfinite(one):
            odd[str(one)] = odd.get(str(one), 0) + weight
    found = [float(kind) for kind, weight in odd.items() if weight > 0]
    if found:
        return sum(found)
    return _nearest(sum((Fraction(one) * weight for one, weight in values if math.isfinite(one)), Fraction(0)) / by)


def _nearest(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _deviation(function: str, values: list[tuple[Any, int]], count: int) -> float | None:
    by = count - 1 if function.endswith("samp") else count
    if by <= 0:
        return None
    if sum(weight for one, weight in values if not math.isfinite(one)):
        return math.nan
    finite = [(Fraction(one), weight) for one, weight in values if math.isfinite(one)]
    mean = sum((one * weight for one, weight in finite), Fraction(0)) / count
    variance = sum(((one - mean) ** 2 * weight for one, weight in finite), Fraction(0)) / by
    if function.startswith("var"):
        return _nearest(variance)
    with localcontext(prec=2000, Emax=10**6, Emin=-(10**6)):
        # Roots that end do so before, and others differ from every half between two doubles.
        return float((Decimal(variance.numerator) / variance.denominator).sqrt())


def _look(row: tuple[Any, ...] | None) -> str:
    """What a row looks like: in nested values -0.0 is not 0.0."""
    return repr(freeze(row))


def _plain(one: Any) -> Any:
    """The value with -0.0 as 0.0 and one NaN at every depth: what is equal then also looks the same."""
    if isinstance(one, float):
        return math.nan if math.isnan(one) else one + 0.0
    if isinstance(one, dict):
        return {name: _plain(part) for name, part in cast("dict[str, Any]", one).items()}
    return [_plain(part) for part in cast("list[Any]", one)] if isinstance(one, list) else one


DEFINITION = GroupReference
