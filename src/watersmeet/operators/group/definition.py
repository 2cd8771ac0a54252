"""The definition of a grouping: it stores all rows of a group and recomputes its aggregates each time.

Slow and obvious. Arithmetic is exact and rounded once in the end: whole numbers and decimals by nature, doubles as
fractions. Types are not known here, so only a value that no type could hold is an overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction
from functools import cmp_to_key, reduce
from typing import Any

from watersmeet.operators.core.aggregates import DISTINCT, LIST, function_of
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.operators.core.operator import END_OF_INPUT, Watermarks
from watersmeet.operators.core.order import SortColumn
from watersmeet.operators.core.rowwise import as_key, compare, event_time, freeze, live_rows
from watersmeet.operators.group.kernel import Aggregate, GroupByOperator

Row = Mapping[str, Any]


@dataclass(frozen=True)
class GroupStep:
    """The output of one batch: rows of the table with their weights, the late rows, and the number of stored groups."""

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

    >>> grouping = GroupReference(GroupByOperator(("k",), (Aggregate("max", ("v",), "most"),)))
    >>> grouping.step({0: [{"k": 1, "v": 3}, {"k": 1, "v": 2}]}, {}).rows
    [(1, 3, 1)]
    >>> grouping.step({0: [{"k": 1, "v": 9}]}, {}).rows
    [(1, 3, -1), (1, 9, 1)]
    """

    grouping: GroupByOperator
    _groups: dict[Any, _Group] = field(default_factory=dict[Any, _Group], init=False)
    _open_rows: list[Row] = field(default_factory=list[Row], init=False)
    _watermark: int | None = field(default=None, init=False)
    _final_watermarks: dict[str, int] = field(default_factory=dict[str, int], init=False)

    def step(self, arrivals: Mapping[int, Iterable[Row]], watermarks: Watermarks) -> GroupStep:
        """Process one batch: the rows that arrived, and their watermarks."""
        before = self._visible_rows()
        if not self.grouping.keys:
            self._groups.setdefault(freeze(()), _Group((), None))
        late: list[tuple[int, Row]] = []
        for row in self._sort_by_position(arrivals.get(0, ())):
            ended_by = self.grouping.window_end or self.grouping.final_key
            end = None if ended_by is None else event_time(row[ended_by])
            end = None if end is None else end + self.grouping.before_end
            if self._has_passed(end):
                late.append((0, row))
                continue
            keys = tuple(as_key(row[name]) for name in self.grouping.keys)
            group = self._groups.setdefault(freeze(keys), _Group(keys, end))
            group.rows.append((row, row[WEIGHT] if self.grouping.changes else 1))
            self._open_rows.append(row)
        if self.grouping.session is not None:
            self._groups = self._merge_sessions(self.grouping.session)
        if self.grouping.keys:
            self._groups = {key: group for key, group in self._groups.items() if group.size}
        after = self._visible_rows()
        changed = {key for key in {*before, *after} if _fingerprint(before.get(key)) != _fingerprint(after.get(key))}
        rows = [(*before[key], -1) for key in before if key in changed]
        rows += [(*after[key], 1) for key in after if key in changed]
        self._advance_watermark(watermarks)
        if self.grouping.emit == "final":
            rows = [row for key, row in after.items() if key not in self._groups]
        return GroupStep(rows, late, (len(self._groups),), self._advance_final_watermarks(watermarks))

    def _advance_final_watermarks(self, watermarks: Watermarks) -> dict[str, int]:
        """Advance the watermarks of final keys: behind the end of windows, or as received."""
        for name, behind in self.grouping.finality_outputs:
            source_watermark = watermarks.get(name) if self.grouping.time is None else self._watermark
            # A group of a stream that has not closed ends after the watermark, not at it.
            behind -= self.grouping.emit == "final"
            if source_watermark is not None:
                watermark = (
                    source_watermark if source_watermark == END_OF_INPUT else max(-(2**63), source_watermark - behind)
                )
                self._final_watermarks[name] = max(watermark, self._final_watermarks.get(name, watermark))
        return dict(self._final_watermarks)

    def _sort_by_position(self, rows: Iterable[Row]) -> list[Row]:
        position = self.grouping.position
        return list(rows) if position is None else sorted(rows, key=lambda row: row[position])

    def _advance_watermark(self, watermarks: Watermarks) -> None:
        """Advance the watermark, and drop the groups whose windows have closed."""
        name = self.grouping.end_watermark
        if name is not None and name in watermarks:
            self._watermark = watermarks[name] if self._watermark is None else max(self._watermark, watermarks[name])
        self._groups = {key: group for key, group in self._groups.items() if not self._has_passed(group.end)}
        remaining = {id(row) for group in self._groups.values() for row, _ in group.rows}
        self._open_rows = [row for row in self._open_rows if id(row) in remaining]

    def _merge_sessions(self, name: str) -> dict[Any, _Group]:
        """The sessions of all rows whose sessions have not ended: windows that touch are one."""
        sessions: list[tuple[list[Any], list[Row]]] = []
        last = dict[Any, tuple[list[Any], list[Row]]]()
        for row in sorted(self._open_rows, key=lambda row: event_time(next(iter(row[name].values()))) or 0):
            others = freeze([as_key(row[key]) for key in self.grouping.keys if key != name])
            start, end = row[name].values()
            if others in last and start <= last[others][0][1]:
                bounds, rows = last[others]
                bounds[1] = max(bounds[1], end)
                rows.append(row)
            else:
                last[others] = ([start, end], [row])
                sessions.append(last[others])
        places = {id(row): place for place, row in enumerate(self._open_rows)}
        groups = dict[Any, _Group]()
        for bounds, rows in sessions:
            session = dict(zip(rows[0][name], bounds, strict=True))
            keys = tuple(session if key == name else as_key(rows[0][key]) for key in self.grouping.keys)
            in_order = sorted(rows, key=lambda row: places[id(row)])
            groups[freeze(keys)] = _Group(keys, event_time(bounds[1]), [(row, 1) for row in in_order])
        return groups

    def _has_passed(self, end: int | None) -> bool:
        if self._watermark is None or end is None:
            # A group without an end stays open up to the end of input.
            return self._watermark == END_OF_INPUT and self.grouping.emit == "final"
        return end <= self._watermark

    def _visible_rows(self) -> dict[Any, tuple[Any, ...]]:
        """The rows that the table shows of the stored groups."""
        visible = {key: group for key, group in self._groups.items() if group.size > 0 or not self.grouping.keys}
        return {
            key: (*group.keys, *(value(part, self._rows_seen_by(part, group)) for part in self.grouping.aggregates))
            for key, group in visible.items()
        }

    def _rows_seen_by(self, part: Aggregate, group: _Group) -> list[tuple[Row, int]]:
        """The rows of a group as an aggregate sees them.

        One that cannot take a row back by itself sees those that are left: equal rows together, where the last arrived.
        """
        if not self.grouping.changes or function_of(part.function).retractable:
            return group.rows
        columns = [*self.grouping.keys, *(name for each in self.grouping.all_rows_aggregates for name in each.inputs)]
        return live_rows(group.rows, columns)


def value(aggregate: Aggregate, rows: Sequence[tuple[Row, int]]) -> Any:  # noqa: PLR0911 - one case per aggregate
    """The value of an aggregate over rows with weights, in the order in which they arrived.

    >>> value(Aggregate("avg", ("v",), "mean"), [({"v": Decimal("1.00")}, 1), ({"v": Decimal("0.00")}, 2)])
    Decimal('0.333333')
    """
    function, columns = aggregate.kind, aggregate.columns
    rows = _sort_rows(aggregate, rows)
    match function:
        case "count":
            return sum(weight for row, weight in rows if all(row[name] is not None for name in columns))
        case "count_if":
            return sum(weight for row, weight in rows if row[columns[0]])
        case "first" | "last":
            return rows[0 if function == "first" else -1][0][columns[0]] if rows else None
        case "first filtered" | "last filtered":
            inputs = [row for row, _ in rows if row[columns[1]]]
            return inputs[0 if function == "first filtered" else -1][columns[0]] if inputs else None
        case "count distinct":
            inputs = [[row[name] for name in columns] for row, _ in rows]
            return len({repr(freeze([as_key(one) for one in each])) for each in inputs if None not in each})
        case "collect_list" | "listagg" | "collect_set" | "collect_list distinct" | "listagg distinct":
            return _collect(aggregate, [(row[columns[0]], weight) for row, weight in rows])
        case "percentile" | "percentile_disc" | "percentile list" | "percentile_disc list":
            return _percentiles(aggregate, [(row[columns[0]], weight) for row, weight in rows])
        case "min" | "bool_and" | "min_by" | "max" | "bool_or" | "max_by" | "min distinct" | "max distinct":
            inputs = [row for row, _ in rows if row[columns[-1]] is not None]
            return _extreme(inputs, columns[-1], -1 if function in _LEAST else 1).get(columns[0])
        case "bit_and" | "bit_or" | "bit_xor":
            inputs = [(row[columns[0]], weight) for row, weight in rows if row[columns[0]] is not None]
            # Only bit_xor depends on how often a value occurs.
            each = [one for one, weight in inputs for _ in range(weight)]
            return reduce(_BITS[function], each) if each else None
        case _:
            inputs = [(row[columns[0]], weight) for row, weight in rows if row[columns[0]] is not None]
            if function.endswith(DISTINCT):
                inputs = [(one, 1) for one in {repr(as_key(one)): as_key(one) for one, _ in inputs}.values()]
            return _total(function.removesuffix(DISTINCT), inputs)


_LEAST = ("min", "bool_and", "min_by", "min distinct")
_BITS: Mapping[str, Callable[[int, int], int]] = {
    "bit_and": lambda a, b: a & b,
    "bit_or": lambda a, b: a | b,
    "bit_xor": lambda a, b: a ^ b,
}


def _collect(aggregate: Aggregate, weighted: list[tuple[Any, int]]) -> Any:
    """The values that are not NULL, as a list or a text: in their order, or as a set in that of the values."""
    values = [one for one, weight in weighted if one is not None for _ in range(weight)]
    if function_of(aggregate.function).fold == "set":
        once = {repr(one): one for one in map(as_key, values)}
        values = sorted(once.values(), key=cmp_to_key(lambda one, other: compare(one, other) or 0))
        values = values[::-1] if any(by.descending for by in aggregate.order) else values
    if not aggregate.kind.startswith("listagg"):
        return values
    return str(aggregate.constants[0]).join(values) if values else None


def _sort_rows(aggregate: Aggregate, rows: Sequence[tuple[Row, int]]) -> Sequence[tuple[Row, int]]:
    """The rows in the order that an aggregate asks for, equal ones in the order of their arrival."""
    order = aggregate.order if function_of(aggregate.function).is_ordered else ()
    return sorted(rows, key=cmp_to_key(lambda one, other: _compare_in_order(one[0], other[0], order)))


def _compare_in_order(one: Row, other: Row, order: Sequence[SortColumn]) -> int:
    """-1 if one row comes before another, 1 if behind it, 0 if they are equal in the order."""
    for by in order:
        values = one[by.column], other[by.column]
        if None in values:
            difference = (values[1] is None) - (values[0] is None)
            difference = -difference if by.nulls_last else difference
        else:
            difference = (compare(*values) or 0) * (-1 if by.descending else 1)
        if difference:
            return difference
    return 0


def _percentiles(aggregate: Aggregate, weighted: list[tuple[Any, int]]) -> Any:
    """Percentiles of the values that are not NULL: between two values, the place counts as much as it is near each."""
    values = [one for one, weight in weighted if one is not None for _ in range(weight)]
    if not values:
        return None
    is_turned = any(by.descending for by in aggregate.order)
    values.sort(key=cmp_to_key(lambda one, other: (compare(one, other) or 0) * (-1 if is_turned else 1)))
    numbers = [float(_to_integer(one) if isinstance(one, timedelta) else one) + 0.0 for one in values]
    results = list[float]()
    for fraction in map(float, aggregate.constants):
        if aggregate.kind.startswith("percentile_disc"):
            results.append(numbers[max(math.ceil(len(numbers) * fraction), 1) - 1])
            continue
        position = (len(numbers) - 1) * fraction
        low, high = numbers[math.floor(position)], numbers[math.ceil(position)]
        is_same = low == high or (math.isnan(low) and math.isnan(high))
        results.append(low if is_same else low + (position - math.floor(position)) * (high - low))
    shown = [timedelta(microseconds=int(one)) for one in results] if isinstance(values[0], timedelta) else results
    return shown if aggregate.kind.endswith(LIST) else shown[0]


def _extreme(rows: list[Row], column: str, direction: int) -> Row:
    """The row with the least or greatest value, the last among equals; empty without rows."""
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
        total = sum((_to_integer(number) * weight for number, weight in values), 0)
        if isinstance(values[0][0], timedelta):
            micros = total if function == "sum" else _half_up(Fraction(total, count))
            return timedelta(microseconds=micros)
        return total if function == "sum" else total / count
    return _deviation(function, values, count)


def _to_integer(number: int | timedelta) -> int:
    return number // timedelta(microseconds=1) if isinstance(number, timedelta) else int(number)


def _half_up(number: Fraction) -> int:
    return int(math.copysign(1, number)) * math.floor(abs(number) + Fraction(1, 2))


def _decimal(function: str, values: list[tuple[Any, int]], count: int) -> Decimal:
    with localcontext(prec=120):
        total = sum((number * weight for number, weight in values), Decimal(0))
        scale = -int(values[0][0].as_tuple().exponent)
        if function == "sum":
            return total.quantize(Decimal(1).scaleb(-scale))
        return (total / count).quantize(Decimal(1).scaleb(-min(38, scale + 4)), ROUND_HALF_UP)


def _sum_of_doubles(values: list[tuple[float, int]], by: int) -> float:
    non_finite: dict[str, int] = {}
    for number, weight in values:
        if not math.isfinite(number):
            non_finite[str(number)] = non_finite.get(str(number), 0) + weight
    sums = [float(kind) for kind, weight in non_finite.items() if weight > 0]
    if sums:
        return sum(sums)
    return _nearest(
        sum((Fraction(number) * weight for number, weight in values if math.isfinite(number)), Fraction(0)) / by
    )


def _nearest(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _deviation(function: str, values: list[tuple[Any, int]], count: int) -> float | None:
    by = count - 1 if function.endswith("samp") else count
    if by <= 0:
        return None
    if sum(weight for number, weight in values if not math.isfinite(number)):
        return math.nan
    finite = [(Fraction(number), weight) for number, weight in values if math.isfinite(number)]
    mean = sum((number * weight for number, weight in finite), Fraction(0)) / count
    variance = sum(((number - mean) ** 2 * weight for number, weight in finite), Fraction(0)) / by
    if function.startswith("var"):
        return _nearest(variance)
    with localcontext(prec=2000, Emax=10**6, Emin=-(10**6)):
        # Roots that end do so before, and others differ from every half between two doubles.
        return float((Decimal(variance.numerator) / variance.denominator).sqrt())


def _fingerprint(row: tuple[Any, ...] | None) -> str:
    """The text of a row: in nested values -0.0 is not 0.0."""
    return repr(freeze(row))


DEFINITION = GroupReference
