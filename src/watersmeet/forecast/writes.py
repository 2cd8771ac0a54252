"""Runs: how often a row is written to them, and how many there are to look through.

A row is written once when it comes, and once more for every merge that it lives through. An arriving row is looked for
in every run of the other side that its bounds reach: those of the whole state, for all of it is alive.
"""

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


FULL_RUN = 700_000
"""Rows of a run that is merged no further, about."""


def runs_alive(rows_per_run: float, rows_alive: float) -> float:
    """How many runs a side of a shard has: up to three of each size, and then the large ones.

    >>> runs_alive(1000, 1000), round(runs_alive(1000, 7_000_000))
    (1.0, 16)
    """
    if rows_per_run <= 0 or rows_alive <= rows_per_run:
        return 1.0
    if rows_per_run > LARGEST:
        return rows_alive / rows_per_run
    sizes = math.log(max(1.0, min(rows_alive, FULL_RUN) / rows_per_run), MERGE_AT)
    return max(1.0, 1.5 * sizes + max(0.0, rows_alive - FULL_RUN) / FULL_RUN)
