"""The interval join from two topics into a third: the same records, on one broker, for every system that reads Kafka.

Results are compared row by row on few rows, and by their number on all rows. A run begins when its process is launched,
after all records were sent, and ends when the last joined record is in the topic.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
from confluent_kafka import Consumer, Producer, TopicPartition
from faults import topics

from bench.data import LAG_SECONDS, SIDES, Workload
from bench.memory import Peak
from bench.peers import jvm
from bench.running import TREE, data_of
from watersmeet.spark.session.java import fetch_jars

WATERSMEET, SPARK, FLINK = "watersmeet", "spark-memory", "flink"
BY_SPARK, FRAMES = "watersmeet-by-spark", "watersmeet-frames"
PEERS = (WATERSMEET, BY_SPARK, FRAMES, FLINK, jvm.KAFKA_STREAMS, jvm.HAZELCAST)
FLINK_PYTHON = TREE / ".venv-peers-flink" / "bin" / "python"
FLINK_CONNECTOR = "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"
"""The latest release. It was made for Flink 2.2 and also works with Flink 2.3."""
PARTITIONS = 2
READY = "ready"
BROKERS_TIME = {"message.timestamp.type": "LogAppendTime"}


@dataclass(frozen=True)
class Join:
    """Two topics, the topic of their join, and its bound and lag in seconds.

    ``batch``: the most records of a batch, in a system that has batches; 0: all available ones.
    """

    peer: str
    address: str
    left: str
    right: str
    joined: str
    within: int
    lag: int
    batch: int = 0


def absence_reason(peer: str) -> str | None:
    """The reason why a system cannot take part, or None."""
    if peer in jvm.PACKAGES:
        return jvm.absence_reason(peer)
    if peer == FLINK and not FLINK_PYTHON.exists():
        return "Flink is not installed: `make bench-peers` does that"
    return None


class JoinProcess(AbstractContextManager["JoinProcess"]):
    """A system that runs a join as long as this context is open."""

    def __init__(self, join: Join) -> None:
        self.join = join
        self._folder = tempfile.TemporaryDirectory(prefix="watersmeet-topics-", ignore_cleanup_errors=True)
        command = self._command(Path(self._folder.name))
        self.launched = time.time()
        self._errors = Path(self._folder.name) / "errors.txt"
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        own = {"PYTHONPATH": os.pathsep.join((str(TREE / "src"), str(TREE)))} if command[0] == sys.executable else {}
        environ = os.environ | {"JVM_ARGS": "-Xmx6g"} | own
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(command, cwd=TREE, stderr=errors, env=environ, **pipes)

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._folder.cleanup()

    def wait_until_ready(self) -> None:
        """Wait until it reports that it runs."""
        assert self.process.stdout is not None
        if not any(line.strip() == READY for line in self.process.stdout):
            raise RuntimeError(f"{self.join.peer} has ended before it began: {self.errors}")

    @property
    def errors(self) -> str:
        """The last lines of its standard error."""
        return "; ".join(self._errors.read_text("utf-8", "replace").strip().splitlines()[-3:])

    def _command(self, folder: Path) -> list[str]:
        request, join = asdict(self.join), self.join
        if join.peer in jvm.PACKAGES:
            ends = [join.address, join.left, join.right, join.joined, *(str(1000 * s) for s in (join.within, join.lag))]
            return jvm.command(join.peer, *ends, str(folder))
        if join.peer != FLINK:
            return [sys.executable, "-m", "bench.peers.our_topics", json.dumps(request)]
        (jar,) = fetch_jars([FLINK_CONNECTOR], os.environ, is_whole=True)
        job = TREE / "bench" / "peers" / "flink_topics.py"
        return [str(FLINK_PYTHON), str(job), json.dumps({**request, "jar": str(jar)})]


def fill(address: str, workload: Workload) -> dict[str, str]:
    """Send the rows of both sides to their own topics, batch by batch; returns the topic of each side."""
    names = {side: f"{workload.rows}-{side}" for side in SIDES}
    for name in names.values():
        topics.create(address, name, PARTITIONS)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    folder = data_of(workload)
    for batch in range(workload.batches):
        for side, topic in names.items():
            read = pq.read_table(folder / side / f"{batch:05}.parquet", columns=["id", "ts", "amount"])
            millis = read["ts"].to_numpy().astype("datetime64[ms]").astype(int).tolist()
            for key, ts, amount in zip(read["id"].to_pylist(), millis, read["amount"].to_pylist(), strict=True):
                value = f'{{"id":{key},"ts":{ts},"amount":{amount!r}}}'
                _produce(producer, topic, value, str(key), key % PARTITIONS)
    assert producer.flush(120) == 0
    return names


def _produce(producer: Producer, topic: str, value: str, key: str, partition: int) -> None:
    try:
        producer.produce(topic, value, key, partition)
    except BufferError:
        producer.poll(1)
        producer.produce(topic, value, key, partition)


def count_results(workload: Workload) -> int:
    """The number of rows that the join gives, times in milliseconds as in the topics."""
    folder = data_of(workload)
    # `epoch_ms` would round.
    left, right = (f"(SELECT id, epoch_us(ts) // 1000 AS ts FROM '{folder / side}/*.parquet')" for side in SIDES)
    bound = f"r.ts BETWEEN l.ts - {workload.within * 1000} AND l.ts + {workload.within * 1000}"
    with duckdb.connect() as connection:
        count = connection.execute(f"SELECT count(*) FROM {left} l JOIN {right} r ON l.id = r.id AND {bound}")
        return int((count.fetchone() or (0,))[0])


@dataclass(frozen=True)
class Run:
    """The durations of a run, in seconds: until it was ready, until a quarter of the results, and until all of them."""

    start: float
    quarter: float
    seconds: float
    megabytes: int
    processor: float


def run(join: Join, results: int, limit: float = 600) -> Run:
    """Run a join until this many results are in its topic."""
    topics.create(join.address, join.joined, PARTITIONS, **BROKERS_TIME)
    with JoinProcess(join) as running, Peak(running.process.pid) as peak:
        running.wait_until_ready()
        start, quarter, there = time.time() - running.launched, 0.0, 0
        with Ends(join.address, join.joined) as ends:
            while there < results:
                there, passed = ends.count(), time.time() - running.launched
                quarter = quarter or (passed if there >= results / 4 else 0.0)
                if running.process.poll() is not None or passed > limit:
                    raise RuntimeError(f"{join.peer} joined {there:,} of {results:,} rows: {running.errors}")
                time.sleep(0.05)
            seconds = time.time() - running.launched
            time.sleep(1)
            if (there := ends.count()) != results:
                raise RuntimeError(f"{join.peer} joined {there:,} rows in place of {results:,}")
    return Run(start, quarter, seconds, peak.jvm + peak.workers + peak.own, peak.processor)


class Ends(AbstractContextManager["Ends"]):
    """Counts the records of a topic."""

    def __init__(self, address: str, topic: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": address, "group.id": "counts"})
        self._parts = [TopicPartition(topic, number) for number in range(PARTITIONS)]

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def count(self) -> int:
        """The number of records."""
        return sum(self._consumer.get_watermark_offsets(part, timeout=30)[1] for part in self._parts)


def collect_rows(join: Join, results: int) -> list[list[Any]]:
    """The rows of a join that has this many."""
    run(join, results)
    columns: Sequence[str] = ("id", "amount", "right_amount")
    return [[record.row[name] for name in columns] for record in topics.read(join.address, join.joined)]


def within(workload: Workload, peer: str, address: str, names: dict[str, str], label: str) -> Join:
    """The join of a workload for a system, into its own topic."""
    batch = max(100_000, workload.rows // workload.batches)
    joined = f"{workload.rows}-{peer}-{label}"
    return Join(peer, address, names["left"], names["right"], joined, workload.within, LAG_SECONDS, batch)
