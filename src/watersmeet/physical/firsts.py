"""Where only the first rows of a table are asked for: what feeds such a stage need not hand on all that it has.

What lies between the two must take each row for one row: then the rows that are before another one stay before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from watersmeet.joins.core.order import First, Order
from watersmeet.physical.nodes import (
    JoinPlan,
    LateralPlan,
    QueryPlan,
    RelationPlan,
    ScanPlan,
    StaticJoinPlan,
    UnionPlan,
    ViewPlan,
)
from watersmeet.plan.expressions import ARITHMETIC, COMPARISONS, Expr, settled_as

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
"""What is made of a row is one value; functions may make several rows of it."""
WHY = "of groups that have ended, only those are handed on that may be among the first"


def asking_for_first(plan: QueryPlan) -> QueryPlan:
    """The plan in which every stage knows that no more than the first of its rows are asked for, where that is so."""
    return replace(plan, relation=_told(plan.relation))


def _told(relation: RelationPlan) -> RelationPlan:
    match relation:
        case ScanPlan():
            return relation
        case ViewPlan() | LateralPlan():
            return replace(relation, input=_told(relation.input))
        case UnionPlan():
            return replace(relation, inputs=tuple(map(_told, relation.inputs)))
        case StaticJoinPlan():
            return replace(relation, stream=_told(relation.stream))
        case JoinPlan():
            inputs = [_told(port.input) for port in relation.ports]
            asks = relation.operator.asks
            if asks is not None:
                inputs = [_asked(one, asks) for one in inputs]
            ports = zip(relation.ports, inputs, strict=True)
            return replace(relation, ports=tuple(replace(port, input=one) for port, one in ports))


def _asked(relation: RelationPlan, first: First) -> RelationPlan:
    """The relation, of whose rows only the first are asked for."""
    match relation:
        case ViewPlan() if not relation.where and not relation.filters:
            if not all(_is_one_to_one(output.expr) for output in relation.outputs):
                return relation
            inner = _inner(first, dict(zip(relation.columns, (o.expr for o in relation.outputs), strict=True)))
            return relation if inner is None else replace(relation, input=_asked(relation.input, inner))
        case JoinPlan() if not relation.after and not relation.derived and not relation.pads:
            operator = relation.operator.asked(first)
            is_other = operator is not relation.operator
            return replace(relation, operator=operator, why=(*relation.why, WHY)) if is_other else relation
        case _:
            return relation


def _inner(first: First, shown: Mapping[str, Expr]) -> First | None:
    """The same by the columns below a view; None: it is by what the view computes.

    A group by a field is one of structs or several: whoever is before another row in one of these is so in the group.
    """
    by = [shown[name].refs[0].column for name in first.by if settled_as(shown[name]) is not None]
    order = [
        Order(shown[each.column].refs[0].column, each.descending, each.nulls_last)
        for each in first.order
        if shown[each.column].op == "column" and not shown[each.column].refs[0].path
    ]
    is_known = len(by) == len(first.by) and len(order) == len(first.order)
    return replace(first, by=tuple(dict.fromkeys(by)), order=tuple(order)) if is_known else None


def _is_one_to_one(expr: Expr) -> bool:
    return settled_as(expr) is not None or (expr.op in _ONE_TO_ONE and all(map(_is_one_to_one, expr.args)))
