"""The pass that moves parts of WHERE into the conditions of inner joins, where they mean the same.

The sources of a list (``FROM a, b``) are joined by what WHERE says of them, in an order in which comparisons join each
with those before it. Other joins get what WHERE says of their sides, a bound on times for example, where the query is
refused without it; every other WHERE stays where it is written.
"""

from __future__ import annotations

from dataclasses import replace

from watersmeet.logical.expressions import Expr, conjuncts
from watersmeet.logical.nodes import Join, Lateral, ParsedJoin, Relation, aliases
from watersmeet.logical.passes.build_relation import build_relation
from watersmeet.logical.passes.comparisons import compare
from watersmeet.logical.passes.conditions import key_of
from watersmeet.logical.passes.draft import Draft
from watersmeet.logical.passes.meaning import is_resolved
from watersmeet.logical.passes.watermarks import assume_watermarks

Parts = tuple[Expr, ...]
"""Parts of a condition that all must hold."""


def move_conditions(draft: Draft) -> Draft:
    """The draft with parts of its WHERE in the conditions of its joins."""
    parts = conjuncts(draft.query.where)
    movable = tuple(part for part in parts if is_resolved(part) and len(part.sources) > 1)
    relation = _order_lists(draft, draft.query.relation, movable)
    draft = _place(draft, relation, parts, movable, only_lists=True)
    if draft.refusals or not any(part in movable for part in conjuncts(draft.query.where)):
        return draft
    moved = _place(draft, draft.query.relation, conjuncts(draft.query.where), movable, only_lists=False)
    # What runs as it is written stays so, and with it the state of the query.
    return moved if _count_refusals(moved) < _count_refusals(draft) else draft


def _count_refusals(draft: Draft) -> int:
    return len(build_relation(assume_watermarks(draft)).refusals)


def _place(draft: Draft, relation: Relation, parts: Parts, movable: Parts, *, only_lists: bool) -> Draft:
    staying = list[Expr]()
    for part in parts:
        placed = _with_part(relation, part, only_lists=only_lists) if part in movable else None
        if placed is None:
            staying.append(part)
        else:
            relation = placed
    if len(staying) == len(parts):
        return replace(draft, query=replace(draft.query, relation=relation))
    return replace(draft, query=replace(draft.query, relation=relation, where=all_of(staying)))


def all_of(parts: list[Expr]) -> Expr | None:
    """The condition that all of these hold; None for none."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return Expr("and", tuple(parts), span=parts[0].span.to(parts[-1].span))


def _with_part(relation: Relation, part: Expr, *, only_lists: bool) -> Relation | None:
    """The relation with a condition in the lowest inner join that has all its sources; None if none may have it."""
    if not isinstance(relation, ParsedJoin | Lateral):
        return None
    first, *others = relation.inputs
    if part.sources <= frozenset(aliases(first)):
        # Rows of a padded side are also in the result where the condition is not true of them.
        is_padded = isinstance(relation, ParsedJoin) and relation.kind in ("right", "full")
        below = None if is_padded else _with_part(first, part, only_lists=only_lists)
        return None if below is None else relation.with_inputs([below, *others])
    if not isinstance(relation, Join) or relation.kind != "inner" or not part.sources <= frozenset(aliases(relation)):
        return None
    is_place = relation.on is not None and (relation.implied == "where" or not only_lists)
    return replace(relation, on=all_of([*conjuncts(relation.on), part])) if is_place else None


def _order_lists(draft: Draft, relation: Relation, parts: Parts) -> Relation:
    """The relation with the sources of each list in an order in which conditions join them, streams first."""
    if not isinstance(relation, Join) or relation.implied != "where":
        return relation.with_inputs([_order_lists(draft, side, parts) for side in relation.inputs])
    first, listed = _flatten(relation)
    first = _order_lists(draft, first, parts)
    if not relation.is_plain or any(join.within is not None for join in listed):
        return relation
    sides = [first, *(join.right for join in listed)]
    start = next((side for side in sides if draft.kind(side) == "stream"), first)
    rest = [side for side in sides if side is not start]
    ordered = start
    for join in listed:
        known = frozenset(aliases(ordered))
        # The first of those that most comparisons of columns join.
        side = max(rest, key=lambda side: _comparison_count(known, frozenset(aliases(side)), parts))
        rest.remove(side)
        ordered = replace(join, left=ordered, right=side)
    return ordered


def _comparison_count(known: frozenset[str], side: frozenset[str], parts: Parts) -> int:
    joining = (part for part in parts if part.sources <= known | side and part.sources & known and part.sources & side)
    return sum(key_of(part, known, side) is not None or compare(part) is not None for part in joining)


def _flatten(relation: Join) -> tuple[Relation, list[Join]]:
    """The first relation of a list, and the joins with the others."""
    joins = list[Join]()
    inner: Relation = relation
    while isinstance(inner, Join) and inner.implied == "where":
        joins.append(inner)
        inner = inner.left
    return inner, joins[::-1]
