"""The `explain` facts of window functions, and the `why` reasons for their rows."""

from __future__ import annotations

from watersmeet.logical.query import TOP, AnalyzedOver
from watersmeet.logical.words import Fact, amount_in_words, expression_in_words
from watersmeet.operators.core.rowwise import Row, event_time
from watersmeet.operators.explainer import FamilyTracer, StageExplainer, TraceContext
from watersmeet.operators.outcomes import OutcomeKind
from watersmeet.operators.over.kernel import TableOverOperator


def facts(over: AnalyzedOver) -> list[Fact]:
    """The functions, the groups, and the order."""
    time = expression_in_words(over.order[0].shown) if over.order else ""
    within = [] if over.within is None else [f"{amount_in_words(over.within)} behind {time}"]
    return [
        (
            "functions",
            [expression_in_words(over.source_calls[f"{TOP}.{function.name}"]) for function in over.functions],
        ),
        ("partition by", [expression_in_words(by.shown) for by in over.by]),
        ("order by", [str(by) for by in over.order]),
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
        return (
            f"It was late: the watermark of {expression_in_words(stage.order[0].shown)} had passed its time",
            context.operator.time,
        )

    def change_outcome(self, context: TraceContext, sign: int) -> tuple[OutcomeKind, str] | None:
        if isinstance(context.operator, TableOverOperator):
            shown = ("passed", "It is shown with the values of the functions.")
            return shown if sign > 0 else ("taken back", "It went, or the value of a function changed.")
        return "passed", "It came out: the watermark has passed its time, so no row comes that belongs before it."

    def outcome_without_output(self, context: TraceContext, port: int, row: Row) -> tuple[OutcomeKind, str]:
        if isinstance(context.operator, TableOverOperator):
            return "unmatched", "It is not in the table any more."
        if event_time(row[context.operator.time]) is None:
            return "null time", "Its time is NULL, so it has no place in the order of time."
        bound = " by the bound: the row that LEAD shows may come" if context.operator.wait else ""
        earlier = "" if bound else ": an earlier row of its group may come"
        return "alive", f"It waits until the watermark has passed its time{bound}{earlier}."


TRACE = _OverTracer()
