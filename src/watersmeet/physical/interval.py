"""The interval join's entry: which columns it needs of each side, and how long each side lives."""

from __future__ import annotations

from watersmeet.joins.condition import Apply, Condition
from watersmeet.joins.interval import Bound, IntervalJoin, Side
from watersmeet.physical.condition import Operands
from watersmeet.physical.nodes import JoinPlan, PortPlan, RelationPlan
from watersmeet.physical.types import EXACT, Types
from watersmeet.plan.analyzed import AnalyzedJoin, TimeBound
from watersmeet.plan.expressions import Expr

CODE, DEAD = "#code", "#dead"


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

    ``needed`` are the columns that the result or a later join asks for, ``times`` the watermarked columns, ``sides`` the
    aliases, ``late`` the columns that late rows show.
    """
    operands = Operands(sides, types)
    keys, exact = _keys(join, operands)
    conditions: list[Condition] = []
    after: list[Expr] = []
    for residual in join.residual:
        condition = operands.condition(residual)
        if condition is None:
            after.append(residual)
        else:
            conditions.append(condition)
    asked = _columns_after(after, sides)
    shown = tuple(tuple(dict.fromkeys((*needed[p], *asked[p]))) for p in (0, 1))
    only = (join.left_only, join.right_only)
    code = None if not keys else keys
    kernel_sides: list[Side] = []
    ports: list[PortPlan] = []
    for p in (0, 1):
        names = tuple(pair[p] for pair in code or ())
        code_name = None if not names else (names[0] if exact else CODE)
        extra = tuple(c.name for c in operands.computed[p] if c.name not in names)
        dead = DEAD if only[p] else None
        kernel_sides.append(
            Side(shown[p], times[p], names, code_name, exact, dead, tuple(dict.fromkeys((*operands.columns[p], *extra))), late[p])
        )
        columns = tuple(dict.fromkeys((*shown[p], *times[p], *operands.columns[p], *late[p])))
        ports.append(
            PortPlan(
                inputs[p], columns, tuple(operands.computed[p]), only[p], dead, code_name, () if exact else names, lags[p]
            )
        )
    left_time, right_time, lower, upper = _range(join.bounds, sides)
    operator = IntervalJoin(
        join.kind, kernel_sides[0], kernel_sides[1], left_time, right_time, lower, upper,
        tuple(Bound(str(b.column), str(b.other), b.constant) for b in join.bounds),
        _all(conditions),
    )  # fmt: skip
    return JoinPlan((ports[0], ports[1]), operator, (*shown[0], *shown[1]), tuple(after), _why(keys, exact, after), join)


def _keys(join: AnalyzedJoin, operands: Operands) -> tuple[list[tuple[str, str]], bool]:
    """The key columns, pair by pair, and whether the only key is its own code."""
    pairs: list[tuple[str, str]] = []
    exact = len(join.keys) == 1
    for left, right in join.keys:
        templates = operands.comparable(left, right)
        pairs.append((operands.operand(0, left, templates[0]).name, operands.operand(1, right, templates[1]).name))
        exact = exact and operands.types.common_type(left, right) in EXACT
    return pairs, exact


def _range(bounds: tuple[TimeBound, ...], sides: tuple[frozenset[str], frozenset[str]]) -> tuple[str, str, int, int]:
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
    both = [pair for pair in lower if pair in upper]
    pair = both[0]
    return (*pair, lower[pair], upper[pair])


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
