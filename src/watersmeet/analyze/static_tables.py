"""The pass that looks at tables which never change: a stream looks them up, and nothing else can be done with them."""

from __future__ import annotations

from collections.abc import Iterator

from watersmeet.analyze.draft import Draft
from watersmeet.errors import Refusal
from watersmeet.families.lookup.relation import AnalyzedLookupJoin
from watersmeet.plan.relation import AnalyzedRelation, AnalyzedScan


def check_static_tables(draft: Draft) -> Draft:
    """The draft with the refusal of tables without changes where changes are what is asked for."""
    return draft if draft.relation is None else draft.refusing(_check(draft, draft.relation))


def _check(draft: Draft, relation: AnalyzedRelation) -> Iterator[Refusal]:
    if isinstance(relation, AnalyzedScan):
        if relation.source.is_static:
            yield draft.refusal("STATIC_TABLE", draft.query.span, table=relation.source.name)
        return
    if isinstance(relation, AnalyzedLookupJoin) and relation.is_static:
        yield from _check(draft, relation.stream)
        return
    for side in relation.inputs:
        yield from _check(draft, side)
