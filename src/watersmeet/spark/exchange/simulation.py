"""The exchange without Spark: what packing and taking in cost with so many map tasks and shards, measured here.

One map task packs its share of a batch for all shards, and one shard takes in what all tasks send it, with the code
that runs in a query. What Spark's shuffle itself adds is not measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np
import pyarrow as pa

from watersmeet.physical.nodes import WatermarkLag
from watersmeet.spark.exchange.packing import ROWS, WATERMARKS, Pack, fold_watermarks, from_blobs

NAMES = ("l.id", "l.ts", "l.amount", "l.count")


@dataclass(frozen=True)
class ExchangeCost:
    """What was measured: seconds of one map task and of one shard, and of the shard those that marks take.

    ``bytes``: that one task sends, ``watermark_bytes`` of them marks; ``records``: how many records it sends.
    """

    tasks: int
    shards: int
    rows: int
    task: float
    shard: float
    watermarks: float
    bytes: int
    watermark_bytes: int
    records: int

    @property
    def seconds(self) -> float:
        """Seconds of cores for the whole batch."""
        return self.tasks * self.task + self.shards * self.shard

    @property
    def per_row(self) -> float:
        """Seconds of a core per row."""
        return self.seconds / self.rows


def simulate(rows: int, tasks: int, shards: int, repeat: int = 3) -> ExchangeCost:
    """Pack the share of one of so many tasks, and take in at one of so many shards: the quickest of some tries."""
    return min((_measure(rows, tasks, shards) for _ in range(repeat)), key=lambda cost: cost.seconds)


def _measure(rows: int, tasks: int, shards: int) -> ExchangeCost:
    share = max(1, rows // tasks)
    batch = _batch(share)
    pack = Pack(0, "key", "l.id", tuple(range(shards)), (WatermarkLag("l.ts", 10_000_000, "l.ts"),), None, NAMES)
    began = perf_counter()
    sent = [record for records in pack(iter([batch])) for record in records.to_pylist()]
    task = perf_counter() - began
    # Every task sends a shard about the same: what this one sends to some of them stands for it.
    row_blobs = [record["blob"] for record in sent if record["kind"] == ROWS]
    watermark_blobs = [record["blob"] for record in sent if record["kind"] == WATERMARKS]
    sending = min(tasks, max(1, round(tasks * len(row_blobs) / shards)))
    began = perf_counter()
    fold_watermarks([watermark_blobs[0]] * tasks)
    watermarks = perf_counter() - began
    from_blobs([row_blobs[number % len(row_blobs)] for number in range(sending)])
    shard = perf_counter() - began
    sizes = [len(record["blob"]) for record in sent]
    return ExchangeCost(
        tasks, shards, rows, task, shard, watermarks, sum(sizes), sum(map(len, watermark_blobs)), len(sent)
    )


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
