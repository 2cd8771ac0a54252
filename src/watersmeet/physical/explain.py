"""A query and its plan as a person reads them: the analysis with the operator and the reasons."""

from __future__ import annotations

from watersmeet.physical.columnar import is_columnar
from watersmeet.physical.nodes import JoinPlan, QueryPlan, ScanPlan, join_plans
from watersmeet.plan.analyzed import AnalyzedQuery, AnyJoin
from watersmeet.plan.explain import Remarks, query_as_json, render_query


def render(query: AnalyzedQuery, plan: QueryPlan) -> str:
    """The plan as a tree of text."""
    return render_query(query, _remarks(plan))


def as_json(query: AnalyzedQuery, plan: QueryPlan) -> dict[str, object]:
    """The plan for machines."""
    return query_as_json(query, _remarks(plan))


def _remarks(plan: QueryPlan) -> Remarks:
    def remarks(join: AnyJoin) -> list[tuple[str, str]]:
        found = next(p for p in join_plans(plan.relation) if p.analyzed is join)
        return [("operator", found.why[0]), *(("why", line) for line in (*found.why[1:], *_scanned(found)))]

    return remarks


def _scanned(join: JoinPlan) -> list[str]:
    """Which sources the workers read themselves."""
    names = [port.input.alias for port in join.ports if isinstance(port.input, ScanPlan) and is_columnar(port)]
    if not names:
        return []
    reason = "nothing needs Spark before the join"
    return [f"{' and '.join(names)}: workers read the Parquet files as columns, for {reason}"]
