"""What of a condition across both sides can be evaluated while rows meet."""

from __future__ import annotations

from collections.abc import Iterator

from watersmeet.analyze.draft import Draft
from watersmeet.errors import Refusal
from watersmeet.plan.expressions import ARITHMETIC, COMPARISONS, Expr
from watersmeet.plan.relation import ConditionalJoin
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
