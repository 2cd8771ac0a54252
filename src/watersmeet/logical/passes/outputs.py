"""The targets of a script's queries: their sinks, and those of side outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from watersmeet.catalog import Field, Source, Span
from watersmeet.errors import Refusal, did_you_mean
from watersmeet.formats import may_be_malformed, sink_format
from watersmeet.formats.source import SHOWN
from watersmeet.logical.nodes import Query, Script, leaves
from watersmeet.logical.passes.column_types import is_same_type
from watersmeet.logical.passes.draft import Draft


def check_targets(script: Script, sources: Mapping[str, Source]) -> tuple[Refusal, ...]:
    """Refuse a place that two queries write to: their files and checkpoints would get into each other's way.

    So is a sink that nothing can be written to as its options are.
    """
    refusals: list[Refusal] = []
    seen: set[str] = set()
    formats = {sink.name.lower(): sink_format(sink) for sink in script.sinks}
    for query in script.queries:
        for name, span in _targets(query):
            format_ = formats.get(name.lower())
            place = name.lower() if format_ is None else format_.place
            if place in seen:
                refusals.append(_refusal(script, name, span))
            elif format_ is not None:
                refusals += [replace(wrong, place=script.place(format_.sink.span)) for wrong in format_.check()]
            seen.add(place)
    return tuple(refusals)


def _targets(query: Query) -> Iterator[tuple[str, Span]]:
    """The sinks a query names; late rows into the sink of the result itself are refused with the query."""
    if query.into is not None:
        yield query.into, query.into_span
    if query.late_into is not None and query.late_into.lower() != (query.into or "").lower():
        yield query.late_into, query.late_into_span
    yield from ((side_output.sink, side_output.span) for side_output in query.side_outputs)


def _refusal(script: Script, name: str, span: Span) -> Refusal:
    hint = "give every output its own sink, with its own path."
    parameters = {"name": name, "before": "the sink of another output", "hint": hint}
    return Refusal("DUPLICATE_NAME", parameters, script.place(span))


def check_outputs(draft: Draft) -> Iterator[Refusal]:
    """Sinks that are not there, and outputs that the query does not have."""
    yield from _check_known(draft)
    yield from _check_late(draft)
    yield from _check_malformed(draft)
    yield from (refusal for family in draft.families for refusal in family.check_outputs(draft))


def _check_known(draft: Draft) -> Iterator[Refusal]:
    sinks = [sink.name for sink in draft.script.sinks]
    for name, span in _sinks(draft.query):
        if name.lower() not in [sink.lower() for sink in sinks]:
            yield draft.refusal("UNKNOWN_SINK", span, sink=name, suggestion=did_you_mean(name, sinks))


def _sinks(query: Query) -> Iterator[tuple[str, Span]]:
    """The sinks that must be declared. Without INSERT INTO, side outputs go to the caller that runs the query."""
    if query.into is not None:
        yield query.into, query.into_span
    if query.late_into is not None:
        yield query.late_into, query.late_into_span
    yield from (
        (side_output.sink, side_output.span)
        for side_output in query.side_outputs
        if side_output.is_instead or query.into is not None
    )


def _check_late(draft: Draft) -> Iterator[Refusal]:
    query = draft.query
    if query.late_into is None:
        return
    if query.late_into.lower() == (query.into or "").lower():
        hint = "declare another sink with CREATE SINK: late rows have other columns than the result."
        yield draft.refuse_unsupported(query.late_into_span, "LATE INTO the sink of the result", hint)
    if len(leaves(query.relation)) == 1:
        hint = "leave LATE INTO out: it needs a join."
        yield draft.refuse_unsupported(query.late_into_span, "LATE INTO without a join", hint)
    sink = draft.script.sink(query.late_into)
    if sink is not None and sink.fields:
        yield wrong_output(
            draft, query.late_into_span, "Late rows", f"{sink.name} declares columns, but late rows have their own",
            "declares columns", f"declare {sink.name} without columns.",
        )  # fmt: skip


def _check_malformed(draft: Draft) -> Iterator[Refusal]:
    for side_output in draft.query.side_outputs:
        if side_output.column != SHOWN:
            continue
        sink = draft.script.sink(side_output.sink)
        if sink is not None and sink.fields:
            reason = f"{sink.name} declares columns, but malformed rows have their own"
            hint = f"declare {sink.name} without columns."
            yield wrong_output(draft, side_output.span, "Malformed rows", reason, "declares columns", hint)
        if not any(map(may_be_malformed, draft.script.sources)):
            hint = "leave MALFORMED INTO out: only text and records have malformed rows."
            yield draft.refuse_unsupported(
                side_output.span, "MALFORMED INTO where no source has rows that may be malformed", hint
            )


def check_columns(draft: Draft, name: str | None, span: Span, output: str, source: Source) -> Iterator[Refusal]:
    """A sink that declares columns takes whole rows of a source only if they are the columns of that source."""
    sink = draft.script.sink(name)
    if sink is not None and sink.fields and source.fields and not _has_same_columns(sink.fields, source.fields):
        reason = f"its columns are those of {source.name}, but {name} declares others"
        hint = f"declare {name} with the columns of {source.name}, or without any."
        yield wrong_output(draft, span, output, reason, f"not the columns of {source.name}", hint)


def _has_same_columns(fields: tuple[Field, ...], others: tuple[Field, ...]) -> bool:
    pairs = zip(fields, others, strict=False)
    return len(fields) == len(others) and all(
        a.name.lower() == b.name.lower() and is_same_type(a.type, b.type) for a, b in pairs
    )


def wrong_output(draft: Draft, span: Span, output: str, reason: str, cause: str, hint: str) -> Refusal:
    """The refusal of an output that does not fit."""
    return draft.refusal("WRONG_OUTPUT", span, what=output, reason=reason, cause=cause, hint=hint)
