"""The pass over ORDER BY ... LIMIT: what the rows of a query are ordered by, and how many of them it shows."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.analyze.draft import Draft
from watersmeet.plan.expressions import Expr, Reference, settled_as
from watersmeet.plan.query import AnalyzedTop, OrderedBy
from watersmeet.plan.relation import AnalyzedLeaf, AnalyzedView


def top(draft: Draft) -> Draft:
    """The draft with the first rows that it is to show; what they are ordered by is shown no longer."""
    query, relation = draft.query, draft.relation
    if query.limit is None or not isinstance(relation, AnalyzedLeaf):
        return draft
    order = tuple(
        OrderedBy(_column(relation.alias, by.column), by.expr, by.descending, by.nulls_last) for by in query.order
    )
    hidden = {*(by.column for by in query.order), *query.by}
    outputs = tuple(output for output in draft.outputs if output.name not in hidden)
    by = tuple(OrderedBy(_column(relation.alias, name), _written(relation, name), False, False) for name in query.by)
    settled = next((place for place, one in enumerate(by) if settled_as(one.expr) in relation.settled), None)
    found = replace(draft, outputs=outputs, top=AnalyzedTop(order, query.limit, by, query.ties, settled))
    # Of a view with mistakes nobody knows whether it is a table.
    if query.ties and relation.result == "stream" and draft.scope.is_whole:
        hint = "write `ROW_NUMBER()`: of equal rows the first to come are shown; or rank a table."
        what = "RANK() of a stream, which would keep all rows that are equal,"
        return found.refusing([draft.refusal("UNSUPPORTED_STATEMENT", query.span, what=what, hint=hint)])
    return found


def _written(relation: AnalyzedLeaf, name: str) -> Expr:
    """What the rows of a group share, as the query wrote it."""
    outputs = relation.query.outputs if isinstance(relation, AnalyzedView) else ()
    return next((output.expr for output in outputs if output.name == name), _column(relation.alias, name))


def _column(alias: str, name: str) -> Expr:
    return Expr("column", text=name, refs=(Reference((alias, name), 0, len(name), alias, name),))
