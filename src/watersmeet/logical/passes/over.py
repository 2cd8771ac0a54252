"""The pass over window functions, ``sum(x) OVER (PARTITION BY k ORDER BY t ROWS 10 PRECEDING)``, in SELECT.

Those of one partition and order are computed together, those of another over their rows. Over a stream the order is
that of an event time: rows come out in that order. Over a table it is any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import reduce

from watersmeet.errors import Refusal
from watersmeet.logical.expressions import (
    NO_ROWS,
    OFFSETS,
    RANKS,
    SORTS,
    Expr,
    Reference,
    WindowCall,
    aggregates_in,
    window_calls_in,
)
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
from watersmeet.logical.passes.group import find_window_bound
from watersmeet.logical.passes.meaning import is_resolved
from watersmeet.logical.passes.watermarks import sources_without_watermark, watermark_hint
from watersmeet.logical.query import TOP, AnalyzedOver, AnalyzedSortKey, Output
from watersmeet.logical.relation import AnalyzedLeaf, AnalyzedRelation, AnalyzedView
from watersmeet.logical.words import expression_in_words
from watersmeet.operators.core.aggregates import result_type
from watersmeet.operators.core.order import MOST_RANKS

_AROUND = "compute it in a subquery, `FROM (SELECT *, {call} AS x FROM ...) AS q`, and use `x` around it."


def over(draft: Draft) -> Draft:
    """The draft with its window functions, or with the refusal of those that cannot be computed."""
    draft = _rank_stream(draft.with_refusals(_check_places(draft)))
    calls = {call.sql(): call for output in draft.outputs for call in window_calls_in(output.expr) if is_resolved(call)}
    relation = draft.relation
    if not calls or relation is None or not draft.scope.is_whole or draft.refusals:
        return draft
    is_stream = relation.result == "stream"
    check = _check_in_stream if is_stream else _check_in_table
    refusals = [*_check_query(draft, *calls.values())]
    refusals = refusals or [refusal for call in calls.values() for refusal in check(draft, call)]
    if refusals:
        # The passes that follow need not know what such a function means.
        nothing = dict.fromkeys(calls, Expr("literal", text="NULL"))
        outputs = tuple(replace(output, expr=_rewrite(output.expr, nothing)) for output in draft.outputs)
        return replace(draft, outputs=outputs).with_refusals(refusals)
    refusals = [refusal for call in calls.values() for refusal in _check_values(draft, call)]
    functions = tuple(Output(f"f{n}", call) for n, call in enumerate(calls.values()))
    columns = {output.expr.sql(): _column(output.name) for output in functions}
    outputs = tuple(replace(output, expr=_rewrite(output.expr, columns)) for output in draft.outputs)
    windows = dict[str, list[Output]]()
    for function in functions:
        windows.setdefault(_spell_window(function.expr, is_stream=is_stream), []).append(function)
    stages = [_stage(draft, tuple(windows[window])) for window in sorted(windows)]
    # The fewest keys first: the rows of a larger group then come to the next stage in one order. Beyond that it is the
    # order of the texts, whatever that of the columns, which makes no difference to the state.
    stages.sort(key=lambda stage: len(stage.by))
    stage = reduce(lambda below, above: replace(above, below=below), stages)
    return replace(draft, outputs=outputs, top=stage).with_refusals(refusals)


def _stage(draft: Draft, functions: tuple[Output, ...]) -> AnalyzedOver:
    """The functions of one partition and order."""
    assert draft.relation is not None
    parts = WindowCall.of(functions[0].expr)
    by = tuple(AnalyzedSortKey(expr, _source_expression(draft.relation, expr), False, False) for expr in parts.by)
    if draft.relation.result == "table":
        directions = {text: sort for sort, text in SORTS.items()}
        order = tuple(AnalyzedSortKey(key.args[0], key.args[0], *directions[key.text]) for key in parts.order)
        return AnalyzedOver(order, MOST_RANKS, by, functions=functions)
    time = find_event_time(parts.order[0].args[0], event_times(draft.relation))
    assert time is not None, "an order that is none has been refused"
    own = f"{time.column.alias}.{time.column.name}"
    waits = any(WindowCall.of(function.expr).function.startswith("lead") for function in functions)
    order_by = parts.order[0].args[0]
    return AnalyzedOver(
        (AnalyzedSortKey(order_by, _source_expression(draft.relation, order_by), False, False),), MOST_RANKS, by,
        time=time.column,
        # A row that has not come out may be at the watermark.
        final_columns=tuple((column, 1) for column in sorted(draft.relation.equal_columns(own))), emit="final",
        within=draft.query.within if waits else None, functions=functions,
    )  # fmt: skip


def _source_expression(relation: AnalyzedRelation, expr: Expr) -> Expr:
    """The expression that a query has for a column that it does not show."""
    is_hidden = isinstance(relation, AnalyzedView) and expr.op == "column" and expr.refs[0].name.startswith("#")
    outputs = relation.query.outputs if isinstance(relation, AnalyzedView) and is_hidden else ()
    return next((output.expr for output in outputs if output.name == expr.refs[0].name), expr)


def _rank_stream(draft: Draft) -> Draft:
    """The draft of all rows of a stream with their ranks by event time, which are then window functions."""
    query, relation = draft.query, draft.relation
    is_whole = query.limit == MOST_RANKS and query.rank is not None and query.offset == 0
    if not is_whole or not isinstance(relation, AnalyzedLeaf) or relation.result != "stream":
        return draft
    by = tuple(_column_of(relation, name) for name in query.by)
    order = [_column_of(relation, key.column) for key in query.order]
    is_by_time = find_event_time(order[0], event_times(relation)) is not None and not query.order[0].descending
    if len(order) > 1 or not is_by_time or find_window_bound(relation, by, with_times=True)[1] is not None:
        return draft
    name = ("dense_rank" if query.is_dense else "rank") if query.ties else "row_number"
    number = Expr("call", text=name, span=query.order[0].expr.span)
    window = WindowCall(number, by, (Expr("order", (order[0],)),), "ROWS", None, NO_ROWS).as_expr(number.span)
    hidden = {*(key.column for key in query.order), *query.by}
    outputs = tuple(
        replace(output, expr=window) if output.name == query.rank else output
        for output in draft.outputs
        if output.name not in hidden
    )
    return replace(draft, query=replace(query, limit=None, order=(), by=(), rank=None), outputs=outputs)


def _column_of(relation: AnalyzedLeaf, name: str) -> Expr:
    alias = relation.alias
    return Expr("column", text=name, refs=(Reference((alias, name), 0, len(name), alias, name),))


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
    """Refuse what a query cannot have besides window functions."""
    query, relation = draft.query, draft.relation
    assert relation is not None
    calls = [WindowCall.of(call) for call in (first, *others)]
    if query.group_by or query.is_distinct or any(aggregates_in(output.expr) for output in draft.outputs):
        hint = "group in a subquery, and use the window function in the query around it."
        yield draft.refuse_unsupported(first.span, "A window function with GROUP BY, DISTINCT or an aggregate", hint)
    elif relation.result == "stream" and query.result == "table":
        hint = "write SELECT STREAM: each row comes out once."
        yield draft.refuse_unsupported(first.span, "SELECT TABLE with a window function over a stream", hint)
    if query.within is not None and relation.result == "table":
        hint = "leave it out: a table has all rows, and the result changes with them."
        yield draft.refuse_unsupported(query.within_span, "WITHIN over a table", hint)
    elif query.within is not None and not any(call.function.startswith("lead") for call in calls):
        hint = "leave it out: rows come out once the watermark has passed them."
        yield draft.refuse_unsupported(query.within_span, "WITHIN without LEAD()", hint)
    times = {call.order[0].args[0].sql(): call for call in calls if len(call.order) == 1}
    if relation.result == "stream" and len(times) > 1:
        one, other, *_ = (expression_in_words(call.order[0].args[0]) for call in times.values())
        hint = f"order all of them by `{one}`, or compute the others in a query of their own."
        what = f"A stream in the order of `{one}` and of `{other}`"
        yield draft.refuse_unsupported((*times.values(),)[1].order[0].args[0].span, what, hint)


def _spell_window(over: Expr, *, is_stream: bool) -> str:
    """The partition and order of a window function, as a text."""
    parts = WindowCall.of(over)
    order = [(key.args[0] if is_stream else key).sql() for key in parts.order]
    return repr(([expr.sql() for expr in parts.by], order))


_NEEDS_ORDER = (*OFFSETS, *RANKS, "first", "first_value", "last", "last_value")


def _check_in_table(draft: Draft, call: Expr) -> Iterator[Refusal]:
    """Refuse a function over a table whose value would depend on an order that nothing says, and ranges."""
    parts = WindowCall.of(call)
    if not parts.order and (parts.call.text in _NEEDS_ORDER or parts.unit == "ROWS"):
        hint = f"add the order: `{parts.call.text}(...) OVER (PARTITION BY k ORDER BY t)`."
        yield draft.refuse_unsupported(call.span, f"{parts.call.text.upper()}() OVER without ORDER BY", hint)
    if parts.unit == "RANGE" and any(bound is not None and bound.value for bound in (parts.preceding, parts.following)):
        hint = "write `ROWS 10 PRECEDING`, or join the table with itself, `ON b.t BETWEEN a.t - 10 AND a.t`."
        yield draft.refuse_unsupported(call.span, "RANGE with a distance over a table", hint)


def _check_in_stream(draft: Draft, call: Expr) -> Iterator[Refusal]:
    """Refuse an order that is not that of an event time, and a frame with rows that may come ever later."""
    parts = WindowCall.of(call)
    assert draft.relation is not None
    if not parts.order:
        hint = "add `ORDER BY t`, with the event time: a row comes out with the rows before it. Or GROUP BY a window."
        yield draft.refuse_unsupported(call.span, "OVER without ORDER BY over a stream", hint)
        return
    key = parts.order[0]
    time = find_event_time(key.args[0], event_times(draft.relation))
    if time is None or is_padded(time.column.alias, draft.relation):
        yield _refuse_order(draft, key.args[0], time)
    elif len(parts.order) > 1:
        hint = f"write `ORDER BY {time}`; rows of one time are in the order of their arrival."
        yield draft.refuse_unsupported(parts.order[1].args[0].span, "OVER in the order of several columns", hint)
    elif parts.is_descending and parts.call.text not in OFFSETS:
        hint = f"write `ORDER BY {time}`: over a stream, a function looks at the rows before each row."
        if parts.call.text in ("first", "first_value"):
            hint = f"write `last_value(...) OVER (... ORDER BY {time})`: the last value up to each row."
        yield draft.refuse_unsupported(call.span, "OVER in descending order, which begins with rows to come,", hint)
    elif parts.following is None or parts.following.value > 0:
        hint = "end it with `AND CURRENT ROW`; `lead(x)` is the value of a later row."
        yield draft.refuse_unsupported(call.span, "A frame with rows behind the current one over a stream", hint)
    elif parts.following.value < 0 and parts.preceding is None:
        hint = "end it with `AND CURRENT ROW`, or begin it with a number of rows or a time."
        yield draft.refuse_unsupported(call.span, "A frame without a beginning that ends before the current row", hint)
    else:
        yield from _check_amounts(draft, call, time)


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


def _check_amounts(draft: Draft, call: Expr, time: EventTimeColumn) -> Iterator[Refusal]:
    """Refuse a frame that does not fit the time, and LEAD that could wait for ever."""
    parts, query = WindowCall.of(call), draft.query
    wrong = (a for a in (parts.preceding, parts.following) if a is not None and a.value and not fits(a, time.family))
    if parts.unit == "RANGE" and next(wrong, None) is not None:
        hint = "write a whole number, `RANGE 5 PRECEDING`, as the event time is one."
        if time.family != "integer":
            hint = "write `RANGE INTERVAL 5 MINUTES PRECEDING`, or `ROWS 5 PRECEDING`."
        yield draft.refuse_unsupported(call.span, f"This RANGE for {time}, whose unit differs,", hint)
    if parts.function.startswith("lead"):
        if query.within is None:
            hint = "add `WITHIN 10 MINUTES` at the end of the query: how much later that row may be."
            name = "LAG() in descending order" if parts.is_descending else "LEAD()"
            what = f"{name} without a bound, which might wait for the next row for ever,"
            yield draft.refuse_unsupported(call.span, what, hint)
        elif not fits(query.within, time.family):
            hint = "write `WITHIN 5`, as the event time is a whole number."
            if time.family != "integer":
                hint = "write `WITHIN 10 MINUTES`."
            yield draft.refuse_unsupported(query.within_span, f"WITHIN for {time}, whose unit differs,", hint)


def _check_values(draft: Draft, call: Expr) -> Iterator[Refusal]:
    """Refuse a value of the wrong type."""
    parts = WindowCall.of(call)
    types = [type_of(arg, draft.scope.sources) for arg in parts.call.args]
    if not parts.unit:
        yield from _check_default(draft, parts.call, types)
    elif parts.call.text in ("sum", "avg", "mean"):
        wrong = next((t for t in types if t and result_type(parts.call.function, (t,)) is None), None)
        if wrong is not None:
            name = f"{parts.call.text}()"
            hint = f"cast it: `{parts.call.text}(CAST(... AS DOUBLE))`."
            reason = f"its argument is {wrong}, not a number."
            yield draft.refusal("TYPE_MISMATCH", call.span, expression=name, reason=reason, hint=hint)


def _check_default(draft: Draft, call: Expr, types: Sequence[str | None]) -> Iterator[Refusal]:
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
