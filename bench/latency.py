"""How long a pair takes through Kafka: from the later of its two records to the joined one, in a topic of its own.

    .venv/bin/python -m bench.latency

Pairs are sent at a steady rate to two topics of a broker that is started for it. Every contender reads them from the
same broker, one after the other, in a process and a JVM of its own, with batches as fast as they come. The broker notes
when a joined record arrives. The first third is warm-up. It needs confluent-kafka.

Flink takes part if `make bench-peers` has installed it. It joins a row at a time, keeps its state on the heap and takes
a checkpoint every ten seconds, while the others commit every batch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Producer
from faults import topics
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from rich.console import Console
from rich.table import Table

import watersmeet as ws
from bench.contender import MEMORY, PROVIDER, ROCKSDB, keep_checkpoints_as_runs
from bench.running import TREE
from watersmeet.demo.broker import broker
from watersmeet.spark.session import session
from watersmeet.spark.session.jars import fetched

FLINK = "flink"
CONTENDERS = {"watersmeet": ROCKSDB, "spark-memory": MEMORY, "spark-rocksdb": ROCKSDB, FLINK: ""}
"""Each with the store of its state, where that is Spark's."""
FLINK_PYTHON = TREE / ".venv-peers-flink" / "bin" / "python"
FLINK_CONNECTOR = "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"
"""The latest there is: none was made for Flink 2.3, with which this one was seen to work."""
SIDES = ("left", "right")
APART_SECONDS = 2.0
"""So far apart the two records of a pair are at most."""
LAG, WITHIN = "5 seconds", "10 seconds"
ON = f"left.id = right.id AND right.ts BETWEEN left.ts - INTERVAL {WITHIN} AND left.ts + INTERVAL {WITHIN}"
READY = "ready"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all contenders, or be one of them."""
    options = _options(arguments)
    if options.be:
        be(*options.be)
        return
    table = Table(
        title=f"Seconds from the later record of a pair to the joined one, {options.rate:,} rows/s into Kafka"
    )
    for heading in ("contender", "pairs", "median", "p99", "longest"):
        table.add_column(heading, justify="left" if heading == "contender" else "right")
    with broker() as kafka:
        for contender in options.contenders:
            found = measured(kafka.address, contender, options.rate, options.seconds)
            numbers = (f"{found[name]:.2f}" for name in ("median", "p99", "longest"))
            table.add_row(contender, f"{found['pairs']:,}", *numbers)
    Console().print(table)
    if not FLINK_PYTHON.exists():
        Console().print("Flink is not installed: `make bench-peers` does that.", style="dim")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description=__doc__)
    parser.add_argument("--rate", type=int, default=1000, help="rows per second of both sides together")
    parser.add_argument("--seconds", type=float, default=90, help="how long rows are sent")
    names = lambda text: text.split(",")  # noqa: E731 - what argparse calls
    installed = [name for name in CONTENDERS if name != FLINK or FLINK_PYTHON.exists()]
    parser.add_argument("--contenders", type=names, default=installed, metavar="NAME,...", help="all installed")
    parser.add_argument("--be", nargs=2, metavar=("CONTENDER", "BROKER"), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def measured(address: str, contender: str, rate: int, seconds: float) -> dict[str, Any]:
    """What a contender takes, in topics of its own."""
    for side in SIDES:
        topics.create(address, f"{contender}-{side}")
    joined = f"{contender}-joined"
    topics.create(address, joined, **{"message.timestamp.type": "LogAppendTime"})
    process = subprocess.Popen(
        _command(contender, address), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TREE
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        if not any(line.strip() == READY for line in process.stdout):
            raise SystemExit(f"{contender} has ended before it began")
        sent = send_pairs(address, contender, rate, seconds)
        _wait_for(address, joined, sent)
    finally:
        process.stdin.close()
        process.wait(60)
    records = topics.read(address, joined)
    if len(records) != sent:
        raise SystemExit(f"{contender} joined {len(records):,} pairs of {sent:,}")
    took = [(record.time - record.row["later"]) / 1000 for record in records]
    steady = sorted(took[len(took) // 3 :])
    told = {"median": median(steady), "p99": steady[len(steady) * 99 // 100], "longest": steady[-1]}
    return {"contender": contender, "pairs": len(steady), **told}


def _command(contender: str, address: str) -> list[str]:
    if contender != FLINK:
        return [sys.executable, "-m", "bench.latency", "--be", contender, address]
    (jar,) = fetched([FLINK_CONNECTOR], os.environ, is_whole=True)
    return [str(FLINK_PYTHON), str(TREE / "bench" / "peers" / "flink_latency.py"), address, str(jar)]


def send_pairs(address: str, contender: str, rate: int, seconds: float) -> int:
    """Send pairs, so many rows per second; gives how many. A row tells when it was sent."""
    die = random.Random(0)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    pairs = int(rate * seconds / 2)
    times = [(2 * number / rate, number) for number in range(pairs)]
    rows = sorted(
        (at + (late if side == later else 0.0), side, number)
        for at, number in times
        for late, later in [(die.random() * APART_SECONDS, die.choice(SIDES))]
        for side in SIDES
    )
    began = time.time()
    for at, side, number in rows:
        ahead = began + at - time.time()
        if ahead > 0:
            producer.flush(0)
            time.sleep(ahead)
        producer.produce(f"{contender}-{side}", json.dumps({"id": number, "ts": int(time.time() * 1000)}).encode())
    producer.flush(30)
    return pairs


def _wait_for(address: str, topic: str, pairs: int, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while len(topics.read(address, topic)) < pairs and time.monotonic() < until:
        time.sleep(1)


def be(contender: str, address: str) -> None:
    """Run the query of a contender until the standard input ends; tell when its first batch has."""
    conf = {PROVIDER: CONTENDERS[contender], "spark.sql.shuffle.partitions": "2"}
    log = Path(tempfile.gettempdir()) / "watersmeet-latency.log"
    spark = session("local[2]", conf=conf, formats=["kafka"], log=log)
    keep_checkpoints_as_runs(spark)
    left, right = (_stream(spark, address, f"{contender}-{side}") for side in SIDES)
    joined = _joined(contender, left, right)
    later = F.greatest(F.unix_millis("left_ts"), F.unix_millis("right_ts"))
    value = F.to_json(F.struct(F.col("left_id").alias("id"), later.alias("later")))
    with tempfile.TemporaryDirectory(prefix="watersmeet-latency-", ignore_cleanup_errors=True) as checkpoint:
        target = {"kafka.bootstrap.servers": address, "topic": f"{contender}-joined", "checkpointLocation": checkpoint}
        query = joined.select(value.alias("value")).writeStream.format("kafka").options(**target).start()
        ended = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        while query.isActive and not query.status["message"].startswith("Waiting for"):
            time.sleep(0.1)
        print(READY, flush=True)
        while query.isActive and not ended.wait(0.2):
            pass
        query.stop()
    spark.stop()


def _stream(spark: SparkSession, address: str, topic: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest"}
    read = spark.readStream.format("kafka").options(**options).load()
    row = F.from_json(F.col("value").cast("string"), "id BIGINT, ts BIGINT")
    opened = read.select(row.alias("r")).select("r.id", F.timestamp_millis("r.ts").alias("ts"))
    return opened.withWatermark("ts", LAG)


def _joined(contender: str, left: DataFrame, right: DataFrame) -> DataFrame:
    if contender == "watersmeet":
        return ws.join(left, right, on=ON)
    own = left.alias("left").join(right.alias("right"), F.expr(ON))
    return own.select(*_named("left"), *_named("right"))


def _named(side: str) -> Iterator[Any]:
    return (F.col(f"{side}.{name}").alias(f"{side}_{name}") for name in ("id", "ts"))


if __name__ == "__main__":
    main()
