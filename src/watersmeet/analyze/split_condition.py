"""The pass that takes the condition of every join apart: keys, parts over one side, and the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from watersmeet.analyze.asof_join import check_versions
from watersmeet.analyze.draft import Draft
from watersmeet.errors import Refusal
from watersmeet.families.asof.relation import AnalyzedAsofJoin
from watersmeet.families.changelog.relation import AnalyzedTableJoin
from watersmeet.families.lookup.relation import AnalyzedLookupJoin
from watersmeet.families.window.relation import AnalyzedWindowJoin
from watersmeet.plan.expressions import ARITHMETIC, COMPARISONS, Expr
from watersmeet.plan.relation import (
    AnalyzedLeaf,
    AnalyzedRelation,
    AnalyzedView,
    ConditionalJoin,
    Warned,
)
from watersmeet.plan.words import expression_in_words, kind_in_words

EVALUATED = frozenset({"and", "or", "not", "is_null", "negate"}) | COMPARISONS | ARITHMETIC
"""What can be evaluated across the sides while rows meet. Whatever is over one side, Spark evaluates before."""

_SPLIT_HINT = "compare an expression over one side with an expression over the other, or {}."


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


def _joins(relation: AnalyzedRelation) -> Iterator[ConditionalJoin]:
    if isinstance(relation, AnalyzedView):
        # Its conditions were looked at when it was declared.
        return
    for side in relation.inputs:
        yield from _joins(side)
    if isinstance(relation, ConditionalJoin):
        yield relation


def _check_residual(draft: Draft, join: ConditionalJoin) -> Iterator[Refusal]:
    if isinstance(join, AnalyzedAsofJoin):
        yield from check_versions(draft, join)
        return
    is_counted = isinstance(join, AnalyzedWindowJoin) and join.punctuated
    if join.kind == "inner" and not is_counted:
        # Spark evaluates it on the joined rows: whether a pair meets decides nothing else.
        return
    left, right = join.left.aliases, join.right.aliases
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


def _check_keys(draft: Draft, join: ConditionalJoin) -> Iterator[Warned]:
    if not join.keys and not isinstance(join, AnalyzedAsofJoin):
        left, right = (draft.names_of(side.aliases) for side in (join.left, join.right))
        message = f"No equality joins {left} with {right}, so every {_reach(draft, join)}."
        yield Warned(message, join.span)


def _reach(draft: Draft, join: ConditionalJoin) -> str:
    """How much each row is compared with where no key tells."""
    match join:
        case AnalyzedWindowJoin():
            return "row is compared with the whole window of the other side"
        case AnalyzedLookupJoin():
            table = join.left if join.table == "left" else join.right
            return f"row of the stream is compared with the whole table {draft.names_of(table.aliases)}"
        case AnalyzedTableJoin():
            return "change is compared with the whole table of the other side (block-nested)"
        case _:
            return "row is compared with all within its bounds"
