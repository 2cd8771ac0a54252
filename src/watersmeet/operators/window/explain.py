"""The `explain` facts of a window join, and the `why` reasons for its rows."""

from __future__ import annotations

from watersmeet.catalog import Amount, Source
from watersmeet.duration import format_count, format_duration
from watersmeet.logical.nodes import PRESERVED, Clause
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.logical.relation import AnalyzedLeaf
from watersmeet.logical.words import (
    Fact,
    amount_in_words,
    conditions,
    expression_in_words,
    keys,
    kind_in_words,
    padding_in_words,
    texts,
    word,
)
from watersmeet.operators.core.rowwise import RemovedRow, Row
from watersmeet.operators.explainer import FamilyTracer, JoinExplainer, Names, PairDistance, TraceContext
from watersmeet.operators.outcomes import Axis
from watersmeet.operators.window.kernel import WindowJoinOperator, WindowSpec
from watersmeet.operators.window.relation import LIMITS, AnalyzedWindow, AnalyzedWindowJoin, Pad, WindowClause
from watersmeet.schema import is_moment


def facts(query: AnalyzedQuery, join: AnalyzedWindowJoin, names: Names) -> list[Fact]:
    """The eviction rule of each side, the order of arrival, and the treatment of unmatched rows."""
    left, right = (names[side.alias] for side in (join.left, join.right))
    sides = ((left, join.left, join.windows[0]), (right, join.right, join.windows[1]))
    order = f"as delivered, all {left} rows of a batch before its {right} rows"
    if join.order[0] is not None and join.order[1] is not None:
        first, second = f"{join.left.alias}.{word(join.order[0])}", f"{join.right.alias}.{word(join.order[1])}"
        order = f"by {first} and {second} within a batch, {left} before {right} where they are equal"
    failing = "a {} row that fails matches nothing, and stays in its window like any other"
    return [
        keys(join.keys),
        ("windows", [line for name, scan, window in sides for line in _stay(name, scan, window)]),
        ("discarded", _discard_lines(join)),
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
            lines = [f"{name} rows are not kept: each is matched once, when it arrives"]
        case "count":
            rows = format_count(window.size, "newer row")
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
    least = "the least recently used one is discarded"
    match limit.kind:
        case "age":
            return [f"a partition of {name} without a new row for {format_duration(limit.size)} is discarded"]
        case "partitions":
            return [f"beyond {format_count(limit.size, 'partition')} of {name}, {least}"]
        case "rows":
            return [f"beyond {format_count(limit.size, 'row')} in all partitions of {name}, {least}"]


def _discard_lines(join: AnalyzedWindowJoin) -> list[str]:
    if all(window.limit is None for window in join.windows):
        return []
    emitted = "rows of discarded partitions are emitted like evicted rows"
    return [emitted if join.emit_discarded else "rows of discarded partitions are only counted"]


def _alone(query: AnalyzedQuery, join: AnalyzedWindowJoin, names: tuple[str, str]) -> list[str]:
    lines: list[str] = []
    for port, side in enumerate(("left", "right")):
        if join.kind not in PRESERVED[side]:
            continue
        if join.unmatched[port]:
            lines.append(f"{names[port]} rows without a match go to {query.sinks_of_unmatched[port]} when they leave")
        else:
            padded = padding_in_words(join.paddings[1 - port])
            lines.append(f"{names[port]} rows without a match are emitted when they leave, with {padded}")
    return lines


def _window_facts(window: Clause | None) -> tuple[Fact, ...]:
    if not isinstance(window, WindowClause):
        return (("window", []),)
    column = f" {expression_in_words(window.column)}" if window.column is not None else ""
    parts = [f"{window.kind.upper()}{column} {amount_in_words(window.amount)}"]
    parts += [f"partition by {', '.join(texts(window.partition_by))}"] * bool(window.partition_by)
    if window.limit is not None:
        parts.append(f"{LIMITS[window.limit.kind]} {amount_in_words(window.limit.amount)}")
    return (("window", [", ".join(parts)]),)


def _pad_facts(clauses: tuple[Clause, ...]) -> tuple[Fact, ...]:
    pads = (clause for clause in clauses if isinstance(clause, Pad))
    return (("pad", [f"{pad.side} with {padding_in_words(pad.values)}" for pad in pads]),)


EXPLAIN = JoinExplainer(
    lambda join: f"{kind_in_words(join.kind)} JOIN of windows",
    facts,
    why_filter_stays=lambda join, port, who: f"{who} rows count in their window, whether they are shown or not",
    parsed_source_facts=_window_facts,
    parsed_join_facts=_pad_facts,
    pair_distance=lambda join: (
        PairDistance("clock", max(one.size for one in join.windows)) if join.is_by_clock else PairDistance("arrivals")
    ),
)


class _WindowTracer(FamilyTracer):
    by_key = False

    def axis(self, operator: WindowJoinOperator) -> Axis:
        return "clock" if all(window.kind == "time" for window in operator.windows) else "arrivals"

    def expiry(self, context: TraceContext, port: int, row: Row, row_id: int) -> int | None:
        window, clock = context.operator.windows[port], context.numbers.get(row_id, (0, None))[1]
        if self.axis(context.operator) == "clock" and clock is not None:
            return clock + window.size
        return None

    def removal_reason(self, context: TraceContext, gone: RemovedRow) -> tuple[str, str | None]:
        window, name = context.operator.windows[gone.port], context.names[gone.port]
        if gone.reason == "dropped":
            return f"The state was over its limit of {context.operator.max_rows} rows, and it was the oldest.", None
        if gone.reason == "discarded":
            return f"Its whole partition was discarded: the window of {name} has a limit on partitions.", None
        if gone.by is gone.row:
            return f"The window of {name} stores no rows, so it left at once.", None
        if gone.by is None:
            return (
                f"The window of {name} keeps rows for {_size(context, window)} by the wall clock, and that had passed.",
                None,
            )
        return f"The window of {name} holds {_size(context, window)}, and it was evicted", None

    def wait_reason(self, context: TraceContext, port: int, row: Row, row_id: int) -> str:
        size = _size(context, context.operator.windows[port])
        return f"It is in the window of {context.names[port]}, which holds {size}."


def _size(context: TraceContext, window: WindowSpec) -> str:
    each = " of each partition" if window.partition else ""
    if window.kind == "count":
        return f"{window.size} rows{each}" if window.size != 1 else f"one row{each}"
    if window.column is not None:
        distance = context.words.distance(window.column, window.size)
        return f"rows{each} whose {context.words.column_words(window.column)} differ by {distance} at most"
    return context.words.duration(window.size)


TRACE = _WindowTracer()
