"""The join of two topics into a third, on Watersmeet and on Spark's own: ``python -m bench.peers.our_topics '{...}'``.

``watersmeet`` is SQL over declared topics, ``watersmeet-workers`` the same with JSON decoded in workers, and
``watersmeet-frames`` a call over DataFrames whose records Spark has decoded. It runs until the standard input ends, and
tells when it does: where rows come later, when it waits for them.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

import watersmeet as ws
from bench.contender import MEMORY, PROVIDER, ROCKSDB, keep_checkpoints_as_runs
from watersmeet.spark.session import session

SQL, WORKERS, FRAMES = "watersmeet", "watersmeet-workers", "watersmeet-frames"
STORES = {SQL: ROCKSDB, WORKERS: ROCKSDB, FRAMES: ROCKSDB, "spark-memory": MEMORY, "spark-rocksdb": ROCKSDB}
COLUMNS = "id BIGINT, ts BIGINT, amount DOUBLE"
DECLARED = """
CREATE STREAM {side} ({columns}, WATERMARK FOR ts AS ts - {lag}) USING kafka OPTIONS (
    kafka.bootstrap.servers '{address}', subscribe '{topic}', startingOffsets 'earliest', value.format 'json'{more}
);
"""
JOINED = """
SELECT STREAM l.id, l.ts, l.amount, r.ts AS right_ts, r.amount AS right_amount
FROM left_side l JOIN right_side r ON l.id = r.id AND r.ts BETWEEN l.ts - {within} AND l.ts + {within};
"""


def main() -> None:
    """Start the join, say so when it runs, and stop it in the end."""
    asked = json.loads(sys.argv[1])
    conf = {PROVIDER: STORES[asked["peer"]], "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "6g"}
    log = Path(tempfile.gettempdir()) / "watersmeet-topics.log"
    spark = session("local[2]", conf=conf, formats=["kafka"], log=log)
    keep_checkpoints_as_runs(spark)
    value = (_sql if asked["peer"] in (SQL, WORKERS) else _frames)(spark, asked)
    with tempfile.TemporaryDirectory(prefix="watersmeet-topics-", ignore_cleanup_errors=True) as checkpoint:
        target = {
            "kafka.bootstrap.servers": asked["address"], "topic": asked["joined"], "checkpointLocation": checkpoint
        }  # fmt: skip
        query = value.writeStream.format("kafka").options(**target).start()
        ended = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        while query.isActive and not asked["batch"] and not query.status["message"].startswith("Waiting for"):
            time.sleep(0.1)
        print("ready", flush=True)
        while query.isActive and not ended.wait(0.2):
            pass
        query.stop()
    spark.stop()


def _sql(spark: SparkSession, asked: dict[str, Any]) -> DataFrame:
    """The joined rows as JSON, of declared topics whose times are numbers."""
    more = f", maxOffsetsPerTrigger '{asked['batch'] // 2}'" if asked["batch"] else ""
    own = {"columns": COLUMNS, "lag": asked["lag"] * 1000, "address": asked["address"], "more": more}
    declared = "".join(DECLARED.format(side=f"{s}_side", topic=asked[s], **own) for s in ("left", "right"))
    declared = f"SET watersmeet.json_in_workers = {'on' if asked['peer'] == WORKERS else 'off'};{declared}"
    return ws.sql(declared + JOINED.format(within=asked["within"] * 1000), spark=spark).select(
        F.to_json(F.struct("*")).alias("value")
    )


def _frames(spark: SparkSession, asked: dict[str, Any]) -> DataFrame:
    """The same of DataFrames, whose times are timestamps."""
    left, right = (_stream(spark, asked, asked[side]) for side in ("left", "right"))
    ends = F.struct(
        F.col("left_id").alias("id"), F.unix_millis("left_ts").alias("ts"), F.col("left_amount").alias("amount"),
        F.unix_millis("right_ts").alias("right_ts"), "right_amount",
    )  # fmt: skip
    return _joined(asked, left, right).select(F.to_json(ends).alias("value"))


def _stream(spark: SparkSession, asked: dict[str, Any], topic: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": asked["address"], "subscribe": topic, "startingOffsets": "earliest"}
    if asked["batch"]:
        options["maxOffsetsPerTrigger"] = str(asked["batch"] // 2)
    read = spark.readStream.format("kafka").options(**options).load()
    row = F.from_json(F.col("value").cast("string"), COLUMNS)
    opened = read.select(row.alias("r")).select("r.id", F.timestamp_millis("r.ts").alias("ts"), "r.amount")
    return opened.withWatermark("ts", f"{asked['lag']} seconds")


def _joined(asked: dict[str, Any], left: DataFrame, right: DataFrame) -> DataFrame:
    within = f"INTERVAL {asked['within']} SECONDS"
    on = f"left.id = right.id AND right.ts BETWEEN left.ts - {within} AND left.ts + {within}"
    if asked["peer"] == FRAMES:
        return ws.join(left, right, on=on)
    own = left.alias("left").join(right.alias("right"), F.expr(on))
    names = [(side, name) for side in ("left", "right") for name in ("id", "ts", "amount")]
    return own.select(*(F.col(f"{side}.{name}").alias(f"{side}_{name}") for side, name in names))


if __name__ == "__main__":
    main()
