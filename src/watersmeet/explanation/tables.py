"""What explain says of joins with tables, and of groups."""

from __future__ import annotations

from watersmeet.duration import format_duration
from watersmeet.families.changelog.relation import AnalyzedTableJoin
from watersmeet.families.lookup.relation import AnalyzedLookupJoin
from watersmeet.plan.facts import Fact, conditions, keys, rows_of, texts
from watersmeet.plan.nodes import LEFT_ONLY, PRESERVED, Side
from watersmeet.plan.relation import AnalyzedGroup


def lookup_facts(join: AnalyzedLookupJoin, names: dict[str, str]) -> list[Fact]:
    """What a stream row meets, how long rows of the table are kept, and what becomes of a row that finds none."""
    left, right = rows_of(join.left, names), rows_of(join.right, names)
    stream, table = (left, right) if join.table == "right" else (right, left)
    return [
        keys(join.keys),
        ("lookup", [f"each {stream} row once, with the {table} rows that are there when it comes"]),
        ("kept", [f"{table} rows are kept until they are replaced or deleted", *_waiting(join, stream, table)]),
        ("alone", _alone(join, stream, table)),
        ("load first", [f"{stream} rows are held back until {table} is caught up"] if join.load_first else []),
        conditions("left only", join.left_only, _failing_lookup(join, "left")),
        conditions("right only", join.right_only, _failing_lookup(join, "right")),
        conditions("also", join.residual),
        ("warning", [] if join.keys else [f"no equality: every {stream} row is compared with all of {table}"]),
    ]


def _is_preserving(join: AnalyzedLookupJoin) -> bool:
    stream: Side = "left" if join.table == "right" else "right"
    return join.kind in PRESERVED[stream]


def _alone(join: AnalyzedLookupJoin, stream: str, table: str) -> list[str]:
    if not _is_preserving(join):
        return [f"{stream} rows that find no {table} row are dropped, even if one comes later"]
    padded = f"{stream} rows that find no {table} row come out at once, with NULLs"
    later = {
        "reemit": f"they come out once more when their first {table} row comes",
        "ignore": f"{table} rows that come later change nothing",
    }
    return [padded, later[join.late_table]]


def _waiting(join: AnalyzedLookupJoin, stream: str, table: str) -> list[str]:
    """How long stream rows that found nothing are kept for a table row that comes later."""
    if not _is_preserving(join) or join.late_table == "ignore":
        return []
    time = [] if join.retention is None else [f"for {format_duration(join.retention)} by the wall clock"]
    count = [] if join.waiting is None else [f"the latest {join.waiting} of them at most"]
    limits = ", ".join([*time, *count]) or f"until a {table} row comes, however long that takes"
    return [f"{stream} rows that found none are kept {limits}"]


def _failing_lookup(join: AnalyzedLookupJoin, side: Side) -> str:
    if side == join.table:
        return f"a {side} row that fails is not found"
    return f"a {side} row that fails is {'padded at once' if _is_preserving(join) else 'dropped'}"


def table_facts(join: AnalyzedTableJoin, names: dict[str, str]) -> list[Fact]:
    """How long rows are kept, what becomes of those that meet none, and what an equality would save."""
    left, right = rows_of(join.left, names), rows_of(join.right, names)
    return [
        keys(join.keys),
        ("kept", [f"rows of {left} and {right} are kept until they are replaced or deleted"]),
        ("emitted", _emitted(join, left, right)),
        ("alone", _lonely(join, (left, right))),
        conditions("left only", join.left_only, _failing(join, "left")),
        conditions("right only", join.right_only, _failing(join, "right")),
        conditions("also", join.residual),
        ("warning", [] if join.keys else _nested(left, right)),
    ]


def _emitted(join: AnalyzedTableJoin, left: str, right: str) -> list[str]:
    match join.kind:
        case "semi":
            return [f"each {left} row as long as a {right} row meets it"]
        case "anti":
            return [f"each {left} row as long as no {right} row meets it"]
        case _:
            return ["every change of a pair: + where it comes about, - where one of its rows goes"]


def _lonely(join: AnalyzedTableJoin, names: tuple[str, str]) -> list[str]:
    sides: tuple[Side, Side] = ("left", "right")
    preserved = [name for side, name in zip(sides, names, strict=True) if join.kind in PRESERVED[side]]
    return [f"{name} rows that meet none are shown with NULLs, which the first match takes back" for name in preserved]


def _failing(join: AnalyzedTableJoin, side: Side) -> str:
    if join.kind == "anti" and side == "left":
        return "a left row that fails is shown"
    is_shown = join.kind in PRESERVED[side] and join.kind not in LEFT_ONLY
    return f"a {side} row that fails {'is shown with NULLs' if is_shown else 'meets nothing'}"


def _nested(left: str, right: str) -> list[str]:
    return [
        f"no equality: every batch compares what changed in {left} with all of {right}, and the other way round",
        "an equality would find the rows of one key only",
    ]


def group_facts(group: AnalyzedGroup) -> list[Fact]:
    """What makes a group, what is computed of it, and when it is forgotten."""
    by = texts(tuple(output.expr for output in group.by))
    shown = texts(tuple(output.expr for output in group.aggregates))
    return [("group by", by), ("aggregates", shown), ("groups", [_groups(group)])]


def _groups(group: AnalyzedGroup) -> str:
    if group.window is not None and group.time is not None:
        return f"a group is kept until the watermark of {group.time} passes the end of its window"
    if not group.by:
        return "one group, which is kept for ever"
    return "every group is kept for ever: state grows with the number of groups, not of rows"
