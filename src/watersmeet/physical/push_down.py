"""Where only the first rows of a table are asked for: what feeds such a stage need not hand on all that it has.

What lies between the two must take each row for one row: then the rows that are before another one stay before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from watersmeet.logical.expressions import ARITHMETIC, COMPARISONS, Expr, finality_column
from watersmeet.operators.core.order import SortColumn, TopN
from watersmeet.physical.nodes import (
    JoinPlan,
    QueryPlan,
    RelationPlan,
    ViewPlan,
)

_ONE_TO_ONE = {
    "column",
    "literal",
    "interval",
    "and",
    "or",
    "not",
    "is_null",
    "negate",
    "cast",
    *COMPARISONS,
    *ARITHMETIC,
}
"""Expressions that give one value per row; functions may give several rows."""
WHY = "of groups that have ended, only those are handed on that may be among the first"


def push_down_top_n(plan: QueryPlan) -> QueryPlan:
    """The plan in which every stage knows that no more than the first of its rows are asked for, where that is so."""
    return replace(plan, relation=plan.relation.transform(_push_down))


def _push_down(relation: RelationPlan) -> RelationPlan:
    """A node that hands the first rows it asks for on to what it reads."""
    top_n = relation.operator.top_n if isinstance(relation, JoinPlan) else None
    if top_n is None:
        return relation
    return relation.with_children(tuple(_push_into(child, top_n) for child in relation.children))


def _push_into(relation: RelationPlan, top_n: TopN) -> RelationPlan:
    """The relation, of whose rows only the first are asked for."""
    match relation:
        case ViewPlan() if not relation.where and not relation.filters:
            if not all(_is_one_to_one(output.expr) for output in relation.outputs):
                return relation
            inner = _below_view(top_n, dict(zip(relation.columns, (o.expr for o in relation.outputs), strict=True)))
            return relation if inner is None else replace(relation, input=_push_into(relation.input, inner))
        case JoinPlan() if not relation.post_filters and not relation.derived and not relation.pads:
            operator = relation.operator.with_top_n(top_n)
            is_other = operator is not relation.operator
            return replace(relation, operator=operator, why=(*relation.why, WHY)) if is_other else relation
        case _:
            return relation


def _below_view(top_n: TopN, shown: Mapping[str, Expr]) -> TopN | None:
    """The same by the columns below a view; None: it is by what the view computes.

    A group by a field is one of structs or several: ahead in one of these is ahead in the group.
    """
    by = [shown[name].refs[0].column for name in top_n.by if finality_column(shown[name]) is not None]
    order = [
        SortColumn(shown[each.column].refs[0].column, each.descending, each.nulls_last)
        for each in top_n.order
        if shown[each.column].op == "column" and not shown[each.column].refs[0].path
    ]
    is_known = len(by) == len(top_n.by) and len(order) == len(top_n.order)
    return replace(top_n, by=tuple(dict.fromkeys(by)), order=tuple(order)) if is_known else None


def _is_one_to_one(expr: Expr) -> bool:
    return finality_column(expr) is not None or (expr.op in _ONE_TO_ONE and all(map(_is_one_to_one, expr.args)))
