"""Unions of tables whose rows an operator makes, where no operator follows: each different row is counted.

Spark takes the result of a query from its last operator, and such a union has one in every part. So the last operator
is a grouping by all columns, and each row of the result comes as often as it was counted.
"""

from __future__ import annotations

from dataclasses import replace

from watersmeet.catalog import Field, Source
from watersmeet.logical.expressions import Expr, Reference
from watersmeet.logical.passes.scope import group_column
from watersmeet.logical.query import AnalyzedGroup, AnalyzedQuery, Output
from watersmeet.logical.relation import (
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedUnion,
    AnalyzedView,
)

_COUNTED, _TIMES, _COPY = "#counted", "#times", "#copy"


def count_unions(query: AnalyzedQuery) -> AnalyzedQuery:
    """The query with an operator behind each union that is part of its result, if the union has operators before it."""
    if query.group is not None or query.top is not None:
        return query
    return replace(query, relation=_count(query.relation))


def _count(relation: AnalyzedRelation) -> AnalyzedRelation:
    if isinstance(relation, AnalyzedView):
        return replace(relation, query=count_unions(relation.query))
    if isinstance(relation, AnalyzedUnion):
        is_counted = relation.result == "table" and any(map(_has_operator, relation.sides))
        return _count_rows(relation) if is_counted else relation
    if isinstance(relation, AnalyzedLateral):
        return relation.with_inputs([_count(relation.input)])
    through = relation.passthrough_input
    if through is None:
        return relation
    return relation.with_inputs([_count(side) if side is through else side for side in relation.inputs])


def _has_operator(relation: AnalyzedRelation) -> bool:
    """Whether an operator makes the rows of a relation."""
    if isinstance(relation, AnalyzedScan):
        return bool(relation.source.primary_key) and not relation.source.is_static
    if isinstance(relation, AnalyzedView):
        query = relation.query
        is_latest = query.result != query.relation.result
        return query.group is not None or query.top is not None or is_latest or _has_operator(query.relation)
    if isinstance(relation, AnalyzedJoin) and relation.passthrough_input is None:
        return True
    return any(map(_has_operator, relation.inputs))


def _count_rows(union: AnalyzedUnion) -> AnalyzedView:
    """The same rows, from a grouping that counts them."""
    fields = union.source.fields
    by = tuple(Output(f"k{n}", _column(union.alias, field.name)) for n, field in enumerate(fields))
    group = AnalyzedGroup(by, (Output("a0", Expr("aggregate", text="count")),), None, None, union.source.span)
    keys = tuple(group_column(output.name) for output in by)
    columns = tuple(Output(field.name, key) for field, key in zip(fields, keys, strict=True))
    outputs = (*columns, Output(_TIMES, group_column("a0")))
    counted = AnalyzedQuery(union, outputs, result="table", group=group, key=keys)
    source = Source(_COUNTED, (*fields, Field(_TIMES, "BIGINT")), kind="table")
    times = Expr("cast", (_column(_COUNTED, _TIMES),), value="INT")
    array = Expr("call", (Expr("literal", text="0", value=0), times), "array_repeat")
    copies = AnalyzedLateral(
        AnalyzedView(_COUNTED, source, counted), array, _COPY, Source(_COPY, (Field(_COPY, "INT"),))
    )
    shown = tuple(Output(field.name, _column(_COUNTED, field.name)) for field in fields)
    return AnalyzedView(union.alias, union.source, AnalyzedQuery(copies, shown, result="table"))


def _column(alias: str, name: str) -> Expr:
    return Expr("column", text=name, refs=(Reference((alias, name), 0, len(name), alias, name),))
