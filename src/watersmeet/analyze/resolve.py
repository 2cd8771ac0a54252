"""The pass that finds out what every name means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from watersmeet.analyze.draft import Draft
from watersmeet.analyze.scope import Miss, Scope, Shown, coalesced, scope_of, splice
from watersmeet.catalog import NOWHERE, Source, Span
from watersmeet.errors import Refusal, did_you_mean
from watersmeet.plan.expressions import Expr, Reference
from watersmeet.plan.nodes import Item, Join, Relation, Scan, Star, scans


def resolve(draft: Draft) -> Draft:
    """The draft with every reference resolved; one that means nothing is refused and stays unresolved.

    After it every join has an ON: what USING or the lack of a condition stands for is written out. A join that could
    not be given one has none.
    """
    query = draft.query
    refusals = [*_check_sink(draft), *_check_aliases(draft), *_check_sources(draft)]
    relation, scope, more = _relation(draft, query.relation)
    items = tuple(item if isinstance(item, Star) else _item(item, scope) for item in query.items)
    for expr in (*(item.expr for item in query.items if isinstance(item, Item)), query.where):
        more += _misses(draft, expr, scope)
    where = None if query.where is None else resolved(query.where, scope)
    query = replace(query, relation=relation, items=items, where=where)
    return replace(draft, query=query, scope=scope).refusing([*refusals, *more])


def resolved(expr: Expr, scope: Scope) -> Expr:
    """The expression with every reference filled in that has a meaning."""
    args = tuple(resolved(arg, scope) for arg in expr.args)
    if not expr.refs:
        return replace(expr, args=args)
    found = [(ref, _meaning(expr, ref, scope)) for ref in expr.refs]
    op = found[0][1].op if expr.op == "column" else expr.op
    return replace(splice(expr, found), op=op)


def is_resolved(expr: Expr | None) -> bool:
    """True if there is an expression and every name in it means something."""
    return expr is not None and all(ref.source for ref in expr.references)


def _meaning(expr: Expr, ref: Reference, scope: Scope) -> Expr:
    found = scope.find(ref.parts)
    written = expr.text[ref.start : ref.end]
    here = replace(ref, start=0, end=len(written))
    if not isinstance(found, Expr):
        return Expr("column", text=written, refs=(here,))
    if found.op != "column":
        return found
    meant = found.refs[0]
    here = replace(here, source=meant.source, name=meant.name, path=meant.path)
    return Expr("column", text=written, refs=(here,))


def _item(item: Item, scope: Scope) -> Item:
    return replace(item, expr=resolved(item.expr, scope))


def _relation(draft: Draft, relation: Relation) -> tuple[Relation, Scope, list[Refusal]]:
    if isinstance(relation, Scan):
        source = draft.sources.get(relation.source.lower(), Source(relation.source, ()))
        return relation, scope_of(relation.alias, source), []
    left, left_scope, refusals = _relation(draft, relation.left)
    right, right_scope, more = _relation(draft, relation.right)
    join = replace(relation, left=left, right=right)
    refusals = refusals + more
    if join.using:
        on, scope, misses = _using(draft, join, left_scope, right_scope)
        return replace(join, on=on), scope, refusals + misses
    scope = left_scope.beside(right_scope)
    if join.on is None:
        on, misses = _by_key(draft, join, left_scope, right_scope)
        return replace(join, on=on), scope, refusals + misses
    return replace(join, on=resolved(join.on, scope)), scope, refusals + list(_misses(draft, join.on, scope))


def _using(draft: Draft, join: Join, left: Scope, right: Scope) -> tuple[Expr | None, Scope, list[Refusal]]:
    refusals, merged, equalities = list[Refusal](), list[Shown](), list[Expr]()
    for name in join.using:
        pair = [side.named(name) for side in (left, right)]
        for side, found in zip((left, right), pair, strict=True):
            miss = side.find((name,))
            if len(found) != 1 and isinstance(miss, Miss):
                refusals.append(draft.refusal(miss.condition, join.span, **miss.parameters))
        if any(len(found) != 1 for found in pair):
            continue
        (mine,), (theirs,) = pair
        equalities.append(Expr("=", (mine.expr, theirs.expr), span=join.span))
        kept = theirs if join.kind == "right" else mine
        merged.append(replace(kept, expr=coalesced(mine.expr, theirs.expr)) if join.kind == "full" else kept)
    names = {shown.name.lower() for shown in merged}
    rest = tuple(shown for shown in left.columns + right.columns if shown.name.lower() not in names)
    scope = Scope({**left.sources, **right.sources}, (*merged, *rest))
    whole = len(equalities) == len(join.using)
    on = equalities[0] if len(equalities) == 1 else Expr("and", tuple(equalities), span=join.span)
    return on if whole else None, scope, refusals


def _by_key(draft: Draft, join: Join, left: Scope, right: Scope) -> tuple[Expr | None, list[Refusal]]:
    pair = [side.named("_key") for side in (left, right)]
    if all(len(found) == 1 for found in pair):
        return Expr("=", (pair[0][0].expr, pair[1][0].expr), span=join.span), []
    refusals = list[Refusal]()
    for side, found in zip((left, right), pair, strict=True):
        if not found and side.is_whole:
            where = f"in {' or '.join(source.name for source in side.sources.values())}"
            hint = "a join without ON compares `_key`: add `ON` with a condition, or declare a column `_key`."
            refusals.append(draft.refusal("UNKNOWN_COLUMN", join.span, column="_key", where=where, suggestion=hint))
        elif len(found) > 1:
            miss = side.find(("_key",))
            assert isinstance(miss, Miss), "two columns of one name are ambiguous"
            refusals.append(draft.refusal(miss.condition, join.span, **miss.parameters))
    return None, refusals


def _misses(draft: Draft, expr: Expr | None, scope: Scope) -> Iterator[Refusal]:
    if expr is None:
        return
    for ref in expr.refs:
        found = scope.find(ref.parts)
        if isinstance(found, Miss):
            yield draft.refusal(found.condition, _span_of(draft, expr, ref), **found.parameters)
    for arg in expr.args:
        yield from _misses(draft, arg, scope)


def _span_of(draft: Draft, expr: Expr, ref: Reference) -> Span:
    span = expr.span
    # Only a text that stands in the script as it is tells where in the script a part of it stands.
    is_verbatim = span != NOWHERE and draft.script.text[span.start : span.end] == expr.text
    return Span(span.start + ref.start, span.start + ref.end) if is_verbatim else span


def _check_sink(draft: Draft) -> Iterator[Refusal]:
    into = draft.query.into
    sinks = [sink.name for sink in draft.script.sinks]
    if into is not None and into.lower() not in [name.lower() for name in sinks]:
        yield draft.refusal("UNKNOWN_SINK", draft.query.into_span, sink=into, suggestion=did_you_mean(into, sinks))


def _check_aliases(draft: Draft) -> Iterator[Refusal]:
    seen = dict[str, Scan]()
    for scan in scans(draft.query.relation):
        first = seen.setdefault(scan.alias.lower(), scan)
        if first is not scan:
            hint = f"give it another name, for example `{scan.source} AS {scan.alias}2`."
            before = f"the alias of {first.source}"
            yield draft.refusal("DUPLICATE_NAME", scan.span, name=scan.alias, before=before, hint=hint)


def _check_sources(draft: Draft) -> Iterator[Refusal]:
    names = [source.name for source in draft.sources.values()]
    for scan in scans(draft.query.relation):
        source = draft.sources.get(scan.source.lower())
        if source is None:
            suggestion = did_you_mean(scan.source, names)
            yield draft.refusal("UNKNOWN_SOURCE", scan.span, source=scan.source, suggestion=suggestion)
        elif source.kind == "table" and isinstance(draft.query.relation, Join):
            hint = "join streams: declare it with CREATE STREAM and a WATERMARK."
            yield draft.refusal(
                "UNSUPPORTED_STATEMENT", scan.span, what=f"A join with the table {scan.source}", hint=hint
            )
