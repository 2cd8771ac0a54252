"""The leaves under the joins: scans, views and laterals, with their times and watermarks.

`view_to_rank` has the rows before a top-N or a deduplication, with the columns that order and group them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from watersmeet.catalog import Amount, Source, Watermark
from watersmeet.logical.expressions import Expr, finality_column
from watersmeet.logical.query import RANK_COLUMN, TOP, AnalyzedQuery, AnalyzedTop, Output
from watersmeet.logical.relation import (
    AnalyzedJoin,
    AnalyzedLeaf,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedUnion,
    AnalyzedView,
)
from watersmeet.operators.core.watermarks import WatermarkLag
from watersmeet.physical.nodes import Changes, LateralPlan, RelationPlan, ScanPlan, ViewPlan
from watersmeet.physical.ports import leaf_column


def plan_scan(scan: AnalyzedScan, needed: frozenset[str], *, whole: bool) -> ScanPlan:
    """The columns of a source that are asked for, or all of them."""
    filters = filters_of(scan)
    wanted = needed | columns_in(filters)
    if scan.source.kind == "table":
        wanted |= frozenset(f"{scan.alias}.{name}" for name in scan.source.primary_key)
    fields = scan.source.fields
    columns = tuple(f.name for f in fields if (whole and not f.hidden) or f"{scan.alias}.{f.name}" in wanted)
    return ScanPlan(scan.alias, scan.source, columns, filters, scan.parts, changes_of(scan.source))


def changes_of(source: Source) -> Changes | None:
    """The form in which the rows of a source travel, if it is a table."""
    if source.kind == "stream":
        return None
    return "upserts" if source.primary_key else "weights"


def filters_of(scan: AnalyzedScan) -> tuple[Expr, ...]:
    """The filters of a scan: WHERE, and that the row is not a heartbeat (unknown counts as not)."""
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


@dataclass(frozen=True)
class WindowedRows:
    """Facts about rows that come once for each of their windows.

    - ``windows``: where they were unfolded
    - ``time``, ``end``: the columns with their time and the end of their window, by name and path; None: not shown
    - ``bounds``: the columns that depend on the window
    - ``has_all``: no filter depends on the window, so that the rows of all windows come or none
    """

    windows: LateralPlan
    time: tuple[str, tuple[str, ...]] | None
    end: tuple[str, tuple[str, ...]] | None
    bounds: frozenset[str]
    has_all: bool

    def filter(self, parts: Iterable[Expr]) -> WindowedRows:
        """The rows for which some parts are true."""
        return replace(self, has_all=self.has_all and self.bounds.isdisjoint(columns_in(parts)))


def find_windows(plan: RelationPlan) -> WindowedRows | None:
    """The windows that the rows of a plan come in: those of ``TABLE(HOP(...))`` and the like, also through views."""
    if isinstance(plan, ViewPlan):
        rows = find_windows(plan.input)
        return None if rows is None else _show_windows(plan, rows.filter(plan.where)).filter(plan.filters)
    if not isinstance(plan, LateralPlan):
        return None
    element = f"{plan.alias}.{plan.alias}"
    if plan.array.op == "windows" and _is_of_sources(plan.input):
        time = plan.array.args[0].refs[0]
        rows = WindowedRows(plan, (time.column, time.path), (element, ("end",)), frozenset({element}), True)
        return rows.filter(plan.filters)
    rows = find_windows(plan.input)
    if rows is None:
        return None
    depends = not rows.bounds.isdisjoint(columns_in([plan.array]))
    rows = replace(rows, bounds=rows.bounds | {element}, has_all=False) if depends else rows
    return rows.filter(plan.filters)


def _show_windows(view: ViewPlan, rows: WindowedRows) -> WindowedRows:
    """The rows by the names that a view gives their columns."""
    shown = tuple(zip((output.expr for output in view.outputs), view.columns, strict=True))
    names = {(e.refs[0].column, e.refs[0].path): (name, ()) for e, name in shown if e.op == "column"}
    return replace(
        rows,
        time=None if rows.time is None else names.get(rows.time),
        end=None if rows.end is None else names.get(rows.end),
        bounds=frozenset(name for expr, name in shown if not rows.bounds.isdisjoint(columns_in([expr]))),
    )


def _is_of_sources(plan: RelationPlan) -> bool:
    """Whether the rows are those of sources, as they came: no join has kept them."""
    if isinstance(plan, ViewPlan | LateralPlan):
        return _is_of_sources(plan.input)
    return plan.scan is not None


def late_columns(plan: RelationPlan) -> tuple[str, ...]:
    """The columns that a late row of a plan shows: all of them, but for those that depend on a window."""
    rows = find_windows(plan)
    return tuple(name for name in plan.frame_columns if rows is None or name not in rows.bounds)


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


def lags_of(relation: AnalyzedRelation) -> tuple[WatermarkLag, ...]:
    """The lags of a source's watermarked columns by their names here; a join brings its own watermarks."""
    match relation:
        case AnalyzedScan():
            return tuple(_scan_lags(relation))
        case AnalyzedView():
            return tuple(_view_lags(relation))
        case AnalyzedUnion():
            return tuple(_union_lags(relation))
        case _:
            return () if relation.passthrough_input is None else lags_of(relation.passthrough_input)


def view_watermarks(view: AnalyzedView) -> tuple[tuple[str, str], ...]:
    """The names outside a view of the watermarks inside it: those of event times, and of final columns."""
    names = {*view.source.final_columns}
    if view.query.result == "stream" and (view.query.group is not None or view.query.top is not None):
        names |= {watermark.column for watermark in view.source.watermarks}
    final = ((finality_column(o.expr), o.name) for o in view.query.outputs if o.name in names)
    return (*_times_in(view), *((inner, f"{view.alias}.{name}") for inner, name in final if inner is not None))


def _times_in(view: AnalyzedView) -> tuple[tuple[str, str], ...]:
    """The names outside a view of the event times inside it."""
    times: list[tuple[str, str]] = []
    is_stage = view.query.group is not None or view.query.top is not None
    inside: tuple[str, ...] = () if is_stage else times_of(view.query.relation)
    overridden = {watermark.column for watermark in view.outer_watermarks}
    for output in view.query.outputs:
        column = output.expr.refs[0].column if output.expr.op == "column" and not output.expr.refs[0].path else None
        if (
            column is not None
            and column in inside
            and output.name not in overridden
            and view.source.watermark(output.name) is not None
        ):
            times.append((column, f"{view.alias}.{output.name}"))
    return tuple(times)


def idle_of(relation: AnalyzedRelation) -> tuple[tuple[str, int], ...]:
    """After how long a watermarked column counts as idle; of a union, also each of its parts."""
    match relation:
        case AnalyzedScan():
            return tuple(_scan_idle(relation))
        case AnalyzedView():
            return tuple(
                (outer + watermark.removeprefix(inner), idle)
                for watermark, idle in idle_of(relation.query.relation)
                for inner, outer in _times_in(relation)
                if watermark == inner or watermark.startswith(f"{inner}#")
            )
        case AnalyzedUnion():
            return tuple(_union_idle(relation))
        case _:
            return () if relation.passthrough_input is None else idle_of(relation.passthrough_input)


def _union_idle(union: AnalyzedUnion) -> Iterator[tuple[str, int]]:
    """The time that the union's own times may be silent, and those of every side."""
    yield from _own_idle(union)
    for column, number, side, inner in _sides(union):
        yield from ((f"{column}#{number}", idle) for watermark, idle in idle_of(side) if watermark == inner)


def _union_lags(union: AnalyzedUnion) -> Iterator[WatermarkLag]:
    """The lags of every side under watermarks of its own."""
    for column, number, side, inner in _sides(union):
        for lag in lags_of(side):
            if lag.column == inner:
                yield WatermarkLag(column, lag.lag, f"{column}#{number}", number, lag.source)


def _sides(union: AnalyzedUnion) -> Iterator[tuple[str, int, AnalyzedLeaf, str]]:
    """Each time of a union with each of its sides: its number, the side, and what the time is called there."""
    for column, position in _times(union):
        for number, side in enumerate(union.sides):
            yield column, number, side, f"{side.alias}.{side.source.fields[position].name}"


def _view_lags(view: AnalyzedView) -> Iterator[WatermarkLag]:
    for lag in lags_of(view.query.relation):
        for inner, outer in _times_in(view):
            if lag.column == inner:
                name = outer + lag.watermark.removeprefix(inner)
                yield WatermarkLag(outer, lag.lag, name, lag.part, lag.source)
    for watermark in view.outer_watermarks:
        column = f"{view.alias}.{watermark.column}"
        yield WatermarkLag(column, watermark.lag.value, column)


def _scan_lags(scan: AnalyzedScan) -> Iterator[WatermarkLag]:
    if not scan.parts:
        columns = ((f"{scan.alias}.{watermark.column}", watermark.lag.value) for watermark in scan.source.watermarks)
        yield from (WatermarkLag(column, lag, column) for column, lag in columns)
    for column, number, watermark in _part_watermarks(scan):
        yield WatermarkLag(column, watermark.lag.value, f"{column}#{number}", number)


def _scan_idle(scan: AnalyzedScan) -> Iterator[tuple[str, int]]:
    yield from _own_idle(scan)
    parts = ((f"{column}#{number}", watermark.idle) for column, number, watermark in _part_watermarks(scan))
    yield from ((watermark, idle) for watermark, idle in parts if idle is not None)


def _own_idle(leaf: AnalyzedLeaf) -> Iterator[tuple[str, int]]:
    for watermark in leaf.source.watermarks:
        if watermark.idle is not None:
            yield f"{leaf.alias}.{watermark.column}", watermark.idle


def _part_watermarks(scan: AnalyzedScan) -> Iterator[tuple[str, int, Watermark]]:
    """Of each part of a union and each time of it: the column, the number of the part, and what it declares."""
    for number, part in enumerate(scan.parts):
        for column, position in _times(scan):
            watermark = part.watermark(part.fields[position].name)
            assert watermark is not None, "the analysis has checked that all parts of a union have it"
            yield column, number, watermark


def _times(leaf: AnalyzedLeaf) -> list[tuple[str, int]]:
    """The times of a leaf, and the position that each has among its fields."""
    names = [field.name.lower() for field in leaf.source.fields]
    return [(f"{leaf.alias}.{m.column}", names.index(m.column.lower())) for m in leaf.source.watermarks]


_TOP = TOP
"""The source of the rows before the top-N."""
_TIME = "#time"
"""The event time that ends the windows of the groups, or of rows, as a column of these rows."""
RANKED_TIME = f"{_TOP}.{_TIME}"
"""That column behind the view."""


def view_to_rank(query: AnalyzedQuery, outputs: tuple[Output, ...]) -> tuple[AnalyzedView, tuple[Output, ...]]:
    """The result of a query before its top-N, with the columns that decide it; and the columns of that result."""
    assert query.top is not None
    ordered = tuple(Output(f"#by{n}", by.expr) for n, by in enumerate(query.top.order))
    kind = query.relation.result
    groups = tuple(Output(f"#of{n}", by.expr) for n, by in enumerate(query.top.by))
    time = query.top.time
    timed = () if time is None else (Output(_TIME, leaf_column(time.alias, time.name)),)
    ranked = tuple(output for output in outputs if output.expr != RANK_COLUMN)
    inner = replace(query, outputs=(*ranked, *ordered, *groups, *timed), top=None, result=kind)
    shown = tuple(
        output if output.expr == RANK_COLUMN else Output(output.name, leaf_column(_TOP, output.name))
        for output in outputs
    )
    if time is not None:
        source = Source(_TOP, (), (Watermark(_TIME, Amount(0, is_interval=True)),), kind)
        return AnalyzedView(_TOP, source, inner), shown
    final_columns = () if query.top.final_by is None else (groups[query.top.final_by].name,)
    return AnalyzedView(_TOP, Source(_TOP, (), kind=kind, final_columns=final_columns), inner), shown


def order_column(number: int) -> str:
    """The name of a sort column of the view."""
    return f"{_TOP}.#by{number}"


def group_column(number: int) -> str:
    """The name of a group column of the view."""
    return f"{_TOP}.#of{number}"


def visible_columns(top: AnalyzedTop, rows: ViewPlan) -> tuple[str, ...]:
    """The columns of the view that are part of the result."""
    hidden = {
        *(order_column(n) for n in range(len(top.order))),
        *(group_column(n) for n in range(len(top.by))),
        RANKED_TIME,
    }
    return tuple(column for column in rows.columns if column not in hidden)
