"""What became of each row of a query: rows that arrived, marks that moved, rows that met, how each life ended."""

from watersmeet.fates.model import (
    Lineage,
    OutcomeKind,
    ResultRow,
    RowArrival,
    RowMatch,
    RowOutcome,
    TracedWatermark,
    UnmatchedReason,
)
from watersmeet.fates.telling import trace_query
from watersmeet.local.query import Batch

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
