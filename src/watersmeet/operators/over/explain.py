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

    def outcome_without_output(self, context: TraceContext, port: int, row: Row) -> tuple[OutcomeKind, str]:
        if event_time(row[context.operator.time]) is None:
            return "null time", "Its time is NULL, so it has no place in the order of time."
        return "alive", "It waits until the watermark has passed its time: an earlier row of its group may come."


TRACE = _OverTracer()
