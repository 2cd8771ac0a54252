"""The entry of ORDER BY ... LIMIT: a stage with one port, whose result is a table of the first rows.

`FORECAST` says what the state will hold: the rows that are shown, or the whole table.
"""

from __future__ import annotations

from dataclasses import replace

from watersmeet.catalog import Amount, Source, Watermark
from watersmeet.logical.expressions import finality_column
from watersmeet.logical.query import AnalyzedQuery, AnalyzedTop, Output
from watersmeet.logical.relation import AnalyzedView
from watersmeet.operators.core.changes import POSITION, WEIGHT
from watersmeet.operators.core.order import SortColumn
from watersmeet.operators.explainer import PortRetention
from watersmeet.operators.top.kernel import DeduplicateOperator, TopNOperator
from watersmeet.physical.change import window_effects
from watersmeet.physical.nodes import JoinPlan, PortPlan, StagePlanner, Types, ViewPlan
from watersmeet.physical.ports import CODE, leaf_column, unions_of
from watersmeet.physical.scans import idle_of, lags_of

TOP = "#top"
"""The source of the rows before the top-N."""
TIME = "#time"
"""The event time that ends the windows of the groups, as a column of these rows."""


def rows(query: AnalyzedQuery, outputs: tuple[Output, ...]) -> tuple[AnalyzedView, tuple[Output, ...]]:
    """The result with its sort columns; and the columns of that result."""
    assert query.top is not None
    ordered = tuple(Output(f"#by{n}", by.expr) for n, by in enumerate(query.top.order))
    kind = query.relation.result
    groups = tuple(Output(f"#of{n}", by.expr) for n, by in enumerate(query.top.by))
    time = query.top.time
    timed = () if time is None else (Output(TIME, leaf_column(time.alias, time.name)),)
    inner = replace(query, outputs=(*outputs, *ordered, *groups, *timed), top=None, result=kind)
    shown = tuple(Output(output.name, leaf_column(TOP, output.name)) for output in outputs)
    if time is not None:
        return AnalyzedView(TOP, Source(TOP, (), (Watermark(TIME, Amount(0, is_interval=True)),), kind), inner), shown
    final_columns = () if query.top.final_by is None else (groups[query.top.final_by].name,)
    return AnalyzedView(TOP, Source(TOP, (), kind=kind, final_columns=final_columns), inner), shown


def plan(query: AnalyzedQuery, view: AnalyzedView, rows: ViewPlan, types: Types) -> JoinPlan:
    """The plan of the first rows of a result."""
    top = query.top
    assert top is not None
    order = tuple(SortColumn(f"{TOP}.#by{n}", by.descending, by.nulls_last) for n, by in enumerate(top.order))
    by = tuple(f"{TOP}.#of{n}" for n in range(len(top.by)))
    time = None if top.time is None else f"{TOP}.{TIME}"
    hidden = {*(each.column for each in order), *by, time}
    columns = tuple(column for column in rows.columns if column not in hidden)
    if top.within is not None and time is not None:
        return _plan_deduplicate(top, view, rows, columns, by, time)
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
        idle=idle_of(view) if top.emit == "final" else (),
    )  # fmt: skip
    return JoinPlan((port,), operator, columns, (), why, top, name_prefix="the first rows of ")


def _plan_deduplicate(
    top: AnalyzedTop, view: AnalyzedView, rows: ViewPlan, columns: tuple[str, ...], by: tuple[str, ...], time: str
) -> JoinPlan:
    """The plan of the first row of each group within a time."""
    assert top.within is not None
    lags, code = lags_of(view), CODE if by else None
    port = PortPlan(
        rows, rows.columns, code=code, hashed=by, route="key" if by else "one", position=POSITION, lags=lags,
        times=(time,),
    )  # fmt: skip
    operator = DeduplicateOperator(
        columns, by, time, top.within.value, "time" if top.order else "arrival", code, POSITION,
        tuple(column for column, _ in top.final_columns), unions=unions_of(lags), idle=idle_of(view),
    )  # fmt: skip
    first = f"first row of each group by {top.time}" if top.order else "first row of each group to arrive"
    waits = f"once the watermark of {top.time} has passed it" if top.order else "at once"
    why = (
        f"{first}: a stream; later rows within the time are dropped",
        "sharded by a hash of the group key" if by else "one shard: every row may repeat every other",
        f"a row is emitted {waits}",
        f"the key of a row is kept until the watermark of {top.time} has passed its time by the bound",
    )
    return JoinPlan((port,), operator, columns, (), why, top, name_prefix="the first rows of ")


PLAN = StagePlanner(lambda query: query.top is not None, rows, plan)


CHANGE = window_effects


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """The first rows of a stream; of a table all of them, since one that leaves makes room for another."""
    operator = plan.operator
    if isinstance(operator, DeduplicateOperator):
        return (PortRetention(0, "keys", law="a key for each row that came out within the time"),)
    assert isinstance(operator, TopNOperator)
    if operator.changes:
        return (PortRetention(0, "keys", law="the rows of the table"),)
    return (PortRetention(0, "number", operator.limit, "the first rows"),)


FORECAST = forecast
