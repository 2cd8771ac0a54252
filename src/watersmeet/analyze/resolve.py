"""The pass that finds out what every name means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from watersmeet.analyze.draft import Draft
from watersmeet.analyze.meaning import misses, resolved
from watersmeet.analyze.scope import Miss, Scope, Shown, coalesced, scope_of
from watersmeet.analyze.unions import check_union, merged
from watersmeet.catalog import Source, Span
from watersmeet.errors import Refusal, did_you_mean
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import LEFT_ONLY, Item, Join, Relation, Scan, Star, Union, leaves, scans
from watersmeet.plan.words import kind_in_words


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
        more += misses(draft.script, expr, scope)
    where = None if query.where is None else resolved(query.where, scope)
    query = replace(query, relation=relation, items=items, where=where)
    return replace(draft, query=query, scope=scope).refusing([*refusals, *more])


def _item(item: Item, scope: Scope) -> Item:
    return replace(item, expr=resolved(item.expr, scope))


def _relation(draft: Draft, relation: Relation) -> tuple[Relation, Scope, list[Refusal]]:
    if isinstance(relation, Scan):
        source = draft.sources.get(relation.source.lower(), Source(relation.source, ()))
        return relation, scope_of(relation.alias, source), []
    if isinstance(relation, Union):
        return relation, scope_of(relation.alias, merged(draft, relation)), list(check_union(draft, relation))
    left, left_scope, refusals = _relation(draft, relation.left)
    right, right_scope, more = _relation(draft, relation.right)
    join = replace(relation, left=left, right=right)
    refusals = refusals + more
    if join.using:
        on, scope, missing = _using(draft, join, left_scope, right_scope)
        return replace(join, on=on), scope, refusals + missing
    both = left_scope.beside(right_scope)
    scope = left_scope.before(right_scope, kind_in_words(join.kind)) if join.kind in LEFT_ONLY else both
    if join.on is None:
        on, missing = _by_key(draft, join, left_scope, right_scope)
        return replace(join, on=on), scope, refusals + missing
    return replace(join, on=resolved(join.on, both)), scope, refusals + list(misses(draft.script, join.on, both))


def _using(draft: Draft, join: Join, left: Scope, right: Scope) -> tuple[Expr | None, Scope, list[Refusal]]:
    refusals, together, equalities = list[Refusal](), list[Shown](), list[Expr]()
    for name in join.using:
        pair = [side.named(name) for side in (left, right)]
        for side, found in zip((left, right), pair, strict=True):
            miss = side.find((name,))
            if len(found) != 1 and isinstance(miss, Miss):
                example = f"ON {' = '.join(f'{s.alias}.{s.name}' for s in (*found[:1], *pair[1][:1]))}"
                parameters = {**miss.parameters, "example": example}
                refusals.append(draft.refusal(miss.condition, join.span, **parameters))
        if any(len(found) != 1 for found in pair):
            continue
        (mine,), (theirs,) = pair
        equalities.append(Expr("=", (mine.expr, theirs.expr), span=join.span))
        kept = theirs if join.kind == "right" else mine
        together.append(replace(kept, expr=coalesced(mine.expr, theirs.expr)) if join.kind == "full" else kept)
    names = {shown.name.lower() for shown in together}
    is_left_only = join.kind in LEFT_ONLY
    scope = left.before(right, kind_in_words(join.kind)) if is_left_only else left.beside(right)
    rest = tuple(shown for shown in scope.columns if shown.name.lower() not in names)
    scope = replace(scope, columns=(*together, *rest))
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


def _check_sink(draft: Draft) -> Iterator[Refusal]:
    query = draft.query
    sinks = [sink.name for sink in draft.script.sinks]
    for into, span in ((query.into, query.into_span), (query.late_into, query.late_into_span)):
        if into is not None and into.lower() not in [name.lower() for name in sinks]:
            yield draft.refusal("UNKNOWN_SINK", span, sink=into, suggestion=did_you_mean(into, sinks))
    if query.late_into is None:
        return
    if query.late_into.lower() == (query.into or "").lower():
        hint = "declare a sink of their own with CREATE SINK: late rows have other columns than the result."
        yield _unsupported(draft, query.late_into_span, "LATE INTO the sink of the result", hint)
    if not isinstance(query.relation, Join):
        hint = "leave LATE INTO out: rows are late for a join."
        yield _unsupported(draft, query.late_into_span, "LATE INTO without a join", hint)


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
    for scan in scans(draft.query.relation):
        source = draft.sources.get(scan.source.lower())
        if source is None:
            suggestion = did_you_mean(scan.source, names)
            yield draft.refusal("UNKNOWN_SOURCE", scan.span, source=scan.source, suggestion=suggestion)
        elif source.kind == "table" and not isinstance(draft.query.relation, Scan):
            what = "join" if isinstance(draft.query.relation, Join) else "union"
            hint = f"{what} streams: declare it with CREATE STREAM and a WATERMARK."
            yield _unsupported(draft, scan.span, f"A {what} with the table {scan.source}", hint)
