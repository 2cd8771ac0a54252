"""The entries of GROUP BY and of the latest row per key: stages with one port, whose result is a table."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.catalog import Amount, Source, Watermark
from watersmeet.joins.core.changes import POSITION, WEIGHT
from watersmeet.joins.core.port import Port
from watersmeet.joins.group.operator import Aggregate, GroupBy
from watersmeet.joins.group.types import canonical, result_type
from watersmeet.joins.latest.operator import Latest
from watersmeet.physical.leaves import lags_of
from watersmeet.physical.nodes import JoinPlan, PortPlan, ViewPlan
from watersmeet.physical.ports import CODE, unions_of
from watersmeet.physical.types import Types
from watersmeet.plan.expressions import Expr, Reference
from watersmeet.plan.relation import GROUP, AnalyzedGroup, AnalyzedQuery, AnalyzedView, Output, TimeColumn
from watersmeet.type_names import EXACT

LATEST = "#latest"
"""The source of the rows of which the latest per key is kept."""

TIME, END = "time", "end"
"""The event time that ends the windows of a grouping, and the end of a row's window, as columns of its rows."""

_ORDERED = frozenset({"first", "last", "min_by", "max_by"})
"""The aggregates that ask in which order rows came."""


def rows_for_group(query: AnalyzedQuery) -> AnalyzedView:
    """What a grouping reads, as a view: what is grouped by, the arguments of the aggregates, and the time."""
    group = query.group
    assert group is not None
    outputs = [*group.by]
    for aggregate in group.aggregates:
        outputs += [Output(name, arg) for name, arg in zip(_arguments(aggregate), aggregate.expr.args, strict=True)]
    marks: tuple[Watermark, ...] = ()
    if group.time is not None:
        outputs += [Output(TIME, _column(group.time)), Output(END, _end(group))]
        marks = (Watermark(TIME, Amount(0, is_interval=True)),)
    one = Output("one", Expr("literal", text="1", value=1))
    kind = query.relation.result
    inner = replace(query, outputs=tuple(outputs) or (one,), group=None, result=kind)
    return AnalyzedView(GROUP, Source(GROUP, (), marks, kind), inner)


def plan_group(query: AnalyzedQuery, view: AnalyzedView, rows: ViewPlan, types: Types) -> JoinPlan:
    """The plan of a grouping over its rows."""
    group = query.group
    assert group is not None
    keys = tuple(f"{GROUP}.{by.name}" for by in group.by)
    is_table = view.source.kind == "table"
    aggregates = tuple(
        Aggregate(a.expr.text, tuple(f"{GROUP}.{name}" for name in _arguments(a)), f"{GROUP}.{a.name}")
        for a in group.aggregates
    )
    position = POSITION if any(canonical(a.function) in _ORDERED for a in aggregates) else None
    code = CODE if keys else None
    ended = (f"{GROUP}.{END}", f"{GROUP}.{TIME}") if group.time is not None else (None, None)
    lags = lags_of(view)
    operator = GroupBy(keys, aggregates, code, is_table, position, *ended, unions=unions_of(lags))
    port = PortPlan(
        rows, (*rows.columns, *((WEIGHT,) if is_table else ())), code=code, hashed=keys, lags=lags,
        route="key" if keys else "one", times=() if group.time is None else (f"{GROUP}.{TIME}",), position=position,
    )  # fmt: skip
    columns = (*keys, *(aggregate.output for aggregate in aggregates))
    made = tuple((f"{GROUP}.{a.name}", f"{_type(a.expr, types)}{_never_null(a.expr)}") for a in group.aggregates)
    return JoinPlan((port,), operator, columns, (), _why(group), group, made=(*made, (WEIGHT, "BIGINT")))


def rows_for_latest(query: AnalyzedQuery, outputs: tuple[Output, ...]) -> tuple[AnalyzedView, tuple[Output, ...]]:
    """What is read where a stream is shown as a table: its result with its key; and the columns of that result."""
    assert query.key, "the analysis refuses a table without a key"
    keys = tuple(Output(f"#key{n}", expr) for n, expr in enumerate(query.key))
    inner = replace(query, outputs=(*outputs, *keys), result="stream")
    shown = tuple(Output(output.name, _column(TimeColumn(LATEST, output.name))) for output in outputs)
    return AnalyzedView(LATEST, Source(LATEST, ()), inner), shown


def plan_latest(query: AnalyzedQuery, rows: ViewPlan, types: Types) -> JoinPlan:
    """The plan of a table that has the latest row of a stream for every key."""
    keys = tuple(f"{LATEST}.#key{n}" for n in range(len(query.key)))
    columns = tuple(column for column in rows.columns if column not in keys)
    exact = len(keys) == 1 and types.type_of(query.key[0]) in EXACT
    code = keys[0] if exact else CODE
    operator = Latest(Port(columns, (), keys, code, exact), append=True)
    hashed = () if exact else keys
    port = PortPlan(rows, rows.columns, code=code, hashed=hashed, route="key", position=POSITION)
    why = (
        "latest row per key: the stream is shown as a table, in which a row takes the place of the one with its key",
        "sharded by the key of the result",
    )
    return JoinPlan((port,), operator, columns, (), why, query, made=((WEIGHT, "BIGINT"),))


def _arguments(aggregate: Output) -> tuple[str, ...]:
    """What the arguments of an aggregate are called among the rows of its grouping."""
    return tuple(f"{aggregate.name}x{n}" for n in range(len(aggregate.expr.args)))


def _column(time: TimeColumn) -> Expr:
    text = f"{time.alias}.{time.name}"
    return Expr("column", text=text, refs=(Reference((time.alias, time.name), 0, len(text), time.alias, time.name),))


def _end(group: AnalyzedGroup) -> Expr:
    """The end of the window that a row belongs to."""
    window = next(by.expr for by in group.by if by.name == group.window)
    return Expr("other", text=f"{window.text}.end", refs=window.refs)


def _type(aggregate: Expr, types: Types) -> str:
    """The type of an aggregate; "" where nobody can tell yet."""
    known = types.type_of(aggregate)
    if known is not None:
        return known
    args = tuple(types.type_of(arg) or "" for arg in aggregate.args)
    return result_type(aggregate.text, args) or ""


def _never_null(aggregate: Expr) -> str:
    """What the type of an aggregate says besides if it is a number of rows."""
    return " NOT NULL" if canonical(aggregate.text) in ("count", "count_if") else ""


def _why(group: AnalyzedGroup) -> tuple[str, ...]:
    lines = ["grouping: a table with one row per group, kept up to date"]
    lines.append("sharded by a hash of what is grouped by" if group.by else "one shard: there is one group")
    if group.time is not None:
        lines.append(f"a group is forgotten once the watermark of {group.time} has passed the end of its window")
    elif group.by:
        lines.append("every group is kept for good, since no event-time window ends it: state grows with the groups")
    return tuple(lines)
