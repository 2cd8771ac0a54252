"""Which operator, and why. `plan_query` is the one place where a join family is chosen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from watersmeet.catalog import Source
from watersmeet.physical.interval import plan_interval_join
from watersmeet.physical.nodes import (
    Computed,
    JoinPlan,
    PortPlan,
    QueryPlan,
    RelationPlan,
    ScanPlan,
    join_plans,
    scan_plans,
)
from watersmeet.physical.types import DeclaredTypes, Types
from watersmeet.plan.analyzed import AnalyzedJoin, AnalyzedQuery, AnalyzedRelation, AnalyzedScan, aliases
from watersmeet.plan.expressions import Expr

__all__ = [
    "Computed", "DeclaredTypes", "JoinPlan", "LateRows", "PortPlan", "QueryPlan", "RelationPlan", "ScanPlan", "Types",
    "join_plans", "plan_query", "scan_plans", "sources_of",
]  # fmt: skip


LateRows = Literal["counted", "kept"]
"""What becomes of late rows: they are only counted, or also emitted, with all columns, apart from the result."""


def plan_query(query: AnalyzedQuery, types: Types | None = None, late: LateRows = "counted") -> QueryPlan:
    """The plan of a query; without ``types`` the declared ones are used."""
    types = types or DeclaredTypes(sources_of(query.relation))
    needed = _columns([*query.where, *(output.expr for output in query.outputs)])
    relation = _plan(query.relation, needed or frozenset(_times(query.relation)[:1]), types, late)
    return QueryPlan(relation, query.where, query.outputs, query.into)


def sources_of(relation: AnalyzedRelation) -> dict[str, Source]:
    """The sources of a relation by alias."""
    if isinstance(relation, AnalyzedScan):
        return {relation.alias: relation.source}
    return sources_of(relation.left) | sources_of(relation.right)


def _plan(relation: AnalyzedRelation, needed: frozenset[str], types: Types, late: LateRows) -> RelationPlan:
    """The plan of a relation that must show the columns ``needed``."""
    if isinstance(relation, AnalyzedScan):
        asked = needed | _columns(relation.filters)
        fields = relation.source.fields
        columns = tuple(f.name for f in fields if late == "kept" or f"{relation.alias}.{f.name}" in asked)
        return ScanPlan(relation.alias, relation.source, columns, relation.filters)
    inside = _columns(
        [
            *(side for pair in relation.keys for side in pair),
            *relation.left_only,
            *relation.right_only,
            *relation.residual,
        ]
    )
    both = (relation.left, relation.right)
    times = tuple(_times(side) for side in both)
    inputs = tuple(_plan(side, needed | inside | frozenset(times[p]), types, late) for p, side in enumerate(both))
    sides = (frozenset(aliases(relation.left)), frozenset(aliases(relation.right)))
    shown = tuple(tuple(c for c in _shown(plan) if c in needed) for plan in inputs)
    lags = tuple(_lags(side) for side in both)
    return plan_interval_join(
        relation, (inputs[0], inputs[1]), (shown[0], shown[1]), (times[0], times[1]), (lags[0], lags[1]), sides, types,
        (_shown(inputs[0]), _shown(inputs[1])) if late == "kept" else ((), ()),
    )  # fmt: skip


def _columns(exprs: Iterable[Expr]) -> frozenset[str]:
    return frozenset(ref.column for expr in exprs for ref in expr.references)


def _shown(plan: RelationPlan) -> tuple[str, ...]:
    """The columns of a plan's frame, in order."""
    if isinstance(plan, ScanPlan):
        return tuple(f"{plan.alias}.{name}" for name in plan.columns)
    return plan.columns


def _times(relation: AnalyzedRelation) -> tuple[str, ...]:
    """The watermarked columns of a relation."""
    if isinstance(relation, AnalyzedJoin):
        return _times(relation.left) + _times(relation.right)
    return tuple(f"{relation.alias}.{w.column}" for w in relation.source.watermarks)


def _lags(relation: AnalyzedRelation) -> tuple[tuple[str, int], ...]:
    """How far the marks of a scan stay behind; the marks of a join come from the join."""
    if isinstance(relation, AnalyzedJoin):
        return ()
    return tuple((f"{relation.alias}.{w.column}", w.lag.value) for w in relation.source.watermarks)
