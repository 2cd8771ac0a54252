"""Topics that keep filling: the streams of the demo, sent to a broker while a query reads them."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from watersmeet.demo.streams import DeliveryRow, OrderRow, Streams
from watersmeet.demo.writer import row_as_json
from watersmeet.spark.sinks.kafka import make_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
