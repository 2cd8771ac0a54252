"""Rows that wait for their time: a spine of short runs in the order of time, from which rows leave for good.

Rows that leave together are near each other in time, so a batch rewrites about what it touches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from watersmeet.operators.core.matching import HIGHEST, LOWEST, Bools, Ints
from watersmeet.operators.state.budget import Budget
from watersmeet.operators.state.format import StateBlock
from watersmeet.operators.state.layout import KeyedRows, RowLayout, concat_rows
from watersmeet.operators.state.spine import ShardState, Spine

BUDGET = Budget(block=8_192, smallest_tier=4_096, smallest_at=9, largest=4_096, sparse=1)
"""When rows leave, the rest of their block takes its place; blocks that are at most half full become one in time."""


@dataclass(frozen=True)
class Timeline:
    """Rows in the order of time during a step. Its runs may overlap."""

    spine: Spine

    @staticmethod
    def of(state: ShardState, name: str, layout: RowLayout) -> Timeline:
        """The rows of that name; the layout has a time and no code."""
        return Timeline(state.spine(name, layout, BUDGET))

    def __len__(self) -> int:
        return len(self.spine)

    @property
    def layout(self) -> RowLayout:
        """How the rows are kept."""
        return self.spine.layout

    def add(self, rows: KeyedRows) -> None:
        """Take in further rows, in any order."""
        rows, size = self.layout.sort(rows), self.spine.budget.block
        # Each block is a run of its own, so that blocks that have become short can be merged one by one.
        for start in range(0, len(rows), size):
            self.spine.add(rows.slice(start, start + size))

    def times(self, low: int = int(LOWEST), high: int = int(HIGHEST)) -> Ints:
        """The times of the rows within ``low`` and ``high``, both included, in any order."""
        parts = [np.zeros(0, np.int64)]
        for _, rows in self.blocks_within(low, high):
            times = self._times(rows)
            parts.append(times[np.searchsorted(times, low, "left") : np.searchsorted(times, high, "right")])
        return np.concatenate(parts)

    def has(self, times: Ints) -> Bools:
        """Which of these times, which are ascending, rows have."""
        present = np.zeros(times.size, np.bool_)
        for block, rows in self._blocks_in_range(times):
            time = self.layout.sort_time
            first = np.searchsorted(times, block.lowest[time], "left")
            beyond = np.searchsorted(times, block.highest[time], "right")
            present[first:beyond] |= _is_among(times[first:beyond], self._times(rows))
        return present

    def remove_at(self, times: Ints) -> KeyedRows:
        """Let the rows of these times, which are ascending, leave; returns them in the order of time."""
        removed = [self._remove(*each, _is_among(self._times(each[1]), times)) for each in self._blocks_in_range(times)]
        return self.layout.sort(concat_rows(removed)) if removed else self.layout.empty_rows

    def blocks_within(self, low: int, high: int) -> Iterator[tuple[StateBlock, KeyedRows]]:
        """The blocks that have times within ``low`` and ``high``, both included, with all their rows."""
        time = self.layout.sort_time
        for block in self.spine.blocks:
            if block.lowest[time] <= high and block.highest[time] >= low:
                yield block, self.spine.read(block)

    def _remove(self, block: StateBlock, rows: KeyedRows, evicted: Bools) -> KeyedRows:
        self.spine.remove(block, evicted)
        return rows.where(evicted)

    def _blocks_in_range(self, times: Ints) -> Iterator[tuple[StateBlock, KeyedRows]]:
        return self.blocks_within(int(times[0]), int(times[-1])) if times.size else iter(())

    def _times(self, rows: KeyedRows) -> Ints:
        return rows.times[self.layout.sort_time]


def _is_among(values: Ints, ascending: Ints) -> Bools:
    """Which of the values are among others, which are ascending."""
    if not ascending.size:
        return np.zeros(values.size, np.bool_)
    return ascending[np.minimum(np.searchsorted(ascending, values), ascending.size - 1)] == values
