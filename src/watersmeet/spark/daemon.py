"""Spark's daemon of Python workers, with what a join needs imported before it forks them.

Every worker is a fork of the daemon. What the daemon has imported, no worker imports again, and all of them share the
memory of it. PySpark searches for garbage after every task; what is imported here is none and is left out of the
search, which else takes longer than a small task does. Where Spark runs our own interpreter (a local master), the
session names this module as its daemon.
"""

from __future__ import annotations

import gc
import importlib

IMPORTED_ONCE = (
    "numpy",
    "pandas",
    "pyarrow.compute",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.pandas.types",
    "pyspark.sql.streaming.stateful_processor_api_client",
    "pyspark.sql.streaming.stateful_processor_util",
    "pyspark.sql.streaming.proto.StateMessage_pb2",
    "watersmeet.joins.interval.operator",
    "watersmeet.spark.exchange.packing",
    "watersmeet.spark.exchange.stateful",
)

if __name__ == "__main__":
    for module in IMPORTED_ONCE:
        importlib.import_module(module)
    from pyspark.daemon import manager

    gc.freeze()
    manager()
