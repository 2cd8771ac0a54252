"""The plan of the interval join: the columns of each side, and their retention.

`FORECAST` gives the retention: until the other side's watermark has passed the bound of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from watersmeet.logical.expressions import Expr, Reference, windows_in
from watersmeet.logical.relation import ConditionalJoin, SkewedSide, TimeBound
from watersmeet.logical.words import expression_in_words
from watersmeet.operators.core.condition import Apply, Condition, Constant
from watersmeet.operators.core.operator import END_OF_INPUT, PortWindow
from watersmeet.operators.core.routing import Route, SkewedKeys
from watersmeet.operators.core.watermarks import Bound
from watersmeet.operators.explainer import PortRetention, lag_of
from watersmeet.operators.interval.kernel import UNLIMITED, IntervalJoinOperator, limits_of
from watersmeet.operators.interval.relation import AnalyzedIntervalJoin, RowExpiry
from watersmeet.operators.state.shard import PRESERVED, Kind
from watersmeet.physical.change import ChangeEffect, IdentityChange, StageEdit
from watersmeet.physical.nodes import JoinPlan, JoinPlanner, PortPlan, Types
from watersmeet.physical.ports import JoinCondition, Operands, unions_of
from watersmeet.physical.scans import find_windows
from watersmeet.schema import INTEGERS


def plan(join: AnalyzedIntervalJoin, inputs: tuple[PortPlan, ...], types: Types) -> JoinPlan:
    """The plan of an interval join over two inputs."""
    pair, lower, upper = _range(join, (inputs[0].aliases, inputs[1].aliases))
    others = [bound for bound in join.bounds if {str(bound.column), str(bound.other)} != set(pair)]
    on = JoinCondition.of(join, inputs, types, lambda operands: (_further(bound, operands) for bound in others))
    expiries = [(expiry.port, _expiry_bound(expiry, on.operands)) for expiry in join.row_expiries]
    routes = _routes(join.kind, keyed=bool(on.keys.pairs))
    windows = [_window(join, side) for side in inputs]
    port_plans = [
        on.port_plan(inputs[p], p, routes[p], () if side is None else (side.end,)) for p, side in enumerate(windows)
    ]
    if (skew := join.skew) is not None:
        columns = [on.keys.names(p)[skew.key] for p in (0, 1)]
        port_plans = [
            replace(port, skew=SkewedKeys(columns[p], skew.values, is_copied=p != skew.port))
            for p, port in enumerate(port_plans)
        ]
    ends = [tuple(dict.fromkeys(expiry.column for port, expiry in expiries if port == p)) for p in (0, 1)]
    left, right = (
        replace(on.operator_port(port_plans[p], p), compared=pair[p], ends=ends[p], window=windows[p]) for p in (0, 1)
    )
    why = _why(on, routes, is_timed=all(join.is_timed(port) for port in (0, 1)))
    operator = IntervalJoinOperator(
        join.kind, left, right, lower, upper,
        tuple(Bound(str(b.column), str(b.other), b.constant, b.strict) for b in join.bounds),
        on.condition,
        tuple(expiry for _, expiry in expiries),
        idle=inputs[0].idle + inputs[1].idle,
        unions=unions_of(inputs[0].lags + inputs[1].lags),
    )  # fmt: skip
    return JoinPlan(tuple(port_plans), operator, (*left.columns, *right.columns), on.post_filters, why, join)


def _window(join: AnalyzedIntervalJoin, side: PortPlan) -> PortWindow | None:
    """The windows that say when rows of a side are late.

    Rows of the other side wait until their window is over only if nothing else ends them sooner.
    """
    rows = find_windows(side.input)
    if rows is None or join.bounds or not all(expiry.is_near for expiry in join.row_expiries):
        return None
    if rows.time is None or rows.time[0] not in side.times or rows.time[1] or rows.end is None or rows.end[1]:
        return None
    windows = windows_in(rows.windows.array)
    is_cumulative = windows.number > 1 and windows.start == 0
    size, step = (windows.base, windows.end) if is_cumulative else (windows.first_end, windows.base)
    return PortWindow(rows.time[0], rows.end[0], size, step, is_cumulative, rows.has_all)


def _routes(kind: Kind, *, keyed: bool) -> tuple[Route, Route]:
    """The routes of the rows of each side (HZ-32).

    Without a key one side goes to all shards and the other, which must be the preserved one, is spread. Of a FULL JOIN
    both sides are preserved: a row in several shards would not know whether it matched in another, so one shard joins.
    """
    if keyed:
        return ("key", "key")
    if kind == "full":
        return ("one", "one")
    return ("all", "time") if kind == "right" else ("time", "all")


def _range(
    join: AnalyzedIntervalJoin, sides: tuple[frozenset[str], frozenset[str]]
) -> tuple[tuple[str, str], int, int]:
    """The pair of time columns that the matcher works on, and the closed range of right minus left."""
    lower: dict[tuple[str, str], int] = {}
    upper: dict[tuple[str, str], int] = {}
    for bound in join.bounds:
        # Times are whole numbers, so a strict bound is the closed bound one unit tighter.
        reach = bound.constant - (1 if bound.strict else 0)
        if bound.column.alias in sides[1]:
            pair = (str(bound.other), str(bound.column))
            lower[pair] = max(-reach, lower.get(pair, -reach))
        else:
            pair = (str(bound.column), str(bound.other))
            upper[pair] = min(reach, upper.get(pair, reach))
    # Where rows of both sides carry their ends, nothing need bound their times from one another.
    others = {expiry.port: str(expiry.time) for expiry in join.row_expiries}
    pairs = (*(pair for pair in lower if pair in upper), *lower, *upper, (others.get(1, ""), others.get(0, "")))
    return pairs[0], lower.get(pairs[0], -UNLIMITED), upper.get(pairs[0], UNLIMITED)


def _expiry_bound(expiry: RowExpiry, operands: Operands) -> Bound:
    """A life by the column that holds its ends: the same that the condition compares."""
    template = "{}" if expiry.time.family == "date" else operands.comparable(expiry.end, expiry.low)[0]
    return Bound(
        operands.operand(expiry.port, expiry.end, template).name, str(expiry.time), expiry.constant, expiry.strict
    )


def _further(bound: TimeBound, operands: Operands) -> Condition:
    """A bound on other columns than the matcher's, as a condition: ``column >= other - constant``."""
    names: list[Condition] = []
    constant: int | timedelta = bound.constant
    for time in (bound.column, bound.other):
        expr = Expr("column", refs=(Reference((time.alias, time.name), 0, 0, time.alias, time.name),))
        type_ = operands.types.type_of(expr)
        if type_ not in INTEGERS:
            constant = timedelta(microseconds=bound.constant)
        port = 0 if time.alias in operands.sides[0] else 1
        names.append(operands.operand(port, expr, "CAST({} AS TIMESTAMP_NTZ)" if type_ == "DATE" else "{}"))
    return Apply(">" if bound.strict else ">=", (names[0], Apply("-", (names[1], Constant(constant)))))


def _why(on: JoinCondition, routes: tuple[Route, Route], *, is_timed: bool) -> tuple[str, ...]:
    bounded = "time bounds hold in both directions" if is_timed else "each row has its own end time"
    if on.keys.pairs:
        how = on.keys.why()
    elif "one" in routes:
        how = "one shard: without an equality, any two rows can match, and both sides are preserved"
    else:
        sent, spread = ("left", "right") if routes[0] == "all" else ("right", "left")
        how = f"block-nested: without an equality, the {sent} side goes to all shards and the {spread} side is spread"
    spread = () if on.join.skew is None else (_why_spread(on.join, on.join.skew),)
    return (f"interval join: both sides are streams and {bounded}", how, *spread, *on.why_post_filters())


def _why_spread(join: ConditionalJoin, skew: SkewedSide) -> str:
    keys = [expression_in_words(expr) for expr in join.keys[skew.key]]
    values = ", ".join(map(repr, skew.values))
    return (
        f"skewed keys: rows with {keys[skew.port]} in ({values}) are spread over all shards, and each shard has a copy "
        f"of the rows with the same {keys[1 - skew.port]}"
    )


PLAN = JoinPlanner(plan)


# The changes of an interval join with which its state can continue: its bounds, and its stored columns.


def change_effects(stage: StageEdit, changes: Sequence[IdentityChange]) -> Sequence[ChangeEffect] | None:
    """Effects of other bounds, or of fewer columns; None: another part has changed, too."""
    effects: list[ChangeEffect] = []
    for change in changes:
        match change.path:
            case ("bounds",) if _pairs(change.was) == _pairs(change.now):
                pass
            case ("range",):
                pass
            case ("ports", int() as port, "stored") if set(change.now) < set(change.was):
                gone = stage.was.names(sorted(set(change.was) - set(change.now)))
                effects.append(
                    ChangeEffect(
                        f"{gone} of {stage.now.side(stage.number, port)} is no longer shown",
                        "new rows do not keep it, so showing it again needs a new state",
                    )
                )
            case _:
                return None
    return [*_bound_effects(stage), *effects]


def _pairs(bounds: Sequence[Sequence[Any]]) -> list[tuple[str, str]]:
    return [(column, other) for column, other, _ in bounds]


def _bound_effects(stage: StageEdit) -> Iterator[ChangeEffect]:
    before, after = stage.operators
    for port in (0, 1):
        pairs = zip(limits_of(before, port), limits_of(after, port), strict=True)
        for (column, watermark, was), (_, _, now) in pairs:
            if was != now:
                yield _bound_effect(stage, port, (column, watermark), was, now)


def _bound_effect(stage: StageEdit, port: int, pair: tuple[str, str], was: int, now: int) -> ChangeEffect:
    """The effect of another bound: ``column >= watermark - constant``."""
    column, watermark = pair
    identity, side = stage.now, f"`{stage.now.side(stage.number, port)}`"
    change = (
        f"rows of {side} were kept until {identity.name(watermark)} had passed "
        f"{identity.name(column)}{_plus(stage, was, column)}, "
        f"now until it has passed {identity.name(column)}{_plus(stage, now, column)}"
    )
    if stage.watermarks is not None and watermark not in stage.watermarks:
        return ChangeEffect(change, "no row of it has expired yet; emitted pairs stay")
    if stage.watermarks is not None and stage.watermarks[watermark] == END_OF_INPUT:
        return ChangeEffect(change, "none, because the input has ended")
    if now > was:
        limit = (
            "that have expired"
            if stage.watermarks is None
            else _before(stage, stage.watermarks[watermark] - was, column)
        )
        return ChangeEffect(
            change,
            f"rows of {side} {limit} were removed and do not come back; rows in the state were matched "
            "by the old bound, and those pairs stay",
        )
    limit = (
        "beyond the new bound"
        if stage.watermarks is None
        else _before(stage, stage.watermarks[watermark] - now, column)
    )
    emitted = ", and emitted if unmatched" if PRESERVED[stage.operators[1]["kind"]][port] else ""
    return ChangeEffect(change, f"rows of {side} {limit} are removed with the next batch{emitted}; emitted pairs stay")


def _before(stage: StageEdit, limit: int, column: str) -> str:
    return f"with {stage.now.name(column)} before {stage.now.moment(limit, column)}"


def _plus(stage: StageEdit, constant: int, column: str) -> str:
    if not constant:
        return ""
    return f" {'+' if constant > 0 else '-'} {stage.now.amount(abs(constant), column)}"


CHANGE = change_effects


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """A life per side: the shortest of its bounds, longer by the lag of the other side."""
    join = plan.analyzed
    assert isinstance(join, AnalyzedIntervalJoin)
    return tuple(_side_retention(plan, join, port) for port in (0, 1))


def _side_retention(plan: JoinPlan, join: AnalyzedIntervalJoin, port: int) -> PortRetention:
    lengths = [
        (max(0, bound.constant + lag_of(plan, 1 - port, str(bound.other))), str(bound.other), bound.constant)
        for bound in join.bounds
        if bound.column.alias in join.inputs[port].aliases
    ]
    if not lengths:
        return PortRetention(port, "unknown", law="rows are kept until the end in each row")
    length, other, bound = min(lengths)
    return PortRetention(port, "time", length, f"the bound and the lag of {other}", behind=1 - port, bound=bound)


FORECAST = forecast
