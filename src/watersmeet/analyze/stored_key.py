"""The key of a result in the format that ``STORE KEY AS`` names."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.analyze.scope import KEY
from watersmeet.formats.records import JSON, KEY_TYPES
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import Store
from watersmeet.plan.relation import AnalyzedQuery


def stored_key(query: AnalyzedQuery, store: Store | None) -> AnalyzedQuery:
    """The query with its key in the format that it is stored in, ``_key`` among its columns too.

    >>> from watersmeet.catalog import Source
    >>> from watersmeet.plan.relation import AnalyzedScan
    >>> from watersmeet.plan.expressions import column
    >>> query = AnalyzedQuery(AnalyzedScan("a", Source("a", ())), (), key=(column(("id",)),))
    >>> stored_key(query, Store("long")).key[0].sql(lambda ref: ".".join(ref.parts))
    'CAST(id AS BIGINT)'
    """
    format_ = None if store is None else store.key
    if format_ is None or format_ not in KEY_TYPES or not query.key:
        return query
    first, *rest = query.key
    if rest and format_ != JSON:
        return query
    key = Expr("call", (in_one(query.key),), text="to_json") if format_ == JSON else _cast(first, format_)
    outputs = tuple(replace(o, expr=key) if o.name.lower() == KEY else o for o in query.outputs)
    return replace(query, outputs=outputs, key=(key,))


def in_one(key: tuple[Expr, ...]) -> Expr:
    """The columns of a key as one value, with names: their own, or k1, k2 and so on.

    >>> in_one((Expr("literal", text="1"), Expr("literal", text="2"))).sql()
    "named_struct('k1', 1, 'k2', 2)"
    """
    named = [(f"k{n}" if expr.op != "column" else expr.refs[0].name, expr) for n, expr in enumerate(key, 1)]
    args = tuple(part for name, expr in named for part in (_text(name), expr))
    return Expr("call", args, text="named_struct")


def _cast(expr: Expr, format_: str) -> Expr:
    return Expr("cast", (expr,), value=KEY_TYPES[format_], span=expr.span)


def _text(value: str) -> Expr:
    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
    return Expr("literal", text=f"'{quoted}'", value=value)
