"""The latency of a pair through Kafka: from the later of its two records to the joined one, in a topic of its own.

    .venv/bin/python -m bench.latency

Pairs are sent at a steady rate to two topics of a broker that is started for it. Every contender reads them from the
same broker, one after the other, in its own process and JVM, with one batch right after the other. The broker records
when a joined record arrives. The first third is warm-up. It needs confluent-kafka.

Flink takes part if `make bench-peers` has installed it, Kafka Streams and Hazelcast if their jars are available. They
join a row at a time. Flink keeps its state on the heap and takes a checkpoint every ten seconds, Hazelcast takes none,
and Kafka Streams commits every thirty seconds, while the others commit every batch.

``floor`` joins nothing: Spark writes each record to the third topic as it came, through one stateful operator in
Python. Its latency is that of a record, and the least of a batch in Spark.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from confluent_kafka import Producer
from faults import topics
from rich.console import Console

from bench.peers.topics import BROKERS_TIME, PEERS, Join, JoinProcess, absence_reason
from bench.report import Report, names_among
from watersmeet.cli.servers import broker

FLOOR = "floor"
CONTENDERS = ("watersmeet", FLOOR, "spark-memory", "spark-rocksdb", *PEERS[1:])
SIDES = ("left", "right")
MAX_GAP_SECONDS = 2.0
"""The longest time between the two records of a pair."""
LAG, WITHIN = 5, 10
"""In seconds."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all contenders."""
    options = _options(arguments)
    rows = list[list[str]]()
    absent = {name: reason for name in options.contenders if (reason := absence_reason(name)) is not None}
    with broker() as kafka:
        for contender in options.contenders:
            if contender not in absent:
                figures = measure(kafka.address, contender, options.rate, options.seconds)
                numbers = (f"{figures[name]:.2f}" for name in ("median", "p99", "longest"))
                rows.append([contender, f"{figures['records']:,}", *numbers])
    title = f"Seconds from the later record of a pair to the joined one, {options.rate:,} rows/s into Kafka"
    Console().print(Report(title, ("contender", "records", "median", "p99", "longest"), rows))
    for name, reason in absent.items():
        Console().print(f"{name} did not run: {reason}", style="dim")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description=__doc__)
    parser.add_argument("--rate", type=int, default=1000, help="rows per second of both sides in total")
    parser.add_argument("--seconds", type=float, default=90, help="how long rows are sent")
    names = names_among(CONTENDERS)
    parser.add_argument("--contenders", type=names, default=CONTENDERS, metavar="NAME,...", help="all that can be had")
    return parser.parse_args(arguments)


def measure(address: str, contender: str, rate: int, seconds: float) -> dict[str, Any]:
    """Measure a contender, in its own topics."""
    left, right, joined = (f"{contender}-{name}" for name in (*SIDES, "joined"))
    for side in (left, right):
        topics.create(address, side)
    topics.create(address, joined, **BROKERS_TIME)
    with JoinProcess(Join(contender, address, left, right, joined, WITHIN, LAG)) as running:
        running.wait_until_ready()
        sent = send_pairs(address, contender, rate, seconds) * (2 if contender == FLOOR else 1)
        _wait_for(address, joined, sent)
    records = topics.read(address, joined)
    if len(records) != sent:
        raise SystemExit(f"{contender} wrote {len(records):,} records of {sent:,}")
    took = [(record.time - max(record.row["ts"], record.row.get("right_ts", 0))) / 1000 for record in records]
    steady = sorted(took[len(took) // 3 :])
    figures = {"median": median(steady), "p99": steady[len(steady) * 99 // 100], "longest": steady[-1]}
    return {"contender": contender, "records": len(steady), **figures}


def send_pairs(address: str, contender: str, rate: int, seconds: float) -> int:
    """Send pairs at a rate in rows per second; returns their number. Each row has the time at which it was sent."""
    die = random.Random(0)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    pairs = int(rate * seconds / 2)
    times = [(2 * number / rate, number) for number in range(pairs)]
    rows = sorted(
        (at + (late if side == later else 0.0), side, number)
        for at, number in times
        for late, later in [(die.random() * MAX_GAP_SECONDS, die.choice(SIDES))]
        for side in SIDES
    )
    began = time.time()
    for at, side, number in rows:
        ahead = began + at - time.time()
        if ahead > 0:
            producer.flush(0)
            time.sleep(ahead)
        row = {"id": number, "ts": int(time.time() * 1000), "amount": at}
        producer.produce(f"{contender}-{side}", json.dumps(row).encode(), str(number))
    producer.flush(30)
    return pairs


def _wait_for(address: str, topic: str, records: int, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while len(topics.read(address, topic)) < records and time.monotonic() < until:
        time.sleep(1)


if __name__ == "__main__":
    main()
