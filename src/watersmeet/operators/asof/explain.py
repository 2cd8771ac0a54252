"""The `explain` facts of an as-of join, and the `why` reasons for its rows."""

from __future__ import annotations

from watersmeet.catalog import Amount
from watersmeet.logical.nodes import Relation
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.logical.words import (
    Fact,
    amount_in_words,
    condition_facts,
    conditions,
    keys,
    kind_in_words,
    padding_in_words,
    rows_of,
    texts,
)
from watersmeet.operators.asof.analyze import AnalyzedAsofJoin, ParsedAsofJoin
from watersmeet.operators.asof.kernel import AsofJoinOperator
from watersmeet.operators.core.changes import OP
from watersmeet.operators.core.operator import LEFT, RIGHT
from watersmeet.operators.core.rowwise import RemovedRow, Row
from watersmeet.operators.explainer import (
    Distance,
    FamilyTracer,
    JoinExplainer,
    Names,
    PairDistance,
    ParsedSection,
    TraceContext,
)
from watersmeet.operators.outcomes import OutcomeKind


def facts(query: AnalyzedQuery, join: AnalyzedAsofJoin, names: Names) -> list[Fact]:
    """The version that a row gets, how long rows wait for it and how long versions are retained."""
    left = rows_of(join.left, names)
    return [
        keys(join.keys),
        ("version", [_version(join, names[join.right.alias])]),
        ("kept", _retention(join, left, names[join.right.alias])),
        ("default", [padding_in_words(join.defaults)] if join.defaults else []),
        conditions("left only", join.left_only, "a left row that fails gets no version"),
        conditions("right only", join.right_only, "a left row whose version fails gets none"),
        conditions("also", join.residual, "a left row that fails with its version gets none"),
    ]


def _version(join: AnalyzedAsofJoin, right: str) -> str:
    most = "" if join.tolerance is None else f", at most {_distance(join)} away"
    match join.direction:
        case "backward":
            return (
                f"the latest {right} row with {join.right_time} {'<' if join.strict else '<='} {join.left_time}{most}"
            )
        case "forward":
            return (
                f"the earliest {right} row with {join.right_time} {'>' if join.strict else '>='} {join.left_time}{most}"
            )
        case "nearest":
            return f"the {right} row with the {join.right_time} closest to {join.left_time}{most}; of two, the earlier"


def _retention(join: AnalyzedAsofJoin, left: str, right: str) -> list[str]:
    passed = f"the watermark of {join.left_time} has passed"
    until = {
        "backward": f"a newer one with the same key exists and {passed} it",
        "forward": f"{passed} them",
        "nearest": f"a newer one with the same key exists and {passed} it",
    }[join.direction]
    bound = "" if join.tolerance is None or join.direction == "forward" else f", or {passed} them by {_distance(join)}"
    reach = "" if join.direction == "backward" or join.tolerance is None else f" by {_distance(join)}"
    waits = f"{left} rows wait until the watermark of {join.right_time} has passed {join.left_time}{reach}"
    return [waits, f"{right} rows are kept until {until}{bound}"]


def _distance(join: AnalyzedAsofJoin) -> str:
    watermark = join.right.source.watermark(join.right_time.name)
    return amount_in_words(Amount(join.tolerance or 0, is_interval=watermark is None or watermark.lag.is_interval))


def _describe_parsed(join: Relation) -> ParsedSection | None:
    if not isinstance(join, ParsedAsofJoin):
        return None
    clauses = (("match", join.match), ("as of", join.as_of))
    clause_facts = tuple((label, texts((expr,))) for label, expr in clauses if expr is not None)
    defaults = [padding_in_words(join.defaults)] if join.defaults else []
    heading = f"{'LEFT ' if join.kind == 'left' else ''}ASOF JOIN"
    return heading, (*clause_facts, *condition_facts(join), ("default", defaults))


EXPLAIN = JoinExplainer(
    lambda join: "ASOF JOIN" if join.kind == "inner" else f"{kind_in_words(join.kind)} ASOF JOIN",
    facts,
    why_filter_stays=lambda join, port, who: (
        f"{who} rows end earlier versions, whether they are shown or not" if port else ""
    ),
    parsed=_describe_parsed,
    pair_distance=lambda join: PairDistance("event time", join.tolerance),
)


class _AsofTracer(FamilyTracer):
    def non_null_columns(self, operator: AsofJoinOperator, port: int) -> tuple[str, ...]:
        return (operator.ports[port].time,)

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
        own = context.words.short_column_words(context.operator.ports[1 - port].time)
        text = f"its {own} is {context.words.distance(name, abs(gap))}"
        after = gap > 0 if port == LEFT else gap < 0
        if (join.direction == "backward" and gap > 0) or (join.direction == "forward" and gap < 0):
            return Distance(gap, f"{text} too {'late' if after else 'early'}.")
        if join.strict and gap == 0:
            return Distance(0, f"its {own} is the same, which does not count.")
        if join.tolerance is not None and abs(gap) > join.tolerance:
            return Distance(gap, f"{text} away, more than {context.words.distance(name, join.tolerance)}.")
        return None

    def preference(self, context: TraceContext, port: int, row: Row, other: Row) -> tuple[int, str]:
        question, version = (row, other) if port == LEFT else (other, row)
        gap = (context.time(RIGHT, version) or 0) - (context.time(LEFT, question) or 0)
        if port == RIGHT:
            return abs(gap), "another version was in force for it"
        nearest = "the nearest version" if context.operator.direction == "nearest" else "the version in force"
        return abs(gap), f"it was not {nearest}"


TRACE = _AsofTracer()
