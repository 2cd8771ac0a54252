"""The interval join: rows meet within bounds of event time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from watersmeet.families.interval.lives import Life, lives_of
from watersmeet.plan.relation import BY_TIME, Bounded, ConditionalJoin, TimeBound
from watersmeet.plan.words import expression_in_words


@dataclass(frozen=True)
class AnalyzedIntervalJoin(ConditionalJoin):
    """Two streams whose rows meet within ``bounds`` of time, or until the ends that rows carry.

    Each side has a bound, or its rows carry their ends; a conjunct that is a bound is exactly expressed by its bounds.
    """

    family: ClassVar[str] = "interval"

    bounds: tuple[TimeBound, ...] = ()

    @property
    def lives(self) -> tuple[Life, ...]:
        """The ends that rows carry."""
        return lives_of(self)

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
