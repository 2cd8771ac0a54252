"""The as-of join: each row with the version that is in force at its time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from watersmeet.plan.bounds import per_key
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import ClauseExpr, ParsedJoin, Values
from watersmeet.plan.relation import AnalyzedLeaf, ConditionalJoin, Padding, StateBound, TimeColumn

Direction = Literal["backward", "forward", "nearest"]
"""Which version an as-of join looks for: the latest at or before the time, the earliest at or after, the closer."""


@dataclass(frozen=True)
class ParsedAsofJoin(ParsedJoin):
    """``left [LEFT] ASOF JOIN right``: each left row with the version of the right side that its time asks for.

    - ``within``: how far a version may be away
    - ``match``: the comparison of MATCH_CONDITION, or ``nearest(left time, right time)``
    - ``as_of``: the time of FOR SYSTEM_TIME AS OF, which stands for ``match``
    - ``defaults``: what the right columns show where there is no version
    """

    match: Expr | None = None
    as_of: Expr | None = None
    defaults: Values = ()

    @property
    def expressions(self) -> tuple[ClauseExpr, ...]:
        """The condition, and the time that is asked for."""
        clauses = (("MATCH_CONDITION", self.match), ("AS OF", self.as_of))
        return (*((words, expr) for words, expr in clauses if expr is not None), *super().expressions)


@dataclass(frozen=True)
class AnalyzedAsofJoin(ConditionalJoin):
    """Each left row with the version of the right side that is in force at its time; ``kind`` is inner or left.

    - ``left_time``, ``right_time``: the event times that are compared; ``strict``: equal times do not count
    - ``tolerance``: how far away a version may be, in the unit of the times (microseconds for DATE); None: any distance
    - ``left_only``: where one is not true, the row has no version
    - ``right_only``: where one is not true of the version in force, the left row has no version
    - ``defaults``: what right columns show where there is no version (see `Padding`); the others are NULL
    """

    family: ClassVar[str] = "asof"

    right: AnalyzedLeaf
    left_time: TimeColumn
    right_time: TimeColumn
    direction: Direction = "backward"
    strict: bool = False
    tolerance: int | None = None
    defaults: Values = ()

    @property
    def state_bounds(self) -> tuple[StateBound, ...]:
        """Of each key the latest version may be asked for at any time, unless it is too far away then."""
        if self.direction == "forward" or self.tolerance is not None:
            return super().state_bounds
        return (*super().state_bounds, per_key([right for _, right in self.keys], "version"))

    def pads(self, port: int) -> Padding | None:
        """The defaults where there is no version."""
        return (self.defaults or "nulls") if port == 1 and self.kind == "left" else None

    def can_push_down_filter(self, port: int) -> bool:
        """Of the versions none may be missing: each ends the life of the one before."""
        return port == 0

    def shows_times(self, port: int) -> bool:
        """The versions that are shown come in no order."""
        return port == 0
