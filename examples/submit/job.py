"""A program for ``spark-submit``: orders and their payments, joined on the master that it is submitted to.

    spark-submit --master "local[2]" examples/submit/job.py /tmp/paid

`session()` keeps the master and the settings that ``spark-submit`` was given, and adds what joins need. The
folder may be a URL that all machines read, such as ``hdfs://host/paid``.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession

import watersmeet as ws
from watersmeet.spark.session import session

ORDERS = """
    SELECT * FROM VALUES
        (1, 'lamp', TIMESTAMP '2026-03-02 10:00:00'), (2, 'rug', TIMESTAMP '2026-03-02 10:01:00'),
        (3, 'book', TIMESTAMP '2026-03-02 10:02:00'), (4, 'cup', TIMESTAMP '2026-03-02 14:00:00')
    AS t (id, item, ordered)
"""
PAYMENTS = """
    SELECT * FROM VALUES
        (1, 35.0, TIMESTAMP '2026-03-02 10:03:00'), (3, 18.5, TIMESTAMP '2026-03-02 10:10:00'),
        (2, 120.0, TIMESTAMP '2026-03-02 14:30:00')
    AS t (order_id, amount, paid)
"""


def main(folder: str) -> None:
    """Join the streams, as far as they go, and write the rows below ``folder``."""
    spark = session()
    print(f"master: {spark.sparkContext.master}")
    orders = _stream(spark, ORDERS, f"{folder}/orders").withWatermark("ordered", "5 minutes")
    payments = _stream(spark, PAYMENTS, f"{folder}/payments").withWatermark("paid", "5 minutes")
    on = "left.id = right.order_id AND right.paid BETWEEN left.ordered AND left.ordered + INTERVAL 1 HOUR"
    query = (
        ws.join(orders, payments, on=on, how="left")
        .writeStream.format("json")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/paid")
    )
    query.awaitTermination()
    rows = spark.read.json(f"{folder}/paid").orderBy("id").select("id", "item", "amount").collect()
    print("rows:", [tuple(row) for row in rows])
    spark.stop()


def _stream(spark: SparkSession, rows: str, folder: str) -> DataFrame:
    """Rows as a stream of files, which is how they would come from elsewhere."""
    made = spark.sql(rows)
    made.write.mode("overwrite").parquet(folder)
    return spark.readStream.schema(made.schema).parquet(folder)


if __name__ == "__main__":
    main(sys.argv[1])
