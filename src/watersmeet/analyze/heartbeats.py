"""Heartbeats: rows that advance the time of their source and are no rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from watersmeet.analyze.draft import Draft
from watersmeet.analyze.meaning import is_resolved, misses, resolved
from watersmeet.analyze.scope import scope_of
from watersmeet.catalog import Source
from watersmeet.errors import Refusal
from watersmeet.plan.expressions import Expr, aggregates_in
from watersmeet.plan.nodes import Scan, Script


def check_heartbeats(script: Script, sources: Mapping[str, Source]) -> Iterator[Refusal]:
    """Names in heartbeats that mean nothing: only columns of the source itself can be named."""
    for name, condition in script.heartbeats:
        source = sources.get(name.lower(), Source(name, ()))
        yield from misses(script, condition, scope_of(source.name, source))
        for call in aggregates_in(condition):
            what, hint = f"The aggregate {call.text}() in HEARTBEAT WHEN", "compare columns of the row itself."
            yield Refusal("UNSUPPORTED_STATEMENT", {"what": what, "hint": hint}, script.place(call.span))


def heartbeat_of(draft: Draft, scan: Scan) -> Expr | None:
    """The condition under which a row of a source is a heartbeat, in the columns of its alias."""
    condition = next((c for name, c in draft.script.heartbeats if name.lower() == scan.source.lower()), None)
    source = draft.sources.get(scan.source.lower())
    if condition is None or source is None:
        return None
    # The declaration knows nothing of the alias, so names are looked up under the name of the source.
    found = resolved(condition, scope_of(source.name, source))
    return found.map_references(lambda ref: replace(ref, source=scan.alias)) if is_resolved(found) else None
