"""The pass that proves that the state of every join is bounded.

A bound is ``column >= other - constant`` between watermarked columns of the two sides, taken from the parts of ON that
are joined by AND and from WITHIN. It lets the rows of ``column``'s side be forgotten once the watermark of ``other``
has gone on, so a join needs one in each direction. What is a bound is wholly expressed by it; the rest is a condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from watersmeet.analyze.asof_join import asof_join
from watersmeet.analyze.comparison import Comparison, compare
from watersmeet.analyze.dialect import read_conditions
from watersmeet.analyze.draft import Draft
from watersmeet.analyze.event_time import EventTime, event_times, given_watermarks, is_sound, time_named
from watersmeet.analyze.heartbeats import heartbeat_of
from watersmeet.analyze.meaning import is_resolved
from watersmeet.analyze.sync_join import sync_join
from watersmeet.analyze.table_joins import check_late_rows, shown_too_late, table_join
from watersmeet.analyze.time_units import check_pair, check_within
from watersmeet.analyze.unbounded import missing_watermarks, unbounded, unclear_within
from watersmeet.analyze.unions import is_plain_union, parts_of, union_heartbeat, union_of
from watersmeet.analyze.views import placed
from watersmeet.analyze.window_join import window_join
from watersmeet.catalog import Amount, Span
from watersmeet.errors import Refusal
from watersmeet.families.interval.relation import AnalyzedIntervalJoin
from watersmeet.plan.expressions import Expr, conjuncts
from watersmeet.plan.nodes import AsofJoin, Join, Lateral, Relation, Scan, SyncJoin, Union, leaves
from watersmeet.plan.relation import (
    AnalyzedLateral,
    AnalyzedLeaf,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedView,
    TimeBound,
    Warned,
)
from watersmeet.plan.relation import leaves as leaves_of


def find_bounds(draft: Draft) -> Draft:
    """The draft with its relation built: every join with its bounds, the rest of its condition still in one piece."""
    draft = read_conditions(draft, lambda join: len(_relation(draft, join)[1]))
    asked = draft.query.relation
    relation, refusals = _relation(draft, asked)
    refusals += [*_misplaced_windows(draft, asked), *check_late_rows(draft, relation)]
    warnings = (*_never_met(draft, relation), *shown_too_late(draft, relation))
    return replace(draft, relation=relation).refusing(refusals).warning(warnings)


@dataclass(frozen=True)
class _Found:
    """What a part of the condition says about time: bounds, perhaps an equality as well, or why it is refused."""

    bounds: tuple[TimeBound, ...] = ()
    keys: tuple[tuple[Expr, Expr], ...] = ()
    refusals: tuple[Refusal, ...] = ()


def _relation(draft: Draft, relation: Relation) -> tuple[AnalyzedRelation, list[Refusal]]:
    match relation:
        case Scan() | Union():
            return _scan(draft, relation), []
        case Lateral():
            below, refusals = _relation(draft, relation.input)
            element = draft.scope.sources[relation.alias]
            return AnalyzedLateral(below, relation.array, relation.alias, element, span=relation.span), refusals
        case SyncJoin():
            return sync_join(draft, relation, tuple(_scan(draft, leaf) for leaf in relation.inputs))
        case AsofJoin():
            left, refusals = _relation(draft, relation.left)
            joined, more = asof_join(draft, relation, left, _scan(draft, relation.right))
            return joined, [*refusals, *(_table_on_the_left(draft, relation, left) or more)]
        case Join(left=Scan() | Union() as one, right=Scan() | Union() as other) if relation.is_windowed:
            sides = (_scan(draft, one), _scan(draft, other))
            return window_join(draft, relation, sides, (one.window, other.window))
        case Join():
            left, refusals = _relation(draft, relation.left)
            right, more = _relation(draft, relation.right)
            is_plain = not any(leaf.window for leaf in leaves(relation))
            joined, own = _join(draft, relation, left, right) if is_plain else (_unbound(relation, left, right), [])
            return joined, [*refusals, *more, *own, *(_padded(draft, relation) if is_plain else ())]


def _join(
    draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation
) -> tuple[AnalyzedRelation, list[Refusal]]:
    """A join without windows: what its sides are says which family it is of."""
    if "table" in (left.result, right.result):
        return table_join(draft, join, left, right)
    return _bound(draft, join, _unbound(join, left, right))


def _unbound(join: Join, left: AnalyzedRelation, right: AnalyzedRelation) -> AnalyzedIntervalJoin:
    return AnalyzedIntervalJoin(left, right, join.kind, span=join.span)


def _table_on_the_left(draft: Draft, join: AsofJoin, left: AnalyzedRelation) -> list[Refusal]:
    if left.result == "stream":
        return []
    what = f"An as-of join of the table {draft.names_of(left.aliases)}"
    hint = "put a stream on its left, or write JOIN: rows of a table have no time that a version is in force at."
    return [draft.refusal("UNSUPPORTED_STATEMENT", join.span, what=what, hint=hint)]


def _padded(draft: Draft, join: Join) -> Iterator[Refusal]:
    for pad in join.pads:
        what, hint = "PAD of a join without windows", "write `coalesce(column, value)` in SELECT."
        yield draft.refusal("UNSUPPORTED_STATEMENT", pad.span, what=what, hint=hint)


def _misplaced_windows(draft: Draft, relation: Relation) -> Iterator[Refusal]:
    """Windows where they have no meaning: they belong to a join of two sources, which is the whole query."""
    windows = [leaf.window for leaf in leaves(relation) if leaf.window is not None]
    if not windows or (isinstance(relation, Join) and len(leaves(relation)) == 2):
        return
    what, hint = "WINDOW without a join", "leave it out, or join with another source that has a window."
    if isinstance(relation, SyncJoin | AsofJoin):
        what, hint = "WINDOW of a SYNC or ASOF JOIN", "leave it out: times say how long rows stay."
    elif isinstance(relation, Join):
        what = "A chain of joins with windows"
        hint = "write the result of the first join to a sink, and join the stream that reads it."
    yield draft.refusal("UNSUPPORTED_STATEMENT", windows[0].span, what=what, hint=hint)


def _scan(draft: Draft, leaf: Scan | Union) -> AnalyzedLeaf:
    view = draft.views.get(leaf.source.lower()) if isinstance(leaf, Scan) else None
    if isinstance(leaf, Scan) and view is not None:
        source = draft.scope.sources[leaf.alias]
        return placed(leaf.alias, source, view, given_watermarks(source, leaf))
    if isinstance(leaf, Union) and not is_plain_union(draft, leaf) and draft.scope.sources[leaf.alias].fields:
        return union_of(draft, leaf)
    parts = parts_of(draft, leaf) if isinstance(leaf, Union) else ()
    heartbeat = union_heartbeat(draft, leaf) if isinstance(leaf, Union) else heartbeat_of(draft, leaf)
    return AnalyzedScan(leaf.alias, draft.scope.sources[leaf.alias], parts=parts, heartbeat=heartbeat)


def _bound(draft: Draft, join: Join, joined: AnalyzedIntervalJoin) -> tuple[AnalyzedIntervalJoin, list[Refusal]]:
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


def _is_sound(joined: AnalyzedIntervalJoin) -> bool:
    """True if nothing under the join has been refused that would make a missing bound a mere consequence."""
    found = leaves_of(joined)
    names = {leaf.alias.lower() for leaf in found}
    return len(names) == len(found) and all(is_sound(leaf.source) for leaf in found)


def _in_part(draft: Draft, part: Expr, left: tuple[EventTime, ...], right: tuple[EventTime, ...]) -> _Found | None:
    comparison = compare(part)
    if comparison is None:
        return None
    high, low = (time_named(side, left + right) for side in (comparison.high, comparison.low))
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
    if isinstance(relation, AnalyzedView):
        return
    for side in relation.inputs:
        yield from _never_met(draft, side)
    if not isinstance(relation, AnalyzedIntervalJoin):
        return
    for i, one in enumerate(relation.bounds):
        for other in relation.bounds[i + 1 :]:
            width = one.constant + other.constant
            is_opposite = (one.column, one.other) == (other.other, other.column)
            if is_opposite and (width < 0 or (width == 0 and (one.strict or other.strict))):
                yield Warned(
                    f"No time satisfies both bounds of {one.column} and {one.other}, so no rows ever meet.", one.span
                )
