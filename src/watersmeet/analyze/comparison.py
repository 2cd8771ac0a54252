"""Comparisons of two columns and constants, brought into one form.

``v1.a - v2.a + 10 >= 0`` and ``v2.a <= 10 + v1.a`` say the same: the one column is at least the other less a constant.
Only sums are understood: a column on each side of the difference, each once, and any number of constants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from watersmeet.analyze.event_time import TimeType, can_hold, is_lossless_cast, time_type_of
from watersmeet.catalog import Amount
from watersmeet.duration import DAY
from watersmeet.plan.expressions import Expr

Direction = Literal["=", ">", ">="]

_TURNED = {"<": ">", "<=": ">="}
_DENIED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


@dataclass(frozen=True)
class Comparison:
    """``high + constants`` is equal to, greater than or at least ``low``.

    ``casts``: the columns that were cast on the way, each with the type it was cast to.
    """

    high: Expr
    low: Expr
    direction: Direction
    constants: tuple[Amount, ...]
    casts: tuple[tuple[Expr, str], ...] = ()

    def is_lossless(self, type_of: Callable[[Expr], str]) -> bool:
        """True if no cast changes a time, so that the comparison is one of the columns themselves."""
        return all(is_lossless_cast(type_of(column), type_) for column, type_ in self.casts)

    def constant(self, family: TimeType) -> int:
        """The sum of the constants in the unit of the event times. A plain number is days for a DATE, as in Spark."""
        return sum(c.value * (DAY if family == "date" and not c.is_interval else 1) for c in self.constants)

    def misfit(self, family: TimeType) -> Amount | None:
        """A constant that cannot be added to a time of that family."""
        if family == "date":
            return None
        return next((c for c in self.constants if c.is_interval == (family == "integer")), None)


@dataclass(frozen=True)
class OrderedComparison:
    """``high`` is equal to, greater than or at least ``low``, whatever the two are."""

    high: Expr
    low: Expr
    direction: Direction


@dataclass(frozen=True)
class Sum:
    """Columns and constants, added and taken away."""

    plus: tuple[Expr, ...] = ()
    minus: tuple[Expr, ...] = ()
    constants: tuple[Amount, ...] = ()
    casts: tuple[tuple[Expr, str], ...] = ()

    def subtract(self, other: Sum) -> Sum:
        """The difference of two sums."""
        negated = tuple(Amount(-c.value, c.is_interval) for c in other.constants)
        return self.add(Sum(other.minus, other.plus, negated, other.casts))

    def add(self, other: Sum) -> Sum:
        """Both sums together."""
        plus, minus = self.plus + other.plus, self.minus + other.minus
        return Sum(plus, minus, self.constants + other.constants, self.casts + other.casts)


def compare(expr: Expr) -> Comparison | None:
    """The comparison of two columns that an expression is; None if it is something else.

    >>> from watersmeet.plan.expressions import column
    >>> ten = Expr("literal", text="10", value=10)
    >>> a, b = column(("a",)), column(("b",))
    >>> found = compare(Expr("<=", (b, Expr("+", (a, ten)))))
    >>> found.high == a, found.low == b, found.direction, found.constant("integer")
    (True, True, '>=', 10)
    """
    comparison = order_sides(expr)
    if comparison is None:
        return None
    left, right = sum_of(comparison.high), sum_of(comparison.low)
    if left is None or right is None:
        return None
    difference = left.subtract(right)
    if len(difference.plus) != 1 or len(difference.minus) != 1:
        return None
    return Comparison(
        difference.plus[0], difference.minus[0], comparison.direction, difference.constants, difference.casts
    )


def order_sides(expr: Expr) -> OrderedComparison | None:
    """The comparison that an expression is, the greater side first; None if it is something else."""
    op, args = expr.op, expr.args
    if op == "not" and args[0].op in _DENIED:
        # NOT (a < b) is null where a < b is, and otherwise a >= b.
        op, args = _DENIED[args[0].op], args[0].args
    if op in _TURNED:
        op, args = _TURNED[op], args[::-1]
    if op not in ("=", ">", ">=") or len(args) != 2:
        return None
    return OrderedComparison(args[0], args[1], op)


def sum_of(expr: Expr) -> Sum | None:
    """The sum that an expression is; None if it is something else."""
    match expr.op:
        case "column":
            return Sum(plus=(expr,))
        case "literal" | "interval":
            # True is an int to Python, but not to SQL.
            is_whole = isinstance(expr.value, int) and not isinstance(expr.value, bool)
            return Sum(constants=(Amount(int(expr.value or 0), expr.op == "interval"),)) if is_whole else None
        case "negate":
            inner = sum_of(expr.args[0])
            return None if inner is None else Sum().subtract(inner)
        case "+" | "-" | "*":
            first, *rest = (sum_of(arg) for arg in expr.args)
            for other in rest:
                if first is None or other is None:
                    return None
                combine = {"+": Sum.add, "-": Sum.subtract, "*": _product}[expr.op]
                first = combine(first, other)
            return first
        case "cast":
            return _cast(sum_of(expr.args[0]), str(expr.value))
        case _:
            return None


def _cast(inner: Sum | None, type: str) -> Sum | None:
    """A sum that is cast to a type of times; None where the cast may change more than the type."""
    family = time_type_of(type)
    if inner is None or family is None:
        return None
    if not (inner.plus or inner.minus):
        return inner if all(can_hold(type, c.value) and not c.is_interval for c in inner.constants) else None
    # The difference of two timestamps is no timestamp, and a DATE cuts off what is no whole day.
    is_time = len(inner.plus) == 1 and not inner.minus
    is_whole = all(c.value % DAY == 0 for c in inner.constants if c.is_interval)
    if (family != "integer" and not is_time) or (family == "date" and not is_whole):
        return None
    return replace(inner, casts=(*inner.casts, *((column, type) for column in inner.plus + inner.minus)))


def _product(a: Sum, b: Sum) -> Sum | None:
    """The product of constants, such as ``2 * INTERVAL 1 HOUR``."""
    if a.plus or a.minus or b.plus or b.minus or len(a.constants) != 1 or len(b.constants) != 1:
        return None
    (x,), (y,) = a.constants, b.constants
    if x.is_interval and y.is_interval:
        return None
    return Sum(constants=(Amount(x.value * y.value, x.is_interval or y.is_interval),))
