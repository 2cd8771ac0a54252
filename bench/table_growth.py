"""The cost of a batch of 10,000 keys as a table grows, in one process and one shard, without Spark.

``python -m bench.table_growth [KIND ...]`` prints a line per kind of table and size of its state.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa

from watersmeet.local.query import LocalQuery
from watersmeet.operators import OPERATORS
from watersmeet.operators.core.changes import CHANGE
from watersmeet.operators.state import cache
from watersmeet.physical import plan_query
from watersmeet.queries import analyze, read_script

SIZES, KEYS, ROWS, BATCHES = (100_000, 1_000_000, 5_000_000), 10_000, 500_000, 12
STREAM = "CREATE STREAM s (k BIGINT, v BIGINT, t BIGINT, WATERMARK FOR t AS t - 5);"
TABLES = "".join(f"CREATE TABLE {name} (k BIGINT, v BIGINT, PRIMARY KEY (k));" for name in "ab")
RANKS = "SELECT TABLE k, v FROM s QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC) <= 3;"
KINDS = {
    "groups": f"{STREAM} SELECT TABLE k, count(*) AS n, sum(v) AS total FROM s GROUP BY k;",
    "top-N": f"{STREAM} {RANKS}",
    "latest": f"{STREAM} SELECT TABLE k AS _key, v FROM s;",
    "join of tables": f"{TABLES} SELECT TABLE a.k, a.v AS av, b.v AS bv FROM a JOIN b ON a.k = b.k;",
}
SPREAD = 2_654_435_761
"""Neighbouring numbers of rows become keys far from each other."""


@dataclass
class GrowingTable:
    """A query whose state grows: ``rows`` it has."""

    text: str
    rows: int = 0
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def __post_init__(self) -> None:
        [analyzed] = analyze(read_script(self.text))
        self.query = LocalQuery(plan_query(analyzed, OPERATORS), "kernel")
        self.sources = "s" if "STREAM s" in self.text else "ab"

    def grow(self, size: int) -> None:
        """Add new keys, on both sides of a join."""
        while self.rows < size:
            number = min(ROWS, size - self.rows)
            self.step(np.arange(self.rows, self.rows + number), self.sources)
            self.rows += number

    def update(self) -> float:
        """Seconds of a batch with random keys that are there already."""
        keys = np.unique(self.random.integers(0, self.rows, KEYS))
        began = perf_counter()
        self.step(keys, self.sources[0])
        return perf_counter() - began

    def step(self, numbers: np.ndarray, sources: str) -> None:
        """A batch in which rows with keys of these numbers come from some of the sources."""
        arrivals: dict[str, pa.Table] = {}
        for source in self.sources:
            keys = (numbers if source in sources else numbers[:0]) * SPREAD % 2**40
            columns = {"k": keys, "v": self.random.integers(0, 10**6, len(keys))}
            last = (
                {"t": np.full(len(keys), self.rows)}
                if source == "s"
                else {CHANGE: pa.array(["+"] * len(keys), pa.string())}
            )
            arrivals[source] = pa.table({**columns, **last})
        self.query.step(arrivals, {})


def main(kinds: list[str]) -> None:
    """Print milliseconds per batch."""
    for kind in kinds or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            cache.share_runs(Path(folder), 4 * 2**30)
            table = GrowingTable(KINDS[kind])
            for size in SIZES:
                table.grow(size)
                seconds = [table.update() for _ in range(BATCHES)]
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
                print(f"{kind:15} {size:>9} keys: {np.median(seconds) * 1e3:6.0f} ms, {memory:,} MB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
