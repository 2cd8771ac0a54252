"""Windows: what their sizes, columns and limits mean, and which have no meaning."""

from __future__ import annotations

from collections.abc import Iterator

from watersmeet.analyze.column_types import class_of, type_of
from watersmeet.analyze.draft import Draft
from watersmeet.analyze.event_time import family_of
from watersmeet.analyze.meaning import is_resolved
from watersmeet.catalog import Amount, Span
from watersmeet.duration import DAY
from watersmeet.errors import Refusal
from watersmeet.families.window.relation import AnalyzedLimit, AnalyzedWindow, Window
from watersmeet.plan.relation import AnalyzedLeaf
from watersmeet.plan.words import amount_in_words, expression_in_words

NESTED = frozenset({"array", "map", "struct", "variant"})


def analyzed_window(scan: AnalyzedLeaf, window: Window) -> AnalyzedWindow:
    """The window of a side, its sizes in units; what has no meaning has been refused by `check_window`."""
    limit = None if window.limit is None else AnalyzedLimit(window.limit.kind, window.limit.amount.value)
    size = window.amount.value
    if window.kind == "delta" and _column_type(scan, window).upper() == "DATE" and not window.amount.is_interval:
        # A plain number is days for a DATE, as in Spark.
        size *= DAY
    return AnalyzedWindow(window.kind, size, window.column, window.partition_by, limit)


def check_window(draft: Draft, scan: AnalyzedLeaf, window: Window) -> Iterator[Refusal]:
    """Why the window of a side has no meaning."""
    amount, shown = window.amount, amount_in_words(window.amount)
    if amount.value < 0:
        yield _wrong(draft, scan, window.span, "nothing is smaller than empty", f"{shown} is below zero", "write 0.")
    elif window.kind == "count" and amount.is_interval:
        hint = f"write `TIME {shown}`, or a number of rows."
        yield _wrong(draft, scan, window.span, "COUNT counts rows", f"{shown} is a length of time", hint)
    elif window.kind == "time" and not amount.is_interval:
        hint = f"give it a unit, `TIME {shown}s`, or write `COUNT {shown}`."
        yield _wrong(draft, scan, window.span, "TIME needs a length of time", f"{shown} has no unit", hint)
    elif window.kind == "delta":
        yield from _check_delta(draft, scan, window)
    yield from _check_partitions(draft, scan, window)


def _check_delta(draft: Draft, scan: AnalyzedLeaf, window: Window) -> Iterator[Refusal]:
    column = window.column
    if column is None:
        hint = "write the column that is measured, then a size: `DELTA sold_at 10s`."
        yield _wrong(draft, scan, window.span, "DELTA measures a column", "no column", hint)
        return
    if not is_resolved(column):
        return
    name, type_ = expression_in_words(column), _column_type(scan, window)
    family, amount = family_of(type_), window.amount
    if family is None:
        reason = f"nothing tells how far apart two values of `{name}` are"
        hint = "measure a column of an integer type, TIMESTAMP or DATE; cast it in its source if it is none."
        yield _wrong(draft, scan, column.span if column.span.end else window.span, reason, f"{type_}", hint)
    elif amount.is_interval == (family == "integer") and family != "date":
        reason = f"`{name}` of type {type_} is not counted in that unit"
        hint = "write a plain number." if amount.is_interval else f"give it a unit, for example `{amount.value}s`."
        yield _wrong(draft, scan, window.span, reason, f"a distance of {amount_in_words(amount)}", hint)


def _check_partitions(draft: Draft, scan: AnalyzedLeaf, window: Window) -> Iterator[Refusal]:
    sources = {scan.alias: scan.source}
    for expr in window.partition_by:
        type_ = type_of(expr, sources) if is_resolved(expr) else None
        if type_ is not None and class_of(type_) in NESTED:
            reason = f"`{expression_in_words(expr)}` cannot tell partitions apart"
            hint = "name a field inside it, or another column."
            yield _wrong(draft, scan, expr.span if expr.span.end else window.span, reason, type_, hint)
    limit = window.limit
    if limit is None:
        return
    words = {"age": "PARTITION AGE", "partitions": "PARTITION COUNT", "rows": "TUPLE COUNT"}[limit.kind]
    shown = amount_in_words(limit.amount)
    if not window.partition_by:
        reason, hint = f"{words} discards partitions, and there are none", f"write PARTITION BY before {words}."
        yield _wrong(draft, scan, limit.span, reason, "no PARTITION BY", hint)
    if limit.kind == "age" and not limit.amount.is_interval:
        hint = f"give it a unit: `PARTITION AGE {shown}s`."
        yield _wrong(draft, scan, limit.span, "an age is a length of time", f"{shown} has no unit", hint)
    elif limit.kind != "age" and not _is_positive(limit.amount):
        yield _wrong(draft, scan, limit.span, f"{words} needs a number above 0", shown, f"write `{words} 100`.")


def _is_positive(amount: Amount) -> bool:
    return amount.value > 0 and not amount.is_interval


def _column_type(scan: AnalyzedLeaf, window: Window) -> str:
    found = type_of(window.column, {scan.alias: scan.source}) if window.column is not None else None
    return found or "a type that only Spark knows"


def _wrong(draft: Draft, scan: AnalyzedLeaf, span: Span, reason: str, cause: str, hint: str) -> Refusal:
    side = draft.name_of(scan.alias)
    return draft.refusal("WRONG_WINDOW", span, side=side, reason=reason, cause=cause, hint=hint)
