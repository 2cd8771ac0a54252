"""The pass that looks at tables which never change: a stream looks them up, and nothing else can be done with them."""

from __future__ import annotations

from collections.abc import Iterator

from watersmeet.analyze.draft import Draft
from watersmeet.errors import Refusal
from watersmeet.plan.analyzed import AnalyzedLookupJoin, AnalyzedRelation, AnalyzedScan, inputs


def check_static_tables(draft: Draft) -> Draft:
    """The draft with the refusal of tables without changes where changes are what is asked for."""
    return draft if draft.relation is None else draft.refusing(_check(draft, draft.relation))


def looked_up(join: AnalyzedLookupJoin) -> AnalyzedScan | None:
    """The table of a lookup join, if it never changes."""
    table = join.right if join.table == "right" else join.left
    return table if isinstance(table, AnalyzedScan) and table.source.is_static else None


def _check(draft: Draft, relation: AnalyzedRelation) -> Iterator[Refusal]:
    if isinstance(relation, AnalyzedScan):
        if relation.source.is_static:
            yield draft.refusal("STATIC_TABLE", draft.query.span, table=relation.source.name)
        return
    found = looked_up(relation) if isinstance(relation, AnalyzedLookupJoin) else None
    for side in inputs(relation):
        if side is not found:
            yield from _check(draft, side)
