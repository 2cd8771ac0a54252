"""What several families refuse in the same words: sides that are tables, times that do not compare, wrong constants."""

from __future__ import annotations

from collections.abc import Iterator

from watersmeet.analyze.column_types import can_hold_constant
from watersmeet.analyze.comparison import Comparison
from watersmeet.analyze.draft import Draft, format_list
from watersmeet.analyze.event_time import EventTimeColumn, fits, wrong_unit
from watersmeet.catalog import NOWHERE, Amount, Source, Span
from watersmeet.errors import Refusal, did_you_mean
from watersmeet.plan.nodes import Join, Values
from watersmeet.plan.relation import AnalyzedRelation, leaves
from watersmeet.plan.words import amount_in_words, expression_in_words, kind_in_words


def check_table_sides(draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation) -> Iterator[Refusal]:
    """WITHIN of a join of which at least one side is a table."""
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
    """Whether all sources are declared: one that nobody declared may be a stream or a table."""
    return all(leaf.source.fields for side in (left, right) for leaf in leaves(side))


def names_of(draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation) -> dict[str, str]:
    """A join as messages speak of it."""
    sides = {"left": draft.names_of(left.aliases), "right": draft.names_of(right.aliases)}
    return {"kind": kind_in_words(join.kind), **sides}


def check_pair(
    draft: Draft, comparison: Comparison, high: EventTimeColumn, low: EventTimeColumn, span: Span
) -> Refusal | None:
    """Why two times and the constants between them cannot be compared; None if they can."""
    refusal = check_families(draft, high, low, span)
    misfit = comparison.misfit(high.family)
    if refusal is not None or misfit is None:
        return refusal
    return _wrong_unit(draft, misfit, high, span)


def check_within(
    draft: Draft, amount: Amount, left: EventTimeColumn, right: EventTimeColumn, span: Span
) -> Refusal | None:
    """Why two times cannot lie within that amount of each other; None if they can."""
    refusal = check_families(draft, right, left, span)
    if refusal is not None or fits(amount, left.family):
        return refusal
    return _wrong_unit(draft, amount, left, span)


def check_families(draft: Draft, time: EventTimeColumn, other: EventTimeColumn, span: Span) -> Refusal | None:
    """Why two times cannot be compared; None if they can."""
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
    # The sign of a constant says on which side of the comparison it stands, which is not what is wrong with it.
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
    """What is wrong with values for columns of a source, which ``span`` gives."""
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
