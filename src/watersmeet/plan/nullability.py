"""Which columns of a result can be null (LN-18)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from watersmeet.operators.core.aggregates import function_of, is_aggregate
from watersmeet.plan.expressions import GROUP, Expr
from watersmeet.plan.query import AnalyzedQuery
from watersmeet.plan.relation import AnalyzedJoin, AnalyzedLateral, AnalyzedLeaf, AnalyzedRelation, AnalyzedView

_Nulls = Mapping[str, bool]
"""Whether a column, named ``alias.column`` in small letters, can be null."""


def nullable(query: AnalyzedQuery) -> tuple[bool, ...]:
    """Whether each column of the result can be null.

    A column is what it was declared, unless the join can show its side without a row; values that stand for such a row
    keep it as it was. Every other expression counts as nullable, but for constants, IS NULL, ``<=>``, counts, and AND,
    OR and NOT of such.

    >>> from watersmeet.catalog import Field, Source
    >>> from watersmeet.plan.query import Output
    >>> from watersmeet.plan.relation import AnalyzedScan, ConditionalJoin
    >>> from watersmeet.plan.expressions import Reference
    >>> def column(alias, name):
    ...     return Expr("column", text="c", refs=(Reference((alias, name), 0, 1, alias, name),))
    >>> fields = (Field("id", "BIGINT", nullable=False), Field("v", "STRING"))
    >>> o, d = AnalyzedScan("o", Source("orders", fields)), AnalyzedScan("d", Source("deliveries", fields))
    >>> asked = [column("o", "id"), column("o", "v"), column("d", "id"), Expr("is_null", (column("d", "v"),))]
    >>> outputs = tuple(Output("", expr) for expr in asked)
    >>> nullable(AnalyzedQuery(ConditionalJoin(o, d, "inner"), outputs))
    (False, True, False, False)
    >>> nullable(AnalyzedQuery(ConditionalJoin(o, d, "left"), outputs))
    (False, True, True, False)
    """
    nulls = _nulls(query.relation)
    if query.group is not None:
        columns = (*query.group.by, *query.group.aggregates)
        nulls = {_column_key(GROUP, output.name): _can_be_null(output.expr, nulls) for output in columns}
    return tuple(_can_be_null(output.expr, nulls) for output in query.outputs)


def _can_be_null(expr: Expr, nulls: _Nulls) -> bool:
    match expr.op:
        case "column":
            ref = expr.refs[0]
            return bool(ref.path) or nulls.get(_column_key(ref.source, ref.name), True)
        case "literal":
            return expr.value is None
        case "interval" | "is_null" | "<=>":
            return False
        case "aggregate":
            return function_of(expr.function).nullable if is_aggregate(expr.function) else True
        case "and" | "or" | "not":
            return any(_can_be_null(arg, nulls) for arg in expr.args)
        case _:
            return True


def _nulls(relation: AnalyzedRelation) -> _Nulls:
    """The columns that a relation shows, and whether they can be null."""
    if isinstance(relation, AnalyzedView):
        columns = zip(relation.query.outputs, nullable(relation.query), strict=True)
        return {_column_key(relation.alias, output.name): can_be for output, can_be in columns}
    nulls = {name: can_be for port, side in enumerate(relation.inputs) for name, can_be in _side(relation, port, side)}
    if isinstance(relation, AnalyzedLeaf | AnalyzedLateral):
        fields = {_column_key(relation.alias, field.name): field.nullable for field in relation.source.fields}
        return fields if isinstance(relation, AnalyzedLeaf) else {**nulls, **fields}
    further = relation.extra_columns if isinstance(relation, AnalyzedJoin) else ()
    return {**nulls, **{field.name.lower(): field.nullable for field in further}}


def _side(relation: AnalyzedRelation, port: int, side: AnalyzedRelation) -> Iterable[tuple[str, bool]]:
    """The columns of one side: padded wherever a row may have no part of it."""
    own = _nulls(side)
    padding = relation.pads(port) if isinstance(relation, AnalyzedJoin) else None
    if padding is None or padding == "zeros":
        return own.items()
    constants = {} if padding == "nulls" else {name.lower(): value for name, value in padding}
    return ((name, can_be or _is_padded_with_null(name, constants)) for name, can_be in own.items())


def _is_padded_with_null(name: str, constants: Mapping[str, Expr]) -> bool:
    value = constants.get(name.split(".", 1)[1])
    return value is None or (value.op == "literal" and value.value is None)


def _column_key(alias: str, name: str) -> str:
    return f"{alias}.{name}".lower()
