"""The Python surface: DataFrames in, a DataFrame out. Every call goes the way of all queries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from watersmeet.analyze import analyze
from watersmeet.catalog import NOWHERE, Amount, Source
from watersmeet.duration import parse_duration
from watersmeet.errors import refuse
from watersmeet.joins.operator import Overflow
from watersmeet.language import read_expression, read_script
from watersmeet.physical import LateRows, Limits, plan_query
from watersmeet.physical.explain import render
from watersmeet.plan.nodes import Join, JoinKind, Query, Scan, Script, Star, Within

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KINDS: dict[str, JoinKind] = {
    "inner": "inner",
    "left": "left", "leftouter": "left",
    "right": "right", "rightouter": "right",
    "full": "full", "outer": "full", "fullouter": "full",
    "semi": "semi", "leftsemi": "semi", "anti": "anti", "leftanti": "anti",
}  # fmt: skip
"""Spark's own names of the kinds; underscores do not matter."""

LEFT, RIGHT = "left", "right"
_NAME = re.compile(r"\w+")


@dataclass(frozen=True)
class EventTime:
    """The event time of a side as arguments give it: its column, its lag, and after how long the side is idle."""

    column: str | None = None
    lag: str | int | None = None
    idle: str | None = None


def join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str],
    *,
    within: str | int | None = None,
    how: str = "inner",
    left_time: str | None = None,
    right_time: str | None = None,
    left_lag: str | int | None = None,
    right_lag: str | int | None = None,
    left_idle: str | None = None,
    right_idle: str | None = None,
    late: LateRows = "counted",
    max_rows: int | None = None,
    overflow: Overflow = "fail",
    shards: int | None = None,
    marks: DataFrame | None = None,
) -> DataFrame:
    """Join two streams, or two batches with the meaning the streams would have once they have ended.

    - ``on``: a condition over ``left`` and ``right`` (``"left.id = right.order_id"``), or columns that both have
    - ``within``: the longest time between two rows that meet; without it the condition must bound the time both ways
    - ``left_time``, ``left_lag``: the event time and how far rows may be behind; else `withWatermark` gives them
    - ``left_idle``: after so long without a row the left side no longer holds the right one back
    - ``late="kept"``: the result also shows late rows, in the column ``_late``, which is NULL for all others
    - ``max_rows``, ``overflow``: how many rows may be kept, and what happens beyond: ``"fail"`` or ``"drop_oldest"``
    - ``shards``: into how many shards the keys are split; by default as many as there are shuffle partitions
    - ``marks``: a stream of rows ``(column STRING, value BIGINT)`` that move watermarks from outside

    Example::

        ws.join(orders, deliveries, on="left.id = right.order_id", within="1 hour", how="left")
    """
    from watersmeet.spark.build import build

    times = (EventTime(left_time, left_lag, left_idle), EventTime(right_time, right_lag, right_idle))
    script, sources = join_script(left, right, on, within, how, times)
    _check_choice("late", late, ("counted", "kept"))
    _check_choice("overflow", overflow, ("fail", "drop_oldest"))
    limits = None if max_rows is None else Limits(_positive("max_rows", max_rows), overflow)
    (built,) = build(
        left.sparkSession, script, {LEFT: left, RIGHT: right}, extra=sources, marks=marks, late=late, limits=limits,
        shards=None if shards is None else _positive("shards", shards),
    )  # fmt: skip
    return built.compiled.result


def sql(
    text: str, *, spark: SparkSession | None = None, marks: DataFrame | None = None, **frames: DataFrame
) -> DataFrame:
    """The result of the one query in a script over DataFrames given by name, or over what CREATE STREAM reads.

    Example::

        ws.sql("SELECT STREAM o.id, d.courier FROM orders o LEFT JOIN deliveries d WITHIN 1h ON o.id = d.order_id",
               orders=orders, deliveries=deliveries)
    """
    from watersmeet.spark.build import build, source_of
    from watersmeet.spark.session import session
    from watersmeet.spark.sources import read_sources

    script = read_script(text)
    _check_one_query(script)
    spark = spark or (next(iter(frames.values())).sparkSession if frames else session())
    extra = {name: source_of(name, frame) for name, frame in frames.items()}
    return build(spark, script, read_sources(spark, script, frames), extra=extra, marks=marks)[0].compiled.result


def explain(
    query: str | DataFrame,
    right: DataFrame | None = None,
    on: str | Sequence[str] = (),
    *,
    within: str | int | None = None,
    how: str = "inner",
    left_time: str | None = None,
    right_time: str | None = None,
    left_lag: str | int | None = None,
    right_lag: str | int | None = None,
    **frames: DataFrame,
) -> str:
    """How a query would run, and why so: for a script and its DataFrames, or for the arguments of `join`."""
    from watersmeet.spark.build import source_of

    if isinstance(query, str):
        script = read_script(query)
        sources = {name: source_of(name, frame) for name, frame in frames.items()}
    else:
        if right is None:
            hint = 'write `ws.explain(left, right, on="id", within="1 hour")`.'
            raise refuse("WRONG_ARGUMENT", argument="right", value=None, reason="a join has two sides", hint=hint)
        times = (EventTime(left_time, left_lag), EventTime(right_time, right_lag))
        script, sources = join_script(query, right, on, within, how, times)
        frames = {LEFT: query, RIGHT: right}
    inputs = "batches" if frames and not any(frame.isStreaming for frame in frames.values()) else "streams"
    return "\n\n".join(render(one, plan_query(one)) for one in analyze(script, sources, inputs=inputs))


def join_script(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str],
    within: str | int | None = None,
    how: str = "inner",
    times: tuple[EventTime, EventTime] = (EventTime(), EventTime()),
) -> tuple[Script, dict[str, Source]]:
    """The script that a call of `join` stands for, and its two sources."""
    from watersmeet.spark.build import source_of

    kind = KINDS.get(how.lower().replace("_", ""))
    if kind is None:
        raise refuse(
            "WRONG_ARGUMENT",
            argument="how",
            value=repr(how),
            reason="it names no kind of join",
            hint='use "inner", "left", "right", "full", "semi" or "anti".',
        )
    sources = {
        name: source_of(
            name,
            frame,
            time.column,
            None if time.lag is None else _amount(f"{name}_lag", time.lag),
            None if time.idle is None else _amount(f"{name}_idle", time.idle).value,
        )
        for name, frame, time in ((LEFT, left, times[0]), (RIGHT, right, times[1]))
    }
    span = None if within is None else Within(_amount("within", within))
    names = (on,) if isinstance(on, str) and _NAME.fullmatch(on) else on
    if isinstance(names, str):
        script = Script("on", names)
        joined = Join(Scan(LEFT, LEFT), Scan(RIGHT, RIGHT), kind, on=read_expression(names), within=span)
    else:
        script = Script("on", "")
        joined = Join(Scan(LEFT, LEFT), Scan(RIGHT, RIGHT), kind, using=tuple(names), within=span)
    query = Query(joined, (Star(),))
    return Script(script.name, script.text, queries=(query,)), sources


def _amount(argument: str, value: str | int) -> Amount:
    if isinstance(value, int):
        return Amount(value, is_interval=False)
    try:
        return Amount(parse_duration(value), is_interval=True)
    except ValueError as error:
        raise refuse(
            "WRONG_ARGUMENT",
            argument=argument,
            value=repr(value),
            reason=str(error),
            hint=f'write {argument}="5 minutes".',
        ) from error


def _positive(argument: str, value: int) -> int:
    if value < 1:
        hint = "leave it out, or give a number from 1."
        raise refuse("WRONG_ARGUMENT", argument=argument, value=value, reason="there must be at least one", hint=hint)
    return value


def _check_choice(argument: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        hint = "use " + " or ".join(f'"{choice}"' for choice in choices) + "."
        raise refuse("WRONG_ARGUMENT", argument=argument, value=repr(value), reason="it is no choice", hint=hint)


def _check_one_query(script: Script) -> None:
    if not script.queries:
        raise refuse("NO_QUERY", script="The text")
    if len(script.queries) > 1:
        second = script.queries[1].span
        raise refuse(
            "NOT_ONE_QUERY",
            script.place(second) if second != NOWHERE else None,
            script="The text",
            count=len(script.queries),
        )
