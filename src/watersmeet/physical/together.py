"""Which joins of a query run together: one operator of Spark's, one exchange, rows that never leave the process.

A join may run in the operator of a join that it feeds when rows that may meet there are in one shard already: when both
have the same key. What else must hold: nothing between them is left to Spark, and all shards agree about the marks that
the second join follows, for in one process it hears of those of its own shard alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from watersmeet.physical.nodes import (
    Computed,
    JoinPlan,
    LateralPlan,
    QueryPlan,
    RelationPlan,
    ScanPlan,
    StaticJoinPlan,
    UnionPlan,
    ViewPlan,
    join_plans,
)
from watersmeet.physical.types import Types
from watersmeet.plan.expressions import Expr
from watersmeet.type_names import INTEGERS

Groups = tuple[tuple[int, ...], ...]
"""The stages of a query that run together, by their numbers, innermost first."""

OFF = "`watersmeet.together` is off"
"""Why joins that may run together do not: a setting, or the checkpoint that goes on."""

_CAST = re.compile(r"CAST\(\{\} AS (\w+)\)")


@dataclass(frozen=True)
class Way:
    """The way from a join to a port of the next one.

    ``columns``: those of the frame at the port, each with what it is called in the join's; ``marks``: what marks are
    called inside and outside of views; None: there is no view, and they stay as they are.
    """

    join: JoinPlan
    columns: Mapping[str, str]
    marks: tuple[tuple[str, str], ...] | None = None


def running_together(plan: QueryPlan, types: Types, groups: Groups | None = None) -> QueryPlan:
    """The plan with every join in the operator of the next one where it may be; ``groups``: only joins of these are.

    A port that a join feeds through the exchange all the same says why.
    """
    return replace(plan, relation=_Walk(types, groups).marked(plan.relation)[0])


def groups_of(relation: RelationPlan) -> Groups:
    """The stages that run together."""
    joins = join_plans(relation)
    numbers = {id(join): number for number, join in enumerate(joins)}
    heads = {id(way.join) for join in joins if (way := way_inside(join)) is not None}
    runs = [tuple(numbers[id(one)] for one in chain_of(join)) for join in joins if id(join) not in heads]
    return tuple(run for run in runs if len(run) > 1)


def chain_of(join: JoinPlan) -> tuple[JoinPlan, ...]:
    """The joins that run in the operator of this one, innermost first, and this one."""
    way = way_inside(join)
    return (join,) if way is None else (*chain_of(way.join), join)


def way_inside(join: JoinPlan) -> Way | None:
    """The way from the join before that runs in the same operator, if there is one."""
    return next((way_of(port.input) for port in join.ports if port.inside), None)


def way_of(relation: RelationPlan) -> Way | None:
    """The way from the join that gives the rows of a relation, if nothing but names changes on it."""
    match relation:
        case JoinPlan():
            return Way(relation, {name: name for name in relation.columns})
        case ViewPlan() if not relation.where and not relation.filters:
            below = way_of(relation.input)
            named = [
                (name, _plain(output.expr)) for name, output in zip(relation.columns, relation.outputs, strict=True)
            ]
            if below is None or any(column is None for _, column in named):
                return None
            columns = {name: below.columns[column] for name, column in named if column is not None}
            inner = relation.marks if below.marks is None else _composed(below.marks, relation.marks)
            return Way(below.join, columns, inner)
        case _:
            return None


@dataclass(frozen=True)
class Carried:
    """A column of a port that is inside: which column of the rows of the join before it is; with ``type``, widened."""

    name: str
    column: str
    type: str | None = None


def carried(join: JoinPlan, inside: int, way: Way) -> tuple[Carried, ...]:
    """The columns of a port that is inside."""
    port, side = join.ports[inside], code_side(join, inside, way)
    columns = [Carried(name, way.columns[name]) for name in port.columns]
    columns += [Carried(one.name, way.columns[_plain(one.expr) or ""], _widened(one)) for one in port.computed]
    if side is not None:
        columns.append(Carried(str(port.code), str(way.join.operator.sides[side].code)))
    return tuple(columns)


def code_side(join: JoinPlan, inside: int, way: Way) -> int | None:
    """The side of the join before that has the hash which is the code of a port's keys; None: none is, or has it."""
    if not join.ports[inside].hashed:
        return None
    keys = tuple(way.columns.get(name) for name in join.operator.sides[inside].keys)
    return next((number for number, side in enumerate(way.join.operator.sides) if side.keys == keys), None)


@dataclass
class _Walk:
    """Goes through a plan as `join_plans` does, innermost first."""

    types: Types
    groups: Groups | None
    stages: int = 0

    def marked(self, relation: RelationPlan) -> tuple[RelationPlan, int]:
        """The relation with its ports marked, and the number of its last stage, if it ends in one."""
        match relation:
            case ScanPlan():
                return relation, -1
            case ViewPlan() | LateralPlan():
                below, number = self.marked(relation.input)
                return replace(relation, input=below), number
            case UnionPlan():
                return replace(relation, inputs=tuple(self.marked(one)[0] for one in relation.inputs)), -1
            case StaticJoinPlan():
                return replace(relation, stream=self.marked(relation.stream)[0]), -1
            case JoinPlan():
                return self._join(relation)

    def _join(self, join: JoinPlan) -> tuple[JoinPlan, int]:
        inputs = [self.marked(port.input) for port in join.ports]
        number, self.stages = self.stages, self.stages + 1
        ports = [replace(port, input=one) for port, (one, _) in zip(join.ports, inputs, strict=True)]
        join = replace(join, ports=tuple(ports))
        for place, port in enumerate(ports):
            if not join_plans(port.input):
                continue
            apart = self.why_apart(join, place)
            if apart is None and any(other.inside for other in ports):
                apart = "only one of the joins before it does"
            if apart is None and not self._may(inputs[place][1], number):
                apart = OFF
            ports[place] = replace(port, inside=apart is None, apart=apart or "")
        return replace(join, ports=tuple(ports)), number

    def _may(self, before: int, number: int) -> bool:
        return self.groups is None or any(before in group and number in group for group in self.groups)

    def why_apart(self, join: JoinPlan, number: int) -> str | None:
        """Why the join that feeds a port does not run in the same operator; nothing: such never do; None: it may."""
        port, way = join.ports[number], way_of(join.ports[number].input)
        if join.operator.follows is None or (way is not None and way.join.operator.agreed(frozenset()) is None):
            return ""
        if way is None:
            return "Spark works on the rows between them"
        before = way.join
        if any(one.route != "key" or one.shard_by for one in (*join.ports, *before.ports)):
            return "without an equality rows go to other shards"
        if before.after or port.predicates or port.lags or any(self._base(one) is None for one in port.computed):
            return "Spark evaluates conditions on the rows between them"
        sides, keys, known = (
            (join.operator.sides, before.operator.sides),
            self._keys(join, number),
            self._classes(before),
        )
        inner = [way.columns.get(key) for key in keys]
        if len(keys) != len(known) or any(key not in names for key, names in zip(inner, known, strict=True)):
            return "its key is another"
        if sides[0][number].exact != sides[1][0].exact:
            return "its key is compared in another type"
        if port.hashed and (port.computed or code_side(join, number, way) is None):
            return "behind the join before, the hash of its key is not known any more"
        agreed = _agreed(before)
        unknown = [mark for mark in join.operator.follows if mark in port.times and _inner(way, mark) not in agreed]
        if unknown:
            return f"it follows the watermark of {unknown[0]}, which is only known when all shards have been asked"
        return None

    def _classes(self, join: JoinPlan) -> list[set[str]]:
        """Per key, the columns of a join's frame that decide about the shard of a row, wherever they are not NULL."""
        found = [set(pair) for pair in zip(*(self._keys(join, n) for n in range(len(join.ports))), strict=True)]
        way = way_inside(join)
        if way is not None:
            for names, inner in zip(found, self._classes(way.join), strict=True):
                names |= {name for name, column in way.columns.items() if column in inner}
        return found

    def _keys(self, join: JoinPlan, number: int) -> list[str]:
        """The key columns of a port; of one that is only widened, what it is made of."""
        computed = {one.name: self._base(one) or one.name for one in join.ports[number].computed}
        return [computed.get(name, name) for name in join.operator.sides[number].keys]

    def _base(self, computed: Computed) -> str | None:
        """The column that a computed one is, but for the width of its integers; None: Spark makes another of it."""
        is_integer = {_widened(computed), self.types.type_of(computed.expr)} <= {*INTEGERS}
        return _plain(computed.expr) if is_integer else None


def _agreed(join: JoinPlan) -> frozenset[str]:
    """The watermarked columns of a join about whose marks all shards agree."""
    known = {time for port in join.ports if not port.inside for time in port.times}
    for port in join.ports:
        way = way_of(port.input) if port.inside else None
        if way is not None:
            before = _agreed(way.join)
            known |= {time for time in port.times if _inner(way, time) in before}
    return join.operator.agreed(frozenset(known)) or frozenset()


def _inner(way: Way, mark: str) -> str:
    """What a mark at a port is called where it comes from."""
    if way.marks is None:
        return mark
    return next((inner for inner, outer in way.marks if outer == mark), "")


def _composed(inner: tuple[tuple[str, str], ...], outer: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((first, last) for first, between in inner for name, last in outer if name == between)


def _widened(computed: Computed) -> str | None:
    """The type to which a column is cast, if that is all that is computed."""
    found = _CAST.fullmatch(computed.template)
    return None if found is None else found[1]


def _plain(expr: Expr) -> str | None:
    return expr.refs[0].column if expr.op == "column" and not expr.refs[0].path else None
