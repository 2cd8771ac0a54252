"""How often a row is written to the state: once when it comes, and once more for every merge that it lives through."""

from __future__ import annotations

import math

MERGE_AT, LARGEST = 4, 250_000
"""Runs of about one size that become one, and the rows from which on a run is merged no further."""


def times_written(rows_per_run: float, rows_alive: float) -> float:
    """How often a row of a shard is written that comes in runs of so many rows, while so many are alive.

    Runs grow by four, as long as they are alive and not too large.

    >>> times_written(1000, 1500), times_written(1000, 20_000), times_written(300_000, 10_000_000)
    (1.0, 3.0, 1.0)
    """
    if rows_per_run <= 0 or rows_per_run > LARGEST:
        return 1.0
    most = min(rows_alive, MERGE_AT * LARGEST)
    return 1.0 + max(0, int(math.log(max(1.0, most / rows_per_run), MERGE_AT)))
