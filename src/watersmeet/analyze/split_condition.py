"""The pass that takes the condition of every join apart: keys, parts over one side, and the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from watersmeet.analyze.draft import Draft
from watersmeet.analyze.residual import check_residual
from watersmeet.errors import Refusal
from watersmeet.plan.expressions import Expr
from watersmeet.plan.relation import AnalyzedLeaf, AnalyzedRelation, ConditionalJoin, Warned, joins


def split_condition(draft: Draft) -> Draft:
    """The draft with the condition of each join in its parts."""
    if draft.relation is None:
        return draft
    relation = _split(draft.relation)
    found = [join for join in joins(relation) if isinstance(join, ConditionalJoin)]
    refusals = [refusal for join in found for refusal in _check(draft, join)]
    # A join whose condition could not be resolved has no key either, but that is not what its author should hear.
    warnings = [] if draft.refusals else [warned for join in found for warned in _warn(draft, join)]
    return replace(draft, relation=relation).refusing(refusals).warning(warnings)


def _split(relation: AnalyzedRelation) -> AnalyzedRelation:
    if isinstance(relation, AnalyzedLeaf):
        return relation
    relation = relation.with_inputs([_split(side) for side in relation.inputs])
    return _taken_apart(relation) if isinstance(relation, ConditionalJoin) else relation


def _taken_apart(relation: ConditionalJoin) -> ConditionalJoin:
    left, right = frozenset(relation.left.aliases), frozenset(relation.right.aliases)
    keys, left_only, right_only = list(relation.keys), list[Expr](), list[Expr]()
    residual = list[Expr]()
    for part in relation.residual:
        key = key_of(part, left, right)
        if part.op == "literal" and part.value is True:
            continue
        if key is not None:
            keys.append(key)
        elif not part.sources:
            # A constant holds for every row of both sides or for none, and which side is preserved must not matter.
            left_only.append(part)
            right_only.append(part)
        elif part.sources <= left:
            left_only.append(part)
        elif part.sources <= right:
            right_only.append(part)
        else:
            residual.append(part)
    return replace(
        relation,
        keys=tuple(keys),
        left_only=tuple(left_only),
        right_only=tuple(right_only),
        residual=tuple(residual),
    )


def key_of(part: Expr, left: frozenset[str], right: frozenset[str]) -> tuple[Expr, Expr] | None:
    """What an equality compares, the expression over the left aliases first; None for what is no key.

    >>> from watersmeet.plan.expressions import Reference
    >>> a, b = (Expr("column", text="id", refs=(Reference(("id",), 0, 2, alias, "id"),)) for alias in "ab")
    >>> key_of(Expr("=", (b, a)), frozenset({"a"}), frozenset({"b"})) == (a, b)
    True
    """
    if part.op != "=":
        return None
    a, b = part.args
    if not a.sources or not b.sources:
        return None
    if a.sources <= left and b.sources <= right:
        return a, b
    if b.sources <= left and a.sources <= right:
        return b, a
    return None


def _check(draft: Draft, join: ConditionalJoin) -> Iterator[Refusal]:
    family = draft.family_of(join)
    return check_residual(draft, join) if family is None else family.check_condition(draft, join)


def _warn(draft: Draft, join: ConditionalJoin) -> Iterator[Warned]:
    family = draft.family_of(join)
    reach = None if family is None or join.keys else family.reach(draft, join)
    if reach is not None:
        left, right = (draft.names_of(side.aliases) for side in (join.left, join.right))
        yield Warned(f"No equality joins {left} with {right}, so every {reach}.", join.span)
