"""Shared by definitions: values, conditions, rows and watermarks one at a time, to check the kernels against.

Values are what Spark says they are: NaN equals NaN and is greater than every number, -0.0 equals 0.0. Arithmetic is
that of Spark's ANSI mode: ``/`` on integers gives a double, ``%`` takes the sign of the dividend, division by zero and
overflow of 64 bits are errors. A column plus or less a constant does not overflow where it is compared: time bounds are
such comparisons, and mean whole numbers. Timestamps, dates and intervals count in microseconds, dates from midnight
UTC. Aggregates are exact, doubles as fractions, and rounded once in the end. All of it is written here one row at a
time and independently of `condition`, so that each can be checked by the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction
from functools import cmp_to_key, reduce
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Literal, cast

from watersmeet.operators.core.aggregates import DISTINCT, LIST, Aggregate, function_of
from watersmeet.operators.core.condition import Apply, ColumnRef, Condition, Constant
from watersmeet.operators.core.operator import END_OF_INPUT, NOW, Port, StreamOperator, Watermarks
from watersmeet.operators.core.order import SortColumn
from watersmeet.operators.core.python_values import DistantTime

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class RemovedRow:
    """A row that left its port: why, the row ``by`` which it did, and the time or end by whose limit it expired."""

    port: int
    row: Row
    reason: Literal["expired", "evicted", "discarded", "dropped"]
    by: Row | None = None
    column: str = ""


@dataclass(frozen=True)
class ReferenceStep:
    """The result of one batch by the definition of a join; fields that a family does not use stay empty.

    - ``rows``: the columns of the sides one after the other, None where padded, then the join's extra columns
    - ``late``, ``unmatched``: with their port, the late rows, and rows that expired without a match for a side output
    - ``watermarks``: the watermarks of the result, for the columns that have one
    - ``state``, ``dropped``: per port, the rows in the state, and the rows dropped although they might still match
    - ``matched``, ``padded``, ``partitions``: as in `StepReport`
    - ``pairs``, ``gone``: the pairs that matched, left first, and the rows that were removed
    - ``received``: the watermarks received so far
    - ``numbers``: rows with their arrival number, and the clock at that time
    """

    rows: list[tuple[Any, ...]]
    late: list[tuple[int, Row]] = field(default_factory=list[tuple[int, Row]])
    watermarks: dict[str, int] = field(default_factory=dict[str, int])
    state: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    unmatched: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list[tuple[int, tuple[Any, ...]]])
    matched: int = 0
    padded: tuple[int, ...] = ()
    partitions: tuple[int, ...] = ()
    pairs: list[tuple[Row, ...]] = field(default_factory=list[tuple[Row, ...]])
    gone: list[RemovedRow] = field(default_factory=list[RemovedRow])
    received: dict[str, int] = field(default_factory=dict[str, int])
    numbers: list[tuple[Row, int, int | None]] = field(default_factory=list[tuple[Row, int, int | None]])


def is_dead(side: Port, row: Row, *required: str) -> bool:
    """Whether a row can never match: its side says so, or one of its keys or of the ``required`` columns is NULL."""
    if side.dead is not None and row[side.dead] is not False:
        return True
    return any(row[name] is None for name in (*side.keys, *required))


def is_match(sides: tuple[Port, Port], condition: Condition | None, left: Row, right: Row) -> bool:
    """Whether rows of two sides match: neither is dead, their keys are equal, and the condition is true."""
    # Most rows differ in their keys, so these come first.
    if any(compare(left[mine], right[theirs]) != 0 for mine, theirs in zip(sides[0].keys, sides[1].keys, strict=True)):
        return False
    if is_dead(sides[0], left) or is_dead(sides[1], right):
        return False
    return condition is None or evaluate(condition, {**left, **right}) is True


def is_below(time: int | None, watermark: int | None) -> bool:
    """Strictly: a row exactly at the watermark is neither late nor expired. The end expires all, also NULL times."""
    return watermark == END_OF_INPUT or (time is not None and watermark is not None and time < watermark)


def event_time(value: int | datetime | date | DistantTime | None) -> int | None:
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
    return value.micros if isinstance(value, DistantTime) else value


@dataclass
class WatermarkTracker:
    """The watermarks received: a watermark never falls, a union follows its slowest part, a silent column the others.

    ``column#@name`` is the watermark of a partition: a column is the union of those received so far.

    ``wait_pairs`` says which column waits for which. A silent column follows those that wait for it: the latest of
    them, or the ``slowest`` that is not silent itself, where columns also wait for each other.

    >>> from watersmeet.operators.latest.kernel import LatestOperator
    >>> hearing = WatermarkTracker(LatestOperator(Port(()), unions=(("u", ("a", "b")),)))
    >>> hearing.merge({"a": 5, "b": 3})
    >>> hearing.received
    {'a': 5, 'b': 3, 'u': 3}
    """

    operator: StreamOperator
    wait_pairs: Sequence[tuple[str, str]] = ()
    slowest: bool = False
    received: dict[str, int] = field(default_factory=dict[str, int], init=False)
    emitted: dict[str, int] = field(default_factory=dict[str, int], init=False)
    _clock: int | None = field(default=None, init=False)
    _silence: dict[str, int] = field(default_factory=dict[str, int], init=False)
    _paused: set[str] = field(default_factory=set[str], init=False)

    def merge(self, watermarks: Watermarks) -> None:
        """Merge the watermarks of a batch."""
        before, self._clock = self._clock, watermarks.get(NOW, self._clock)
        covered = 0 if before is None or self._clock is None else self._clock - before
        for name, watermark in watermarks.items():
            if name != NOW:
                self._raise(name, watermark)
        unions = self._unions()
        silent = self._find_idle(watermarks, covered, unions)
        for column, parts in unions.items():
            for part in silent:
                others = [self.received[other] for other in parts if other != part and other in self.received]
                if part in parts and others:
                    self._raise(part, max(others))
            if all(part in self.received for part in parts):
                self._raise(column, min(self.received[part] for part in parts))
        for column in silent:
            waiting = [waiter for waiter, other in self.wait_pairs if other == column]
            awake = [waiter for waiter in waiting if waiter not in silent] if self.slowest else []
            marked = [self.received[waiter] for waiter in awake or waiting if waiter in self.received]
            if awake and len(marked) == len(awake):
                self._raise(column, min(marked))
            elif marked and not awake:
                self._raise(column, max(marked))

    def is_late(self, side: Port, row: Row) -> bool:
        """Whether one of the times of a row is below the watermark that its column has received."""
        return any(is_below(_last_time(side, name, row), self.received.get(name)) for name in side.times)

    def hold_back_watermarks(self, columns: Iterable[str], waiting_rows: Sequence[Row]) -> dict[str, int]:
        """The watermarks received for these columns, as far as rows that wait do not hold them back; never back."""
        for name in (name for name in columns if name in self.received):
            times = [event_time(row[name]) for row in waiting_rows]
            bounds = [END_OF_INPUT - 1 if time is None else min(time, END_OF_INPUT - 1) for time in times]
            watermark = min([self.received[name], *bounds])
            self.emitted[name] = max(watermark, self.emitted.get(name, watermark))
        return dict(self.emitted)

    def _unions(self) -> dict[str, tuple[str, ...]]:
        """The columns that several sources, or partitions, feed; those of partitions first."""
        partitions = sorted(name for name in self.received if "#@" in name)
        columns = dict.fromkeys(name.split("#@")[0] for name in partitions)
        own = {column: tuple(name for name in partitions if name.split("#@")[0] == column) for column in columns}
        return {**own, **dict(self.operator.unions)}

    def _find_idle(self, watermarks: Watermarks, covered: int, unions: Mapping[str, tuple[str, ...]]) -> list[str]:
        """The columns, and parts of unions, whose silence has become as long as their idle time.

        A column is active when a batch brings a time of it that is not NULL. Each batch without one makes its silence
        longer by the time it has covered since the batch before. A batch that covers a whole idle time may follow a
        pause of the query, which says nothing about its sources: it counts only if the batch before was one as well.
        """
        if self._clock is None:
            return []
        silent: list[str] = []
        idle = [*self.operator.idle]
        idle += [(name, after) for column, after in idle for name in unions.get(column, ()) if "#@" in name]

        def is_heard(name: str) -> bool:
            return name in watermarks or any(is_heard(part) for part in unions.get(name, ()))

        for column, after in idle:
            is_fresh = is_heard(column)
            if is_fresh or column not in self._silence:
                self._silence[column] = 0
            elif covered >= after and column not in self._paused:
                self._paused.add(column)
                silent += [column] if self._silence[column] >= after else []
                continue
            else:
                self._silence[column] += covered
            if covered or is_fresh:
                self._paused.discard(column)
            if not is_fresh and self._silence[column] >= after:
                silent.append(column)
        return silent

    def _raise(self, name: str, watermark: int) -> None:
        self.received[name] = max(watermark, self.received.get(name, watermark))


def _last_time(side: Port, name: str, row: Row) -> int | None:
    """The last time at which a row is not late by a column: its own, or the last one of its window."""
    window = side.window
    end = event_time(row[window.end]) if window is not None and window.time == name else None
    return event_time(row[name]) if end is None else end - 1


def is_of_last_window(side: Port, row: Row) -> bool:
    """Whether no window of a row ends later than the one that it is here for."""
    if side.window is None or not side.window.has_all:
        return True
    time, end = event_time(row[side.window.time]), event_time(row[side.window.end])
    if time is None or end is None:
        return True
    if side.window.is_cumulative:
        return end % side.window.size == 0
    return end - time > side.window.size - side.window.step


def as_key(item: Any) -> Any:
    """The value with -0.0 as 0.0 and one NaN at every depth, so that equal values have the same text."""
    if isinstance(item, float):
        return math.nan if math.isnan(item) else item + 0.0
    if isinstance(item, dict):
        return {name: as_key(part) for name, part in cast("dict[str, Any]", item).items()}
    return [as_key(part) for part in cast("list[Any]", item)] if isinstance(item, list) else item


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

    >>> evaluate(Apply("<", (ColumnRef("a"), Constant(3))), {"a": 2})
    True
    >>> evaluate(Apply("and", (Constant(None), Constant(False))), {})
    False
    """
    match condition:
        case ColumnRef(name):
            return _normalize(row[name])
        case Constant(value):
            return _normalize(value)
        case Apply("and" | "or" as operator, args):
            return _evaluate_logic(operator == "or", args, row)
        case Apply("is_null", (arg,)):
            return evaluate(arg, row) is None
        case Apply("not", (arg,)):
            value = evaluate(arg, row)
            return None if value is None else not value
        case Apply("negate", (arg,)):
            value = evaluate(arg, row)
            return None if value is None else _check_range(-value)
        case Apply(operator, (left, right)) if operator in _COMPARISONS or operator == "<=>":
            return _apply_binary(operator, _operand(left, row), _operand(right, row))
        case Apply(operator, (left, right)):
            return _apply_binary(operator, evaluate(left, row), evaluate(right, row))
        case Apply(operator, args):
            raise ValueError(f"{operator} does not take {len(args)} arguments")


def _operand(part: Condition, row: Mapping[str, Any]) -> Any:
    """Evaluate an operand; a column plus or minus a constant, as in time bounds, is an integer of any size."""
    match part:
        case Apply("+" | "-" as operator, (ColumnRef(), Constant()) as args):
            value, constant = (evaluate(arg, row) for arg in args)
            if isinstance(value, int) and isinstance(constant, int):
                return value + constant if operator == "+" else value - constant
        case _:
            pass
    return evaluate(part, row)


def compare(left: Any, right: Any) -> int | None:
    """Negative, zero or positive as one value is before, equal to or after the other; None if either is NULL.

    >>> compare(float("nan"), float("inf")), compare(-0.0, 0.0), compare(None, 1)
    (1, 0, None)
    """
    left, right = _normalize(left), _normalize(right)
    if left is None or right is None:
        return None
    if isinstance(left, dict | list | tuple):
        return _compare_parts(_parts(left), _parts(right))
    left, right = _widen_types(left, right)
    if isinstance(left, float):
        nan, other_nan = math.isnan(left), math.isnan(right)
        if nan or other_nan:
            return nan - other_nan
    return (left > right) - (left < right)


def _normalize(value: Any) -> Any:
    if isinstance(value, date | DistantTime):  # a datetime is a date, too
        return event_time(value)
    if isinstance(value, timedelta):
        return value // _MICROSECOND
    return value


def _evaluate_logic(decisive: bool, args: tuple[Condition, ...], row: Mapping[str, Any]) -> bool | None:
    unknown = False
    for arg in args:
        value = evaluate(arg, row)
        if value is decisive:
            return decisive
        unknown = unknown or value is None
    return None if unknown else not decisive


_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": eq, "<>": ne, "<": lt, "<=": le, ">": gt, ">=": ge,
}  # fmt: skip


def _apply_binary(operator: str, left: Any, right: Any) -> Any:
    if operator == "<=>":
        return left is right if left is None or right is None else compare(left, right) == 0
    if left is None or right is None:
        return None
    if operator in _COMPARISONS:
        return _COMPARISONS[operator](compare(left, right), 0)
    return _arithmetic(operator, *_widen_types(left, right))


def _arithmetic(operator: str, left: Any, right: Any) -> Any:
    if operator in "/%" and right == 0:
        raise ZeroDivisionError(f"{left} {operator} {right}")
    with localcontext(prec=76):
        match operator:
            case "+":
                return _check_range(left + right)
            case "-":
                return _check_range(left - right)
            case "*":
                return _check_range(left * right)
            case "/":
                return left / right if isinstance(left, Decimal) else float(left) / float(right)
            case "%":
                return _remainder(left, right)
            case _:
                raise ValueError(f"{operator} is not an operator")


def _remainder(left: Any, right: Any) -> Any:
    if isinstance(left, float):
        return math.fmod(left, right)
    # Python's % on integers takes the sign of the divisor; on Decimal it takes that of the dividend, as Spark's does.
    return left % right if isinstance(left, Decimal) else int(math.copysign(1, left)) * (abs(left) % abs(right))


def _check_range(value: Any) -> Any:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise OverflowError(f"{value} does not fit 64 bits")
    return value


def _widen_types(left: Any, right: Any) -> tuple[Any, Any]:
    """Both as doubles if one is, else both as decimals if one is: Spark's widening."""
    for kind in (float, Decimal):
        if isinstance(left, kind) or isinstance(right, kind):
            return kind(left), kind(right)
    return left, right


def _parts(value: Any) -> list[Any]:
    return list(cast("dict[str, Any]", value).values()) if isinstance(value, dict) else list(value)


def _compare_parts(left: list[Any], right: list[Any]) -> int:
    for a, b in zip(left, right, strict=False):
        # Inside a nested value NULL is a value like any other, and comes first.
        order = (a is not None) - (b is not None) if a is None or b is None else compare(a, b)
        if order:
            return order
    return len(left) - len(right)


def live_rows(changes: Sequence[tuple[Row, int]], columns: Sequence[str]) -> list[tuple[Row, int]]:
    """The rows that changes leave, with their weights, in the order of arrival.

    Rows that are equal in the columns are one row, at the place where the last of them arrived.

    >>> live_rows([({"a": 1}, 1), ({"a": 2}, 1), ({"a": 1}, 1), ({"a": 2}, -1)], ["a"])
    [({'a': 1}, 2)]
    """
    weights, last = dict[str, int](), dict[str, tuple[int, Row]]()
    for place, (row, weight) in enumerate(changes):
        key = repr(freeze([row[name] for name in columns]))
        weights[key] = weights.get(key, 0) + weight
        if weight > 0:
            last[key] = (place, row)
    live = sorted((last[key][0], key) for key, weight in weights.items() if weight > 0)
    return [(last[key][1], weights[key]) for _, key in live]


def aggregate_rows(aggregate: Aggregate, rows: Sequence[tuple[Row, int]]) -> Any:  # noqa: PLR0911 - one case per aggregate
    """The value of an aggregate over rows with weights, in the order in which they arrived.

    >>> aggregate_rows(Aggregate("avg", ("v",), "mean"), [({"v": Decimal("1.00")}, 1), ({"v": Decimal("0.00")}, 2)])
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
    return sorted(rows, key=cmp_to_key(lambda one, other: compare_in_order(one[0], other[0], order)))


def compare_in_order(one: Row, other: Row, order: Sequence[SortColumn]) -> int:
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
