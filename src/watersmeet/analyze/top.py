"""The pass over ORDER BY ... LIMIT: what the rows of a query are ordered by, and how many of them it shows."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.analyze.draft import Draft
from watersmeet.plan.expressions import Expr, Reference, finality_column
from watersmeet.plan.query import AnalyzedSortKey, AnalyzedTop
from watersmeet.plan.relation import AnalyzedLeaf, AnalyzedView


def top(draft: Draft) -> Draft:
    """The draft with the first rows that it is to show; what they are ordered by is shown no longer."""
    query, relation = draft.query, draft.relation
    if query.limit is None or not isinstance(relation, AnalyzedLeaf):
        return draft
    order = tuple(
        AnalyzedSortKey(_column(relation.alias, by.column), by.expr, by.descending, by.nulls_last) for by in query.order
    )
    hidden = {*(by.column for by in query.order), *query.by}
    outputs = tuple(output for output in draft.outputs if output.name not in hidden)
    by = tuple(
        AnalyzedSortKey(_column(relation.alias, name), _partition_expression(relation, name), False, False)
        for name in query.by
    )
    final_place = next(
        (place for place, partition in enumerate(by) if finality_column(partition.expr) in relation.final_columns), None
    )
    ranked = replace(draft, outputs=outputs, top=AnalyzedTop(order, query.limit, by, query.ties, final_place))
    # Of a view with mistakes nobody knows whether it is a table.
    if query.ties and relation.result == "stream" and draft.scope.is_whole:
        hint = "write `ROW_NUMBER()`, which shows the first of equal rows; or rank a table."
        what = "RANK() of a stream, which would keep all equal rows,"
        return ranked.with_refusals([draft.refusal("UNSUPPORTED_STATEMENT", query.span, what=what, hint=hint)])
    return ranked


def _partition_expression(relation: AnalyzedLeaf, name: str) -> Expr:
    """What the rows of a group share, as the query wrote it."""
    outputs = relation.query.outputs if isinstance(relation, AnalyzedView) else ()
    return next((output.expr for output in outputs if output.name == name), _column(relation.alias, name))


def _column(alias: str, name: str) -> Expr:
    return Expr("column", text=name, refs=(Reference((alias, name), 0, len(name), alias, name),))
