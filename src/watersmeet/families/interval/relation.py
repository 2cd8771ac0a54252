"""The interval join: rows meet within bounds of event time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from watersmeet.plan.relation import ConditionalJoin, TimeBound


@dataclass(frozen=True)
class AnalyzedIntervalJoin(ConditionalJoin):
    """Two streams whose rows meet within ``bounds`` of time.

    The bounds hold in both directions; a conjunct that is a bound is exactly expressed by its bounds.
    """

    family: ClassVar[str] = "interval"

    bounds: tuple[TimeBound, ...] = ()

    @property
    def is_bounded(self) -> bool:
        """Whether there is a bound in each direction."""
        bounded = {bound.column.alias for bound in self.bounds}
        return all(bounded.intersection(side.aliases) for side in self.inputs)
