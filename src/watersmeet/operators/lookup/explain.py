"""The `explain` facts of a lookup join, and the `why` reasons for its rows."""

from __future__ import annotations

from watersmeet.duration import format_duration
from watersmeet.logical.nodes import PRESERVED, Side
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.logical.words import Fact, conditions, keys, kind_in_words, rows_of
from watersmeet.operators.core.rowwise import RemovedRow, Row
from watersmeet.operators.explainer import FamilyTracer, JoinExplainer, Names, PairDistance, TraceContext
from watersmeet.operators.lookup.analyze import AnalyzedLookupJoin
from watersmeet.operators.lookup.kernel import LookupJoinOperator
from watersmeet.operators.outcomes import OutcomeKind


def facts(query: AnalyzedQuery, join: AnalyzedLookupJoin, names: Names) -> list[Fact]:
    """The rows that a stream row matches, how long table rows are retained, and what happens to an unmatched row."""
    left, right = rows_of(join.left, names), rows_of(join.right, names)
    stream, table = (left, right) if join.table == "right" else (right, left)
    return [
        keys(join.keys),
        ("rows", [_rows(join, stream, table)]),
        ("kept", [f"{table} rows are kept until they are replaced or deleted", *_wait_remark(join, stream, table)]),
        ("alone", _alone(join, stream, table)),
        ("load first", [f"{stream} rows are held back until {table} is loaded"] if join.load_first else []),
        conditions("left only", join.left_only, _failure_remark(join, "left")),
        conditions("right only", join.right_only, _failure_remark(join, "right")),
        conditions("also", join.residual),
        ("warning", [] if join.keys else [f"no equality: every {stream} row is compared with all of {table}"]),
    ]


def _rows(join: AnalyzedLookupJoin, stream: str, table: str) -> str:
    match join.kind:
        case "semi":
            return f"each {stream} row once, if a {table} row matches it when it arrives"
        case "anti":
            return f"each {stream} row once, if no {table} row matches it when it arrives"
        case _:
            return f"each {stream} row once, with the {table} rows that exist when it arrives"


def _is_preserving(join: AnalyzedLookupJoin) -> bool:
    stream: Side = "left" if join.table == "right" else "right"
    return join.kind in PRESERVED[stream]


def _alone(join: AnalyzedLookupJoin, stream: str, table: str) -> list[str]:
    if join.kind == "anti":
        return [f"{stream} rows without a {table} row are emitted at once", f"later {table} rows change nothing"]
    if not _is_preserving(join):
        return [f"{stream} rows without a {table} row are dropped, even if one arrives later"]
    padded = f"{stream} rows without a {table} row are emitted at once, with NULLs"
    later = {
        "reemit": f"they are emitted again when their first {table} row arrives",
        "ignore": f"{table} rows that arrive later change nothing",
    }
    return [padded, later[join.late_table]]


def _wait_remark(join: AnalyzedLookupJoin, stream: str, table: str) -> list[str]:
    """The time that unmatched stream rows wait for a later table row."""
    if not _is_preserving(join) or join.late_table == "ignore":
        return []
    time = [] if join.retention is None else [f"for {format_duration(join.retention)} by the wall clock"]
    count = [] if join.waiting is None else [f"the latest {join.waiting} of them at most"]
    limits = ", ".join([*time, *count]) or f"until a {table} row arrives, however long that takes"
    return [f"{stream} rows without a match are kept {limits}"]


def _failure_remark(join: AnalyzedLookupJoin, side: Side) -> str:
    if side == join.table:
        return f"a {side} row that fails is not found"
    outcome = "emitted at once" if join.kind == "anti" else "padded at once" if _is_preserving(join) else "dropped"
    return f"a {side} row that fails is {outcome}"


EXPLAIN = JoinExplainer(
    lambda join: f"{kind_in_words(join.kind)} JOIN of a stream with a table",
    facts,
    pair_distance=lambda join: PairDistance(
        why="A lookup uses the table as it is when a row arrives: table rows have no event time to compare."
    ),
)


class _LookupTracer(FamilyTracer):
    def removal_reason(self, context: TraceContext, gone: RemovedRow) -> tuple[str, str | None]:
        if gone.reason == "evicted":
            waited = context.words.duration(context.operator.retention or 0)
            return f"It waited for a table row for {waited}, which is the limit.", None
        return f"More than {context.operator.waiting} rows waited for a table row, which is the limit.", None

    def alone_reason(self, context: TraceContext, port: int, row: Row) -> str:
        return f"It was emitted without a match: {context.names[context.operator.table]} had no row for it."

    def outcome_without_output(self, context: TraceContext, port: int, row: Row) -> tuple[OutcomeKind, str]:
        return (
            "unmatched",
            f"No row of {context.names[context.operator.table]} matched it, and the join only shows pairs.",
        )

    def wait_reason(self, context: TraceContext, port: int, row: Row, row_id: int) -> str:
        join: LookupJoinOperator = context.operator
        if port == join.table:
            return "It is in the table."
        return f"It waits for a row of {context.names[join.table]}."


TRACE = _LookupTracer()
