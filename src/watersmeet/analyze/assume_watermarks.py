"""The pass that, for batches, takes the times that a join compares as watermarked.

All rows of a batch are there, so no watermark is needed to tell when a row can be forgotten; what is needed is which
columns are the event times. Which they are, the family of the join says.
"""

from __future__ import annotations

from dataclasses import replace

from watersmeet.analyze.draft import Draft
from watersmeet.analyze.event_time import family_of
from watersmeet.analyze.family import Sources
from watersmeet.catalog import Amount, Watermark
from watersmeet.plan.expressions import Reference
from watersmeet.plan.nodes import Lateral, Relation, leaves
from watersmeet.type_names import Family


def assume_watermarks(draft: Draft) -> Draft:
    """The draft with watermarks of no lag where batches declare none; streams stay as they are."""
    if draft.inputs == "streams":
        return draft
    sources = _assume(draft, draft.query.relation, draft.scope.sources)
    return replace(draft, scope=replace(draft.scope, sources=sources))


def _assume(draft: Draft, relation: Relation, sources: Sources) -> Sources:
    for side in relation.inputs:
        sources = _assume(draft, side, sources)
    if not relation.inputs or isinstance(relation, Lateral):
        return sources
    return draft.family(relation).assume(draft, relation, sources)


def only_time(side: Relation, sources: Sources) -> Sources:
    """The sources with a watermark for the one time that a side has, if it has no watermark yet."""
    aliases = [leaf.alias for leaf in leaves(side)]
    if any(sources[alias].watermarks for alias in aliases):
        return sources
    times = [(a, f.name) for a in aliases for f in sources[a].fields if family_of(f.type) not in (None, "integer")]
    return watermarked(sources, *times[0]) if len(times) == 1 else sources


def watermarked(sources: Sources, alias: str, name: str) -> Sources:
    """The sources with a watermark of no lag for a column, if it has none yet."""
    source = sources[alias]
    field = source.field(name)
    if field is None or source.watermark(name) is not None:
        return sources
    mark = Watermark(name, Amount(0, family_of(field.type) != "integer"))
    return {**sources, alias: replace(source, watermarks=(*source.watermarks, mark))}


def family_named(ref: Reference, sources: Sources) -> Family | None:
    """The family of event times that a column could be of; None if it could be none."""
    return family_of(type_named(ref, sources))


def type_named(ref: Reference, sources: Sources) -> str:
    """The type of a column as it was declared."""
    field = sources[ref.source].field(ref.name)
    return "" if field is None else field.type
