"""The `explain` facts of a top-N, and the `why` reasons for its rows."""

from __future__ import annotations

from watersmeet.logical.query import AnalyzedTop
from watersmeet.logical.words import Fact, expression_in_words
from watersmeet.operators.core.order import MOST_RANKS
from watersmeet.operators.core.rowwise import Row, event_time
from watersmeet.operators.explainer import FamilyTracer, StageExplainer, TraceContext
from watersmeet.operators.outcomes import OutcomeKind, value_in_words, window_end


def facts(top: AnalyzedTop) -> list[Fact]:
    """The order of the rows, and the limit."""
    words = [
        f"{expression_in_words(by.shown)}{' descending' * by.descending}, NULLs {'last' if by.nulls_last else 'first'}"
        for by in top.order
    ]
    groups = [expression_in_words(by.shown) for by in top.by]
    ended = [] if top.final_by is None else [f"kept until {groups[top.final_by]} is final"]
    if top.time is not None:
        does = "kept" if top.emit == "changes" else "emitted once; kept"
        ended = [f"{does} until the watermark of {top.time} passes the end of the window"]
    limit = f"{top.limit_in_words or 'none'}{', and rows equal to the last' * (top.ties and bool(top.limit_in_words))}"
    return [("first of each", groups), ("order by", words), ("limit", [limit]), ("groups", ended)]


EXPLAIN = StageExplainer(facts)


class _TopTracer(FamilyTracer):
    by_key = False

    def late_reason(self, context: TraceContext, port: int, row: Row) -> tuple[str, str | None]:
        end = value_in_words(window_end(row[context.operator.final_key], context.operator.before_end))
        return f"It was late: the watermark had passed the end of its window, {end}", context.operator.time

    def change_outcome(self, context: TraceContext, sign: int) -> tuple[OutcomeKind, str] | None:
        first = _first(context)
        return ("passed", f"It is {first}.") if sign > 0 else ("taken back", f"It is no longer {first}.")

    def outcome_without_output(self, context: TraceContext, port: int, row: Row) -> tuple[OutcomeKind, str]:
        operator = context.operator
        if operator.emit == "final":
            bound, watermark = event_time(row[operator.final_key]), context.received.get(operator.time)
            if bound is None or watermark is None or bound + operator.before_end > watermark:
                end = value_in_words(window_end(row[operator.final_key], operator.before_end))
                return "alive", f"It waits until the watermark reaches the end of its window, {end}."
        return "unmatched", f"It is not {_first(context)}."


def _first(context: TraceContext) -> str:
    limit, ties = context.operator.limit, context.operator.ties
    if context.operator.offset or limit == MOST_RANKS or context.operator.is_dense:
        last = "" if limit == MOST_RANKS else f" to {limit}"
        return f"among the ranks {context.operator.offset + 1}{last or ' and above'}"
    if ties:
        return f"among the first {limit} rows, or equal to the last of them"
    return "the first row" if limit == 1 else f"among the first {limit} rows"


TRACE = _TopTracer()
