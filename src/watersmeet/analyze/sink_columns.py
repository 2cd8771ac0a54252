"""The columns that a sink declares: what SELECT does not give is forwarded from the sources, by name and type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from watersmeet.analyze.column_types import is_same, type_of
from watersmeet.analyze.draft import Draft
from watersmeet.catalog import Field, Sink, Span
from watersmeet.errors import Refusal, did_you_mean
from watersmeet.plan.expressions import Expr
from watersmeet.plan.relation import Output
from watersmeet.plan.words import expression_in_words

Selected = tuple[Output, Span]
"""A column of SELECT and its place."""


def assigned(draft: Draft, selected: Sequence[Selected]) -> tuple[tuple[Output, ...], list[Refusal]]:
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
        found = next((pair for pair in selected if pair[0].name.lower() == field.name.lower()), None)
        output = _forwarded(draft, sink, field) if found is None else _fitted(draft, sink, field, *found)
        if isinstance(output, Output):
            outputs.append(output)
        elif output is not None:
            refusals.append(output)
    return tuple(outputs), refusals


def _forwarded(draft: Draft, sink: Sink, field: Field) -> Output | Refusal | None:
    """The first column of that name and type, from left to right; None where an unknown source could have it."""
    named = draft.scope.named(field.name)
    same = next((shown for shown in named if is_same(shown.type, field.type)), None)
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


def _fitted(draft: Draft, sink: Sink, field: Field, output: Output, span: Span) -> Output | Refusal:
    """What SELECT gives for a column; an expression whose type only Spark knows is cast to that of the column."""
    type_ = type_of(output.expr, draft.scope.sources)
    if type_ is None:
        cast = Expr("cast", (output.expr,), value=field.type, span=output.expr.span)
        return replace(output, name=field.name, expr=cast)
    if is_same(type_, field.type):
        return replace(output, name=field.name)
    text = expression_in_words(output.expr)
    reason = f"it is {type_}, and {sink.name} declares {field.type}."
    hint = f"write `CAST({text} AS {field.type}) AS {field.name}`."
    return draft.refusal("TYPE_MISMATCH", span, expression=f"`{field.name}`", reason=reason, hint=hint)
