"""Views: the columns of a query as a source, and the query in place of its name.

A union of tables that operators make becomes a view, too, if no operator follows: each different row is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from watersmeet.catalog import NOWHERE, Amount, Field, Source, Span, Watermark, WindowStart
from watersmeet.errors import Refusal
from watersmeet.formats.records import KEY_FORMAT, format_of_key
from watersmeet.logical.expressions import GROUP, Expr, Reference
from watersmeet.logical.nodes import StorageFormats, View
from watersmeet.logical.passes.column_types import (
    event_times,
    find_event_time,
    type_of,
)
from watersmeet.logical.passes.draft import Draft
from watersmeet.logical.passes.group import final_outputs, final_time_columns, find_closing_time
from watersmeet.logical.passes.scope import KEY, group_column, key_of, key_struct, show_column
from watersmeet.logical.passes.watermarks import view_watermark, window_bounds
from watersmeet.logical.query import AnalyzedGroup, AnalyzedQuery, Output, QueryWarning
from watersmeet.logical.relation import (
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedLeaf,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedUnion,
    AnalyzedView,
    TimeColumn,
    laterals,
    leaves,
    views,
)

ORDER = "#order"
"""The name of the column with the order of arrival where a view does not show it."""

_COUNTED, _TIMES, _COPY = "#counted", "#times", "#copy"
_T = TypeVar("_T")


def as_source(name: str, query: AnalyzedQuery, span: Span, store: StorageFormats | None = None) -> Source:
    """A query as a source: its columns, the watermarks that pass through it, and its key, which ``*`` leaves out."""
    sources = _sources(query)
    shown = tuple(Field(o.name, type_of(o.expr, sources) or "") for o in query.outputs)
    fields_ = (*shown, *(Field(o.name, type_of(o.expr, sources) or "", hidden=True) for o in _extra_outputs(query)))
    times = () if query.result == "table" or _has_group_or_top(query) else event_times(query.relation)
    watermarks = tuple(
        view_watermark(output.name, time.column, sources)
        for output in query.outputs
        if (time := find_event_time(output.expr, times)) is not None
    )
    ends, starts = window_bounds(query, times)
    if query.result == "stream" and _has_group_or_top(query):
        fields_, watermarks, starts = _final_times(query, fields_)
    format_ = _key_format(query, store, sources)
    options = {} if format_ is None else {KEY_FORMAT: format_}
    inner, order = _source_with_key(query), _order(query)
    if inner is not None and not inner.primary_key:
        options |= {"key": ", ".join(inner.key)}
    return Source(
        name, fields_, watermarks, query.result, options=options, span=span,
        order=None if order is None else order.name,
        primary_key=_primary_key(query) if inner is None else inner.primary_key, ends=ends, starts=starts,
        final_columns=final_outputs(query),
    )  # fmt: skip


def _final_times(
    query: AnalyzedQuery, fields_: tuple[Field, ...]
) -> tuple[tuple[Field, ...], tuple[Watermark, ...], tuple[WindowStart, ...]]:
    """The columns of groups that come out once, their event time, and the columns that follow from it.

    It is the column next to the end of the window. A later group may have any time that is not before its watermark, so
    a window of such a time ends a microsecond after it.
    """
    columns, time = final_time_columns(query), find_closing_time(query)
    if not columns or time is None:
        return fields_, (), ()
    name, nearest = columns[0]
    # A window of dates has timestamps as its bounds.
    type_ = "TIMESTAMP" if time.family == "date" else time.type
    bounds = {column for column, _ in columns}
    fields_ = tuple(replace(field, type=field.type or type_) if field.name in bounds else field for field in fields_)
    starts = tuple(WindowStart(column, name, behind - nearest + 1, name) for column, behind in columns)
    return fields_, (Watermark(name, Amount(0, time.family != "integer")),), starts


def check_view(draft: Draft, view: View, sources: Mapping[str, Source]) -> Iterator[Refusal]:
    """The refusals of a view itself: a duplicate name, outputs that only a top-level query has."""
    if view.name.lower() in sources:
        hint = "give one of them another name."
        before = "a stream, table or view"
        yield draft.refusal("DUPLICATE_NAME", view.span, name=view.name, before=before, hint=hint)
    query = view.query
    for span in (query.into_span, query.late_into_span, *(side_output.span for side_output in query.side_outputs)):
        if span != NOWHERE:
            hint = "leave INTO out, or write the query as a separate statement."
            yield draft.refuse_unsupported(span, "A view with a sink", hint)


def place_view(
    alias: str, source: Source, query: AnalyzedQuery, watermarks: tuple[Watermark, ...] = ()
) -> AnalyzedLeaf:
    """A query in the place of its name: a scan if all it does is to leave out rows and columns of one source.

    ``watermarks`` are the watermarks that the query around it gives its columns.
    """
    inner = query.relation
    is_plain = (
        isinstance(inner, AnalyzedScan)
        and not inner.parts
        and not query.where
        and query.group is None
        and query.top is None
        and query.result == inner.source.kind
        # A view that hides a watermarked column is reported by its own name where the column is missing.
        and len(source.watermarks) == len(inner.source.watermarks)
        and all(_is_itself(output) for output in (*query.outputs, *_key(query)))
    )
    if not is_plain:
        named = {watermark.column for watermark in watermarks}
        # A column is final by its own watermark, or has a watermark of arrivals from the query.
        source = replace(source, final_columns=tuple(name for name in source.final_columns if name not in named))
        return AnalyzedView(
            alias, source, replace(query, outputs=(*query.outputs, *_extra_outputs(query))), outer_watermarks=watermarks
        )
    assert isinstance(inner, AnalyzedScan)
    scan = replace(rename_aliases(inner, {inner.alias: alias}), alias=alias)
    return replace(scan, source=replace(inner.source, fields=_order_fields(query, inner), watermarks=source.watermarks))


def _order_fields(query: AnalyzedQuery, scan: AnalyzedScan) -> tuple[Field, ...]:
    """The columns of a source in the order in which a query shows them, then those that it leaves out."""
    places = {output.name: place for place, output in enumerate(query.outputs)}
    hidden = (replace(field, hidden=field.hidden or field.name not in places) for field in scan.source.fields)
    return tuple(sorted(hidden, key=lambda field: places.get(field.name, len(places) + (field.name != KEY))))


def make_aliases_unique(query: AnalyzedQuery) -> AnalyzedQuery:
    """The query with aliases inside views that no other part of it has, so that every scan has a name of its own."""
    # Columns are compared without case, as in Spark.
    relation = _rename_inner_aliases(query.relation, Counter(alias.lower() for alias in _aliases(query.relation)))
    return replace(query, relation=relation, warnings=all_warnings(query))


def _rename_inner_aliases(relation: AnalyzedRelation, used: Counter[str]) -> AnalyzedRelation:
    """The relation with the insides of its views renamed wherever an alias occurs twice in the whole query."""
    if isinstance(relation, AnalyzedView):
        own = _own_aliases(relation.query.relation)
        names = {alias: f"{relation.alias}/{alias}" for alias in own if used[alias.lower()] > 1}
        elements = frozenset(lateral.alias for lateral in laterals(relation.query.relation))
        inner = rename_aliases(relation.query, names, elements)
        return replace(relation, query=replace(inner, relation=_rename_inner_aliases(inner.relation, used)))
    return relation.with_inputs([_rename_inner_aliases(side, used) for side in relation.inputs])


def _own_aliases(relation: AnalyzedRelation) -> Iterator[str]:
    """The aliases of a relation itself, without those inside its views."""
    for leaf in leaves(relation):
        yield leaf.alias
        yield from (side.alias for side in leaf.sides) if isinstance(leaf, AnalyzedUnion) else ()
    yield from (lateral.alias for lateral in laterals(relation))


def _aliases(relation: AnalyzedRelation) -> Iterator[str]:
    """All aliases of a relation, those inside views too."""
    if isinstance(relation, AnalyzedLeaf | AnalyzedLateral):
        yield relation.alias
    for side in relation.inputs:
        yield from _aliases(side)


def rename_aliases(node: _T, names: Mapping[str, str], elements: frozenset[str] = frozenset()) -> _T:
    """A part of a plan with other aliases; names inside views are not changed.

    ``elements`` are the aliases of laterals, whose column is named after the alias.

    >>> rename_aliases((TimeColumn("a", "t"), 5), {"a": "b"})
    (TimeColumn(alias='b', name='t'), 5)
    """
    return cast("_T", _rename_node(node, names, elements)) if names else node


def _rename_node(node: Any, names: Mapping[str, str], elements: frozenset[str]) -> Any:
    if isinstance(node, tuple):
        return tuple(_rename_node(part, names, elements) for part in cast("tuple[Any, ...]", node))
    if isinstance(node, Reference):
        source = names.get(node.source, node.source)
        return replace(node, source=source, name=source if node.source in elements else node.name)
    if isinstance(node, Source | Span) or not is_dataclass(node) or isinstance(node, type):
        return node
    changed = {f.name: _rename_node(getattr(node, f.name), names, elements) for f in fields(node)}
    if isinstance(node, AnalyzedLeaf | AnalyzedLateral | TimeColumn):
        changed["alias"] = names.get(node.alias, node.alias)
    if isinstance(node, AnalyzedView):
        changed["query"] = node.query
    if isinstance(node, AnalyzedLateral):
        element = tuple(replace(field, name=changed["alias"]) for field in node.source.fields)
        changed["source"] = replace(node.source, name=changed["alias"], fields=element)
    return replace(node, **changed)


def _sources(query: AnalyzedQuery) -> dict[str, Source]:
    """The sources that the outputs of a query refer to, by alias."""
    sources: dict[str, Source] = {leaf.alias: leaf.source for leaf in leaves(query.relation)}
    sources |= {lateral.alias: lateral.source for lateral in laterals(query.relation)}
    if query.group is not None:
        sources[GROUP] = Source(GROUP, tuple(Field(by.name, type_of(by.expr, sources) or "") for by in query.group.by))
    return sources


def all_warnings(query: AnalyzedQuery) -> tuple[QueryWarning, ...]:
    """The warnings of a query and of the views in it, each once."""
    inside = (all_warnings(view.query) for view in views(query.relation))
    return tuple(dict.fromkeys((*query.warnings, *(warned for view_warnings in inside for warned in view_warnings))))


def _extra_outputs(query: AnalyzedQuery) -> tuple[Output, ...]:
    """The columns of a result that ``*`` leaves out: its key, and the order of arrival, where they are not shown."""
    order = _order(query)
    return _key(query) if order is None or order in query.outputs else (*_key(query), order)


def _order(query: AnalyzedQuery) -> Output | None:
    """The column that gives the order in which the rows of a result arrive, which is that of its only source."""
    relation = query.relation
    while isinstance(relation, AnalyzedLateral):
        relation = relation.input
    if not isinstance(relation, AnalyzedLeaf) or relation.source.order is None or query.result == "table":
        return None
    column = show_column(relation.alias, relation.source, relation.source.order)
    if column is None:
        return None
    named = (o for o in query.outputs if o.expr.op == "column" and not o.expr.refs[0].path)
    ref = column.expr.refs[0]
    return next((o for o in named if o.expr.refs[0].column == ref.column), Output(ORDER, column.expr))


def _key(query: AnalyzedQuery) -> tuple[Output, ...]:
    """The key of a result as a further column; none if it has no key, or shows it."""
    is_shown = any(output.name.lower() == KEY for output in query.outputs) or _source_with_key(query) is not None
    if not query.key or is_shown:
        return ()
    return (Output(KEY, query.key[0] if len(query.key) == 1 else key_struct(query.key)),)


def _has_group_or_top(query: AnalyzedQuery) -> bool:
    return query.group is not None or query.top is not None


def _source_with_key(query: AnalyzedQuery) -> Source | None:
    """The only source of a query that shows the columns of its key as they are; they are the key of the result too."""
    source = query.relation.source if isinstance(query.relation, AnalyzedScan | AnalyzedView) else None
    if source is None or source.kind != query.result or _has_group_or_top(query) or query.key != key_of(query.relation):
        return None
    shown = {output.name.lower() for output in query.outputs if _is_itself(output)}
    return source if source.key and {name.lower() for name in source.key} <= shown else None


def _key_format(query: AnalyzedQuery, store: StorageFormats | None, sources: Mapping[str, Source]) -> str | None:
    """The format of the key of a result: its storage format, or that of the record whose key it is."""
    if store is not None and store.key is not None:
        return store.key
    [ref] = query.key[0].refs if len(query.key) == 1 and query.key[0].op == "column" else [None]
    source = None if ref is None else sources.get(ref.source)
    return format_of_key(source) if ref is not None and source is not None and source.key == (ref.name,) else None


def _primary_key(query: AnalyzedQuery) -> tuple[str, ...]:
    """The key columns of a result's groups, if it shows them all."""
    if query.group is None:
        return ()
    shown = {output.expr.refs[0].name: output.name for output in query.outputs if output.expr.op == "column"}
    names = tuple(shown.get(by.name) for by in query.group.by)
    return tuple(name for name in names if name is not None) if None not in names else ()


def _is_itself(output: Output) -> bool:
    """Whether a column of a result is a column of its source under the same name."""
    ref = output.expr.refs[0] if output.expr.op == "column" else None
    return ref is not None and not ref.path and ref.name == output.name


def count_unions(query: AnalyzedQuery) -> AnalyzedQuery:
    """The query with an operator behind each union that is part of its result, if the union has operators before it.

    Spark takes the result of a query from its last operator, and such a union has one in every part. So the last
    operator is a grouping by all columns, and each row of the result comes as often as it was counted.
    """
    if query.group is not None or query.top is not None:
        return query
    return replace(query, relation=_count(query.relation))


def _count(relation: AnalyzedRelation) -> AnalyzedRelation:
    if isinstance(relation, AnalyzedView):
        return replace(relation, query=count_unions(relation.query))
    if isinstance(relation, AnalyzedUnion):
        is_counted = relation.result == "table" and any(map(_has_operator, relation.sides))
        return _count_rows(relation) if is_counted else relation
    if isinstance(relation, AnalyzedLateral):
        return relation.with_inputs([_count(relation.input)])
    through = relation.passthrough_input
    if through is None:
        return relation
    return relation.with_inputs([_count(side) if side is through else side for side in relation.inputs])


def _has_operator(relation: AnalyzedRelation) -> bool:
    """Whether an operator makes the rows of a relation."""
    if isinstance(relation, AnalyzedScan):
        return bool(relation.source.primary_key) and not relation.source.is_static
    if isinstance(relation, AnalyzedView):
        query = relation.query
        is_latest = query.result != query.relation.result
        return query.group is not None or query.top is not None or is_latest or _has_operator(query.relation)
    if isinstance(relation, AnalyzedJoin) and relation.passthrough_input is None:
        return True
    return any(map(_has_operator, relation.inputs))


def _count_rows(union: AnalyzedUnion) -> AnalyzedView:
    """The same rows, from a grouping that counts them."""
    fields = union.source.fields
    by = tuple(Output(f"k{n}", _column(union.alias, field.name)) for n, field in enumerate(fields))
    group = AnalyzedGroup(by, (Output("a0", Expr("aggregate", text="count")),), None, None, union.source.span)
    keys = tuple(group_column(output.name) for output in by)
    columns = tuple(Output(field.name, key) for field, key in zip(fields, keys, strict=True))
    outputs = (*columns, Output(_TIMES, group_column("a0")))
    counted = AnalyzedQuery(union, outputs, result="table", group=group, key=keys)
    source = Source(_COUNTED, (*fields, Field(_TIMES, "BIGINT")), kind="table")
    times = Expr("cast", (_column(_COUNTED, _TIMES),), value="INT")
    array = Expr("call", (Expr("literal", text="0", value=0), times), "array_repeat")
    copies = AnalyzedLateral(
        AnalyzedView(_COUNTED, source, counted), array, _COPY, Source(_COPY, (Field(_COPY, "INT"),))
    )
    shown = tuple(Output(field.name, _column(_COUNTED, field.name)) for field in fields)
    return AnalyzedView(union.alias, union.source, AnalyzedQuery(copies, shown, result="table"))


def _column(alias: str, name: str) -> Expr:
    return Expr("column", text=name, refs=(Reference((alias, name), 0, len(name), alias, name),))
