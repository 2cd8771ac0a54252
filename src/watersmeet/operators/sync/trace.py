"""What becomes of the rows of a sync join: they wait until all ports have a row of their time, or one has passed it."""

from __future__ import annotations

from watersmeet.fates.family import FamilyTracer, TraceContext
from watersmeet.operators.core.rowwise import RemovedRow, Row, event_time, is_below
from watersmeet.operators.sync.kernel import SyncJoinOperator


class _SyncTracer(FamilyTracer):
    by_key = False
    unmatched_cause = "no such time"

    def equal_columns(self, operator: SyncJoinOperator, port: int) -> tuple[str, ...]:
        return (operator.ports[port].time,)

    def late_reason(self, context: TraceContext, port: int, row: Row) -> tuple[str, str | None]:
        name = context.operator.ports[port].time
        time = event_time(row[name])
        if time is None:
            return "Its time is NULL, so it matches no row of another port.", None
        if is_below(time, context.received.get(name)):
            return super().late_reason(context, port, row)
        return f"Its port already had a row with the time {context.words.moment(name, time)}.", None

    def expiry(self, context: TraceContext, port: int, row: Row, row_id: int) -> int | None:
        return context.time(port, row)

    def removal_reason(self, context: TraceContext, gone: RemovedRow) -> tuple[str, str | None]:
        if gone.reason == "dropped":
            return (
                f"The state was over its limit of {context.operator.max_rows} rows, and its time was the earliest.",
                None,
            )
        watermark, other = context.received[gone.column], gone.column.split(".")[0]
        if context.words.is_end(watermark):
            return f"The input of {other} has ended without a row with its time.", gone.column
        moment = context.words.moment(gone.column, watermark)
        passed = f"the watermark of {context.words.column_words(gone.column)} is {moment}"
        return f"No row with its time has arrived from {other}, and none can: {passed}", gone.column

    def wait_reason(self, context: TraceContext, port: int, row: Row, row_id: int) -> str:
        others = [context.words.column_words(name) for n, name in enumerate(context.operator.times) if n != port]
        return f"It waits for rows with its time from {' and '.join(name.split('.')[0] for name in others)}."


TRACE = _SyncTracer()
