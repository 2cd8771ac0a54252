"""The entry of window functions: a stage with one port, whose result has all rows of a stream or table.

`FORECAST` says what the state will hold: the rows of the table; or those that wait, and those that frames still need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from watersmeet.catalog import Amount, Source, Watermark
from watersmeet.logical.expressions import RANKS, Reference, WindowCall
from watersmeet.logical.query import TOP, AnalyzedOver, AnalyzedQuery, Output, over_bound
from watersmeet.logical.relation import BY_TIME, AnalyzedView
from watersmeet.logical.words import amount_in_words, expression_in_words
from watersmeet.operators.core.aggregates import function_of, is_aggregate, result_type
from watersmeet.operators.core.changes import POSITION, WEIGHT
from watersmeet.operators.core.order import SortColumn
from watersmeet.operators.explainer import PortRetention
from watersmeet.operators.over.frames import FrameFunction
from watersmeet.operators.over.kernel import OverOperator, TableOverOperator
from watersmeet.physical.change import (
    RETRACTED,
    SHOWN,
    ChangeEffect,
    IdentityChange,
    StageEdit,
    frame_function_in_words,
)
from watersmeet.physical.nodes import JoinPlan, PortPlan, StagePlanner, Types, ViewPlan
from watersmeet.physical.ports import CODE, leaf_column, unions_of
from watersmeet.physical.scans import idle_of, lags_of

_SHOWN, _READ = "c", "x"
"""The names of the columns that the result reads, and of those that only the functions read, before a number."""


def rows(query: AnalyzedQuery, outputs: tuple[Output, ...]) -> tuple[AnalyzedView, tuple[Output, ...]]:
    """The rows before the functions: what the result reads, arguments, groups and the order, each column once.

    The functions of other partitions are columns of these rows.
    """
    over = query.top
    assert isinstance(over, AnalyzedOver)
    own = {f"{TOP}.{function.name}" for function in over.functions}
    shown = {
        ref.column: leaf_column(ref.source, ref.name)
        for output in outputs
        for ref in output.expr.references
        if ref.column not in own
    }
    named = {expr.sql(): Output(f"{_SHOWN}{n}", expr) for n, expr in enumerate(shown.values())}
    order = (by.expr for by in over.order) if over.time is None else (leaf_column(over.time.alias, over.time.name),)
    arguments = (arg for function in over.functions for arg in WindowCall.of(function.expr).call.args)
    for expr in (*arguments, *(by.expr for by in over.by), *order):
        named.setdefault(expr.sql(), Output(f"{_READ}{len(named)}", expr))
    kind = query.relation.result
    inner = replace(query, outputs=tuple(named.values()), top=over.below, result=kind)
    time = None if over.time is None else named[leaf_column(over.time.alias, over.time.name).sql()]
    watermarks = () if time is None else (Watermark(time.name, Amount(0, is_interval=True)),)

    def rename(ref: Reference) -> Reference:
        return ref if ref.column in own else replace(ref, source=TOP, name=named[shown[ref.column].sql()].name)

    renamed = tuple(Output(output.name, output.expr.map_references(rename)) for output in outputs)
    return AnalyzedView(TOP, Source(TOP, (), watermarks, kind), inner), renamed


def plan(query: AnalyzedQuery, view: AnalyzedView, rows: ViewPlan, types: Types) -> JoinPlan:
    """The plan of window functions over rows."""
    over = query.top
    assert isinstance(over, AnalyzedOver)
    names = {output.expr.sql(): f"{TOP}.{output.name}" for output in view.query.outputs}
    by = tuple(names[by.expr.sql()] for by in over.by)
    columns = tuple(column for column in rows.columns if column.startswith(f"{TOP}.{_SHOWN}"))
    functions = tuple(_function(function, names, is_stream=over.time is not None) for function in over.functions)
    lags, code = lags_of(view), CODE if by else None
    operator: OverOperator | TableOverOperator
    times: tuple[str, ...] = ()
    if over.time is None:
        order = tuple(SortColumn(names[key.expr.sql()], key.descending, key.nulls_last) for key in over.order)
        operator = TableOverOperator(columns, functions, by, order, code, POSITION)
    else:
        times = (names[leaf_column(over.time.alias, over.time.name).sql()],)
        operator = OverOperator(
            columns, by, times[0], functions, 0 if over.within is None else over.within.value,
            time_name=expression_in_words(over.order[0].shown), code=code, position=POSITION,
            outputs=tuple(column for column, _ in over.final_columns), late=rows.late, unions=unions_of(lags),
            idle=idle_of(view),
        )  # fmt: skip
    weights = (WEIGHT,) if over.time is None else ()
    port = PortPlan(
        rows, (*rows.frame_columns, *weights), code=code, hashed=by, route="key" if by else "one", position=POSITION,
        lags=lags, times=times, late=rows.late,
    )  # fmt: skip
    made = tuple((f"{TOP}.{function.name}", _type(function, types)) for function in over.functions)
    return JoinPlan(
        (port,), operator, (*columns, *(name for name, _ in made)), (), _why(over), over, extra_types=made,
        name_prefix=f"the window functions{' by ' * bool(by)}{', '.join(map(str, over.by))} of ",
    )  # fmt: skip


def _function(output: Output, names: dict[str, str], *, is_stream: bool) -> FrameFunction:
    parts = WindowCall.of(output.expr)
    columns = tuple(names[arg.sql()] for arg in parts.call.args)
    reach, end = (None if amount is None else amount.value for amount in (parts.preceding, parts.following))
    unit = "range" if parts.unit == "RANGE" else "rows"
    function = parts.function if is_stream else parts.call.function
    return FrameFunction(function, columns, f"{TOP}.{output.name}", unit, reach, end)


def _type(output: Output, types: Types) -> str:
    """The type of a function; "" where it is not known yet."""
    call = WindowCall.of(output.expr)
    if call.call.text in RANKS:
        return "INT NOT NULL"
    if call.value_expr is not call.call:
        return types.type_of(call.value_expr) or ""
    kind = result_type(call.call.function, tuple(types.type_of(arg) or "" for arg in call.call.args)) or ""
    is_counted = is_aggregate(call.call.function) and not function_of(call.call.function).nullable
    return f"{kind}{' NOT NULL' * is_counted}"


def _why(over: AnalyzedOver) -> tuple[str, ...]:
    if over.time is None:
        return (
            "window functions: a table that is kept up to date",
            "sharded by a hash of PARTITION BY" if over.by else "one shard: all rows are in one order",
            "all rows are kept; a batch computes the groups that it touches again",
        )
    bound = over_bound(over)
    waits = f"once the watermark of {expression_in_words(over.order[0].shown)} has passed it"
    if over.within is not None:
        waits += f" by {amount_in_words(over.within)}: until then LEAD may show another row"
    state = "rows are kept until no frame can reach them" if bound == BY_TIME else f"kept besides: {bound.words}"
    return (
        "window functions: a stream, in the order of its event time",
        "sharded by a hash of PARTITION BY" if over.by else "one shard: every row follows another",
        f"a row is emitted {waits}",
        state,
    )


PLAN = StagePlanner(lambda query: query.top is not None and query.top.family == "over", rows, plan, shows_late=True)


def change_effects(stage: StageEdit, changes: Sequence[IdentityChange]) -> Sequence[ChangeEffect] | None:
    """Effects of other functions over rows that are kept, or of another bound of LEAD; None: something is not kept."""
    before, after = stage.operators
    for change in changes:
        is_less = change.path == ("ports", 0, "stored") and set(change.now) <= set(change.was)
        if not is_less and change.path not in (("functions",), ("order",), ("wait",)):
            return None
    if "wait" not in before or "wait" not in after:
        # All rows are kept. A stage above would be told to remove rows that it does not have.
        is_last = stage.number == len(stage.now.identity["stages"]) - 1
        return [ChangeEffect(SHOWN, RETRACTED)] if is_last and before.keys() == after.keys() else None
    was = OverOperator((), (), "", tuple(map(FrameFunction.of, before["functions"])))
    new = [function for function in after["functions"] if function not in before["functions"]]
    if not all(was.keeps_rows_for(FrameFunction.of(function)) for function in new):
        return None
    return [*_function_effects(stage, new), *(effect for change in changes for effect in _other_effects(stage, change))]


def _function_effects(stage: StageEdit, new: Sequence[Sequence[str]]) -> Iterator[ChangeEffect]:
    before, after = stage.operators
    for function in new:
        words = frame_function_in_words(function, stage.now, after)
        yield ChangeEffect(f"{words} is new", "rows that have come out stay as they are")
    for function in before["functions"]:
        if function not in after["functions"]:
            words = frame_function_in_words(function, stage.was, before)
            yield ChangeEffect(f"{words} is no longer computed", "computing it again may need a new state")


def _other_effects(stage: StageEdit, change: IdentityChange) -> Iterator[ChangeEffect]:
    if change.path == ("wait",):
        time = stage.operators[1]["ports"][0]["time"]
        before, after = stage.was.amount(change.was, time), stage.now.amount(change.now, time)
        consequence = "rows that wait come out by the new bound; the watermark of the result does not go back"
        yield ChangeEffect(f"the bound of LEAD was {before}, now it is {after}", consequence)
    gone = sorted({*change.was} - {*change.now}) if change.path[-1:] == ("stored",) else []
    if gone:
        yield ChangeEffect(
            f"{stage.was.names(gone)} is no longer used", "new rows do not keep it, so using it again needs a new state"
        )


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """The rows that frames still need."""
    assert isinstance(plan.analyzed, AnalyzedOver)
    if plan.analyzed.time is None:
        return (PortRetention(0, "keys", law="the rows of the table"),)
    bound = over_bound(plan.analyzed)
    return (PortRetention(0, "keys", law="the rows in the ranges" if bound == BY_TIME else bound.words),)


CHANGE = change_effects


FORECAST = forecast
