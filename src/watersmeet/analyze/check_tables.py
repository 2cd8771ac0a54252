"""The passes that look at what is a table: whether SELECT calls the result so, and tables that never change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeGuard

from watersmeet.analyze.draft import Draft
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import ResultKind
from watersmeet.plan.query import AnalyzedQuery, QueryWarning
from watersmeet.plan.relation import AnalyzedJoin, AnalyzedRelation, AnalyzedScan, leaves
from watersmeet.plan.words import expression_in_words


def check_result(draft: Draft) -> Draft:
    """The draft with what is to be said of a result that is called a stream or a table and is the other by itself.

    A table is no stream, since its rows are taken back. The latest row per key of a stream is a table.
    """
    if draft.query.result == "stream" and _result_kind(draft) == "table":
        draft = draft.with_refusals(
            [draft.refusal("RESULT_IS_A_TABLE", draft.query.span, what=_describe_result(draft))]
        )
    is_known = not draft.refusals and draft.scope.is_whole and draft.is_bounded
    if not is_known or draft.query.result != "table" or _result_kind(draft) == "table":
        # Of a query with mistakes, or over a view or a source with some, nobody knows the key.
        return draft
    key = draft.finish().key
    if not key:
        return draft.with_refusals([draft.refusal("RESULT_WITHOUT_KEY", draft.query.span)])
    return draft.with_warnings([_warn_latest_row(draft, key)])


def _result_kind(draft: Draft) -> ResultKind:
    if draft.group is not None or draft.top is not None:
        return "table"
    return "stream" if draft.relation is None else draft.relation.result


def _describe_result(draft: Draft) -> str:
    if draft.top is not None:
        return "the first rows in an order"
    if draft.group is not None:
        return "groups with aggregates" if draft.group.aggregates else "distinct rows"
    table_aliases = () if draft.relation is None else tuple(leaf.alias for leaf in leaves(draft.relation))
    return ("the table " if len(table_aliases) == 1 else "the join of the tables ") + draft.names_of(table_aliases)


def _warn_latest_row(draft: Draft, key: tuple[Expr, ...]) -> QueryWarning:
    by = ", ".join(expression_in_words(expr) for expr in key)
    message = f"SELECT TABLE over a stream shows the latest row of each {by}: each row replaces the one before it."
    return QueryWarning(message, draft.query.span)


def check_static_tables(draft: Draft) -> Draft:
    """The draft with the refusal of tables without changes where changes are what is asked for."""
    if draft.relation is None:
        return draft
    tables = static_tables_outside_joins(draft.relation)
    return draft.with_refusals(
        draft.refusal("STATIC_TABLE", draft.query.span, table=scan.source.name) for scan in tables
    )


def with_static_sources(query: AnalyzedQuery, names: frozenset[str]) -> AnalyzedQuery:
    """The query with the sources of these names, in small letters, as tables that never change."""

    def as_static(relation: AnalyzedRelation) -> AnalyzedRelation:
        if isinstance(relation, AnalyzedScan) and relation.source.name.lower() in names:
            return replace(relation, source=replace(relation.source, is_static=True))
        return relation.with_inputs([as_static(side) for side in relation.inputs])

    return replace(query, relation=as_static(query.relation))


def static_tables_outside_joins(relation: AnalyzedRelation) -> Iterator[AnalyzedScan]:
    """The tables that never change, wherever no stream looks them up."""
    if _is_static(relation):
        yield relation
    for port, side in enumerate(relation.inputs):
        is_read = isinstance(relation, AnalyzedJoin) and relation.can_be_static(port) and _is_static(side)
        yield from () if is_read else static_tables_outside_joins(side)


def _is_static(relation: AnalyzedRelation) -> TypeGuard[AnalyzedScan]:
    return isinstance(relation, AnalyzedScan) and relation.source.is_static
