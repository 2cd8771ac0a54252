"""The interval join's entry: which columns it needs of each side, and how long each side lives."""

from __future__ import annotations

from datetime import timedelta

from watersmeet.families.interval.relation import AnalyzedIntervalJoin
from watersmeet.joins.core.condition import Apply, Condition, Constant
from watersmeet.joins.core.port import Port
from watersmeet.joins.interval.operator import Bound, IntervalJoin, Kind
from watersmeet.physical.condition import Operands
from watersmeet.physical.nodes import JoinPlan, PortInput, PortPlan, Route
from watersmeet.physical.ports import Keys, all_of, mentioned, port_plan, shown_columns, split_residual, unions_of
from watersmeet.physical.types import Types
from watersmeet.plan.expressions import Expr, Reference
from watersmeet.plan.relation import TimeBound
from watersmeet.type_names import INTEGERS

UNLIMITED = 2**63 - 1
"""No bound in one direction between the matcher's columns; another pair of columns has it."""


def plan_interval_join(join: AnalyzedIntervalJoin, inputs: tuple[PortInput, PortInput], types: Types) -> JoinPlan:
    """The plan of an interval join over two inputs."""
    sides = (inputs[0].aliases, inputs[1].aliases)
    operands = Operands(sides, types)
    keys = Keys.of(join.keys, operands)
    pair, lower, upper = _range(join.bounds, sides)
    others = [bound for bound in join.bounds if {str(bound.column), str(bound.other)} != set(pair)]
    further = [_further(bound, operands) for bound in others]
    conditions, after = split_residual(join.residual, operands)
    condition = all_of([*further, *conditions])
    routes = _routes(join.kind, keyed=bool(keys.pairs))
    planned = [_port(join, p, inputs[p], operands, keys, condition, after, routes[p], pair[p]) for p in (0, 1)]
    left, right = (side for _, side in planned)
    operator = IntervalJoin(
        join.kind, left, right, lower, upper,
        tuple(Bound(str(b.column), str(b.other), b.constant) for b in join.bounds),
        condition,
        idle=inputs[0].idle + inputs[1].idle,
        unions=unions_of(inputs[0].lags + inputs[1].lags),
    )  # fmt: skip
    why = _why(keys, after, routes)
    return JoinPlan(
        tuple(port for port, _ in planned), operator, (*left.columns, *right.columns), tuple(after), why, join
    )


def _port(
    join: AnalyzedIntervalJoin,
    port: int,
    given: PortInput,
    operands: Operands,
    keys: Keys,
    condition: Condition | None,
    after: list[Expr],
    route: Route,
    time: str,
) -> tuple[PortPlan, Port]:
    """What goes through the exchange for one side, and how the kernel finds it there."""
    shown = shown_columns(given, after)
    plan = port_plan(given, port, operands, keys, (join.left_only, join.right_only)[port], shown, route)
    read = tuple(name for name in plan.names if name in mentioned(condition))
    side = Port(shown, given.times, keys.names(port), plan.code, keys.exact, plan.dead, read, given.late, time)
    return plan, side


def _routes(kind: Kind, *, keyed: bool) -> tuple[Route, Route]:
    """Where the rows of each side go (HZ-32).

    Without a key one side goes to all shards and the other, which must be the preserved one, is spread. Of a FULL JOIN
    both sides are preserved: a row in several shards would not know whether it matched in another, so one shard joins.
    """
    if keyed:
        return ("key", "key")
    if kind == "full":
        return ("one", "one")
    return ("all", "time") if kind == "right" else ("time", "all")


def _range(
    bounds: tuple[TimeBound, ...], sides: tuple[frozenset[str], frozenset[str]]
) -> tuple[tuple[str, str], int, int]:
    """The pair of time columns that the matcher works on, and the closed range of right minus left."""
    lower: dict[tuple[str, str], int] = {}
    upper: dict[tuple[str, str], int] = {}
    for bound in bounds:
        # Times are whole numbers, so a strict bound is the closed bound one unit tighter.
        reach = bound.constant - (1 if bound.strict else 0)
        if bound.column.alias in sides[1]:
            pair = (str(bound.other), str(bound.column))
            lower[pair] = max(-reach, lower.get(pair, -reach))
        else:
            pair = (str(bound.column), str(bound.other))
            upper[pair] = min(reach, upper.get(pair, reach))
    pair = next((pair for pair in lower if pair in upper), next(iter(lower)))
    return pair, lower[pair], upper.get(pair, UNLIMITED)


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


def _why(keys: Keys, after: list[Expr], routes: tuple[Route, Route]) -> tuple[str, ...]:
    lines = ["interval join: both sides are streams and time bounds hold in both directions"]
    if keys.pairs:
        lines.append(keys.why())
    elif "one" in routes:
        lines.append("one shard: without an equality every row may meet every other, and both sides are preserved")
    else:
        sent, spread = ("left", "right") if routes[0] == "all" else ("right", "left")
        lines.append(f"block-nested: without an equality the {sent} side goes to all shards, the {spread} is spread")
    if after:
        lines.append("Spark filters the pairs by the conditions that only Spark can evaluate")
    return tuple(lines)
