"""Numbers and example rows that Spark collects from an operator in every batch.

An example row is text. A row counts as joined if each side has a value in a column that no joined row leaves NULL, a
key or a time; where a side shows no such column, its rows count as ``joined``. Nothing here may fail a query: rows that
cannot be shown are counted as ``dropped``, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.metrics.metrics import REPORTS
from watersmeet.metrics.progress import JOIN_PREFIX, ProgressSchema, port_names
from watersmeet.operators.core.operator import StreamOperator
from watersmeet.operators.core.python_values import python_rows
from watersmeet.operators.state.shard import LATE_BY, LATE_COLUMN
from watersmeet.physical import (
    JoinPlan,
    QueryPlan,
    join_plans,
    view_plans,
)
from watersmeet.schema import is_moment
from watersmeet.spark.exchange.packing import METRICS


def observe_metrics(records: DataFrame, name: str) -> DataFrame:
    """The records of an operator, with an observation that collects the metrics of its joins in every batch.

    As text, not as numbers that Spark sums up: Spark would generate and compile code for these in every task.
    """
    texts = F.collect_list(F.when(F.col("kind") == METRICS, F.col("report")))
    return records.observe(f"{JOIN_PREFIX}{name}", texts.alias(REPORTS))


def make_reading(
    plan: QueryPlan, name_of: Callable[[JoinPlan], str], frames: Mapping[str, DataFrame]
) -> ProgressSchema:
    """The meaning of a query's metrics, whose joins are observed under these names.

    A DataFrame with several names is one source, under the first of them.
    """
    first = {name: next(n for n, other in frames.items() if other is frame) for name, frame in frames.items()}
    feeds = {
        f"{JOIN_PREFIX}{name_of(join)}": {
            side: first.get(source, source)
            for side, port in zip(port_names(len(join.ports)), join.ports, strict=True)
            if (source := port.input.source_name) is not None
        }
        for join in join_plans(plan.relation)
    }
    # Innermost first.
    return ProgressSchema(temporal_columns(plan), feeds, frozenset([*feeds][-1:]))


def temporal_columns(plan: QueryPlan) -> frozenset[str]:
    """The watermarked columns of a query that hold timestamps or dates."""
    columns = {
        f"{scan.alias}.{watermark.column}"
        for scan in plan.relation.leaves
        for watermark in scan.source.watermarks
        if (field := scan.source.field(watermark.column)) is not None and is_moment(field.type)
    }
    for view in view_plans(plan.relation):
        columns |= {outer for inner, outer in view.watermarks if inner in columns}
    return frozenset(columns)


def core_count(spark: SparkSession) -> int | None:
    """The number of tasks that Spark can run at the same time; None for a remote server."""
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkException:
        return None


def spark_ui_url(spark: SparkSession) -> str:
    """The address of Spark's UI; empty for a remote server, or if it is switched off."""
    try:
        return spark.sparkContext.uiWebUrl or ""
    except PySparkException:
        return ""


ROWS_PER_KIND = 3
"""The number of examples per kind, shard and batch."""
MAX_CHARACTERS = 200
"""The maximum length of a value in an example."""
_PADDED = "#padded"


class Examples:
    """Takes what an operator hands out, and keeps the latest few rows of each kind."""

    def __init__(self, operator: StreamOperator) -> None:
        self._certain = [
            next((name for name in side.columns if name in (*side.keys, *side.times)), None) for side in operator.sides
        ]
        self._pads = [bool(side.columns) for side in operator.sides]
        self.by_kind: dict[str, list[dict[str, str | None]]] = {}
        self._dropped = 0

    def take(self, table: pa.Table | pa.RecordBatch) -> None:
        """Take rows of the result."""
        try:
            self._take(table)
        except Exception as error:
            self._drop(error)

    def take_late(self, tables: Sequence[pa.Table]) -> None:
        """Take late rows, each with the watermark it missed."""
        try:
            self._take_late(tables)
        except Exception as error:
            self._drop(error)

    def _take(self, table: pa.Table | pa.RecordBatch) -> None:
        last = table.slice(max(0, table.num_rows - ROWS_PER_KIND))
        is_padded = self._find_padded(last)
        unknown = "joined" if len(self._certain) > 1 else "out"
        for number, row in enumerate(python_rows(last)):
            self._keep(
                unknown if is_padded is None else "padded" if is_padded[number] else "matched", _row_as_text(row)
            )

    def _take_late(self, tables: Sequence[pa.Table]) -> None:
        for table in tables:
            for row in python_rows(table):
                missed = {"late_by": None if row[LATE_BY] is None else str(row[LATE_BY]), "watermark": row[LATE_COLUMN]}
                self._keep("late", _row_as_text(row) | missed)

    def _drop(self, error: Exception) -> None:
        self._dropped += 1
        reason = f"{type(error).__name__}: {error}"[:MAX_CHARACTERS]
        self.by_kind["dropped"] = [{"times": str(self._dropped), "reason": reason}]

    def _keep(self, kind: str, row: dict[str, str | None]) -> None:
        self.by_kind[kind] = [*self.by_kind.get(kind, ()), row][-ROWS_PER_KIND:]

    def _find_padded(self, table: pa.Table | pa.RecordBatch) -> Any:
        """Which rows lack a side; None if that is unknown."""
        names = table.schema.names
        if _PADDED in names:
            return table.column(_PADDED).to_numpy(zero_copy_only=False) >= 0
        if len(self._certain) < 2 or any(
            shows and name not in names for name, shows in zip(self._certain, self._pads, strict=True)
        ):
            return None
        is_padded = np.zeros(table.num_rows, np.bool_)
        for name in (name for name in self._certain if name in names):
            is_padded |= ~table.column(name).is_valid().to_numpy(zero_copy_only=False)
        return is_padded


def _row_as_text(row: dict[str, Any]) -> dict[str, str | None]:
    return {
        name: None if value is None else str(value)[:MAX_CHARACTERS] for name, value in row.items() if "#" not in name
    }
