"""The Python surface: DataFrames in, a DataFrame out. Every call goes the way of all queries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from watersmeet.analyze import analyze
from watersmeet.catalog import NOWHERE, Amount, Source
from watersmeet.duration import parse_duration
from watersmeet.errors import refuse
from watersmeet.language import read_expression, read_script
from watersmeet.physical import plan_query
from watersmeet.physical.explain import render
from watersmeet.plan.nodes import Join, JoinKind, Query, Scan, Script, Star, Within

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KINDS: dict[str, JoinKind] = {
    "inner": "inner",
    "left": "left", "leftouter": "left",
    "right": "right", "rightouter": "right",
    "full": "full", "outer": "full", "fullouter": "full",
}  # fmt: skip
"""Spark's own names of the kinds; underscores do not matter."""

LEFT, RIGHT = "left", "right"
_NAME = re.compile(r"\w+")


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
    shards: int | None = None,
    marks: DataFrame | None = None,
) -> DataFrame:
    """Join two streams, or two batches with the meaning the streams would have once they have ended.

    ``on`` is a condition over ``left`` and ``right`` (``"left.id = right.order_id"``), or the name or names of
    columns that both have. ``within`` is the
    longest time between two rows that meet; without it the condition itself must bound the time in both directions.
    The event time and the lag of a side come from ``withWatermark``, or from ``left_time`` and ``left_lag``.

    Example::

        ws.join(orders, deliveries, on="left.id = right.order_id", within="1 hour", how="left")
    """
    from watersmeet.spark.build import build

    script, sources = join_script(left, right, on, within, how, (left_time, left_lag), (right_time, right_lag))
    frames = {LEFT: left, RIGHT: right}
    return build(left.sparkSession, script, frames, extra=sources, shards=_count(shards), marks=marks)[
        0
    ].compiled.result


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
        script, sources = join_script(query, right, on, within, how, (left_time, left_lag), (right_time, right_lag))
        frames = {LEFT: query, RIGHT: right}
    inputs = "batches" if frames and not any(frame.isStreaming for frame in frames.values()) else "streams"
    return "\n\n".join(render(one, plan_query(one)) for one in analyze(script, sources, inputs=inputs))


def join_script(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str],
    within: str | int | None = None,
    how: str = "inner",
    left_time: tuple[str | None, str | int | None] = (None, None),
    right_time: tuple[str | None, str | int | None] = (None, None),
) -> tuple[Script, dict[str, Source]]:
    """The script that a call of `join` stands for, and its two sources; a time comes with its lag."""
    from watersmeet.spark.build import source_of

    kind = KINDS.get(how.lower().replace("_", ""))
    if kind is None:
        raise refuse(
            "WRONG_ARGUMENT",
            argument="how",
            value=repr(how),
            reason="it names no kind of join",
            hint='use "inner", "left", "right" or "full".',
        )
    sources = {
        name: source_of(name, frame, time, None if lag is None else _amount(f"{name}_lag", lag))
        for name, frame, (time, lag) in ((LEFT, left, left_time), (RIGHT, right, right_time))
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


def _count(shards: int | None) -> int | None:
    if shards is not None and shards < 1:
        raise refuse(
            "WRONG_ARGUMENT",
            argument="shards",
            value=shards,
            reason="a join runs in one shard or more",
            hint="leave it out.",
        )
    return shards


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
