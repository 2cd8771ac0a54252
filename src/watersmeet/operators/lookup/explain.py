"""What explain says of a lookup join."""

from __future__ import annotations

from watersmeet.duration import format_duration
from watersmeet.explanation.family import JoinExplainer, Names, PairDistance
from watersmeet.operators.lookup.analyze import AnalyzedLookupJoin
from watersmeet.plan.facts import Fact, conditions, keys, rows_of
from watersmeet.plan.nodes import PRESERVED, Side
from watersmeet.plan.query import AnalyzedQuery
from watersmeet.plan.words import kind_in_words


def facts(query: AnalyzedQuery, join: AnalyzedLookupJoin, names: Names) -> list[Fact]:
    """What a stream row meets, how long rows of the table are kept, and what becomes of a row that finds none."""
    left, right = rows_of(join.left, names), rows_of(join.right, names)
    stream, table = (left, right) if join.table == "right" else (right, left)
    return [
        keys(join.keys),
        ("rows", [f"each {stream} row once, with the {table} rows that exist when it arrives"]),
        ("kept", [f"{table} rows are kept until they are replaced or deleted", *_wait_remark(join, stream, table)]),
        ("alone", _alone(join, stream, table)),
        ("load first", [f"{stream} rows are held back until {table} is loaded"] if join.load_first else []),
        conditions("left only", join.left_only, _failure_remark(join, "left")),
        conditions("right only", join.right_only, _failure_remark(join, "right")),
        conditions("also", join.residual),
        ("warning", [] if join.keys else [f"no equality: every {stream} row is compared with all of {table}"]),
    ]


def _is_preserving(join: AnalyzedLookupJoin) -> bool:
    stream: Side = "left" if join.table == "right" else "right"
    return join.kind in PRESERVED[stream]


def _alone(join: AnalyzedLookupJoin, stream: str, table: str) -> list[str]:
    if not _is_preserving(join):
        return [f"{stream} rows without a {table} row are dropped, even if one arrives later"]
    padded = f"{stream} rows without a {table} row are emitted at once, with NULLs"
    later = {
        "reemit": f"they are emitted again when their first {table} row arrives",
        "ignore": f"{table} rows that arrive later change nothing",
    }
    return [padded, later[join.late_table]]


def _wait_remark(join: AnalyzedLookupJoin, stream: str, table: str) -> list[str]:
    """How long stream rows that found nothing are kept for a table row that comes later."""
    if not _is_preserving(join) or join.late_table == "ignore":
        return []
    time = [] if join.retention is None else [f"for {format_duration(join.retention)} by the wall clock"]
    count = [] if join.waiting is None else [f"the latest {join.waiting} of them at most"]
    limits = ", ".join([*time, *count]) or f"until a {table} row arrives, however long that takes"
    return [f"{stream} rows without a match are kept {limits}"]


def _failure_remark(join: AnalyzedLookupJoin, side: Side) -> str:
    if side == join.table:
        return f"a {side} row that fails is not found"
    return f"a {side} row that fails is {'padded at once' if _is_preserving(join) else 'dropped'}"


EXPLAIN = JoinExplainer(
    lambda join: f"{kind_in_words(join.kind)} JOIN of a stream with a table",
    facts,
    pair_distance=lambda join: PairDistance(
        why="A lookup uses the table as it is when a row arrives: table rows have no event time to compare."
    ),
)
