"""The interval join: rows meet within bounds of event time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from watersmeet.families.interval.lives import Life, lives_of
from watersmeet.plan.expressions import Expr
from watersmeet.plan.relation import BY_TIME, Bounded, ConditionalJoin, TimeBound
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
    def lives(self) -> tuple[Life, ...]:
        """The ends that rows carry; a row is kept longer where the clocks may move between its end and the time."""
        moves = {life: life.constant != 0 and life.time.family == "timestamp" for life in lives_of(self)}
        return tuple(
            replace(life, constant=life.constant + self.shift) if is_moved else life for life, is_moved in moves.items()
        )

    def is_timed(self, port: int) -> bool:
        """Whether a bound, or the window that each row is in, tells how long all rows of a side are kept."""
        is_bound = any(bound.column.alias in self.inputs[port].aliases for bound in self.bounds)
        return is_bound or any(life.port == port and life.is_near for life in self.lives)

    @property
    def is_bounded(self) -> bool:
        """Whether the rows of each side leave at some time."""
        carried = {life.port for life in self.lives}
        return all(self.is_timed(port) or port in carried for port in (0, 1))

    @property
    def bounded(self) -> tuple[Bounded, ...]:
        """Time; and where nothing else bounds the rows of a side, the ends that they carry."""
        ends = (life.end for life in self.lives if not self.is_timed(life.port))
        return (BY_TIME, *(Bounded("ends", expression_in_words(end)) for end in ends))


def lowest_bounds(bounds: Iterable[TimeBound], left: frozenset[str]) -> tuple[TimeBound, ...]:
    """Of several bounds of one pair the lowest implies the others; of two equal ones the strict one does.

    Those of the rows of the side with the aliases ``left`` come first.
    """
    lowest = dict[tuple[object, object], TimeBound]()
    for bound in bounds:
        known = lowest.setdefault((bound.column, bound.other), bound)
        if (bound.constant, not bound.strict) < (known.constant, not known.strict):
            lowest[bound.column, bound.other] = bound
    return tuple(sorted(lowest.values(), key=lambda bound: bound.column.alias not in left))
