"""Spark's daemon of Python workers, with what a join needs imported before it forks them.

Every worker is a fork of the daemon. What the daemon has imported, no worker imports again, and all of them share the
memory of it. PySpark searches for garbage after every task; what is imported here is none and is left out of the
search, which else takes longer than a small task does. Where Spark runs our own interpreter (a local master), the
session names `watersmeet.spark.daemon` as its daemon, which starts this.

Why: ``spark.python.daemon.module`` is the one place before the fork. Uses: that setting, ``pyspark.daemon``, and
modules of PySpark's workers by name. Seen in: 4.0 to 4.3. Where a module is missing it is not imported beforehand;
where there is no daemon of that name Spark says so, and the setting can be left out: workers then start more slowly.
"""

from __future__ import annotations

import gc
import importlib
from contextlib import suppress

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
    "watersmeet.operators.interval.kernel",
    "watersmeet.spark.exchange.packing",
    "watersmeet.spark.exchange.stateful",
)


def import_once() -> None:
    """Import them; of another Spark one may be missing."""
    for module in IMPORTED_ONCE:
        with suppress(ModuleNotFoundError):
            importlib.import_module(module)


def main() -> None:
    """Import, then be Spark's daemon."""
    from pyspark.daemon import manager

    import_once()
    gc.freeze()
    manager()
