"""The points of ``growth``: one size grows at a time, and every batch gives about one result per row.

Values are those of the default workload; a smaller workload scales all of them down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.contender import Run
from bench.data import Workload

OURS, THEIRS = "watersmeet", "spark-memory"
FOREVER = 1_000_000
"""A bound in seconds that is longer than any run."""
KEYS_PER_ROW = 6
"""Rows of a batch per key: with a bound of ten seconds, a row then has about one match."""
SECONDS_PER_KEY = 0.0006
"""Bound per key: a row in a batch of a hundred thousand then has about one match."""
SHARDS = (1, 2, 4, 16, 64)
WIDE = 176
"""Bytes of the text of a wide row."""


def points(workload: Workload) -> list[Run]:
    """All points but the largest; Spark's own join wherever its state fits into memory."""
    size = _Sizes(workload)
    return [
        *(size.shards(contender, shards) for contender in (OURS, THEIRS) for shards in SHARDS),
        *(size.state(OURS, 10**power) for power in (4, 5, 6, 7)),
        *(size.state(THEIRS, 10**power) for power in (4, 5, 6)),
        *(size.batch(contender, 10**power) for contender in (OURS, THEIRS) for power in (3, 4, 5, 6)),
        *(size.keys(OURS, 10**power) for power in (0, 2, 4, 6)),
        # Spark's own join scans all rows of a key for every row: with one key a batch takes minutes.
        *(size.keys(THEIRS, 10**power) for power in (2, 4, 6)),
    ]


def largest(workload: Workload) -> list[Run]:
    """A hundred million rows of state, ten million keys, ten million rows in a batch."""
    size = _Sizes(workload)
    return [size.batch(OURS, 10**7), size.keys(OURS, 10**7), size.state(OURS, 10**8)]


def wide_states(workload: Workload, rows: int, contenders: Sequence[str]) -> list[Run]:
    """Batches of twenty thousand rows of about 200 bytes into a state of `rows` rows: old rows have no match."""
    size = _Sizes(workload, WIDE)
    return [size.state(contender, rows) for contender in contenders]


class _Sizes:
    def __init__(self, workload: Workload, text: int = 0) -> None:
        self.text = text
        self.share = workload.rows / Workload.rows
        self.batches = max(2, workload.batches // 2)

    def of(self, value: int) -> int:
        return max(1, round(value * self.share))

    def shards(self, contender: str, shards: int) -> Run:
        """A hundred thousand rows in a batch."""
        return _point(contender, self._even(self.of(10**5)), "shards", shards, shards=shards)

    def batch(self, contender: str, rows: int) -> Run:
        """Batches of this many rows; a run has only a few large ones, because they are slow."""
        batches = self.batches if rows < 10**6 else min(4, self.batches)
        return _point(contender, self._even(self.of(rows), batches), "batch", self.of(rows))

    def _even(self, rows: int, batches: int | None = None) -> Workload:
        rows, batches = max(2, rows), batches or self.batches
        return Workload(rows * batches, max(1, rows // KEYS_PER_ROW), batches, 10)

    def keys(self, contender: str, keys: int) -> Run:
        """As many rows as keys, then batches of a hundred thousand rows."""
        keys = self.of(keys)
        loaded = max(keys, 2 * self.of(10**5))
        load = max(2, loaded // self.of(10**6))
        small = {"small_batches": self.batches, "small_rows": max(2, self.of(10**5))}
        return _point(contender, Workload(loaded, keys, load, keys * SECONDS_PER_KEY, **small), "keys", keys)

    def state(self, contender: str, rows: int) -> Run:
        """A state of `rows` rows, and batches of twenty thousand, each row with its own partner.

        A small state is what the bound retains; a large one is loaded first, and nothing expires.
        """
        batch = max(2, self.of(20_000))
        if rows < 10**6:
            bound = 15 if rows < 10**5 else 290
            work = Workload(2 * self.batches * batch, 1, 2 * self.batches, bound, "pairs")
        else:
            load = max(2, rows // 10**6)
            work = Workload(
                max(2 * load, self.of(rows)), 1, load, FOREVER, "pairs", small_batches=self.batches, small_rows=batch
            )
        run = _point(contender, replace(work, text=self.text), "state", self.of(rows))
        # Its memory can only be measured in a process of its own.
        return replace(run, shared="") if contender == OURS else run


def _point(contender: str, workload: Workload, axis: str, value: int, shards: int = 2) -> Run:
    point = f"{axis} {value:,}"
    partitions = shards if contender == THEIRS else 2
    place = {"axis": axis, "value": value, "shared": f"{contender} {axis}", "agrees": point}
    return Run(contender, workload, f"{contender}, {point}", shards=shards, partitions=partitions, **place)
