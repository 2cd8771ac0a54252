"""Create, fill and read topics of a broker, independently of Watersmeet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

EARLIEST = -2


@dataclass(frozen=True)
class Record:
    """A record of a topic."""

    key: bytes | None
    value: bytes | None
    partition: int = -1
    time: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()

    @property
    def row(self) -> dict[str, Any]:
        """The JSON object in its value."""
        return json.loads(self.value or b"null")


def create(address: str, topic: str, partitions: int = 1, **settings: str) -> None:
    """Create a topic."""
    admin = AdminClient({"bootstrap.servers": address})
    for creation in admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]).values():
        creation.result()


def forget_groups(address: str, prefix: str) -> None:
    """Delete the consumer groups whose names begin with a prefix, with their offsets."""
    admin = AdminClient({"bootstrap.servers": address})
    groups = [group.group_id for group in admin.list_consumer_groups().result().valid]
    for deletion in admin.delete_consumer_groups([name for name in groups if name.startswith(prefix)]).values():
        deletion.result()


def send(address: str, topic: str, records: Iterable[Record]) -> None:
    """Add records to a topic, all of them confirmed."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    for record in records:
        more: dict[str, Any] = {"partition": record.partition} if record.partition >= 0 else {}
        producer.produce(topic, record.value, record.key, timestamp=record.time, headers=[*record.headers], **more)
        producer.poll(0)
    assert producer.flush(60) == 0


def send_rows(address: str, topic: str, rows: Iterable[dict[str, Any]], partition: int = -1) -> None:
    """Add rows to a topic, as JSON without keys."""
    send(address, topic, [Record(None, json.dumps(row).encode(), partition) for row in rows])


def read(address: str, topic: str, isolation: str = "read_committed") -> list[Record]:
    """All records of a topic, partition by partition; by default only committed ones."""
    settings = {
        "bootstrap.servers": address, "group.id": "reader", "enable.auto.commit": False,
        "isolation.level": isolation, "enable.partition.eof": True,
    }  # fmt: skip
    consumer = Consumer(settings)
    try:
        numbers = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, EARLIEST) for number in numbers])
        return _until_the_end(consumer, len(numbers))
    finally:
        consumer.close()


def _until_the_end(consumer: Consumer, partitions: int) -> list[Record]:
    records: list[Record] = []
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(30)
        assert message is not None, "the broker is silent"
        error = message.error()
        if error is None:
            records.append(_record(message))
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        else:
            raise RuntimeError(error.str())
    return records


def _record(message: Message) -> Record:
    headers: Sequence[tuple[str, bytes]] = message.headers() or ()
    return Record(message.key(), message.value(), message.partition(), message.timestamp()[1], tuple(headers))
