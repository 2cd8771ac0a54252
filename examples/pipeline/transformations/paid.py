"""A streaming table of Spark Declarative Pipelines: orders with their payments.

    spark-pipelines run --spec examples/pipeline/spark-pipeline.yml

Within the function of a table a pipeline lets nobody look at a DataFrame, and a join must know its columns. So the join
is made before, and the function gives it back. For the same reason it reads its sources itself: tables of the same
pipeline are not there before it runs.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

import watersmeet as ws

spark = SparkSession.active()

events = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).load()
orders = events.selectExpr("value AS id", "timestamp AS ordered").withWatermark("ordered", "5 seconds")
payments = (
    events.where("value % 2 = 0")
    .selectExpr("value AS order_id", "timestamp + INTERVAL 1 SECOND AS paid")
    .withWatermark("paid", "5 seconds")
)
joined = ws.join(orders, payments, on="left.id = right.order_id", within="10 seconds")


@dp.table
def paid() -> DataFrame:
    """Orders with their payments."""
    return joined
