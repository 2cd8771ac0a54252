"""The pass that finds out what every name means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from watersmeet.analyze.draft import Draft
from watersmeet.analyze.meaning import misses, resolved
from watersmeet.analyze.outputs import check_outputs
from watersmeet.analyze.relation_names import named_relation
from watersmeet.analyze.scope import Scope, shown_further
from watersmeet.catalog import Source, Span
from watersmeet.errors import Refusal, did_you_mean
from watersmeet.plan.analyzed import PUNCTUATION, punctuation
from watersmeet.plan.nodes import AsofJoin, Item, Join, Relation, Scan, Star, Union, leaves, scans


def resolve(draft: Draft) -> Draft:
    """The draft with every reference resolved; one that means nothing is refused and stays unresolved.

    After it every join has an ON: what USING or the lack of a condition stands for is written out. A join that could
    not be given one has none.
    """
    query = draft.query
    refusals = [*_check_aliases(draft), *_check_sources(draft)]
    relation, scope, more = named_relation(draft, query.relation)
    if isinstance(relation, Join) and relation.is_windowed:
        left = scope.sources.get(leaves(relation)[0].alias, Source("", ()))
        scope = replace(scope, further=shown_further(PUNCTUATION, punctuation(left)))
    items = tuple(item if isinstance(item, Star) else _item(item, scope) for item in query.items)
    for expr in (*(item.expr for item in query.items if isinstance(item, Item)), query.where):
        more += misses(draft.script, expr, scope)
    where = None if query.where is None else resolved(query.where, scope)
    query = replace(query, relation=relation, items=items, where=where)
    draft = replace(draft, query=query, scope=scope).refusing([*refusals, *more])
    return draft.refusing(check_outputs(draft))


def _item(item: Item, scope: Scope) -> Item:
    return replace(item, expr=resolved(item.expr, scope))


def _unsupported(draft: Draft, span: Span, what: str, hint: str) -> Refusal:
    return draft.refusal("UNSUPPORTED_STATEMENT", span, what=what, hint=hint)


def _check_aliases(draft: Draft) -> Iterator[Refusal]:
    seen = dict[str, Scan | Union]()
    for leaf in leaves(draft.query.relation):
        first = seen.setdefault(leaf.alias.lower(), leaf)
        if first is not leaf:
            renamed = f"{leaf.source if isinstance(leaf, Scan) else ')'} AS {leaf.alias}2"
            hint = f"give it another name, for example `{renamed}`."
            before = f"the alias of {first.source if isinstance(first, Scan) else 'a union'}"
            yield draft.refusal("DUPLICATE_NAME", leaf.span, name=leaf.alias, before=before, hint=hint)


def _check_sources(draft: Draft) -> Iterator[Refusal]:
    names = [source.name for source in draft.sources.values()]
    relation = draft.query.relation
    versions = _versions(relation)
    for scan in scans(relation):
        source = draft.sources.get(scan.source.lower())
        if source is None:
            suggestion = did_you_mean(scan.source, names)
            yield draft.refusal("UNKNOWN_SOURCE", scan.span, source=scan.source, suggestion=suggestion)
        elif source.kind == "table" and scan not in versions:
            what = (
                "query over"
                if isinstance(relation, Scan)
                else "union with"
                if isinstance(relation, Union)
                else "join with"
            )
            hint = (
                "declare it with CREATE STREAM and a WATERMARK, or join it as `JOIN table FOR SYSTEM_TIME AS OF time`."
            )
            yield _unsupported(draft, scan.span, f"A {what} the table {scan.source}", hint)


def _versions(relation: Relation) -> tuple[Scan, ...]:
    """The sources whose rows are versions, which a table may be."""
    if isinstance(relation, AsofJoin):
        own = (relation.right,) if isinstance(relation.right, Scan) else ()
        return own + _versions(relation.left)
    return _versions(relation.left) + _versions(relation.right) if isinstance(relation, Join) else ()
