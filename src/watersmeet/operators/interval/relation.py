"""The interval join: rows meet within bounds of event time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from watersmeet.operators.interval.row_expiry import RowExpiry, find_row_expiries
from watersmeet.plan.expressions import Expr
from watersmeet.plan.relation import BY_TIME, ConditionalJoin, StateBound, TimeBound
from watersmeet.plan.words import expression_in_words


@dataclass(frozen=True)
class ZonedBounds:
    """A part of ON that its bounds express only in a time zone whose days all have 24 hours."""

    condition: Expr
    bounds: tuple[TimeBound, ...]


@dataclass(frozen=True)
class AnalyzedIntervalJoin(ConditionalJoin):
    """Two streams whose rows meet within ``bounds`` of time, or until the ends that rows carry.

    Each side has a bound, or its rows carry their ends; a conjunct that is a bound is exactly expressed by its bounds.

    - ``zoned``: those of which that depends on the time zone of the session; ``unzoned``: the bounds of all others
    - ``shift``: by how much the clocks of the session's zone have moved at most, in microseconds
    """

    family: ClassVar[str] = "interval"

    bounds: tuple[TimeBound, ...] = ()
    zoned: tuple[ZonedBounds, ...] = ()
    unzoned: tuple[TimeBound, ...] = ()
    shift: int = 0

    @property
    def row_expiries(self) -> tuple[RowExpiry, ...]:
        """The ends that rows carry; a row is kept longer where the clocks may move between its end and the time."""
        moves = {
            expiry: expiry.constant != 0 and expiry.time.family == "timestamp" for expiry in find_row_expiries(self)
        }
        return tuple(
            replace(expiry, constant=expiry.constant + self.shift) if is_moved else expiry
            for expiry, is_moved in moves.items()
        )

    def is_timed(self, port: int) -> bool:
        """Whether a bound, or the window that each row is in, tells how long all rows of a side are kept."""
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
