"""A state that is written from outside: values by shard and name, through a query that does nothing but keep them.

Spark writes states in queries alone. So a query with an operator of the same shape as ours gets the values as its rows,
in one batch, and the state that it leaves is taken for that of an operator.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from watersmeet.spark.compile.shards import PARTITIONS
from watersmeet.spark.exchange.store import NAME, VALUE
from watersmeet.spark.private.state_files import WHOLE, take_operator
from watersmeet.spark.session.meanwhile import with_settings
from watersmeet.spark.state.spreading import VALUES

_FEW = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
"""A value may be a block of many rows, so that few of them cross to Python at once."""
SCRATCH = "seed"
"""The folder in a new checkpoint for what is only there while it is made."""


class Seed(StatefulProcessor):
    """Keeps what it gets."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state, as our operators have it."""
        self.state: Any = handle.getMapState("state", NAME, VALUE)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's
        """The values of one shard."""
        for some in rows:
            for name, value in zip(some["name"], some["value"], strict=True):
                self.state.updateValue((name,), (bytes(value),))
        return iter(())

    def close(self) -> None:
        """Nothing to close: Spark owns the state."""


def seed(spark: SparkSession, values: DataFrame, made: Path, operator: int, partitions: int) -> None:
    """Write the state of an operator into a new checkpoint, as that of its batch 0; ``values`` are as in `VALUES`."""
    scratch = made.absolute() / SCRATCH
    with with_settings(spark, {**WHOLE, **_FEW, PARTITIONS: str(partitions)}):
        values.write.parquet(f"file:{scratch}/values")
        stream = spark.readStream.schema(VALUES).parquet(f"file:{scratch}/values")
        seeded = stream.groupBy("shard").transformWithStateInPandas(Seed(), "n INT", "Append", "None")
        writer = seeded.writeStream.format("noop").trigger(availableNow=True)
        writer.option("checkpointLocation", f"file:{scratch}/checkpoint").start().awaitTermination()
    take_operator(scratch / "checkpoint", made, operator)
    shutil.rmtree(scratch)
