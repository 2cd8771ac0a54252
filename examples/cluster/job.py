"""The join of ``joined.sql`` in Python, and a look at where the executors have the package from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import watersmeet as ws

ORDERS = "id BIGINT, ordered TIMESTAMP, amount INT"
DELIVERIES = "order_id BIGINT, delivered TIMESTAMP, courier STRING"
ON = "left.id = right.order_id AND right.delivered BETWEEN left.ordered AND left.ordered + INTERVAL 1 HOUR"


def join_streams(spark: SparkSession, data: Path, out: Path) -> None:
    """Join the streams in ``data``, as far as they go now, and write the rows to ``out``."""
    orders = _stream(spark, ORDERS, data / "orders").withWatermark("ordered", "10 minutes")
    deliveries = _stream(spark, DELIVERIES, data / "deliveries").withWatermark("delivered", "10 minutes")
    joined = ws.join(orders, deliveries, on=ON, how="left").drop("order_id")
    query = (
        joined.writeStream.format("parquet")
        .option("checkpointLocation", str(out.with_name(f"{out.name}-checkpoint")))
        .trigger(availableNow=True)
        .start(str(out))
    )
    query.awaitTermination()


def package_files(spark: SparkSession) -> set[str]:
    """The files that the executors import the package from; its data must be found beside its code."""

    # A function inside a function goes to the executors as it is, so they need no module of this name.
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            import watersmeet
            from watersmeet.errors import catalogue

            found = watersmeet.__file__ if catalogue() else None
            yield pa.RecordBatch.from_pydict({"file": [found]})

    rows = spark.range(4).repartition(4).mapInArrow(look, "file STRING").collect()
    return {row["file"] for row in rows}


def _stream(spark: SparkSession, schema: str, folder: Path) -> DataFrame:
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", "2").parquet(str(folder))
