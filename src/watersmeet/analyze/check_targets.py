"""The pass that looks at where the queries of a script write to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from watersmeet.catalog import Sink, Source, Span
from watersmeet.errors import Refusal
from watersmeet.plan.nodes import Query, Script

_DATABASE = ("url", "dsn", "host", "port", "dbname")
"""The options that say which database a table is of."""


def check_targets(script: Script, sources: Mapping[str, Source]) -> tuple[Refusal, ...]:
    """Refuse a place that two queries write to: their files and checkpoints would get into each other's way."""
    refusals: list[Refusal] = []
    seen: set[str] = set()
    places = {sink.name.lower(): _place(sink) for sink in script.sinks}
    for query in script.queries:
        for name, span in _targets(query):
            place = places.get(name.lower(), name.lower())
            if place in seen:
                refusals.append(_refusal(script, name, span))
            seen.add(place)
    return tuple(refusals)


def _targets(query: Query) -> Iterator[tuple[str, Span]]:
    """The sinks a query names; late rows into the sink of the result itself are refused with the query."""
    if query.into is not None:
        yield query.into, query.into_span
    if query.late_into is not None and query.late_into.lower() != (query.into or "").lower():
        yield query.late_into, query.late_into_span
    if query.unmatched_left_into is not None:
        yield query.unmatched_left_into, query.unmatched_left_span
    if query.unmatched_right_into is not None:
        yield query.unmatched_right_into, query.unmatched_right_span
    yield from query.ports_into


def _place(sink: Sink) -> str:
    """Where a sink writes: its path, its table of a database, or what stands for it."""
    options = {key.lower(): value for key, value in sink.options.items()}
    if "path" in options:
        return f"path {options['path'].rstrip('/')}"
    table = options.get("table") or options.get("dbtable")
    if table is None:
        return sink.name.lower()
    return " ".join(("table", table.lower(), *(options.get(name, "") for name in _DATABASE)))


def _refusal(script: Script, name: str, span: Span) -> Refusal:
    hint = "give every output a sink of its own, with a path of its own."
    parameters = {"name": name, "before": "the sink of another output", "hint": hint}
    return Refusal("DUPLICATE_NAME", parameters, script.place(span))
