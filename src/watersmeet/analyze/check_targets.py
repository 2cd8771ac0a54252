"""The pass that looks at where the queries of a script write to."""

from __future__ import annotations

from collections.abc import Mapping

from watersmeet.catalog import Source, Span
from watersmeet.errors import Refusal
from watersmeet.plan.nodes import Script


def check_targets(script: Script, sources: Mapping[str, Source]) -> tuple[Refusal, ...]:
    """Refuse a sink that two queries write to: their files and checkpoints would get into each other's way."""
    refusals: list[Refusal] = []
    seen: set[str] = set()
    for query in script.queries:
        for name, span in ((query.into, query.into_span), (query.late_into, query.late_into_span)):
            if name is None:
                continue
            if name in seen:
                refusals.append(_refusal(script, name, span))
            seen.add(name)
    return tuple(refusals)


def _refusal(script: Script, name: str, span: Span) -> Refusal:
    hint = "give every query a sink of its own."
    parameters = {"name": name, "before": "the sink of another query", "hint": hint}
    return Refusal("DUPLICATE_NAME", parameters, script.place(span))
