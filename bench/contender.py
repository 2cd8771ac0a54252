"""One contender in a process and a JVM of its own: runs the query and prints what it measured as JSON."""

from __future__ import annotations

import atexit
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming.readwriter import DataStreamWriter

import watersmeet as ws
from bench.data import LAG_SECONDS, Workload
from watersmeet.analyze import analyze
from watersmeet.joins.core.operator import Emission, Marks, Overflow, Report, Store
from watersmeet.language import read_script
from watersmeet.observe.progress import progress_of
from watersmeet.physical import JoinPlan, plan_query
from watersmeet.spark.compile.compiler import Compiler
from watersmeet.spark.session import session
from watersmeet.spark.sources.columnar import find_files
from watersmeet.spark.sources.reading import read_sources

ROWS_PER_WINDOW = 100
SCHEMA = "id BIGINT, ts TIMESTAMP, amount DOUBLE, count INT"
MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"


@dataclass(frozen=True)
class Floor:
    """An operator that lets every row arrive and does nothing with it: what Spark's plumbing costs by itself."""

    shown = ((), ())
    extra = ()
    late_columns = ((), ())
    needs_clock = False
    needs_run = False
    identity = "floor"

    def limited(self, max_rows: int | None, overflow: Overflow) -> Floor:
        """It keeps nothing."""
        return self

    def for_shards(self, shards: int) -> Floor:
        """It is the same in all shards."""
        return self

    def step(self, store: Store, arrivals: Mapping[int, pa.Table], marks: Marks) -> Emission:
        """Count the rows and forget them."""
        rows = tuple(arrivals[port].num_rows if port in arrivals else 0 for port in (0, 1))
        return Emission(report=Report(rows=(rows[0], rows[1])))


@dataclass(frozen=True)
class Run:
    """What one process measures: a contender on a workload; ``start``: only how long its first result takes."""

    contender: str
    workload: Workload
    how: str = "inner"
    shards: int = 2
    start: bool = False


def main(run: Run, folder: Path) -> dict[str, Any]:
    """Run a contender and measure it."""
    spark = session("local[2]", conf=_conf(run), log=Path(tempfile.gettempdir()) / "watersmeet-bench.log")
    if run.start:
        return _first_results(spark, run, folder)
    if run.contender == "spark-rejoin":
        return _rejoined(spark, run, folder)
    started = time.perf_counter()
    query = _writer(spark, run, folder).start()
    query.awaitTermination()
    return _measured(run, time.perf_counter() - started, list(query.recentProgress))


def _rejoined(spark: SparkSession, run: Run, folder: Path) -> dict[str, Any]:
    """What Spark takes to join two tables anew after every batch of updates: the latest row per key, then the join."""
    millis: list[int] = []
    counted = 0
    loads = run.workload.batches
    for batch in range(loads, loads + run.workload.small_batches):
        sides: list[DataFrame] = []
        for side in ("left", "right"):
            read = [
                spark.read.parquet(str(folder / side / f"{n:05}.parquet")).withColumn("n", F.lit(n))
                for n in range(batch + 1)
            ]
            latest = (
                reduce(DataFrame.unionAll, read).groupBy("id").agg(F.max_by(F.struct("ts", "amount"), "n").alias(side))
            )
            sides.append(latest)
        started = time.perf_counter()
        counted = sides[0].join(sides[1], "id").select("id", "left.*", "right.*").count()
        millis.append(round(1000 * (time.perf_counter() - started)))
    steady = millis[len(millis) // 4 :]
    return _numbers(run, steady, counted) | {"whole_run_seconds": round(sum(millis) / 1000, 1)}


def _numbers(run: Run, millis: list[int], results: int) -> dict[str, Any]:
    """What is told of batches that took so long."""
    rows = run.workload.small_rows * len(millis)
    return {
        "contender": run.contender,
        "steady_batches": len(millis),
        "results": results,
        "rows_per_second": round(rows / sum(millis) * 1000),
        "seconds_per_batch": round(sum(millis) / len(millis) / 1000, 3),
        "median": round(median(millis) / 1000, 3),
        "p99": round(sorted(millis)[len(millis) * 99 // 100] / 1000, 3),
        "state_rows": 0,
    }


def _writer(spark: SparkSession, run: Run, folder: Path) -> DataStreamWriter:
    count = F.count(F.lit(1)) if run.contender != "watersmeet-tables" else F.sum(F.expr("IF(_change = '+', 1, -1)"))
    result = _query(spark, run, folder).observe("result", count.alias("rows"))
    checkpoint = tempfile.mkdtemp(prefix="watersmeet-bench-")
    atexit.register(shutil.rmtree, checkpoint, ignore_errors=True)
    writer = result.writeStream.format("noop").option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True)


def _first_results(spark: SparkSession, run: Run, folder: Path) -> dict[str, Any]:
    """Seconds from start to the first result: first in a session that Spark's own join has warmed, then again."""
    _writer(spark, replace(run, contender="spark-rocksdb-2"), folder).start().awaitTermination()
    seconds: list[float] = []
    for _ in range(4):
        writer = _writer(spark, run, folder)
        started = time.perf_counter()
        query = writer.start()
        while query.lastProgress is None:
            time.sleep(0.005)
        seconds.append(round(time.perf_counter() - started, 3))
        query.awaitTermination()
    return {"contender": run.contender, "first": seconds[0], "later": median(seconds[1:])}


def _conf(run: Run) -> dict[str, str]:
    conf = {
        "spark.driver.memory": "6g",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.sql.shuffle.partitions": str(run.shards),
    }
    if run.contender == "spark-memory":
        conf[PROVIDER] = MEMORY
    if run.contender.startswith("spark-rocksdb"):
        conf |= {PROVIDER: ROCKSDB, "spark.sql.streaming.join.stateFormatVersion": run.contender[-1]}
    return conf


def _stream(spark: SparkSession, folder: Path) -> DataFrame:
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").parquet(str(folder))
    return frame.withWatermark("ts", f"{LAG_SECONDS} seconds")


def _query(spark: SparkSession, run: Run, folder: Path) -> DataFrame:
    """The contender's query; ``watersmeet`` and the floor read as a script does, ``-frames`` like Spark's own join."""
    if run.contender in ("watersmeet", "watersmeet-window", "watersmeet-tables", "floor"):
        return _of_script(spark, run, folder)
    left, right = (_stream(spark, folder / side) for side in ("left", "right"))
    if run.contender == "watersmeet-frames":
        joined = ws.join(left, right, on="left.id = right.id", within=run.workload.within_text, how=run.how)
        return joined.select("left_id", "left_ts", "left_amount", "right_ts", "right_amount")
    interval = f"INTERVAL {run.workload.within} SECONDS"
    bound = f"right.ts BETWEEN left.ts - {interval} AND left.ts + {interval}"
    joined = left.alias("left").join(right.alias("right"), F.expr(f"left.id = right.id AND {bound}"), run.how)
    return joined.selectExpr("left.id", "left.ts", "left.amount", "right.ts", "right.amount")


def _of_script(spark: SparkSession, run: Run, folder: Path) -> DataFrame:
    text = _script(run, folder)
    if run.contender != "floor":
        return ws.sql(text, spark=spark)
    script = read_script(text)
    plan = plan_query(analyze(script)[0])
    assert isinstance(plan.relation, JoinPlan)
    without = replace(plan, relation=replace(plan.relation, operator=Floor()))
    frames, files = read_sources(spark, script, {}), find_files(spark, script, {})
    return Compiler(spark, frames, run.shards, files=files).query(without).result


def _script(run: Run, folder: Path) -> str:
    if run.contender == "watersmeet-tables":
        tables = "".join(
            f"CREATE TABLE {side}s ({SCHEMA}, PRIMARY KEY (id)) USING parquet"
            f" OPTIONS (path '{folder / side}', maxFilesPerTrigger '1');"
            for side in ("left", "right")
        )
        columns = "l.id, l.ts, l.amount, r.ts AS right_ts, r.amount AS right_amount"
        return f"{tables} SELECT TABLE {columns} FROM lefts l JOIN rights r ON l.id = r.id"
    streams = "".join(
        f"CREATE STREAM {side} ({SCHEMA}, WATERMARK FOR ts AS ts - INTERVAL {LAG_SECONDS} SECONDS)"
        f" USING parquet OPTIONS (path '{folder / side}', maxFilesPerTrigger '1') ORDER BY ts;"
        for side in ("`left`", "`right`")
    ).replace("/`left`", "/left").replace("/`right`", "/right")  # fmt: skip
    window, within = "", f" WITHIN {run.workload.within_text}"
    if run.contender == "watersmeet-window":
        window, within = f" WINDOW (COUNT {ROWS_PER_WINDOW} PARTITION BY id)", ""
    return (
        f"{streams} SELECT STREAM l.id, l.ts, l.amount, r.ts AS right_ts, r.amount AS right_amount"
        f" FROM `left` l{window} {run.how.upper()} JOIN `right` r{window}{within} ON l.id = r.id"
    )


def _measured(run: Run, seconds: float, progress: list[Any]) -> dict[str, Any]:
    """The steady state: the first quarter of the batches is warm-up, and so are the large ones before small ones."""
    sizes = run.workload.sizes
    batches = progress[: len(sizes)]
    small = run.workload.small_batches
    warm = len(sizes) - small * 3 // 4 if small else max(1, len(sizes) // 4)
    steady = batches[warm:]
    millis = [p["durationMs"]["triggerExecution"] for p in steady]
    return {
        "contender": run.contender,
        "how": run.how,
        "shards": run.shards,
        "batches": len(batches),
        "steady_batches": len(steady),
        "rows": 2 * sum(sizes),
        "results": sum(_rows(p) for p in progress),
        "rows_per_second": round(2 * sum(sizes[warm:]) / sum(millis) * 1000),
        "results_per_second": round(sum(_rows(p) for p in steady) / sum(millis) * 1000),
        "seconds_per_batch": round(sum(millis) / len(millis) / 1000, 3),
        "median": round(median(millis) / 1000, 3),
        "p99": round(sorted(millis)[len(millis) * 99 // 100] / 1000, 3),
        "whole_run_seconds": round(seconds, 1),
        "state_rows": _state_rows(steady[-1]),
        "write_amplification": _write_amplification(batches),
        "last": steady[-1]["durationMs"],
    }


def _write_amplification(progress: list[Any]) -> float:
    """How often a row is written to the state: once when it comes, and again with every merge of its run."""
    ours = [progress_of("bench", p, frozenset()) for p in progress]
    return round(sum(p.written for p in ours) / max(1, sum(p.rows_in for p in ours)), 2)


def _state_rows(progress: Any) -> int:
    """The rows that a join keeps, as Spark's own join counts them, or ours."""
    ours = progress_of("bench", progress, frozenset())
    return ours.state_rows or sum(operator["numRowsTotal"] for operator in progress["stateOperators"])


def _rows(progress: Any) -> int:
    observed = progress["observedMetrics"].get("result")
    return 0 if observed is None else int(observed["rows"] or 0)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    asked = Run(**given | {"workload": Workload(**given["workload"])})
    print("RESULT " + json.dumps(main(asked, Path(sys.argv[2]))))
