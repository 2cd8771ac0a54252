"""The pass that builds the relation of a query: every join by the family that claims it.

A join is built or refused by its family, which must show that what it keeps is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from watersmeet.analyze.dialect import read_conditions
from watersmeet.analyze.draft import Draft
from watersmeet.analyze.event_time import query_watermarks
from watersmeet.analyze.family import BuildResult
from watersmeet.analyze.unions import is_plain_union, parts_of, union_heartbeat, union_of
from watersmeet.analyze.views import place_view
from watersmeet.analyze.watermarks import heartbeat_of
from watersmeet.errors import Refusal
from watersmeet.plan.nodes import Lateral, Leaf, Relation, Scan, Union
from watersmeet.plan.relation import AnalyzedLateral, AnalyzedLeaf, AnalyzedRelation, AnalyzedScan, joins


def build_relation(draft: Draft) -> Draft:
    """The draft with its relation built, the conditions of its joins still in one piece."""
    draft = read_conditions(draft, lambda join: len(_build(draft, join)[1]))
    relation, refusals = _build(draft, draft.query.relation)
    refusals += [refusal for family in draft.families for refusal in family.check_clauses(draft)]
    refusals += _check_late_rows(draft, relation)
    warnings = [warned for family in draft.families for warned in family.warn(draft, relation)]
    return replace(draft, relation=relation).with_refusals(refusals).with_warnings(warnings)


def _build(draft: Draft, relation: Relation) -> BuildResult:
    if isinstance(relation, Leaf):
        return _build_leaf(draft, relation), []
    sides = [_build(draft, side) for side in relation.inputs]
    inputs, refusals = (
        tuple(side for side, _ in sides),
        [refusal for _, side_refusals in sides for refusal in side_refusals],
    )
    if isinstance(relation, Lateral):
        element = draft.scope.sources[relation.alias]
        return AnalyzedLateral(inputs[0], relation.array, relation.alias, element, span=relation.span), refusals
    family = draft.family(relation, tuple(side.result for side in inputs))
    joined, own = family.build(draft, relation, inputs)
    return joined, [*refusals, *own]


def _build_leaf(draft: Draft, leaf: Leaf) -> AnalyzedLeaf:
    view = draft.views.get(leaf.source.lower()) if isinstance(leaf, Scan) else None
    if isinstance(leaf, Scan) and view is not None:
        source = draft.scope.sources[leaf.alias]
        return place_view(leaf.alias, source, view, query_watermarks(source, leaf))
    if isinstance(leaf, Union) and not is_plain_union(draft, leaf) and draft.scope.sources[leaf.alias].fields:
        return union_of(draft, leaf)
    parts = parts_of(draft, leaf) if isinstance(leaf, Union) else ()
    heartbeat = union_heartbeat(draft, leaf) if isinstance(leaf, Union) else heartbeat_of(draft, leaf)
    return AnalyzedScan(leaf.alias, draft.scope.sources[leaf.alias], parts=parts, heartbeat=heartbeat)


def _check_late_rows(draft: Draft, relation: AnalyzedRelation) -> Iterator[Refusal]:
    """LATE INTO of a query whose joins are all with tables."""
    all_joins = joins(relation)
    if draft.query.late_into is not None and all_joins and not any(join.has_late_rows for join in all_joins):
        hint = "leave LATE INTO out: each row is looked up when it arrives, so no row is late for a table."
        yield draft.refuse_unsupported(draft.query.late_into_span, "LATE INTO of a join with a table", hint)
