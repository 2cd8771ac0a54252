"""What stands under the joins: scans, views and laterals, with their times and marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from watersmeet.catalog import Field, Source
from watersmeet.physical.nodes import (
    Changes,
    JoinPlan,
    Lag,
    LateralPlan,
    RelationPlan,
    ScanPlan,
    StaticJoinPlan,
    UnionPlan,
    ViewPlan,
)
from watersmeet.plan.expressions import Expr
from watersmeet.plan.relation import (
    AnalyzedJoin,
    AnalyzedLeaf,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedUnion,
    AnalyzedView,
)


def plan_scan(scan: AnalyzedScan, needed: frozenset[str], *, whole: bool) -> ScanPlan:
    """The columns of a source that are asked for, or all of them."""
    filters = filters_of(scan)
    asked = needed | columns_in(filters)
    if scan.source.kind == "table":
        asked |= frozenset(f"{scan.alias}.{name}" for name in scan.source.primary_key)
    fields = scan.source.fields
    columns = tuple(f.name for f in fields if (whole and not f.hidden) or f"{scan.alias}.{f.name}" in asked)
    return ScanPlan(scan.alias, scan.source, columns, filters, scan.parts, changes_of(scan.source))


def changes_of(source: Source) -> Changes | None:
    """How the rows of a source travel, if it is a table."""
    if source.kind == "stream":
        return None
    return "upserts" if source.primary_key else "weights"


def filters_of(scan: AnalyzedScan) -> tuple[Expr, ...]:
    """What a row must satisfy to be one: WHERE, and that it is no heartbeat (unknown is no heartbeat)."""
    beat = scan.heartbeat
    if beat is None:
        return scan.filters
    return (Expr("or", (Expr("not", (beat,)), Expr("is_null", (beat,)))), *scan.filters)


def columns_in(exprs: Iterable[Expr]) -> frozenset[str]:
    """The columns that expressions mention."""
    return frozenset(ref.column for expr in exprs for ref in expr.references)


def all_columns(leaf: AnalyzedLeaf) -> tuple[str, ...]:
    """All columns of a leaf that ``*`` shows."""
    return tuple(f"{leaf.alias}.{field.name}" for field in leaf.source.fields if not field.hidden)


def shown_by(plan: RelationPlan) -> tuple[str, ...]:
    """The columns of a plan's frame, in order."""
    match plan:
        case ScanPlan():
            return tuple(f"{plan.alias}.{name}" for name in plan.columns)
        case LateralPlan():
            own = (f"{plan.alias}.{plan.alias}",) if plan.is_shown else ()
            return (*shown_by(plan.input), *own)
        case ViewPlan() | UnionPlan() | StaticJoinPlan() | JoinPlan():
            return plan.columns


def times_of(relation: AnalyzedRelation) -> tuple[str, ...]:
    """The watermarked columns of a relation."""
    if isinstance(relation, AnalyzedLeaf):
        return tuple(f"{relation.alias}.{w.column}" for w in relation.source.watermarks)
    return tuple(
        time
        for port, side in enumerate(relation.inputs)
        if not isinstance(relation, AnalyzedJoin) or relation.shows_times(port)
        for time in times_of(side)
    )


def lags_of(relation: AnalyzedRelation) -> tuple[Lag, ...]:
    """The lags of a source's watermarked columns, as they are called here; the marks of a join come from the join."""
    match relation:
        case AnalyzedScan():
            return tuple(_scan_lags(relation))
        case AnalyzedView():
            return tuple(_view_lags(relation))
        case AnalyzedUnion():
            return tuple(_union_lags(relation))
        case _:
            return () if relation.passing is None else lags_of(relation.passing)


def marks_of(view: AnalyzedView) -> tuple[tuple[str, str], ...]:
    """What the marks of the times inside a view are called outside."""
    found: list[tuple[str, str]] = []
    inside = times_of(view.query.relation)
    given = {mark.column for mark in view.given}
    for output in view.query.outputs:
        column = output.expr.refs[0].column if output.expr.op == "column" and not output.expr.refs[0].path else None
        if column in inside and output.name not in given and view.source.watermark(output.name) is not None:
            found.append((column, f"{view.alias}.{output.name}"))
    return tuple(found)


def idle_of(relation: AnalyzedRelation) -> tuple[tuple[str, int], ...]:
    """After how long a watermarked column counts as idle; of a union, also each of its parts."""
    match relation:
        case AnalyzedScan():
            return tuple(_scan_idle(relation))
        case AnalyzedView():
            return tuple(
                (outer + mark.removeprefix(inner), idle)
                for mark, idle in idle_of(relation.query.relation)
                for inner, outer in marks_of(relation)
                if mark == inner or mark.startswith(f"{inner}#")
            )
        case AnalyzedUnion():
            return tuple(_union_idle(relation))
        case _:
            return () if relation.passing is None else idle_of(relation.passing)


def _union_idle(union: AnalyzedUnion) -> Iterator[tuple[str, int]]:
    """How long the union's own times may be silent, and those of every side."""
    for watermark in union.source.watermarks:
        column = f"{union.alias}.{watermark.column}"
        if watermark.idle is not None:
            yield column, watermark.idle
        position = union.source.fields.index(_field(union.source, watermark.column))
        for number, side in enumerate(union.sides):
            inner = f"{side.alias}.{side.source.fields[position].name}"
            yield from ((f"{column}#{number}", idle) for mark, idle in idle_of(side) if mark == inner)


def _union_lags(union: AnalyzedUnion) -> Iterator[Lag]:
    """The lags of every side under marks of its own."""
    for watermark in union.source.watermarks:
        position = union.source.fields.index(_field(union.source, watermark.column))
        column = f"{union.alias}.{watermark.column}"
        for number, side in enumerate(union.sides):
            inner = f"{side.alias}.{side.source.fields[position].name}"
            for lag in lags_of(side):
                if lag.column == inner:
                    yield Lag(column, lag.lag, f"{column}#{number}", number, lag.source)


def _view_lags(view: AnalyzedView) -> Iterator[Lag]:
    for lag in lags_of(view.query.relation):
        for inner, outer in marks_of(view):
            if lag.column == inner:
                mark = outer + lag.mark.removeprefix(inner)
                yield Lag(outer, lag.lag, mark, lag.part, lag.source)
    for given in view.given:
        column = f"{view.alias}.{given.column}"
        yield Lag(column, given.lag.value, column)


def _scan_lags(scan: AnalyzedScan) -> Iterator[Lag]:
    columns = [(f"{scan.alias}.{w.column}", w.lag.value) for w in scan.source.watermarks]
    if not scan.parts:
        yield from (Lag(column, lag, column) for column, lag in columns)
        return
    positions = _positions(scan)
    for number, part in enumerate(scan.parts):
        for (column, _), position in zip(columns, positions, strict=True):
            yield Lag(column, _part_lag(part, position), f"{column}#{number}", number)


def _scan_idle(scan: AnalyzedScan) -> Iterator[tuple[str, int]]:
    for watermark in scan.source.watermarks:
        if watermark.idle is not None:
            yield f"{scan.alias}.{watermark.column}", watermark.idle
    names = [watermark.column for watermark in scan.source.watermarks]
    for number, part in enumerate(scan.parts):
        for name, position in zip(names, _positions(scan), strict=True):
            watermark = part.watermark(part.fields[position].name)
            if watermark is not None and watermark.idle is not None:
                yield f"{scan.alias}.{name}#{number}", watermark.idle


def _positions(scan: AnalyzedScan) -> list[int]:
    return [scan.source.fields.index(_field(scan.source, mark.column)) for mark in scan.source.watermarks]


def _field(source: Source, name: str) -> Field:
    field = source.field(name)
    assert field is not None, "the analysis has checked the columns of watermarks"
    return field


def _part_lag(part: Source, position: int) -> int:
    watermark = part.watermark(part.fields[position].name)
    assert watermark is not None, "the analysis has checked that all parts of a union have it"
    return watermark.lag.value
