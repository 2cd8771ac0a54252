"""The entry of ORDER BY ... LIMIT: a stage with one port, whose result is a table of the first rows.

`FORECAST` says what the state will hold: the rows that are shown, or the whole table.
"""

from __future__ import annotations

from watersmeet.logical.expressions import finality_column
from watersmeet.logical.query import RANK, TOP, AnalyzedQuery
from watersmeet.logical.relation import AnalyzedView
from watersmeet.operators.core.changes import POSITION, WEIGHT
from watersmeet.operators.core.order import SortColumn
from watersmeet.operators.explainer import PortRetention
from watersmeet.operators.top.kernel import TopNOperator
from watersmeet.physical.change import window_effects
from watersmeet.physical.nodes import JoinPlan, PortPlan, StagePlanner, Types, ViewPlan
from watersmeet.physical.ports import CODE, unions_of
from watersmeet.physical.scans import (
    RANKED_TIME,
    group_column,
    idle_of,
    lags_of,
    order_column,
    view_to_rank,
    visible_columns,
)


def plan(query: AnalyzedQuery, view: AnalyzedView, rows: ViewPlan, types: Types) -> JoinPlan:
    """The plan of the first rows of a result."""
    top = query.top
    assert top is not None
    order = tuple(SortColumn(order_column(n), by.descending, by.nulls_last) for n, by in enumerate(top.order))
    by = tuple(group_column(n) for n in range(len(top.by)))
    time = None if top.time is None else RANKED_TIME
    columns = visible_columns(top, rows)
    is_table = view.source.kind == "table"
    code = CODE if by else None
    # Where equals have one place, it does not matter which came first.
    position = None if top.ties else POSITION
    lags = () if time is None else lags_of(view)
    port = PortPlan(
        rows, (*rows.columns, *((WEIGHT,) if is_table else ())), code=code, hashed=by, route="key" if by else "one",
        position=position, lags=lags, times=() if time is None else (time,),
    )  # fmt: skip
    first = "first row" if top.limit == 1 else f"first {top.limit} rows"
    if top.offset or not top.limit_in_words:
        first = f"rows {top.limit_in_words}" if top.offset else "all rows with their ranks"
    first += f"{' of each group' if by else ''}{', and those equal to the last' * top.ties}"
    why = (
        f"{first}: a table that is kept up to date" if top.emit == "changes" else f"{first}: a stream, without changes",
        "sharded by a hash of the group key" if by else "one shard: every row competes with every other",
    )
    final_by = None if top.final_by is None else by[top.final_by]
    if top.emit == "final":
        why = (*why, f"a group is emitted and removed once the watermark of {top.time} has passed its end")
    elif top.time is not None:
        why = (*why, f"a group is removed once the watermark of {top.time} has passed the end of its window")
    elif final_by is not None:
        why = (*why, "a group is removed once it is final: its rows no longer change")
    own = None if top.final_by is None else finality_column(top.by[top.final_by].expr)
    handed_on = () if own is None else tuple((column, 0) for column in sorted(query.relation.equal_columns(own)))
    operator = TopNOperator(
        columns, order, top.limit, is_table, position, by, code, top.ties, final_by,
        handed_on if time is None else top.final_columns, time, top.behind, top.emit, unions=unions_of(lags),
        idle=idle_of(view) if top.emit == "final" else (), offset=top.offset,
        number=None if top.rank is None else f"{TOP}.{RANK}", is_dense=top.is_dense,
    )  # fmt: skip
    return JoinPlan(
        (port,), operator, operator.visible_columns, (), why, top, name_prefix="the first rows of ",
        extra_types=() if operator.number is None else ((operator.number, "INT NOT NULL"),),
    )  # fmt: skip


PLAN = StagePlanner(lambda query: query.top is not None and query.top.family == "top", view_to_rank, plan)


CHANGE = window_effects


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """The first rows of a stream; of a table all of them, since one that leaves makes room for another."""
    operator = plan.operator
    assert isinstance(operator, TopNOperator)
    if operator.changes:
        return (PortRetention(0, "keys", law="the rows of the table"),)
    return (PortRetention(0, "number", operator.limit, "the first rows"),)


FORECAST = forecast
