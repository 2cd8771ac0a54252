"""The passes that resolve names and expand the projection into the columns of the result or of its sink.

Columns of a sink that SELECT does not give are forwarded from the sources, by name and type.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from watersmeet.catalog import NOWHERE, Field, Sink, Source, Span
from watersmeet.errors import Refusal, did_you_mean, unique_refusals
from watersmeet.logical.expressions import Expr
from watersmeet.logical.nodes import Item, Lateral, Query, Relation, Scan, Star, Union, laterals, leaves
from watersmeet.logical.passes.build_relation import check_union, merge_parts
from watersmeet.logical.passes.check_declarations import check_watermark
from watersmeet.logical.passes.column_types import element_of, is_same_type, type_of, with_query_watermarks
from watersmeet.logical.passes.draft import Draft
from watersmeet.logical.passes.meaning import ResolvedRelation, check_names, is_resolved, resolve_expression
from watersmeet.logical.passes.scope import KEY, VALUE, Scope, ScopeColumn, UnresolvedName, scope_of, show_column
from watersmeet.logical.passes.sinks import check_outputs
from watersmeet.logical.query import Output
from watersmeet.logical.words import expression_in_words, word


def resolve_relation(draft: Draft, relation: Relation) -> ResolvedRelation:
    """The relation with its names resolved, its scope, and the refusals of unknown names."""
    match relation:
        case Scan():
            source = with_query_watermarks(
                draft.sources.get(relation.source.lower(), Source(relation.source, ())), relation
            )
            return relation, _scope(draft, relation.alias, source), []
        case Union():
            scope = _scope(draft, relation.alias, merge_parts(draft, relation))
            return relation, scope, list(check_union(draft, relation))
        case Lateral():
            return _resolve_lateral(draft, relation)
        case _:
            sides = [resolve_relation(draft, side) for side in relation.inputs]
            relation = relation.with_inputs([side for side, _, _ in sides])
            joined, scope, own = draft.family(relation).resolve_names(
                draft, relation, tuple(scope for _, scope, _ in sides)
            )
            return joined, scope, [*(refusal for *_, refusals in sides for refusal in refusals), *own]


def _scope(draft: Draft, alias: str, source: Source) -> Scope:
    hints = {name: hint for family in draft.families for name, hint in family.columns.items()}
    return replace(scope_of(alias, source), unavailable_columns=hints)


def _resolve_lateral(draft: Draft, lateral: Lateral) -> ResolvedRelation:
    """A lateral join: its array sees the relations before it, and its element is a column for those after it."""
    below, scope, refusals = resolve_relation(draft, lateral.input)
    array = resolve_expression(lateral.array, scope)
    refusals += check_names(draft.script, lateral.array, scope)
    type_ = type_of(array, scope.sources) or ""
    element = element_of(type_)
    if element is None:
        reason, hint = f"it is {type_}, not an array.", "name an array, or make one: `array(a, b)`."
        text = f"`{expression_in_words(array)}`"
        refusals.append(draft.refusal("TYPE_MISMATCH", lateral.array.span, expression=text, reason=reason, hint=hint))
    source = Source(lateral.alias, (Field(lateral.alias, element or ""),), span=lateral.span)
    return replace(lateral, input=below, array=array), scope.combine(scope_of(lateral.alias, source)), refusals


def resolve(draft: Draft) -> Draft:
    """The draft with every reference resolved; one that means nothing is refused and stays unresolved.

    After it every join has an ON: what USING or the lack of a condition stands for is written out. A join that could
    not be given one has none.
    """
    query = draft.query
    refusals = [*_check_aliases(draft), *_check_sources(draft)]
    relation, scope, more = resolve_relation(draft, query.relation)
    by = tuple(_resolve_group_by(query, expr, scope) for expr in query.group_by)
    having = None if query.having is None else _resolve_having(query, query.having, scope)
    group_by = tuple(resolve_expression(expr, scope) for expr in by)
    grouped = _with_windows(scope, group_by)
    items = tuple(
        i if isinstance(i, Star) else replace(i, expr=resolve_expression(i.expr, grouped)) for i in query.items
    )
    more += (_explain_name_of_select(query, refusal) for refusal in check_names(draft.script, query.where, scope))
    for expr in by:
        more += check_names(draft.script, expr, scope)
    for expr in (*(item.expr for item in query.items if isinstance(item, Item)), having):
        more += check_names(draft.script, expr, grouped)
    more = unique_refusals(more)
    more += [*_check_places(draft, by)]
    where = None if query.where is None else resolve_expression(query.where, scope)
    having = None if having is None else resolve_expression(having, grouped)
    query = replace(query, relation=relation, items=items, where=where, group_by=group_by, having=having)
    draft = replace(draft, query=query, scope=scope).with_refusals([*refusals, *more])
    return draft.with_refusals(check_outputs(draft))


def _with_windows(scope: Scope, group_by: Sequence[Expr]) -> Scope:
    """The names that SELECT and HAVING can mention: ``window`` is a window of GROUP BY, as in Spark."""
    windows = [(name, expr) for expr in group_by if (name := _WINDOW_CALL.match(expr.text)) and expr.op == "other"]
    names = [match[1].lower() for match, _ in windows]
    columns = (
        ScopeColumn(name, name, _WINDOW_TYPE, replace(expr, span=NOWHERE))
        for name, (_, expr) in zip(names, windows, strict=True)
        if names.count(name) == 1
    )
    return replace(scope, extra_columns=(*scope.extra_columns, *columns))


_WINDOW_CALL = re.compile(r"(window|session_window)\s*\(", re.IGNORECASE)
_WINDOW_FIELD = re.compile(r"(session_)?window\.(start|end)", re.IGNORECASE)
_WINDOW_TYPE = "STRUCT<start: TIMESTAMP, end: TIMESTAMP>"


def _resolve_group_by(query: Query, expr: Expr, scope: Scope) -> Expr:
    """Resolve GROUP BY: a number is the column of SELECT at that position, as in Spark, and an AS name its column.

    A column goes before a name that AS gave.
    """
    place = expr.value if expr.op == "literal" else None
    if isinstance(place, int) and not isinstance(place, bool) and 0 < place <= len(query.items):
        item = query.items[place - 1]
        return item.expr if isinstance(item, Item) else expr
    if (
        expr.op == "column"
        and len(expr.refs[0].parts) == 1
        and isinstance(scope.find(expr.refs[0].parts), UnresolvedName)
    ):
        name = expr.refs[0].parts[0].lower()
        return next((i.expr for i in query.items if isinstance(i, Item) and (i.name or "").lower() == name), expr)
    return expr


def _resolve_having(query: Query, expr: Expr, scope: Scope) -> Expr:
    """Resolve HAVING: AS names stand for the columns of SELECT."""
    if expr.op == "column":
        return _resolve_group_by(query, expr, scope)
    return replace(expr, args=tuple(_resolve_having(query, arg, scope) for arg in expr.args))


def _explain_name_of_select(query: Query, refusal: Refusal) -> Refusal:
    """The refusal of a name in WHERE, with what to write if it is that of a column of SELECT."""
    name = refusal.parameters.get("column", "")
    is_item = any(isinstance(item, Item) and (item.name or "").lower() == name.lower() for item in query.items)
    if refusal.condition != "UNKNOWN_COLUMN" or not is_item:
        return refusal
    hint = (
        f"SELECT names it behind WHERE: write `SELECT * FROM (SELECT ... AS {word(name)} ...) WHERE {word(name)} ...`."
    )
    return replace(refusal, parameters={**refusal.parameters, "suggestion": hint})


def _check_places(draft: Draft, by: tuple[Expr, ...]) -> Iterator[Refusal]:
    """Refuse numbers in GROUP BY that are not the position of a column."""
    for expr in by:
        if expr.op == "literal":
            hint = "name the columns to group by; a number is the position of a column in SELECT."
            yield draft.refuse_unsupported(expr.span, f"GROUP BY {expr.text}", hint)


def _check_aliases(draft: Draft) -> Iterator[Refusal]:
    seen = dict[str, Scan | Union | Lateral]()
    for leaf in (*leaves(draft.query.relation), *laterals(draft.query.relation)):
        first = seen.setdefault(leaf.alias.lower(), leaf)
        if first is not leaf:
            written = leaf.source if isinstance(leaf, Scan) and not leaf.source.startswith("#") else ")"
            before_it = "" if isinstance(leaf, Lateral) else f"{written} "
            hint = f"give it another name, for example `{before_it}AS {leaf.alias}2`."
            before = f"the alias of {_describe_leaf(first)}"
            yield draft.refusal("DUPLICATE_NAME", leaf.span, name=leaf.alias, before=before, hint=hint)


def _describe_leaf(leaf: Scan | Union | Lateral) -> str:
    if isinstance(leaf, Scan):
        return "a subquery" if leaf.source.startswith("#") else leaf.source
    return "a union" if isinstance(leaf, Union) else "an element"


def _check_sources(draft: Draft) -> Iterator[Refusal]:
    for scan, place in _places(draft, draft.query.relation):
        source = draft.sources.get(scan.source.lower())
        if source is None:
            is_later = scan.source.lower() in {view.name.lower() for view in draft.script.views}
            later = f"declare the view {scan.source} before its first use."
            suggestion = later if is_later else did_you_mean(scan.source, _source_names(draft))
            if draft.script.sink(scan.source) is not None:
                suggestion = f"{scan.source} is a sink: make a view of its query, and read the view in both."
            yield draft.refusal("UNKNOWN_SOURCE", scan.span, source=scan.source, suggestion=suggestion)
        elif source.kind == "table" and place is not None:
            hint = "name a stream instead, or write JOIN, which looks up a table from a stream and joins two tables."
            yield draft.refuse_unsupported(scan.span, f"{place} the table {scan.source}", hint)
        if source is not None and source.fields:
            yield from (
                wrong for watermark in scan.watermarks for wrong in check_watermark(draft.script, source, watermark)
            )


def _source_names(draft: Draft) -> list[str]:
    return [source.name for source in draft.sources.values()]


def _places(draft: Draft, relation: Relation) -> Iterator[tuple[Scan, str | None]]:
    """The sources of a relation, each with the construct that excludes tables; None: a table is allowed."""
    if isinstance(relation, Scan | Union):
        yield from ((scan, None) for scan in (relation.scans if isinstance(relation, Union) else (relation,)))
        return
    own = None if isinstance(relation, Lateral) else draft.family(relation).excludes_tables(relation)
    for side in relation.inputs:
        yield from ((scan, place or own) for scan, place in _places(draft, side))


@dataclass(frozen=True)
class _Column:
    """A column of the result whose name may still change: ``alias`` goes before it if others have the same name."""

    name: str
    expr: Expr
    span: Span
    alias: str | None = None


def expand(draft: Draft) -> Draft:
    """The draft with its outputs. Names that clash get their alias before them, unless AS gave them."""
    refusals, columns = list[Refusal](), list[_Column]()
    for item in draft.query.items:
        if isinstance(item, Item):
            columns += [_name_item(draft, item)] if is_resolved(item.expr) else []
        elif item.alias is not None and draft.scope.alias(item.alias) is None:
            refusals.append(_unknown(draft, item.alias, item.span))
        else:
            columns += [_Column(s.name, s.expr, item.span, s.alias) for s in _expand_star(draft, item)]
    unique_columns = _disambiguate_names(columns)
    if not draft.query.is_distinct:
        unique_columns = [column for column in unique_columns if column.name not in draft.query.hides]
    selected = [(Output(column.name, column.expr), column.span) for column in unique_columns]
    outputs, wrong = assign_sink_columns(draft, selected)
    return replace(draft, outputs=outputs).with_refusals([*refusals, *_duplicates(draft, unique_columns), *wrong])


def _unknown(draft: Draft, alias: str, span: Span) -> Refusal:
    """The refusal of ``alias.*`` for an alias that is not there, or that a join hides."""
    hidden = draft.scope.hint(alias) if alias.lower() in [name.lower() for name in draft.scope.hidden] else None
    if hidden is None:
        suggestion = did_you_mean(alias, draft.scope.visible)
        return draft.refusal("UNKNOWN_SOURCE", span, source=alias, suggestion=suggestion)
    where = f"in {draft.names_of(draft.scope.visible)}"
    return draft.refusal("UNKNOWN_COLUMN", span, column=f"{alias}.*", where=where, suggestion=hidden)


def _expand_star(draft: Draft, star: Star) -> tuple[ScopeColumn, ...]:
    if star.alias is None:
        return draft.scope.columns
    alias = draft.scope.alias(star.alias)
    assert alias is not None, "an unknown alias has been refused"
    source = draft.scope.sources[alias]
    return tuple(s for f in source.fields if not f.hidden and (s := show_column(alias, source, f.name)))


def _name_item(draft: Draft, item: Item) -> _Column:
    expr = item.expr
    if item.name is not None:
        return _Column(item.name, expr, expr.span)
    if expr.op == "column":
        [ref] = expr.refs
        # A column of the join itself has no source whose alias could go before it.
        alias = ref.source if ref.source in draft.scope.sources else None
        name = KEY if ref.parts and ref.parts[-1].lower() == KEY else (ref.name, *ref.path)[-1]
        return _Column(name, expr, expr.span, alias)
    written = draft.script.text[expr.span.start : expr.span.end] if expr.span != NOWHERE else ""
    # A facet of several columns, or a field of a window, is an expression that its author wrote as a column.
    facet = written.rsplit(".", 1)[-1].strip("` ").lower()
    is_named = facet in (KEY, VALUE) or _WINDOW_FIELD.fullmatch(written) is not None
    name = facet if is_named else written or expression_in_words(expr)
    return _Column(name, expr, expr.span)


def _disambiguate_names(columns: list[_Column]) -> list[_Column]:
    owners = {(column.name.lower(), column.alias) for column in columns}
    clashes = Counter(name for name, _ in owners)
    return [
        replace(column, name=f"{column.alias}_{column.name}")
        if column.alias is not None and clashes[column.name.lower()] > 1
        else column
        for column in columns
    ]


def _duplicates(draft: Draft, columns: list[_Column]) -> list[Refusal]:
    if len(draft.scope.sources) < len(leaves(draft.query.relation)):
        # Two sources under one alias have been refused, and all their columns would follow.
        return []
    refusals, seen = list[Refusal](), dict[str, _Column]()
    for column in columns:
        before = seen.setdefault(column.name.lower(), column)
        if before is not column:
            hint = f"name one of them, for example `AS {word(f'{column.name}_2')}`."
            shown = f"`{expression_in_words(before.expr)}`"
            refusal = draft.refusal("DUPLICATE_NAME", column.span, name=column.name, before=shown, hint=hint)
            refusals.append(refusal)
    return refusals


SelectedColumn = tuple[Output, Span]
"""A column of SELECT and its place."""


def assign_sink_columns(draft: Draft, selected: Sequence[SelectedColumn]) -> tuple[tuple[Output, ...], list[Refusal]]:
    """The columns of the sink in its order, each with its output; for a sink without columns, those of SELECT."""
    sink = draft.script.sink(draft.query.into)
    if sink is None or not sink.fields:
        return tuple(output for output, _ in selected), []
    refusals = [
        draft.refusal("UNKNOWN_COLUMN", span, column=output.name, where=f"in the sink {sink.name}", suggestion=hint)
        for output, span in selected
        if all(field.name.lower() != output.name.lower() for field in sink.fields)
        if (hint := did_you_mean(output.name, [field.name for field in sink.fields]))
    ]
    outputs = list[Output]()
    for field in sink.fields:
        selected_column = next((pair for pair in selected if pair[0].name.lower() == field.name.lower()), None)
        output = (
            _forward_column(draft, sink, field)
            if selected_column is None
            else _fit_output(draft, sink, field, *selected_column)
        )
        if isinstance(output, Output):
            outputs.append(output)
        elif output is not None:
            refusals.append(output)
    return tuple(outputs), refusals


def _forward_column(draft: Draft, sink: Sink, field: Field) -> Output | Refusal | None:
    """The first column of that name and type, from left to right; None where an unknown source could have it."""
    named = draft.scope.find_columns(field.name)
    same = next((shown for shown in named if is_same_type(shown.type, field.type)), None)
    if same is not None:
        return Output(field.name, same.expr)
    if not draft.scope.is_whole:
        return None
    if named:
        shown = f"{named[0].alias}.{named[0].name}"
        cause = f"`{shown}` is {named[0].type}, not {field.type}"
        hint = f"add `CAST({shown} AS {field.type}) AS {field.name}` to SELECT."
    else:
        cause = f"no source has a column `{field.name}` {field.type}"
        hint = f"add `... AS {field.name}` to SELECT, or leave it out of the declaration of {sink.name}."
    place = draft.query.into_span
    return draft.refusal("UNASSIGNED_COLUMN", place, sink=sink.name, column=field.name, cause=cause, hint=hint)


def _fit_output(draft: Draft, sink: Sink, field: Field, output: Output, span: Span) -> Output | Refusal:
    """Fit an output to a column of the sink; if only Spark knows its type, cast it to the type of the column."""
    type_ = type_of(output.expr, draft.scope.sources)
    if type_ is None:
        cast = Expr("cast", (output.expr,), value=field.type, span=output.expr.span)
        return replace(output, name=field.name, expr=cast)
    if is_same_type(type_, field.type):
        return replace(output, name=field.name)
    text = expression_in_words(output.expr)
    reason = f"it is {type_}, but {sink.name} declares {field.type}."
    hint = f"write `CAST({text} AS {field.type}) AS {field.name}`."
    return draft.refusal("TYPE_MISMATCH", span, expression=f"`{field.name}`", reason=reason, hint=hint)
