"""Refusals of interval joins whose state nothing bounds, in the words of their author."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from watersmeet.errors import Refusal
from watersmeet.logical.expressions import Expr
from watersmeet.logical.nodes import Join
from watersmeet.logical.passes.column_types import EventTimeColumn, event_times
from watersmeet.logical.passes.comparisons import compare
from watersmeet.logical.passes.draft import Draft, format_list
from watersmeet.logical.passes.watermarks import sources_without_watermark, watermark_hint
from watersmeet.logical.relation import AnalyzedRelation, TimeColumn, leaves
from watersmeet.logical.words import expression_in_words, kind_in_words
from watersmeet.operators.interval.relation import AnalyzedIntervalJoin, end_without_type

Cause = Literal["nothing", "one direction", "or", "cast", "not constant", "distinct"]
"""Why a direction has no bound: the times are not compared, or the comparison is not a bound."""


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
            hint=watermark_hint(leaf, _columns_in_on(join, leaf.alias)),
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


def check_bounded(draft: Draft, joined: AnalyzedIntervalJoin) -> list[Refusal]:
    """The refusal of a join that lacks a bound in one direction or both."""
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


def _columns_in_on(join: Join, alias: str) -> list[str]:
    """The columns of a source that ON mentions, in reading order."""
    return [ref.name for ref in (join.on.references if join.on else ()) if ref.source == alias]
