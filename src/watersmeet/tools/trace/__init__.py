"""Traces rows: why a row did not join, and what an output row was made of."""

from __future__ import annotations

from watersmeet.local.query import Batch
from watersmeet.operators.outcomes import (
    Lineage,
    OutcomeKind,
    ResultRow,
    RowArrival,
    RowMatch,
    RowOutcome,
    TracedWatermark,
    UnmatchedReason,
)
from watersmeet.tools.trace.query import trace_query

__all__ = [
    "Batch",
    "Lineage",
    "OutcomeKind",
    "ResultRow",
    "RowArrival",
    "RowMatch",
    "RowOutcome",
    "TracedWatermark",
    "UnmatchedReason",
    "trace_query",
]
