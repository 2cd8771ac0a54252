"""What the join families share: keys and conditions as columns, and the way of a side up to the exchange."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from watersmeet.joins.core.condition import Apply, Column, Condition
from watersmeet.physical.condition import Operands
from watersmeet.physical.nodes import Lag, PortInput, PortPlan, Route
from watersmeet.plan.expressions import Expr
from watersmeet.type_names import EXACT

CODE, DEAD = "#code", "#dead"


@dataclass(frozen=True)
class Keys:
    """The equalities of a join as pairs of columns; ``exact``: the only key is its own code."""

    pairs: tuple[tuple[str, str], ...]
    exact: bool

    @staticmethod
    def of(keys: Sequence[tuple[Expr, Expr]], operands: Operands) -> Keys:
        """The keys of a join, each side wrapped so that the values compare as Spark compares them."""
        pairs: list[tuple[str, str]] = []
        exact = len(keys) == 1
        for left, right in keys:
            templates = operands.comparable(left, right)
            pairs.append((operands.operand(0, left, templates[0]).name, operands.operand(1, right, templates[1]).name))
            exact = exact and operands.types.common_type(left, right) in EXACT
        return Keys(tuple(pairs), exact)

    def names(self, port: int) -> tuple[str, ...]:
        """The key columns of a side."""
        return tuple(pair[port] for pair in self.pairs)

    def code(self, port: int) -> str | None:
        """The column that is equal wherever the keys are equal; None without keys."""
        if not self.pairs:
            return None
        return self.pairs[0][port] if self.exact else CODE

    def hashed(self, port: int) -> tuple[str, ...]:
        """The columns whose hash is the code, if it is a hash."""
        return () if self.exact else self.names(port)

    def why(self) -> str:
        """How the keys decide about shards, in words."""
        if self.exact:
            return "sharded by the key, which is its own code: it fits 64 bits"
        return "sharded by a hash of the keys; candidates are compared in full"


def split_residual(residual: Iterable[Expr], operands: Operands) -> tuple[list[Condition], list[Expr]]:
    """What of the rest of ON the kernel can evaluate, and what is left to Spark after the join."""
    conditions: list[Condition] = []
    after: list[Expr] = []
    for part in residual:
        condition = operands.condition(part)
        if condition is None:
            after.append(part)
        else:
            conditions.append(condition)
    return conditions, after


def all_of(conditions: Iterable[Condition]) -> Condition | None:
    """All conditions together; None if there are none."""
    result: Condition | None = None
    for condition in conditions:
        result = condition if result is None else Apply("and", (result, condition))
    return result


def mentioned(condition: Condition | None) -> frozenset[str]:
    """The columns that a condition reads.

    >>> sorted(mentioned(Apply("<", (Column("l.a"), Apply("negate", (Column("r.b"),))))))
    ['l.a', 'r.b']
    """
    if isinstance(condition, Column):
        return frozenset({condition.name})
    if isinstance(condition, Apply):
        return frozenset(name for arg in condition.args for name in mentioned(arg))
    return frozenset()


def shown_columns(given: PortInput, after: Iterable[Expr]) -> tuple[str, ...]:
    """What the frame of a join shows of a side: what is asked for later, and what Spark filters by."""
    asked = [ref.column for expr in after for ref in expr.references if ref.source in given.aliases]
    return tuple(dict.fromkeys((*given.needed, *asked)))


def port_plan(
    given: PortInput,
    port: int,
    operands: Operands,
    keys: Keys,
    only: tuple[Expr, ...],
    columns: Iterable[str],
    route: Route,
) -> PortPlan:
    """The way of one side up to the exchange; ``columns`` go through it as they are, besides what the operands need."""
    carried = tuple(dict.fromkeys((*columns, *given.times, *operands.columns[port], *given.late)))
    return PortPlan(
        given.plan, carried, tuple(operands.computed[port]), only, DEAD if only else None, keys.code(port),
        keys.hashed(port), given.lags, route, given.times,
    )  # fmt: skip


def unions_of(lags: Iterable[Lag]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The columns that several sources feed, each with the marks of its parts."""
    parts: dict[str, list[str]] = {}
    for lag in lags:
        if lag.part is not None:
            parts.setdefault(lag.column, []).append(lag.mark)
    return tuple((column, tuple(marks)) for column, marks in parts.items())
