"""Ports of a plan: keys and conditions as columns, and the way of a side up to the exchange.

A part of a condition over one side becomes an operand: a column as it is, anything else a column that Spark computes
before the exchange. The kernel evaluates comparisons, arithmetic and boolean logic between operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import reduce
from typing import cast

from watersmeet.logical.expressions import ARITHMETIC, COMPARISONS, Expr, Op, column
from watersmeet.logical.relation import AnalyzedLeaf, AnalyzedScan, ConditionalJoin, Padding
from watersmeet.operators.core.changes import OP, POSITION, WEIGHT
from watersmeet.operators.core.condition import Apply, ColumnRef, Condition, Constant, Operator, columns_of
from watersmeet.operators.core.operator import Port
from watersmeet.operators.core.routing import Route
from watersmeet.operators.core.watermarks import WatermarkLag
from watersmeet.physical.nodes import ChangelogMode, Computed, PortPlan, Types
from watersmeet.schema import EXACT

Wrapped = tuple[Expr, str]
"""An expression over one side and the template that wraps it."""

LOGIC = frozenset({"and", "or", "not", "is_null", "negate"})


def plain_condition(expr: Expr) -> Condition | None:
    """An expression of columns, literals, comparisons, arithmetic and logic as a condition; None if it needs Spark."""
    if expr.op in ("literal", "interval"):
        return _constant(expr)
    if expr.op == "column":
        return None if expr.refs[0].path else ColumnRef(expr.refs[0].column)
    if expr.op in ("other", "cast", "call", "aggregate", "around", "windows"):
        return None
    return _fold(expr.op, [plain_condition(arg) for arg in expr.args])


@dataclass
class Operands:
    """The operands of a join's conditions, collected per side while conditions are translated."""

    sides: tuple[frozenset[str], frozenset[str]]
    types: Types
    columns: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    computed: tuple[list[Computed], list[Computed]] = field(default_factory=lambda: ([], []))
    names: tuple[dict[Wrapped, str], dict[Wrapped, str]] = field(default_factory=lambda: ({}, {}))

    def condition(self, expr: Expr) -> Condition | None:
        """The expression as a condition; None if something across the sides is beyond the kernel."""
        if expr.op in ("literal", "interval"):
            return _constant(expr)
        for port, side in enumerate(self.sides):
            if expr.sources <= side:
                return self.operand(port, expr)
        if expr.op in COMPARISONS:
            return self._comparison(expr)
        if expr.op not in LOGIC and expr.op not in ARITHMETIC:
            return None
        if expr.op == "/" and any((self.types.type_of(arg) or "").startswith("DECIMAL") for arg in expr.args):
            # Arrow rounds the quotient of decimals otherwise than Spark.
            return None
        return _fold(expr.op, [self.condition(arg) for arg in expr.args])

    def operand(self, port: int, expr: Expr, template: str = "{}") -> ColumnRef:
        """The column that holds an expression over one side, as the template wraps it."""
        if expr.op == "column" and not expr.refs[0].path and template == "{}":
            name = expr.refs[0].column
            if name not in self.columns[port]:
                self.columns[port].append(name)
            return ColumnRef(name)
        name = self.names[port].setdefault((expr, template), f"#{'lr'[port]}{len(self.computed[port])}")
        if len(self.names[port]) > len(self.computed[port]):
            self.computed[port].append(Computed(name, expr, template))
        return ColumnRef(name)

    def _comparison(self, expr: Expr) -> Condition | None:
        """A comparison; two operands of different types are first cast to the type in which Spark compares them."""
        owners = [
            next((p for p, side in enumerate(self.sides) if arg.sources and arg.sources <= side), None)
            for arg in expr.args
        ]
        if None in owners:
            return _fold(expr.op, [self.condition(arg) for arg in expr.args])
        templates = self.comparable(expr.args[0], expr.args[1])
        operands = tuple(self.operand(cast("int", owners[i]), expr.args[i], templates[i]) for i in (0, 1))
        return Apply(cast("Operator", expr.op), operands)

    def comparable(self, first: Expr, second: Expr) -> tuple[str, str]:
        """The template that wraps the two so that their values compare as Spark compares them."""
        types = (self.types.type_of(first), self.types.type_of(second))
        common = types[0] if types[0] == types[1] else self.types.common_type(first, second)
        if common is None:
            return ("{}", "{}")
        # Text of another collation is refused where types are known; this one compares by its lower case.
        wrap = key_template(common)
        cast_ = wrap.format(f"CAST({{}} AS {common})")
        return (wrap if types[0] == common else cast_, wrap if types[1] == common else cast_)


def key_template(type_: str | None) -> str:
    """The template that wraps a value so that equal bytes are equal values: UTF8_LCASE compares by lower case.

    ``lower`` alone writes a capital sigma at the end of a word as another letter than the collation does, which takes
    both small sigmas for one.

    >>> key_template("STRING")
    '{}'
    """
    is_folded = type_ is not None and type_.endswith(" COLLATE UTF8_LCASE")
    return "translate(lower(CAST({} AS STRING)), '\u03c2', '\u03c3')" if is_folded else "{}"


def _constant(expr: Expr) -> Constant:
    return Constant(timedelta(microseconds=cast("int", expr.value)) if expr.op == "interval" else expr.value)


def _fold(op: Op, args: list[Condition | None]) -> Condition | None:
    """The operator over its arguments, of arithmetic two at a time; None if one of them is missing."""
    operands, operator = [arg for arg in args if arg is not None], cast("Operator", op)
    if len(operands) < len(args):
        return None
    if len(operands) == 1 or op in ("and", "or"):
        return Apply(operator, tuple(operands))
    return reduce(lambda first, other: Apply(operator, (first, other)), operands)


CODE, DEAD = "#code", "#dead"


@dataclass(frozen=True)
class JoinKeys:
    """The equalities of a join as pairs of columns; ``exact``: the only key is its own code."""

    pairs: tuple[tuple[str, str], ...]
    exact: bool

    @staticmethod
    def of(keys: Sequence[tuple[Expr, Expr]], operands: Operands) -> JoinKeys:
        """The keys of a join, each side wrapped so that the values compare as Spark compares them."""
        pairs: list[tuple[str, str]] = []
        exact = len(keys) == 1
        for left, right in keys:
            templates = operands.comparable(left, right)
            pairs.append((operands.operand(0, left, templates[0]).name, operands.operand(1, right, templates[1]).name))
            exact = exact and operands.types.common_type(left, right) in EXACT
        return JoinKeys(tuple(pairs), exact)

    def names(self, port: int) -> tuple[str, ...]:
        """The key columns of a side."""
        return tuple(pair[port] for pair in self.pairs)

    def code(self, port: int) -> str | None:
        """The column that is equal wherever the keys are equal; None without keys."""
        if not self.pairs:
            return None
        return self.pairs[0][port] if self.exact else CODE

    def hash_columns(self, port: int) -> tuple[str, ...]:
        """The columns whose hash is the code, if it is a hash."""
        return () if self.exact else self.names(port)

    def why(self) -> str:
        """The rule by which the keys decide about shards, in words."""
        if self.exact:
            return "sharded by the key, which is its own code: it fits 64 bits"
        return "sharded by a hash of the keys; candidates are compared in full"


@dataclass(frozen=True)
class JoinCondition:
    """The condition of a join over columns: its keys, what the kernel evaluates besides, and what is left to Spark."""

    join: ConditionalJoin
    operands: Operands
    keys: JoinKeys
    condition: Condition | None
    post_filters: tuple[Expr, ...]

    @staticmethod
    def of(
        join: ConditionalJoin,
        inputs: Sequence[PortPlan],
        types: Types,
        further: Callable[[Operands], Iterable[Condition]] = lambda operands: (),
    ) -> JoinCondition:
        """The condition of a join; ``further``: what must hold besides."""
        operands = Operands((inputs[0].aliases, inputs[1].aliases), types)
        keys = JoinKeys.of(join.keys, operands)
        more = [*further(operands)]
        parts = [(part, operands.condition(part)) for part in join.residual]
        conditions = [*more, *(condition for _, condition in parts if condition is not None)]
        condition = Apply("and", tuple(conditions)) if len(conditions) > 1 else next(iter(conditions), None)
        return JoinCondition(
            join, operands, keys, condition, tuple(part for part, condition in parts if condition is None)
        )

    def visible_columns(self, port: PortPlan) -> tuple[str, ...]:
        """The columns of a side in the frame of the join: those used later, and those that Spark filters by."""
        filtered = [ref.column for expr in self.post_filters for ref in expr.references if ref.source in port.aliases]
        return tuple(dict.fromkeys((*port.needed, *filtered)))

    def port_plan(self, port: PortPlan, number: int, route: Route, further: Iterable[str] = ()) -> PortPlan:
        """The path of one side up to the exchange: its output columns, ``further`` columns, and those that ON needs."""
        only = (self.join.left_only, self.join.right_only)[number]
        columns = (
            *self.visible_columns(port),
            *further,
            *port.times,
            *self.operands.columns[number],
            *port.late,
        )
        return replace(
            port,
            columns=tuple(dict.fromkeys(columns)),
            computed=tuple(self.operands.computed[number]),
            predicates=only,
            dead=DEAD if only else None,
            code=self.keys.code(number),
            hashed=self.keys.hash_columns(number),
            route=route,
        )

    def operator_port(self, port: PortPlan, number: int) -> Port:
        """The key by which the kernel finds the rows of a side that came that way."""
        mentioned = frozenset[str]() if self.condition is None else columns_of(self.condition)
        read = tuple(name for name in port.names if name in mentioned)
        return Port(
            self.visible_columns(port),
            port.times,
            self.keys.names(number),
            port.code,
            self.keys.exact,
            port.dead,
            read,
            port.late,
        )

    def why_post_filters(self, noun: str = "pairs") -> tuple[str, ...]:
        """Describe the filters that Spark applies after the join."""
        line = f"Spark filters the {noun} by the conditions that only Spark can evaluate"
        return (line,) if self.post_filters else ()


def changelog_mode_of(join: ConditionalJoin, port: int) -> ChangelogMode:
    """The form in which the changes of a side reach a join that can follow upserts by itself.

    The old and the new row of a primary key must meet in one shard, so the keys of the join must follow from it.
    """
    side = join.inputs[port]
    key = {name.lower() for name in side.source.primary_key} if isinstance(side, AnalyzedScan) else set[str]()
    named = [ref.name.lower() for pair in join.keys for ref in pair[port].references]
    return "upserts" if join.keys and key and key.issuperset(named) else "weights"


def changelog_port(on: JoinCondition, port: PortPlan, number: int, route: Route) -> tuple[PortPlan, Port]:
    """The way of a side that is a table up to the exchange, and how the kernel finds its changes there."""
    side = on.join.inputs[number]
    upserts: tuple[str, ...] = ()
    if isinstance(side, AnalyzedScan) and changelog_mode_of(on.join, number) == "upserts":
        fields = (side.source.field(name) for name in side.source.primary_key)
        upserts = tuple(f"{side.alias}.{field.name}" for field in fields if field is not None)
    plan = on.port_plan(port, number, route, (*upserts, OP) if upserts else (WEIGHT,))
    plan = replace(plan, position=POSITION) if upserts else plan
    return plan, replace(on.operator_port(plan, number), times=(), late=(), upsert_key=upserts)


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
    reference = column((alias, name))
    return replace(reference, refs=(replace(reference.refs[0], source=alias, name=name),))


def unions_of(lags: Iterable[WatermarkLag]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The columns that several sources feed, each with the watermarks of its parts."""
    parts: dict[str, list[str]] = {}
    for lag in lags:
        if lag.part is not None:
            parts.setdefault(lag.column, []).append(lag.watermark)
    return tuple((column, tuple(watermarks)) for column, watermarks in parts.items())
