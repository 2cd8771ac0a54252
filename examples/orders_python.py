"""Orders and their deliveries, first as batches, then as streams: the same join, the same meaning.

Run it with ``.venv/bin/python examples/orders_python.py``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import watersmeet as ws
from watersmeet.spark.session import session

ORDERS = """
    SELECT * FROM VALUES
        (1, 'coffee', TIMESTAMP '2026-03-02 08:00:00'),
        (2, 'lamp', TIMESTAMP '2026-03-02 08:10:00'),
        (3, 'rug', TIMESTAMP '2026-03-02 08:20:00'),
        (4, 'kettle', TIMESTAMP '2026-03-02 10:00:00')
    AS t (id, item, ordered)
"""
DELIVERIES = """
    SELECT * FROM VALUES
        (1, 'north', TIMESTAMP '2026-03-02 08:40:00'),
        (3, 'river', TIMESTAMP '2026-03-02 09:45:00')
    AS t (order_id, courier, delivered)
"""


def main() -> None:
    """Join batches, explain the join, then run it as a stream."""
    spark = session("local[2]")
    orders, deliveries = spark.sql(ORDERS), spark.sql(DELIVERIES)

    print("Batches: all rows are there, so the answer is complete.")
    condition = "left.id = right.order_id"
    ws.join(orders, deliveries, on=condition, within="1 hour", how="left").orderBy("id").show()

    with tempfile.TemporaryDirectory() as folder:
        orders.write.parquet(f"{folder}/orders")
        deliveries.write.parquet(f"{folder}/deliveries")
        streams = {
            "orders": spark.readStream.schema(orders.schema)
            .parquet(f"{folder}/orders")
            .withWatermark("ordered", "5 minutes"),
            "deliveries": spark.readStream.schema(deliveries.schema)
            .parquet(f"{folder}/deliveries")
            .withWatermark("delivered", "5 minutes"),
        }
        text = """
            SELECT STREAM o.id, o.item, d.courier
            FROM orders o LEFT JOIN deliveries d
                ON o.id = d.order_id AND d.delivered BETWEEN o.ordered AND o.ordered + INTERVAL 1 HOUR
        """
        print(ws.explain(text, **streams))
        print("\nStreams: order 4 is still waiting, its delivery may yet come.")
        query = (
            ws.sql(text, **streams)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(Path(folder) / "checkpoint"))
            .trigger(availableNow=True)
            .start(f"{folder}/joined")
        )
        query.awaitTermination()
        spark.read.parquet(f"{folder}/joined").orderBy("id").show()

    try:
        ws.join(orders, deliveries, on="left.id = right.order_id AND right.delivered >= left.ordered", how="left")
    except ws.WatersmeetError as error:
        print(f"On streams as on batches, a join needs both bounds:\n{error}")


if __name__ == "__main__":
    main()
