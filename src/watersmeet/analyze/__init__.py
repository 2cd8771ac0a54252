"""May the query run? An ordered tuple of passes, each a function from a draft to a better draft.

A pass adds what it found out and what it must refuse; it never stops the ones after it, so that a script with mistakes
in every corner reports them all. A query is refused here and nowhere else, or it runs in bounded state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from watersmeet.analyze.assume_watermarks import assume_watermarks
from watersmeet.analyze.check_declarations import check_declarations
from watersmeet.analyze.check_settings import check_settings
from watersmeet.analyze.check_targets import check_targets
from watersmeet.analyze.draft import Draft, Inputs
from watersmeet.analyze.expand import expand
from watersmeet.analyze.find_bounds import find_bounds
from watersmeet.analyze.move_filters import move_filters
from watersmeet.analyze.resolve import resolve
from watersmeet.analyze.split_condition import split_condition
from watersmeet.catalog import Source
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.plan.analyzed import AnalyzedQuery
from watersmeet.plan.nodes import Script

__all__ = ["CHECKS", "PASSES", "Inputs", "analyze"]

CHECKS = (check_declarations, check_settings, check_targets)
"""What is looked at once per script."""

PASSES = (resolve, expand, assume_watermarks, find_bounds, split_condition, move_filters)
"""What every query goes through, in this order."""


def analyze(
    script: Script, extra_sources: Mapping[str, Source] | None = None, *, inputs: Inputs = "streams"
) -> tuple[AnalyzedQuery, ...]:
    """The queries of a script as they may run; raises one error with everything that is wrong in it.

    ``extra_sources`` are those that no text declares, by name. A declaration of the same name goes before.

    >>> from watersmeet.catalog import Field
    >>> from watersmeet.plan.nodes import Query, Scan, Star
    >>> script = Script("example", "", queries=(Query(Scan("orders", "o"), (Star(),)),))
    >>> [query] = analyze(script, {"orders": Source("orders", (Field("id", "BIGINT"),))})
    >>> [output.name for output in query.outputs]
    ['id']
    """
    sources = _sources(script, extra_sources or {})
    refusals = [refusal for check in CHECKS for refusal in check(script, sources)]
    drafts: list[Draft] = []
    for query in script.queries:
        draft = Draft(script, query, sources, inputs)
        for improve in PASSES:
            draft = improve(draft)
        drafts.append(draft)
        refusals += draft.refusals
    if refusals:
        raise WatersmeetError(_in_order(refusals))
    return tuple(draft.finished() for draft in drafts)


def _sources(script: Script, extra: Mapping[str, Source]) -> dict[str, Source]:
    given = {name.lower(): replace(source, name=name) for name, source in extra.items()}
    sources = dict(given)
    for declared in script.sources:
        frame = given.get(declared.name.lower())
        # A DataFrame may bring the watermark that its declaration leaves out.
        watermarks = declared.watermarks or (frame.watermarks if frame else ())
        sources[declared.name.lower()] = replace(declared, watermarks=watermarks)
    return sources


def _in_order(refusals: list[Refusal]) -> list[Refusal]:
    once = [refusal for i, refusal in enumerate(refusals) if refusal not in refusals[:i]]
    return sorted(once, key=lambda refusal: refusal.place.start if refusal.place else -1)
