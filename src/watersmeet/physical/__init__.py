"""Which operator, and why. `plan_query` is the one place where a join family is chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from watersmeet.catalog import Field, Source
from watersmeet.joins.operator import Overflow
from watersmeet.physical.asof import plan_asof_join
from watersmeet.physical.interval import plan_interval_join
from watersmeet.physical.nodes import (
    PADDED,
    Computed,
    JoinPlan,
    Lag,
    PortInput,
    PortPlan,
    QueryPlan,
    RelationPlan,
    ScanPlan,
    join_plans,
    scan_plans,
)
from watersmeet.physical.sync import plan_sync_join
from watersmeet.physical.types import DeclaredTypes, Types
from watersmeet.physical.window import plan_window_join
from watersmeet.plan.analyzed import (
    AnalyzedAsofJoin,
    AnalyzedJoin,
    AnalyzedQuery,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedSyncJoin,
    AnalyzedWindowJoin,
    AnyJoin,
    aliases,
    scans,
)
from watersmeet.plan.analyzed import inputs as inputs_of
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import LEFT_ONLY, Script

__all__ = [
    "PADDED", "Computed", "DeclaredTypes", "JoinPlan", "Lag", "LateRows", "Limits", "PortPlan", "QueryPlan",
    "RelationPlan", "ScanPlan", "Types", "join_plans", "limits_of", "plan_query", "scan_plans", "sources_of",
]  # fmt: skip


LateRows = Literal["counted", "kept"]
"""What becomes of late rows: they are only counted, or also emitted, with all columns, apart from the result."""


@dataclass(frozen=True)
class Limits:
    """How many rows a join may keep, and what happens when that is not enough."""

    max_rows: int | None = None
    overflow: Overflow = "fail"


def limits_of(script: Script) -> Limits | None:
    """The limits that a script sets."""
    settings = {setting.name.lower(): setting.value for setting in script.settings}
    if "watersmeet.state.max_rows" not in settings:
        return None
    overflow = settings.get("watersmeet.state.overflow", "fail")
    return Limits(int(settings["watersmeet.state.max_rows"]), "drop_oldest" if overflow == "drop_oldest" else "fail")


def plan_query(
    query: AnalyzedQuery, types: Types | None = None, late: LateRows = "counted", limits: Limits | None = None
) -> QueryPlan:
    """The plan of a query; without ``types`` the declared ones are used."""
    types = types or DeclaredTypes(sources_of(query.relation))
    needed = _columns([*query.where, *(output.expr for output in query.outputs)])
    if query.ports_into:
        needed |= frozenset(column for scan in scans(query.relation) for column in _all_columns(scan))
    relation = _plan(query.relation, needed or _any_column(query.relation), types, late)
    if limits is not None:
        relation = _limited(relation, limits)
    return QueryPlan(relation, query.where, query.outputs, query.into, query.ports_into)


def sources_of(relation: AnalyzedRelation) -> dict[str, Source]:
    """The sources of a relation by alias."""
    return {scan.alias: scan.source for scan in scans(relation)}


def _plan(relation: AnalyzedRelation, needed: frozenset[str], types: Types, late: LateRows) -> RelationPlan:
    """The plan of a relation that must show the columns ``needed``."""
    if isinstance(relation, AnalyzedScan):
        asked = needed | _columns(_filters(relation))
        fields = relation.source.fields
        columns = tuple(f.name for f in fields if late == "kept" or f"{relation.alias}.{f.name}" in asked)
        return ScanPlan(relation.alias, relation.source, columns, _filters(relation), relation.parts)
    times = frozenset(column for side in inputs_of(relation) for column in _times(side))
    inside = needed | times | _inside(relation)
    given = tuple(_input(side, needed, inside, types, late) for side in inputs_of(relation))
    match relation:
        case AnalyzedSyncJoin():
            return plan_sync_join(relation, given)
        case AnalyzedWindowJoin():
            return plan_window_join(relation, (given[0], given[1]), types)
        case AnalyzedAsofJoin():
            return plan_asof_join(relation, (given[0], given[1]), types)
        case AnalyzedJoin():
            return plan_interval_join(relation, (given[0], given[1]), types)


def _inside(relation: AnyJoin) -> frozenset[str]:
    """The columns that a join itself reads, watermarked ones apart."""
    if isinstance(relation, AnalyzedSyncJoin):
        return frozenset()
    keys = [side for pair in relation.keys for side in pair]
    found = _columns([*keys, *relation.left_only, *relation.right_only, *relation.residual])
    if not isinstance(relation, AnalyzedWindowJoin):
        return found
    for port, scan in enumerate((relation.left, relation.right)):
        window, order = relation.windows[port], relation.order[port]
        found |= _columns([*window.partition_by, *([] if window.column is None else [window.column])])
        found |= frozenset(() if order is None else (f"{scan.alias}.{order}",))
        found |= frozenset(_all_columns(scan) if relation.unmatched[port] else ())
    return found


def _all_columns(scan: AnalyzedScan) -> tuple[str, ...]:
    return tuple(f"{scan.alias}.{field.name}" for field in scan.source.fields)


def _any_column(relation: AnalyzedRelation) -> frozenset[str]:
    """Some column, for a query that asks for none: rows without columns could not be counted."""
    return frozenset((*_times(relation), *_all_columns(scans(relation)[0]))[:1])


def _input(
    relation: AnalyzedRelation, needed: frozenset[str], inside: frozenset[str], types: Types, late: LateRows
) -> PortInput:
    """One side of a join, and what the join is told of it."""
    plan = _plan(relation, inside, types, late)
    shown = tuple(column for column in _shown(plan) if column in needed)
    idle = _idle(relation) if isinstance(relation, AnalyzedScan) else ()
    visible = frozenset(aliases(relation))
    return PortInput(plan, visible, shown, _times(relation), _lags(relation), idle, _late(plan, late))


def _columns(exprs: Iterable[Expr]) -> frozenset[str]:
    return frozenset(ref.column for expr in exprs for ref in expr.references)


def _shown(plan: RelationPlan) -> tuple[str, ...]:
    """The columns of a plan's frame, in order."""
    if isinstance(plan, ScanPlan):
        return tuple(f"{plan.alias}.{name}" for name in plan.columns)
    return plan.columns


def _times(relation: AnalyzedRelation) -> tuple[str, ...]:
    """The watermarked columns of a relation."""
    match relation:
        case AnalyzedScan():
            return tuple(f"{relation.alias}.{w.column}" for w in relation.source.watermarks)
        case AnalyzedSyncJoin():
            return tuple(str(time) for time in relation.times)
        case AnalyzedWindowJoin():
            return ()
        case AnalyzedAsofJoin():
            return _times(relation.left)
        case AnalyzedJoin():
            left_only = relation.kind in LEFT_ONLY
            return _times(relation.left) + (() if left_only else _times(relation.right))


def _lags(relation: AnalyzedRelation) -> tuple[Lag, ...]:
    """The lags of a scan's watermarked columns; the marks of a join come from the join."""
    if not isinstance(relation, AnalyzedScan):
        return ()
    columns = [(f"{relation.alias}.{w.column}", w.lag.value) for w in relation.source.watermarks]
    if not relation.parts:
        return tuple(Lag(column, lag, column) for column, lag in columns)
    positions = [relation.source.fields.index(_field(relation.source, w.column)) for w in relation.source.watermarks]
    return tuple(
        Lag(column, _part_lag(part, position), f"{column}#{number}", number)
        for number, part in enumerate(relation.parts)
        for (column, _), position in zip(columns, positions, strict=True)
    )


def _idle(scan: AnalyzedScan) -> tuple[tuple[str, int], ...]:
    """After how long a watermarked column counts as idle; of a union, also each of its parts."""
    columns = [(f"{scan.alias}.{w.column}", w.idle) for w in scan.source.watermarks]
    positions = [
        (c, scan.source.fields.index(_field(scan.source, c))) for c in (w.column for w in scan.source.watermarks)
    ]
    for number, part in enumerate(scan.parts):
        for column, position in positions:
            watermark = part.watermark(part.fields[position].name)
            columns.append((f"{scan.alias}.{column}#{number}", watermark.idle if watermark is not None else None))
    return tuple((mark, idle) for mark, idle in columns if idle is not None)


def _field(source: Source, name: str) -> Field:
    field = source.field(name)
    assert field is not None, "the analysis has checked the columns of watermarks"
    return field


def _part_lag(part: Source, position: int) -> int:
    watermark = part.watermark(part.fields[position].name)
    assert watermark is not None, "the analysis has checked that all parts of a union have it"
    return watermark.lag.value


def _filters(scan: AnalyzedScan) -> tuple[Expr, ...]:
    """What a row must satisfy to be one: WHERE, and that it is no heartbeat (unknown is no heartbeat)."""
    beat = scan.heartbeat
    if beat is None:
        return scan.filters
    return (Expr("or", (Expr("not", (beat,)), Expr("is_null", (beat,)))), *scan.filters)


def _late(plan: RelationPlan, late: LateRows) -> tuple[str, ...]:
    """What late rows of a port show. Only rows of a source can be late: a join's marks never overtake its rows."""
    return _shown(plan) if late == "kept" and isinstance(plan, ScanPlan) else ()


def _limited(plan: RelationPlan, limits: Limits) -> RelationPlan:
    """The plan with the limit on every join."""
    if isinstance(plan, ScanPlan):
        return plan
    ports = tuple(replace(port, input=_limited(port.input, limits)) for port in plan.ports)
    return replace(plan, ports=ports, operator=plan.operator.limited(limits.max_rows, limits.overflow))
