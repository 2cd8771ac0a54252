"""What becomes of the rows of a lookup join: a row of the stream asks the table once, or waits for its row."""

from __future__ import annotations

from watersmeet.fates.family import FamilyTracer, TraceContext
from watersmeet.fates.model import OutcomeKind
from watersmeet.operators.core.rowwise import RemovedRow, Row
from watersmeet.operators.lookup.kernel import LookupJoinOperator


class _LookupTracer(FamilyTracer):
    def removal_reason(self, context: TraceContext, gone: RemovedRow) -> tuple[str, str | None]:
        if gone.reason == "evicted":
            waited = context.words.duration(context.operator.retention or 0)
            return f"It waited for a table row for {waited}, which is the limit.", None
        return f"More than {context.operator.waiting} rows waited for a table row, which is the limit.", None

    def alone_reason(self, context: TraceContext, port: int, row: Row) -> str:
        return f"It was emitted without a match: {context.names[context.operator.table]} had no row for it."

    def outcome_without_output(self, context: TraceContext, port: int, row: Row) -> tuple[OutcomeKind, str]:
        return (
            "unmatched",
            f"No row of {context.names[context.operator.table]} matched it, and the join only shows pairs.",
        )

    def wait_reason(self, context: TraceContext, port: int, row: Row, row_id: int) -> str:
        join: LookupJoinOperator = context.operator
        if port == join.table:
            return "It is in the table."
        return f"It waits for a row of {context.names[join.table]}."


TRACE = _LookupTracer()
