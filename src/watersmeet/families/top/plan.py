"""The entry of ORDER BY ... LIMIT: a stage with one port, whose result is a table of the first rows."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.catalog import Source
from watersmeet.joins.core.changes import POSITION, WEIGHT
from watersmeet.joins.top.operator import Order, Top
from watersmeet.physical.family import StagePlanner
from watersmeet.physical.nodes import JoinPlan, PortPlan, ViewPlan
from watersmeet.physical.ports import leaf_column
from watersmeet.physical.types import Types
from watersmeet.plan.relation import AnalyzedQuery, AnalyzedView, Output

TOP = "#top"
"""The source of the rows of which the first are shown."""


def rows(query: AnalyzedQuery, outputs: tuple[Output, ...]) -> tuple[AnalyzedView, tuple[Output, ...]]:
    """The result with what it is ordered by; and the columns of that result."""
    assert query.top is not None
    ordered = tuple(Output(f"#by{n}", by.expr) for n, by in enumerate(query.top.order))
    kind = query.relation.result
    inner = replace(query, outputs=(*outputs, *ordered), top=None, result=kind)
    shown = tuple(Output(output.name, leaf_column(TOP, output.name)) for output in outputs)
    return AnalyzedView(TOP, Source(TOP, (), kind=kind), inner), shown


def plan(query: AnalyzedQuery, view: AnalyzedView, rows: ViewPlan, types: Types) -> JoinPlan:
    """The plan of the first rows of a result."""
    top = query.top
    assert top is not None
    order = tuple(Order(f"{TOP}.#by{n}", by.descending, by.nulls_last) for n, by in enumerate(top.order))
    ordered = {by.column for by in order}
    columns = tuple(column for column in rows.columns if column not in ordered)
    is_table = view.source.kind == "table"
    port = PortPlan(rows, (*rows.columns, *((WEIGHT,) if is_table else ())), route="one", position=POSITION)
    why = (
        f"first {top.limit} rows: a table that is kept up to date",
        "one shard: every row competes with every other",
    )
    operator = Top(columns, order, top.limit, is_table, POSITION)
    return JoinPlan((port,), operator, columns, (), why, top, called="the first rows of ")


PLAN = StagePlanner(lambda query: query.top is not None, rows, plan)
