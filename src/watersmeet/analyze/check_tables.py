"""The passes that look at what is a table: whether SELECT calls the result so, and tables that never change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeGuard

from watersmeet.analyze.draft import Draft
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import ResultKind
from watersmeet.plan.query import AnalyzedQuery, Warned
from watersmeet.plan.relation import AnalyzedJoin, AnalyzedRelation, AnalyzedScan, leaves
from watersmeet.plan.words import expression_in_words


def check_result(draft: Draft) -> Draft:
    """The draft with what is to be said of a result that is called a stream or a table and is the other by itself.

    A table is no stream, since its rows are taken back. The latest row per key of a stream is a table.
    """
    if draft.query.result == "stream" and _given(draft) == "table":
        draft = draft.refusing([draft.refusal("RESULT_IS_A_TABLE", draft.query.span, what=_spoken(draft))])
    is_known = not draft.refusals and draft.scope.is_whole and draft.is_bounded
    if not is_known or draft.query.result != "table" or _given(draft) == "table":
        # Of a query with mistakes, or over a view or a source with some, nobody knows the key.
        return draft
    key = draft.finished().key
    if not key:
        return draft.refusing([draft.refusal("RESULT_WITHOUT_KEY", draft.query.span)])
    return draft.warning([_latest(draft, key)])


def _given(draft: Draft) -> ResultKind:
    if draft.group is not None or draft.top is not None:
        return "table"
    return "stream" if draft.relation is None else draft.relation.result


def _spoken(draft: Draft) -> str:
    if draft.top is not None:
        return "the first rows in an order"
    if draft.group is not None:
        return "groups with aggregates" if draft.group.aggregates else "rows of which equal ones are one"
    found = () if draft.relation is None else tuple(leaf.alias for leaf in leaves(draft.relation))
    return ("the table " if len(found) == 1 else "the join of the tables ") + draft.names_of(found)


def _latest(draft: Draft, key: tuple[Expr, ...]) -> Warned:
    by = ", ".join(expression_in_words(expr) for expr in key)
    message = f"SELECT TABLE over a stream shows the latest row of each {by}: a row takes back the one before it."
    return Warned(message, draft.query.span)


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
