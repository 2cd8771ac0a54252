"""The pass that proves that the state of every join is bounded.

A bound is ``column >= other - constant`` between watermarked columns of the two sides, taken from the parts of ON that
are joined by AND and from WITHIN. It lets the rows of ``column``'s side be forgotten once the watermark of ``other``
has gone on, so a join needs one in each direction. What is a bound is wholly expressed by it; the rest is a condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from watersmeet.analyze.comparison import Comparison, compare
from watersmeet.analyze.draft import Draft
from watersmeet.analyze.event_time import EventTime, event_times, is_sound, scans_of
from watersmeet.analyze.heartbeats import heartbeat_of
from watersmeet.analyze.meaning import is_resolved
from watersmeet.analyze.time_units import check_pair, check_within
from watersmeet.analyze.unbounded import missing_watermarks, unbounded, unclear_within
from watersmeet.analyze.unions import parts_of, union_heartbeat
from watersmeet.catalog import Amount, Span
from watersmeet.errors import Refusal
from watersmeet.plan.analyzed import AnalyzedJoin, AnalyzedRelation, AnalyzedScan, TimeBound, Warned
from watersmeet.plan.expressions import Expr, conjuncts
from watersmeet.plan.nodes import Join, Relation, Scan, Union


def find_bounds(draft: Draft) -> Draft:
    """The draft with its relation built: every join with its bounds, the rest of its condition still in one piece."""
    relation, refusals = _relation(draft, draft.query.relation)
    return replace(draft, relation=relation).refusing(refusals).warning(_never_met(draft, relation))


@dataclass(frozen=True)
class _Found:
    """What a part of the condition says about time: bounds, perhaps an equality as well, or why it is refused."""

    bounds: tuple[TimeBound, ...] = ()
    keys: tuple[tuple[Expr, Expr], ...] = ()
    refusals: tuple[Refusal, ...] = ()


def _relation(draft: Draft, relation: Relation) -> tuple[AnalyzedRelation, list[Refusal]]:
    if not isinstance(relation, Join):
        return _scan(draft, relation), []
    left, refusals = _relation(draft, relation.left)
    right, more = _relation(draft, relation.right)
    joined = AnalyzedJoin(left, right, relation.kind, (), (), span=relation.span)
    joined, own = _bound(draft, relation, joined)
    return joined, [*refusals, *more, *own]


def _scan(draft: Draft, leaf: Scan | Union) -> AnalyzedScan:
    parts = parts_of(draft, leaf) if isinstance(leaf, Union) else ()
    heartbeat = union_heartbeat(draft, leaf) if isinstance(leaf, Union) else heartbeat_of(draft, leaf)
    return AnalyzedScan(leaf.alias, draft.scope.sources[leaf.alias], parts=parts, heartbeat=heartbeat)


def _bound(draft: Draft, join: Join, joined: AnalyzedJoin) -> tuple[AnalyzedJoin, list[Refusal]]:
    parts = tuple(part for part in conjuncts(join.on) if is_resolved(part))
    left, right = event_times(joined.left), event_times(joined.right)
    found = [(part, _in_part(draft, part, left, right)) for part in parts]
    within = _in_within(draft, join, left, right)
    every = [*(f for _, f in found if f), *([within] if within else [])]
    rest = tuple(part for part, f in found if f is None)
    bounds = _lowest((bound for f in every for bound in f.bounds), left)
    keys = tuple(key for f in every for key in f.keys)
    refusals = [refusal for f in every for refusal in f.refusals]
    joined = replace(joined, keys=keys, bounds=bounds, residual=rest)
    if is_resolved(join.on) and _is_sound(joined) and not refusals:
        refusals = missing_watermarks(draft, join, joined) or unclear_within(draft, join, joined)
        refusals = refusals or unbounded(draft, joined)
    return joined, refusals


def _is_sound(joined: AnalyzedJoin) -> bool:
    """True if nothing under the join has been refused that would make a missing bound a mere consequence."""
    scans = scans_of(joined)
    names = {scan.alias.lower() for scan in scans}
    return len(names) == len(scans) and all(is_sound(scan.source) for scan in scans)


def _in_part(draft: Draft, part: Expr, left: tuple[EventTime, ...], right: tuple[EventTime, ...]) -> _Found | None:
    comparison = compare(part)
    if comparison is None:
        return None
    high, low = (_time(side, left + right) for side in (comparison.high, comparison.low))
    if high is None or low is None or (high in left) == (low in left):
        return None
    if not comparison.is_kept(lambda column: high.type if column == comparison.high else low.type):
        return None
    refusal = check_pair(draft, comparison, high, low, part.span)
    if refusal is not None:
        return _Found(refusals=(refusal,))
    return _Found(tuple(_bounds(comparison, high, low, part.span)), _key(comparison, high, low, high in left))


def _bounds(comparison: Comparison, high: EventTime, low: EventTime, span: Span) -> Iterator[TimeBound]:
    constant = comparison.constant(high.family)
    yield TimeBound(high.column, low.column, constant, comparison.direction == ">", span)
    if comparison.direction == "=":
        yield TimeBound(low.column, high.column, -constant, span=span)


def _key(comparison: Comparison, high: EventTime, low: EventTime, is_in_order: bool) -> tuple[tuple[Expr, Expr], ...]:
    """Equal times are a key as well, which spreads the rows over the shards."""
    if comparison.direction != "=" or comparison.constant(high.family) or high.type.upper() != low.type.upper():
        return ()
    high_first, low_first = (comparison.high, comparison.low), (comparison.low, comparison.high)
    return (high_first if is_in_order else low_first,)


def _time(column: Expr, times: tuple[EventTime, ...]) -> EventTime | None:
    [ref] = column.refs
    named = (ref.source, ref.name)
    return None if ref.path else next((t for t in times if (t.column.alias, t.column.name) == named), None)


def _in_within(draft: Draft, join: Join, left: tuple[EventTime, ...], right: tuple[EventTime, ...]) -> _Found | None:
    if join.within is None or len(left) != 1 or len(right) != 1:
        return None
    amount, span = join.within.amount, join.within.span
    refusal = check_within(draft, amount, left[0], right[0], span)
    if refusal is not None:
        return _Found(refusals=(refusal,))
    return _Found(tuple(_both(amount, left[0], right[0], span)))


def _both(amount: Amount, left: EventTime, right: EventTime, span: Span) -> Iterator[TimeBound]:
    yield TimeBound(left.column, right.column, amount.value, span=span)
    yield TimeBound(right.column, left.column, amount.value, span=span)


def _lowest(bounds: Iterable[TimeBound], left: tuple[EventTime, ...]) -> tuple[TimeBound, ...]:
    """Of several bounds of one pair the lowest implies the others; of two equal ones the strict one does."""
    lowest = dict[tuple[object, object], TimeBound]()
    for bound in bounds:
        known = lowest.setdefault((bound.column, bound.other), bound)
        if (bound.constant, not bound.strict) < (known.constant, not known.strict):
            lowest[bound.column, bound.other] = bound
    columns = [time.column for time in left]
    return tuple(sorted(lowest.values(), key=lambda bound: bound.column not in columns))


def _never_met(draft: Draft, relation: AnalyzedRelation) -> Iterator[Warned]:
    if isinstance(relation, AnalyzedScan):
        return
    yield from _never_met(draft, relation.left)
    yield from _never_met(draft, relation.right)
    for i, one in enumerate(relation.bounds):
        for other in relation.bounds[i + 1 :]:
            width = one.constant + other.constant
            is_opposite = (one.column, one.other) == (other.other, other.column)
            if is_opposite and (width < 0 or (width == 0 and (one.strict or other.strict))):
                yield Warned(
                    f"No time satisfies both bounds of {one.column} and {one.other}, so no rows ever meet.", one.span
                )
