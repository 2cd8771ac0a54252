"""Resolves the names in an expression, and the condition of a join: ON, USING, or the keys by default."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from watersmeet.catalog import NOWHERE, Span
from watersmeet.errors import Refusal
from watersmeet.logical.expressions import CLOSED, LISTED, Expr, Reference
from watersmeet.logical.nodes import LEFT_ONLY, Join, ParsedJoin, Relation, Script
from watersmeet.logical.passes.column_types import is_list
from watersmeet.logical.passes.draft import Draft, format_list
from watersmeet.logical.passes.scope import KEY, Scope, ScopeColumn, UnresolvedName, coalesce, splice
from watersmeet.logical.words import kind_in_words


def resolve_expression(expr: Expr, scope: Scope) -> Expr:
    """The expression with every reference filled in that has a meaning."""
    if not expr.refs and not expr.args:
        return expr
    parts = tuple(resolve_expression(part, scope) for part in expr.parts)
    if not expr.refs:
        return _rebuild(expr, parts, scope)
    replacements = [(ref, _resolve_reference(expr, ref, scope)) for ref in expr.refs]
    op = replacements[0][1].op if expr.op == "column" else expr.op
    return replace(splice(expr, replacements), op=op)


def _rebuild(expr: Expr, parts: tuple[Expr, ...], scope: Scope) -> Expr:
    """An expression of these parts, once they are resolved."""
    if expr.op != "or":
        return replace(expr, args=parts)
    is_written = expr.value == LISTED
    args = tuple(Expr("=", (parts[0], part), span=expr.span) for part in parts[1:]) if is_written else parts
    listed = is_list(args, scope.sources, is_written=is_written)
    return replace(expr, args=args, value=LISTED if listed else expr.value and CLOSED)


def is_resolved(expr: Expr | None) -> bool:
    """True if there is an expression and every name in it means something."""
    return expr is not None and all(ref.source for ref in expr.references)


def check_names(script: Script, expr: Expr | None, scope: Scope) -> Iterator[Refusal]:
    """The refusals of names that mean nothing, or too much."""
    if expr is None:
        return
    for ref in expr.refs:
        meaning = scope.find(ref.parts)
        if isinstance(meaning, UnresolvedName):
            yield Refusal(meaning.condition, meaning.parameters, script.place(_span_of(script, expr, ref)))
    for part in expr.parts:
        yield from check_names(script, part, scope)


def _resolve_reference(expr: Expr, ref: Reference, scope: Scope) -> Expr:
    meaning = scope.find(ref.parts)
    written = expr.text[ref.start : ref.end]
    here = replace(ref, start=0, end=len(written))
    if not isinstance(meaning, Expr):
        return Expr("column", text=written, refs=(here,))
    if meaning.op != "column":
        return meaning
    meant = meaning.refs[0]
    here = replace(here, source=meant.source, name=meant.name, path=meant.path)
    return Expr("column", text=written, refs=(here,))


def _span_of(script: Script, expr: Expr, ref: Reference) -> Span:
    if ref.span != NOWHERE:
        return ref.span
    span = expr.span
    # Only a verbatim text gives the position of its parts in the script.
    is_verbatim = span != NOWHERE and script.text[span.start : span.end] == expr.text
    return Span(span.start + ref.start, span.start + ref.end) if is_verbatim else span


ResolvedRelation = tuple[Relation, Scope, list[Refusal]]
"""A relation with its names resolved, its scope, and the refusals of unknown names."""

TRUE = Expr("literal", text="true", value=True)


def resolve_condition(
    draft: Draft, join: ParsedJoin, left: Scope, right: Scope, otherwise: Expr | None = None
) -> ResolvedRelation:
    """The join with its condition resolved; ``otherwise`` is what a join without one means, the same key by default."""
    scope = left.with_hidden(right, kind_in_words(join.kind)) if join.kind in LEFT_ONLY else left.combine(right)
    implied = join.implied if isinstance(join, Join) else "key"
    if implied == "natural":
        names = tuple(shown.name for shown in left.columns if right.find_columns(shown.name))
        if not names and left.is_whole and right.is_whole:
            sides = " with ".join(_names(side) for side in (left, right))
            hint = "write JOIN with ON and a condition, or CROSS JOIN for all pairs."
            construct = f"A NATURAL JOIN of {sides}, which have no column in common,"
            return replace(join, on=None), scope, [draft.refuse_unsupported(join.span, construct, hint)]
        join = replace(join, using=tuple(dict.fromkeys(names)))
    if join.using:
        return _resolve_using(draft, join, left, right, scope)
    on = join.on or (TRUE if implied == "where" else otherwise)
    if on is None:
        on, missing = _resolve_by_key(draft, join, left, right)
        return replace(join, on=on), scope, missing
    both = left.combine(right)
    return replace(join, on=resolve_expression(on, both)), scope, list(check_names(draft.script, on, both))


def _names(scope: Scope) -> str:
    return format_list(alias if source.name.startswith("#") else source.name for alias, source in scope.visible.items())


def _resolve_using(draft: Draft, join: ParsedJoin, left: Scope, right: Scope, scope: Scope) -> ResolvedRelation:
    refusals, using_columns, equalities = list[Refusal](), list[ScopeColumn](), list[Expr]()
    for name in join.using:
        pair = [side.find_columns(name) for side in (left, right)]
        for side, columns in zip((left, right), pair, strict=True):
            unresolved = side.find((name,))
            if len(columns) != 1 and isinstance(unresolved, UnresolvedName):
                example = f"ON {' = '.join(f'{s.alias}.{s.name}' for s in (*columns[:1], *pair[1][:1]))}"
                parameters = {**unresolved.parameters, "example": example}
                refusals.append(draft.refusal(unresolved.condition, join.span, **parameters))
        if any(len(columns) != 1 for columns in pair):
            continue
        (mine,), (theirs,) = pair
        equalities.append(Expr("=", (mine.expr, theirs.expr), span=join.span))
        column = theirs if join.kind == "right" else mine
        using_columns.append(replace(column, expr=coalesce(mine.expr, theirs.expr)) if join.kind == "full" else column)
    names = {shown.name.lower() for shown in using_columns}
    rest = tuple(shown for shown in scope.columns if shown.name.lower() not in names)
    scope = replace(scope, columns=(*using_columns, *rest))
    whole = len(equalities) == len(join.using)
    on = equalities[0] if len(equalities) == 1 else Expr("and", tuple(equalities), span=join.span)
    return replace(join, on=on if whole else None), scope, refusals


def _resolve_by_key(draft: Draft, join: ParsedJoin, left: Scope, right: Scope) -> tuple[Expr | None, list[Refusal]]:
    pair = [side.find_columns(KEY) or side.find_unlisted(KEY) for side in (left, right)]
    if all(len(columns) == 1 for columns in pair):
        left_key, right_key = (_as_key_reference(columns[0].expr) for columns in pair)
        return Expr("=", (left_key, right_key), span=join.span), []
    refusals = list[Refusal]()
    for side, columns in zip((left, right), pair, strict=True):
        if not columns and side.is_whole:
            where = f"in {' or '.join(source.name for source in side.sources.values())}"
            hint = "a join without ON compares `_key`: add `ON` with a condition, or declare a column `_key`."
            refusals.append(draft.refusal("UNKNOWN_COLUMN", join.span, column=KEY, where=where, suggestion=hint))
        elif len(columns) > 1:
            miss = side.find((KEY,))
            assert isinstance(miss, UnresolvedName), "two columns of one name are ambiguous"
            refusals.append(draft.refusal(miss.condition, join.span, **miss.parameters))
    return None, refusals


def _as_key_reference(expr: Expr) -> Expr:
    """A column as if its author had written ``_key``, whatever its own name is."""
    return expr.map_references(lambda ref: replace(ref, parts=(ref.source, KEY))) if expr.op == "column" else expr
