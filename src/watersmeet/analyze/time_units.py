"""Refusals of times and amounts that cannot be compared."""

from __future__ import annotations

from watersmeet.analyze.comparison import Comparison
from watersmeet.analyze.draft import Draft
from watersmeet.analyze.event_time import EventTime, fits, wrong_unit
from watersmeet.catalog import Amount, Span
from watersmeet.errors import Refusal
from watersmeet.plan.words import amount_in_words


def check_pair(draft: Draft, comparison: Comparison, high: EventTime, low: EventTime, span: Span) -> Refusal | None:
    """Why two times and the constants between them cannot be compared; None if they can."""
    refusal = check_families(draft, high, low, span)
    misfit = comparison.misfit(high.family)
    if refusal is not None or misfit is None:
        return refusal
    return _wrong_unit(draft, misfit, high, span)


def check_within(draft: Draft, amount: Amount, left: EventTime, right: EventTime, span: Span) -> Refusal | None:
    """Why two times cannot lie within that amount of each other; None if they can."""
    refusal = check_families(draft, right, left, span)
    if refusal is not None or fits(amount, left.family):
        return refusal
    return _wrong_unit(draft, amount, left, span)


def check_families(draft: Draft, time: EventTime, other: EventTime, span: Span) -> Refusal | None:
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


def _wrong_unit(draft: Draft, amount: Amount, time: EventTime, span: Span) -> Refusal:
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
