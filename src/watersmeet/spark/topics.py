"""Topics of Kafka that are not there, for which Spark would wait for minutes or fail in the first batch."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import SparkSession, is_remote

from watersmeet.catalog import Sink, Source
from watersmeet.errors import Refusal
from watersmeet.formats.broker import Topics
from watersmeet.spark.private.told import suppress_logs
from watersmeet.spark.refusals import kafka_failure

_NAMED = ("subscribe", "topic")
"""The options that name topics one by one; a pattern need not fit any yet."""


def check_topics(of: Source | Sink, spark: SparkSession) -> Iterator[Refusal]:
    """The refusals of topics that a source reads or a sink writes to and that are not there.

    Each is looked at as if it were to be read, which tells at once; nothing is read.
    """
    topics = Topics(of)
    if is_remote() or topics.option not in _NAMED:
        return
    options = {name: value for name, value in of.options.items() if name.lower().startswith("kafka.")}
    for name in topics.names:
        try:
            with suppress_logs():
                spark.read.format("kafka").options(**options, subscribe=name).load().rdd.getNumPartitions()
        except Exception as error:  # of Java, in whatever form it comes
            if kafka_failure(str(error), [of]) is not None:
                yield topics.unknown(name)
