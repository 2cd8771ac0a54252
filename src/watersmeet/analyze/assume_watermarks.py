"""The pass that, for batches, takes the times that a condition compares as watermarked.

All rows of a batch are there, so no watermark is needed to tell when a row can be forgotten; what is needed is which
columns are the event times. They are the pair of columns that the condition compares in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from watersmeet.analyze.comparison import Comparison, compare
from watersmeet.analyze.draft import Draft
from watersmeet.analyze.event_time import Family, family_of
from watersmeet.analyze.meaning import is_resolved
from watersmeet.analyze.table_joins import kind_asked
from watersmeet.catalog import Amount, Source, Watermark
from watersmeet.plan.expressions import Expr, Reference, conjuncts
from watersmeet.plan.nodes import AsofJoin, Join, Lateral, Relation, SyncJoin, leaves

Sources = Mapping[str, Source]
Pair = tuple[Reference, Reference]


def assume_watermarks(draft: Draft) -> Draft:
    """The draft with watermarks of no lag where batches declare none; streams stay as they are."""
    if draft.inputs == "streams":
        return draft
    sources = _assume(draft.query.relation, draft.scope.sources, draft.scope.sources)
    return replace(draft, scope=replace(draft.scope, sources=sources))


def _assume(relation: Relation, declared: Sources, sources: Sources) -> Sources:
    if isinstance(relation, SyncJoin):
        for leaf in relation.inputs:
            sources = _only_time(leaf, sources)
        return sources
    if isinstance(relation, Lateral):
        return _assume(relation.input, declared, sources)
    if isinstance(relation, AsofJoin):
        return _of_versions(relation, _assume(relation.left, declared, sources))
    if not isinstance(relation, Join) or relation.is_windowed:
        return sources
    sources = _assume(relation.right, declared, _assume(relation.left, declared, sources))
    if "table" in (kind_asked(relation.left, declared), kind_asked(relation.right, declared)):
        # A table is read as it is, whatever the times in a condition are.
        return sources
    if relation.within is not None and all(_has_time(side, declared) for side in (relation.left, relation.right)):
        return sources
    pairs = _pairs(relation, declared)
    if relation.within is not None:
        # WITHIN speaks of the event times, so what is compared in one direction may be anything.
        pairs = {pair: directions for pair, directions in pairs.items() if len(directions) == 2}
    if pairs:
        chosen = max(pairs, key=lambda pair: (len(pairs[pair]), _is_declared(pair, declared)))
        for ref in chosen:
            sources = _watermarked(sources, ref.source, ref.name)
    elif relation.within is not None:
        for side in (relation.left, relation.right):
            sources = _only_time(side, sources)
    return sources


def _of_versions(join: AsofJoin, sources: Sources) -> Sources:
    """The times that a match condition compares; of FOR SYSTEM_TIME, the only time of the versions."""
    asked = join.match if join.as_of is None else join.as_of
    for ref in asked.references if asked is not None and is_resolved(asked) else ():
        if not ref.path and _family(ref, sources) is not None:
            sources = _watermarked(sources, ref.source, ref.name)
    return sources if join.as_of is None else _only_time(join.right, sources)


def _pairs(join: Join, sources: Sources) -> dict[Pair, set[str]]:
    """The pairs of columns, left one first, that could be event times, each with the directions that are bounded."""
    left, right = ({leaf.alias for leaf in leaves(side)} for side in (join.left, join.right))
    pairs = dict[Pair, set[str]]()
    for part in conjuncts(join.on):
        found = compare(part)
        if found is None or not is_resolved(part) or not _is_about_time(found, sources):
            continue
        high, low = _reference(found.high), _reference(found.low)
        if high.source in left and low.source in right:
            pairs.setdefault((_bare(high), _bare(low)), set()).update({"=": "<>"}.get(found.direction, ">"))
        elif high.source in right and low.source in left:
            pairs.setdefault((_bare(low), _bare(high)), set()).update({"=": "<>"}.get(found.direction, "<"))
    return pairs


def _is_about_time(found: Comparison, sources: Sources) -> bool:
    refs = [_reference(side) for side in (found.high, found.low)]
    families = [None if ref.path else _family(ref, sources) for ref in refs]
    # An equality of two integers is more likely one of identifiers.
    is_identity = found.direction == "=" and not found.constants and "integer" in families
    is_kept = found.is_kept(lambda column: _type(_reference(column), sources))
    return is_kept and None not in families and (not is_identity or _is_declared((refs[0], refs[1]), sources))


def _is_declared(pair: Pair, sources: Sources) -> bool:
    return all(sources[ref.source].watermark(ref.name) for ref in pair)


def _has_time(side: Relation, sources: Sources) -> bool:
    return any(sources[leaf.alias].watermarks for leaf in leaves(side))


def _only_time(side: Relation, sources: Sources) -> Sources:
    aliases = [leaf.alias for leaf in leaves(side)]
    if any(sources[alias].watermarks for alias in aliases):
        return sources
    times = [(a, f.name) for a in aliases for f in sources[a].fields if family_of(f.type) not in (None, "integer")]
    return _watermarked(sources, *times[0]) if len(times) == 1 else sources


def _watermarked(sources: Sources, alias: str, name: str) -> Sources:
    source = sources[alias]
    field = source.field(name)
    if field is None or source.watermark(name) is not None:
        return sources
    mark = Watermark(name, Amount(0, family_of(field.type) != "integer"))
    return {**sources, alias: replace(source, watermarks=(*source.watermarks, mark))}


def _family(ref: Reference, sources: Sources) -> Family | None:
    return family_of(_type(ref, sources))


def _type(ref: Reference, sources: Sources) -> str:
    field = sources[ref.source].field(ref.name)
    return "" if field is None else field.type


def _reference(expr: Expr) -> Reference:
    [ref] = expr.refs
    return ref


def _bare(ref: Reference) -> Reference:
    return Reference((), 0, 0, ref.source, ref.name)
