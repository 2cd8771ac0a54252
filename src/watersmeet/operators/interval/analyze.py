"""Interval joins: the bounds between the event times of both sides, by which rows expire.

A bound is ``column >= other - constant`` between watermarked columns of the two sides, taken from the conjuncts of ON
and from WITHIN. By it the rows of ``column``'s side expire once the watermark of ``other`` has advanced, so a join
needs one in each direction, unless the rows of a side carry their ends (`row_expiries`). A bound expresses its conjunct
exactly; the other conjuncts are conditions.

At the end are the refusals of joins whose state nothing bounds, in the words of their author.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from watersmeet.catalog import Source, Span
from watersmeet.errors import Refusal
from watersmeet.logical.expressions import Expr, Reference, conjuncts
from watersmeet.logical.nodes import LEFT_ONLY, Join, Membership, Relation, ResultKind, aliases
from watersmeet.logical.passes.column_types import EventTimeColumn, event_times, find_event_time, is_sound
from watersmeet.logical.passes.comparisons import Comparison, compare
from watersmeet.logical.passes.conditions import check_pair, check_within
from watersmeet.logical.passes.draft import Draft, format_list
from watersmeet.logical.passes.family import BuildResult, FamilyAnalysis, Sources
from watersmeet.logical.passes.meaning import is_resolved
from watersmeet.logical.passes.watermarks import (
    add_watermark,
    column_type,
    sources_without_watermark,
    time_family,
    watermark_hint,
    watermark_only_time,
)
from watersmeet.logical.query import QueryWarning
from watersmeet.logical.relation import (
    AnalyzedLeaf,
    AnalyzedRelation,
    ConditionalJoin,
    TimeBound,
    TimeColumn,
    joins,
    leaves,
)
from watersmeet.logical.words import expression_in_words, kind_in_words, sources_by_alias, word
from watersmeet.operators.interval.relation import AnalyzedIntervalJoin, ZonedBounds, end_without_type, lowest_bounds
from watersmeet.schema import TimeType

Pair = tuple[Reference, Reference]
MICROS_PER_DAY = 86_400_000_000


def add_watermarks(join: Join, declared: Sources, sources: Sources) -> Sources:
    """The sources with watermarks for the times that the condition compares; ``declared``: as they were before."""
    if join.within is not None and all(any(declared[a].watermarks for a in aliases(side)) for side in join.inputs):
        return sources
    pairs = _pairs(join, declared)
    if join.within is not None:
        # WITHIN refers to the event times, so a comparison in one direction may be of other columns.
        pairs = {pair: directions for pair, directions in pairs.items() if len(directions) == 2}
    if pairs:
        chosen = _likeliest(pairs, declared)
        for ref in chosen:
            sources = add_watermark(sources, ref.source, ref.name)
    elif join.within is not None:
        for side in join.inputs:
            sources = watermark_only_time(side, sources)
    return sources


def _pairs(join: Join, sources: Sources) -> dict[Pair, set[str]]:
    """The pairs of columns, left one first, that could be event times, each with the directions that are bounded."""
    left, right = aliases(join.left), aliases(join.right)
    pairs = dict[Pair, set[str]]()
    for part in conjuncts(join.on):
        comparison = compare(part)
        if comparison is None or not is_resolved(part) or not _is_about_time(comparison, sources):
            continue
        high, low = comparison.high.refs[0], comparison.low.refs[0]
        if high.source in left and low.source in right:
            pairs.setdefault((_bare(high), _bare(low)), set()).update({"=": "<>"}.get(comparison.direction, ">"))
        elif high.source in right and low.source in left:
            pairs.setdefault((_bare(low), _bare(high)), set()).update({"=": "<>"}.get(comparison.direction, "<"))
    return pairs


def _likeliest(pairs: dict[Pair, set[str]], declared: Sources) -> Pair:
    """The times of both sides that leave no side unbounded: by a bound, or by an end if its row carries that."""
    later = {left for left, right in pairs if "<" in pairs[left, right]}
    earlier = {right for left, right in pairs if ">" in pairs[left, right]}
    candidates = dict.fromkeys((*pairs, *((left, right) for left, _ in pairs for _, right in pairs)))

    def likeness(pair: Pair) -> tuple[bool, int, bool]:
        is_bounded = pair[0] in later and pair[1] in earlier
        return is_bounded, len(pairs.get(pair, ())), _is_declared(pair, declared)

    return max(candidates, key=likeness)


def _is_about_time(comparison: Comparison, sources: Sources) -> bool:
    refs = [side.refs[0] for side in (comparison.high, comparison.low)]
    families = [None if ref.path else time_family(ref, sources) for ref in refs]
    # An equality of two integers is more likely one of identifiers.
    is_identity = comparison.direction == "=" and not comparison.constants and "integer" in families
    is_exact = comparison.is_lossless(lambda column: column_type(column.refs[0], sources))
    return is_exact and None not in families and (not is_identity or _is_declared((refs[0], refs[1]), sources))


def _is_declared(pair: Pair, sources: Sources) -> bool:
    return all(sources[ref.source].watermark(ref.name) for ref in pair)


def _bare(ref: Reference) -> Reference:
    return Reference((), 0, 0, ref.source, ref.name)


class IntervalAnalysis(FamilyAnalysis):
    """Plain joins of two streams."""

    family = AnalyzedIntervalJoin.family

    def claims(self, join: Relation, kinds: tuple[ResultKind, ...]) -> bool:
        return isinstance(join, Join) and join.is_plain and "table" not in kinds

    def build(self, draft: Draft, join: Relation, inputs: tuple[AnalyzedRelation, ...]) -> BuildResult:
        assert isinstance(join, Join)
        left, right = inputs
        return _bound(draft, join, AnalyzedIntervalJoin(left, right, join.kind, span=join.span))

    def assume_watermarks(self, draft: Draft, join: Relation, sources: Sources) -> Sources:
        assert isinstance(join, Join)
        return add_watermarks(join, draft.scope.sources, sources)

    def why_not_skewed(self, join: ConditionalJoin, port: int) -> str | None:
        """Rows of the other side are in all shards, where none knows whether they match in another."""
        side = ("left", "right")[port]
        if join.kind in ("inner", side) or (port == 0 and join.kind in LEFT_ONLY):
            return None
        return f"the unmatched rows of the other side of this {kind_in_words(join.kind)} JOIN come out, too"

    def comparison_scope(self, draft: Draft, join: ConditionalJoin) -> str | None:
        return "row is compared with all within its bounds"

    def warn(self, draft: Draft, relation: AnalyzedRelation) -> Iterator[QueryWarning]:
        """Bounds that no two times satisfy, in a join that shows unmatched rows: it shows nothing else."""
        for join in joins(relation):
            if isinstance(join, AnalyzedIntervalJoin) and join.kind not in ("inner", "semi"):
                for bound in _find_contradictions(join):
                    message = (
                        f"No times of {bound.column} and {bound.other} satisfy all bounds between them, so every row "
                        f"of the {kind_in_words(join.kind)} JOIN is unmatched; BETWEEN takes the earlier bound first."
                    )
                    yield QueryWarning(message, bound.span)


@dataclass(frozen=True)
class _PartBounds:
    """The time constraints of a part of the condition: bounds, perhaps an equality as well, or why it is refused.

    ``is_zoned``: the bounds equal Spark's meaning only in a time zone whose days all have 24 hours.
    """

    bounds: tuple[TimeBound, ...] = ()
    keys: tuple[tuple[Expr, Expr], ...] = ()
    refusals: tuple[Refusal, ...] = ()
    is_zoned: bool = False


def _bound(draft: Draft, join: Join, joined: AnalyzedIntervalJoin) -> BuildResult:
    parts = tuple(part for part in conjuncts(join.on) if is_resolved(part))
    left, right = event_times(joined.left), event_times(joined.right)
    part_bounds = [(part, _in_part(draft, part, left, right)) for part in parts]
    within = _in_within(draft, join, left, right)
    every = [*(f for _, f in part_bounds if f), *([within] if within else [])]
    rest = tuple(part for part, f in part_bounds if f is None)
    aliases_left = frozenset(joined.left.aliases)
    bounds = lowest_bounds((bound for f in every for bound in f.bounds), aliases_left)
    zoned = tuple(ZonedBounds(part, f.bounds) for part, f in part_bounds if f is not None and f.is_zoned)
    unzoned = lowest_bounds((bound for f in every if not f.is_zoned for bound in f.bounds), aliases_left)
    keys = tuple(key for f in every for key in f.keys)
    refusals = [refusal for f in every for refusal in f.refusals]
    joined = replace(joined, keys=keys, bounds=bounds, residual=rest, zoned=zoned, unzoned=unzoned)
    if not joined.is_bounded and (implied := tuple(_transitive_bounds(joined, parts))):
        bounds, unzoned = (lowest_bounds((*own, *implied), aliases_left) for own in (bounds, unzoned))
        joined = replace(joined, bounds=bounds, unzoned=unzoned)
    if is_resolved(join.on) and _is_sound(joined) and not refusals:
        refusals = check_watermarks(draft, join, joined) or check_within_times(draft, join, joined)
        refusals = refusals or check_bounded(draft, joined, join.membership)
        if join.kind in ("inner", "semi"):
            refusals = refusals or _check_satisfiable(draft, joined)
    return joined, refusals


def _transitive_bounds(joined: AnalyzedIntervalJoin, parts: tuple[Expr, ...]) -> Iterator[TimeBound]:
    """The bounds of the sides without one that follow from several comparisons, by way of other columns of a row.

    From ``b.start <= a.t`` and ``b.t <= b.start + 10`` follows ``b.t <= a.t + 10``.
    """
    sources = {**sources_by_alias(joined.left), **sources_by_alias(joined.right)}
    steps = [step for part in parts if (step := _step(part, sources)) is not None]
    carried = {expiry.port for expiry in joined.row_expiries}
    for port, (own, others) in enumerate(((joined.left, joined.right), (joined.right, joined.left))):
        if joined.is_timed(port) or port in carried:
            continue
        for time in event_times(own):
            reach = _reach(time, steps)
            for other in event_times(others):
                if other.family == time.family and str(other.column) in reach:
                    constant, is_weak = reach[str(other.column)]
                    yield TimeBound(time.column, other.column, constant, not is_weak, joined.span)


@dataclass(frozen=True)
class _Step:
    """``low <= high + constant`` (``<`` if not weak) between columns of one type of time."""

    high: str
    low: str
    constant: int
    is_weak: bool
    family: TimeType


def _step(part: Expr, sources: Mapping[str, Source]) -> _Step | None:
    comparison = compare(part)
    if comparison is None or comparison.direction == "=" or comparison.casts or not is_resolved(part):
        return None
    high, low = comparison.high.refs[0], comparison.low.refs[0]
    family = time_family(high, sources)
    if family is None or family != time_family(low, sources) or comparison.misfit(family) is not None:
        return None
    if high.path or low.path or (family == "timestamp" and _is_zoned(part, comparison)):
        return None
    constant, is_weak = comparison.constant(family), comparison.direction == ">="
    return _Step(f"{high.source}.{high.name}", f"{low.source}.{low.name}", constant, is_weak, family)


def _reach(time: EventTimeColumn, steps: list[_Step]) -> dict[str, tuple[int, bool]]:
    """The columns that are at most a constant after a time, each with the lowest constant; False: less than that."""
    reach = {str(time.column): (0, True)}
    for _ in steps:
        for step in steps:
            if step.high in reach and step.family == time.family:
                constant, is_weak = reach[step.high]
                bound = constant + step.constant, is_weak and step.is_weak
                reach[step.low] = min(reach.get(step.low, bound), bound)
    return reach


def _is_sound(joined: AnalyzedIntervalJoin) -> bool:
    """True if nothing under the join has been refused that would make a missing bound a mere consequence."""
    inputs = leaves(joined)
    names = {leaf.alias.lower() for leaf in inputs}
    return len(names) == len(inputs) and all(is_sound(leaf.source) for leaf in inputs)


def _in_part(
    draft: Draft, part: Expr, left: tuple[EventTimeColumn, ...], right: tuple[EventTimeColumn, ...]
) -> _PartBounds | None:
    comparison = compare(part)
    if comparison is None:
        return None
    high, low = (find_event_time(side, left + right) for side in (comparison.high, comparison.low))
    if high is None or low is None or (high in left) == (low in left):
        return None
    if not comparison.is_lossless(lambda column: high.type if column == comparison.high else low.type):
        return None
    refusal = check_pair(draft, comparison, high, low, part.span)
    if refusal is not None:
        return _PartBounds(refusals=(refusal,))
    is_zoned = high.family == low.family == "timestamp" and _is_zoned(part, comparison)
    bounds = tuple(_bounds(comparison, high, low, part.span))
    return _PartBounds(bounds, _key(comparison, high, low, high in left), is_zoned=is_zoned)


def _is_zoned(part: Expr, comparison: Comparison) -> bool:
    """Whether Spark looks at local times: of a day or more, whole days are days there, and so are differences."""
    is_long = sum(abs(constant.value) for constant in comparison.constants) >= MICROS_PER_DAY
    return is_long or any(len(arg.sources) > 1 for arg in conjunct_sides(part))


def conjunct_sides(part: Expr) -> tuple[Expr, ...]:
    """The operands of a comparison; NOT of one has the same."""
    return part.args[0].args if part.op == "not" else part.args


def _bounds(comparison: Comparison, high: EventTimeColumn, low: EventTimeColumn, span: Span) -> Iterator[TimeBound]:
    constant = comparison.constant(high.family)
    yield TimeBound(high.column, low.column, constant, comparison.direction == ">", span)
    if comparison.direction == "=":
        yield TimeBound(low.column, high.column, -constant, span=span)


def _key(
    comparison: Comparison, high: EventTimeColumn, low: EventTimeColumn, is_in_order: bool
) -> tuple[tuple[Expr, Expr], ...]:
    """Equal times are a key as well, which spreads the rows over the shards."""
    if comparison.direction != "=" or comparison.constant(high.family) or high.type.upper() != low.type.upper():
        return ()
    high_first, low_first = (comparison.high, comparison.low), (comparison.low, comparison.high)
    return (high_first if is_in_order else low_first,)


def _in_within(
    draft: Draft, join: Join, left: tuple[EventTimeColumn, ...], right: tuple[EventTimeColumn, ...]
) -> _PartBounds | None:
    if join.within is None or len(left) != 1 or len(right) != 1:
        return None
    (before, after), span = join.within.pair, join.within.span
    for amount in dict.fromkeys((before, after)):
        refusal = check_within(draft, amount, left[0], right[0], span)
        if refusal is not None:
            return _PartBounds(refusals=(refusal,))
    forward = TimeBound(left[0].column, right[0].column, after.value, span=span)
    return _PartBounds((forward, TimeBound(right[0].column, left[0].column, before.value, span=span)))


def _check_satisfiable(draft: Draft, join: AnalyzedIntervalJoin) -> list[Refusal]:
    """Refuse bounds that no two times satisfy where nothing would ever come of the join."""
    contradictions = _find_contradictions(join)
    return [draft.refusal("NO_TIME_FITS", b.span, column=str(b.column), other=str(b.other)) for b in contradictions]


def _find_contradictions(join: AnalyzedIntervalJoin) -> Iterator[TimeBound]:
    """Bounds of one pair of times that no two of its values satisfy together with another bound."""
    times = event_times(join.left) + event_times(join.right)
    days = {time.column for time in times if time.family == "date"}
    for bound, other in combinations(join.bounds, 2):
        if (bound.column, bound.other) == (other.other, other.column):
            # `other.column - one.column` lies within [-other.constant, one.constant], without its ends where strict.
            unit = MICROS_PER_DAY if {bound.column, bound.other} <= days else 1
            last, first = (bound.constant - bound.strict) // unit, -((other.constant - other.strict) // unit)
            if first > last:
                yield bound


ANALYZE = IntervalAnalysis()


Cause = Literal["nothing", "one direction", "or", "cast", "not constant", "distinct"]
"""The reason why a direction has no bound: the times are not compared, or the comparison is not a bound."""


def check_watermarks(draft: Draft, join: Join, joined: AnalyzedIntervalJoin) -> list[Refusal]:
    """The sources of both sides that lack a watermark, where nothing has asked them for one before."""
    if draft.inputs == "batches" and join.within is None:
        # A bound in ON would have named the event time; WITHIN leaves open which column it is.
        return []
    return [
        draft.refusal(
            "MISSING_WATERMARK",
            join.span,
            **_names(draft, joined),
            side=draft.name_of(leaf.alias),
            hint=watermark_hint(leaf, _columns_in_on(join, joined, leaf.alias)),
        )
        for side in (joined.left, joined.right)
        for leaf in sources_without_watermark(side)
    ]


def check_within_times(draft: Draft, join: Join, joined: AnalyzedIntervalJoin) -> list[Refusal]:
    """Refuse WITHIN for sides without exactly one event time."""
    if join.within is None:
        return []
    left, right = event_times(joined.left), event_times(joined.right)
    return [
        draft.refusal(
            "WITHIN_NEEDS_ONE_TIME",
            join.within.span,
            side=("the join of " if len(side.aliases) > 1 else "") + draft.names_of(side.aliases),
            columns=format_list([str(time) for time in times]),
            example=_between(left[0], right[0]),
        )
        for side, times in ((joined.left, left), (joined.right, right))
        if len(times) > 1 and left and right
    ]


def check_bounded(draft: Draft, joined: AnalyzedIntervalJoin, membership: Membership | None = None) -> list[Refusal]:
    """The refusal of a join that lacks a bound in one direction or both.

    ``membership``: it was written as IN or EXISTS.
    """
    left, right = joined.left.aliases, joined.right.aliases
    carried = {expiry.port for expiry in joined.row_expiries}
    unbounded_sides = [
        side for port, side in enumerate((left, right)) if not joined.is_timed(port) and port not in carried
    ]
    if not unbounded_sides:
        return []
    cause, part = _cause(joined)
    label = _label(joined, cause, part, is_left=unbounded_sides[0] == left)
    hint = _hint(joined, cause, is_left=unbounded_sides[0] == left, is_both=len(unbounded_sides) == 2)
    for end, time in (untyped for part in joined.residual if (untyped := end_without_type(joined, part)) is not None):
        shown = expression_in_words(end)
        if not (
            cause == "cast"
            or any(end.sources <= frozenset(side) for side in (left, right) if side not in unbounded_sides)
        ):
            label = f"{shown} is not known to be a time that {time} can be compared with"
            hint = f"write `CAST({shown} AS {time.type})`, or add a bound, for example `{_bound_example(joined)}`."
            break
    pair = _pair(joined)
    in_where = _bounds_in_where(draft, joined)
    if in_where and joined.kind in ("left", "right", "full"):
        label = f"its bound is in WHERE, which only filters the rows of a {kind_in_words(joined.kind)} JOIN"
        hint = f"move `{' AND '.join(in_where)}` from WHERE to ON."
    elif membership is not None and cause == "nothing" and pair is not None:
        hint = f"add `{_between(*pair)}` to the WHERE of the subquery."
    elif membership is not None:
        hint = hint.rstrip(".") + " to the WHERE of the subquery."
    if membership is not None and (alias := right[0]) != membership.name and isinstance(joined.right, AnalyzedLeaf):
        # The query reads that source already, and both have the same name.
        hint = f"write `FROM {word(joined.right.source.name)} AS {word(alias)}` in the subquery, and {hint}"
    return [
        draft.refusal(
            "UNBOUNDED_STATE",
            joined.span,
            **_names(draft, joined),
            unbounded=draft.names_of(alias for side in unbounded_sides for alias in side),
            cause=label,
            hint=hint,
        )
    ]


def _bounds_in_where(draft: Draft, joined: AnalyzedIntervalJoin) -> list[str]:
    """The parts of WHERE that compare event times of both sides."""
    sides = [{t.column for t in event_times(side)} for side in (joined.left, joined.right)]
    parts = [part for part in conjuncts(draft.query.where) if is_resolved(part) and compare(part) is not None]
    columns = ((part, {TimeColumn(ref.source, ref.name) for ref in part.references}) for part in parts)
    return [expression_in_words(part) for part, named in columns if all(named & side for side in sides)]


def _names(draft: Draft, joined: AnalyzedIntervalJoin) -> dict[str, str]:
    left, right = (draft.names_of(side.aliases) for side in (joined.left, joined.right))
    return {"kind": kind_in_words(joined.kind), "left": left, "right": right}


def _cause(joined: AnalyzedIntervalJoin) -> tuple[Cause, Expr | None]:
    left, right = ({t.column for t in event_times(side)} for side in (joined.left, joined.right))
    for part in joined.residual:
        columns = {(ref.source, ref.name) for ref in part.references}
        if not all(any((t.alias, t.name) in columns for t in side) for side in (left, right)):
            continue
        if part.op == "<=>":
            return "distinct", part
        if "or" in {part.op, *(inner.op for inner in _subexpressions(part))} and any(
            compare(inner) for inner in _subexpressions(part)
        ):
            return "or", part
        if part.op in ("=", "<", "<=", ">", ">="):
            return ("cast" if _casts_time(part, left | right) else "not constant"), part
    return ("one direction" if joined.bounds else "nothing"), None


def _casts_time(part: Expr, times: set[TimeColumn]) -> bool:
    casts = [inner for inner in _subexpressions(part) if inner.op == "cast"]
    return any(TimeColumn(ref.source, ref.name) in times for cast in casts for ref in cast.references)


def _subexpressions(expr: Expr) -> Iterator[Expr]:
    for arg in expr.args:
        yield arg
        yield from _subexpressions(arg)


def _label(joined: AnalyzedIntervalJoin, cause: Cause, part: Expr | None, *, is_left: bool) -> str:
    left, right = _times_in_words(joined.left), _times_in_words(joined.right)
    match cause:
        case "nothing":
            return f"no bound between {left} and {right}"
        case "one direction":
            pair = _pair(joined)
            left, right = (str(time) for time in pair) if pair else (left, right)
            return f"only one direction: {right} may be any time {'after' if is_left else 'before'} {left}"
        case "or":
            return f"bounds between {left} and {right} only inside OR, where none of them always holds"
        case "cast":
            shown = expression_in_words(part) if part else ""
            return f"no bound between {left} and {right}: a cast can change the time in {shown}"
        case "not constant":
            shown = expression_in_words(part) if part else ""
            return f"the bound between {left} and {right} is not constant: {shown}"
        case "distinct":
            return f"IS NOT DISTINCT FROM lets rows without {left} and {right} match at any time"


def _hint(joined: AnalyzedIntervalJoin, cause: Cause, *, is_left: bool, is_both: bool) -> str:
    pair = _pair(joined)
    if pair is None:
        return "add a bound on the event times, for example `WITHIN 5 MINUTES`."
    left, right = pair
    hour = "60" if left.family == "integer" else "1" if left.family == "date" else "INTERVAL 1 HOUR"
    direction = f"{right} <= {left} + {hour}" if is_left else f"{right} >= {left} - {hour}"
    bound = _bound_example(joined)
    match cause:
        case "distinct":
            return f"write `{left} = {right}`."
        case "nothing":
            ends = [_window_ends(side) for side in (joined.left, joined.right)]
            same = f"add `AND {ends[0][0]} = {ends[1][0]}` to join the rows of a window, or" if all(ends) else "add"
            return f"{same} a bound, for example `{bound}`."
        case "or":
            return f"also add a bound, for example `{bound}`."
        case "one direction":
            return f"add `AND {direction}`."
        case "cast":
            return f"add a bound on the columns themselves, for example `{bound if is_both else 'AND ' + direction}`."
        case "not constant":
            return f"also add a constant bound, for example `{bound if is_both else 'AND ' + direction}`."


def _window_ends(side: AnalyzedRelation) -> list[str]:
    """The columns of a side that hold the ends of windows."""
    return [f"{leaf.alias}.{end}" for leaf in leaves(side) for end, _ in leaf.source.ends]


def _bound_example(joined: AnalyzedIntervalJoin) -> str:
    """A bound in both directions, as one writes it."""
    pair = _pair(joined)
    if pair is None or all(len(event_times(side)) == 1 for side in (joined.left, joined.right)):
        return f"WITHIN {'5 MINUTES' if pair is None else _minutes(pair[0])}"
    return f"AND {_between(*pair)}"


def _pair(joined: AnalyzedIntervalJoin) -> tuple[EventTimeColumn, EventTimeColumn] | None:
    """The times that a bound would most likely compare: those of the bound there is, else two of one family."""
    bounded = {column for bound in joined.bounds for column in (bound.column, bound.other)}
    pairs = [(a, b) for a in event_times(joined.left) for b in event_times(joined.right)]
    likeness = [(a.column in bounded and b.column in bounded, a.family == b.family) for a, b in pairs]
    return pairs[likeness.index(max(likeness))] if pairs else None


def _times_in_words(side: AnalyzedRelation) -> str:
    times = event_times(side)
    return format_list([str(time) for time in times] or side.aliases, "or")


def _minutes(time: EventTimeColumn) -> str:
    return "300" if time.family == "integer" else "5 DAYS" if time.family == "date" else "5 MINUTES"


def _between(left: EventTimeColumn, right: EventTimeColumn) -> str:
    amount = _minutes(left) if left.family == "integer" else f"INTERVAL {_minutes(left)}"
    return f"{right} BETWEEN {left} - {amount} AND {left} + {amount}"


def _columns_in_on(join: Join, joined: AnalyzedIntervalJoin, alias: str) -> list[str]:
    """The columns of a source that ON mentions, in reading order, except those that are only keys."""
    times = {(t.column.alias, t.column.name) for t in event_times(joined.left) + event_times(joined.right)}

    def is_key(part: Expr) -> bool:
        is_plain = part.op == "=" and all(arg.op == "column" for arg in part.args)
        return is_plain and times.isdisjoint((ref.source, ref.name) for ref in part.references)

    parts = (part for part in conjuncts(join.on) if not is_key(part))
    return [ref.name for part in parts for ref in part.references if ref.source == alias]
