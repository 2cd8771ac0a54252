"""The interval join as a relation, and the row expiry that its condition implies.

A row expiry is ``end >= time - constant``, between a watermarked column of one side and a column or typed expression of
the other. Once the watermark of ``time`` has passed the end of a row, no row to come can match it. The comparison stays
part of the condition; the expiry only says what follows from it for the state. A row whose end is NULL matches nothing.

An equality with the end of a window around the other side's time gives an expiry as well: rows of one window come
before the window ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from watersmeet.catalog import Source
from watersmeet.duration import DAY
from watersmeet.logical.expressions import Expr, Reference
from watersmeet.logical.passes.column_types import (
    EventTimeColumn,
    event_times,
    find_event_time,
    is_lossless_cast,
    time_of_window_end,
    type_of,
)
from watersmeet.logical.passes.comparisons import order_sides, sum_of
from watersmeet.logical.relation import BY_TIME, ConditionalJoin, StateBound, TimeBound, TimeColumn
from watersmeet.logical.words import expression_in_words, sources_by_alias
from watersmeet.schema import TimeType, parse_type_name, time_type_of

Kind = Literal["timestamp", "timestamp_ntz", "date", "integer", "interval"]
"""The kind of an expression's value, as far as row ends are concerned."""


@dataclass(frozen=True)
class RowExpiry:
    """``end >= time - constant`` (``>`` if strict), where ``end`` is over the side ``port``, and ``low`` as written.

    ``is_near``: it is the end of a window around a time of the same row, and so at most the window's length away.
    """

    port: int
    end: Expr
    low: Expr
    time: EventTimeColumn
    constant: int
    strict: bool
    is_near: bool = False


def find_row_expiries(join: ConditionalJoin) -> tuple[RowExpiry, ...]:
    """The row expiries in the condition of a join."""
    sources = {**sources_by_alias(join.left), **sources_by_alias(join.right)}
    equalities = (*join.keys, *(part.args for part in join.residual if part.op == "="))
    windows = (expiry for pair in equalities for expiry in _window_expiries(join, pair[0], pair[1]))
    compared = (expiry for part in join.residual for expiry in _comparison_expiries(join, part))
    return tuple(expiry for expiry in (*compared, *windows) if family_in(expiry.end, sources) == expiry.time.family)


def end_without_type(join: ConditionalJoin, part: Expr) -> tuple[Expr, EventTimeColumn] | None:
    """The expression that would be the end of a row if it had the type of the time that it is compared with."""
    sources = {**sources_by_alias(join.left), **sources_by_alias(join.right)}
    expiry = next(_comparison_expiries(join, part), None)
    is_other = expiry is not None and family_in(expiry.end, sources) is None and expiry.end.op != "cast"
    return (expiry.end, expiry.time) if expiry is not None and is_other else None


def _window_expiries(join: ConditionalJoin, first: Expr, second: Expr) -> Iterator[RowExpiry]:
    """The row expiries from the equality of two values, one of which is the end of a window."""
    for port, (side, other) in enumerate(((join.left, join.right), (join.right, join.left))):
        for end, theirs in ((first, second), (second, first)):
            time = time_of_window_end(theirs, other) if end.sources and end.sources <= frozenset(side.aliases) else None
            if time is not None:
                is_near = time_of_window_end(end, side) is not None
                yield RowExpiry(port, end, _column(time.column), time, 0, strict=True, is_near=is_near)


def _column(time: TimeColumn) -> Expr:
    reference = Reference((time.alias, time.name), 0, 1, time.alias, time.name)
    return Expr("column", text="t", refs=(reference,))


def _comparison_expiries(join: ConditionalJoin, part: Expr) -> Iterator[RowExpiry]:
    """The row expiries from a part of the condition, of any type."""
    comparison = order_sides(part)
    if comparison is None or comparison.direction == "=":
        return
    for port, (side, other) in enumerate(((join.left, join.right), (join.right, join.left))):
        if not comparison.high.sources or not comparison.high.sources <= frozenset(side.aliases):
            continue
        low = sum_of(comparison.low)
        if low is None or len(low.plus) != 1 or low.minus:
            return
        time = find_event_time(low.plus[0], event_times(other))
        if time is None:
            return
        # A DATE that is not a whole number of days off is compared as a time of the day, by the session's time zone.
        unit = DAY if time.family == "date" else 1
        constant = sum(c.value * (1 if c.is_interval else unit) for c in low.constants)
        is_misfit = any(c.is_interval == (time.family == "integer") for c in low.constants if time.family != "date")
        if not is_misfit and constant % unit == 0 and all(is_lossless_cast(time.type, type_) for _, type_ in low.casts):
            yield RowExpiry(port, comparison.high, comparison.low, time, -constant, comparison.direction == ">")


def family_in(expr: Expr, sources: dict[str, Source]) -> TimeType | None:
    """The type of event times that an expression compares with, by declarations and casts; None: none, or unknown."""
    kind = _kind(expr, sources)
    return None if kind == "interval" else kind


def _kind(expr: Expr, sources: dict[str, Source]) -> Kind | None:
    match expr.op:
        case "literal":
            return "integer" if isinstance(expr.value, int) and not isinstance(expr.value, bool) else None
        case "interval":
            return "interval"
        case "negate":
            return _kind(expr.args[0], sources)
        case "+" | "-" | "*":
            kind = _kind(expr.args[0], sources)
            for arg in expr.args[1:]:
                kind = _COMBINED.get((kind, expr.op, _kind(arg, sources)))
            return kind
        case _:
            type_ = type_of(expr, sources)
            type_name = None if type_ is None else parse_type_name(type_)
            if type_ is None or type_name is None:
                return None
            return "interval" if type_name.values == "interval" else time_type_of(type_)


_COMBINED: dict[tuple[Kind | None, str, Kind | None], Kind] = {
    ("integer", "+", "integer"): "integer",
    ("integer", "-", "integer"): "integer",
    ("integer", "*", "integer"): "integer",
    ("timestamp", "+", "interval"): "timestamp",
    ("timestamp", "-", "interval"): "timestamp",
    ("interval", "+", "timestamp"): "timestamp",
    ("timestamp_ntz", "+", "interval"): "timestamp_ntz",
    ("timestamp_ntz", "-", "interval"): "timestamp_ntz",
    ("interval", "+", "timestamp_ntz"): "timestamp_ntz",
    ("date", "+", "integer"): "date",
    ("date", "-", "integer"): "date",
    ("interval", "+", "interval"): "interval",
    ("interval", "-", "interval"): "interval",
    ("interval", "*", "integer"): "interval",
    ("integer", "*", "interval"): "interval",
}
"""The kinds of sums and products of times, integers and intervals; only Spark knows the others."""


@dataclass(frozen=True)
class ZonedBounds:
    """A part of ON that its bounds express only in a time zone whose days all have 24 hours."""

    condition: Expr
    bounds: tuple[TimeBound, ...]


@dataclass(frozen=True)
class AnalyzedIntervalJoin(ConditionalJoin):
    """Two streams joined within ``bounds`` of time, or until the ends that rows carry.

    Each side has a bound, or its rows carry their ends; a conjunct that is a bound is exactly expressed by its bounds.

    - ``zoned``: the bounds that depend on the time zone of the session; ``unzoned``: all others
    - ``shift``: the largest shift of the session's time zone, in microseconds
    """

    family: ClassVar[str] = "interval"

    bounds: tuple[TimeBound, ...] = ()
    zoned: tuple[ZonedBounds, ...] = ()
    unzoned: tuple[TimeBound, ...] = ()
    shift: int = 0

    @property
    def row_expiries(self) -> tuple[RowExpiry, ...]:
        """The ends that rows carry; retention is extended where the clock may shift between an end and the time."""
        moves = {
            expiry: expiry.constant != 0 and expiry.time.family == "timestamp" for expiry in find_row_expiries(self)
        }
        return tuple(
            replace(expiry, constant=expiry.constant + self.shift) if is_moved else expiry
            for expiry, is_moved in moves.items()
        )

    def is_timed(self, port: int) -> bool:
        """Whether a bound, or the window of each row, determines the retention of all rows of a side."""
        is_bound = any(bound.column.alias in self.inputs[port].aliases for bound in self.bounds)
        return is_bound or any(expiry.port == port and expiry.is_near for expiry in self.row_expiries)

    @property
    def is_bounded(self) -> bool:
        """Whether the rows of each side leave at some time."""
        carried = {expiry.port for expiry in self.row_expiries}
        return all(self.is_timed(port) or port in carried for port in (0, 1))

    @property
    def state_bounds(self) -> tuple[StateBound, ...]:
        """Time; and where nothing else bounds the rows of a side, the ends that they carry."""
        ends = (expiry.end for expiry in self.row_expiries if not self.is_timed(expiry.port))
        return (BY_TIME, *(StateBound("ends", expression_in_words(end)) for end in ends))


def lowest_bounds(bounds: Iterable[TimeBound], left: frozenset[str]) -> tuple[TimeBound, ...]:
    """Of several bounds of one pair the lowest implies the others; of two equal ones the strict one does.

    Those of the rows of the side with the aliases ``left`` come first.
    """
    lowest = dict[tuple[object, object], TimeBound]()
    for bound in bounds:
        lowest_bound = lowest.setdefault((bound.column, bound.other), bound)
        if (bound.constant, not bound.strict) < (lowest_bound.constant, not lowest_bound.strict):
            lowest[bound.column, bound.other] = bound
    return tuple(sorted(lowest.values(), key=lambda bound: bound.column.alias not in left))
