"""Which columns of a result can be null (LN-18)."""

from __future__ import annotations

from collections.abc import Mapping

from watersmeet.plan.analyzed import (
    GROUP,
    PUNCTUATION,
    AnalyzedAsofJoin,
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedLookupJoin,
    AnalyzedQuery,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedSyncJoin,
    AnalyzedTableJoin,
    AnalyzedUnion,
    AnalyzedView,
    AnalyzedWindowJoin,
    Padding,
    inputs,
)
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import PRESERVED, JoinKind, Side

_OPPOSITE: Mapping[Side, Side] = {"left": "right", "right": "left"}

_Nulls = Mapping[str, bool]
"""Whether a column, named ``alias.column`` in small letters, can be null."""


def nullable(query: AnalyzedQuery) -> tuple[bool, ...]:
    """Whether each column of the result can be null.

    A column is what it was declared, unless the join can show its side without a row; values that stand for such a row
    keep it as it was. Every other expression counts as nullable, but for constants, IS NULL, ``<=>``, counts, and AND,
    OR and NOT of such.

    >>> from watersmeet.catalog import Field, Source
    >>> from watersmeet.plan.analyzed import Output
    >>> from watersmeet.plan.expressions import Reference
    >>> def column(alias, name):
    ...     return Expr("column", text="c", refs=(Reference((alias, name), 0, 1, alias, name),))
    >>> fields = (Field("id", "BIGINT", nullable=False), Field("v", "STRING"))
    >>> o, d = AnalyzedScan("o", Source("orders", fields)), AnalyzedScan("d", Source("deliveries", fields))
    >>> asked = [column("o", "id"), column("o", "v"), column("d", "id"), Expr("is_null", (column("d", "v"),))]
    >>> outputs = tuple(Output("", expr) for expr in asked)
    >>> nullable(AnalyzedQuery(AnalyzedJoin(o, d, "inner", (), ()), outputs))
    (False, True, False, False)
    >>> nullable(AnalyzedQuery(AnalyzedJoin(o, d, "left", (), ()), outputs))
    (False, True, True, False)
    """
    nulls = _nulls(query.relation)
    if query.group is not None:
        columns = (*query.group.by, *query.group.aggregates)
        nulls = {_named(GROUP, output.name): _can_be_null(output.expr, nulls) for output in columns}
    return tuple(_can_be_null(output.expr, nulls) for output in query.outputs)


def _can_be_null(expr: Expr, nulls: _Nulls) -> bool:
    match expr.op:
        case "column":
            ref = expr.refs[0]
            return bool(ref.path) or nulls.get(_named(ref.source, ref.name), True)
        case "literal":
            return expr.value is None
        case "interval" | "is_null" | "<=>":
            return False
        case "aggregate":
            return expr.text != "count"
        case "and" | "or" | "not":
            return any(_can_be_null(arg, nulls) for arg in expr.args)
        case _:
            return True


def _nulls(relation: AnalyzedRelation) -> _Nulls:
    """The columns that a relation shows, and whether they can be null."""
    match relation:
        case AnalyzedScan() | AnalyzedUnion():
            return {_named(relation.alias, field.name): field.nullable for field in relation.source.fields}
        case AnalyzedView():
            found = zip(relation.query.outputs, nullable(relation.query), strict=True)
            return {_named(relation.alias, output.name): can_be for output, can_be in found}
        case AnalyzedLateral():
            element = {_named(relation.alias, field.name): field.nullable for field in relation.source.fields}
            return {**_nulls(relation.input), **element}
        case AnalyzedSyncJoin():
            return {name: can_be for side in inputs(relation) for name, can_be in _nulls(side).items()}
        case AnalyzedAsofJoin():
            padding = relation.defaults or "nulls"
            return {**_nulls(relation.left), **_beside(relation.right, relation.kind, "right", padding)}
        case AnalyzedWindowJoin():
            return _windowed(relation)
        case AnalyzedJoin() | AnalyzedLookupJoin() | AnalyzedTableJoin():
            left = _beside(relation.left, relation.kind, "left")
            return {**left, **_beside(relation.right, relation.kind, "right")}


def _windowed(join: AnalyzedWindowJoin) -> _Nulls:
    # A side whose lonely rows have an output of their own is never shown beside a padded one.
    left = _beside(join.left, "inner" if join.unmatched[1] else join.kind, "left", join.pads[0])
    right = _beside(join.right, "inner" if join.unmatched[0] else join.kind, "right", join.pads[1])
    marks = {_named(PUNCTUATION, "_trigger"): True}
    return {**left, **right, **marks, _named(PUNCTUATION, "_seq"): False, _named(PUNCTUATION, "_last"): False}


def _beside(relation: AnalyzedRelation, kind: JoinKind, side: Side, padding: Padding = "nulls") -> _Nulls:
    """The columns of one side of a join: padded wherever a row of the other one is preserved."""
    own = _nulls(relation)
    if kind not in PRESERVED[_OPPOSITE[side]] or padding == "zeros":
        return own
    given = {} if padding == "nulls" else {name.lower(): value for name, value in padding}
    return {name: can_be or _padded_with_null(name, given) for name, can_be in own.items()}


def _padded_with_null(name: str, given: Mapping[str, Expr]) -> bool:
    value = given.get(name.split(".", 1)[1])
    return value is None or (value.op == "literal" and value.value is None)


def _named(alias: str, name: str) -> str:
    return f"{alias}.{name}".lower()
