"""The `explain` facts of window functions, and the `why` reasons for their rows."""

from __future__ import annotations

from watersmeet.logical.query import AnalyzedOver
from watersmeet.logical.words import Fact, amount_in_words, expression_in_words
from watersmeet.operators.core.rowwise import Row, event_time
from watersmeet.operators.explainer import FamilyTracer, StageExplainer, TraceContext
from watersmeet.operators.outcomes import OutcomeKind


def facts(over: AnalyzedOver) -> list[Fact]:
    """The functions, the groups, and the order."""
    within = [] if over.within is None else [f"{amount_in_words(over.within)} behind {over.time}"]
    return [
        ("functions", [expression_in_words(function.expr) for function in over.functions]),
        ("partition by", [expression_in_words(by.shown) for by in over.by]),
        ("order by", [expression_in_words(by.shown) for by in over.order]),
        ("lead within", within),
    ]


EXPLAIN = StageExplainer(facts)


class _OverTracer(FamilyTracer):
    by_key = False

    def unmatchable_reason(self, context: TraceContext, port: int, row: Row) -> tuple[OutcomeKind, str] | None:
        # NULL is a key like any other.
        return None

    def late_reason(self, context: TraceContext, port: int, row: Row) -> tuple[str, str | None]:
        stage = context.plan.analyzed
        assert isinstance(stage, AnalyzedOver)
        return f"It was late: the watermark of {stage.time} had passed its time", context.operator.time

    def change_outcome(self, context: TraceContext, sign: int) -> tuple[OutcomeKind, str] | None:
        return "passed", "It came out: the watermark has passed its time, so no row comes that belongs before it."

    def outcome_without_output(self, context: TraceContext, port: int, row: Row) -> tuple[OutcomeKind, str]:
        if event_time(row[context.operator.time]) is None:
            return "null time", "Its time is NULL, so it has no place in the order of time."
        bound = " by the bound: the row that LEAD shows may come" if context.operator.wait else ""
        earlier = "" if bound else ": an earlier row of its group may come"
        return "alive", f"It waits until the watermark has passed its time{bound}{earlier}."


TRACE = _OverTracer()
