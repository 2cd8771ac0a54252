"""The pass that moves parts of WHERE before the joins."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.analyze.draft import Draft
from watersmeet.analyze.meaning import is_resolved
from watersmeet.plan.analyzed import AnalyzedRelation, AnalyzedScan, aliases
from watersmeet.plan.expressions import Expr, conjuncts


def move_filters(draft: Draft) -> Draft:
    """The draft with each part of WHERE at the scan it speaks of, or behind the last join where it must stay.

    A part over one source may move unless a join pads that source with nulls: then WHERE sees rows the scan does not.
    """
    if draft.relation is None:
        return draft
    parts = tuple(part for part in conjuncts(draft.query.where) if is_resolved(part))
    padded = _padded(draft.relation)
    moving = tuple(part for part in parts if len(part.sources) == 1 and not part.sources & padded)
    staying = tuple(part for part in parts if part not in moving)
    return replace(draft, relation=_filtered(draft.relation, moving), where=staying)


def _padded(relation: AnalyzedRelation) -> frozenset[str]:
    """The aliases whose columns some join of the relation can make null."""
    if isinstance(relation, AnalyzedScan):
        return frozenset()
    padded = _padded(relation.left) | _padded(relation.right)
    if relation.kind in ("left", "full"):
        padded |= frozenset(aliases(relation.right))
    if relation.kind in ("right", "full"):
        padded |= frozenset(aliases(relation.left))
    return padded


def _filtered(relation: AnalyzedRelation, filters: tuple[Expr, ...]) -> AnalyzedRelation:
    if isinstance(relation, AnalyzedScan):
        return replace(relation, filters=tuple(part for part in filters if relation.alias in part.sources))
    return replace(relation, left=_filtered(relation.left, filters), right=_filtered(relation.right, filters))
