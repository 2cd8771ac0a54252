"""Values that stand for the columns of a row that is missing: those of PAD and of DEFAULT."""

from __future__ import annotations

from collections.abc import Iterator

from watersmeet.analyze.column_types import takes
from watersmeet.analyze.draft import Draft
from watersmeet.catalog import NOWHERE, Source, Span
from watersmeet.errors import Refusal, did_you_mean
from watersmeet.plan.nodes import Values
from watersmeet.plan.words import expression_in_words


def check_values(draft: Draft, values: Values, source: Source, span: Span) -> Iterator[Refusal]:
    """What is wrong with values for columns of a source, which ``span`` gives."""
    for name, value in values:
        place = value.span if value.span != NOWHERE else span
        field = source.field(name)
        if field is None:
            suggestion = did_you_mean(name, [f.name for f in source.fields])
            where = f"in {source.name}"
            yield draft.refusal("UNKNOWN_COLUMN", place, column=name, where=where, suggestion=suggestion)
            continue
        parameters = {"value": expression_in_words(value), "column": field.name, "type": field.type}
        if any(True for _ in value.references):
            reason, hint = "there is no row to take a column from", "write a constant."
            yield draft.refusal("WRONG_VALUE", place, **parameters, reason=reason, cause="not a constant", hint=hint)
        elif not takes(field.type, value):
            reason = "the types differ"
            hint = f"write a constant of type {field.type}, or `CAST(... AS {field.type})`."
            yield draft.refusal("WRONG_VALUE", place, **parameters, reason=reason, cause=f"not {field.type}", hint=hint)


def declared_values(values: Values, source: Source) -> Values:
    """The values with the columns spelled as they were declared."""
    return tuple((field.name, value) for name, value in values if (field := source.field(name)) is not None)
