"""Spark's daemon of Python workers, with the modules of a join imported before it forks them.

Every worker is a fork of the daemon, so modules that the daemon has imported are not imported again, and workers share
their memory. PySpark collects garbage after every task; the imported modules are excluded from that, which otherwise
takes longer than a small task. Where Spark runs our own interpreter (a local master), the session names
`watersmeet.spark.daemon` as its daemon, which starts this.

Why: ``spark.python.daemon.module`` is the only hook before the fork. Uses: that setting, ``pyspark.daemon``, and
modules of PySpark's workers by name. Seen in: 4.0 to 4.3. A missing module is not imported beforehand; without a daemon
of that name Spark reports an error, and the setting can be omitted: workers then start more slowly.
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
    "watersmeet.spark.connectors.parquet",
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
