"""Conditions on TIMESTAMPs in a session time zone with daylight saving: they mean the same as in Spark.

``t + INTERVAL 1 DAY`` is the same local time of the next day, and ``a - b`` the difference of local times. In a zone
whose days all have 24 hours, time bounds are exact, and the query does not change. In any other zone Spark computes
both sides of the comparison for each row, the kernel compares them, and the bound only sets the retention of rows,
which is extended by the largest shift that the zone has ever had.
"""

from __future__ import annotations

from dataclasses import replace

from watersmeet.duration import SESSION_ZONE, largest_shift
from watersmeet.logical.expressions import Expr
from watersmeet.logical.nodes import Script
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.logical.relation import AnalyzedRelation, ConditionalJoin
from watersmeet.operators.interval.relation import AnalyzedIntervalJoin, lowest_bounds
from watersmeet.physical import sources_of
from watersmeet.physical.nodes import DeclaredTypes, Types


def in_zone_of_script(query: AnalyzedQuery, script: Script) -> AnalyzedQuery:
    """The query as it runs in the zone that its script sets; unchanged if it sets none."""
    zones = [setting.value.strip() for setting in script.settings if setting.name.lower() == SESSION_ZONE]
    types = DeclaredTypes(sources_of(query.relation))
    return in_zone(query, zones[-1].strip("'\""), types) if zones else query


def in_zone(query: AnalyzedQuery, zone: str, types: Types) -> AnalyzedQuery:
    """The query with conditions that have Spark's meaning in this zone."""
    shift = largest_shift(zone)
    return replace(query, relation=_in_zone(query.relation, shift, types)) if shift else query


def _in_zone(relation: AnalyzedRelation, shift: int, types: Types) -> AnalyzedRelation:
    relation = relation.with_inputs([_in_zone(side, shift, types) for side in relation.inputs])
    if isinstance(relation, AnalyzedIntervalJoin):
        relation = _widen_bounds(relation, shift)
    if isinstance(relation, ConditionalJoin):
        sides = (frozenset(relation.left.aliases), frozenset(relation.right.aliases))
        residual = tuple(_by_local_times(part, sides, types) for part in relation.residual)
        relation = relation if residual == relation.residual else replace(relation, residual=residual)
    return relation


def _widen_bounds(join: AnalyzedIntervalJoin, shift: int) -> AnalyzedIntervalJoin:
    """The join with widened bounds, which only set the retention, and the parts of ON as conditions."""
    if not join.zoned:
        return replace(join, shift=shift)
    wider = (
        replace(bound, constant=bound.constant + shift, strict=False) for part in join.zoned for bound in part.bounds
    )
    bounds = lowest_bounds((*join.unzoned, *wider), frozenset(join.left.aliases))
    residual = (*join.residual, *(_by_spark(part.condition) for part in join.zoned))
    return replace(join, bounds=bounds, residual=residual, zoned=(), unzoned=bounds, shift=shift)


def _by_spark(condition: Expr) -> Expr:
    """A comparison in which Spark computes each side that is more than a column."""
    if condition.op == "not":
        return replace(condition, args=(_by_spark(condition.args[0]),))
    if any(len(arg.sources) > 1 for arg in condition.args):
        return condition
    is_plain = [arg.op in ("column", "literal", "interval") for arg in condition.args]
    args = (arg if plain else _opaque(arg) for arg, plain in zip(condition.args, is_plain, strict=True))
    return replace(condition, args=tuple(args))


def _by_local_times(expr: Expr, sides: tuple[frozenset[str], frozenset[str]], types: Types) -> Expr:
    """A condition in which the difference of two TIMESTAMPs, one of each side, is that of their local times."""
    if any(expr.sources <= side for side in sides):
        return expr
    if expr.op == "-" and len(expr.args) == 2:
        owners = [[side for side in sides if arg.sources and arg.sources <= side] for arg in expr.args]
        if all(owners) and all(types.type_of(arg) == "TIMESTAMP" for arg in expr.args):
            local = (_opaque(Expr("cast", (arg,), value="TIMESTAMP_NTZ", span=arg.span)) for arg in expr.args)
            return replace(expr, args=tuple(local))
    return replace(expr, args=tuple(_by_local_times(arg, sides, types) for arg in expr.args))


def _opaque(expr: Expr) -> Expr:
    """The same value as an expression that only Spark computes."""
    return Expr("call", (expr,), text="coalesce", span=expr.span)
