"""The `explain` facts of a grouping, and the `why` reasons for its rows."""

from __future__ import annotations

from watersmeet.logical.query import AnalyzedGroup, expand_group, group_expressions
from watersmeet.logical.words import Fact, expression_in_words, texts
from watersmeet.operators.core.rowwise import Row
from watersmeet.operators.explainer import FamilyTracer, StageExplainer, TraceContext
from watersmeet.operators.outcomes import OutcomeKind, value_in_words, window_end


def facts(group: AnalyzedGroup) -> list[Fact]:
    """The keys of a group, its aggregates, and when it is dropped."""
    keys = group_expressions(group)
    by = [*texts(keys), *(["each grouping for itself"] if len(keys) < len(group.by) else [])]
    shown = texts(tuple(output.expr for output in group.aggregates))
    having = texts(tuple(expand_group(part, group) for part in group.having))
    return [("group by", by), ("aggregates", shown), ("having", having), ("groups", [_groups(group)])]


def _groups(group: AnalyzedGroup) -> str:
    if group.emit == "final":
        what = "session" if group.is_session else "group"
        return f"a {what} is emitted once, when the watermark of {group.time} reaches its end, and removed"
    if group.is_session:
        return f"the rows of a session are kept until the watermark of {group.time} passes its end"
    if group.window is not None and group.time is not None:
        return f"a group is kept until the watermark of {group.time} passes the end of its window"
    if group.final_by is not None:
        (by,) = (output.expr for output in group.by if output.name == group.final_by)
        return f"a group is kept until {expression_in_words(by)} is final: rows with this value no longer change"
    if not group.by:
        return "one group, kept forever"
    return "every group is kept forever: the state grows with the number of groups, not of rows"


EXPLAIN = StageExplainer(facts)


class _GroupTracer(FamilyTracer):
    by_key = False

    def unmatchable_reason(self, context: TraceContext, port: int, row: Row) -> tuple[OutcomeKind, str] | None:
        # NULL is a group like any other.
        return None

    def late_reason(self, context: TraceContext, port: int, row: Row) -> tuple[str, str | None]:
        bound = row[context.operator.window_end or context.operator.final_key]
        end = value_in_words(window_end(bound, context.operator.before_end))
        return f"It was late: the watermark had passed the end of its window, {end}", context.operator.end_watermark

    def emission_time(self, context: TraceContext, row: Row) -> str:
        if context.operator.emit == "changes":
            return ""
        bound = row[context.operator.window_end or context.operator.final_key]
        end = value_in_words(window_end(bound, context.operator.before_end))
        return f", which is emitted once the watermark has reached the end of its window, {end}"


TRACE = _GroupTracer()
