"""The interval join's entry: which columns it needs of each side, and how long each side lives."""

from __future__ import annotations

from datetime import timedelta

from watersmeet.joins.condition import Apply, Condition, Constant
from watersmeet.joins.interval import Bound, IntervalJoin, Kind, Side
from watersmeet.physical.condition import Operands
from watersmeet.physical.nodes import JoinPlan, Lag, PortInput, PortPlan, Route
from watersmeet.physical.types import EXACT, INTEGERS, Types
from watersmeet.plan.analyzed import AnalyzedJoin, TimeBound
from watersmeet.plan.expressions import Expr, Reference

CODE, DEAD = "#code", "#dead"
UNLIMITED = 2**63 - 1
"""No bound in one direction between the matcher's columns; another pair of columns has it."""


def plan_interval_join(join: AnalyzedJoin, inputs: tuple[PortInput, PortInput], types: Types) -> JoinPlan:
    """The plan of an interval join over two inputs."""
    sides = (inputs[0].aliases, inputs[1].aliases)
    operands = Operands(sides, types)
    keys, exact = _keys(join, operands)
    pair, lower, upper = _range(join.bounds, sides)
    others = [bound for bound in join.bounds if {str(bound.column), str(bound.other)} != set(pair)]
    conditions = [_further(bound, operands) for bound in others]
    after: list[Expr] = []
    for residual in join.residual:
        condition = operands.condition(residual)
        if condition is None:
            after.append(residual)
        else:
            conditions.append(condition)
    routes = _routes(join.kind, keyed=bool(keys))
    planned = [_port(join, p, inputs[p], operands, keys, exact, after, routes[p]) for p in (0, 1)]
    left, right = (side for _, side in planned)
    operator = IntervalJoin(
        join.kind, left, right, *pair, lower, upper,
        tuple(Bound(str(b.column), str(b.other), b.constant) for b in join.bounds),
        _all(conditions),
        idle=inputs[0].idle + inputs[1].idle,
        unions=_unions(inputs[0].lags + inputs[1].lags),
    )  # fmt: skip
    why = _why(keys, exact, after, routes)
    return JoinPlan((planned[0][0], planned[1][0]), operator, (*left.columns, *right.columns), tuple(after), why, join)


def _port(
    join: AnalyzedJoin,
    port: int,
    given: PortInput,
    operands: Operands,
    keys: list[tuple[str, str]],
    exact: bool,
    after: list[Expr],
    route: Route,
) -> tuple[PortPlan, Side]:
    """What goes through the exchange for one side, and how the kernel finds it there."""
    asked = [ref.column for expr in after for ref in expr.references if ref.source in given.aliases]
    shown = tuple(dict.fromkeys((*given.needed, *asked)))
    names = tuple(key[port] for key in keys)
    code = None if not names else (names[0] if exact else CODE)
    only = (join.left_only, join.right_only)[port]
    dead = DEAD if only else None
    computed = tuple(operands.computed[port])
    read = tuple(dict.fromkeys((*operands.columns[port], *(c.name for c in computed if c.name not in names))))
    columns = tuple(dict.fromkeys((*shown, *given.times, *operands.columns[port], *given.late)))
    hashed = () if exact else names
    plan = PortPlan(given.plan, columns, computed, only, dead, code, hashed, given.lags, route, given.times)
    return plan, Side(shown, given.times, names, code, exact, dead, read, given.late)


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


def _unions(lags: tuple[Lag, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The columns that several sources feed, each with the marks of its parts."""
    parts: dict[str, list[str]] = {}
    for lag in lags:
        if lag.part is not None:
            parts.setdefault(lag.column, []).append(lag.mark)
    return tuple((column, tuple(marks)) for column, marks in parts.items())


def _keys(join: AnalyzedJoin, operands: Operands) -> tuple[list[tuple[str, str]], bool]:
    """The key columns, pair by pair, and whether the only key is its own code."""
    pairs: list[tuple[str, str]] = []
    exact = len(join.keys) == 1
    for left, right in join.keys:
        templates = operands.comparable(left, right)
        pairs.append((operands.operand(0, left, templates[0]).name, operands.operand(1, right, templates[1]).name))
        exact = exact and operands.types.common_type(left, right) in EXACT
    return pairs, exact


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


def _all(conditions: list[Condition]) -> Condition | None:
    result: Condition | None = None
    for condition in conditions:
        result = condition if result is None else Apply("and", (result, condition))
    return result


def _why(keys: list[tuple[str, str]], exact: bool, after: list[Expr], routes: tuple[Route, Route]) -> tuple[str, ...]:
    lines = ["interval join: both sides are streams and time bounds hold in both directions"]
    if exact and keys:
        lines.append("sharded by the key, which is its own code: it fits 64 bits")
    elif keys:
        lines.append("sharded by a hash of the keys; candidates are compared in full")
    elif "one" in routes:
        lines.append("one shard: without an equality every row may meet every other, and both sides are preserved")
    else:
        sent, spread = ("left", "right") if routes[0] == "all" else ("right", "left")
        lines.append(f"block-nested: without an equality the {sent} side goes to all shards, the {spread} is spread")
    if after:
        lines.append("Spark filters the pairs by the conditions that only Spark can evaluate")
    return tuple(lines)
