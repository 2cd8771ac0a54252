"""What becomes of the rows of a grouping: they are counted, or their window had ended."""

from __future__ import annotations

from watersmeet.fates.family import FamilyTracer, TraceContext
from watersmeet.fates.model import OutcomeKind
from watersmeet.fates.words import value_in_words
from watersmeet.operators.core.rowwise import Row


class _GroupTracer(FamilyTracer):
    by_key = False

    def unmatchable_reason(self, context: TraceContext, port: int, row: Row) -> tuple[OutcomeKind, str] | None:
        # NULL is a group like any other.
        return None

    def late_reason(self, context: TraceContext, port: int, row: Row) -> tuple[str, str | None]:
        end = value_in_words(row[context.operator.window_end or context.operator.final_key])
        return f"It was late: the watermark had passed the end of its window, {end}", context.operator.end_watermark


TRACE = _GroupTracer()
