"""A query on Watersmeet, or Spark's own join, in a process of its own: ``python -m bench.peers.our_job '{...}'``."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from bench.contender import LAUNCHED, MEMORY, PROVIDER, SCHEMA, keep_checkpoints_as_runs
from bench.data import LAG_SECONDS, SIDES
from bench.peers.queries import QUERIES, SPARK, WITHIN


def main() -> None:
    """Run the query in its own session, and print its duration and, on request, its rows."""
    launched = float(os.environ[LAUNCHED])
    from watersmeet.spark.session import session

    request = json.loads(sys.argv[1])
    conf = {"spark.driver.memory": "6g", "spark.sql.shuffle.partitions": "2"}
    own = {PROVIDER: MEMORY} if request["peer"] == SPARK else {}
    spark = session("local[2]", conf=conf | own, log=Path(tempfile.gettempdir()) / "watersmeet-peers.log")
    keep_checkpoints_as_runs(spark)
    print("RESULT " + json.dumps(run(request, spark, launched)), flush=True)


def run(request: dict[str, Any], spark: SparkSession, launched: float) -> dict[str, Any]:
    """The figures of a run; ``collect``: with the final rows."""
    import watersmeet as ws

    result_frame = (
        _spark_join(spark, request["folder"], request["format"])
        if request["peer"] == SPARK
        else ws.sql(request["script"], spark=spark)
    )
    ready = time.time()
    result: dict[str, Any] = {"start": round(ready - launched, 2)}
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-", ignore_cleanup_errors=True) as folder:
        writer = result_frame.writeStream.option("checkpointLocation", f"{folder}/checkpoint").trigger(
            availableNow=True
        )
        if request["collect"]:
            writer.format("parquet").option("path", f"{folder}/result").start().awaitTermination()
            result["rows"] = _in_the_end(
                spark.read.schema(result_frame.schema).parquet(f"{folder}/result"), request["name"]
            )
        else:
            writer.format("noop").start().awaitTermination()
    return result


def _spark_join(spark: SparkSession, folder: str, format_: str) -> DataFrame:
    left, right = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", "1")
        .format(format_)
        .load(f"{folder}/{side}")
        .withWatermark("ts", f"{LAG_SECONDS} seconds")
        .alias(side)
        for side in SIDES
    )
    bound = f"right.ts BETWEEN left.ts - INTERVAL {WITHIN} SECONDS AND left.ts + INTERVAL {WITHIN} SECONDS"
    joined = left.join(right, F.expr(f"left.id = right.id AND {bound}"))
    columns = ("left.id", "left.ts", "left.amount", "right.ts AS right_ts", "right.amount AS right_amount")
    return joined.selectExpr(*columns)


def _in_the_end(result: DataFrame, name: str) -> list[list[str | None]]:
    """The rows as texts, without those that were retracted."""
    weight = F.expr("IF(_change = '+', 1, -1)") if "_change" in result.columns else F.lit(1)
    texts = [F.col(column).cast("string").alias(column) for column in QUERIES[name].columns]
    rows = result.groupBy(*texts).agg(F.sum(weight).alias("#times")).where("`#times` <> 0").collect()
    return [list(row)[:-1] for row in rows for _ in range(row["#times"])]


if __name__ == "__main__":
    main()
