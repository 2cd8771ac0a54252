"""The latest row per key, by definition: one row at a time, slow and obvious."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from watersmeet.operators.core.changes import OP, POSITION
from watersmeet.operators.core.operator import Watermarks
from watersmeet.operators.core.rowwise import Row, freeze
from watersmeet.operators.latest.kernel import LatestOperator


class LatestReference:
    """The latest row per key, one row at a time."""

    def __init__(self, latest: LatestOperator) -> None:
        self.latest = latest
        self.rows: dict[Any, tuple[Any, ...]] = {}

    def step(
        self, arrivals: Mapping[int, Sequence[Row]], watermarks: Watermarks | None = None
    ) -> Counter[tuple[Any, ...]]:
        """One batch: upserts and deletes in the order of delivery; gives what changes, each row with a number."""
        before = Counter(self.rows.values())
        for row in sorted(arrivals.get(0, ()), key=lambda row: row.get(POSITION, 0)):
            key = tuple(freeze(row[name]) for name in self.latest.port.keys)
            if any(row[name] is None for name in self.latest.port.keys):
                continue
            dead = self.latest.port.dead is not None and row[self.latest.port.dead]
            if dead or (not self.latest.append and row[OP] < 0):
                self.rows.pop(key, None)
            else:
                self.rows[key] = tuple(freeze(row[name]) for name in self.latest.port.columns)
        after = Counter(self.rows.values())
        after.subtract(before)
        return Counter({row: number for row, number in after.items() if number})


DEFINITION = LatestReference
