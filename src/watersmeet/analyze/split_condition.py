"""The pass that takes the condition of every join apart: keys, parts over one side, and the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from watersmeet.analyze.asof_join import check_versions
from watersmeet.analyze.draft import Draft
from watersmeet.errors import Refusal
from watersmeet.plan.analyzed import (
    AnalyzedAsofJoin,
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedLookupJoin,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedSyncJoin,
    AnalyzedTableJoin,
    AnalyzedUnion,
    AnalyzedView,
    AnalyzedWindowJoin,
    Warned,
    aliases,
    inputs,
)
from watersmeet.plan.expressions import ARITHMETIC, COMPARISONS, Expr
from watersmeet.plan.words import expression_in_words, kind_in_words

EVALUATED = frozenset({"and", "or", "not", "is_null", "negate"}) | COMPARISONS | ARITHMETIC
"""What can be evaluated across the sides while rows meet. Whatever is over one side, Spark evaluates before."""

_SPLIT_HINT = "compare an expression over one side with an expression over the other, or {}."

Conditional = AnalyzedJoin | AnalyzedWindowJoin | AnalyzedAsofJoin | AnalyzedLookupJoin | AnalyzedTableJoin
"""The joins that have a condition."""

_T = TypeVar("_T", AnalyzedJoin, AnalyzedWindowJoin, AnalyzedAsofJoin, AnalyzedLookupJoin, AnalyzedTableJoin)


def split_condition(draft: Draft) -> Draft:
    """The draft with the condition of each join in its parts."""
    if draft.relation is None:
        return draft
    relation = _split(draft.relation)
    joins = tuple(_joins(relation))
    refusals = [refusal for join in joins for refusal in _check_residual(draft, join)]
    # A join whose condition could not be resolved has no key either, but that is not what its author should hear.
    warnings = [] if draft.refusals else [warned for join in joins for warned in _check_keys(draft, join)]
    return replace(draft, relation=relation).refusing(refusals).warning(warnings)


def _split(relation: AnalyzedRelation) -> AnalyzedRelation:
    match relation:
        case AnalyzedScan() | AnalyzedView() | AnalyzedUnion() | AnalyzedSyncJoin():
            return relation
        case AnalyzedLateral():
            return replace(relation, input=_split(relation.input))
        case AnalyzedWindowJoin():
            return _taken_apart(relation)
        case AnalyzedAsofJoin():
            return _taken_apart(replace(relation, left=_split(relation.left)))
        case AnalyzedJoin():
            return _taken_apart(replace(relation, left=_split(relation.left), right=_split(relation.right)))
        case AnalyzedLookupJoin():
            return _taken_apart(replace(relation, left=_split(relation.left), right=_split(relation.right)))
        case AnalyzedTableJoin():
            return _taken_apart(replace(relation, left=_split(relation.left), right=_split(relation.right)))


def _taken_apart(relation: _T) -> _T:
    left, right = frozenset(aliases(relation.left)), frozenset(aliases(relation.right))
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


def _joins(relation: AnalyzedRelation) -> Iterator[Conditional]:
    if isinstance(relation, AnalyzedView):
        # Its conditions were looked at when it was declared.
        return
    for side in inputs(relation):
        yield from _joins(side)
    if isinstance(relation, Conditional):
        yield relation


def _check_residual(draft: Draft, join: Conditional) -> Iterator[Refusal]:
    if isinstance(join, AnalyzedAsofJoin):
        yield from check_versions(draft, join)
        return
    is_counted = isinstance(join, AnalyzedWindowJoin) and join.punctuated
    if join.kind == "inner" and not is_counted:
        # Spark evaluates it on the joined rows: whether a pair meets decides nothing else.
        return
    left, right = aliases(join.left), aliases(join.right)
    for part in join.residual:
        for expr in _not_evaluated(part, frozenset(left), frozenset(right)):
            place = expr.span if expr.span.end else part.span
            text = expression_in_words(part)
            if join.kind == "inner":
                what, hint = f"`_trigger`, `_seq` or `_last` beside `{text}`", _SPLIT_HINT.format("leave them out")
                yield draft.refusal("UNSUPPORTED_STATEMENT", place, what=what, hint=hint)
                continue
            yield draft.refusal(
                "UNSUPPORTED_CONDITION",
                place,
                kind=kind_in_words(join.kind),
                condition=text,
                cause=f"an expression over both {draft.names_of(left)} and {draft.names_of(right)}",
                hint=_SPLIT_HINT.format("use an INNER JOIN"),
            )


def _not_evaluated(expr: Expr, left: frozenset[str], right: frozenset[str]) -> Iterator[Expr]:
    if expr.sources <= left or expr.sources <= right:
        return
    if expr.op not in EVALUATED:
        yield expr
        return
    for arg in expr.args:
        yield from _not_evaluated(arg, left, right)


def _check_keys(draft: Draft, join: Conditional) -> Iterator[Warned]:
    if not join.keys and not isinstance(join, AnalyzedAsofJoin):
        left, right = (draft.names_of(aliases(side)) for side in (join.left, join.right))
        message = f"No equality joins {left} with {right}, so every {_reach(draft, join)}."
        yield Warned(message, join.span)


def _reach(draft: Draft, join: AnalyzedJoin | AnalyzedWindowJoin | AnalyzedLookupJoin | AnalyzedTableJoin) -> str:
    """How much each row is compared with where no key tells."""
    match join:
        case AnalyzedJoin():
            return "row is compared with all within its bounds"
        case AnalyzedWindowJoin():
            return "row is compared with the whole window of the other side"
        case AnalyzedLookupJoin():
            table = join.left if join.table == "left" else join.right
            return f"row of the stream is compared with the whole table {draft.names_of(aliases(table))}"
        case AnalyzedTableJoin():
            return "change is compared with the whole table of the other side (block-nested)"
