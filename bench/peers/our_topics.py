"""The join of two topics into a third, on Watersmeet and on Spark's own: ``python -m bench.peers.our_topics '{...}'``.

``watersmeet`` is SQL over declared topics, ``watersmeet-by-spark`` the same with all JSON decoded by Spark, and
``watersmeet-frames`` a call over DataFrames whose records Spark has decoded. ``floor`` joins nothing: it writes each
record of both topics as it came, through one stateful operator in Python, which is the least that a batch costs in
Spark. It runs until the standard input ends, and tells when it does: where rows come later, when it waits for them.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import watersmeet as ws
from bench.contender import MEMORY, PROVIDER, ROCKSDB, keep_checkpoints_as_runs
from watersmeet.spark.session import session

SQL, BY_SPARK, FRAMES, FLOOR = "watersmeet", "watersmeet-by-spark", "watersmeet-frames", "floor"
STORES = {"spark-memory": MEMORY}
"""The state stores of contenders; all others have theirs in RocksDB."""
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
    store = STORES.get(asked["peer"], ROCKSDB)
    conf = {PROVIDER: store, "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "6g"}
    log = Path(tempfile.gettempdir()) / "watersmeet-topics.log"
    spark = session("local[2]", conf=conf, formats=["kafka"], log=log)
    keep_checkpoints_as_runs(spark)
    rows = {SQL: _sql, BY_SPARK: _sql, FLOOR: _floor}.get(asked["peer"], _frames)
    value = rows(spark, asked)
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
    declared = f"SET watersmeet.json_in_workers = {'off' if asked['peer'] == BY_SPARK else 'on'};{declared}"
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
    return _join_sides(asked, left, right).select(F.to_json(ends).alias("value"))


def _stream(spark: SparkSession, asked: dict[str, Any], topic: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": asked["address"], "subscribe": topic, "startingOffsets": "earliest"}
    if asked["batch"]:
        options["maxOffsetsPerTrigger"] = str(asked["batch"] // 2)
    read = spark.readStream.format("kafka").options(**options).load()
    row = F.from_json(F.col("value").cast("string"), COLUMNS)
    opened = read.select(row.alias("r")).select("r.id", F.timestamp_millis("r.ts").alias("ts"), "r.amount")
    return opened.withWatermark("ts", f"{asked['lag']} seconds")


class Forward(StatefulProcessor):
    """Returns the rows as they came, and counts them in the state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state."""
        self.count: Any = handle.getValueState("count", "n BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's
        """Return the rows of a group in a batch."""
        number = (self.count.get() or (0,))[0]
        for frame in rows:
            number += len(frame)
            yield frame[["value"]]
        self.count.update((number,))

    def close(self) -> None:
        """Nothing to close."""


def _floor(spark: SparkSession, asked: dict[str, Any]) -> DataFrame:
    """The records of both topics, in two groups."""
    topics = ",".join(asked[side] for side in ("left", "right"))
    options = {"kafka.bootstrap.servers": asked["address"], "subscribe": topics, "startingOffsets": "earliest"}
    value = F.col("value").cast("string").alias("value")
    grouped = (
        spark.readStream.format("kafka").options(**options).load()
        .select(F.pmod(F.hash("value"), F.lit(2)).alias("group"), value).groupBy("group")
    )  # fmt: skip
    return grouped.transformWithStateInPandas(Forward(), "value STRING", "Append", "None")


def _join_sides(asked: dict[str, Any], left: DataFrame, right: DataFrame) -> DataFrame:
    within = f"INTERVAL {asked['within']} SECONDS"
    on = f"left.id = right.id AND right.ts BETWEEN left.ts - {within} AND left.ts + {within}"
    if asked["peer"] == FRAMES:
        return ws.join(left, right, on=on)
    own = left.alias("left").join(right.alias("right"), F.expr(on))
    names = [(side, name) for side in ("left", "right") for name in ("id", "ts", "amount")]
    return own.select(*(F.col(f"{side}.{name}").alias(f"{side}_{name}") for side, name in names))


if __name__ == "__main__":
    main()
