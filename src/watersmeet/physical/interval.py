"""The interval join's entry: which columns it needs of each side, and how long each side lives."""

from __future__ import annotations

from datetime import timedelta

from watersmeet.joins.condition import Apply, Condition, Constant
from watersmeet.joins.interval import Bound, IntervalJoin, Side
from watersmeet.physical.condition import Operands
from watersmeet.physical.nodes import JoinPlan, PortPlan, RelationPlan
from watersmeet.physical.types import EXACT, INTEGERS, Types
from watersmeet.plan.analyzed import AnalyzedJoin, TimeBound
from watersmeet.plan.expressions import Expr, Reference

CODE, DEAD = "#code", "#dead"
UNLIMITED = 2**63 - 1
"""No bound in one direction between the matcher's columns; another pair of columns has it."""


def plan_interval_join(
    join: AnalyzedJoin,
    inputs: tuple[RelationPlan, RelationPlan],
    needed: tuple[tuple[str, ...], tuple[str, ...]],
    times: tuple[tuple[str, ...], tuple[str, ...]],
    lags: tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]],
    sides: tuple[frozenset[str], frozenset[str]],
    types: Types,
    late: tuple[tuple[str, ...], tuple[str, ...]],
) -> JoinPlan:
    """The plan of an interval join.

    ``needed`` are the columns that the result or a later join asks for, ``times`` the watermarked columns, ``sides``
    the
    aliases, ``late`` the columns that late rows show.
    """
    operands = Operands(sides, types)
    keys, exact = _keys(join, operands)
    pair, lower, upper = _range(join.bounds, sides)
    conditions = [
        _further(bound, operands) for bound in join.bounds if {str(bound.column), str(bound.other)} != set(pair)
    ]
    after: list[Expr] = []
    for residual in join.residual:
        condition = operands.condition(residual)
        if condition is None:
            after.append(residual)
        else:
            conditions.append(condition)
    asked = _columns_after(after, sides)
    only = (join.left_only, join.right_only)
    kernel_sides: list[Side] = []
    ports: list[PortPlan] = []
    for p in (0, 1):
        shown = tuple(dict.fromkeys((*needed[p], *asked[p])))
        names = tuple(key[p] for key in keys)
        code = None if not names else (names[0] if exact else CODE)
        dead = DEAD if only[p] else None
        computed = tuple(operands.computed[p])
        read = tuple(dict.fromkeys((*operands.columns[p], *(c.name for c in computed if c.name not in names))))
        kernel_sides.append(Side(shown, times[p], names, code, exact, dead, read, late[p]))
        columns = tuple(dict.fromkeys((*shown, *times[p], *operands.columns[p], *late[p])))
        ports.append(PortPlan(inputs[p], columns, computed, only[p], dead, code, () if exact else names, lags[p]))
    left, right = kernel_sides
    bounds = tuple(Bound(str(b.column), str(b.other), b.constant) for b in join.bounds)
    operator = IntervalJoin(join.kind, left, right, *pair, lower, upper, bounds, _all(conditions))
    return JoinPlan(
        (ports[0], ports[1]), operator, (*left.columns, *right.columns), tuple(after), _why(keys, exact, after), join
    )


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


def _columns_after(after: list[Expr], sides: tuple[frozenset[str], frozenset[str]]) -> tuple[list[str], list[str]]:
    refs = [ref for expr in after for ref in expr.references]
    return ([r.column for r in refs if r.source in sides[0]], [r.column for r in refs if r.source in sides[1]])


def _why(keys: list[tuple[str, str]], exact: bool, after: list[Expr]) -> tuple[str, ...]:
    lines = ["interval join: both sides are streams and time bounds hold in both directions"]
    if not keys:
        lines.append("one shard: without an equality every row may meet every other")
    elif exact:
        lines.append("sharded by the key, which is its own code: it fits 64 bits")
    else:
        lines.append("sharded by a hash of the keys; candidates are compared in full")
    if after:
        lines.append("Spark filters the pairs by the conditions that only Spark can evaluate")
    return tuple(lines)
