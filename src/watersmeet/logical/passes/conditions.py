"""The passes over conditions: split ON into keys, one-sided parts and the rest; find skewed keys; move WHERE down.

Refusals that several families share are here too: sides that are tables, times that do not compare, wrong constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from watersmeet.catalog import NOWHERE, Amount, Source, Span
from watersmeet.errors import Refusal, did_you_mean
from watersmeet.logical.expressions import ARITHMETIC, COMPARISONS, Expr, conjuncts
from watersmeet.logical.nodes import Join, Relation, SkewHint, Values
from watersmeet.logical.passes.column_types import EventTimeColumn, can_hold_constant, fits, type_of, wrong_unit
from watersmeet.logical.passes.comparisons import Comparison
from watersmeet.logical.passes.draft import Draft, format_list
from watersmeet.logical.passes.meaning import is_resolved
from watersmeet.logical.query import QueryWarning
from watersmeet.logical.relation import (
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedLeaf,
    AnalyzedRelation,
    ConditionalJoin,
    SkewedSide,
    joins,
    leaves,
)
from watersmeet.logical.words import amount_in_words, expression_in_words, kind_in_words, sources_by_alias
from watersmeet.schema import INTEGERS

EVALUATED = frozenset({"and", "or", "not", "is_null", "negate"}) | COMPARISONS | ARITHMETIC
"""The operators that the kernel evaluates across the sides. Spark evaluates expressions over one side before."""

SPLIT_HINT = "compare an expression over one side with an expression over the other, or {}."


def check_residual(draft: Draft, join: ConditionalJoin) -> Iterator[Refusal]:
    """Refuse parts of a condition that determine which rows are unmatched, and that the kernel cannot evaluate."""
    if join.kind == "inner":
        # Spark evaluates it on the joined rows: an inner join has no unmatched rows.
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
        if key is not None and relation.is_key(key):
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
    """The operands of an equality, the expression over the left aliases first; None if it is not a key.

    >>> from watersmeet.logical.expressions import Reference
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
    # A scalar subquery has one row.
    is_scalar = not join.expressions and all(alias.startswith("#") for alias in join.right.aliases)
    reach = None if family is None or join.keys or is_scalar else family.comparison_scope(draft, join)
    if reach is not None:
        left, right = (draft.names_of(side.aliases) for side in (join.left, join.right))
        yield QueryWarning(f"No equality joins {left} with {right}, so every {reach}.", join.span)


def apply_hints(draft: Draft) -> Draft:
    """The draft with the hints of the query at the joins that they are about.

    A hint never changes the result. One that no join can follow is refused, so that its author does not count on it.
    """
    relation, refusals = draft.relation, list[Refusal]()
    if relation is None:
        return draft
    for hint in _hints(draft.query.relation):
        conditional_joins = (join for join in joins(relation) if isinstance(join, ConditionalJoin))
        sides = [(join, side) for join in conditional_joins if (side := _side_with_skew(join, hint)) is not None]
        reasons = [reason for join, side in sides if (reason := _why_not_followed(draft, join, side)) is not None]
        if not sides and not draft.refusals:
            reasons = [f"no join compares {hint.relation}.{hint.column} with = to a column of its other side"]
        refusals += (_refuse_hint(draft, hint, reason) for reason in reasons[:1])
        relation = relation if reasons else _with_skew(relation, sides)
    return replace(draft, relation=relation).with_refusals(refusals)


def _hints(relation: Relation) -> Iterator[SkewHint]:
    if isinstance(relation, Join):
        yield from relation.hints
    for side in relation.inputs:
        yield from _hints(side)


def _side_with_skew(join: ConditionalJoin, hint: SkewHint) -> SkewedSide | None:
    """The side of a join that a hint is about."""
    sides = ((port, number, expr) for number, pair in enumerate(join.keys) for port, expr in enumerate(pair))
    return next((SkewedSide(port, number, hint.values) for port, number, expr in sides if _is_column(expr, hint)), None)


def _is_column(expr: Expr, hint: SkewHint) -> bool:
    names = (hint.relation.lower(), hint.column.lower())
    ref = expr.refs[0] if expr.op == "column" and not expr.refs[0].path else None
    return ref is not None and (ref.source.lower(), ref.name.lower()) == names


def _why_not_followed(draft: Draft, join: ConditionalJoin, side: SkewedSide) -> str | None:
    """The reason why a join cannot follow a hint."""
    family = draft.family_of(join)
    reason = None if family is None else family.why_not_skewed(join, side.port)
    if reason is not None:
        return reason
    if join.skew is not None:
        return "another hint is about the same join; name all values in one"
    expr = join.keys[side.key][side.port]
    type_ = type_of(expr, sources_by_alias(join.inputs[side.port]))
    if type_ is None:
        return None
    is_text = type_.upper() == "STRING"
    if not is_text and type_.upper() not in INTEGERS:
        return f"{expression_in_words(expr)} is of type {type_}; keys of a hint are integers or strings"
    if any(isinstance(value, str) != is_text for value in side.values):
        return f"{expression_in_words(expr)} is of type {type_}, and a value of the hint is not"
    return None


def _with_skew(relation: AnalyzedRelation, sides: list[tuple[ConditionalJoin, SkewedSide]]) -> AnalyzedRelation:
    """The relation, in which these joins know the side whose rows are spread."""
    if isinstance(relation, AnalyzedLeaf):
        return relation
    skew = next((side for join, side in sides if join is relation), None)
    relation = relation.with_inputs([_with_skew(side, sides) for side in relation.inputs])
    return replace(relation, skew=skew) if skew is not None and isinstance(relation, ConditionalJoin) else relation


def _refuse_hint(draft: Draft, hint: SkewHint, reason: str) -> Refusal:
    side, column = hint.relation, hint.column
    name = f"SKEW('{side}', '{column}', ...)"
    return draft.refusal("WRONG_HINT", hint.span, name=name, reason=reason, hint=_correct_hint(draft, hint))


def _correct_hint(draft: Draft, hint: SkewHint) -> str:
    """The text to write for a hint: another name where its own is unknown."""
    alias = draft.scope.alias(hint.relation)
    if alias is None:
        return did_you_mean(hint.relation, draft.scope.visible)
    fields = [field.name for field in draft.scope.sources[alias].fields]
    is_known = hint.column.lower() in [name.lower() for name in fields]
    return "leave it out: the result is the same." if is_known else did_you_mean(hint.column, fields)


def move_filters(draft: Draft) -> Draft:
    """The draft with each part of WHERE at the scan it speaks of, or behind the last join where it must stay.

    A part over one source may move unless a join pads that source with nulls, for then WHERE sees rows the scan does
    not, or the other rows of that source decide the outcome of a row: in a window, among versions, of equal times.
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
    """The relation with each filter at the relation with its alias."""
    if isinstance(relation, AnalyzedLeaf | AnalyzedLateral):
        own = tuple(part for part in filters if relation.alias in part.sources)
        relation = replace(relation, filters=(*relation.filters, *own))
    if isinstance(relation, AnalyzedLeaf):
        return relation
    return relation.with_inputs([_push_filters(side, filters) for side in relation.inputs])


def check_table_sides(draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation) -> Iterator[Refusal]:
    """Refuse WITHIN in a join with a table."""
    if join.within is None or not has_known_sources(left, right):
        return
    tables = [draft.names_of(side.aliases) for side in (left, right) if side.result == "table"]
    yield draft.refusal(
        "INCOMPATIBLE_JOIN",
        join.within.span,
        **names_of(draft, join, left, right),
        reason="cannot have a time bound: rows of a table stay until they are replaced or deleted",
        cause=f"{format_list(tables)} {'is a table' if len(tables) == 1 else 'are tables'}",
        hint="leave WITHIN out.",
    )


def has_known_sources(left: AnalyzedRelation, right: AnalyzedRelation) -> bool:
    """Whether all sources are declared: an undeclared one may be a stream or a table."""
    return all(leaf.source.fields for side in (left, right) for leaf in leaves(side))


def names_of(draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation) -> dict[str, str]:
    """A join as messages speak of it."""
    sides = {"left": draft.names_of(left.aliases), "right": draft.names_of(right.aliases)}
    return {"kind": kind_in_words(join.kind), **sides}


def check_pair(
    draft: Draft, comparison: Comparison, high: EventTimeColumn, low: EventTimeColumn, span: Span
) -> Refusal | None:
    """The reason why two times and the constants between them cannot be compared; None if they can."""
    refusal = check_families(draft, high, low, span)
    misfit = comparison.misfit(high.family)
    if refusal is not None or misfit is None:
        return refusal
    return _wrong_unit(draft, misfit, high, span)


def check_within(
    draft: Draft, amount: Amount, left: EventTimeColumn, right: EventTimeColumn, span: Span
) -> Refusal | None:
    """The reason why two times cannot lie within that amount of each other; None if they can."""
    refusal = check_families(draft, right, left, span)
    if refusal is not None or fits(amount, left.family):
        return refusal
    return _wrong_unit(draft, amount, left, span)


def check_families(draft: Draft, time: EventTimeColumn, other: EventTimeColumn, span: Span) -> Refusal | None:
    """The reason why two times cannot be compared; None if they can."""
    if time.family == other.family:
        return None
    wanted = other if time.family == "date" else time
    return draft.refusal(
        "WRONG_TIME_UNIT",
        span,
        what=f"`{time}` of type {time.type}",
        column=other,
        type=other.type,
        cause=f"compares {time.type} with {other.type}",
        hint=f"cast one of them in its source, so that both are {wanted.type}.",
    )


def _wrong_unit(draft: Draft, amount: Amount, time: EventTimeColumn, span: Span) -> Refusal:
    # The sign of a constant depends on its side of the comparison and does not matter here.
    size = abs(amount.value)
    hint = "write a plain number." if amount.is_interval else f"give it a unit, for example `INTERVAL {size} SECONDS`."
    return draft.refusal(
        "WRONG_TIME_UNIT",
        span,
        what=f"A distance of {amount_in_words(Amount(size, amount.is_interval))}",
        column=time,
        type=time.type,
        cause=wrong_unit(amount),
        hint=hint,
    )


def check_values(draft: Draft, values: Values, source: Source, span: Span) -> Iterator[Refusal]:
    """The refusals of values for columns of a source, given at ``span``."""
    for name, value in values:
        place = value.span if value.span != NOWHERE else span
        field = source.field(name)
        if field is None:
            suggestion = did_you_mean(name, [f.name for f in source.fields])
            where = f"in {source.name}"
            yield draft.refusal("UNKNOWN_COLUMN", place, column=name, where=where, suggestion=suggestion)
            continue
        parameters = {"value": expression_in_words(value), "column": field.name, "type": field.type}
        if any(True for _ in value.references):
            reason, hint = "there is no row to take a column from", "write a constant."
            yield draft.refusal("WRONG_VALUE", place, **parameters, reason=reason, cause="not a constant", hint=hint)
        elif not can_hold_constant(field.type, value):
            reason = "the types differ"
            hint = f"write a constant of type {field.type}, or `CAST(... AS {field.type})`."
            yield draft.refusal("WRONG_VALUE", place, **parameters, reason=reason, cause=f"not {field.type}", hint=hint)


def with_declared_names(values: Values, source: Source) -> Values:
    """The values with the columns spelled as they were declared."""
    return tuple((field.name, value) for name, value in values if (field := source.field(name)) is not None)
