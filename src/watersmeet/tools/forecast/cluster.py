"""The needs of a join of two streams on a cluster: the formulas, each number with its inputs.

State, disk and network grow linearly with the rate; state also with the bound. The rest does not: a batch takes
``batch`` seconds however many cores there are; an arriving row is looked up in every run of its shard, and runs grow
with the state; if a machine's live state exceeds its cache, every batch reads all of it again; every map task sends
rows and watermarks to every shard, so that records grow with the product; and the rows of one key are joined by one
core.

The cost of packing and unpacking with many map tasks and shards is measured with the code that runs in a query; the
cost of Spark's shuffle is not measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np
import pyarrow as pa

from watersmeet.duration import format_count
from watersmeet.operators.core.watermarks import WatermarkLag
from watersmeet.spark.exchange.packing import (
    MARKED_ROWS,
    WATERMARKS,
    Pack,
    fold_watermarks,
    from_blobs,
    watermarks_behind,
)
from watersmeet.spark.exchange.store import SHARDS_PER_GROUP
from watersmeet.tools.forecast.inputs import MEASURED, Costs, runs_alive, times_written

ROOM = 0.7
"""The share of the cores' time that is planned for: the rest is for bursts, merges and what else there is."""
MOST_SHARDS = 4096


@dataclass(frozen=True)
class ClusterRequest:
    """A load: rows per second of both sides together, their bytes, the bound and the lags in seconds.

    ``batch``: seconds of a batch that are aimed at. ``results``: result rows per row. ``heaviest``: the share of rows
    that the heaviest key has. ``per_machine``: cores of a machine.
    """

    rate: float
    within: float
    row: float
    lag: float = 0.0
    batch: float = 10.0
    results: float = 0.5
    heaviest: float = 0.0
    per_machine: int = 16
    columns: bool = True


@dataclass(frozen=True)
class CostLine:
    """A number, its name, its formula and its assumptions."""

    name: str
    value: float
    unit: str
    law: str
    assumed: str = ""


@dataclass(frozen=True)
class ClusterPlan:
    """The needs of a load. ``shards`` is the recommended number; ``too_heavy``: one key exceeds a core.

    ``is_possible``: the batch finishes within its interval; ``read``: bytes of its state that a batch reads.
    """

    request: ClusterRequest
    cores: int
    shards: int
    machines: int
    lines: tuple[CostLine, ...]
    per_shard: tuple[CostLine, ...]
    seconds: float
    too_heavy: bool
    most_rate: float
    is_possible: bool
    read: float
    overhead: int
    """Bytes outside the heap that an executor needs with the cores of a machine."""


def row_seconds(request: ClusterRequest, shards: int, costs: Costs = MEASURED) -> float:
    """Seconds of a core that a row takes: itself, results it has a part in, and a look into each run of its shard."""
    of_side = request.rate * (request.within + request.lag) / 2 / shards
    runs = runs_alive(request.rate * request.batch / 2 / shards, of_side)
    return costs.per_row(request.row, columns=request.columns) + request.results * costs.result + runs * costs.probe


def read_bytes(request: ClusterRequest, machines: int, costs: Costs = MEASURED) -> float:
    """The bytes of state that a batch reads: 0 while it is cached, else the parts with rows that match."""
    state = request.rate * (request.within + request.lag) * request.row
    return costs.bytes_read(state, request.rate * request.batch * request.results, machines)


def overhead(rows: float, tasks: int, shards: int, costs: Costs = MEASURED) -> float:
    """Seconds of cores in a batch that no row takes: tasks, calls of shards, and what each task sends to each shard."""
    records = count_records(rows, tasks, shards)
    sent = records.of_rows * costs.record + records.of_watermarks * costs.mark + records.merged * costs.merged
    return tasks * costs.task + shards * costs.shard + sent


@dataclass(frozen=True)
class RecordCounts:
    """The records of a batch in the exchange: those with rows, and those with watermarks alone.

    ``merged``: the watermarks that are merged: of each map task in each group of shards.
    """

    of_rows: float
    of_watermarks: float
    merged: float


def count_records(rows: float, tasks: int, shards: int, partitions: int | None = None) -> RecordCounts:
    """The records that so many map tasks send to so many shards, if rows are spread evenly.

    Shards on one of Spark's ``partitions`` form groups; None: there are as many as shards. A task sends its watermarks
    once to each group: behind rows, or else in a record of its own.

    >>> count_records(1e6, 64, 64), count_records(0, 64, 64)
    (RecordCounts(of_rows=4096, of_watermarks=0, merged=4096), RecordCounts(of_rows=0, of_watermarks=4096, merged=4096))
    >>> count_records(0, 4096, 4096, 128).of_watermarks
    524288
    """
    partitions = min(shards, partitions or shards)
    groups = partitions * -(-shards // (partitions * SHARDS_PER_GROUP))
    of_rows = min(tasks * shards, rows)
    return RecordCounts(of_rows, max(0, tasks * groups - of_rows), tasks * groups)


def native_bytes(cores: int, costs: Costs = MEASURED) -> int:
    """The bytes that an executor with so many cores needs outside the heap of its JVM, without cached runs.

    >>> native_bytes(2) // 2**20
    1740
    """
    return costs.executor_native + cores * costs.core_native


def plan_cluster(request: ClusterRequest, costs: Costs = MEASURED) -> ClusterPlan:
    """The needs of a load: the fewest cores whose work fits into their time."""
    cores = _cores(request, costs)
    shards = max(2, cores)
    machines = -(-cores // request.per_machine)
    left = max(1e-9, request.batch - costs.batch)
    seconds = costs.batch + _work(request, cores, costs) / cores
    state_rows = request.rate * (request.within + request.lag)
    state = state_rows * request.row
    per_run = request.rate * request.batch / shards / 2
    times = times_written(per_run, state_rows / shards / 2)
    remote_share = 1 - 1 / machines
    per_row = row_seconds(request, shards, costs)
    read = read_bytes(request, machines, costs)
    alive = min(state, machines * costs.mapped)
    in_batch = min(request.rate * request.batch * request.row, cores * costs.piece) * costs.copies
    per_executor = min(cores, request.per_machine)
    outside = native_bytes(per_executor, costs) + alive / machines
    lines = (
        CostLine("cores", cores, "", f"(rate x {per_row * 1e6:.2f} µs, reading, tasks, shards, records) / {ROOM:.0%}",
             f"as on {costs.machine}; {request.results:g} results per row"),
        CostLine("machines", machines, "", f"cores / {request.per_machine}", f"{request.per_machine} cores each"),
        CostLine("rows kept", state_rows, "rows", "rate x (within + lag)",
             "the event times of both sides advance together"),
        CostLine("state on disk", state * costs.stored, "B", f"rows kept x row x {costs.stored:g}",
             "hardly compressible values, such as random numbers; text is smaller"),
        CostLine("memory", machines * costs.jvm + 2 * cores * costs.worker + in_batch + alive, "B",
             "machines x JVM + 2 workers per core + rows at once x copies + mapped runs",
             f"{costs.jvm / 1e9:.1f} GB, {costs.worker / 1e6:.0f} MB, {costs.copies:g} copies, pieces of"
             f" {costs.piece / 2**20:.0f} MiB per core, up to {costs.mapped / 2**30:.0f} GiB mapped per machine"),
        CostLine("memory outside the heap", outside, "B", "of an executor: JVM + cores x (workers, RocksDB) + runs",
             f"{format_count(per_executor, 'core')} each, {costs.executor_native / 2**20:.0f} MiB, "
             f"{costs.core_native / 2**20:.0f} MiB, measured with 600,000 rows in a batch"),
        CostLine("written to disk", request.rate * request.row * times, "B/s", f"rate x row x {times:g} times",
             "once when a row arrives, and once for every merge until it expires"),
        CostLine("network", request.rate * request.row * remote_share, "B/s", "rate x row x (1 - 1 / machines)",
             "keys spread evenly; results stay where they are made"),
        CostLine("read by a batch", read, "B", "nothing, or what matches of the state that is not cached",
             f"{costs.cached / 1e9:.0f} GB of cached runs per machine, {costs.part / 2**20:.0f} MiB per match; a core"
             f" reads {1e-6 / costs.read:,.0f} MB/s"),
        CostLine("a batch", seconds, "s", f"{costs.batch:g} s + (rows, reading, tasks, shards, records) / cores",
             f"it covers {request.batch:g} s of input"),
    )  # fmt: skip
    of_shard = (
        CostLine("rows", request.rate / shards, "rows/s", "rate / shards", "keys spread evenly"),
        CostLine("rows kept", state_rows / shards, "rows", "rows kept / shards"),
        CostLine("state", state * costs.stored / shards, "B", "state / shards"),
        CostLine("busy", request.rate / shards * per_row, "of a core", "rate / shards x seconds per row"),
    )
    most = ROOM * left / request.batch / per_row / request.heaviest if request.heaviest else float("inf")
    is_possible = seconds <= request.batch
    return ClusterPlan(
        request,
        cores,
        shards,
        machines,
        lines,
        of_shard,
        seconds,
        request.rate > most,
        most,
        is_possible,
        read,
        round(outside),
    )


def _work(request: ClusterRequest, cores: int, costs: Costs) -> float:
    """Seconds of cores that a batch takes on so many, with a task and a shard each."""
    shards = max(2, cores)
    rows = request.rate * request.batch
    read = read_bytes(request, -(-cores // request.per_machine), costs) * costs.read
    return rows * row_seconds(request, shards, costs) + read + overhead(rows, cores, shards, costs)


def _cores(request: ClusterRequest, costs: Costs) -> int:
    """The fewest cores in whose time a batch is done; where none are enough, those with which it takes the least."""
    left = max(1e-9, request.batch - costs.batch) * ROOM
    numbers = range(1, MOST_SHARDS + 1)
    enough = next((cores for cores in numbers if _work(request, cores, costs) <= cores * left), None)
    return enough or min(numbers, key=lambda cores: _work(request, cores, costs) / cores)


@dataclass(frozen=True)
class Spread:
    """A batch over this many map tasks and shards: where its time goes.

    Core seconds: ``rows``, ``marks`` (watermarks), ``records`` (of rows, beyond the cost of the rows) and ``calls``
    (tasks and shards). ``bytes``: of watermarks and of the overhead of records; ``sent``: the number of records.
    """

    tasks: int
    shards: int
    rows: float
    marks: float
    records: float
    calls: float
    bytes: float
    sent: int

    @property
    def share(self) -> float:
        """The share of the work that is not rows."""
        other = self.marks + self.records + self.calls
        return other / (other + self.rows) if other + self.rows else 0.0

    @property
    def dominates(self) -> str:
        """The part that takes the most time."""
        parts = {"rows": self.rows, "marks": self.marks, "small records": self.records, "calls": self.calls}
        return max(parts, key=lambda name: parts[name])


def spreads(request: ClusterRequest, costs: Costs = MEASURED, most: int = MOST_SHARDS) -> tuple[Spread, ...]:
    """A batch of the load over 2, 8, 32, ... tasks and as many shards."""
    results: list[Spread] = []
    tasks = 2
    while tasks <= most:
        results.append(spread_over(request, tasks, tasks, costs))
        tasks *= 4
    return tuple(results)


def spread_over(request: ClusterRequest, tasks: int, shards: int, costs: Costs = MEASURED) -> Spread:
    """A batch of the load over so many map tasks and shards. Every task sends rows to every shard, if it has enough."""
    rows = request.rate * request.batch
    records = count_records(rows, tasks, shards)
    marks = records.of_watermarks * costs.mark + records.merged * costs.merged
    return Spread(
        tasks, shards, rows * row_seconds(request, shards, costs), marks, records.of_rows * costs.record,
        tasks * costs.task + shards * costs.shard, records.merged * 80 + records.of_rows * costs.record_bytes,
        round(records.of_rows + records.of_watermarks),
    )  # fmt: skip


NAMES = ("l.id", "l.ts", "l.amount", "l.count")


@dataclass(frozen=True)
class ExchangeCost:
    """The measured costs: seconds of one map task and of one shard, and the shard's seconds for watermarks.

    ``bytes``: sent by one task, ``watermark_bytes`` of them for watermarks; ``records``: the number of records it
    sends, ``watermark_records`` of them with watermarks alone.
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
    watermark_records: int

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
    alone = [record["blob"] for record in sent if record["kind"] == WATERMARKS]
    row_blobs = [record["blob"] for record in sent if record["kind"] != WATERMARKS]
    behind = [watermarks_behind(record["blob"]) for record in sent if record["kind"] == MARKED_ROWS]
    sending = min(tasks, max(1, round(tasks * len(row_blobs) / shards)))
    # Those of each task differ.
    received = [
        b'{"lowest": false, "marks": {"l.ts": %d}}' % (1_700_000_000_000_000 + number) for number in range(tasks)
    ]
    began = perf_counter()
    fold_watermarks(received)
    watermarks = perf_counter() - began
    from_blobs([row_blobs[number % len(row_blobs)] for number in range(sending)])
    shard = perf_counter() - began
    sizes, marks = [len(record["blob"]) for record in sent], sum(map(len, behind)) + sum(map(len, alone))
    return ExchangeCost(tasks, shards, rows, task, shard, watermarks, sum(sizes), marks, len(sent), len(alone))


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
