"""The pass that moves parts of WHERE before the joins."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.analyze.draft import Draft
from watersmeet.analyze.meaning import is_resolved
from watersmeet.plan.analyzed import (
    AnalyzedAsofJoin,
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedLookupJoin,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedSyncJoin,
    AnalyzedTableJoin,
    AnalyzedUnion,
    AnalyzedView,
    AnalyzedWindowJoin,
)
from watersmeet.plan.expressions import Expr, conjuncts


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
    match relation:
        case AnalyzedScan() | AnalyzedView() | AnalyzedUnion():
            return frozenset({relation.alias})
        case AnalyzedLateral():
            return _free(relation.input) | {relation.alias}
        case AnalyzedWindowJoin() | AnalyzedSyncJoin():
            return frozenset()
        case AnalyzedAsofJoin():
            return _free(relation.left)
        case AnalyzedJoin() | AnalyzedLookupJoin() | AnalyzedTableJoin():
            left = _free(relation.left) if relation.kind not in ("right", "full") else frozenset[str]()
            right = _free(relation.right) if relation.kind not in ("left", "full") else frozenset[str]()
            return left | right


def _filtered(relation: AnalyzedRelation, filters: tuple[Expr, ...]) -> AnalyzedRelation:
    match relation:
        case AnalyzedScan() | AnalyzedView() | AnalyzedUnion():
            own = tuple(part for part in filters if relation.alias in part.sources)
            return replace(relation, filters=(*relation.filters, *own))
        case AnalyzedLateral():
            own = tuple(part for part in filters if relation.alias in part.sources)
            return replace(relation, input=_filtered(relation.input, filters), filters=own)
        case AnalyzedWindowJoin() | AnalyzedSyncJoin():
            return relation
        case AnalyzedAsofJoin():
            return replace(relation, left=_filtered(relation.left, filters))
        case AnalyzedJoin() | AnalyzedLookupJoin() | AnalyzedTableJoin():
            return replace(relation, left=_filtered(relation.left, filters), right=_filtered(relation.right, filters))
