"""The data of a benchmark: two sides in as many files as there are batches, the same for every contender."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SECONDS_PER_BATCH = 60
DISORDER_SECONDS = 5
LAG_SECONDS = 10
START = 1_700_000_000
SIDES = ("left", "right")


@dataclass(frozen=True)
class Workload:
    """How much data there is: rows of both sides, distinct keys, batches, and the bound of the join in seconds."""

    rows: int = 8_000_000
    keys: int = 400_000
    batches: int = 16
    within: int = 60

    @property
    def within_text(self) -> str:
        """The bound as a duration."""
        return f"{self.within} seconds"

    @property
    def folder_name(self) -> str:
        """A name that tells the data apart."""
        return f"{self.rows}-{self.keys}-{self.batches}"


def write(workload: Workload, root: Path) -> Path:
    """Write the files once; event times advance by a minute per batch and are out of order by up to five seconds."""
    folder = root / workload.folder_name
    if (folder / "done").exists():
        return folder
    per_file = workload.rows // 2 // workload.batches
    for side in SIDES:
        (folder / side).mkdir(parents=True, exist_ok=True)
        for batch in range(workload.batches):
            path = folder / side / f"{batch:05}.parquet"
            pq.write_table(_batch(per_file, workload.keys, batch, side == "left"), path)
            # The file source takes files in the order of their times.
            os.utime(path, (START + batch,) * 2)
    (folder / "done").touch()
    return folder


def _batch(rows: int, keys: int, batch: int, is_left: bool) -> pa.Table:
    rng = np.random.default_rng([batch, is_left])
    offset = np.sort(rng.integers(0, SECONDS_PER_BATCH * 1_000_000, rows))
    disorder = rng.integers(0, DISORDER_SECONDS * 1_000_000, rows)
    times = (START + batch * SECONDS_PER_BATCH) * 1_000_000 + offset - disorder
    return pa.table(
        {
            "id": pa.array(rng.integers(0, keys, rows)),
            "ts": pa.array(times, pa.timestamp("us", tz="UTC")),
            "amount": pa.array(rng.random(rows)),
            "count": pa.array(rng.integers(0, 1000, rows).astype(np.int32)),
        }
    )
