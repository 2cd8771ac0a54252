"""What becomes of the rows of a join of two tables: they meet as long as both are there."""

from __future__ import annotations

from watersmeet.fates.family import FamilyTracer, TraceContext
from watersmeet.fates.model import OutcomeKind
from watersmeet.operators.changelog.kernel import TableJoinOperator
from watersmeet.operators.core.rowwise import Row


class _ChangelogTracer(FamilyTracer):
    def alone_outcome(self, operator: TableJoinOperator) -> OutcomeKind:
        return "matched" if operator.kind == "semi" else "padded"

    def alone_reason(self, context: TraceContext, port: int, row: Row) -> str:
        if context.operator.kind == "semi":
            return f"A row of {context.names[1 - port]} matches it."
        return f"It is shown without a match: {context.names[1 - port]} has no matching row."

    def change_outcome(self, context: TraceContext, sign: int) -> tuple[OutcomeKind, str] | None:
        if context.operator.kind == "semi" and sign < 0:
            return "taken back", f"No row of {context.names[1]} matches it any longer."
        return None

    def wait_reason(self, context: TraceContext, port: int, row: Row, row_id: int) -> str:
        return "It is in the table."


TRACE = _ChangelogTracer()
