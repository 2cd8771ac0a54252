"""What the condition of a join means: ON, the columns of USING, or the keys where nothing is said."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.analyze.draft import Draft
from watersmeet.analyze.meaning import misses, resolved
from watersmeet.analyze.scope import KEY, Miss, Scope, Shown, coalesced
from watersmeet.errors import Refusal
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import LEFT_ONLY, AskedJoin, Relation
from watersmeet.plan.words import kind_in_words

Named = tuple[Relation, Scope, list[Refusal]]
"""A relation with its names resolved, what can be named behind it, and the names that mean nothing."""

TRUE = Expr("literal", text="true", value=True)


def named_condition(draft: Draft, join: AskedJoin, left: Scope, right: Scope, otherwise: Expr | None = None) -> Named:
    """The join with its condition resolved; ``otherwise`` is what a join without one means, the same key by default."""
    scope = left.before(right, kind_in_words(join.kind)) if join.kind in LEFT_ONLY else left.beside(right)
    if join.using:
        return _using(draft, join, left, right, scope)
    on = join.on or otherwise
    if on is None:
        on, missing = _by_key(draft, join, left, right)
        return replace(join, on=on), scope, missing
    both = left.beside(right)
    return replace(join, on=resolved(on, both)), scope, list(misses(draft.script, on, both))


def _using(draft: Draft, join: AskedJoin, left: Scope, right: Scope, scope: Scope) -> Named:
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
    rest = tuple(shown for shown in scope.columns if shown.name.lower() not in names)
    scope = replace(scope, columns=(*together, *rest))
    whole = len(equalities) == len(join.using)
    on = equalities[0] if len(equalities) == 1 else Expr("and", tuple(equalities), span=join.span)
    return replace(join, on=on if whole else None), scope, refusals


def _by_key(draft: Draft, join: AskedJoin, left: Scope, right: Scope) -> tuple[Expr | None, list[Refusal]]:
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
