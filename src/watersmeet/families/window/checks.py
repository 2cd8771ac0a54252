"""Windows: what their sizes, columns and limits mean, and where their clauses and outputs have no meaning."""

from __future__ import annotations

from collections.abc import Iterator

from watersmeet.analyze.column_types import class_of, type_of
from watersmeet.analyze.draft import Draft
from watersmeet.analyze.event_time import time_type_of
from watersmeet.analyze.meaning import is_resolved
from watersmeet.analyze.outputs import check_columns, wrong_output
from watersmeet.catalog import Source, Span
from watersmeet.duration import DAY
from watersmeet.errors import Refusal
from watersmeet.families.window.relation import (
    LIMITS,
    AnalyzedLimit,
    AnalyzedWindow,
    Pad,
    WindowClause,
    is_windowed,
    windows_in,
)
from watersmeet.plan.nodes import PRESERVED, Join, Lateral, Leaf, Query, Side, SideOutput, leaves, walk_relations
from watersmeet.plan.relation import AnalyzedLeaf
from watersmeet.plan.words import amount_in_words, expression_in_words, kind_in_words


def check_clauses(draft: Draft) -> Iterator[Refusal]:
    """Windows and PAD elsewhere than in a join of two sources, which is the whole query."""
    yield from _check_windows(draft)
    for join in walk_relations(draft.query.relation):
        for clause in join.clauses if isinstance(join, Join) and not windows_in(join) else ():
            if isinstance(clause, Pad):
                hint = "write `coalesce(column, value)` in SELECT."
                yield draft.refuse_unsupported(clause.span, "PAD of a join without windows", hint)


def _check_windows(draft: Draft) -> Iterator[Refusal]:
    relation = draft.query.relation
    windows = windows_in(relation)
    if not windows or (isinstance(relation, Join) and len(leaves(relation)) == 2):
        return
    what = "A chain of joins with windows"
    hint = "write the result of the first join to a sink, and join the stream that reads it."
    if isinstance(relation, Leaf | Lateral):
        what, hint = "WINDOW without a join", "leave it out, or join with another source that has a window."
    elif not isinstance(relation, Join):
        what, hint = "WINDOW of a join by time", "leave it out: times say how long rows stay."
    yield draft.refuse_unsupported(windows[0].span, what, hint)


def check_outputs(draft: Draft) -> Iterator[Refusal]:
    """LATE INTO of a window join, and UNMATCHED INTO."""
    query = draft.query
    if query.late_into is not None and is_windowed(query.relation):
        hint = "leave LATE INTO out: windows follow the order of arrival, in which nothing is late."
        yield draft.refuse_unsupported(query.late_into_span, "LATE INTO of a window join", hint)
    yield from _check_unmatched(draft)


def outputs_of_unmatched(query: Query) -> dict[Side, SideOutput]:
    """The outputs of the rows of either side that stayed alone, where they have one."""
    sides: dict[str, Side] = {"UNMATCHED LEFT": "left", "UNMATCHED RIGHT": "right"}
    return {sides[output.of]: output for output in query.side_outputs if output.of in sides}


def _check_unmatched(draft: Draft) -> Iterator[Refusal]:
    relation, outputs = draft.query.relation, outputs_of_unmatched(draft.query)
    if windows_in(relation) and len(leaves(relation)) != 2:
        # Windows elsewhere than in a join of two sources have been refused.
        return
    if not is_windowed(relation):
        for side, output in outputs.items():
            what = f"UNMATCHED {side.upper()} INTO of a join without windows"
            hint = "leave it out: rows that stay alone come out padded with NULL."
            yield draft.refuse_unsupported(output.span, what, hint)
        return
    for side, output in outputs.items():
        name, span = output.sink, output.span
        leaf = leaves(relation)[0 if side == "left" else 1]
        source = draft.scope.sources.get(leaf.alias, Source(leaf.alias, ()))
        what = f"UNMATCHED {side.upper()} INTO {name}"
        if relation.kind not in PRESERVED[side]:
            kind = kind_in_words(relation.kind)
            reason = f"{kind} JOIN drops the rows of {source.name} that stay alone"
            hint = f"leave it out, or write {side.upper()} or FULL JOIN."
            yield wrong_output(draft, span, what, reason, f"{source.name} is not preserved", hint)
        elif relation.kind == "full" and len(outputs) == 1:
            other = "RIGHT" if side == "left" else "LEFT"
            reason = "the other side's rows that stay alone would come out among the pairs"
            hint = f"add `UNMATCHED {other} INTO sink`, or leave both out."
            yield wrong_output(draft, span, what, reason, f"no UNMATCHED {other} INTO", hint)
        yield from check_columns(draft, name, span, what, source)


NESTED = frozenset({"array", "map", "struct", "variant"})


def build_window(scan: AnalyzedLeaf, window: WindowClause) -> AnalyzedWindow:
    """The window of a side, its sizes in units; what has no meaning has been refused by `check_window`."""
    limit = None if window.limit is None else AnalyzedLimit(window.limit.kind, window.limit.amount.value)
    size = window.amount.value
    if window.kind == "delta" and _column_type(scan, window).upper() == "DATE" and not window.amount.is_interval:
        # A plain number is days for a DATE, as in Spark.
        size *= DAY
    return AnalyzedWindow(window.kind, size, window.column, window.partition_by, limit)


def check_window(draft: Draft, scan: AnalyzedLeaf, window: WindowClause) -> Iterator[Refusal]:
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


def _check_delta(draft: Draft, scan: AnalyzedLeaf, window: WindowClause) -> Iterator[Refusal]:
    column = window.column
    if column is None:
        hint = "write the column that is measured, then a size: `DELTA sold_at 10s`."
        yield _wrong(draft, scan, window.span, "DELTA measures a column", "no column", hint)
        return
    if not is_resolved(column):
        return
    name, type_ = expression_in_words(column), _column_type(scan, window)
    family, amount = time_type_of(type_), window.amount
    if family is None:
        reason = f"nothing tells how far apart two values of `{name}` are"
        hint = "measure a column of an integer type, TIMESTAMP or DATE; cast it in its source if it is none."
        yield _wrong(draft, scan, column.span if column.span.end else window.span, reason, f"{type_}", hint)
    elif amount.is_interval == (family == "integer") and family != "date":
        reason = f"`{name}` of type {type_} is not counted in that unit"
        hint = "write a plain number." if amount.is_interval else f"give it a unit, for example `{amount.value}s`."
        yield _wrong(draft, scan, window.span, reason, f"a distance of {amount_in_words(amount)}", hint)


def _check_partitions(draft: Draft, scan: AnalyzedLeaf, window: WindowClause) -> Iterator[Refusal]:
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
    words, shown = LIMITS[limit.kind], amount_in_words(limit.amount)
    if not window.partition_by:
        reason, hint = f"{words} discards partitions, and there are none", f"write PARTITION BY before {words}."
        yield _wrong(draft, scan, limit.span, reason, "no PARTITION BY", hint)
    if limit.kind == "age" and not limit.amount.is_interval:
        hint = f"give it a unit: `PARTITION AGE {shown}s`."
        yield _wrong(draft, scan, limit.span, "an age is a length of time", f"{shown} has no unit", hint)
    elif limit.kind != "age" and (limit.amount.value <= 0 or limit.amount.is_interval):
        yield _wrong(draft, scan, limit.span, f"{words} needs a number above 0", shown, f"write `{words} 100`.")


def _column_type(scan: AnalyzedLeaf, window: WindowClause) -> str:
    type_ = type_of(window.column, {scan.alias: scan.source}) if window.column is not None else None
    return type_ or "a type that only Spark knows"


def _wrong(draft: Draft, scan: AnalyzedLeaf, span: Span, reason: str, cause: str, hint: str) -> Refusal:
    side = draft.name_of(scan.alias)
    return draft.refusal("WRONG_WINDOW", span, side=side, reason=reason, cause=cause, hint=hint)
