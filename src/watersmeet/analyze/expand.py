"""The pass that turns the projection into the columns of the result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from watersmeet.analyze.draft import Draft
from watersmeet.analyze.meaning import is_resolved
from watersmeet.analyze.scope import KEY, VALUE, Shown, show
from watersmeet.analyze.sink_columns import assigned
from watersmeet.catalog import NOWHERE, Span
from watersmeet.errors import Refusal, did_you_mean
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import Item, Star, leaves
from watersmeet.plan.relation import Output
from watersmeet.plan.words import expression_in_words, word


@dataclass(frozen=True)
class _Column:
    """A column of the result whose name may still change: ``alias`` goes before it if others have the same name."""

    name: str
    expr: Expr
    span: Span
    alias: str | None = None


def expand(draft: Draft) -> Draft:
    """The draft with its outputs. Names that clash get their alias before them, unless AS gave them."""
    refusals, columns = list[Refusal](), list[_Column]()
    for item in draft.query.items:
        if isinstance(item, Item):
            columns += [_named(draft, item)] if is_resolved(item.expr) else []
        elif item.alias is not None and draft.scope.alias(item.alias) is None:
            refusals.append(_unknown(draft, item.alias, item.span))
        else:
            columns += [_Column(s.name, s.expr, item.span, s.alias) for s in _shown(draft, item)]
    told_apart = _told_apart(columns)
    selected = [(Output(column.name, column.expr), column.span) for column in told_apart]
    outputs, wrong = assigned(draft, selected)
    return replace(draft, outputs=outputs).refusing([*refusals, *_duplicates(draft, told_apart), *wrong])


def _unknown(draft: Draft, alias: str, span: Span) -> Refusal:
    """The refusal of ``alias.*`` for an alias that is not there, or that a join hides."""
    hidden = draft.scope.hint(alias) if alias.lower() in [name.lower() for name in draft.scope.hidden] else None
    if hidden is None:
        suggestion = did_you_mean(alias, draft.scope.visible)
        return draft.refusal("UNKNOWN_SOURCE", span, source=alias, suggestion=suggestion)
    where = f"in {draft.names_of(draft.scope.visible)}"
    return draft.refusal("UNKNOWN_COLUMN", span, column=f"{alias}.*", where=where, suggestion=hidden)


def _shown(draft: Draft, star: Star) -> tuple[Shown, ...]:
    if star.alias is None:
        return draft.scope.columns
    alias = draft.scope.alias(star.alias)
    assert alias is not None, "an unknown alias has been refused"
    source = draft.scope.sources[alias]
    return tuple(s for f in source.fields if not f.hidden and (s := show(alias, source, f.name)))


def _named(draft: Draft, item: Item) -> _Column:
    expr = item.expr
    if item.name is not None:
        return _Column(item.name, expr, expr.span)
    if expr.op == "column":
        [ref] = expr.refs
        # A column of the join itself has no source whose alias could go before it.
        alias = ref.source if ref.source in draft.scope.sources else None
        name = KEY if ref.parts and ref.parts[-1].lower() == KEY else (ref.name, *ref.path)[-1]
        return _Column(name, expr, expr.span, alias)
    written = draft.script.text[expr.span.start : expr.span.end] if expr.span != NOWHERE else ""
    # A facet of several columns is an expression that its author wrote as a column.
    facet = written.rsplit(".", 1)[-1].strip("` ").lower()
    name = facet if facet in (KEY, VALUE) else written or expression_in_words(expr)
    return _Column(name, expr, expr.span)


def _told_apart(columns: list[_Column]) -> list[_Column]:
    owners = {(column.name.lower(), column.alias) for column in columns}
    clashes = Counter(name for name, _ in owners)
    return [
        replace(column, name=f"{column.alias}_{column.name}")
        if column.alias is not None and clashes[column.name.lower()] > 1
        else column
        for column in columns
    ]


def _duplicates(draft: Draft, columns: list[_Column]) -> list[Refusal]:
    if len(draft.scope.sources) < len(leaves(draft.query.relation)):
        # Two sources under one alias have been refused, and all their columns would follow.
        return []
    refusals, seen = list[Refusal](), dict[str, _Column]()
    for column in columns:
        before = seen.setdefault(column.name.lower(), column)
        if before is not column:
            hint = f"name one of them, for example `AS {word(f'{column.name}_2')}`."
            shown = f"`{expression_in_words(before.expr)}`"
            refusal = draft.refusal("DUPLICATE_NAME", column.span, name=column.name, before=shown, hint=hint)
            refusals.append(refusal)
    return refusals
