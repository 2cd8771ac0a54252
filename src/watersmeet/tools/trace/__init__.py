"""Why a row did not join: a question about rows of a source, and what became of them."""

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
