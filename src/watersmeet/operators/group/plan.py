"""The entry of GROUP BY: a stage with one port, whose result is a table.

`FORECAST` says what the state will hold: a row per group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from watersmeet.catalog import Amount, Source, Watermark
from watersmeet.logical.expressions import GROUP, SORTS, Expr, constants_of
from watersmeet.logical.query import AnalyzedGroup, AnalyzedQuery, Output
from watersmeet.logical.relation import AnalyzedView
from watersmeet.logical.words import expression_in_words
from watersmeet.operators.core.aggregates import Aggregate, function_of, result_type
from watersmeet.operators.core.changes import POSITION, WEIGHT
from watersmeet.operators.core.order import SortColumn
from watersmeet.operators.explainer import PortRetention
from watersmeet.operators.group.kernel import GroupByOperator
from watersmeet.physical.change import window_effects
from watersmeet.physical.nodes import JoinPlan, PortPlan, StagePlanner, Types, ViewPlan
from watersmeet.physical.ports import CODE, leaf_column, unions_of
from watersmeet.physical.scans import idle_of, lags_of

TIME, END = "time", "end"
"""The event time that ends the windows of a grouping, and the end of a row's window, as columns of its rows."""


def rows(query: AnalyzedQuery, outputs: tuple[Output, ...]) -> tuple[AnalyzedView, tuple[Output, ...]]:
    """The columns of the grouping: keys, arguments of the aggregates, and the time; the result is shown unchanged."""
    group = query.group
    assert group is not None
    arguments = {arg.sql(): arg for aggregate in group.aggregates for arg in aggregate.expr.inputs}
    read = [*group.by, *(Output(name, arguments[sql]) for sql, name in _arguments(group).items())]
    watermarks: tuple[Watermark, ...] = ()
    if group.time is not None:
        read.append(Output(TIME, leaf_column(group.time.alias, group.time.name)))
        read += [Output(END, _end(group))] if group.behind is None else []
        watermarks = (Watermark(TIME, Amount(0, is_interval=True)),)
    constant = Output("one", Expr("literal", text="1", value=1))
    kind = query.relation.result
    inner = replace(query, outputs=tuple(read) or (constant,), group=None, result=kind)
    final_columns = tuple(column.by for column in group.final_columns) if group.final_by is not None else ()
    return AnalyzedView(GROUP, Source(GROUP, (), watermarks, kind, final_columns=final_columns), inner), outputs


def plan(query: AnalyzedQuery, view: AnalyzedView, rows: ViewPlan, types: Types) -> JoinPlan:
    """The plan of a grouping over its rows."""
    group = query.group
    assert group is not None
    keys = tuple(f"{GROUP}.{by.name}" for by in group.by)
    is_table = view.source.kind == "table"
    called = _arguments(group)
    aggregates = tuple(_aggregate(a, called) for a in group.aggregates)
    position = POSITION if any(_asks_order(a.function) for a in aggregates) else None
    session = f"{GROUP}.{group.window}" if group.is_session else None
    # All sessions of a key must be in one shard.
    hashed = tuple(key for key in keys if key != session)
    code = CODE if hashed else None
    time = None if group.time is None else f"{GROUP}.{TIME}"
    end = f"{GROUP}.{END}" if group.time is not None and group.behind is None else None
    lags = lags_of(view)
    final_by = group.final_by if group.behind is None else group.window
    by = None if final_by is None else f"{GROUP}.{final_by}"
    settles = tuple((final.column, final.behind) for final in group.final_columns)
    operator = GroupByOperator(
        keys, aggregates, code, is_table, position, end, time, session, by, settles, before_end=group.behind or 0,
        emit=group.emit, unions=unions_of(lags), idle=idle_of(view) if group.emit == "final" else (),
    )  # fmt: skip
    port = PortPlan(
        rows, (*rows.columns, *((WEIGHT,) if is_table else ())), code=code, hashed=hashed, lags=lags,
        route="key" if hashed else "one", times=() if time is None else (time,), position=position,
    )  # fmt: skip
    columns = (*keys, *(aggregate.output for aggregate in aggregates))
    types_made = tuple((f"{GROUP}.{a.name}", f"{_type(a.expr, types)}{_never_null(a.expr)}") for a in group.aggregates)
    return JoinPlan(
        (port,),
        operator,
        columns,
        group.having,
        _why(group),
        group,
        extra_types=types_made,
        name_prefix="the groups of ",
    )


def _final_column(group: AnalyzedGroup) -> str:
    """The expression by which a group becomes final, as the query wrote it."""
    return next(expression_in_words(by.expr) for by in group.by if by.name == group.final_by)


def _arguments(group: AnalyzedGroup) -> dict[str, str]:
    """The names of the aggregates' arguments in the input of the grouping, by their SQL: each once."""
    once = dict.fromkeys(arg.sql() for aggregate in group.aggregates for arg in aggregate.expr.inputs)
    return {sql: f"x{n}" for n, sql in enumerate(once)}


def _aggregate(output: Output, called: Mapping[str, str]) -> Aggregate:
    """The aggregate of a group that an expression stands for."""
    call = output.expr
    directions = {text: direction for direction, text in SORTS.items()}
    order = tuple(SortColumn(f"{GROUP}.{called[key.args[0].sql()]}", *directions[key.text]) for key in call.sort_keys)
    constants = constants_of(call)
    assert constants is not None, "the parser refuses other constants"
    return Aggregate(call.function, _columns(call, called), f"{GROUP}.{output.name}", order, constants)


def _columns(aggregate: Expr, called: Mapping[str, str]) -> tuple[str, ...]:
    """The columns that an aggregate reads. DISTINCT a, a is the same as DISTINCT a."""
    columns = [f"{GROUP}.{called[arg.sql()]}" for arg in aggregate.arguments]
    return tuple(dict.fromkeys(columns) if aggregate.function == "count distinct" else columns)


def _end(group: AnalyzedGroup) -> Expr:
    """The end of the window that a row belongs to."""
    window = next(by.expr for by in group.by if by.name == group.window)
    is_end = window.op == "column"
    return window if is_end else Expr("other", text=f"{window.text}.end", refs=window.refs)


def _type(aggregate: Expr, types: Types) -> str:
    """The type of an aggregate; "" where it is not known yet."""
    is_plain = aggregate.inputs == aggregate.args
    type_ = types.type_of(aggregate) if is_plain else None
    if type_ is not None:
        return type_
    args = tuple(types.type_of(arg) or "" for arg in aggregate.arguments)
    return result_type(aggregate.function, args) or ""


def _never_null(aggregate: Expr) -> str:
    """The suffix of the type of an aggregate that is never NULL."""
    return "" if function_of(aggregate.function).nullable else " NOT NULL"


def _asks_order(name: str) -> bool:
    """Whether an aggregate depends on arrival order: in ``min_by`` and ``max_by`` the last wins among equals."""
    function = function_of(name)
    return function.fold in ("first", "last", "list") or function.args > 1


def _why(group: AnalyzedGroup) -> tuple[str, ...]:
    lines = ["grouping: a table with one row per group, kept up to date"]
    if group.emit == "final":
        lines = ["grouping: a stream with one row per group, emitted when the group closes and never retracted"]
    if not group.by:
        lines.append("one shard: there is one group")
    elif group.is_session and len(group.by) == 1:
        lines.append("one shard: any two sessions may become one")
    else:
        lines.append("sharded by a hash of the group key" + (" besides sessions" if group.is_session else ""))
    if group.emit == "final":
        lines.append(f"a group is emitted and removed once the watermark of {group.time} has passed its end")
    elif group.time is not None:
        lines.append(f"a group is removed once the watermark of {group.time} has passed the end of its window")
    elif group.final_by is not None:
        lines.append(f"a group is removed once {_final_column(group)} is final: rows with this value no longer change")
    elif group.by:
        lines.append("every group is kept forever, because no event-time window ends it")
    return tuple(lines)


PLAN = StagePlanner(lambda query: query.group is not None, rows, plan)


CHANGE = window_effects


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """Groups, whose number does not follow from the plan."""
    return (PortRetention(0, "keys", law="a row per group"),)


FORECAST = forecast
