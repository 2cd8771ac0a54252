"""The pass over window functions, ``sum(x) OVER (PARTITION BY k ORDER BY t ROWS 10 PRECEDING)``, in SELECT.

All of one query have one partition and one order, that of an event time: rows come out in that order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from watersmeet.errors import Refusal
from watersmeet.logical.expressions import Expr, Reference, WindowCall, aggregates_in, window_calls_in
from watersmeet.logical.nodes import walk_relations
from watersmeet.logical.passes.column_types import (
    EventTimeColumn,
    class_of,
    event_times,
    find_event_time,
    fits,
    is_padded,
    type_of,
)
from watersmeet.logical.passes.draft import Draft
from watersmeet.logical.passes.meaning import is_resolved
from watersmeet.logical.passes.watermarks import sources_without_watermark, watermark_hint
from watersmeet.logical.query import TOP, AnalyzedOver, AnalyzedSortKey, Output
from watersmeet.logical.words import expression_in_words
from watersmeet.operators.core.aggregates import result_type
from watersmeet.operators.core.order import MOST_RANKS

_AROUND = "compute it in a subquery, `FROM (SELECT *, {call} AS x FROM ...) AS q`, and use `x` around it."


def over(draft: Draft) -> Draft:
    """The draft with its window functions, or with the refusal of those that cannot be computed."""
    draft = draft.with_refusals(_check_places(draft))
    calls = {call.sql(): call for output in draft.outputs for call in window_calls_in(output.expr) if is_resolved(call)}
    relation = draft.relation
    if not calls or relation is None or not draft.scope.is_whole or draft.refusals:
        return draft
    refusals = [*_check_query(draft, *calls.values())]
    if refusals:
        # The passes that follow need not know what such a function means.
        nothing = dict.fromkeys(calls, Expr("literal", text="NULL"))
        outputs = tuple(replace(output, expr=_rewrite(output.expr, nothing)) for output in draft.outputs)
        return replace(draft, outputs=outputs).with_refusals(refusals)
    parts = [WindowCall.of(call) for call in calls.values()]
    time = find_event_time(parts[0].order, event_times(relation))
    if time is None or is_padded(time.column.alias, relation):
        return draft.with_refusals([_refuse_order(draft, parts[0].order, time)])
    refusals = [refusal for call in calls.values() for refusal in _check_call(draft, call, time)]
    functions = tuple(Output(f"f{n}", call) for n, call in enumerate(calls.values()))
    columns = {output.expr.sql(): _column(output.name) for output in functions}
    outputs = tuple(replace(output, expr=_rewrite(output.expr, columns)) for output in draft.outputs)
    by = tuple(AnalyzedSortKey(expr, expr, False, False) for expr in parts[0].by)
    own = f"{time.column.alias}.{time.column.name}"
    stage = AnalyzedOver(
        (AnalyzedSortKey(parts[0].order, parts[0].order, False, False),), MOST_RANKS, by, time=time.column,
        # A row that has not come out may be at the watermark.
        final_columns=tuple((column, 1) for column in sorted(relation.equal_columns(own))), emit="final",
        within=draft.query.within, functions=functions,
    )  # fmt: skip
    return replace(draft, outputs=outputs, top=stage).with_refusals(refusals)


def _column(name: str) -> Expr:
    return Expr("column", text=name, refs=(Reference((TOP, name), 0, len(name), TOP, name),))


def _rewrite(expr: Expr, columns: dict[str, Expr]) -> Expr:
    """An expression of SELECT in which window functions are columns."""
    if expr.op == "over" and expr.sql() in columns:
        return replace(columns[expr.sql()], span=expr.span)
    return replace(expr, args=tuple(_rewrite(arg, columns) for arg in expr.args))


def _check_places(draft: Draft) -> Iterator[Refusal]:
    """Refuse window functions where there are no rows to look back on yet, or no longer."""
    query = draft.query
    inside = (expression for below in walk_relations(query.relation) for expression in below.expressions)
    clauses = (
        *(() if query.where is None else (("WHERE", query.where),)),
        *(() if query.having is None else (("HAVING", query.having),)),
        *(("GROUP BY", expr) for expr in query.group_by),
    )
    for place, expr in (*clauses, *inside):
        for call in window_calls_in(expr):
            hint = _AROUND.format(call=expression_in_words(call))
            yield draft.refuse_unsupported(call.span, f"A window function in {place}", hint)


def _check_query(draft: Draft, first: Expr, *others: Expr) -> Iterator[Refusal]:
    """Refuse what a query cannot have besides window functions, and windows that differ."""
    query, relation = draft.query, draft.relation
    assert relation is not None
    if query.group_by or query.is_distinct or any(aggregates_in(output.expr) for output in draft.outputs):
        hint = "group in a subquery, and use the window function in the query around it."
        yield draft.refuse_unsupported(first.span, "A window function with GROUP BY, DISTINCT or an aggregate", hint)
    elif relation.result == "table":
        hint = "read a stream; of a table, rank rows with `ROW_NUMBER() OVER (...)`, or join it with itself."
        yield draft.refuse_unsupported(first.span, "A window function over a table, whose rows change,", hint)
    elif query.result == "table":
        hint = "write SELECT STREAM: each row comes out once."
        yield draft.refuse_unsupported(first.span, "SELECT TABLE with a window function", hint)
    window = _window_of(first)
    for other in others:
        if _window_of(other) != window:
            hint = _AROUND.format(call=expression_in_words(other))
            yield draft.refuse_unsupported(other.span, "A second PARTITION BY or ORDER BY of window functions", hint)
    has_lead = any(WindowCall.of(call).call.text == "lead" for call in (first, *others))
    if query.within is not None and not has_lead:
        hint = "leave it out: rows come out once the watermark has passed them."
        yield draft.refuse_unsupported(query.within_span, "WITHIN without LEAD()", hint)


def _window_of(call: Expr) -> tuple[list[str], str]:
    parts = WindowCall.of(call)
    return [expr.sql() for expr in parts.by], parts.order.sql()


def _refuse_order(draft: Draft, order: Expr, time: EventTimeColumn | None) -> Refusal:
    """The refusal of an order that no watermark follows."""
    if time is not None:
        hint = f"write JOIN in place of the outer join, or order by a time that is never NULL: {time} is padded."
        return draft.refuse_unsupported(order.span, "OVER in the order of a time that a join pads with NULL", hint)
    assert draft.relation is not None
    names = [f"`ORDER BY {time}`" for time in event_times(draft.relation)]
    bare = sources_without_watermark(draft.relation)
    hint = f"write {' or '.join(names)}." if names else "show the event time in the views that it reads."
    if bare and not names:
        hint = watermark_hint(bare[0], [ref.name for ref in order.references])
    return draft.refuse_unsupported(order.span, "OVER in an order other than that of an event time", hint)


def _check_call(draft: Draft, call: Expr, time: EventTimeColumn) -> Iterator[Refusal]:
    """Refuse a frame that does not fit the time, a value of the wrong type, and LEAD that could wait for ever."""
    parts, query = WindowCall.of(call), draft.query
    amount, unit = parts.preceding, parts.unit
    if unit == "RANGE" and amount is not None and amount.value and not fits(amount, time.family):
        hint = "write a whole number, `RANGE 5 PRECEDING`, as the event time is one."
        if time.family != "integer":
            hint = "write `RANGE INTERVAL 5 MINUTES PRECEDING`, or `ROWS 5 PRECEDING`."
        yield draft.refuse_unsupported(call.span, f"This RANGE for {time}, whose unit differs,", hint)
    if parts.call.text == "lead":
        if query.within is None:
            hint = "add `WITHIN 10 MINUTES` at the end of the query: how much later that row may be."
            what = "LEAD() without a bound, which might wait for the next row for ever,"
            yield draft.refuse_unsupported(call.span, what, hint)
        elif not fits(query.within, time.family):
            hint = "write `WITHIN 5`, as the event time is a whole number."
            if time.family != "integer":
                hint = "write `WITHIN 10 MINUTES`."
            yield draft.refuse_unsupported(query.within_span, f"WITHIN for {time}, whose unit differs,", hint)
    types = [type_of(arg, draft.scope.sources) for arg in parts.call.args]
    if not unit:
        yield from _check_default(draft, parts.call, types)
    elif parts.call.text in ("sum", "avg", "mean"):
        wrong = next((t for t in types if t and result_type(parts.call.function, (t,)) is None), None)
        if wrong is not None:
            name = f"{parts.call.text}()"
            hint = f"cast it: `{parts.call.text}(CAST(... AS DOUBLE))`."
            reason = f"its argument is {wrong}, not a number."
            yield draft.refusal("TYPE_MISMATCH", call.span, expression=name, reason=reason, hint=hint)


def _check_default(draft: Draft, call: Expr, types: list[str | None]) -> Iterator[Refusal]:
    """Refuse a default of LAG or LEAD that is of another kind than the value."""
    if len(types) < 2 or types[0] is None:
        return
    default = call.args[1]
    kind = class_of(types[1]) if types[1] else None
    if default.op == "literal":
        # TRUE is a whole number to Python.
        is_number = isinstance(default.value, int | float | Decimal) and not isinstance(default.value, bool)
        kind = "number" if is_number else "text" if isinstance(default.value, str) else None
    if kind is not None and kind != class_of(types[0]):
        reason, hint = f"its value is {types[0]}, its default is not.", f"write `CAST(... AS {types[0]})` as default."
        yield draft.refusal("TYPE_MISMATCH", call.span, expression=f"{call.text}()", reason=reason, hint=hint)
