"""The key of a result: what its ``_key`` is made of (LN-17, LN-23), and the format that ``STORE KEY AS`` names."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.analyze.scope import KEY, show_column
from watersmeet.formats.records import JSON, KEY_TYPES
from watersmeet.plan.expressions import GROUP, Expr, Reference
from watersmeet.plan.nodes import StorageFormats
from watersmeet.plan.query import AnalyzedQuery, Output
from watersmeet.plan.relation import AnalyzedJoin, AnalyzedLateral, AnalyzedLeaf, AnalyzedRelation


def result_key(query: AnalyzedQuery, group_by: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """What the rows of a result are told apart by, or grouped by; nothing if it has no key.

    A column ``_key`` of the projection goes first, then GROUP BY, then the keys of the join or of the only source.
    """
    chosen = next((output.expr for output in query.outputs if output.name.lower() == KEY), None)
    if chosen is not None:
        return (chosen,)
    if query.group is not None:
        return tuple(group_column(by.name) for by in query.group.by)
    return group_by or key_of(query.relation)


def group_column(name: str) -> Expr:
    """A reference to what a grouping gives."""
    return Expr("column", text=name, refs=(Reference((name,), 0, len(name), GROUP, name),))


def key_of(relation: AnalyzedRelation) -> tuple[Expr, ...]:
    """The key of the rows of a relation: that of its last join, or of its only source."""
    if isinstance(relation, AnalyzedLateral):
        return key_of(relation.input)
    if isinstance(relation, AnalyzedLeaf):
        key = show_column(relation.alias, relation.source, KEY)
        return () if key is None else (_plain(key.expr),)
    return relation.result_key if isinstance(relation, AnalyzedJoin) else ()


def _plain(expr: Expr) -> Expr:
    """The expression under the column's own name, however it was asked for."""
    return replace(expr, refs=tuple(replace(ref, parts=(ref.source, ref.name)) for ref in expr.refs))


def with_stored_key(query: AnalyzedQuery, store: StorageFormats | None, *, in_records: bool = False) -> AnalyzedQuery:
    """The query with its key in the format that it is stored in, ``_key`` among its columns too.

    ``in_records``: its rows become records, whose key is ``_key``, so that there must be such a column.

    >>> from watersmeet.catalog import Source
    >>> from watersmeet.plan.relation import AnalyzedScan
    >>> from watersmeet.plan.expressions import column
    >>> query = AnalyzedQuery(AnalyzedScan("a", Source("a", ())), (), key=(column(("id",)),))
    >>> with_stored_key(query, StorageFormats("long")).key[0].sql(lambda ref: ".".join(ref.parts))
    'CAST(id AS BIGINT)'
    """
    format_ = None if store is None else store.key
    if format_ is None or format_ not in KEY_TYPES or not query.key:
        return query
    first, *rest = query.key
    if rest and format_ != JSON:
        return query
    key = Expr("cast", (first,), value=KEY_TYPES[format_], span=first.span)
    if format_ == JSON:
        key = Expr("call", (key_struct(query.key),), text="to_json")
    outputs = tuple(replace(o, expr=key) if o.name.lower() == KEY else o for o in query.outputs)
    if in_records and all(output.name.lower() != KEY for output in outputs):
        outputs = (*outputs, Output(KEY, key))
    return replace(query, outputs=outputs, key=(key,))


def key_struct(key: tuple[Expr, ...]) -> Expr:
    """The columns of a key as one value, with names: their own, or k1, k2 and so on.

    >>> key_struct((Expr("literal", text="1"), Expr("literal", text="2"))).sql()
    "named_struct('k1', 1, 'k2', 2)"
    """
    named = [(f"k{n}" if expr.op != "column" else expr.refs[0].name, expr) for n, expr in enumerate(key, 1)]
    args = tuple(part for name, expr in named for part in (_text(name), expr))
    return Expr("call", args, text="named_struct")


def _text(value: str) -> Expr:
    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
    return Expr("literal", text=f"'{quoted}'", value=value)
