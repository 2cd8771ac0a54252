"""The pass that looks at tables which never change: a stream looks them up, and nothing else can be done with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeGuard

from watersmeet.analyze.draft import Draft
from watersmeet.plan.relation import AnalyzedJoin, AnalyzedQuery, AnalyzedRelation, AnalyzedScan


def check_static_tables(draft: Draft) -> Draft:
    """The draft with the refusal of tables without changes where changes are what is asked for."""
    if draft.relation is None:
        return draft
    found = not_looked_up(draft.relation)
    return draft.refusing(draft.refusal("STATIC_TABLE", draft.query.span, table=scan.source.name) for scan in found)


def with_static_sources(query: AnalyzedQuery, names: frozenset[str]) -> AnalyzedQuery:
    """The query with the sources of these names, in small letters, as tables that never change."""

    def known(relation: AnalyzedRelation) -> AnalyzedRelation:
        if isinstance(relation, AnalyzedScan) and relation.source.name.lower() in names:
            return replace(relation, source=replace(relation.source, is_static=True))
        return relation.with_inputs([known(side) for side in relation.inputs])

    return replace(query, relation=known(query.relation))


def not_looked_up(relation: AnalyzedRelation) -> Iterator[AnalyzedScan]:
    """The tables that never change, wherever no stream looks them up."""
    if _is_static(relation):
        yield relation
    for port, side in enumerate(relation.inputs):
        is_read = isinstance(relation, AnalyzedJoin) and relation.reads_static(port) and _is_static(side)
        yield from () if is_read else not_looked_up(side)


def _is_static(relation: AnalyzedRelation) -> TypeGuard[AnalyzedScan]:
    return isinstance(relation, AnalyzedScan) and relation.source.is_static
