"""Watermarks that batches are assumed to have, missing ones, and heartbeats.

All rows of a batch are present, so no watermark is needed to expire rows; only the event time columns must be known.
The family of the join determines them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from watersmeet.catalog import NOWHERE, Amount, Field, Source, Watermark, WindowStart
from watersmeet.errors import Refusal
from watersmeet.logical.expressions import Expr, Reference, WindowCall, aggregates_in, window_calls_in
from watersmeet.logical.nodes import Lateral, Relation, Scan, Script, leaves
from watersmeet.logical.passes.column_types import (
    EventTimeColumn,
    event_times,
    example_lag,
    find_event_time,
    time_type_of,
    window_bound,
)
from watersmeet.logical.passes.draft import Draft, format_list
from watersmeet.logical.passes.family import Sources
from watersmeet.logical.passes.meaning import check_names, is_resolved, resolve_expression
from watersmeet.logical.passes.scope import scope_of
from watersmeet.logical.query import AnalyzedQuery, Output
from watersmeet.logical.relation import (
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedLeaf,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedView,
    TimeColumn,
)
from watersmeet.logical.relation import leaves as analyzed_leaves
from watersmeet.logical.words import is_unnamed
from watersmeet.schema import TimeType


def assume_watermarks(draft: Draft) -> Draft:
    """The draft with watermarks of no lag where batches declare none; streams stay as they are."""
    if draft.inputs == "streams":
        return draft
    sources = _assume(draft, draft.query.relation, draft.scope.sources)
    if draft.query.result == "stream":
        for expr in draft.query.group_by:
            if _is_window_call(expr) and expr.refs[0].source in sources:
                sources = add_watermark(sources, expr.refs[0].source, expr.refs[0].name)
    for call in (call for output in draft.outputs for call in window_calls_in(output.expr)):
        parts = WindowCall.of(call)
        order = parts.order[0].args[0] if parts.order else Expr("literal")
        if order.op == "column" and order.refs[0].source in sources and time_family(order.refs[0], sources):
            sources = add_watermark(sources, order.refs[0].source, order.refs[0].name)
    return replace(draft, scope=replace(draft.scope, sources=sources))


def _is_window_call(expr: Expr) -> bool:
    """Whether an expression is a window of Spark around a time."""
    is_call = expr.op == "other" and expr.text.lower().replace(" ", "").startswith(("window(", "session_window("))
    return is_call and bool(expr.refs)


def _assume(draft: Draft, relation: Relation, sources: Sources) -> Sources:
    for side in relation.inputs:
        sources = _assume(draft, side, sources)
    if isinstance(relation, Lateral) and relation.array.op == "windows":
        [time] = relation.array.args[0].refs
        return add_watermark(sources, time.source, time.name) if time.source else sources
    if not relation.inputs or isinstance(relation, Lateral):
        return sources
    return draft.family(relation).assume_watermarks(draft, relation, sources)


def watermark_only_time(side: Relation, sources: Sources) -> Sources:
    """The sources with a watermark for the one time that a side has, if it has no watermark yet."""
    aliases = [leaf.alias for leaf in leaves(side)]
    if any(sources[alias].watermarks for alias in aliases):
        return sources
    times = [(a, f.name) for a in aliases for f in sources[a].fields if time_type_of(f.type) not in (None, "integer")]
    return add_watermark(sources, *times[0]) if len(times) == 1 else sources


def add_watermark(sources: Sources, alias: str, name: str) -> Sources:
    """The sources with a watermark of no lag for a column, if it has none yet."""
    source = sources[alias]
    field = source.field(name)
    if field is None or source.watermark(name) is not None:
        return sources
    watermark = Watermark(name, Amount(0, time_type_of(field.type) != "integer"))
    return {**sources, alias: replace(source, watermarks=(*source.watermarks, watermark))}


def time_family(ref: Reference, sources: Sources) -> TimeType | None:
    """The family of event times that a column could be of; None if it could be none."""
    return time_type_of(column_type(ref, sources))


def column_type(ref: Reference, sources: Sources) -> str:
    """The type of a column as it was declared."""
    field = sources[ref.source].field(ref.name)
    return "" if field is None else field.type


def sources_without_watermark(side: AnalyzedRelation) -> tuple[AnalyzedLeaf, ...]:
    """The sources without a watermark under a join, as far as no join between has asked them for one."""
    match side:
        case AnalyzedScan() | AnalyzedView():
            return () if side.source.watermarks else (side,)
        case AnalyzedLateral():
            return sources_without_watermark(side.input)
        case AnalyzedJoin():
            return tuple(leaf for below in side.optional_time_sides for leaf in sources_without_watermark(below))
        case _:
            return ()


def watermark_hint(side: AnalyzedLeaf, compared: list[str]) -> str:
    """The hint for the watermark of a source; ``compared`` are its columns that a condition mentions."""
    source = side.source
    if isinstance(side, AnalyzedView):
        inside, windowed = sources_without_watermark(side.query.relation), side.query.relation
        if inside and isinstance(windowed, AnalyzedLateral) and windowed.array.op == "windows":
            return watermark_hint(inside[0], [ref.name for ref in windowed.array.references])
        hidden = event_times(show_event_time(side))
        if hidden:
            name = side.alias if is_unnamed(source.name) else source.name
            return f"show `{hidden[0].column.name.removeprefix('#')}` in {name}, as it is: it has a watermark."
        return "select a watermarked column in that view, as it is."
    column = _likely_time(source, compared)
    if side.parts:
        return _union_hint(side, column)
    if source.span == NOWHERE:
        if column is None or time_type_of(column.type) == "integer":
            return (
                f'add a TIMESTAMP column to the DataFrame {source.name}, and call `.withWatermark(name, "5 seconds")`.'
            )
        return f'call `.withWatermark("{column.name}", "5 seconds")` on the DataFrame {source.name}.'
    if column is None:
        return f"add a TIMESTAMP column to {source.name}, and `WATERMARK FOR` it."
    return f"add {example_lag(column.name, time_type_of(column.type))} to the columns of {source.name}."


def _union_hint(side: AnalyzedLeaf, column: Field | None) -> str:
    if column is None:
        names = format_list([part.name for part in side.parts])
        return f"add a TIMESTAMP column to {names}, and `WATERMARK FOR` it in each."
    position = side.source.fields.index(column)
    bare = {p.name: p.fields[position] for p in side.parts if not p.watermark(p.fields[position].name)}
    examples = {name: example_lag(field.name, time_type_of(field.type)) for name, field in bare.items()}
    return "add " + format_list([f"{example} to the columns of {name}" for name, example in examples.items()]) + "."


_TIME_NAME = re.compile(r"^(t|ts|time|timestamp)$|_(at|ts|time|timestamp)$", re.IGNORECASE)
"""Integer columns that are likely times."""


def _likely_time(source: Source, compared: list[str]) -> Field | None:
    """A timestamp that the condition mentions, a timestamp, a date, or an integer that the condition mentions."""

    def likelihood(field: Field) -> tuple[bool, bool, bool]:
        family = time_type_of(field.type)
        return family != "integer", field.name in compared, family != "date"

    fields = [
        f
        for f in source.fields
        if (family := time_type_of(f.type))
        and (family != "integer" or f.name in compared or _TIME_NAME.search(f.name) is not None)
    ]
    # Of integers the last one mentioned: keys are written before times.
    fields.sort(key=lambda field: compared.index(field.name) if field.name in compared else -1, reverse=True)
    return max(fields, key=likelihood, default=None)


def check_heartbeats(script: Script, sources: Mapping[str, Source]) -> Iterator[Refusal]:
    """Names in heartbeats that mean nothing: only columns of the source itself can be named."""
    for name, condition in script.heartbeats:
        source = sources.get(name.lower(), Source(name, ()))
        yield from check_names(script, condition, scope_of(source.name, source))
        for call in (*aggregates_in(condition), *window_calls_in(condition)):
            construct, hint = f"The aggregate {call.text}() in HEARTBEAT WHEN", "compare columns of the row itself."
            yield Refusal("UNSUPPORTED_STATEMENT", {"what": construct, "hint": hint}, script.place(call.span))


def heartbeat_of(draft: Draft, scan: Scan) -> Expr | None:
    """The condition under which a row of a source is a heartbeat, in the columns of its alias."""
    condition = next((c for name, c in draft.script.heartbeats if name.lower() == scan.source.lower()), None)
    source = draft.sources.get(scan.source.lower())
    if condition is None or source is None:
        return None
    # The declaration knows nothing of the alias, so names are looked up under the name of the source.
    heartbeat = resolve_expression(condition, scope_of(source.name, source))
    return heartbeat.map_references(lambda ref: replace(ref, source=scan.alias)) if is_resolved(heartbeat) else None


def view_watermark(name: str, time: TimeColumn, sources: Mapping[str, Source]) -> Watermark:
    """The watermark of a time under the name that a view gives it."""
    watermark = sources[time.alias].watermark(time.name) if time.alias in sources else None
    return Watermark(name, Amount(0, is_interval=True)) if watermark is None else replace(watermark, column=name)


def window_bounds(
    query: AnalyzedQuery, times: tuple[EventTimeColumn, ...]
) -> tuple[tuple[tuple[str, str], ...], tuple[WindowStart, ...]]:
    """The columns of a result that end a window, and those that start one, around a time that it shows."""
    shown_as = {time.column: o.name for o in query.outputs if (time := find_event_time(o.expr, times)) is not None}
    if not shown_as:
        return (), ()
    bounds = [(output.name, window_bound(output.expr, query.relation)) for output in query.outputs]
    timed = [(name, bound, shown_as[bound.time]) for name, bound in bounds if bound and bound.time in shown_as]
    ended = {bound.window: name for name, bound, _ in timed if not bound.length}
    ends = tuple((name, time) for name, bound, time in timed if not bound.length)
    starts = (
        WindowStart(name, time, bound.length, ended.get(bound.window, "") if bound.window else "", bound.shortest)
        for name, bound, time in timed
        if bound.length
    )
    return ends, tuple(starts)


def show_window_time(relation: AnalyzedRelation, column: Expr) -> AnalyzedRelation:
    """The relation, which also shows the time of the window that a column starts or ends, as an event time.

    It is unchanged if it shows the time already, or if the column is not from a view of a windowed source.
    """
    ref = column.refs[0] if column.op == "column" else None
    if not isinstance(relation, AnalyzedView) or ref is None or ref.source != relation.alias or ref.path:
        return relation
    query = relation.query
    output = next((output for output in query.outputs if output.name == ref.name), None)
    if output is None or query.group is not None or query.top is not None or query.result == "table":
        return relation
    inner = show_window_time(query.relation, output.expr)
    bound = window_bound(output.expr, inner)
    if bound is None or window_bound(column, relation) is not None:
        return relation
    time = next(time for time in event_times(inner) if time.column == bound.time)
    return _with_time(relation, inner, time)


def show_event_time(relation: AnalyzedLeaf) -> AnalyzedLeaf:
    """The relation, which also shows an event time of what it reads, if it shows none."""
    if event_times(relation) or not isinstance(relation, AnalyzedView):
        return relation
    query = relation.query
    if query.group is not None or query.top is not None or query.result == "table":
        return relation
    inner = query.relation
    if isinstance(inner, AnalyzedLeaf):
        inner = show_event_time(inner)
    times = event_times(inner)
    return _with_time(relation, inner, times[0]) if times else relation


def _with_time(relation: AnalyzedView, inner: AnalyzedRelation, time: EventTimeColumn) -> AnalyzedView:
    """The view over ``inner``, which also shows an event time of that."""
    query = relation.query
    # The generated name of a column that the query does not show.
    name = f"#{time.column.name.removeprefix('#')}"
    shown = Output(name, _time_expression(time.column))
    query = replace(query, relation=inner, outputs=(*query.outputs, shown))
    watermark = view_watermark(name, time.column, {leaf.alias: leaf.source for leaf in analyzed_leaves(inner)})
    ends, starts = window_bounds(query, event_times(inner))
    source = replace(
        relation.source, fields=(*relation.source.fields, Field(name, time.type, hidden=True)),
        watermarks=(*relation.source.watermarks, watermark), ends=ends, starts=starts,
    )  # fmt: skip
    return replace(relation, source=source, query=query)


def _time_expression(time: TimeColumn) -> Expr:
    return Expr("column", text="t", refs=(Reference((time.alias, time.name), 0, 1, time.alias, time.name),))
