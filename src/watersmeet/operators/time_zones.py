"""Conditions on TIMESTAMPs in a session time zone with daylight saving: they mean the same as in Spark.

``t + INTERVAL 1 DAY`` is the same local time of the next day, and ``a - b`` the difference of local times. In a zone
whose days all have 24 hours, time bounds are exact, and the query does not change. In any other zone Spark computes
both sides of the comparison for each row, the kernel compares them, and the bound only sets the retention of rows,
which is extended by the largest shift that the zone has ever had.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from watersmeet.duration import SESSION_ZONE, largest_shift
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.logical.expressions import Expr
from watersmeet.logical.nodes import Script
from watersmeet.logical.passes.conditions import SPLIT_HINT, not_evaluated
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.logical.relation import AnalyzedRelation, ConditionalJoin, joins
from watersmeet.logical.words import expression_in_words, kind_in_words
from watersmeet.operators.interval.relation import AnalyzedIntervalJoin, lowest_bounds
from watersmeet.physical import sources_of
from watersmeet.physical.nodes import DeclaredTypes, Types


def zone_of_script(script: Script) -> str | None:
    """The zone that a script sets; None: it sets none."""
    zones = [setting.value.strip() for setting in script.settings if setting.name.lower() == SESSION_ZONE]
    return zones[-1].strip("'\"") if zones else None


def follows_ansi(script: Script) -> bool:
    """Whether the expressions of a script follow ANSI, as they do if it does not switch that off."""
    values = [setting.value for setting in script.settings if setting.name.lower() == "spark.sql.ansi.enabled"]
    return not values or values[-1].strip("'\" ").lower() != "false"


def in_zone_of_script(query: AnalyzedQuery, script: Script, default: str | None = None) -> AnalyzedQuery:
    """Set the query's time zone to that of its script, or else to the default; unchanged without either."""
    zone = zone_of_script(script) or default
    return query if zone is None else in_zone(query, zone, DeclaredTypes(sources_of(query.relation)), script)


def in_zone(query: AnalyzedQuery, zone: str, types: Types, script: Script) -> AnalyzedQuery:
    """The query with conditions that have Spark's meaning in this zone; refused if a join cannot evaluate them."""
    shift = largest_shift(zone)
    if not shift:
        return query
    relation = _in_zone(query.relation, shift, types)
    refusals = [refusal for join in joins(relation) for refusal in _refuse_intervals(join, zone, script)]
    if refusals:
        raise WatersmeetError(refusals)
    return replace(query, relation=relation)


def _refuse_intervals(join: AnalyzedRelation, zone: str, script: Script) -> Iterator[Refusal]:
    """Refuse sums of a time and the other side's interval where they determine which rows are unmatched."""
    if not isinstance(join, ConditionalJoin) or join.kind == "inner":
        return
    for _, expr in not_evaluated(join):
        if expr.op != "call" or expr.args[0].op not in ("+", "-"):
            continue
        parameters = {
            "kind": kind_in_words(join.kind), "condition": expression_in_words(expr.args[0]),
            "cause": f"an interval of the other side, whose days have no fixed length in {zone}",
            "hint": SPLIT_HINT.format("use an INNER JOIN"),
        }  # fmt: skip
        yield Refusal("UNSUPPORTED_CONDITION", parameters, script.place(expr.span))


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
    """A condition in which the difference of two TIMESTAMPs, one of each side, is that of their local times.

    A sum of a TIMESTAMP and an interval that involve both sides is left to Spark.
    """
    if any(expr.sources <= side for side in sides):
        return expr
    if expr.op in ("+", "-") and len(expr.args) == 2:
        owners = [[side for side in sides if arg.sources and arg.sources <= side] for arg in expr.args]
        is_time = [types.type_of(arg) == "TIMESTAMP" for arg in expr.args]
        if all(owners) and all(is_time):
            local = (_opaque(Expr("cast", (arg,), value="TIMESTAMP_NTZ", span=arg.span)) for arg in expr.args)
            return replace(expr, args=tuple(local))
        if any(is_time):
            # An interval that is not of the side of the time: only Spark knows how long its days are.
            return _opaque(expr)
    return replace(expr, args=tuple(_by_local_times(arg, sides, types) for arg in expr.args))


def _opaque(expr: Expr) -> Expr:
    """The same value as an expression that only Spark computes."""
    return Expr("call", (expr,), text="coalesce", span=expr.span)
