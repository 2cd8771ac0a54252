"""What the names in a relation mean: those in conditions, windows and match conditions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from watersmeet.analyze.column_types import type_of
from watersmeet.analyze.draft import Draft
from watersmeet.analyze.event_time import marked
from watersmeet.analyze.meaning import misses, resolved
from watersmeet.analyze.scope import KEY, Miss, Scope, Shown, coalesced, scope_of
from watersmeet.analyze.struct_type import element_of
from watersmeet.analyze.unions import check_union, merged
from watersmeet.catalog import Field, Source
from watersmeet.errors import Refusal
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import LEFT_ONLY, AsofJoin, Join, Lateral, Relation, Scan, SyncJoin, Union, Window
from watersmeet.plan.words import expression_in_words, kind_in_words

Named = tuple[Relation, Scope, list[Refusal]]

_TRUE = Expr("literal", text="true", value=True)


def named_relation(draft: Draft, relation: Relation) -> Named:
    """The relation with its names resolved, what can be named behind it, and the names that mean nothing."""
    match relation:
        case Scan():
            source = marked(draft.sources.get(relation.source.lower(), Source(relation.source, ())), relation)
            return relation, scope_of(relation.alias, source), []
        case Lateral():
            return _lateral(draft, relation)
        case Union():
            return relation, scope_of(relation.alias, merged(draft, relation)), list(check_union(draft, relation))
        case SyncJoin():
            return _sync(draft, relation)
        case AsofJoin():
            return _asof(draft, relation)
        case Join():
            return _join(draft, relation)


def _lateral(draft: Draft, lateral: Lateral) -> Named:
    """A lateral join: its array sees what stands before it, and its element is a column for what comes after."""
    below, scope, refusals = named_relation(draft, lateral.input)
    array = resolved(lateral.array, scope)
    refusals += misses(draft.script, lateral.array, scope)
    type_ = type_of(array, scope.sources) or ""
    element = element_of(type_)
    if element is None:
        reason, hint = f"it is {type_}, not an array.", "name an array, or make one: `array(a, b)`."
        text = f"`{expression_in_words(array)}`"
        refusals.append(draft.refusal("TYPE_MISMATCH", lateral.array.span, expression=text, reason=reason, hint=hint))
    source = Source(lateral.alias, (Field(lateral.alias, element or ""),), span=lateral.span)
    return replace(lateral, input=below, array=array), scope.beside(scope_of(lateral.alias, source)), refusals


def _sync(draft: Draft, join: SyncJoin) -> Named:
    scope, refusals = Scope(), list[Refusal]()
    for leaf in join.inputs:
        _, own, more = named_relation(draft, leaf)
        scope, refusals = scope.beside(own), refusals + more
    return join, scope, refusals


def _asof(draft: Draft, join: AsofJoin) -> Named:
    left, left_scope, refusals = named_relation(draft, join.left)
    _, right_scope, more = named_relation(draft, join.right)
    both = left_scope.beside(right_scope)
    asked = [expr for expr in (join.match, join.as_of) if expr is not None]
    refusals += [*more, *(miss for expr in asked for miss in misses(draft.script, expr, both))]
    join = replace(
        join,
        left=left,
        match=None if join.match is None else resolved(join.match, both),
        as_of=None if join.as_of is None else resolved(join.as_of, both),
    )
    if join.using:
        on, scope, missing = _using(draft, join, left_scope, right_scope)
        return replace(join, on=on), scope, refusals + missing
    on = join.on or _TRUE
    return replace(join, on=resolved(on, both)), both, [*refusals, *misses(draft.script, on, both)]


def _join(draft: Draft, join: Join) -> Named:
    left, left_scope, refusals = named_relation(draft, join.left)
    right, right_scope, more = named_relation(draft, join.right)
    join = replace(join, left=_windowed(left, left_scope), right=_windowed(right, right_scope))
    refusals += more
    if join.is_windowed:
        refusals += [*_window_misses(draft, left, left_scope, right_scope)]
        refusals += [*_window_misses(draft, right, right_scope, left_scope)]
    if join.using:
        on, scope, missing = _using(draft, join, left_scope, right_scope)
        return replace(join, on=on), scope, refusals + missing
    both = left_scope.beside(right_scope)
    scope = left_scope.before(right_scope, kind_in_words(join.kind)) if join.kind in LEFT_ONLY else both
    on = _TRUE if join.on is None and join.is_windowed else join.on
    if on is None:
        on, missing = _by_key(draft, join, left_scope, right_scope)
        return replace(join, on=on), scope, refusals + missing
    return replace(join, on=resolved(on, both)), scope, refusals + list(misses(draft.script, on, both))


def _windowed(side: Relation, scope: Scope) -> Relation:
    """The side with the names in its window resolved: they are columns of its own."""
    if not isinstance(side, Scan | Union) or side.window is None:
        return side
    window = side.window
    column = None if window.column is None else resolved(window.column, scope)
    partition_by = tuple(resolved(expr, scope) for expr in window.partition_by)
    return replace(side, window=replace(window, column=column, partition_by=partition_by))


def _window_misses(draft: Draft, side: Relation, own: Scope, other: Scope) -> Iterator[Refusal]:
    window = side.window if isinstance(side, Scan | Union) else None
    for expr in _named_in(window):
        for refusal in misses(draft.script, expr, own):
            is_other = any(isinstance(other.find(ref.parts), Expr) for ref in expr.references)
            names = " or ".join(source.name for source in own.sources.values())
            hint = f"a window sees its own side only: name a column of {names}."
            parameters = {**refusal.parameters, "suggestion": hint} if is_other else refusal.parameters
            yield replace(refusal, parameters=parameters)


def _named_in(window: Window | None) -> tuple[Expr, ...]:
    if window is None:
        return ()
    return window.partition_by if window.column is None else (window.column, *window.partition_by)


def _using(draft: Draft, join: Join | AsofJoin, left: Scope, right: Scope) -> tuple[Expr | None, Scope, list[Refusal]]:
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
    pair = [side.named(KEY) or side.unshown(KEY) for side in (left, right)]
    if all(len(found) == 1 for found in pair):
        left_key, right_key = (_asked_for_as_key(found[0].expr) for found in pair)
        return Expr("=", (left_key, right_key), span=join.span), []
    refusals = list[Refusal]()
    for side, found in zip((left, right), pair, strict=True):
        if not found and side.is_whole:
            where = f"in {' or '.join(source.name for source in side.sources.values())}"
            hint = "a join without ON compares `_key`: add `ON` with a condition, or declare a column `_key`."
            refusals.append(draft.refusal("UNKNOWN_COLUMN", join.span, column=KEY, where=where, suggestion=hint))
        elif len(found) > 1:
            miss = side.find((KEY,))
            assert isinstance(miss, Miss), "two columns of one name are ambiguous"
            refusals.append(draft.refusal(miss.condition, join.span, **miss.parameters))
    return None, refusals


def _asked_for_as_key(expr: Expr) -> Expr:
    """A column as if its author had written ``_key``, whatever its own name is."""
    return expr.map_references(lambda ref: replace(ref, parts=(ref.source, KEY))) if expr.op == "column" else expr
