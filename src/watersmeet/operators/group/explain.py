"""What explain says of a grouping."""

from __future__ import annotations

from watersmeet.explanation.family import StageExplainer
from watersmeet.plan.facts import Fact, texts
from watersmeet.plan.query import AnalyzedGroup
from watersmeet.plan.result_columns import expand_group
from watersmeet.plan.words import expression_in_words


def facts(group: AnalyzedGroup) -> list[Fact]:
    """What makes a group, what is computed of it, and when it is forgotten."""
    by = texts(tuple(output.expr for output in group.by))
    shown = texts(tuple(output.expr for output in group.aggregates))
    having = texts(tuple(expand_group(part, group) for part in group.having))
    return [("group by", by), ("aggregates", shown), ("having", having), ("groups", [_groups(group)])]


def _groups(group: AnalyzedGroup) -> str:
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
