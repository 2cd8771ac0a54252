"""The sections of `make bench`: each has a title and its runs.

All sizes scale with the workload, so that a small workload makes every section small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from bench.contender import FRAMES, FRAMES_WIDE, Run
from bench.data import Workload
from bench.growth import largest, points, wide_states

MEMORY = "spark-memory"
ROCKSDB = "spark-rocksdb"
"""Spark's own join on RocksDB, in its fastest state format."""

Section = Callable[[Workload], list[Run]]


def throughput(workload: Workload) -> list[Run]:
    """Rows per second in steady state, compared with Spark's own joins and the floor."""
    contenders = ("watersmeet", FRAMES, FRAMES_WIDE, MEMORY, ROCKSDB)
    return [Run("floor", workload), *(Run(contender, workload, agrees="inner") for contender in contenders)]


def outer(workload: Workload) -> list[Run]:
    """LEFT and FULL compared with INNER."""
    half = replace(workload, rows=workload.rows // 2, batches=_share(workload, 1 / 2))
    sides = [
        ("watersmeet", "inner"),
        ("watersmeet", "left"),
        ("watersmeet", "full"),
        (MEMORY, "left"),
        (MEMORY, "full"),
    ]
    return [Run(contender, half, f"{contender}, {how}", how, agrees=how) for contender, how in sides]


def state(workload: Workload) -> list[Run]:
    """The same rows and the same result with a bound forty times as long: up to 10 M rows a side are kept."""
    pairs = replace(workload, rows=3 * workload.rows, batches=3 * workload.batches, shape="pairs")
    bounds = (60, 2400)
    return [Run("watersmeet", replace(pairs, within=w), f"watersmeet, bound {w} s", agrees="pairs") for w in bounds]


def small_batches(workload: Workload) -> list[Run]:
    """Batches of 2,000 rows into a state of 5 M rows."""
    size = {"rows": workload.rows * 5 // 8, "batches": _share(workload, 5 / 8)}
    small = replace(workload, **size, within=100_000, small_batches=_share(workload, 5 / 4))
    contenders = ("watersmeet", MEMORY, ROCKSDB)
    return [Run("floor", small), *(Run(contender, small, agrees="inner") for contender in contenders)]


def shards(workload: Workload) -> list[Run]:
    """In 2 shards and in 64, on two partitions: batches of 2,000 rows, and batches as large as in throughput."""
    size = {"rows": workload.rows // 8, "batches": 2, "within": 100_000}
    small = replace(workload, **size, small_batches=_share(workload, 5 / 4))
    large = replace(workload, rows=workload.rows // 2, batches=_share(workload, 1 / 2))
    sized = {"small": small, "large": large}
    return [
        Run("watersmeet", of, f"watersmeet, {name} batches, {n} shards", shards=n, agrees=name)
        for name, of in sized.items()
        for n in (2, 64)
    ]


def defaults(workload: Workload) -> list[Run]:
    """A session that is not ours, with Spark's own settings: batches of 200,000 rows, also of Spark's own join."""
    part = replace(workload, rows=workload.rows // 8, batches=max(2, workload.batches * 5 // 16))
    return [Run(c, part, f"{c}, Spark's settings", plain=True, agrees="inner") for c in (FRAMES, MEMORY)]


def start(workload: Workload) -> list[Run]:
    """Seconds from the start of a query to its first result: 10,000 rows, a warm session."""
    little = _little(workload)
    return [Run(contender, little, starts=_share(workload, 1 / 4)) for contender in ("watersmeet", MEMORY, ROCKSDB)]


def cold(workload: Workload) -> list[Run]:
    """Seconds from the launch of Python to the first result, with nothing started before: 10,000 rows."""
    return [Run(contender, _little(workload), cold=True) for contender in ("watersmeet", MEMORY, ROCKSDB)]


def _little(workload: Workload) -> Workload:
    return replace(workload, rows=min(10_000, workload.rows), keys=min(1_000, workload.keys), batches=1)


def skew(workload: Workload) -> list[Run]:
    """One key with 20 % of all rows, every key once, and a hundred rows of a key that match a hundred."""
    half = replace(workload, rows=workload.rows // 2, batches=_share(workload, 1 / 2))
    dense = replace(half, rows=workload.rows // 10, shape="dense", within=30)
    return [
        Run("watersmeet", half, "watersmeet, uniform keys"),
        Run("watersmeet", replace(half, shape="skew"), "watersmeet, one key has 20 %"),
        Run("watersmeet", replace(half, shape="pairs"), "watersmeet, every key once"),
        *(Run(c, dense, f"{c}, 100 x 100 matches", agrees="dense") for c in ("watersmeet", MEMORY)),
    ]


def windows(workload: Workload) -> list[Run]:
    """A window join, count(100) partitioned by 10 k keys, and an interval join with about as many results."""
    rows = replace(workload, rows=workload.rows // 2, keys=workload.keys // 40, within=360)
    return [Run(contender, rows) for contender in ("watersmeet", "watersmeet-window")]


def chains(workload: Workload) -> list[Run]:
    """Two, three and five streams of one key: in one operator, and each join in its own; every key once a stream."""
    pairs = replace(workload, rows=workload.rows // 2, batches=_share(workload, 1 / 2), shape="pairs")
    ways = [(2, "on"), (3, "on"), (3, "off"), (5, "on"), (5, "off")]
    labels = {"on": "one operator", "off": "an operator each"}
    return [
        Run("watersmeet-chain", pairs, f"{n} streams, {labels[how]}", agrees="chain", streams=n, together=how)
        for n, how in ways
    ]


def tables(workload: Workload) -> list[Run]:
    """Updates of 1 % of two joined tables, compared with a new join of both; tables a tenth as large; one hot key."""
    rows = workload.rows // 2
    updates = {"small_batches": _share(workload, 3 / 4), "small_rows": rows // 100}
    large = replace(workload, rows=rows, batches=2, shape="table", **updates)
    return [
        Run("watersmeet-tables", large, f"watersmeet, {rows // 2:,} rows a side", agrees="large"),
        Run("watersmeet-tables", replace(large, rows=rows // 10), f"watersmeet, {rows // 20:,} rows a side"),
        Run("spark-rejoin", large, f"Spark joins both tables again, {rows // 2:,} rows a side", agrees="large"),
        *(_hot(workload, shape) for shape in ("hot", "spread")),
    ]


def _hot(workload: Workload, shape: Literal["hot", "spread"]) -> Run:
    """Three rows that change match a table of a million rows, which all have one key, or a key each."""
    rows = workload.rows // 8
    work = replace(workload, rows=2 * rows, batches=2, shape=shape, small_batches=_share(workload, 1 / 4))
    labels = {"hot": f"one key with {rows:,} rows", "spread": f"{rows:,} keys"}
    return Run("watersmeet-tables", work, f"watersmeet, {labels[shape]} and 3 that change")


def forecast(workload: Workload) -> list[Run]:
    """The forecast of `watersmeet explain` and the measurement: rows kept within 20 %, seconds within 40 %."""
    half = replace(workload, rows=workload.rows // 2, batches=_share(workload, 1 / 2))
    return [
        Run("watersmeet", half, "as in throughput"),
        Run("watersmeet", replace(half, within=2 * workload.within), "a bound twice as long"),
        Run("watersmeet", replace(half, rows=half.rows // 5, batches=4 * half.batches), "a twentieth of the rows"),
        Run("watersmeet", half, "four times the shards", shards=8),
        Run("watersmeet", replace(half, text=200), "rows with 200 bytes of text"),
        Run("watersmeet", replace(half, keys=workload.keys // 40), "forty times the results"),
        Run(FRAMES, half, "from DataFrames"),
    ]


def growth(workload: Workload) -> list[Run]:
    """Cost per row against the number of shards, the rows of state, the rows of a batch, and the number of keys."""
    return points(workload)


def growth_large(workload: Workload) -> list[Run]:
    """The largest points: 10^8 rows of state, 10^7 keys, batches of 10^7 rows; 8 GB of disk."""
    return largest(workload)


def beyond_memory(workload: Workload) -> list[Run]:
    """Cost per row against 10^6 and 10^7 rows of state of 200 bytes, also of Spark's own join; 10 GB of disk."""
    return [run for rows in (10**6, 10**7) for run in wide_states(workload, rows, ("watersmeet", ROCKSDB))]


def beyond_memory_large(workload: Workload) -> list[Run]:
    """The same with 10^8 rows of state, 20 GB; 80 GB of disk."""
    return wide_states(workload, 10**8, ("watersmeet",))


def cluster(workload: Workload) -> list[Run]:
    """The same join on a standalone cluster of one, two and four workers with a core each, and in local mode."""
    part = replace(workload, rows=workload.rows // 4, batches=_share(workload, 1 / 2))
    shards = 4
    return [
        Run(c, part, f"{c}, {_workers(n)}", shards=shards, partitions=shards, workers=n, agrees="inner")
        for c in ("watersmeet", MEMORY)
        for n in (0, 1, 2, 4)
    ]


def _workers(number: int) -> str:
    return f"{number} worker{'s' if number > 1 else ''}" if number else "local mode"


def _share(workload: Workload, share: float) -> int:
    """A share of the batches, at least one of them after the warm-up."""
    return max(2, int(workload.batches * share))


SECTIONS: dict[str, Section] = {
    "throughput": throughput,
    "outer": outer,
    "state": state,
    "small": small_batches,
    "shards": shards,
    "defaults": defaults,
    "start": start,
    "cold": cold,
    "skew": skew,
    "windows": windows,
    "chains": chains,
    "tables": tables,
    "forecast": forecast,
    "growth": growth,
    "growth-large": growth_large,
    "beyond-memory": beyond_memory,
    "beyond-memory-large": beyond_memory_large,
    "cluster": cluster,
}

MINUTES = {
    "throughput": 7, "outer": 6, "state": 4, "small": 12, "shards": 2, "defaults": 5, "start": 2, "cold": 2, "skew": 5,
    "windows": 4, "chains": 5, "tables": 4, "forecast": 6, "growth": 10, "growth-large": 6, "beyond-memory": 20,
    "beyond-memory-large": 60, "cluster": 7,
}  # fmt: skip
"""About how long each section takes on two cores."""
DEFAULT_SECTIONS = tuple(
    name for name in SECTIONS if name not in ("growth-large", "beyond-memory", "beyond-memory-large")
)
"""The sections of a run without ``--sections``."""


def about(name: str) -> str:
    """The title of a section."""
    return (SECTIONS[name].__doc__ or "").splitlines()[0]
