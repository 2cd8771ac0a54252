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
            return f"There is a row of {context.names[1 - port]} for it."
        return f"It stands alone: {context.names[1 - port]} has no row for it."

    def change_outcome(self, context: TraceContext, sign: int) -> tuple[OutcomeKind, str] | None:
        if context.operator.kind == "semi" and sign < 0:
            return "taken back", f"There is no row of {context.names[1]} for it any more."
        return None

    def wait_reason(self, context: TraceContext, port: int, row: Row, row_id: int) -> str:
        return "It is in the table."


TRACE = _ChangelogTracer()
