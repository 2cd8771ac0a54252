"""One contender in a process and a JVM of its own: runs the query and prints what it measured as JSON."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

import watersmeet as ws
from bench.data import LAG_SECONDS, Workload
from watersmeet.analyze import analyze
from watersmeet.api import join_script
from watersmeet.joins.operator import Emission, Marks, Overflow, Report, Store
from watersmeet.physical import JoinPlan, plan_query
from watersmeet.spark.compile import Compiler
from watersmeet.spark.session import session

SCHEMA = "id BIGINT, ts TIMESTAMP, amount DOUBLE, count INT"
MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"


@dataclass(frozen=True)
class Floor:
    """An operator that lets every row arrive and does nothing with it: what Spark's plumbing costs by itself."""

    late_columns = ((), ())
    needs_clock = False
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


def main(contender: str, folder: str, workload: Workload, how: str) -> dict[str, Any]:
    """Run a contender and measure it."""
    spark = session("local[2]", conf=_conf(contender), log=Path(tempfile.gettempdir()) / "watersmeet-bench.log")
    sides = [_stream(spark, Path(folder) / side) for side in ("left", "right")]
    result = _query(contender, sides[0], sides[1], workload, how).observe("result", F.count(F.lit(1)).alias("rows"))
    checkpoint = tempfile.mkdtemp(prefix="watersmeet-bench-")
    try:
        started = time.perf_counter()
        query = (
            result.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.perf_counter() - started
        return _measured(contender, seconds, list(query.recentProgress))
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


def _conf(contender: str) -> dict[str, str]:
    conf = {"spark.driver.memory": "6g", "spark.sql.streaming.numRecentProgressUpdates": "10000"}
    if contender == "spark-memory":
        conf[PROVIDER] = MEMORY
    if contender.startswith("spark-rocksdb"):
        conf |= {PROVIDER: ROCKSDB, "spark.sql.streaming.join.stateFormatVersion": contender[-1]}
    return conf


def _stream(spark: SparkSession, folder: Path) -> DataFrame:
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").parquet(str(folder))
    return frame.withWatermark("ts", f"{LAG_SECONDS} seconds")


def _query(contender: str, left: DataFrame, right: DataFrame, workload: Workload, how: str) -> DataFrame:
    condition = "left.id = right.id"
    if contender == "floor":
        return _floor(left, right, condition, workload)
    if contender == "watersmeet":
        joined = ws.join(left, right, on=condition, within=workload.within_text, how=how)
        return joined.select("left_id", "left_ts", "left_amount", "right_ts", "right_amount")
    interval = f"INTERVAL {workload.within} SECONDS"
    bound = f"right.ts BETWEEN left.ts - {interval} AND left.ts + {interval}"
    joined = left.alias("left").join(right.alias("right"), F.expr(f"{condition} AND {bound}"), how)
    return joined.selectExpr("left.id", "left.ts", "left.amount", "right.ts", "right.amount")


def _floor(left: DataFrame, right: DataFrame, condition: str, workload: Workload) -> DataFrame:
    """The same plan with the operator taken out."""
    script, sources = join_script(left, right, condition, within=workload.within_text)
    (query,) = analyze(script, sources)
    plan = plan_query(query)
    relation = plan.relation
    assert isinstance(relation, JoinPlan)
    frames = {"left": left, "right": right}
    without = replace(plan, relation=replace(relation, operator=Floor()))
    return Compiler(left.sparkSession, frames, shards=2).query(without).result


def _measured(contender: str, seconds: float, progress: list[Any]) -> dict[str, Any]:
    batches = [p for p in progress if p["numInputRows"] > 0]
    warm = max(1, len(batches) // 4)
    steady = batches[warm:]
    millis = [p["durationMs"]["triggerExecution"] for p in steady]
    rows = sum(p["numInputRows"] for p in steady)
    return {
        "contender": contender,
        "batches": len(batches),
        "steady_batches": len(steady),
        "rows": sum(p["numInputRows"] for p in batches),
        "results": sum(_rows(p) for p in progress),
        "rows_per_second": round(rows / sum(millis) * 1000),
        "seconds_per_batch": round(sum(millis) / len(millis) / 1000, 3),
        "whole_run_seconds": round(seconds, 1),
    }


def _rows(progress: Any) -> int:
    observed = progress["observedMetrics"].get("result")
    return 0 if observed is None else int(observed["rows"])


if __name__ == "__main__":
    contender_, folder_, workload_, how_ = sys.argv[1:]
    print("RESULT " + json.dumps(main(contender_, folder_, Workload(**json.loads(workload_)), how_)))
