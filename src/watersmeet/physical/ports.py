"""What the join families share: keys and conditions as columns, and the way of a side up to the exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from watersmeet.joins.core.condition import Apply, Column, Condition
from watersmeet.joins.core.port import Port
from watersmeet.physical.condition import Operands
from watersmeet.physical.nodes import Lag, PortInput, PortPlan, Route
from watersmeet.physical.types import Types
from watersmeet.plan.expressions import Expr, column
from watersmeet.plan.relation import AnalyzedLeaf, ConditionalJoin, Padding
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


@dataclass(frozen=True)
class On:
    """The condition of a join over columns: its keys, what the kernel evaluates besides, and what is left to Spark."""

    join: ConditionalJoin
    operands: Operands
    keys: Keys
    condition: Condition | None
    after: tuple[Expr, ...]

    @staticmethod
    def of(
        join: ConditionalJoin,
        inputs: Sequence[PortInput],
        types: Types,
        further: Callable[[Operands], Iterable[Condition]] = lambda operands: (),
    ) -> On:
        """The condition of a join; ``further``: what must hold besides."""
        operands = Operands((inputs[0].aliases, inputs[1].aliases), types)
        keys = Keys.of(join.keys, operands)
        more = [*further(operands)]
        parts = [(part, operands.condition(part)) for part in join.residual]
        condition = all_of([*more, *(condition for _, condition in parts if condition is not None)])
        return On(join, operands, keys, condition, tuple(part for part, condition in parts if condition is None))

    def shown(self, given: PortInput) -> tuple[str, ...]:
        """What the frame of the join shows of a side: what is asked for later, and what Spark filters by."""
        asked = [ref.column for expr in self.after for ref in expr.references if ref.source in given.aliases]
        return tuple(dict.fromkeys((*given.needed, *asked)))

    def way(self, given: PortInput, port: int, route: Route, further: Iterable[str] = ()) -> PortPlan:
        """The way of one side up to the exchange: what is shown of it, ``further`` columns, and what ON needs."""
        only = (self.join.left_only, self.join.right_only)[port]
        columns = (*self.shown(given), *further, *given.times, *self.operands.columns[port], *given.late)
        return PortPlan(
            given.plan, tuple(dict.fromkeys(columns)), tuple(self.operands.computed[port]), only,
            DEAD if only else None, self.keys.code(port), self.keys.hashed(port), given.lags, route, given.times,
        )  # fmt: skip

    def port(self, given: PortInput, port: int, way: PortPlan) -> Port:
        """How the kernel finds the rows of a side that came that way."""
        read = tuple(name for name in way.names if name in mentioned(self.condition))
        return Port(
            self.shown(given), given.times, self.keys.names(port), way.code, self.keys.exact, way.dead, read, given.late
        )

    def why_after(self, what: str = "pairs") -> tuple[str, ...]:
        """What Spark does behind the join, in words."""
        line = f"Spark filters the {what} by the conditions that only Spark can evaluate"
        return (line,) if self.after else ()


def padding_of(pad: Padding, leaf: AnalyzedLeaf) -> Padding:
    """The padding of a side with its columns as the frames call them."""
    if pad == "nulls" or pad == "zeros":
        return pad
    return tuple((f"{leaf.alias}.{name}", value) for name, value in pad)


def leaf_column(alias: str, name: str) -> Expr:
    """The column of a leaf as an expression.

    >>> leaf_column("o", "id").refs[0].column
    'o.id'
    """
    found = column((alias, name))
    return replace(found, refs=(replace(found.refs[0], source=alias, name=name),))


def unions_of(lags: Iterable[Lag]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The columns that several sources feed, each with the marks of its parts."""
    parts: dict[str, list[str]] = {}
    for lag in lags:
        if lag.part is not None:
            parts.setdefault(lag.column, []).append(lag.mark)
    return tuple((column, tuple(marks)) for column, marks in parts.items())
