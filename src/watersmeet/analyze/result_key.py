"""The key of a result: what its ``_key`` is made of (LN-17, LN-23)."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.analyze.scope import KEY, show
from watersmeet.plan.expressions import Expr, Reference
from watersmeet.plan.relation import (
    GROUP,
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedLeaf,
    AnalyzedQuery,
    AnalyzedRelation,
)


def result_key(query: AnalyzedQuery, group_by: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """What the rows of a result are told apart by, or grouped by; nothing if it has no key.

    A column ``_key`` of the projection goes first, then GROUP BY, then the keys of the join or of the only source.
    """
    chosen = next((output.expr for output in query.outputs if output.name.lower() == KEY), None)
    if chosen is not None:
        return (chosen,)
    if query.group is not None:
        return tuple(grouped(by.name) for by in query.group.by)
    return group_by or key_of(query.relation)


def grouped(name: str) -> Expr:
    """A reference to what a grouping gives."""
    return Expr("column", text=name, refs=(Reference((name,), 0, len(name), GROUP, name),))


def key_of(relation: AnalyzedRelation) -> tuple[Expr, ...]:
    """The key of the rows of a relation: that of its last join, or of its only source."""
    if isinstance(relation, AnalyzedLateral):
        return key_of(relation.input)
    if isinstance(relation, AnalyzedLeaf):
        found = show(relation.alias, relation.source, KEY)
        return () if found is None else (_plain(found.expr),)
    return relation.result_key if isinstance(relation, AnalyzedJoin) else ()


def _plain(expr: Expr) -> Expr:
    """The expression under the column's own name, however it was asked for."""
    return replace(expr, refs=tuple(replace(ref, parts=(ref.source, ref.name)) for ref in expr.refs))
