"""What explain says of window, synchronising and as-of joins."""

from __future__ import annotations

from watersmeet.catalog import Amount, Source
from watersmeet.duration import format_duration
from watersmeet.families.asof.relation import AnalyzedAsofJoin
from watersmeet.families.sync.relation import AnalyzedSyncJoin
from watersmeet.families.window.relation import AnalyzedWindow, AnalyzedWindowJoin
from watersmeet.plan.facts import Fact, conditions, keys, padding_in_words, rows_of
from watersmeet.plan.nodes import PRESERVED
from watersmeet.plan.relation import AnalyzedLeaf, AnalyzedQuery
from watersmeet.plan.words import amount_in_words, expression_in_words, word
from watersmeet.type_names import is_moment

_DISORDER = {
    "drop": "a late row, or a second one of the same time on its port, is dropped and counted",
    "error": "a late row, or a second one of the same time on its port, stops the query",
}


def window_facts(query: AnalyzedQuery, join: AnalyzedWindowJoin, names: dict[str, str]) -> list[Fact]:
    """What ends a row's stay on each side, in which order rows arrive, and what becomes of those that stay alone."""
    left, right = (names[side.alias] for side in (join.left, join.right))
    sides = ((left, join.left, join.windows[0]), (right, join.right, join.windows[1]))
    order = f"as delivered, all {left} rows of a batch before its {right} rows"
    if join.order[0] is not None and join.order[1] is not None:
        first, second = f"{join.left.alias}.{word(join.order[0])}", f"{join.right.alias}.{word(join.order[1])}"
        order = f"by {first} and {second} within a batch, {left} before {right} where they are equal"
    failing = "a {} row that fails meets nothing, and stays as long as any other"
    return [
        keys(join.keys),
        ("windows", [line for name, scan, window in sides for line in _stay(name, scan, window)]),
        ("discarded", _discarded(join)),
        ("arrival", [order]),
        ("alone", _alone(query, join, (left, right))),
        ("marked", ["each row with its _trigger, _seq and _last"] if join.punctuated else []),
        conditions("left only", join.left_only, failing.format("left")),
        conditions("right only", join.right_only, failing.format("right")),
        conditions("also", join.residual),
    ]


def _stay(name: str, scan: AnalyzedLeaf, window: AnalyzedWindow) -> list[str]:
    within = ", ".join(expression_in_words(expr) for expr in window.partition_by)
    of_same = f" of the same {within}" if within else ""
    match window.kind:
        case "count" if window.size == 0:
            lines = [f"{name} rows are not kept: each meets what is there when it arrives"]
        case "count":
            rows = "1 newer row" if window.size == 1 else f"{window.size} newer rows"
            lines = [f"{name} rows stay until {rows}{of_same} arrived on their side"]
        case "time":
            lines = [f"{name} rows stay until they are older than {format_duration(window.size)} by the wall clock"]
        case "delta":
            column = expression_in_words(window.column) if window.column is not None else ""
            size = _delta(window, scan.source)
            ahead = f"that is more than {size} ahead in {column}"
            lines = [f"{name} rows stay until a row{of_same} arrives on their side {ahead}"]
    return lines + _limit(name, window)


def _delta(window: AnalyzedWindow, source: Source) -> str:
    refs = () if window.column is None else window.column.refs
    field = source.field(refs[0].name) if refs and not refs[0].path else None
    is_time = field is not None and is_moment(field.type)
    return amount_in_words(Amount(window.size, is_interval=is_time))


def _limit(name: str, window: AnalyzedWindow) -> list[str]:
    limit = window.limit
    if limit is None:
        return []
    least = "the one that was added to the longest time ago is discarded"
    match limit.kind:
        case "age":
            return [f"a partition of {name} to which nothing was added for {format_duration(limit.size)} is discarded"]
        case "partitions":
            return [f"beyond {limit.size} partitions of {name}, {least}"]
        case "rows":
            return [f"beyond {limit.size} rows in all partitions of {name}, {least}"]


def _discarded(join: AnalyzedWindowJoin) -> list[str]:
    if all(window.limit is None for window in join.windows):
        return []
    emitted = "rows of discarded partitions come out as if they were evicted"
    return [emitted if join.emit_discarded else "rows of discarded partitions are only counted"]


def _alone(query: AnalyzedQuery, join: AnalyzedWindowJoin, names: tuple[str, str]) -> list[str]:
    lines: list[str] = []
    for port, side in enumerate(("left", "right")):
        if join.kind not in PRESERVED[side]:
            continue
        if join.unmatched[port]:
            lines.append(f"{names[port]} rows that met nothing go to {query.unmatched_into[port]} when they leave")
        else:
            padded = padding_in_words(join.paddings[1 - port])
            lines.append(f"{names[port]} rows that met nothing come out when they leave, with {padded}")
    return lines


def sync_facts(join: AnalyzedSyncJoin) -> list[Fact]:
    """The times that must be equal, and how long a row waits for them."""
    return [
        ("ports", [" = ".join(str(time) for time in join.times)]),
        ("kept", ["rows are kept until the watermark of another port has passed their time"]),
        ("disorder", [_DISORDER[join.disorder]]),
    ]


def asof_facts(join: AnalyzedAsofJoin, names: dict[str, str]) -> list[Fact]:
    """Which version a row gets, how long rows wait for it and how long versions are kept."""
    left = rows_of(join.left, names)
    return [
        keys(join.keys),
        ("version", [_version(join, names[join.right.alias])]),
        ("kept", _kept(join, left, names[join.right.alias])),
        ("default", [padding_in_words(join.defaults)] if join.defaults else []),
        conditions("left only", join.left_only, "a left row that fails has no version"),
        conditions("right only", join.right_only, "a right row that fails is no version"),
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


def _kept(join: AnalyzedAsofJoin, left: str, right: str) -> list[str]:
    mark = f"the watermark of {join.left_time} has passed"
    until = {
        "backward": f"a newer one of the same key is there and {mark} that",
        "forward": f"{mark} them",
        "nearest": f"a newer one of the same key is there and {mark} that",
    }[join.direction]
    bound = "" if join.tolerance is None or join.direction == "forward" else f", or {mark} them by {_distance(join)}"
    reach = "" if join.direction == "backward" or join.tolerance is None else f" by {_distance(join)}"
    waits = f"{left} rows wait until the watermark of {join.right_time} has passed {join.left_time}{reach}"
    return [waits, f"{right} rows are kept until {until}{bound}"]


def _distance(join: AnalyzedAsofJoin) -> str:
    mark = join.right.source.watermark(join.right_time.name)
    return amount_in_words(Amount(join.tolerance or 0, is_interval=mark is None or mark.lag.is_interval))
