"""What Spark reports of a streaming query that somebody else started, put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pyspark.sql.streaming.query import StreamingQuery

from watersmeet.observe.progress import progress_of
from watersmeet.observe.totals import Totals
from watersmeet.spark.run.starts import progress_schema_of


def totals_of(query: StreamingQuery) -> Totals:
    """What the batches that Spark remembers did together."""
    totals = Totals()
    for reported in query.recentProgress:
        batch = cast("Mapping[str, Any]", reported)
        observed: Mapping[str, Any] = batch.get("observedMetrics") or {}
        progress = progress_of(query.name or str(query.id), batch, progress_schema_of(observed))
        # Nobody has told anything of a batch without rows, nor of one that Spark only reports as idle.
        if any(operator.shards for operator in progress.operators.values()) or any(
            s["numInputRows"] for s in batch["sources"]
        ):
            totals = totals.plus(progress)
    return totals
