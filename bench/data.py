"""The data of a benchmark: two sides in as many files as there are batches, the same for every contender."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SECONDS_PER_BATCH = 60
DISORDER_SECONDS = 5
LAG_SECONDS = 10
START = 1_700_000_000
SIDES = ("left", "right")

Shape = Literal["uniform", "pairs", "skew", "dense", "table", "hot", "spread"]
"""The distribution of the rows. ``uniform``: keys at random. ``pairs``: every key once on each side, its two rows at
most half a batch apart, so that a longer bound adds state and no result. ``skew``: uniform, but one key has 20 % of all
rows, all of them on the left. ``dense``: a batch has a hundred rows of each of its keys on both sides, and no key comes
again. ``table``: every key once on each side, as in ``pairs``; the small batches that follow are updates of keys at
random. ``hot``: the same on the left, and on the right three rows that every batch updates; all rows have the same
``count``. ``spread``: the same, but on the left each has a ``count`` of its own, and on the right three of these.
"""

TABLES = ("table", "hot", "spread")
FEW = 3
ROWS_PER_DENSE_KEY = 100
HOT_ROWS_OF_THE_LEFT = 0.4
SCATTER = 0x1E3779B97F4A7C15
"""Odd, so that multiplying by it modulo 2**63 gives each number another, far from its neighbours."""


@dataclass(frozen=True)
class Workload:
    """The amount of data: rows of both sides, distinct keys, batches, and the bound of the join in seconds.

    ``small_batches``: the number of batches of ``small_rows`` that follow. ``text``: the bytes of a text in each row.
    """

    rows: int = 8_000_000
    keys: int = 400_000
    batches: int = 16
    within: float = 60
    shape: Shape = "uniform"
    small_batches: int = 0
    small_rows: int = 2_000
    text: int = 0

    @property
    def within_text(self) -> str:
        """The bound as a duration."""
        whole = self.within == int(self.within)
        return f"{int(self.within)} seconds" if whole else f"{round(self.within * 1_000_000)} microseconds"

    @property
    def folder_name(self) -> str:
        """A name that is unique to the data."""
        small = f"-{self.small_batches}x{self.small_rows}" if self.small_batches else ""
        text = f"-{self.text}B" if self.text else ""
        return f"{self.shape}-{self.rows}-{self.keys}-{self.batches}{small}{text}"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The rows of each batch, of one side."""
        return (self.rows // 2 // self.batches,) * self.batches + (self.small_rows // 2,) * self.small_batches


def write(workload: Workload, root: Path) -> Path:
    """Write the files once; event times advance by a minute per batch and are out of order by up to five seconds."""
    folder = root / workload.folder_name
    if (folder / "done").exists():
        return folder
    for side in SIDES:
        (folder / side).mkdir(parents=True, exist_ok=True)
        before = 0
        for batch, size in enumerate(workload.sizes):
            path = folder / side / f"{batch:05}.parquet"
            few = side == "right" and workload.shape in ("hot", "spread")
            pq.write_table(_batch(workload, batch, before, FEW if few else size, is_left=side == "left"), path)
            # The file source takes files in the order of their times.
            os.utime(path, (START + batch,) * 2)
            before += size
    (folder / "done").touch()
    return folder


def _batch(workload: Workload, batch: int, before: int, rows: int, *, is_left: bool) -> pa.Table:
    rng = np.random.default_rng([batch, is_left])
    offset = np.sort(rng.integers(0, SECONDS_PER_BATCH * 1_000_000, rows))
    disorder = rng.integers(0, DISORDER_SECONDS * 1_000_000, rows)
    times = (START + batch * SECONDS_PER_BATCH) * 1_000_000 + offset - disorder
    keys = _keys(workload, rng, before, rows, is_left=is_left)
    # There are up to a hundred million pairs: few distinct amounts keep the files small.
    amounts = rng.integers(0, 100, rows).astype(np.float64) if workload.shape == "pairs" else rng.random(rows)
    return pa.table(
        {
            "id": pa.array(keys),
            "ts": pa.array(times, pa.timestamp("us", tz="UTC")),
            "amount": pa.array(amounts),
            "count": pa.array(_counts(workload, rng, keys)),
            **({"note": _texts(rng, rows, workload.text)} if workload.text else {}),
        }
    )


def _counts(workload: Workload, rng: np.random.Generator, keys: np.ndarray) -> np.ndarray:
    counts = {"hot": np.zeros_like(keys), "spread": keys}
    return counts.get(workload.shape, rng.integers(0, 1000, len(keys))).astype(np.int32)


def _texts(rng: np.random.Generator, rows: int, size: int) -> pa.Array:
    """Texts of one length, of letters at random."""
    letters = pa.py_buffer(rng.integers(97, 123, rows * size, np.uint8))
    ends = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * np.int32(size))
    return pa.StringArray.from_buffers(rows, ends, letters)


def _keys(workload: Workload, rng: np.random.Generator, before: int, rows: int, *, is_left: bool) -> np.ndarray:
    if workload.shape == "pairs" or workload.shape in TABLES:
        loaded = workload.rows // 2 // workload.batches * workload.batches
        is_update = workload.shape in TABLES and before >= loaded
        numbers = (
            rng.integers(0, loaded, rows).astype(np.uint64) if is_update else before + np.arange(rows).astype(np.uint64)
        )
        if workload.shape in ("hot", "spread"):
            return numbers.astype(np.int64) if is_left else np.arange(rows)
        return ((numbers * np.uint64(SCATTER)) & np.uint64(2**63 - 1)).astype(np.int64)
    if workload.shape == "dense":
        return rng.permutation(before + np.arange(rows)) // ROWS_PER_DENSE_KEY
    keys = rng.integers(0, workload.keys, rows)
    if workload.shape == "skew" and is_left:
        keys[rng.random(rows) < HOT_ROWS_OF_THE_LEFT] = 0
    return keys
