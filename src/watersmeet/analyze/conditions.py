"""The passes over conditions: ON is taken apart into keys, parts over one side and the rest; WHERE moves down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from watersmeet.analyze.draft import Draft
from watersmeet.analyze.meaning import is_resolved
from watersmeet.errors import Refusal
from watersmeet.plan.expressions import ARITHMETIC, COMPARISONS, Expr, conjuncts
from watersmeet.plan.query import QueryWarning
from watersmeet.plan.relation import (
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedLeaf,
    AnalyzedRelation,
    ConditionalJoin,
    joins,
)
from watersmeet.plan.words import expression_in_words, kind_in_words

EVALUATED = frozenset({"and", "or", "not", "is_null", "negate"}) | COMPARISONS | ARITHMETIC
"""What can be evaluated across the sides while rows meet. Whatever is over one side, Spark evaluates before."""

SPLIT_HINT = "compare an expression over one side with an expression over the other, or {}."


def check_residual(draft: Draft, join: ConditionalJoin) -> Iterator[Refusal]:
    """The parts of a condition that decide which rows stay alone, and cannot be evaluated while rows meet."""
    if join.kind == "inner":
        # Spark evaluates it on the joined rows: whether a pair meets decides nothing else.
        return
    left, right = (draft.names_of(side.aliases) for side in (join.left, join.right))
    for part, expr in not_evaluated(join):
        yield draft.refusal(
            "UNSUPPORTED_CONDITION",
            expr.span if expr.span.end else part.span,
            kind=kind_in_words(join.kind),
            condition=expression_in_words(part),
            cause=f"an expression over both {left} and {right}",
            hint=SPLIT_HINT.format("use an INNER JOIN"),
        )


def not_evaluated(join: ConditionalJoin) -> Iterator[tuple[Expr, Expr]]:
    """The expressions over both sides that only Spark can evaluate, each after the part of the condition it is in."""
    left, right = frozenset(join.left.aliases), frozenset(join.right.aliases)
    return ((part, expr) for part in join.residual for expr in _not_evaluated(part, left, right))


def _not_evaluated(expr: Expr, left: frozenset[str], right: frozenset[str]) -> Iterator[Expr]:
    if expr.sources <= left or expr.sources <= right:
        return
    if expr.op not in EVALUATED:
        yield expr
        return
    for arg in expr.args:
        yield from _not_evaluated(arg, left, right)


def split_condition(draft: Draft) -> Draft:
    """The draft with the condition of each join in its parts."""
    if draft.relation is None:
        return draft
    relation = _split(draft.relation)
    conditional_joins = [join for join in joins(relation) if isinstance(join, ConditionalJoin)]
    refusals = list[Refusal]()
    for join in conditional_joins:
        family = draft.family_of(join)
        refusals += check_residual(draft, join) if family is None else family.check_condition(draft, join)
    # A join whose condition could not be resolved has no key either, but that is not what its author should hear.
    warnings = (
        [] if draft.refusals else [warned for join in conditional_joins for warned in _warn_cross_join(draft, join)]
    )
    return replace(draft, relation=relation).with_refusals(refusals).with_warnings(warnings)


def _split(relation: AnalyzedRelation) -> AnalyzedRelation:
    if isinstance(relation, AnalyzedLeaf):
        return relation
    relation = relation.with_inputs([_split(side) for side in relation.inputs])
    return _split_join_condition(relation) if isinstance(relation, ConditionalJoin) else relation


def _split_join_condition(relation: ConditionalJoin) -> ConditionalJoin:
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
    sides = {"left_only": tuple(left_only), "right_only": tuple(right_only)}
    return replace(relation, keys=tuple(keys), **sides, residual=tuple(residual))


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


def _warn_cross_join(draft: Draft, join: ConditionalJoin) -> Iterator[QueryWarning]:
    family = draft.family_of(join)
    reach = None if family is None or join.keys else family.comparison_scope(draft, join)
    if reach is not None:
        left, right = (draft.names_of(side.aliases) for side in (join.left, join.right))
        yield QueryWarning(f"No equality joins {left} with {right}, so every {reach}.", join.span)


def move_filters(draft: Draft) -> Draft:
    """The draft with each part of WHERE at the scan it speaks of, or behind the last join where it must stay.

    A part over one source may move unless a join pads that source with nulls, for then WHERE sees rows the scan does
    not, or the other rows of that source decide what becomes of a row: in a window, among versions, of equal times.
    """
    if draft.relation is None:
        return draft
    parts = tuple(part for part in conjuncts(draft.query.where) if is_resolved(part))
    free = _filterable_aliases(draft.relation)
    moves = [len(part.sources) == 1 and part.sources <= free for part in parts]
    moving = tuple(part for part, is_moved in zip(parts, moves, strict=True) if is_moved)
    staying = tuple(part for part, is_moved in zip(parts, moves, strict=True) if not is_moved)
    return replace(draft, relation=_push_filters(draft.relation, moving), where=staying)


def _filterable_aliases(relation: AnalyzedRelation) -> frozenset[str]:
    """The aliases whose rows may be dropped before the joins."""
    if isinstance(relation, AnalyzedLeaf):
        return frozenset({relation.alias})
    if isinstance(relation, AnalyzedLateral):
        return _filterable_aliases(relation.input) | {relation.alias}
    return frozenset(
        alias
        for port, side in enumerate(relation.inputs)
        if isinstance(relation, AnalyzedJoin) and relation.can_push_down_filter(port)
        for alias in _filterable_aliases(side)
    )


def _push_filters(relation: AnalyzedRelation, filters: tuple[Expr, ...]) -> AnalyzedRelation:
    """The relation with each filter at what has its alias."""
    if isinstance(relation, AnalyzedLeaf | AnalyzedLateral):
        own = tuple(part for part in filters if relation.alias in part.sources)
        relation = replace(relation, filters=(*relation.filters, *own))
    if isinstance(relation, AnalyzedLeaf):
        return relation
    return relation.with_inputs([_push_filters(side, filters) for side in relation.inputs])
