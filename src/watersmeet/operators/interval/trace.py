"""What becomes of the rows of an interval join: they live until a watermark proves that nothing in bounds can come."""

from __future__ import annotations

from watersmeet.fates.family import Distance, FamilyTracer, TraceContext
from watersmeet.operators.core.rowwise import RemovedRow, Row, event_time
from watersmeet.operators.core.watermarks import Bound
from watersmeet.operators.interval.kernel import IntervalJoinOperator


class _IntervalTracer(FamilyTracer):
    def non_null_columns(self, operator: IntervalJoinOperator, port: int) -> tuple[str, ...]:
        side = operator.sides[port]
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
    """The bounds that end the lives of a port's rows."""
    side = context.operator.sides[port]
    return [
        b for b in (*context.operator.bounds, *context.operator.end_bounds) if b.column in (*side.times, *side.ends)
    ]


def _end(bound: Bound, row: Row) -> int:
    """The last mark of the other side at which a row is alive."""
    return (event_time(row[bound.column]) or 0) + bound.constant - (1 if bound.strict else 0)


TRACE = _IntervalTracer()
