"""What a call of the Python surface stands for: the script and the sources that its arguments describe."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

from watersmeet.catalog import Amount, Source
from watersmeet.duration import parse_duration
from watersmeet.errors import refuse
from watersmeet.families.asof.relation import AsofJoin
from watersmeet.families.sync.relation import SyncJoin
from watersmeet.families.window.read import read_window
from watersmeet.families.window.relation import Pad
from watersmeet.joins.core.operator import Overflow
from watersmeet.language import read_expression
from watersmeet.physical import Limits
from watersmeet.plan.expressions import Expr, column, quote
from watersmeet.plan.nodes import (
    PRESERVED,
    Apart,
    Item,
    Join,
    JoinKind,
    Query,
    Relation,
    Scan,
    Script,
    Setting,
    Side,
    Star,
    Values,
    Within,
)

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

LEFT: Side = "left"
RIGHT: Side = "right"
_NAME = re.compile(r"\w+")

Call = tuple[Script, dict[str, Source]]
"""A script with one query, and its sources by name."""

On = str | Sequence[str]
"""A condition over ``left`` and ``right``, or the name or names of columns that both have; nothing: no condition."""

PadWith = Literal["nulls", "zeros"] | Mapping[str, Any]
"""What the columns of a side show beside a row that stayed alone: NULL, 0 and the like, or a value for each column."""

Direction = Literal["backward", "forward", "nearest"]
"""Which version a row gets: the latest at or before its time, the earliest at or after it, or the closer of both."""


@dataclass(frozen=True)
class EventTime:
    """The event time of a side as arguments give it: its column, its lag, and after how long the side is idle."""

    column: str | None = None
    lag: str | int | None = None
    idle: str | None = None

    def source(self, name: str, frame: DataFrame) -> Source:
        """A DataFrame as a source of that name with this event time."""
        from watersmeet.spark.compile.build import source_of

        lag = None if self.lag is None else amount(f"{name}_lag", self.lag)
        idle = None if self.idle is None else amount(f"{name}_idle", self.idle).value
        return source_of(name, frame, self.column, lag, idle)


Times = tuple[EventTime, EventTime]
NO_TIMES: Times = (EventTime(), EventTime())


def interval_call(
    left: DataFrame, right: DataFrame, on: On, within: str | int | None, how: str, times: Times = NO_TIMES
) -> Call:
    """What a call of `join` stands for."""
    text, condition, using = _condition(on)
    span = None if within is None else Within(amount("within", within))
    joined = Join(Scan(LEFT, LEFT), Scan(RIGHT, RIGHT), kind_of(how), on=condition, using=using, within=span)
    return _call(joined, text), _sources(left, right, times)


@dataclass(frozen=True)
class WindowOptions:
    """What a window join may be told besides its sides, windows and condition; see `watersmeet.window_join`."""

    left_pad: PadWith = "nulls"
    right_pad: PadWith = "nulls"
    unmatched: Literal["padded", "apart"] = "padded"
    discarded: Literal["dropped", "emitted"] = "dropped"
    trigger: Literal["hidden", "shown"] = "hidden"
    order_by: str | tuple[str, str] | None = None


def window_call(
    left: DataFrame, right: DataFrame, on: On, windows: tuple[str, str], how: str, options: WindowOptions
) -> Call:
    """What a call of `window_join` stands for."""
    text, condition, using = _condition(on)
    kind = kind_of(how)
    scans = [
        Scan(name, name, clause=read_window(window, f"{name}_window"))
        for name, window in zip((LEFT, RIGHT), windows, strict=True)
    ]
    pads = (_pad("left", options.left_pad), _pad("right", options.right_pad))
    joined = Join(
        scans[0], scans[1], kind, on=condition, using=using, clauses=tuple(pad for pad in pads if pad is not None)
    )
    told = ("_trigger", "_seq", "_last") if options.trigger == "shown" else ()
    script = _call(joined, text, tuple(Item(column((name,))) for name in told))
    sides = [side for side in (LEFT, RIGHT) if options.unmatched == "apart" and kind in PRESERVED[side]]
    apart = tuple(Apart(f"UNMATCHED {side.upper()}", f"_unmatched_{side}", f"unmatched_{side}") for side in sides)
    query = replace(script.queries[0], apart=apart)
    settings = [Setting("watersmeet.window.emit_discarded", "true")] if options.discarded == "emitted" else []
    sources = _sources(left, right, NO_TIMES)
    orders = (options.order_by,) * 2 if isinstance(options.order_by, str | None) else options.order_by
    ordered = {name: replace(sources[name], order=by) for name, by in zip((LEFT, RIGHT), orders, strict=True)}
    return replace(script, queries=(query,), settings=tuple(settings)), ordered


def sync_call(frames: Mapping[str, DataFrame], time: EventTime, disorder: Literal["drop", "error"]) -> Call:
    """What a call of `sync_join` stands for."""
    joined = SyncJoin(tuple(Scan(name, name) for name in frames))
    script = replace(_call(joined), settings=(Setting("watersmeet.sync.disorder", disorder),))
    return script, {name: time.source(name, frame) for name, frame in frames.items()}


def asof_call(
    left: DataFrame,
    right: DataFrame,
    on: On,
    how: str,
    match: tuple[Direction, Literal["allowed", "excluded"]],
    tolerance: str | int | None,
    default: Mapping[str, Any],
    times: Times,
) -> Call:
    """What a call of `asof_join` stands for."""
    text, condition, using = _condition(on)
    sources = _sources(left, right, times)
    own, version = (_time(sources[name], name) for name in (LEFT, RIGHT))
    direction, exact = match
    if direction == "nearest" and exact == "excluded":
        hint = 'leave it out, or use direction="backward" or direction="forward".'
        reason = "the nearest version may have the same time"
        raise refuse("WRONG_ARGUMENT", argument="exact", value=repr(exact), reason=reason, hint=hint)
    comparison = {"backward": ">", "forward": "<"}.get(direction, "") + ("=" if exact == "allowed" else "")
    asked = f"nearest({own}, {version})" if direction == "nearest" else f"{own} {comparison} {version}"
    span = None if tolerance is None else Within(amount("tolerance", tolerance))
    joined = AsofJoin(
        Scan(LEFT, LEFT), Scan(RIGHT, RIGHT), kind_of(how), on=condition, using=using, within=span,
        match=read_expression(asked), defaults=_values(default),
    )  # fmt: skip
    return _call(joined, text), sources


def kind_of(how: str) -> JoinKind:
    """The kind of join that a name of Spark's stands for."""
    kind = KINDS.get(how.lower().replace("_", ""))
    if kind is None:
        hint = 'use "inner", "left", "right", "full", "semi" or "anti".'
        raise refuse("WRONG_ARGUMENT", argument="how", value=repr(how), reason="it names no kind of join", hint=hint)
    return kind


def amount(argument: str, value: str | int) -> Amount:
    """A length of time, or a number."""
    if isinstance(value, int):
        return Amount(value, is_interval=False)
    try:
        return Amount(parse_duration(value), is_interval=True)
    except ValueError as error:
        hint = f'write {argument}="5 minutes".'
        raise refuse("WRONG_ARGUMENT", argument=argument, value=repr(value), reason=str(error), hint=hint) from error


def positive(argument: str, value: int | None) -> int | None:
    """A number of at least one, or nothing."""
    if value is not None and value < 1:
        hint = "leave it out, or give a number from 1."
        raise refuse("WRONG_ARGUMENT", argument=argument, value=value, reason="there must be at least one", hint=hint)
    return value


def limits(max_rows: int | None, overflow: Overflow) -> Limits | None:
    """How many rows may be kept, if that is limited."""
    check_choice("overflow", overflow, ("fail", "drop_oldest"))
    return None if max_rows is None else Limits(positive("max_rows", max_rows), overflow)


def check_choice(argument: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse what is none of the choices."""
    if value not in choices:
        hint = "use " + " or ".join(f'"{choice}"' for choice in choices) + "."
        raise refuse("WRONG_ARGUMENT", argument=argument, value=repr(value), reason="it is no choice", hint=hint)


def _call(relation: Relation, text: str = "", further: tuple[Item, ...] = ()) -> Script:
    return Script("on", text, queries=(Query(relation, (Star(), *further)),))


def _condition(on: On) -> tuple[str, Expr | None, tuple[str, ...]]:
    """What ``on`` says: its text, the condition in it, or the columns that it names."""
    if isinstance(on, str) and not _NAME.fullmatch(on):
        return on, read_expression(on), ()
    return "", None, (on,) if isinstance(on, str) else tuple(on)


def _sources(left: DataFrame, right: DataFrame, times: Times) -> dict[str, Source]:
    return {LEFT: times[0].source(LEFT, left), RIGHT: times[1].source(RIGHT, right)}


def _time(source: Source, side: str) -> str:
    """The event time of a side, of which there must be one."""
    columns = [watermark.column for watermark in source.watermarks]
    if len(columns) == 1:
        return f"{quote(side)}.{quote(columns[0])}"
    reason = "the side has several watermarks" if columns else "the side has no watermark"
    hint = f'name the column to compare: {side}_time="ts".'
    raise refuse("WRONG_ARGUMENT", argument=f"{side}_time", value=None, reason=reason, hint=hint)


def _pad(side: Side, given: PadWith) -> Pad | None:
    if isinstance(given, str):
        check_choice(f"{side}_pad", given, ("nulls", "zeros"))
        return None if given == "nulls" else Pad(side, "zeros")
    return Pad(side, _values(given))


def _values(given: Mapping[str, Any]) -> Values:
    return tuple((name, _constant(name, value)) for name, value in given.items())


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
        return Expr("other", text=f"{kind} '{value.isoformat()}'")
    hint = "give a text, a number, a truth value, a date or a datetime, or None."
    raise refuse("WRONG_ARGUMENT", argument=name, value=repr(value), reason="it is no constant of SQL", hint=hint)
