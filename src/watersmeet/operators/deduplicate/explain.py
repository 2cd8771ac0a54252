"""The `explain` facts of a deduplication, and the `why` reasons for its rows."""

from __future__ import annotations

from watersmeet.logical.query import AnalyzedTop
from watersmeet.logical.words import Fact, amount_in_words, expression_in_words
from watersmeet.operators.core.rowwise import Row, event_time
from watersmeet.operators.explainer import FamilyTracer, StageExplainer, TraceContext
from watersmeet.operators.outcomes import OutcomeKind


def facts(top: AnalyzedTop) -> list[Fact]:
    """The order in which rows count, and the length within which only the first comes out."""
    assert top.within is not None
    words = [
        f"{expression_in_words(by.shown)}{' descending' * by.descending}, NULLs {'last' if by.nulls_last else 'first'}"
        for by in top.order
    ]
    groups = [expression_in_words(by.shown) for by in top.by]
    until = f"a key is kept until the watermark of {top.time} passes its row by the bound"
    within = f"{top.time} at most {amount_in_words(top.within)} apart"
    return [
        ("first of each", groups),
        ("order by", words or ["arrival"]),
        ("within", [within]),
        ("groups", [until]),
    ]


EXPLAIN = StageExplainer(facts)


class _DeduplicateTracer(FamilyTracer):
    by_key = False

    def unmatchable_reason(self, context: TraceContext, port: int, row: Row) -> tuple[OutcomeKind, str] | None:
        # NULL is a key like any other.
        return None

    def late_reason(self, context: TraceContext, port: int, row: Row) -> tuple[str, str | None]:
        stage = context.plan.analyzed
        assert isinstance(stage, AnalyzedTop)
        return f"It was late: the watermark of {stage.time} had passed its time", context.operator.time

    def change_outcome(self, context: TraceContext, sign: int) -> tuple[OutcomeKind, str] | None:
        return "passed", "It is the first row of its group within the time."

    def outcome_without_output(self, context: TraceContext, port: int, row: Row) -> tuple[OutcomeKind, str]:
        operator = context.operator
        time, watermark = event_time(row[operator.time]), context.received.get(operator.time)
        if time is None:
            return "null time", "Its time is NULL, so it is not within any bound."
        if operator.order == "time" and (watermark is None or time >= watermark):
            return "alive", "It waits until the watermark has passed its time: an earlier row of its group may come."
        return "dropped", "It repeats a row of its group within the time."


TRACE = _DeduplicateTracer()
