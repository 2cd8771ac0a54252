"""Expressions that only Spark can evaluate, over tables of this process."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from watersmeet.local.values import SPARK_EVALUATOR

_PLACE = "#place"


@contextmanager
def evaluate_on_spark(spark: SparkSession) -> Generator[None]:
    """Let Spark evaluate meanwhile what this process cannot."""
    types: dict[str, pa.DataType] = {}

    def evaluate(sql: str, rows: pa.Table) -> pa.Array:
        if not rows.num_rows and sql in types:
            return pa.array([], types[sql])
        placed = rows.append_column(_PLACE, pa.array(np.arange(rows.num_rows)))
        table = spark.createDataFrame(placed).selectExpr(f"{sql} AS value", f"`{_PLACE}`").toArrow().sort_by(_PLACE)
        types[sql] = table.schema.field("value").type
        return pa.concat_arrays([*table.column("value").chunks, pa.array([], types[sql])])

    token = SPARK_EVALUATOR.set(evaluate)
    try:
        yield
    finally:
        SPARK_EVALUATOR.reset(token)
