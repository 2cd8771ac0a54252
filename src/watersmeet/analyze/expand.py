"""The pass that turns the projection into the columns of the result, or into those that its sink declares.

What SELECT does not give of the columns of a sink is forwarded from the sources, by name and type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from watersmeet.analyze.column_types import is_same_type, type_of
from watersmeet.analyze.draft import Draft
from watersmeet.analyze.meaning import is_resolved
from watersmeet.analyze.scope import KEY, VALUE, ScopeColumn, show_column
from watersmeet.catalog import NOWHERE, Field, Sink, Span
from watersmeet.errors import Refusal, did_you_mean
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import Item, Star, leaves
from watersmeet.plan.query import Output
from watersmeet.plan.words import expression_in_words, word


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
    # A facet of several columns is an expression that its author wrote as a column.
    facet = written.rsplit(".", 1)[-1].strip("` ").lower()
    name = facet if facet in (KEY, VALUE) else written or expression_in_words(expr)
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
    """The columns of the sink in its order, each with what it is assigned; of a sink that declares none, SELECT's."""
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
    """What SELECT gives for a column; an expression whose type only Spark knows is cast to that of the column."""
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
