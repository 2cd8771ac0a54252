"""What joins of a left and a right side have in common: their kinds, and a look at candidates in full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

import pyarrow as pa

from watersmeet.operators.core.condition import Condition, holds, null_safe_equal
from watersmeet.operators.core.matching import Pairs
from watersmeet.operators.core.operator import LEFT, StreamOperator
from watersmeet.operators.core.port import Port
from watersmeet.operators.state.layout import KeyedRows

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
class TwoSided(StreamOperator):
    """A join of two sides; ``left`` and ``right``: how their rows arrive."""

    kind: Kind
    left: Port
    right: Port

    @property
    def sides(self) -> tuple[Port, Port]:
        """Left and right, by port."""
        return (self.left, self.right)

    @property
    def is_preserved(self) -> tuple[bool, bool]:
        """Whether a port's rows come out when they die alone."""
        return PRESERVED[self.kind]

    @property
    def tracks_matches(self) -> tuple[bool, bool]:
        """Whether it matters for a port if its rows match at all, besides what they match."""
        return (True, False) if self.kind == "semi" else self.is_preserved

    def with_code(self, port: int) -> Self:
        """The same, whose rows also show the code of that port's keys: the join behind it finds them by that."""
        side = self.sides[port]
        side_with_code = replace(side, columns=(*side.columns, str(side.code)))
        return replace(self, left=side_with_code) if port == LEFT else replace(self, right=side_with_code)


def verify_pairs(
    sides: tuple[Port, Port], condition: Condition | None, left: KeyedRows, right: KeyedRows, candidates: Pairs
) -> Pairs:
    """Those of the candidates whose keys really are equal and for which the condition holds."""
    if not sides[0].exact:
        for mine, theirs in zip(sides[0].keys, sides[1].keys, strict=True):
            values = left.table.column(mine).take(pa.array(candidates.probe))
            candidates = candidates.where(
                null_safe_equal(values, right.table.column(theirs).take(pa.array(candidates.build)))
            )
    if condition is None:
        return candidates
    ours = frozenset(left.table.schema.names)

    def column(name: str) -> pa.Array:
        rows, positions = (left, candidates.probe) if name in ours else (right, candidates.build)
        return rows.table.column(name).take(pa.array(positions))

    return candidates.where(holds(condition, column, len(candidates.probe)))
