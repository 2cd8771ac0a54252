"""Build the script and its sources for a call of the Python API, from the arguments of the call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from watersmeet import arguments as given
from watersmeet.arguments import Duration, check_choice, check_column, check_frame, check_text
from watersmeet.catalog import Source
from watersmeet.logical.expressions import Expr, column
from watersmeet.logical.nodes import (
    PRESERVED,
    REPEATED_ROWS,
    Clause,
    Item,
    Join,
    JoinKind,
    Query,
    Relation,
    RowNumber,
    Scan,
    Script,
    Setting,
    Side,
    SideOutput,
    SortKey,
    Star,
    Values,
    View,
    Within,
)
from watersmeet.operators.asof.analyze import ParsedAsofJoin
from watersmeet.operators.core.operator import Overflow
from watersmeet.operators.sync.analyze import ParsedSyncJoin
from watersmeet.operators.window.parse import read_window
from watersmeet.operators.window.relation import Pad
from watersmeet.parser import read_expression
from watersmeet.parser.ranks import Ranking, Ranks, rank_rows
from watersmeet.physical import LateRows, Limits
from watersmeet.queries import read_script
from watersmeet.schema import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KINDS: dict[str, JoinKind] = {
    "inner": "inner",
    "left": "left", "leftouter": "left",
    "right": "right", "rightouter": "right",
    "full": "full", "outer": "full", "fullouter": "full",
    "semi": "semi", "leftsemi": "semi", "anti": "anti", "leftanti": "anti",
}  # fmt: skip
"""Spark's own names of the kinds; underscores do not matter."""

OLD_VALUES: Mapping[str, Mapping[str, str]] = {
    "late": {"kept": "side_output"},
    "unmatched": {"apart": "side_output"},
}
"""The new values of arguments by their deprecated ones."""

LEFT: Side = "left"
RIGHT: Side = "right"
_NAME = re.compile(r"\w+")

Call = tuple[Script, dict[str, Source]]
"""A script with one query, and its sources by name."""

On = str | Sequence[str]
"""A condition over ``left`` and ``right``, or the name or names of columns that both have; nothing: no condition."""

PadWith = Literal["nulls", "zeros"] | Mapping[str, Any]
"""The values of a side's columns next to an unmatched row: NULL, zeros, or a value for each column."""

WithinTime = Duration | tuple[Duration, Duration]
"""The longest time between two rows that meet; of a pair, how far the right one may lie before and after the left."""

Direction = Literal["backward", "forward", "nearest"]
"""The version a row gets: the latest at or before its time, the earliest at or after it, or the closer of both."""


@dataclass(frozen=True)
class EventTime:
    """The event time of a side as arguments give it: its column, its lag, and after how long the side is idle."""

    column: str | None = None
    lag: Duration | None = None
    idle: Duration | None = None

    def source(self, name: str, frame: DataFrame, prefix: str = "") -> Source:
        """A DataFrame as a source of that name with this event time; ``prefix`` is what its arguments begin with."""
        from watersmeet.spark.compile.frames import is_inlined
        from watersmeet.spark.run.build import source_of

        check_frame(name, frame)
        check_column(f"{prefix}time", self.column)
        lag = given.lag(f"{prefix}lag", self.lag)
        idle = given.idle(f"{prefix}idle", self.idle)
        if idle is not None and is_inlined(frame):
            hint = f"pass {prefix}idle to the call that reads the source."
            raise given.wrong(f"{prefix}idle", self.idle, "only a source can be idle, not the result of a call", hint)
        return source_of(name, frame, self.column, lag, idle)

    def scan(self, name: str, frame: DataFrame, prefix: str = "", clause: Clause | None = None) -> Scan:
        """Build the scan of a DataFrame; of an earlier result, without the watermarks that these arguments replace."""
        from watersmeet.spark.compile.frames import is_inlined, result_of

        result = result_of(frame)
        if result is None or not is_inlined(frame) or (self.column is None and self.lag is None):
            return Scan(name, name, clause=clause)
        source = self.source(name, frame, prefix)
        own_columns = {watermark.column for watermark in result.watermarks} if self.lag is None else set[str]()
        watermarks = tuple(watermark for watermark in source.watermarks if watermark.column not in own_columns)
        times = tuple(watermark.column for watermark in source.watermarks)
        return Scan(name, name, clause=clause, watermarks=watermarks, times=times)


class StateOptions(TypedDict, total=False):
    """Options of every join: the limit of its state and what happens beyond it, and the number of shards."""

    max_rows: int | None
    overflow: Overflow
    shards: int | None


class StreamOptions(StateOptions, total=False):
    """Options of a join of two event times: how late and how silent a side may be, and watermarks from outside.

    ``marks`` is the old name of ``watermarks``, and "kept" the old name of "side_output".
    """

    left_lag: Duration | None
    right_lag: Duration | None
    left_idle: Duration | None
    right_idle: Duration | None
    late: LateRows | Literal["kept"]
    watermarks: DataFrame | None
    marks: DataFrame | None


class RowsOptions(StateOptions, total=False):
    """Options of a call over one DataFrame: its event time, and watermarks from outside."""

    time: str | None
    lag: Duration | None
    idle: Duration | None
    watermarks: DataFrame | None


class WindowJoinOptions(StateOptions, total=False):
    """Options of a window join: what of discarded partitions comes out, and whether triggers are shown."""

    discarded: Literal["dropped", "emitted"]
    trigger: Literal["hidden", "shown"]
    order_by: str | tuple[str | None, str | None] | None


Times = tuple[EventTime, EventTime]
NO_TIMES: Times = (EventTime(), EventTime())


def event_time(options: RowsOptions) -> EventTime:
    """The event time that options of a call over one DataFrame name."""
    return EventTime(options.get("time"), options.get("lag"), options.get("idle"))


def column_names(argument: str, names: str | Sequence[str]) -> tuple[str, ...]:
    """The columns that an argument names: one, or several."""
    listed = (names,) if isinstance(names, str) else tuple(names)
    for name in listed:
        check_column(argument, name)
    return listed


def event_times(left: str | None, right: str | None, options: StreamOptions) -> Times:
    """The event times of both sides: their columns, and what options say of them."""
    return (
        EventTime(left, options.get("left_lag"), options.get("left_idle")),
        EventTime(right, options.get("right_lag"), options.get("right_idle")),
    )


def interval_call(
    left: DataFrame, right: DataFrame, on: On, within: WithinTime | None, how: str, times: Times = NO_TIMES
) -> Call:
    """Build the script of `ws.join`."""
    sources = _sources(left, right, times)
    text, condition, using = _condition(on)
    span = None if within is None else _within(within)
    sides = _scans(left, right, times)
    joined = Join(*sides, kind_of(how), on=condition, using=using, within=span)
    return _call(joined, text), sources


@dataclass(frozen=True)
class WindowOptions:
    """The options of a window join; see `watersmeet.window_join`."""

    left_pad: PadWith = "nulls"
    right_pad: PadWith = "nulls"
    unmatched: Literal["padded", "side_output", "apart"] = "padded"
    discarded: Literal["dropped", "emitted"] = "dropped"
    trigger: Literal["hidden", "shown"] = "hidden"
    order_by: str | tuple[str | None, str | None] | None = None


def window_call(
    left: DataFrame, right: DataFrame, on: On, windows: tuple[str, str], how: str, options: WindowOptions
) -> Call:
    """Build the script of `ws.window_join`."""
    sources = _sources(left, right, NO_TIMES)
    text, condition, using = _condition(on)
    kind = kind_of(how)
    for name, window in zip((LEFT, RIGHT), windows, strict=True):
        check_text(f"{name}_window", window, '"COUNT 100"')
    scans = [
        Scan(name, name, clause=read_window(window, f"{name}_window"))
        for name, window in zip((LEFT, RIGHT), windows, strict=True)
    ]
    pads = (_pad("left", options.left_pad), _pad("right", options.right_pad))
    joined = Join(
        scans[0], scans[1], kind, on=condition, using=using, clauses=tuple(pad for pad in pads if pad is not None)
    )
    punctuation_columns = ("_trigger", "_seq", "_last") if options.trigger == "shown" else ()
    script = _call(joined, text, tuple(Item(column((name,))) for name in punctuation_columns))
    sides = [side for side in (LEFT, RIGHT) if options.unmatched == "side_output" and kind in PRESERVED[side]]
    side_outputs = tuple(
        SideOutput(f"UNMATCHED {side.upper()}", f"_unmatched_{side}", f"unmatched_{side}") for side in sides
    )
    query = replace(script.queries[0], side_outputs=side_outputs)
    emitted = "true" if options.discarded == "emitted" else "false"
    orders = given.pair("order_by", options.order_by)
    ordered = {name: replace(sources[name], order=by) for name, by in zip((LEFT, RIGHT), orders, strict=True)}
    settings = (Setting("watersmeet.window.emit_discarded", emitted),)
    return replace(script, queries=(query,), settings=settings), ordered


def sync_call(frames: Mapping[str, DataFrame], time: EventTime, disorder: Literal["drop", "error"]) -> Call:
    """Build the script of `ws.sync_join`."""
    sources = {name: time.source(name, frame) for name, frame in frames.items()}
    joined = ParsedSyncJoin(tuple(time.scan(name, frame) for name, frame in frames.items()))
    script = replace(_call(joined), settings=(Setting("watersmeet.sync.disorder", disorder),))
    return script, sources


def asof_call(
    left: DataFrame,
    right: DataFrame,
    on: On,
    how: str,
    match: tuple[Direction, Literal["allowed", "excluded"]],
    tolerance: Duration | None,
    default: Mapping[str, Any],
    times: Times,
) -> Call:
    """Build the script of `ws.asof_join`."""
    sources = _sources(left, right, times)
    text, condition, using = _condition(on)
    own, version = (_time(sources[name], name) for name in (LEFT, RIGHT))
    direction, exact = match
    if direction == "nearest" and exact == "excluded":
        hint = 'leave it out, or use direction="backward" or direction="forward".'
        reason = "the nearest version may have the same time"
        raise given.wrong("exact", exact, reason, hint)
    comparison = {"backward": ">", "forward": "<"}.get(direction, "") + ("=" if exact == "allowed" else "")
    match_text = f"nearest({own}, {version})" if direction == "nearest" else f"{own} {comparison} {version}"
    span = None if tolerance is None else Within(given.amount("tolerance", tolerance))
    joined = ParsedAsofJoin(
        *_scans(left, right, times), kind_of(how), on=condition, using=using, within=span,
        match=read_expression(match_text), defaults=_values(given.values("default", default)),
    )  # fmt: skip
    return _call(joined, text), sources


def kind_of(how: str) -> JoinKind:
    """The kind of join that a name of Spark's stands for."""
    hint = 'use "inner", "left", "right", "full", "semi" or "anti".'
    check_text("how", how, '"left"')
    kind = KINDS.get(how.lower().replace("_", ""))
    if kind is None:
        raise given.wrong("how", how, "it is not a kind of join", hint)
    return kind


def limits(options: StateOptions) -> Limits | None:
    """The largest number of stored rows, if it is limited."""
    max_rows, overflow = options.get("max_rows"), options.get("overflow", "fail")
    check_choice("overflow", overflow, ("fail", "drop_oldest"))
    return None if max_rows is None else Limits(given.positive("max_rows", max_rows), overflow)


ROWS = "rows"
"""The name of the only DataFrame of a call."""

FirstBy = Literal["arrival", "time"]
"""The row that comes out of several with a key: the first to arrive, at once, or the first by event time."""


def deduplicate_call(
    frame: DataFrame,
    on: str | Sequence[str],
    within: Duration,
    first: FirstBy,
    time: EventTime,
    *,
    shows_duplicates: bool = False,
) -> Call:
    """Build the script of `ws.deduplicate`."""
    source = time.source(ROWS, frame)
    keys = given.condition(on)
    for key in keys:
        check_column("on", key)
    watermarked = [watermark.column for watermark in source.watermarks]
    if first == "time" and not watermarked:
        hint = 'call `.withWatermark("t", "10 minutes")` on it, or pass time="t".'
        raise given.wrong("time", time.column, "the DataFrame has no event time", hint)
    order = (SortKey(column((watermarked[0],)), "#order0"),) if first == "time" else ()
    by = tuple(Item(column((key,)), f"#by{number}") for number, key in enumerate(keys))
    side_outputs = (SideOutput("DUPLICATES", REPEATED_ROWS, "duplicates"),) if shows_duplicates else ()
    query = Query(time.scan(ROWS, frame), (Star(),), result="stream", side_outputs=side_outputs)
    ranking = Ranking(RowNumber(by, order), Ranks(1))
    query = replace(rank_rows(query, ranking, "#1"), within=given.amount("within", within))
    return Script("on", "", queries=(query,)), {ROWS: source}


Emitted = Literal["stream", "table"]
"""``stream``: each group comes out once, when it is closed; ``table``: the changes of all groups, in each batch."""


@dataclass(frozen=True)
class GroupOptions:
    """The columns and the window of a grouping; see `watersmeet.group`."""

    by: tuple[str, ...] = ()
    aggregates: Mapping[str, str] = field(default_factory=dict[str, str])
    having: str | None = None
    window: Duration | None = None
    slide: Duration | None = None
    gap: Duration | None = None
    emit: Emitted | None = None


def group_call(frame: DataFrame, options: GroupOptions, time: EventTime) -> Call:
    """Build the script of `ws.group`."""
    source = time.source(ROWS, frame)
    if not options.aggregates:
        raise given.wrong("aggregates", {}, "expected one or more", 'write aggregates={"n": "count(*)"}.')
    relation, bounds = _window_relation(source, options)
    columns = [*bounds, *(quote(name) for name in options.by)]
    items = [*columns, *(f"{text} AS {quote(name)}" for name, text in options.aggregates.items())]
    emit = options.emit or ("stream" if bounds else "table")
    text = f"SELECT {emit.upper()} {', '.join(items)}\nFROM {relation}"
    text += f"\nGROUP BY {', '.join(columns)}" if columns else ""
    text += f"\nHAVING {options.having}" if options.having else ""
    return _with_time(read_script(text, "ws.group"), time, frame), {ROWS: source}


def _window_relation(source: Source, options: GroupOptions) -> tuple[str, tuple[str, ...]]:
    """The rows with their windows, as FROM has them, and the columns with the bounds of a window."""
    if options.window is None and options.gap is None:
        if options.slide is not None:
            raise given.wrong("slide", options.slide, "there is no window that slides", 'add window="1 hour".')
        return quote(ROWS), ()
    if options.window is not None and options.gap is not None:
        raise given.wrong("gap", options.gap, "a session has no other window", "leave out `window` or `gap`.")
    if len(source.watermarks) != 1:
        reason = "the DataFrame has several event times" if source.watermarks else "the DataFrame has no event time"
        raise given.wrong("time", None, reason, 'pass time="t", or call `.withWatermark("t", "10 minutes")` on it.')
    time = f"DESCRIPTOR({quote(source.watermarks[0].column)})"
    if options.gap is not None:
        by = f" PARTITION BY {', '.join(map(quote, options.by))}" if options.by else ""
        rows = f"SESSION(TABLE {quote(ROWS)}{by}, {time}, {_interval('gap', options.gap)})"
    elif options.slide is not None:
        slide, size = _interval("slide", options.slide), _interval("window", options.window)
        rows = f"HOP(TABLE {quote(ROWS)}, {time}, {slide}, {size})"
    else:
        rows = f"TUMBLE(TABLE {quote(ROWS)}, {time}, {_interval('window', options.window)})"
    return f"TABLE({rows})", ("window_start", "window_end")


def _interval(argument: str, value: Duration | None) -> str:
    length = given.amount(argument, value)
    if not length.is_interval or length.value <= 0:
        raise given.wrong(argument, value, "expected a duration above 0", f'write {argument}="1 hour".')
    return f"INTERVAL '{length.value}' MICROSECONDS"


def top_call(
    frame: DataFrame,
    n: int,
    order: str,
    by: Sequence[str],
    ties: Literal["cut", "shown"],
    emit: Emitted,
    time: EventTime,
) -> Call:
    """Build the script of `ws.top`."""
    source = time.source(ROWS, frame)
    function = "RANK" if ties == "shown" else "ROW_NUMBER"
    partition = f"PARTITION BY {', '.join(map(quote, by))} " if by else ""
    text = f"SELECT {emit.upper()} * FROM {quote(ROWS)}\n"
    text += f"QUALIFY {function}() OVER ({partition}ORDER BY {order}) <= {n}"
    return _with_time(read_script(text, "ws.top"), time, frame), {ROWS: source}


def _with_time(script: Script, time: EventTime, frame: DataFrame) -> Script:
    """The script with its scan of the DataFrame as `EventTime.scan` makes it: without watermarks that are replaced."""
    made = time.scan(ROWS, frame)

    def complete(node: Any) -> Any:
        if isinstance(node, Scan):
            return replace(node, watermarks=made.watermarks, times=made.times) if node.source == ROWS else node
        if isinstance(node, tuple):
            return tuple(complete(part) for part in cast("tuple[Any, ...]", node))
        if isinstance(node, Query):
            return replace(node, relation=complete(node.relation), views=complete(node.views))
        return replace(node, query=complete(node.query)) if isinstance(node, View) else node

    return replace(script, queries=complete(script.queries))


def _call(relation: Relation, text: str = "", further: tuple[Item, ...] = ()) -> Script:
    return Script("on", text, queries=(Query(relation, (Star(), *further)),))


def _condition(on: On) -> tuple[str, Expr | None, tuple[str, ...]]:
    """Parse ``on`` into its text, the condition in it, and the columns that it names."""
    columns = given.condition(on)
    if isinstance(on, str) and not _NAME.fullmatch(on):
        return on, read_expression(on), ()
    return "", None, columns


def _within(within: WithinTime) -> Within:
    before, after = given.before_and_after("within", within)
    return Within(after, earlier=None if before == after else before)


def _sources(left: DataFrame, right: DataFrame, times: Times) -> dict[str, Source]:
    return {LEFT: times[0].source(LEFT, left, "left_"), RIGHT: times[1].source(RIGHT, right, "right_")}


def _scans(left: DataFrame, right: DataFrame, times: Times) -> tuple[Scan, Scan]:
    return times[0].scan(LEFT, left, "left_"), times[1].scan(RIGHT, right, "right_")


def _time(source: Source, side: str) -> str:
    """The event time of a side, of which there must be one."""
    columns = [watermark.column for watermark in source.watermarks]
    if len(columns) == 1:
        return f"{quote(side)}.{quote(columns[0])}"
    reason = "the side has several watermarks" if columns else "the side has no watermark"
    raise given.wrong(f"{side}_time", None, reason, f'name the column to compare: {side}_time="ts".')


def _pad(side: Side, pad: PadWith) -> Pad | None:
    argument = f"{side}_pad"
    if isinstance(pad, Mapping):
        return Pad(side, _values(given.values(argument, pad)))
    check_choice(argument, pad, ("nulls", "zeros"))
    return None if pad == "nulls" else Pad(side, "zeros")


def _values(values: Mapping[str, Any]) -> Values:
    return tuple((name, _constant(name, value)) for name, value in values.items())


def _constant(name: str, value: Any) -> Expr:
    """A Python value as a constant of SQL."""
    if value is None or isinstance(value, bool):
        return Expr("literal", text="NULL" if value is None else str(value).upper(), value=value)
    if isinstance(value, int | Decimal):
        return Expr("literal", text=str(value), value=value)
    if isinstance(value, float):
        text = f"{value!r}D" if isfinite(value) else f"CAST('{value!r}' AS DOUBLE)"
        return Expr("literal", text=text, value=value)
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return Expr("literal", text=f"'{escaped}'", value=value)
    if isinstance(value, date):
        kind = "TIMESTAMP" if isinstance(value, datetime) else "DATE"
        if isinstance(value, datetime) and value.tzinfo is not None:
            # Offsets of long ago have seconds, which Spark does not read.
            value = value.astimezone(UTC)
        return Expr("other", text=f"{kind} '{value.isoformat()}'")
    hint = "pass a string, a number, a bool, a date, a datetime or None."
    raise given.wrong(name, value, "it cannot be an SQL constant", hint)
