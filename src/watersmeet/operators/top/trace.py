"""What becomes of the rows of ORDER BY ... LIMIT: they are among the first ones, or not."""

from __future__ import annotations

from watersmeet.fates.family import FamilyTracer, TraceContext
from watersmeet.fates.model import OutcomeKind
from watersmeet.operators.core.rowwise import Row


class _TopTracer(FamilyTracer):
    by_key = False

    def change_outcome(self, context: TraceContext, sign: int) -> tuple[OutcomeKind, str] | None:
        first = _first(context)
        return ("passed", f"It is {first}.") if sign > 0 else ("taken back", f"It is no longer {first}.")

    def outcome_without_output(self, context: TraceContext, port: int, row: Row) -> tuple[OutcomeKind, str]:
        return "unmatched", f"It is not {_first(context)}."


def _first(context: TraceContext) -> str:
    limit, ties = context.operator.limit, context.operator.ties
    if ties:
        return f"among the first {limit} rows, or equal to the last of them"
    return "the first row" if limit == 1 else f"among the first {limit} rows"


TRACE = _TopTracer()
