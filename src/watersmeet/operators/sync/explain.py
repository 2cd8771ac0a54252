"""The `explain` facts of a sync join, and the `why` reasons for its rows."""

from __future__ import annotations

from watersmeet.logical.nodes import Relation
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.logical.words import Fact
from watersmeet.operators.core.rowwise import RemovedRow, Row, event_time, is_below
from watersmeet.operators.explainer import FamilyTracer, JoinExplainer, Names, PairDistance, ParsedSection, TraceContext
from watersmeet.operators.sync.analyze import AnalyzedSyncJoin, ParsedSyncJoin
from watersmeet.operators.sync.kernel import SyncJoinOperator

_DISORDER = {
    "drop": "a late row, or a second row with the same time on its port, is dropped and counted",
    "error": "a late row, or a second row with the same time on its port, stops the query",
}


def facts(query: AnalyzedQuery, join: AnalyzedSyncJoin, names: Names) -> list[Fact]:
    """The times that must be equal, and how long a row waits for them."""
    return [
        ("ports", [" = ".join(str(time) for time in join.times)]),
        ("kept", ["rows are kept until the watermark of another port has passed their time"]),
        ("disorder", [_DISORDER[join.disorder]]),
    ]


def _describe_parsed(join: Relation) -> ParsedSection | None:
    return ("SYNC JOIN", ()) if isinstance(join, ParsedSyncJoin) else None


EXPLAIN = JoinExplainer(
    lambda join: "SYNC JOIN",
    facts,
    why_filter_stays=lambda join, port, who: f"{who} rows advance time, whether they are shown or not",
    parsed=_describe_parsed,
    pair_distance=lambda join: PairDistance(why="Rows that match in a SYNC JOIN have equal times."),
)


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
