"""The `explain` facts of the latest row per key, and the `why` reasons for its rows."""

from __future__ import annotations

from watersmeet.operators.core.rowwise import Row
from watersmeet.operators.explainer import FamilyTracer, StageExplainer, TraceContext
from watersmeet.operators.outcomes import OutcomeKind

EXPLAIN = StageExplainer(lambda group: [])


class _LatestTracer(FamilyTracer):
    def change_outcome(self, context: TraceContext, sign: int) -> tuple[OutcomeKind, str] | None:
        if not context.operator.append:
            # A table is a changelog itself.
            return (
                ("passed", "It was added to the table.")
                if sign > 0
                else ("taken back", "It was removed from the table.")
            )
        return (
            ("alive", "It is the latest row with its key.")
            if sign > 0
            else ("replaced", "A later row has the same key.")
        )

    def outcome_without_output(self, context: TraceContext, port: int, row: Row) -> tuple[OutcomeKind, str]:
        return "replaced", "A later row of the same batch has the same key."


TRACE = _LatestTracer()
