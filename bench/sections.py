"""What `make bench` measures, section by section. Each says what it is about, runs its contenders and checks them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.contender import Run
from bench.data import Workload, write
from bench.memory import Peak

ROOT = Path(tempfile.gettempdir()) / "watersmeet-bench"
FORMATS = ("2", "3", "4")
MEMORY = "spark-memory"

Measured = dict[str, Any]


@dataclass
class Bench:
    """Runs contenders, each in a process and a JVM of its own; ``tell`` hears of every one."""

    tell: Callable[[str], None]
    rocksdb: str | None = None
    found: list[Measured] = field(default_factory=list[Measured])

    def run(self, run: Run, label: str = "") -> Measured:
        """What a run measured, and the memory it took."""
        self.tell(f"{label or run.contender}: {run.workload.rows:,} rows")
        folder = write(run.workload, ROOT)
        command = [sys.executable, "-m", "bench.contender", json.dumps(asdict(run)), str(folder)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with process, Peak(process.pid) as peak:
            said, errors = process.communicate()
        lines = [line for line in said.splitlines() if line.startswith("RESULT ")]
        if not lines:
            raise RuntimeError(f"{run.contender} failed: {errors.strip().splitlines()[-1:] or process.returncode}")
        result = json.loads(lines[0].removeprefix("RESULT "))
        memory = {"jvm_megabytes": peak.jvm, "workers_megabytes": peak.workers}
        measured = {"label": label or run.contender, **result, **memory, "workload": asdict(run.workload)}
        self.found.append(measured)
        return measured

    def best_rocksdb(self, workload: Workload) -> str:
        """Spark's own join has several formats of state: a short run of each tells which one is its best on RocksDB."""
        if self.rocksdb is None:
            short = replace(workload, rows=workload.rows // 8, batches=max(4, workload.batches // 4))
            speeds = {v: self.run(Run(f"spark-rocksdb-{v}", short))["rows_per_second"] for v in FORMATS}
            self.rocksdb = f"spark-rocksdb-{max(speeds, key=lambda v: speeds[v])}"
        return self.rocksdb


Section = Callable[[Bench, Workload], list[Measured]]


def throughput(bench: Bench, workload: Workload) -> list[Measured]:
    """Rows per second in steady state, beside Spark's own joins and the floor."""
    rocksdb = bench.best_rocksdb(workload)
    contenders = ["floor", "watersmeet", "watersmeet-frames", MEMORY, rocksdb]
    measured = [bench.run(Run(contender, workload)) for contender in contenders]
    _agree(measured[1:])
    return measured


def outer(bench: Bench, workload: Workload) -> list[Measured]:
    """LEFT and FULL beside INNER."""
    half = replace(workload, rows=workload.rows // 2, batches=workload.batches // 2)
    ours = [bench.run(Run("watersmeet", half, how), f"watersmeet, {how}") for how in ("inner", "left", "full")]
    theirs = [bench.run(Run(MEMORY, half, how), f"{MEMORY}, {how}") for how in ("left", "full")]
    for mine, other in zip(ours[1:], theirs, strict=True):
        # At the end of its input Spark's join still holds back padded rows that ours has handed out.
        if mine["results"] < other["results"]:
            raise RuntimeError(f"{mine['label']} gave {mine['results']} rows, Spark's own join {other['results']}")
    return ours + theirs


def state(bench: Bench, workload: Workload) -> list[Measured]:
    """The same rows and the same result with a bound forty times as long: up to 10 M rows a side are kept."""
    pairs = replace(workload, rows=3 * workload.rows, batches=48, shape="pairs")
    bounds = (60, 2400)
    measured = [bench.run(Run("watersmeet", replace(pairs, within=w)), f"watersmeet, bound {w} s") for w in bounds]
    _agree(measured)
    return measured


def small_batches(bench: Bench, workload: Workload) -> list[Measured]:
    """Batches of 2,000 rows into a state of 5 M rows."""
    small = replace(workload, rows=workload.rows * 5 // 8, batches=10, within=100_000, small_batches=20)
    contenders = ["floor", "watersmeet", MEMORY, bench.best_rocksdb(workload)]
    measured = [bench.run(Run(contender, small)) for contender in contenders]
    _agree(measured[1:])
    return measured


def start(bench: Bench, workload: Workload) -> list[Measured]:
    """Seconds from the start of a query to its first result: 10,000 rows, a warm session."""
    little = replace(workload, rows=10_000, keys=1_000, batches=1)
    contenders = ["watersmeet", MEMORY, bench.best_rocksdb(workload)]
    return [bench.run(Run(contender, little, start=True)) for contender in contenders]


def skew(bench: Bench, workload: Workload) -> list[Measured]:
    """One key with 20 % of all rows, every key once, and a hundred rows of a key meeting a hundred."""
    half = replace(workload, rows=workload.rows // 2, batches=workload.batches // 2)
    dense = replace(half, rows=workload.rows // 10, batches=8, shape="dense", within=30)
    shapes = [("uniform keys", half), ("one key has 20 %", replace(half, shape="skew"))]
    shapes += [("every key once", replace(half, shape="pairs")), ("100 x 100 matches", dense)]
    ours = [bench.run(Run("watersmeet", shape), f"watersmeet, {label}") for label, shape in shapes]
    theirs = bench.run(Run(MEMORY, dense), f"{MEMORY}, 100 x 100 matches")
    _agree([ours[-1], theirs])
    return [*ours, theirs]


def windows(bench: Bench, workload: Workload) -> list[Measured]:
    """A window join, count(100) partitioned by 10 k keys, beside an interval join with about as many results."""
    rows = replace(workload, rows=workload.rows // 2, keys=workload.keys // 40, batches=16, within=360)
    return [bench.run(Run(contender, rows)) for contender in ("watersmeet", "watersmeet-window")]


def tables(bench: Bench, workload: Workload) -> list[Measured]:
    """Updates of 1 % of two tables that are joined, beside joining them anew; and of tables a tenth as large."""
    rows = workload.rows // 2
    large = replace(workload, rows=rows, batches=2, shape="table", small_batches=12, small_rows=rows // 100)
    small = replace(large, rows=rows // 10)
    measured = [
        bench.run(Run("watersmeet-tables", large), f"watersmeet, {rows // 2:,} rows a side"),
        bench.run(Run("watersmeet-tables", small), f"watersmeet, {rows // 20:,} rows a side"),
        bench.run(Run("spark-rejoin", large), f"Spark joins anew, {rows // 2:,} rows a side"),
    ]
    _agree([measured[0], measured[2]])
    return measured


def growth(bench: Bench, workload: Workload) -> list[Measured]:
    """Throughput against the number of shards, the size of the state, of a batch, and the number of keys."""
    measured: list[Measured] = []
    for axis, value, run in _growth_runs(workload):
        measured.append({**bench.run(run, f"{run.contender}, {axis} {value:,}"), "axis": axis, "value": value})
    return measured


def _growth_runs(workload: Workload) -> Iterator[tuple[str, int, Run]]:
    part = replace(workload, rows=workload.rows // 8, batches=workload.batches // 2)
    for shards in (1, 2, 4, 16):
        yield "shards", shards, Run("watersmeet", part, shards=shards)
    for contender in ("watersmeet", MEMORY):
        for within in (60, 960):
            yield "state", within, Run(contender, replace(part, shape="pairs", within=within, batches=12))
        for rows in (workload.rows // 400, workload.rows // 80, workload.rows // 20):
            yield "batch", rows, Run(contender, replace(part, rows=rows * 6, batches=6))
        for keys in (1_000, 1_000_000):
            yield "keys", keys, Run(contender, replace(part, keys=keys, within=10))


SECTIONS: dict[str, Section] = {
    "throughput": throughput,
    "outer": outer,
    "state": state,
    "small": small_batches,
    "start": start,
    "skew": skew,
    "windows": windows,
    "tables": tables,
    "growth": growth,
}


def _agree(measured: list[Measured]) -> None:
    counts = {m["results"] for m in measured}
    if len(counts) > 1:
        raise RuntimeError(f"the contenders disagree about the number of result rows: {sorted(counts)}")
