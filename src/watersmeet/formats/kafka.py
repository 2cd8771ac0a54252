"""Kafka: topics of records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from watersmeet.errors import Place, Refusal, WatersmeetError
from watersmeet.formats.broker import Topics
from watersmeet.formats.sink import Changes, SinkFormat
from watersmeet.formats.source import SourceFormat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.spark.sinks.table_sinks import Target

_CLIENT = frozenset({
    "failondataloss", "groupidprefix", "fetchoffset.numretries", "fetchoffset.retryintervalms",
    "kafkaconsumer.polltimeoutms",
})  # fmt: skip
"""Options of how topics are reached."""


class Kafka(SourceFormat):
    """Topics, of which Spark reports how far it has read them."""

    names: ClassVar = ("kafka",)
    package: ClassVar = "org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"

    def check_reached(self) -> Iterator[Refusal]:
        """Whether no server answers."""
        silence = Topics(self.source).silence()
        if silence is not None:
            yield silence

    def decides(self, option: str) -> bool:
        """Whether an option decides about its rows; of those of Kafka's client that are not of security and tuning."""
        if option.startswith("kafka."):
            return option == "kafka.isolation.level"
        return option not in _CLIENT and super().decides(option)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are named."""
        return Topics(self.source).names if "subscribe" in self.source.said else ()


class KafkaSink(SinkFormat):
    """A topic. It gets a repeated batch again, which leaves the latest record of each key as it is."""

    names: ClassVar = ("kafka",)
    title: ClassVar = "Kafka"
    takes: ClassVar[frozenset[Changes]] = frozenset({"log", "upsert"})
    has_text_keys: ClassVar = True

    def check_target(self, target: Target, place: Place | None, spark: SparkSession) -> None:
        """Refuse if no server answers."""
        silence = Topics(self.sink).silence(place)
        if silence is not None:
            raise WatersmeetError([silence])

    @property
    def way_out(self) -> str:
        """What to write where a table goes to it."""
        return "add `changes 'upsert'` to its OPTIONS, with NULL values for deletes, or `changes 'log'`."

    def is_encoded(self, changes: Changes | None) -> bool:
        """Whether rows become records: changes always do."""
        return changes is not None or super().is_encoded(changes)
