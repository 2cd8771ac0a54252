"""Stream rows that wait for their table row: who waits for a code, and who is forgotten.

Rows are numbered in the order in which they were looked up, and the clock never goes back, so whatever is forgotten, by
age or because too many wait, are the rows that came first.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from watersmeet.joins.core.matching import Ints
from watersmeet.joins.state.format import Block
from watersmeet.joins.state.spine import Spine

NUMBER, ARRIVED = "#number", "#arrived"
"""int64 columns: a row's place in the order of arrival, and the clock then; `LOWEST` before there was one."""


def numbered(spine: Spine, table: pa.Table) -> pa.Table:
    """Rows in the order of arrival with their numbers, which follow those of the spine."""
    first = 1 + max((block.highest[NUMBER] for block in spine.blocks), default=0)
    return table.append_column(NUMBER, pa.array(np.arange(first, first + table.num_rows)))


def waiting_for(spine: Spine, codes: Ints) -> Iterator[tuple[Block, Ints]]:
    """The rows that wait for these codes (sorted, each once): blocks, and positions in each."""
    for block in spine.blocks:
        first = np.searchsorted(codes, block.lowest_code, "left")
        if first == np.searchsorted(codes, block.highest_code, "right"):
            continue
        stored = spine.read(block).codes
        found = np.minimum(np.searchsorted(codes, stored), codes.size - 1)
        positions = np.flatnonzero((codes[found] == stored) & spine.left(block))
        if positions.size:
            yield block, positions


def forget_before(spine: Spine, limit: int, column: str = ARRIVED) -> None:
    """Forget the rows that came before that clock, or number."""
    for block in spine.blocks:
        if block.highest[column] < limit:
            spine.drop(block)
        elif block.lowest[column] < limit:
            spine.remove(block, spine.read(block).times[column] < limit)


def forget(spine: Spine, rows: int) -> None:
    """Forget so many rows, at least one, the first to have come."""
    numbers = np.zeros(0, np.int64)
    for block in sorted(spine.blocks, key=lambda block: block.lowest[NUMBER]):
        if np.count_nonzero(numbers < block.lowest[NUMBER]) >= rows:
            break
        numbers = np.concatenate([numbers, spine.read(block).times[NUMBER][spine.left(block)]])
    forget_before(spine, int(np.partition(numbers, rows - 1)[rows - 1]) + 1, NUMBER)
