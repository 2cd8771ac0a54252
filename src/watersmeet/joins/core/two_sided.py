"""What joins of a left and a right side have in common: their kinds, and a look at candidates in full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

import pyarrow as pa

from watersmeet.joins.core.condition import Condition, holds, same
from watersmeet.joins.core.matching import Pairs
from watersmeet.joins.core.operator import LEFT, Family
from watersmeet.joins.core.port import Port
from watersmeet.joins.state.layout import Rows

Kind = Literal["inner", "left", "right", "full", "semi", "anti"]
"""What comes out. ``inner``: pairs. ``left``, ``right``, ``full``: pairs, and rows of the preserved side or sides that
die alone, padded with nulls. ``semi``: a left row once, at its first match. ``anti``: a left row when it dies alone."""

PRESERVED: Mapping[Kind, tuple[bool, bool]] = {
    "inner": (False, False),
    "left": (True, False),
    "right": (False, True),
    "full": (True, True),
    "semi": (False, False),
    "anti": (True, False),
}
LEFT_ONLY: frozenset[Kind] = frozenset({"semi", "anti"})
"""The kinds whose result shows the left side only."""


@dataclass(frozen=True)
class TwoSided(Family):
    """A join of two sides; ``left`` and ``right``: how their rows arrive."""

    kind: Kind
    left: Port
    right: Port

    @property
    def sides(self) -> tuple[Port, Port]:
        """Left and right, by port."""
        return (self.left, self.right)

    @property
    def preserved(self) -> tuple[bool, bool]:
        """Whether a port's rows come out when they die alone."""
        return PRESERVED[self.kind]

    @property
    def tracked(self) -> tuple[bool, bool]:
        """Whether it matters for a port if its rows match at all, besides what they match."""
        return (True, False) if self.kind == "semi" else self.preserved

    def with_code(self, port: int) -> Self:
        """The same, whose rows also show the code of that port's keys: the join behind it finds them by that."""
        side = self.sides[port]
        shown = replace(side, columns=(*side.columns, str(side.code)))
        return replace(self, left=shown) if port == LEFT else replace(self, right=shown)


def verified(sides: tuple[Port, Port], condition: Condition | None, left: Rows, right: Rows, found: Pairs) -> Pairs:
    """Those of the candidates whose keys really are equal and for which the condition holds."""
    if not sides[0].exact:
        for mine, theirs in zip(sides[0].keys, sides[1].keys, strict=True):
            values = left.table.column(mine).take(pa.array(found.probe))
            found = found.where(same(values, right.table.column(theirs).take(pa.array(found.build))))
    if condition is None:
        return found
    ours = frozenset(left.table.schema.names)

    def column(name: str) -> pa.Array:
        rows, positions = (left, found.probe) if name in ours else (right, found.build)
        return rows.table.column(name).take(pa.array(positions))

    return found.where(holds(condition, column, len(found.probe)))
