"""How much a spine may hold in one place, and which of its runs become one."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """How runs are stored and merged: no result depends on it.

    - ``block``: rows of a stored value at most
    - ``merge_at``: so many runs of about one size become one: a row is rewritten once per size it passes through
    - ``smallest_tier``: runs of up to so many rows are of one size; ``smallest_at``: of these, so many become one
    - ``largest``: runs of more rows are merged no further, so that they can be dropped whole when their time has come
    - ``balanced``: all runs become one when the smaller ones together hold as much as the largest
    - ``in_order``: only neighbours become one, as where the newest of several rows counts
    - ``sparse``: a run of which less than one row in so many is left is rewritten; None: not for that
    - ``chunk``: about so many rows are held in memory at once
    """

    block: int = sys.maxsize
    merge_at: int = 4
    smallest_tier: int = 4_096
    smallest_at: int | None = None
    largest: int = sys.maxsize
    balanced: bool = False
    in_order: bool = False
    sparse: int | None = None
    chunk: int = sys.maxsize

    def merge_groups(self, rows: Sequence[int]) -> list[list[int]]:
        """Which runs become one, given how many rows each has, oldest first.

        >>> Budget(smallest_tier=1).merge_groups([9, 1, 1, 1, 1])
        [[1, 2, 3, 4]]
        >>> Budget(smallest_tier=1, balanced=True).merge_groups([3, 1, 1, 1])
        [[0, 1, 2, 3]]
        >>> Budget(smallest_tier=1, merge_at=2, in_order=True).merge_groups([1, 9, 1, 1])
        [[2, 3]]
        """
        if self.balanced and len(rows) > 1 and sum(rows) - max(rows) >= max(max(rows), self.smallest_tier):
            return [list(range(len(rows)))]
        groups = [[number] for number in range(len(rows))]
        while True:
            full = self._find_newest(rows, groups) if self.in_order else self._find_full_tier(rows, groups)
            if not full:
                return [group for group in groups if len(group) > 1]
            first = groups.index(full[0])
            groups = [group for group in groups if group not in full]
            groups.insert(min(first, len(groups)), [number for group in full for number in group])

    def _find_full_tier(self, rows: Sequence[int], groups: list[list[int]]) -> list[list[int]]:
        """Runs of about one size that are enough to become one."""
        tiers: dict[int, list[list[int]]] = {}
        for group in groups:
            size = sum(rows[number] for number in group)
            if size <= self.largest:
                tiers.setdefault(self._tier(size), []).append(group)
        return next(
            (members for tier, members in tiers.items() if len(members) >= self._merge_threshold(tier)),
            list[list[int]](),
        )

    def _find_newest(self, rows: Sequence[int], groups: list[list[int]]) -> list[list[int]]:
        """The newest runs, as far as none is of a larger size than the last, if they are enough to become one."""
        tiers = [self._tier(sum(rows[number] for number in group)) for group in groups]
        first = len(tiers)
        while first and tiers[first - 1] <= tiers[-1]:
            first -= 1
        return groups[first:] if tiers and len(tiers) - first >= self._merge_threshold(tiers[-1]) else []

    def _merge_threshold(self, tier: int) -> int:
        return self.smallest_at if tier == 0 and self.smallest_at is not None else max(2, self.merge_at)

    def _tier(self, rows: int) -> int:
        if rows <= self.smallest_tier:
            return 0
        return 1 + int(math.log(rows / self.smallest_tier, max(2, self.merge_at)))
