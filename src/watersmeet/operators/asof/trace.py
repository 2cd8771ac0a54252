"""What becomes of the rows of an as-of join: questions wait for certainty, versions until a newer one is in force."""

from __future__ import annotations

from watersmeet.fates.family import Distance, FamilyTracer, TraceContext
from watersmeet.fates.model import OutcomeKind
from watersmeet.operators.asof.kernel import AsofJoinOperator
from watersmeet.operators.core.changes import OP
from watersmeet.operators.core.operator import LEFT, RIGHT
from watersmeet.operators.core.rowwise import RemovedRow, Row


class _AsofTracer(FamilyTracer):
    def non_null_columns(self, operator: AsofJoinOperator, port: int) -> tuple[str, ...]:
        return (operator.sides[port].time,)

    def unmatchable_reason(self, context: TraceContext, port: int, row: Row) -> tuple[OutcomeKind, str] | None:
        reason = super().unmatchable_reason(context, port, row)
        if reason is None and port == RIGHT and row.get(OP, 1) < 0:
            return "unfit", "It deletes its key: from its time on, there is no version."
        return reason

    def expiry(self, context: TraceContext, port: int, row: Row, row_id: int) -> int | None:
        time, join = context.time(port, row), context.operator
        if port == RIGHT or time is None:
            return None
        return time if join.direction == "backward" else time + (join.tolerance or 0)

    def removal_reason(self, context: TraceContext, gone: RemovedRow) -> tuple[str, str | None]:
        if gone.reason == "expired":
            text = "It expired: no row that can still arrive needs this version"
            return (f"{text}, which was replaced" if gone.by is not None else text), context.operator.left.time
        if gone.port == RIGHT and gone.row[context.operator.right.time] is None:
            return "Its time is NULL, so it is not a version.", None
        if gone.port == RIGHT and gone.by is not None:
            return "A later change of its key has the same time and replaces it.", None
        if gone.port == RIGHT and context.operator.max_rows is None:
            return "Its key already had a version with that time, and the first one counts.", None
        return f"The state was over its limit of {context.operator.max_rows} rows, and its time was the earliest.", None

    def alone_reason(self, context: TraceContext, port: int, row: Row) -> str:
        watermark, name = context.received.get(context.operator.right.time), context.operator.right.time
        if watermark is None:
            return "It was emitted without a match, because it cannot match."
        state = "has ended" if context.words.is_end(watermark) else f"is {context.words.moment(name, watermark)}"
        reason = f"the watermark of {context.words.column_words(name)} {state}, and no version fits"
        return f"It was emitted without a match: {reason}."

    def outcome_without_output(self, context: TraceContext, port: int, row: Row) -> tuple[OutcomeKind, str]:
        return "unmatched", "No version fits, and the join only shows rows that have one."

    def wait_reason(self, context: TraceContext, port: int, row: Row, row_id: int) -> str:
        if port == RIGHT and self.unmatchable_reason(context, port, row) is not None:
            return "It is kept, because it ends the previous version."
        if port == RIGHT:
            return f"It is a version that rows of {context.names[LEFT]} can still match."
        end, name = self.expiry(context, port, row, row_id), context.operator.right.time
        watermark = context.received.get(name)
        now = "there is none yet" if watermark is None else f"it is {context.words.moment(name, watermark)} now"
        passed = "" if end is None else f" passes {context.words.moment(name, end)}"
        return f"It waits until the watermark of {context.words.column_words(name)}{passed}; {now}."

    def distance(self, context: TraceContext, port: int, row: Row, other: Row) -> Distance | None:
        question, version = (row, other) if port == LEFT else (other, row)
        join, name = context.operator, context.operator.right.time
        times = context.time(LEFT, question), context.time(RIGHT, version)
        if times[0] is None or times[1] is None:
            return None
        gap = times[1] - times[0]
        own = context.words.short_column_words(context.operator.sides[1 - port].time)
        text = f"its {own} is {context.words.distance(name, abs(gap))}"
        after = gap > 0 if port == LEFT else gap < 0
        if (join.direction == "backward" and gap > 0) or (join.direction == "forward" and gap < 0):
            return Distance(gap, f"{text} too {'late' if after else 'early'}.")
        if join.strict and gap == 0:
            return Distance(0, f"its {own} is the same, which does not count.")
        if join.tolerance is not None and abs(gap) > join.tolerance:
            return Distance(gap, f"{text} away, more than {context.words.distance(name, join.tolerance)}.")
        return None


TRACE = _AsofTracer()
