"""The pass that looks at tables which never change: a stream looks them up, and nothing else can be done with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

from watersmeet.analyze.draft import Draft
from watersmeet.errors import Refusal
from watersmeet.plan.relation import AnalyzedJoin, AnalyzedRelation, AnalyzedScan


def check_static_tables(draft: Draft) -> Draft:
    """The draft with the refusal of tables without changes where changes are what is asked for."""
    return draft if draft.relation is None else draft.refusing(_check(draft, draft.relation))


def _check(draft: Draft, relation: AnalyzedRelation) -> Iterator[Refusal]:
    if _is_static(relation):
        yield draft.refusal("STATIC_TABLE", draft.query.span, table=relation.source.name)
    for port, side in enumerate(relation.inputs):
        is_read = isinstance(relation, AnalyzedJoin) and relation.reads_static(port) and _is_static(side)
        yield from () if is_read else _check(draft, side)


def _is_static(relation: AnalyzedRelation) -> TypeGuard[AnalyzedScan]:
    return isinstance(relation, AnalyzedScan) and relation.source.is_static
