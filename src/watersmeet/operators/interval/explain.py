"""The `explain` facts of an interval join, and the `why` reasons for its rows."""

from __future__ import annotations

from watersmeet.catalog import Amount
from watersmeet.logical.passes.column_types import event_times
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.logical.relation import TimeBound
from watersmeet.logical.words import (
    Fact,
    amount_in_words,
    conditions,
    expression_in_words,
    keys,
    kind_in_words,
    rows_of,
    sources_by_alias,
    texts,
    word,
)
from watersmeet.operators.core.rowwise import RemovedRow, Row, event_time
from watersmeet.operators.core.watermarks import Bound
from watersmeet.operators.explainer import Distance, FamilyTracer, JoinExplainer, Names, PairDistance, TraceContext
from watersmeet.operators.interval.kernel import IntervalJoinOperator
from watersmeet.operators.interval.relation import AnalyzedIntervalJoin, RowExpiry


def facts(query: AnalyzedQuery, join: AnalyzedIntervalJoin, names: Names) -> list[Fact]:
    """The facts about an interval join."""
    return [
        keys(join.keys),
        ("bounds", [_bound(query, join, bound) for bound in join.bounds]),
        ("kept", _retention(query, join, names)),
        ("emitted", _emission(join, names)),
        conditions("left only", join.left_only, _failure_remark(join, "left")),
        conditions("right only", join.right_only, _failure_remark(join, "right")),
        conditions("also", join.residual),
        ("warning", [*_without_equality(join), *_far_ends(join, names)]),
    ]


def _failure_remark(join: AnalyzedIntervalJoin, side: str) -> str:
    if side == "left" and join.kind == "anti":
        return "a left row that fails is emitted at once"
    return f"a {side} row that fails is {'padded at once' if join.kind in (side, 'full') else 'dropped'}"


def _emission(join: AnalyzedIntervalJoin, names: Names) -> list[str]:
    """The output of a semi or anti join, and when it is emitted."""
    who = rows_of(join.left, names)
    match join.kind:
        case "semi":
            return [f"each {who} row once, at its first match"]
        case "anti":
            return [f"each {who} row that never matched, when it expires"]
        case _:
            return []


def _without_equality(join: AnalyzedIntervalJoin) -> list[str]:
    """Explain the cost of a join without an equality."""
    if join.keys:
        return []
    example = _equality(join)
    return [
        "no equality: every row is compared with all rows of the other side that its bounds reach",
        f"an equality{f' such as {example}' if example else ''} would spread both sides over the shards",
        "and compare rows of one key only",
    ]


def _equality(join: AnalyzedIntervalJoin) -> str:
    """An equality of columns with the same name and type on both sides, except event times."""
    left, right = (
        {
            (field.name.lower(), field.type.upper()): f"{alias}.{word(field.name)}"
            for alias, source in sources_by_alias(side).items()
            if alias in side.aliases
            for field in source.fields
            if not source.watermark(field.name)
        }
        for side in (join.left, join.right)
    )
    return next((f"{left[column]} = {right[column]}" for column in left if column in right), "")


def _bound(query: AnalyzedQuery, join: AnalyzedIntervalJoin, bound: TimeBound) -> str:
    """The bound with the right side's time first, as one writes BETWEEN."""
    if bound.column.alias in join.left.aliases:
        distance = _distance(query, bound, bound.constant)
        return f"{bound.other} {'<' if bound.strict else '<='} {bound.column}{distance}"
    distance = _distance(query, bound, -bound.constant)
    return f"{bound.column} {'>' if bound.strict else '>='} {bound.other}{distance}"


def _retention(query: AnalyzedQuery, join: AnalyzedIntervalJoin, names: Names) -> list[str]:
    """The retention of the rows of each side."""
    lines: list[str] = []
    for port, side in enumerate(join.inputs):
        own = [bound for bound in join.bounds if bound.column.alias in side.aliases]
        limits = [_end_in_words(expiry) for expiry in join.row_expiries if expiry.port == port]
        limits += [
            f"that of {b.other} {'reaches' if b.strict else 'passes'} {b.column}{_distance(query, b, b.constant)}"
            for b in own
        ]
        if limits:
            who = rows_of(side, names)
            until = " or ".join(limits).replace("that of", "the watermark of", 1)
            lines.append(f"{who} rows are kept until {until}")
    return lines


def _end_in_words(expiry: RowExpiry) -> str:
    """The time when a row that carries its end is forgotten."""
    end = expression_in_words(expiry.end)
    if expiry.constant:
        amount = amount_in_words(Amount(abs(expiry.constant), expiry.time.family != "integer"))
        end += f" {'+' if expiry.constant > 0 else '-'} {amount}"
    return f"that of {expiry.time} {'reaches' if expiry.strict else 'passes'} {end}"


def _far_ends(join: AnalyzedIntervalJoin, names: Names) -> list[str]:
    """Describe how long rows with a distant end are kept, if no other bound expires them."""
    lines: list[str] = []
    for expiry in join.row_expiries:
        if not join.is_timed(expiry.port):
            who, own = rows_of(join.inputs[expiry.port], names), event_times(join.inputs[expiry.port])
            day = (
                "86400"
                if expiry.time.family == "integer"
                else "1"
                if expiry.time.family == "date"
                else "INTERVAL 1 DAY"
            )
            start = next((time for time in own if time.family == expiry.time.family), own[0])
            lines += [
                f"a row of {who} is kept until its own end time, however late {expression_in_words(expiry.end)} is",
                f"`AND {expiry.time} <= {start} + {day}` or `SET watersmeet.state.max_rows` would limit that",
            ]
    return lines


def _distance(query: AnalyzedQuery, bound: TimeBound, constant: int) -> str:
    if constant == 0:
        return ""
    watermark = sources_by_alias(query.relation)[bound.column.alias].watermark(bound.column.name)
    is_interval = watermark is None or watermark.lag.is_interval
    return f" {'+' if constant > 0 else '-'} {amount_in_words(Amount(abs(constant), is_interval))}"


def data(query: AnalyzedQuery, join: AnalyzedIntervalJoin, names: Names) -> dict[str, object]:
    """The parts of the condition, and the retention, as data."""
    return {
        "join": join.kind,
        "keys": [[expression_in_words(a), expression_in_words(b)] for a, b in join.keys],
        "bounds": [_bound_data(bound) for bound in join.bounds],
        "kept": _retention(query, join, names),
        "emitted": _emission(join, names),
        "left_only": texts(join.left_only),
        "right_only": texts(join.right_only),
        "residual": texts(join.residual),
    }


def _bound_data(bound: TimeBound) -> dict[str, object]:
    column, other = str(bound.column), str(bound.other)
    return {"column": column, "other": other, "constant": bound.constant, "strict": bound.strict}


EXPLAIN = JoinExplainer(
    lambda join: f"{kind_in_words(join.kind)} JOIN",
    facts,
    data,
    "sides",
    pair_distance=lambda join: PairDistance(
        "event time", max((abs(bound.constant) for bound in join.bounds), default=None)
    ),
)


class _IntervalTracer(FamilyTracer):
    def non_null_columns(self, operator: IntervalJoinOperator, port: int) -> tuple[str, ...]:
        side = operator.ports[port]
        return (side.time, *side.ends)

    def expiry(self, context: TraceContext, port: int, row: Row, row_id: int) -> int | None:
        return min((_end(bound, row) for bound in _own(context, port) if row[bound.column] is not None), default=None)

    def removal_reason(self, context: TraceContext, gone: RemovedRow) -> tuple[str, str | None]:
        if gone.reason == "dropped":
            return (
                f"The state was over its limit of {context.operator.max_rows} rows, and its time was the earliest.",
                None,
            )
        bounds = [bound for bound in _own(context, gone.port) if bound.column == gone.column]
        bound = max(bounds, key=lambda candidate: context.received.get(candidate.other, 0) - candidate.constant)
        watermark, end = context.received[bound.other], _end(bound, gone.row)
        if context.words.is_end(watermark):
            return f"The input of {bound.other.split('.')[0]} has ended: nothing more can match it.", bound.other
        other, ended = context.words.column_words(bound.other), context.words.moment(bound.other, end)
        now = context.words.moment(bound.other, watermark)
        return f"It expired when the watermark of {other} passed {ended} and reached {now}", bound.other

    def alone_reason(self, context: TraceContext, port: int, row: Row) -> str:
        return "It was emitted at once without a match, because it cannot match."

    def wait_reason(self, context: TraceContext, port: int, row: Row, row_id: int) -> str:
        bounds = [bound for bound in _own(context, port) if row[bound.column] is not None]
        if not bounds:
            return "It is kept until the input ends."
        bound = min(bounds, key=lambda candidate: _end(candidate, row))
        watermark, other = context.received.get(bound.other), context.words.column_words(bound.other)
        now = "there is none yet" if watermark is None else f"it is {context.words.moment(bound.other, watermark)} now"
        end = context.words.moment(bound.other, _end(bound, row))
        return f"It is kept until the watermark of {other} passes {end}; {now}."

    def distance(self, context: TraceContext, port: int, row: Row, other: Row) -> Distance | None:
        left, right = (row, other) if port == 0 else (other, row)
        join: IntervalJoinOperator = context.operator
        times = (event_time(left[join.left.time]), event_time(right[join.right.time]))
        if times[0] is None or times[1] is None:
            return None
        gap, name = times[1] - times[0], join.right.time
        off = gap - join.upper if gap > join.upper else gap - join.lower if gap < join.lower else 0
        if not off:
            return None
        text = f"its {context.words.short_column_words((join.left, join.right)[1 - port].time)} is"
        by = off if port == 0 else -off
        how = "too late" if by > 0 else "too early"
        return Distance(off, f"{text} {context.words.distance(name, abs(off))} {how}.")


def _own(context: TraceContext, port: int) -> list[Bound]:
    """The bounds that expire a port's rows."""
    side = context.operator.ports[port]
    return [
        b for b in (*context.operator.bounds, *context.operator.end_bounds) if b.column in (*side.times, *side.ends)
    ]


def _end(bound: Bound, row: Row) -> int:
    """The last watermark of the other side at which a row is alive."""
    return (event_time(row[bound.column]) or 0) + bound.constant - (1 if bound.strict else 0)


TRACE = _IntervalTracer()
