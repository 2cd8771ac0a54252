"""Operator chaining: which joins of a query share one Spark operator and one exchange, and pass rows in the process.

A join may run in the operator of a join that it feeds if both have the same key, so that rows that may match there are
in one shard already. Also, nothing between them is left to Spark, and all shards agree about the watermarks that the
second join follows, because in one process it receives only those of its own shard.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from watersmeet.logical.expressions import Expr
from watersmeet.physical.nodes import (
    Computed,
    JoinPlan,
    QueryPlan,
    RelationPlan,
    Types,
    ViewPlan,
    join_plans,
)
from watersmeet.schema import INTEGERS

ChainGroups = tuple[tuple[int, ...], ...]
"""The stages of a query that run together, by their numbers, innermost first."""

OFF = "`watersmeet.operator_chaining` is off"
"""The reason why joins that may run together do not: a setting, or the checkpoint that goes on."""

_CAST = re.compile(r"CAST\(\{\} AS (\w+)\)")


@dataclass(frozen=True)
class ChainLink:
    """The way from a join to a port of the next one.

    ``columns``: those of the frame at the port, each with what it is called in the join's; ``watermarks``: what
    watermarks are called inside and outside of views; None: there is no view, and they stay as they are.
    """

    join: JoinPlan
    columns: Mapping[str, str]
    watermarks: tuple[tuple[str, str], ...] | None = None


def chain_operators(plan: QueryPlan, types: Types, groups: ChainGroups | None = None) -> QueryPlan:
    """The plan with every join in the operator of the next one where it may be; ``groups``: only joins of these are.

    A port that a join feeds through the exchange all the same says why.
    """
    return replace(plan, relation=plan.relation.transform(_ChainWalk(types, groups).chain))


def may_chain(plan: QueryPlan) -> bool:
    """Whether some joins of a plan run together, or could if they were not kept separate."""
    ports = (port for join in join_plans(plan.relation) for port in join.ports)
    return any(port.is_chained or port.unchained_reason == OFF for port in ports)


def chain_groups(relation: RelationPlan) -> ChainGroups:
    """The stages that run together."""
    joins = join_plans(relation)
    numbers = {id(join): number for number, join in enumerate(joins)}
    heads = {id(link.join) for join in joins if (link := find_chained_link(join)) is not None}
    runs = [tuple(numbers[id(stage)] for stage in chain_of(join)) for join in joins if id(join) not in heads]
    return tuple(run for run in runs if len(run) > 1)


def chain_of(join: JoinPlan) -> tuple[JoinPlan, ...]:
    """The joins that run in the operator of this one, innermost first, and this one."""
    link = find_chained_link(join)
    return (join,) if link is None else (*chain_of(link.join), join)


def find_chained_link(join: JoinPlan) -> ChainLink | None:
    """The way from the join before that runs in the same operator, if there is one."""
    return next((find_link(port.input) for port in join.ports if port.is_chained), None)


def find_link(relation: RelationPlan) -> ChainLink | None:
    """The way from the join that gives the rows of a relation, if nothing but names changes on it."""
    match relation:
        case JoinPlan():
            return ChainLink(relation, {name: name for name in relation.columns})
        case ViewPlan() if not relation.where and not relation.filters:
            below = find_link(relation.input)
            columns_by_name = [
                (name, _plain(output.expr)) for name, output in zip(relation.columns, relation.outputs, strict=True)
            ]
            if below is None or any(column is None for _, column in columns_by_name):
                return None
            columns = {name: below.columns[column] for name, column in columns_by_name if column is not None}
            inner = relation.watermarks if below.watermarks is None else _compose(below.watermarks, relation.watermarks)
            return ChainLink(below.join, columns, inner)
        case _:
            return None


@dataclass(frozen=True)
class ChainedColumn:
    """A column of a port that is inside: which column of the rows of the join before it is; with ``type``, widened."""

    name: str
    column: str
    type: str | None = None


def carry_columns(join: JoinPlan, place: int, link: ChainLink) -> tuple[ChainedColumn, ...]:
    """The columns of a port that is inside."""
    port, side = join.ports[place], code_side(join, place, link)
    columns = [ChainedColumn(name, link.columns[name]) for name in port.columns]
    columns += [
        ChainedColumn(computed.name, link.columns[_plain(computed.expr) or ""], _cast_type(computed))
        for computed in port.computed
    ]
    if side is not None:
        columns.append(ChainedColumn(str(port.code), str(link.join.operator.ports[side].code)))
    return tuple(columns)


def code_side(join: JoinPlan, place: int, link: ChainLink) -> int | None:
    """The side of the join before that has the hash which is the code of a port's keys; None: none is, or has it."""
    if not join.ports[place].hashed:
        return None
    keys = tuple(link.columns.get(name) for name in join.operator.ports[place].keys)
    return next((number for number, side in enumerate(link.join.operator.ports) if side.keys == keys), None)


@dataclass
class _ChainWalk:
    """Marks the ports of the joins of a plan; ``numbers``: those of the joins so far, innermost first."""

    types: Types
    groups: ChainGroups | None
    numbers: dict[int, int] = field(default_factory=dict[int, int])

    def chain(self, relation: RelationPlan) -> RelationPlan:
        """A node whose ports say which joins run in its operator; what it reads says so already."""
        if not isinstance(relation, JoinPlan):
            return relation
        join = self._join(relation, len(self.numbers))
        self.numbers[id(join)] = len(self.numbers)
        return join

    def _join(self, join: JoinPlan, number: int) -> JoinPlan:
        ports = [*join.ports]
        for place, port in enumerate(ports):
            if not join_plans(port.input):
                continue
            reason = self.why_not_chained(join, place)
            if reason is None and any(other.is_chained for other in ports):
                reason = "only one of the joins before it does"
            if reason is None and not self._may_chain(self.numbers.get(id(port.input.origin), -1), number):
                reason = OFF
            ports[place] = replace(port, is_chained=reason is None, unchained_reason=reason or "")
        return replace(join, ports=tuple(ports))

    def _may_chain(self, before: int, number: int) -> bool:
        return self.groups is None or any(before in group and number in group for group in self.groups)

    def why_not_chained(self, join: JoinPlan, number: int) -> str | None:  # noqa: PLR0911 - one return per reason
        """The reason why the join that feeds a port is not in the same operator; "": none ever is; None: it may be."""
        port, link = join.ports[number], find_link(join.ports[number].input)
        if join.operator.watermark_dependencies is None or (
            link is not None and link.join.operator.uniform_watermarks(frozenset()) is None
        ):
            return ""
        if link is None:
            return "Spark works on the rows between them"
        before = link.join
        if any(port_plan.route != "key" or port_plan.shard_by for port_plan in (*join.ports, *before.ports)):
            return "without an equality rows go to other shards"
        if any(port_plan.skew is not None for port_plan in (*join.ports, *before.ports)):
            return "rows of a skewed key are in several shards"
        if (
            before.post_filters
            or port.predicates
            or port.lags
            or any(self._base(column) is None for column in port.computed)
        ):
            return "Spark evaluates conditions on the rows between them"
        sides, keys, key_classes = (
            (join.operator.ports, before.operator.ports),
            self._keys(join, number),
            self._classes(before),
        )
        inner = [link.columns.get(key) for key in keys]
        if len(keys) != len(key_classes) or any(
            key not in names for key, names in zip(inner, key_classes, strict=True)
        ):
            return "its key is another"
        if sides[0][number].exact != sides[1][0].exact:
            return "its key is compared in another type"
        if port.hashed and (port.computed or code_side(join, number, link) is None):
            return "behind the join before, the hash of its key is not known any more"
        uniform = _global_watermarks(before)
        unknown = [
            watermark
            for watermark in join.operator.watermark_dependencies
            if watermark in port.times and _inner_watermark(link, watermark) not in uniform
        ]
        if unknown:
            return f"it follows the watermark of {unknown[0]}, which is only known when all shards have been asked"
        return None

    def _classes(self, join: JoinPlan) -> list[set[str]]:
        """Per key, the columns of a join's frame that decide about the shard of a row, wherever they are not NULL."""
        classes = [set(pair) for pair in zip(*(self._keys(join, n) for n in range(len(join.ports))), strict=True)]
        link = find_chained_link(join)
        if link is not None:
            for names, inner in zip(classes, self._classes(link.join), strict=True):
                names |= {name for name, column in link.columns.items() if column in inner}
        return classes

    def _keys(self, join: JoinPlan, number: int) -> list[str]:
        """The key columns of a port; of one that is only widened, what it is made of."""
        computed = {column.name: self._base(column) or column.name for column in join.ports[number].computed}
        return [computed.get(name, name) for name in join.operator.ports[number].keys]

    def _base(self, computed: Computed) -> str | None:
        """The column that a computed one is, but for the width of its integers; None: Spark makes another of it."""
        is_integer = {_cast_type(computed), self.types.type_of(computed.expr)} <= {*INTEGERS}
        return _plain(computed.expr) if is_integer else None


def _global_watermarks(join: JoinPlan) -> frozenset[str]:
    """The watermarked columns of a join about whose watermarks all shards agree."""
    watermarks = {time for port in join.ports if not port.is_chained for time in port.times}
    for port in join.ports:
        link = find_link(port.input) if port.is_chained else None
        if link is not None:
            before = _global_watermarks(link.join)
            watermarks |= {time for time in port.times if _inner_watermark(link, time) in before}
    return join.operator.uniform_watermarks(frozenset(watermarks)) or frozenset()


def _inner_watermark(link: ChainLink, watermark: str) -> str:
    """The name of a watermark of a port at its origin."""
    if link.watermarks is None:
        return watermark
    return next((inner for inner, outer in link.watermarks if outer == watermark), "")


def _compose(inner: tuple[tuple[str, str], ...], outer: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((first, last) for first, between in inner for name, last in outer if name == between)


def _cast_type(computed: Computed) -> str | None:
    """The type to which a column is cast, if that is all that is computed."""
    match = _CAST.fullmatch(computed.template)
    return None if match is None else match[1]


def _plain(expr: Expr) -> str | None:
    return expr.refs[0].column if expr.op == "column" and not expr.refs[0].path else None
