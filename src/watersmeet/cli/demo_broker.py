"""A Kafka broker of its own: one node on free ports of this machine, empty at the start, and gone at the end."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from watersmeet.cli.demo_streams import DeliveryRow, OrderRow, Streams, row_as_json
from watersmeet.errors import refuse
from watersmeet.formats.kafka import server_problem
from watersmeet.spark.connectors.kafka import make_topic
from watersmeet.spark.session.jars import fetch_jars
from watersmeet.spark.session.java import prepare_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


PACKAGES = ("org.apache.kafka:kafka_2.13:3.9.1",)
SECONDS = 60.0
"""How long it has to answer after it was started."""

_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{inner}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{inner}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=4194304
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=250
num.io.threads=2
num.network.threads=2
"""
_JAVA = ("-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")

# The broker ends with whoever started it, however that ends: then nobody holds the other end of this pipe.
_GUARDED = """exec 3<&0
"$@" </dev/null 3<&- & broker=$!
{ read -r _ <&3; kill -9 $broker; } & wait $broker
kill $! 2>/dev/null"""


@dataclass
class Broker:
    """A broker that can be stopped and started again, with what it has."""

    java: Path
    jars: list[Path]
    folder: Path
    port: int
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def address(self) -> str:
        """Its address, as ``kafka.bootstrap.servers`` takes it."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; gives back when it answers."""
        command = [str(self.java), *_JAVA, "-cp", os.pathsep.join(map(str, self.jars)), "kafka.Kafka"]
        with (self.folder / "said.txt").open("ab") as log_file:
            self._process = subprocess.Popen(
                ["sh", "-c", _GUARDED, "sh", *command, str(self.folder / "broker.properties")],
                stdin=subprocess.PIPE, stdout=log_file, stderr=log_file, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + SECONDS
        while (problem := server_problem(self.address, is_encrypted=False)) is not None:
            has_ended = self._process.poll() is not None
            if has_ended or time.monotonic() > until:
                said_last = (self.folder / "said.txt").read_text("utf-8", "replace").strip().split("\n")[-1]
                self.stop()
                raise refuse("BROKER_NOT_STARTED", reason=said_last if has_ended else problem)
            time.sleep(0.05)

    def stop(self) -> None:
        """Kill it. What it has confirmed stays."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()

    def restart(self) -> None:
        """Kill it and start it again."""
        self.stop()
        self.start()


@contextmanager
def broker() -> Generator[Broker]:
    """A broker that has been started; refuses if its jars cannot be had."""
    jars = fetch_jars(PACKAGES, os.environ, is_whole=False)
    java = prepare_java(dict(os.environ)) / "bin" / "java"
    with TemporaryDirectory(prefix="watersmeet-kafka-", ignore_cleanup_errors=True) as name:
        port, inner = _free_ports()
        started = Broker(java, jars, Path(name), port)
        data = started.folder / "data"
        data.mkdir()
        # What Kafka's own tool for it writes, which would be a second start of Java.
        (data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=watersmeet-demo-broker0\n")
        settings = _SETTINGS.format(port=port, inner=inner, data=data)
        (started.folder / "broker.properties").write_text(settings)
        try:
            started.start()
            yield started
        finally:
            started.stop()


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        for port_socket in (first, second):
            port_socket.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


PARTITIONS = 3
_ROW = (
    "order_id BIGINT, customer STRING, item STRING, amount DECIMAL(10,2), order_time TIMESTAMP, delivery_id BIGINT, "
    "courier STRING, delivery_time TIMESTAMP"
)


class Sender:
    """Sends both streams to the topics ``orders`` and ``deliveries``, over ``seconds``, in a thread of its own."""

    def __init__(self, streams: Streams, address: str, seconds: float) -> None:
        self._streams = streams
        self._producer = Producer({"bootstrap.servers": address, "partitioner": "murmur2_random", "log_level": "0"})
        self._pause = seconds / max(1, len(streams.orders))
        self._stopped = Event()
        self._thread = Thread(target=self._send_all, name="demo-sender", daemon=True)
        for name in ("orders", "deliveries"):
            make_topic({"kafka.bootstrap.servers": address}, name, PARTITIONS, 1)

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _send_all(self) -> None:
        for orders, deliveries in zip(self._streams.orders, self._streams.deliveries, strict=True):
            for topic, rows in (("orders", orders), ("deliveries", deliveries)):
                for row in rows:
                    self._send(topic, row)
            self._producer.flush()
            if self._stopped.wait(self._pause):
                return

    def _send(self, topic: str, row: OrderRow | DeliveryRow) -> None:
        self._producer.produce(topic, row_as_json(row), str(row.order_id))
        self._producer.poll(0)


def read_delivered(spark: SparkSession, address: str) -> DataFrame:
    """The rows in the topic ``delivered`` that are committed."""
    options = {
        "kafka.bootstrap.servers": address, "subscribe": "delivered", "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
    }  # fmt: skip
    records = spark.read.format("kafka").options(**options).load()
    return records.selectExpr(f"from_json(CAST(value AS STRING), '{_ROW}') AS row").select("row.*")
