"""The pass that looks at where the queries of a script write to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from watersmeet.catalog import Source, Span
from watersmeet.errors import Refusal
from watersmeet.formats import sink_format
from watersmeet.plan.nodes import Query, Script


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
    yield from ((apart.sink, apart.span) for apart in query.apart)


def _refusal(script: Script, name: str, span: Span) -> Refusal:
    hint = "give every output a sink of its own, with a path of its own."
    parameters = {"name": name, "before": "the sink of another output", "hint": hint}
    return Refusal("DUPLICATE_NAME", parameters, script.place(span))
