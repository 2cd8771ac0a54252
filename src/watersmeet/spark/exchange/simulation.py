"""The exchange without Spark: what packing and taking in cost with so many map tasks and shards, measured here.

One map task packs its share of a batch for all shards, and one shard takes in what all tasks send it, with the code
that runs in a query. What Spark's shuffle itself adds is not measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np
import pyarrow as pa

from watersmeet.physical.nodes import Lag
from watersmeet.spark.exchange.packing import MARKS, ROWS, Pack, fold_marks, from_blobs

NAMES = ("l.id", "l.ts", "l.amount", "l.count")


@dataclass(frozen=True)
class Simulated:
    """What was measured: seconds of one map task and of one shard, and of the shard those that marks take.

    ``bytes``: that one task sends, ``mark_bytes`` of them marks; ``records``: how many records it sends.
    """

    tasks: int
    shards: int
    rows: int
    task: float
    shard: float
    marks: float
    bytes: int
    mark_bytes: int
    records: int

    @property
    def seconds(self) -> float:
        """Seconds of cores for the whole batch."""
        return self.tasks * self.task + self.shards * self.shard

    @property
    def per_row(self) -> float:
        """Seconds of a core per row."""
        return self.seconds / self.rows


def simulate(rows: int, tasks: int, shards: int, repeat: int = 3) -> Simulated:
    """Pack the share of one of so many tasks, and take in at one of so many shards: the quickest of some tries."""
    return min((_simulated(rows, tasks, shards) for _ in range(repeat)), key=lambda one: one.seconds)


def _simulated(rows: int, tasks: int, shards: int) -> Simulated:
    share = max(1, rows // tasks)
    batch = _batch(share)
    pack = Pack(0, "key", "l.id", tuple(range(shards)), (Lag("l.ts", 10_000_000, "l.ts"),), None, NAMES)
    began = perf_counter()
    sent = [record for records in pack(iter([batch])) for record in records.to_pylist()]
    task = perf_counter() - began
    # Every task sends a shard about the same: what this one sends to some of them stands for it.
    of_rows = [record["blob"] for record in sent if record["kind"] == ROWS]
    of_marks = [record["blob"] for record in sent if record["kind"] == MARKS]
    sending = min(tasks, max(1, round(tasks * len(of_rows) / shards)))
    began = perf_counter()
    fold_marks([of_marks[0]] * tasks)
    marks = perf_counter() - began
    from_blobs([of_rows[number % len(of_rows)] for number in range(sending)])
    shard = perf_counter() - began
    sizes = [len(record["blob"]) for record in sent]
    return Simulated(tasks, shards, rows, task, shard, marks, sum(sizes), sum(map(len, of_marks)), len(sent))


def _batch(rows: int) -> pa.RecordBatch:
    """Rows like those of the benchmark, under the names that packing gives them."""
    rng = np.random.default_rng(0)
    columns = [
        pa.array(rng.integers(0, 1 << 40, rows)),
        pa.array(1_700_000_000_000_000 + rng.integers(0, 60_000_000, rows), pa.timestamp("us", tz="UTC")),
        pa.array(rng.random(rows)),
        pa.array(rng.integers(0, 1000, rows).astype(np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, names=[f"c{number}" for number in range(len(NAMES))])
