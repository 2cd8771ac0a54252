"""What stands under the joins: scans, views and laterals, with their times and marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from watersmeet.catalog import Source, Watermark
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
from watersmeet.plan.expressions import Expr, settled_as
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


def windowed(plan: RelationPlan) -> LateralPlan | None:
    """The windows that rows of a source come in, if the plan is that of ``TABLE(HOP(...))`` and the like."""
    inner = plan.input if isinstance(plan, ViewPlan) else None
    if not isinstance(inner, LateralPlan) or not isinstance(inner.input, ScanPlan):
        return None
    return inner if inner.array.op == "windows" else None


def late_columns(plan: RelationPlan) -> tuple[str, ...]:
    """The columns that a late row of a plan shows: all of them, but for the bounds of windows."""
    if not isinstance(plan, ViewPlan) or windowed(plan) is None:
        return shown_by(plan)
    shown = zip(plan.outputs, plan.columns, strict=True)
    return tuple(name for output, name in shown if not any(ref.path for ref in output.expr.refs))


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
    """What the marks inside a view are called outside: those of event times, and of what is settled."""
    settled = ((settled_as(o.expr), o.name) for o in view.query.outputs if o.name in view.source.settled)
    return (*_times_in(view), *((inner, f"{view.alias}.{name}") for inner, name in settled if inner is not None))


def _times_in(view: AnalyzedView) -> tuple[tuple[str, str], ...]:
    """What the event times inside a view are called outside."""
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
                for inner, outer in _times_in(relation)
                if mark == inner or mark.startswith(f"{inner}#")
            )
        case AnalyzedUnion():
            return tuple(_union_idle(relation))
        case _:
            return () if relation.passing is None else idle_of(relation.passing)


def _union_idle(union: AnalyzedUnion) -> Iterator[tuple[str, int]]:
    """How long the union's own times may be silent, and those of every side."""
    yield from _own_idle(union)
    for column, number, side, inner in _sides(union):
        yield from ((f"{column}#{number}", idle) for mark, idle in idle_of(side) if mark == inner)


def _union_lags(union: AnalyzedUnion) -> Iterator[Lag]:
    """The lags of every side under marks of its own."""
    for column, number, side, inner in _sides(union):
        for lag in lags_of(side):
            if lag.column == inner:
                yield Lag(column, lag.lag, f"{column}#{number}", number, lag.source)


def _sides(union: AnalyzedUnion) -> Iterator[tuple[str, int, AnalyzedLeaf, str]]:
    """Each time of a union with each of its sides: its number, the side, and what the time is called there."""
    for column, position in _times(union):
        for number, side in enumerate(union.sides):
            yield column, number, side, f"{side.alias}.{side.source.fields[position].name}"


def _view_lags(view: AnalyzedView) -> Iterator[Lag]:
    for lag in lags_of(view.query.relation):
        for inner, outer in _times_in(view):
            if lag.column == inner:
                mark = outer + lag.mark.removeprefix(inner)
                yield Lag(outer, lag.lag, mark, lag.part, lag.source)
    for given in view.given:
        column = f"{view.alias}.{given.column}"
        yield Lag(column, given.lag.value, column)


def _scan_lags(scan: AnalyzedScan) -> Iterator[Lag]:
    if not scan.parts:
        columns = ((f"{scan.alias}.{mark.column}", mark.lag.value) for mark in scan.source.watermarks)
        yield from (Lag(column, lag, column) for column, lag in columns)
    for column, number, mark in _part_marks(scan):
        yield Lag(column, mark.lag.value, f"{column}#{number}", number)


def _scan_idle(scan: AnalyzedScan) -> Iterator[tuple[str, int]]:
    yield from _own_idle(scan)
    parts = ((f"{column}#{number}", mark.idle) for column, number, mark in _part_marks(scan))
    yield from ((mark, idle) for mark, idle in parts if idle is not None)


def _own_idle(leaf: AnalyzedLeaf) -> Iterator[tuple[str, int]]:
    for mark in leaf.source.watermarks:
        if mark.idle is not None:
            yield f"{leaf.alias}.{mark.column}", mark.idle


def _part_marks(scan: AnalyzedScan) -> Iterator[tuple[str, int, Watermark]]:
    """Of each part of a union and each time of it: the column, the number of the part, and what it declares."""
    for number, part in enumerate(scan.parts):
        for column, position in _times(scan):
            mark = part.watermark(part.fields[position].name)
            assert mark is not None, "the analysis has checked that all parts of a union have it"
            yield column, number, mark


def _times(leaf: AnalyzedLeaf) -> list[tuple[str, int]]:
    """The times of a leaf, and the position that each has among its fields."""
    names = [field.name.lower() for field in leaf.source.fields]
    return [(f"{leaf.alias}.{m.column}", names.index(m.column.lower())) for m in leaf.source.watermarks]
