"""Which times a condition over batches compares, that are then taken as watermarked."""

from __future__ import annotations

from watersmeet.analyze.assume_watermarks import family_named, only_time, type_named, watermarked
from watersmeet.analyze.comparison import Comparison, compare
from watersmeet.analyze.family import Sources
from watersmeet.analyze.meaning import is_resolved
from watersmeet.plan.expressions import Expr, Reference, conjuncts
from watersmeet.plan.nodes import Join, Relation, leaves

Pair = tuple[Reference, Reference]


def assumed(join: Join, declared: Sources, sources: Sources) -> Sources:
    """The sources with watermarks for the times that the condition compares; ``declared``: as they were before."""
    if join.within is not None and all(_has_time(side, declared) for side in join.inputs):
        return sources
    pairs = _pairs(join, declared)
    if join.within is not None:
        # WITHIN speaks of the event times, so what is compared in one direction may be anything.
        pairs = {pair: directions for pair, directions in pairs.items() if len(directions) == 2}
    if pairs:
        chosen = max(pairs, key=lambda pair: (len(pairs[pair]), _is_declared(pair, declared)))
        for ref in chosen:
            sources = watermarked(sources, ref.source, ref.name)
    elif join.within is not None:
        for side in join.inputs:
            sources = only_time(side, sources)
    return sources


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
    families = [None if ref.path else family_named(ref, sources) for ref in refs]
    # An equality of two integers is more likely one of identifiers.
    is_identity = found.direction == "=" and not found.constants and "integer" in families
    is_kept = found.is_kept(lambda column: type_named(_reference(column), sources))
    return is_kept and None not in families and (not is_identity or _is_declared((refs[0], refs[1]), sources))


def _is_declared(pair: Pair, sources: Sources) -> bool:
    return all(sources[ref.source].watermark(ref.name) for ref in pair)


def _has_time(side: Relation, sources: Sources) -> bool:
    return any(sources[leaf.alias].watermarks for leaf in leaves(side))


def _reference(expr: Expr) -> Reference:
    [ref] = expr.refs
    return ref


def _bare(ref: Reference) -> Reference:
    return Reference((), 0, 0, ref.source, ref.name)
