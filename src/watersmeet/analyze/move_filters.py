"""The pass that moves parts of WHERE before the joins."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.analyze.draft import Draft
from watersmeet.analyze.meaning import is_resolved
from watersmeet.plan.expressions import Expr, conjuncts
from watersmeet.plan.relation import (
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedLeaf,
    AnalyzedRelation,
)


def move_filters(draft: Draft) -> Draft:
    """The draft with each part of WHERE at the scan it speaks of, or behind the last join where it must stay.

    A part over one source may move unless a join pads that source with nulls, for then WHERE sees rows the scan does
    not, or the other rows of that source decide what becomes of a row: in a window, among versions, of equal times.
    """
    if draft.relation is None:
        return draft
    parts = tuple(part for part in conjuncts(draft.query.where) if is_resolved(part))
    free = _free(draft.relation)
    moving = tuple(part for part in parts if len(part.sources) == 1 and part.sources <= free)
    staying = tuple(part for part in parts if part not in moving)
    return replace(draft, relation=_filtered(draft.relation, moving), where=staying)


def _free(relation: AnalyzedRelation) -> frozenset[str]:
    """The aliases whose rows may be dropped before the joins."""
    if isinstance(relation, AnalyzedLeaf):
        return frozenset({relation.alias})
    if isinstance(relation, AnalyzedLateral):
        return _free(relation.input) | {relation.alias}
    return frozenset(
        alias
        for port, side in enumerate(relation.inputs)
        if isinstance(relation, AnalyzedJoin) and relation.lets_filter_through(port)
        for alias in _free(side)
    )


def _filtered(relation: AnalyzedRelation, filters: tuple[Expr, ...]) -> AnalyzedRelation:
    """The relation with each filter at what has its alias."""
    if isinstance(relation, AnalyzedLeaf | AnalyzedLateral):
        own = tuple(part for part in filters if relation.alias in part.sources)
        relation = replace(relation, filters=(*relation.filters, *own))
    if isinstance(relation, AnalyzedLeaf):
        return relation
    return relation.with_inputs([_filtered(side, filters) for side in relation.inputs])
