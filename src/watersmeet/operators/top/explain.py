"""What explain says of the first rows."""

from __future__ import annotations

from watersmeet.explanation.family import StageExplainer
from watersmeet.plan.facts import Fact
from watersmeet.plan.query import AnalyzedTop
from watersmeet.plan.words import expression_in_words


def facts(top: AnalyzedTop) -> list[Fact]:
    """What the rows are ordered by, and how many are shown."""
    words = [
        f"{expression_in_words(by.shown)}{' descending' * by.descending}, NULLs {'last' if by.nulls_last else 'first'}"
        for by in top.order
    ]
    groups = [expression_in_words(by.shown) for by in top.by]
    ended = [] if top.final_by is None else [f"kept until {groups[top.final_by]} is final"]
    limit = f"{top.limit}{', and rows equal to the last' * top.ties}"
    return [("first of each", groups), ("order by", words), ("limit", [limit]), ("groups", ended)]


EXPLAIN = StageExplainer(facts)
