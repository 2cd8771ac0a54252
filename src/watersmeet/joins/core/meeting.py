"""Candidates of a join of two sides, looked at in full."""

from __future__ import annotations

import pyarrow as pa

from watersmeet.joins.core.condition import Condition, holds, same
from watersmeet.joins.core.matching import Pairs
from watersmeet.joins.core.port import Port
from watersmeet.joins.state.layout import Rows


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
