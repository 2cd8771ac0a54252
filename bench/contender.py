"""One contender: runs its query and measures it. As a command it has its own process and JVM, and prints JSON.

Our contenders use only public calls, so that they also run on the package of another tree.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import watersmeet as ws
from bench.data import LAG_SECONDS, SIDES, Workload
from bench.memory import processor_seconds
from watersmeet.spark.session import session

LAUNCHED = "WATERSMEET_BENCH_LAUNCHED"
"""The environment variable with the time at which this process was launched."""
ROWS_PER_WINDOW = 100
SCHEMA = "id BIGINT, ts TIMESTAMP, amount DOUBLE, count INT"
MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PARTITIONS = "spark.sql.shuffle.partitions"
CHECKPOINTS = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled",
)
"""The settings that decide how checkpoints are written."""
TIDY = {"spark.sql.streaming.minBatchesToRetain": "10"}
"""A large state is written often: with a hundred old versions it would take more disk than all other files."""
FRAMES, FRAMES_WIDE = "watersmeet-frames", "watersmeet-frames-wide"
"""The join over DataFrames: of the requested columns, and with one that is never used."""
EXECUTOR = "3g"
"""The memory of an executor."""
OF_SCRIPT = ("floor", "watersmeet", "watersmeet-window", "watersmeet-tables", "watersmeet-chain")


@dataclass(frozen=True)
class Run:
    """A contender on a workload; with ``starts``, the time to a first result, measured over this many starts.

    ``cold``: how long that takes with the start of Python and of Spark before it. ``plain``: in a session that a user
    has made, with Spark's own settings.

    Runs of a section with the same word in ``agrees`` must give the same number of rows. ``axis`` and ``value`` are the
    place in a chart. ``streams``: how many streams a chain joins, which read the two sides in turn, and ``together``
    whether its joins run in one operator; its processor time is measured too. ``workers``: the size of a standalone
    cluster, 0 for local mode as its baseline. ``partitions``: those of Spark. ``shared``: runs with the same word share
    one process, one after the other, so that each begins warm.
    """

    contender: str
    workload: Workload
    label: str = ""
    how: str = "inner"
    shards: int = 2
    plain: bool = False
    starts: int = 0
    cold: bool = False
    agrees: str = ""
    axis: str = ""
    value: int = 0
    streams: int = 0
    together: str = "on"
    workers: int | None = None
    partitions: int = 2
    shared: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether it is a join of Watersmeet."""
        return self.contender.startswith("watersmeet")

    def matches(self, only: str, without: str | None) -> bool:
        """Whether its label contains one text, and not the other."""
        label = self.label or self.contender
        return only in label and (without is None or without not in label)


def measure(run: Run, folder: Path, spark: SparkSession | None = None) -> dict[str, Any]:
    """Run a contender and measure it, in a given session or in its own."""
    launched = float(os.environ.get(LAUNCHED, time.time()))
    if spark is None:
        with _where(run) as (master, conf):
            return _measure(run, folder, _session(run, master, conf), launched)
    settings = {name: spark.conf.get(name, "") for name in CHECKPOINTS}
    spark = spark.newSession()
    for name, value in ({name: value for name, value in settings.items() if value} | _conf(run)).items():
        spark.conf.set(name, value)
    if run.plain and run.is_ours:
        spark.conf.unset(PARTITIONS)
    return _measure(run, folder, spark, launched)


@contextmanager
def _where(run: Run) -> Generator[tuple[str, dict[str, str]]]:
    """The master of a run and the settings of its driver: a cluster that lives as long as the run, or local mode."""
    if not run.workers:
        yield "local[2]", {"spark.driver.memory": "6g"}
        return
    from examples.cluster.standalone import DRIVER, standalone_cluster

    environ = {"PYTHONPATH": os.environ["PYTHONPATH"]}
    with (
        tempfile.TemporaryDirectory(prefix="watersmeet-bench-", ignore_cleanup_errors=True) as folder,
        standalone_cluster(Path(folder), run.workers, 1, EXECUTOR, environ) as master,
    ):
        yield master, {**DRIVER, "spark.executor.memory": EXECUTOR}
        active = SparkSession.getActiveSession()
        if active is not None:
            active.stop()


def _session(run: Run, master: str, conf: Mapping[str, str]) -> SparkSession:
    settings = {**conf, **_conf(run)}
    if run.plain:
        return _plain(settings)
    spark = session(master, conf=settings, log=Path(tempfile.gettempdir()) / "watersmeet-bench.log")
    keep_checkpoints_as_runs(spark)
    return spark


def _measure(run: Run, folder: Path, spark: SparkSession, launched: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-", ignore_cleanup_errors=True) as checkpoints:
        if run.cold:
            return _cold(launched, _writer(spark, run, folder, Path(checkpoints)))
        if run.starts:
            return _first_results(spark, run, folder, Path(checkpoints))
        if run.contender == "spark-rejoin":
            return _measure_rejoin(spark, run, folder)
        started = time.perf_counter()
        query = _writer(spark, run, folder, Path(checkpoints)).start()
        spent = _processor_seconds(query) if run.streams or run.workers is not None else {}
        query.awaitTermination()
        return _steady_state(run, time.perf_counter() - started, list(query.recentProgress), spent)


def keep_checkpoints_as_runs(spark: SparkSession) -> None:
    """Write checkpoints as ``watersmeet run`` does, for all contenders; an older tree may not support it."""
    for module in ("checkpoint_files", "files"):
        with suppress(ImportError, AttributeError):
            import_module(f"watersmeet.spark.private.{module}").keep_checkpoints_here(spark)
            return


def _plain(conf: Mapping[str, str]) -> SparkSession:
    """A session as a user makes one, with a larger Java stack, which Spark's own join does not need either."""
    from watersmeet.spark.session.java import prepare_java  # where it is used: an older tree may not have it

    prepare_java(os.environ)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder.config("spark.driver.extraJavaOptions", "-Xss4m").getOrCreate()


def _cold(launched: float, writer: DataStreamWriter) -> dict[str, Any]:
    """Seconds from the launch of Python to the end of the first batch, in parts."""
    ready = time.time()
    query = writer.start()
    while query.lastProgress is None:
        time.sleep(0.005)
    ended = time.time()
    progress = query.lastProgress
    query.awaitTermination()
    batch = progress["durationMs"]["triggerExecution"] / 1000
    parts = {"session": ready - launched, "begin": ended - batch - ready, "batch": batch, "median": ended - launched}
    return {name: round(seconds, 2) for name, seconds in parts.items()}


def _measure_rejoin(spark: SparkSession, run: Run, folder: Path) -> dict[str, Any]:
    """The time of Spark to join two tables again after every batch of updates: latest row per key, then join."""
    millis: list[int] = []
    results = 0
    loads = run.workload.batches
    for batch in range(loads, loads + run.workload.small_batches):
        sides: list[DataFrame] = []
        for side in SIDES:
            read = [
                spark.read.parquet(str(folder / side / f"{n:05}.parquet")).withColumn("n", F.lit(n))
                for n in range(batch + 1)
            ]
            latest = (
                reduce(DataFrame.unionAll, read).groupBy("id").agg(F.max_by(F.struct("ts", "amount"), "n").alias(side))
            )
            sides.append(latest)
        started = time.perf_counter()
        results = sides[0].join(sides[1], "id").select("id", "left.*", "right.*").count()
        millis.append(round(1000 * (time.perf_counter() - started)))
    steady = millis[len(millis) // 4 :]
    return _numbers(run, steady, results) | {"whole_run_seconds": round(sum(millis) / 1000, 1)}


def _numbers(run: Run, millis: list[int], results: int) -> dict[str, Any]:
    """The figures of batches with these durations."""
    rows = run.workload.small_rows * len(millis)
    return {
        "steady_batches": len(millis),
        "results": results,
        "rows_per_second": round(rows / sum(millis) * 1000),
        "seconds_per_batch": round(sum(millis) / len(millis) / 1000, 3),
        "median": round(median(millis) / 1000, 3),
        "p99": round(sorted(millis)[len(millis) * 99 // 100] / 1000, 3),
        "state_rows": 0,
    }


def _writer(spark: SparkSession, run: Run, folder: Path, checkpoint: Path) -> DataStreamWriter:
    count = F.count(F.lit(1)) if run.contender != "watersmeet-tables" else F.sum(F.expr("IF(_change = '+', 1, -1)"))
    result = _query(spark, run, folder).observe("result", count.alias("rows"))
    writer = result.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True)


def _first_results(spark: SparkSession, run: Run, folder: Path, checkpoints: Path) -> dict[str, Any]:
    """Seconds from start to first result: first in a session that Spark's own join has warmed up, then repeatedly."""
    warming = replace(run, contender="spark-rocksdb-2")
    _writer(spark, warming, folder, checkpoints / "warming").start().awaitTermination()
    seconds: list[float] = []
    for number in range(run.starts):
        writer = _writer(spark, run, folder, checkpoints / str(number))
        started = time.perf_counter()
        query = writer.start()
        while query.lastProgress is None:
            time.sleep(0.005)
        seconds.append(round(time.perf_counter() - started, 3))
        query.awaitTermination()
    return {"first": seconds[0], "median": median(seconds[1:])}


def _conf(run: Run) -> dict[str, str]:
    conf = {"spark.sql.streaming.numRecentProgressUpdates": "10000"} | (TIDY if run.axis == "state" else {})
    if not run.plain:
        conf[PARTITIONS] = str(run.partitions)
    if run.contender == "spark-memory":
        conf[PROVIDER] = MEMORY
    if run.contender.startswith("spark-rocksdb"):
        conf |= {PROVIDER: ROCKSDB, "spark.sql.streaming.join.stateFormatVersion": run.contender[-1]}
    return conf


def _stream(spark: SparkSession, folder: Path, columns: Iterable[str]) -> DataFrame:
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").parquet(str(folder))
    return frame.select(*columns).withWatermark("ts", f"{LAG_SECONDS} seconds")


def _query(spark: SparkSession, run: Run, folder: Path) -> DataFrame:
    """The contender's query; ``watersmeet`` and the floor read as a script does, ``-frames`` like Spark's own join."""
    if run.contender == "floor":
        from bench.floor import floor_query

        return floor_query(spark, _script(run, folder), run.shards)
    if run.contender in OF_SCRIPT:
        return ws.sql(_script(run, folder), spark=spark)
    # Spark's own join and a script read only requested columns; `ws.join` does not know what follows it.
    read = ("id", "ts", "amount", *(["count"] if run.contender == FRAMES_WIDE else []))
    left, right = (_stream(spark, folder / side, read) for side in SIDES)
    if run.contender in (FRAMES, FRAMES_WIDE):
        shards = None if run.plain else run.shards
        joined = ws.join(
            left, right, on="left.id = right.id", within=run.workload.within_text, how=run.how, shards=shards
        )
        return joined.select("left_id", "left_ts", "left_amount", "right_ts", "right_amount")
    interval = f"INTERVAL {run.workload.within_text}"
    bound = f"right.ts BETWEEN left.ts - {interval} AND left.ts + {interval}"
    joined = left.alias("left").join(right.alias("right"), F.expr(f"left.id = right.id AND {bound}"), run.how)
    return joined.selectExpr("left.id", "left.ts", "left.amount", "right.ts", "right.amount")


def _chain(run: Run, folder: Path) -> str:
    """A star of streams that read the two sides in turn, all within the bound of the first."""
    streams = "".join(
        f"CREATE STREAM s{n} ({SCHEMA}, WATERMARK FOR ts AS ts - INTERVAL {LAG_SECONDS} SECONDS)"
        f" USING parquet OPTIONS (path '{folder / SIDES[n % 2]}', maxFilesPerTrigger '1');"
        for n in range(run.streams)
    )
    interval = f"INTERVAL {run.workload.within_text}"
    bounds = f"BETWEEN s0.ts - {interval} AND s0.ts + {interval}"
    joins = " ".join(f"JOIN s{n} ON s0.id = s{n}.id AND s{n}.ts {bounds}" for n in range(1, run.streams))
    amounts = ", ".join(f"s{n}.amount AS amount{n}" for n in range(run.streams))
    return f"SET watersmeet.together = {run.together}; {streams} SELECT STREAM s0.id, s0.ts, {amounts} FROM s0 {joins}"


def _script(run: Run, folder: Path) -> str:
    shards = f"SET watersmeet.shards = {run.shards};"
    if run.streams:
        return f"{shards} {_chain(run, folder)}"
    if run.contender == "watersmeet-tables":
        tables = "".join(
            f"CREATE TABLE {side}s ({SCHEMA}, PRIMARY KEY (id)) USING parquet"
            f" OPTIONS (path '{folder / side}', maxFilesPerTrigger '1');"
            for side in SIDES
        )
        columns = "l.id, l.ts, l.amount, r.ts AS right_ts, r.amount AS right_amount"
        key = "id" if run.workload.shape == "table" else "count"
        return f"{shards} {tables} SELECT TABLE {columns} FROM lefts l JOIN rights r ON l.{key} = r.{key}"
    schema, notes = (f"{SCHEMA}, note STRING", ", l.note, r.note AS right_note") if run.workload.text else (SCHEMA, "")
    streams = "".join(
        f"CREATE STREAM `{side}` ({schema}, WATERMARK FOR ts AS ts - INTERVAL {LAG_SECONDS} SECONDS)"
        f" USING parquet OPTIONS (path '{folder / side}', maxFilesPerTrigger '1') ORDER BY ts;"
        for side in SIDES
    )
    window, within = "", f" WITHIN {run.workload.within_text}"
    if run.contender == "watersmeet-window":
        window, within = f" WINDOW (COUNT {ROWS_PER_WINDOW} PARTITION BY id)", ""
    return (
        f"{shards} {streams} SELECT STREAM l.id, l.ts, l.amount, r.ts AS right_ts, r.amount AS right_amount{notes}"
        f" FROM `left` l{window} {run.how.upper()} JOIN `right` r{window}{within} ON l.id = r.id"
    )


def _processor_seconds(query: StreamingQuery) -> dict[int, float]:
    """The processor time of this process and all below it when each batch of a query had ended."""
    spent: dict[int, float] = {}
    while query.isActive:
        last = query.lastProgress
        if last is not None:
            spent.setdefault(last["batchId"], processor_seconds(os.getpid()))
        time.sleep(0.05)
    return spent


def _steady_state(run: Run, seconds: float, progress: list[Any], spent: Mapping[int, float]) -> dict[str, Any]:
    """The steady state: the first quarter of the batches is warm-up, and so are the large ones before small ones."""
    sizes = run.workload.sizes
    batches = progress[: len(sizes)]
    small = run.workload.small_batches
    warm = len(sizes) - small * 3 // 4 if small else max(1, len(sizes) // 4)
    steady = batches[warm:]
    millis = [p["durationMs"]["triggerExecution"] for p in steady]
    ends = [spent[p["batchId"]] for p in batches[warm - 1 :] if p["batchId"] in spent]
    return {
        "batches": len(batches),
        "processor_seconds": round((ends[-1] - ends[0]) / (len(ends) - 1), 3) if len(ends) > 1 else 0.0,
        "steady_batches": len(steady),
        "rows": 2 * sum(sizes),
        "results": sum(_rows(p) for p in progress),
        "rows_per_second": round(2 * sum(sizes[warm:]) / sum(millis) * 1000),
        "results_per_second": round(sum(_rows(p) for p in steady) / sum(millis) * 1000),
        "seconds_per_batch": round(sum(millis) / len(millis) / 1000, 3),
        "median": round(median(millis) / 1000, 3),
        "around": round(
            median(p["durationMs"]["triggerExecution"] - p["durationMs"]["addBatch"] for p in steady) / 1000, 3
        ),
        "p99": round(sorted(millis)[len(millis) * 99 // 100] / 1000, 3),
        "whole_run_seconds": round(seconds, 1),
        "state_rows": _state_rows(steady[-1]),
        "write_amplification": _write_amplification(batches),
        "last": steady[-1]["durationMs"],
    }


def _around(millis: Mapping[str, int]) -> int:
    """The part of a batch outside its job: offsets, planning, logs, commits."""
    return millis["triggerExecution"] - millis["addBatch"]


def _write_amplification(progress: list[Any]) -> float:
    """The number of writes of a row to the state: one when it arrives, and one with every merge of its run."""
    return round(sum(of_ours(p, "written") for p in progress) / max(1, sum(of_ours(p, "rows") for p in progress)), 2)


def _state_rows(progress: Any) -> int:
    """The rows that a join keeps, as Spark's own join counts them, or ours."""
    return of_ours(progress, "state") or sum(operator["numRowsTotal"] for operator in progress["stateOperators"])


def of_ours(progress: Any, number: str) -> int:
    """A number that our joins report for a batch, summed over all sides."""
    joins = [o.asDict() for name, o in progress["observedMetrics"].items() if name.startswith("watersmeet:")]
    if any("reports" in join for join in joins):
        from watersmeet.metrics.metrics import by_join  # where it is used: an older tree does not have it

        joins = [*by_join(text for join in joins for text in join["reports"]).values()]
    return sum(int(n or 0) for join in joins for name, n in join.items() if name.partition("_")[0] == number)


def _rows(progress: Any) -> int:
    observed = progress["observedMetrics"].get("result")
    return 0 if observed is None else int(observed["rows"] or 0)


def _parse_run(fields: dict[str, Any]) -> Run:
    return Run(**fields | {"workload": Workload(**fields["workload"])})


def serve(lines: Iterable[str], spark: SparkSession | None = None) -> None:
    """Measure the runs that arrive as lines, one after the other, in a given session or in their own."""
    for line in lines:
        fields, folder = json.loads(line)
        run = _parse_run(fields)
        if spark is None:
            with _where(run) as (master, conf):
                spark = _session(run, master, conf)
        print("RESULT " + json.dumps(measure(run, Path(folder), spark)), flush=True)


if __name__ == "__main__":
    # SIGTERM must not leave a cluster behind.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if len(sys.argv) == 1:
        serve(sys.stdin)
    else:
        print("RESULT " + json.dumps(measure(_parse_run(json.loads(sys.argv[1])), Path(sys.argv[2]))))
