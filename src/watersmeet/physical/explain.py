"""A query and its plan as a person reads them: the analysis with the operator and the reasons."""

from __future__ import annotations

from watersmeet.physical.nodes import QueryPlan, join_plans
from watersmeet.plan.analyzed import AnalyzedJoin, AnalyzedQuery
from watersmeet.plan.explain import Remarks, query_as_json, render_query


def render(query: AnalyzedQuery, plan: QueryPlan) -> str:
    """The plan as a tree of text."""
    return render_query(query, _remarks(plan))


def as_json(query: AnalyzedQuery, plan: QueryPlan) -> dict[str, object]:
    """The plan for machines."""
    return query_as_json(query, _remarks(plan))


def _remarks(plan: QueryPlan) -> Remarks:
    def remarks(join: AnalyzedJoin) -> list[tuple[str, str]]:
        found = next(p for p in join_plans(plan.relation) if p.analyzed is join)
        return [("operator", found.why[0]), *(("why", line) for line in found.why[1:])]

    return remarks
