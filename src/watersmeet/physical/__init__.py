"""Plan an analyzed query: choose its operators and say why; each family plans its own joins.

Where only the first rows of a table are asked for, what feeds such a stage hands on no others (`push_down_top_n`). What
lies between the two must take each row for one row: then the rows that are before another one stay before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from watersmeet.catalog import Source
from watersmeet.logical.expressions import ARITHMETIC, COMPARISONS, Expr, finality_column
from watersmeet.logical.nodes import Script
from watersmeet.logical.passes.settings import DEPRECATED_SETTINGS, OPERATOR_CHAINING
from watersmeet.logical.query import AnalyzedQuery, Output, can_have_late_rows
from watersmeet.logical.relation import (
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedLeaf,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedUnion,
    AnalyzedView,
    leaves,
)
from watersmeet.operators.core.operator import Overflow
from watersmeet.operators.core.order import SortColumn, TopN
from watersmeet.operators.core.watermarks import WatermarkLag
from watersmeet.physical.chaining import ChainGroups, chain_operators, may_chain
from watersmeet.physical.identity import assign_names
from watersmeet.physical.nodes import (
    PADDED,
    ChangelogMode,
    Computed,
    DeclaredTypes,
    Derived,
    Families,
    JoinPlan,
    JoinPlanner,
    LateralPlan,
    PortPlan,
    QueryPlan,
    RelationPlan,
    ScanPlan,
    StagePlanner,
    StaticJoinPlan,
    Types,
    UnionPlan,
    ViewPlan,
    input_times,
    internal_columns,
    join_name,
    join_plans,
    leaf_plans,
    read_sources,
    view_plans,
)
from watersmeet.physical.scans import (
    all_columns,
    columns_in,
    find_windows,
    idle_of,
    lags_of,
    late_columns,
    plan_scan,
    times_of,
    view_watermarks,
)

__all__ = [
    "PADDED",
    "ChainGroups",
    "Computed",
    "DeclaredTypes",
    "Derived",
    "JoinPlan",
    "LateRows",
    "LateralPlan",
    "Limits",
    "PortPlan",
    "QueryPlan",
    "RelationPlan",
    "ScanPlan",
    "StaticJoinPlan",
    "Types",
    "UnionPlan",
    "ViewPlan",
    "WatermarkLag",
    "input_times",
    "internal_columns",
    "join_name",
    "join_plans",
    "leaf_plans",
    "limits_of",
    "may_chain",
    "plan_query",
    "read_chaining",
    "read_sources",
    "sources_of",
    "view_plans",
]  # fmt: skip


LateRows = Literal["counted", "side_output"]
"""The treatment of late rows: only counted, or also emitted, with all columns, as a side output."""


@dataclass(frozen=True)
class Limits:
    """The number of rows that a join may keep, and what happens when that is not enough."""

    max_rows: int | None = None
    overflow: Overflow = "fail"


def limits_of(script: Script) -> Limits | None:
    """The limits that a script sets."""
    settings = {setting.name.lower(): setting.value for setting in script.settings}
    if "watersmeet.state.max_rows" not in settings:
        return None
    overflow = settings.get("watersmeet.state.overflow", "fail")
    return Limits(int(settings["watersmeet.state.max_rows"]), "drop_oldest" if overflow == "drop_oldest" else "fail")


def read_chaining(script: Script, default: str = "on") -> ChainGroups | None:
    """The stages that a script lets run together: none, or None for all that may; ``default``: if it says nothing."""
    names = (OPERATOR_CHAINING, *DEPRECATED_SETTINGS)
    choice = [default, *(setting.value for setting in script.settings if setting.name.lower() in names)][-1]
    return () if choice.lower() == "off" else None


def plan_query(
    query: AnalyzedQuery,
    families: Families,
    types: Types | None = None,
    late: LateRows = "counted",
    limits: Limits | None = None,
    chains: ChainGroups | None = None,
) -> QueryPlan:
    """The plan of a query; without ``types`` the declared ones are used.

    ``together``: the stages that run together; None: all that may.
    """
    planner = _Planner(families, types or DeclaredTypes(sources_of(query.relation)), late)
    body = planner.body(query, query.outputs)
    relation = body.relation if limits is None else _limit_state(body.relation, limits)
    plan = assign_names(
        QueryPlan(relation, body.where, body.outputs, query.into, query.ports_into, query.result == "table")
    )
    return push_down_top_n(chain_operators(plan, planner.types, chains))


def sources_of(relation: AnalyzedRelation) -> dict[str, Source]:
    """The sources of a relation by alias, those inside views too, and the views and laterals themselves."""
    sources: dict[str, Source] = {}
    for side in relation.inputs:
        sources |= sources_of(side)
    if isinstance(relation, AnalyzedLeaf | AnalyzedLateral):
        sources[relation.alias] = relation.source
    return sources


@dataclass(frozen=True)
class _Body:
    """A query's relation, what of its WHERE is left, and its columns."""

    relation: RelationPlan
    where: tuple[Expr, ...]
    outputs: tuple[Output, ...]


@dataclass(frozen=True)
class _Planner:
    """Plans relations; ``late`` says whether late rows are shown, with all columns of their source."""

    families: Families
    types: Types
    late: LateRows

    @property
    def stages(self) -> Iterator[StagePlanner]:
        """The planners of stages that may store rows after the relation of a query."""
        return (family.plan for family in self.families.values() if isinstance(family.plan, StagePlanner))

    def body(self, query: AnalyzedQuery, outputs: tuple[Output, ...]) -> _Body:
        """The plan of a query that must show these columns."""
        for stage in self.stages:
            if stage.applies(query):
                view, shown = stage.rows(query, outputs)
                rows = self.view(view)
                is_shown = self.late == "side_output" and stage.shows_late and view.result == "stream"
                rows = _with_late_columns(rows) if is_shown and can_have_late_rows(view) else rows
                return _Body(stage.plan(query, view, rows, self.types), (), shown)
        needed = columns_in([*query.where, *(output.expr for output in outputs)])
        if query.ports_into:
            needed |= frozenset(column for leaf in leaves(query.relation) for column in all_columns(leaf))
        relation = self.plan(query.relation, needed or _any_column(query.relation))
        return _Body(relation, query.where, outputs)

    def plan(
        self, relation: AnalyzedRelation, needed: frozenset[str], travel: ChangelogMode = "weights"
    ) -> RelationPlan:
        """The plan of a relation that must show the columns ``needed``; ``travel``: how a table's rows may come."""
        match relation:
            case AnalyzedScan():
                return self.scan(relation, needed, travel)
            case AnalyzedView():
                return self.view(relation, needed)
            case AnalyzedUnion():
                return self.union(relation, needed)
            case AnalyzedLateral():
                inside = needed | columns_in([relation.array, *relation.filters])
                own = f"{relation.alias}.{relation.alias}"
                below = self.plan(relation.input, inside)
                return LateralPlan(relation.alias, below, relation.array, relation.filters, own in inside)
            case AnalyzedJoin():
                return (
                    self.join(relation, needed) if relation.passthrough_input is None else self.static(relation, needed)
                )
            case _:
                raise AssertionError(relation)

    def scan(self, scan: AnalyzedScan, needed: frozenset[str], travel: ChangelogMode) -> RelationPlan:
        """The plan of a source; upserts that must come with weights go through a stage that knows the rows before."""
        plan = plan_scan(scan, needed, whole=self.late == "side_output")
        if travel == "versions":
            return replace(plan, changes=plan.changes and "versions")
        if plan.changes != "upserts" or travel == "upserts":
            return plan
        return next(stage.table for stage in self.stages if stage.table is not None)(scan, plan, self.types)

    def view(self, view: AnalyzedView, needed: frozenset[str] | None = None) -> ViewPlan:
        """The plan of a view that must show the columns ``needed``, or all."""
        wanted = needed if needed is None else needed | columns_in(view.filters) | frozenset(times_of(view))
        shown = tuple(o for o in view.query.outputs if wanted is None or f"{view.alias}.{o.name}" in wanted)
        body = self.body(view.query, shown or view.query.outputs[:1])
        if self.late == "side_output" and wanted is not None and find_windows(body.relation) is not None:
            # A late row is that of the source or view, with all its columns.
            visible = {field.name for field in view.source.fields if not field.hidden}
            body = self.body(
                view.query, tuple(o for o in view.query.outputs if o in shown or o.name in visible) or shown
            )
        return ViewPlan(view.alias, body.relation, body.where, body.outputs, view.filters, view_watermarks(view))

    def union(self, union: AnalyzedUnion, needed: frozenset[str]) -> UnionPlan:
        """The plan of a union that must show the columns ``needed``."""
        wanted = needed | columns_in(union.filters) | frozenset(times_of(union))
        places = [n for n, f in enumerate(union.source.fields) if f"{union.alias}.{f.name}" in wanted] or [0]
        names = tuple(f"{union.alias}.{union.source.fields[n].name}" for n in places)
        taken = tuple(tuple(f"{s.alias}.{s.source.fields[n].name}" for n in places) for s in union.sides)
        inputs = tuple(self.plan(s, frozenset(own)) for s, own in zip(union.sides, taken, strict=True))
        return UnionPlan(union.alias, inputs, taken, names, union.filters)

    def planner(self, join: AnalyzedJoin) -> JoinPlanner[Any]:
        """The planner of the family of a join."""
        plan = self.families[join.family].plan
        assert isinstance(plan, JoinPlanner)
        return plan

    def static(self, join: AnalyzedJoin, needed: frozenset[str]) -> StaticJoinPlan:
        """The plan of a join of rows that pass with a table that never changes."""
        inside = needed | _columns_read(join) | frozenset(times_of(join))
        port = next(port for port, side in enumerate(join.inputs) if side is not join.passthrough_input)
        table, stream = join.inputs[port], join.inputs[1 - port]
        assert isinstance(table, AnalyzedScan)
        scan = replace(plan_scan(table, inside, whole=self.late == "side_output"), changes=None)
        below = self.plan(stream, inside)
        columns = tuple(column for column in (*below.frame_columns, *scan.frame_columns) if column in inside)
        why = (self.planner(join).by_spark,)
        return StaticJoinPlan(below, scan, join.expressions, join.pads(port) is None, columns, why, join)

    def join(self, join: AnalyzedJoin, needed: frozenset[str]) -> JoinPlan:
        """The plan of a join over its inputs."""
        times = frozenset(column for side in join.inputs for column in times_of(side))
        inside = needed | times | _columns_read(join)
        planner = self.planner(join)
        ports = tuple(
            self.port(join, n, needed, inside, planner.changelog_mode(join, n)) for n in range(len(join.inputs))
        )
        return planner.plan(join, ports, self.types)

    def port(
        self, join: AnalyzedJoin, number: int, needed: frozenset[str], inside: frozenset[str], travel: ChangelogMode
    ) -> PortPlan:
        """One side of a join, as far as it is known before its family plans it."""
        relation = join.inputs[number]
        plan = self.plan(relation, inside, travel)
        shown = tuple(column for column in plan.frame_columns if column in needed)
        late = late_columns(plan) if self.late == "side_output" and can_have_late_rows(relation) else ()
        return PortPlan(
            plan, shown, lags=lags_of(relation), times=times_of(relation), aliases=frozenset(relation.aliases),
            needed=shown, idle=idle_of(relation), late=late,
        )  # fmt: skip


def _with_late_columns(view: ViewPlan) -> ViewPlan:
    """A view with the columns that late rows of its relation show; a subquery without a name shows those in it."""
    below = view.input
    if isinstance(below, ViewPlan) and below.alias.startswith("#"):
        below = _with_late_columns(below)
        return replace(view, input=below, late=below.late)
    return replace(view, late=late_columns(below))


def _columns_read(join: AnalyzedJoin) -> frozenset[str]:
    """The columns that a join itself reads, watermarked ones separately."""
    further = (column for port in range(len(join.inputs)) for column in join.reads(port))
    return columns_in(join.expressions) | frozenset(further)


def _any_column(relation: AnalyzedRelation) -> frozenset[str]:
    """Some column, for a query that asks for none: rows without columns could not be counted."""
    return frozenset((*times_of(relation), *all_columns(leaves(relation)[0]))[:1])


def _limit_state(plan: RelationPlan, limits: Limits) -> RelationPlan:
    """The plan with the limit on every join."""

    def limit(node: RelationPlan) -> RelationPlan:
        if not isinstance(node, JoinPlan):
            return node
        return replace(node, operator=node.operator.with_limit(limits.max_rows, limits.overflow))

    return plan.transform(limit)


_ONE_TO_ONE = {
    "column",
    "literal",
    "interval",
    "and",
    "or",
    "not",
    "is_null",
    "negate",
    "cast",
    *COMPARISONS,
    *ARITHMETIC,
}
"""Expressions that give one value per row; functions may give several rows."""
WHY = "of groups that have ended, only those are handed on that may be among the first"


def push_down_top_n(plan: QueryPlan) -> QueryPlan:
    """The plan in which every stage knows that no more than the first of its rows are asked for, where that is so."""
    return replace(plan, relation=plan.relation.transform(_push_down))


def _push_down(relation: RelationPlan) -> RelationPlan:
    """A node that hands the first rows it asks for on to what it reads."""
    top_n = relation.operator.top_n if isinstance(relation, JoinPlan) else None
    if top_n is None:
        return relation
    return relation.with_children(tuple(_push_into(child, top_n) for child in relation.children))


def _push_into(relation: RelationPlan, top_n: TopN) -> RelationPlan:
    """The relation, of whose rows only the first are asked for."""
    match relation:
        case ViewPlan() if not relation.where and not relation.filters:
            if not all(_is_one_to_one(output.expr) for output in relation.outputs):
                return relation
            inner = _below_view(top_n, dict(zip(relation.columns, (o.expr for o in relation.outputs), strict=True)))
            return relation if inner is None else replace(relation, input=_push_into(relation.input, inner))
        case JoinPlan() if not relation.post_filters and not relation.derived and not relation.pads:
            operator = relation.operator.with_top_n(top_n)
            is_other = operator is not relation.operator
            return replace(relation, operator=operator, why=(*relation.why, WHY)) if is_other else relation
        case _:
            return relation


def _below_view(top_n: TopN, shown: Mapping[str, Expr]) -> TopN | None:
    """The same by the columns below a view; None: it is by what the view computes.

    A group by a field is one of structs or several: ahead in one of these is ahead in the group.
    """
    by = [shown[name].refs[0].column for name in top_n.by if finality_column(shown[name]) is not None]
    order = [
        SortColumn(shown[each.column].refs[0].column, each.descending, each.nulls_last)
        for each in top_n.order
        if shown[each.column].op == "column" and not shown[each.column].refs[0].path
    ]
    is_known = len(by) == len(top_n.by) and len(order) == len(top_n.order)
    return replace(top_n, by=tuple(dict.fromkeys(by)), order=tuple(order)) if is_known else None


def _is_one_to_one(expr: Expr) -> bool:
    return finality_column(expr) is not None or (expr.op in _ONE_TO_ONE and all(map(_is_one_to_one, expr.args)))
