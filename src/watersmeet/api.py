"""The Python surface: DataFrames in, a DataFrame out. Every call goes the way of all queries."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from watersmeet.analyze.check_declarations import check_references
from watersmeet.calls import (
    LEFT,
    RIGHT,
    Call,
    Direction,
    EventTime,
    PadWith,
    WindowOptions,
    asof_call,
    check_choice,
    interval_call,
    limits,
    positive,
    sync_call,
    window_call,
)
from watersmeet.catalog import NOWHERE, Source
from watersmeet.errors import refuse
from watersmeet.explanation.physical import render
from watersmeet.families import OPERATORS
from watersmeet.formats.connectors import formats_in
from watersmeet.formats.malformed import Fate
from watersmeet.joins.core.operator import Overflow
from watersmeet.physical import LateRows, Limits, plan_query
from watersmeet.plan.nodes import Script
from watersmeet.project import with_columns
from watersmeet.queries import analyze, read_script

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    times = (EventTime(left_time, left_lag, left_idle), EventTime(right_time, right_lag, right_idle))
    call = interval_call(left, right, on, within, how, times)
    return _result(call, {LEFT: left, RIGHT: right}, late, limits(max_rows, overflow), shards, marks)


def window_join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str] = (),
    *,
    left_window: str,
    right_window: str,
    how: str = "inner",
    left_pad: PadWith = "nulls",
    right_pad: PadWith = "nulls",
    unmatched: Literal["padded", "apart"] = "padded",
    discarded: Literal["dropped", "emitted"] = "dropped",
    trigger: Literal["hidden", "shown"] = "hidden",
    order_by: str | tuple[str, str] | None = None,
    max_rows: int | None = None,
    overflow: Overflow = "fail",
    shards: int | None = None,
) -> DataFrame:
    """Join what is in two windows: an arriving row meets the rows that the other side's window holds.

    - ``on``: as for `join`; without it every row meets every row of the other window
    - ``left_window``: how long rows stay, as SQL has it inside ``WINDOW (...)``: ``"COUNT 100 PARTITION BY ticker"``,
      ``"TIME 10s"``, ``"DELTA price 5"``; ``"COUNT 0"`` keeps none
    - ``left_pad``: what the left columns show beside a right row that stayed alone: ``"nulls"``, ``"zeros"``, or values
      by column
    - ``unmatched="apart"``: rows that stayed alone come unpaired, in the columns ``_unmatched_left`` and
      ``_unmatched_right``, which are NULL for all others
    - ``discarded="emitted"``: rows of discarded partitions come out as if they were evicted
    - ``trigger="shown"``: the result has ``_trigger``, ``_seq`` and ``_last``
    - ``order_by``: the column of both sides, or of each, that gives the order of arrival

    Example::

        ws.window_join(trades, quotes, on="ticker", left_window="COUNT 1 PARTITION BY ticker", right_window="COUNT 0")
    """
    check_choice("unmatched", unmatched, ("padded", "apart"))
    check_choice("discarded", discarded, ("dropped", "emitted"))
    check_choice("trigger", trigger, ("hidden", "shown"))
    options = WindowOptions(left_pad, right_pad, unmatched, discarded, trigger, order_by)
    call = window_call(left, right, on, (left_window, right_window), how, options)
    return _result(call, {LEFT: left, RIGHT: right}, "counted", limits(max_rows, overflow), shards, None)


def sync_join(
    *frames: DataFrame,
    time: str | None = None,
    lag: str | int | None = None,
    idle: str | None = None,
    disorder: Literal["drop", "error"] = "drop",
    late: LateRows = "counted",
    max_rows: int | None = None,
    overflow: Overflow = "fail",
    shards: int | None = None,
    marks: DataFrame | None = None,
    **named: DataFrame,
) -> DataFrame:
    """Join rows of two or more ports that have the same event time.

    The ports are called ``i1``, ``i2`` and so on, or as their arguments are named. ``time``, ``lag`` and ``idle`` say
    of all ports what `join` is told of each side; else `withWatermark` does. A port's times must increase: a row that
    does not is dropped and counted as late, or with ``disorder="error"`` stops the query.

    Example::

        ws.sync_join(temperature=t, wind=w, rain=r, time="measured_at")
    """
    check_choice("disorder", disorder, ("drop", "error"))
    ports = {f"i{number}": frame for number, frame in enumerate(frames, 1)}
    for name in named.keys() & ports.keys():
        hint = "call it otherwise, or name all of them."
        reason = "a DataFrame without a name is called so already"
        raise refuse("WRONG_ARGUMENT", argument=name, value="a DataFrame", reason=reason, hint=hint)
    ports |= named
    if len(ports) < 2:
        hint = "write `ws.sync_join(a, b)`."
        raise refuse("WRONG_ARGUMENT", argument="frames", value=len(ports), reason="it joins two or more", hint=hint)
    call = sync_call(ports, EventTime(time, lag, idle), disorder)
    return _result(call, ports, late, limits(max_rows, overflow), shards, marks)


def asof_join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str] = (),
    *,
    how: str = "left",
    direction: Direction = "backward",
    exact: Literal["allowed", "excluded"] = "allowed",
    tolerance: str | int | None = None,
    default: Mapping[str, Any] | None = None,
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
    """Join each left row with the version of the right side that is in force at its time.

    - ``on``: equalities that say whose version it is, or columns that both have; nothing: all versions are of one thing
    - ``direction``: ``"backward"``, ``"forward"`` or ``"nearest"``; ``exact="excluded"``: equal times do not count
    - ``tolerance``: how far away a version may be; the other directions need it on streams
    - ``how``: ``"left"`` or ``"inner"``; ``default``: what right columns show where there is no version

    Times, late rows, limits, shards and marks are told as to `join`.

    Example::

        ws.asof_join(trades, quotes, on="ticker", tolerance="10 minutes", default={"bid": 0})
    """
    check_choice("direction", direction, ("backward", "forward", "nearest"))
    check_choice("exact", exact, ("allowed", "excluded"))
    times = (EventTime(left_time, left_lag, left_idle), EventTime(right_time, right_lag, right_idle))
    call = asof_call(left, right, on, how, (direction, exact), tolerance, default or {}, times)
    return _result(call, {LEFT: left, RIGHT: right}, late, limits(max_rows, overflow), shards, marks)


def sql(
    text: str,
    *,
    spark: SparkSession | None = None,
    marks: DataFrame | None = None,
    malformed: Fate = "fail",
    **frames: DataFrame,
) -> DataFrame:
    """The result of the one query in a script over DataFrames given by name, or over what CREATE STREAM reads.

    ``malformed``: what becomes of rows that cannot be read, of sources that do not say it themselves: they ``"fail"``
    the query, or it counts and drops them (``"drop"``).

    Example::

        ws.sql("SELECT STREAM o.id, d.courier FROM orders o LEFT JOIN deliveries d WITHIN 1h ON o.id = d.order_id",
               orders=orders, deliveries=deliveries)
    """
    from watersmeet.spark.compile.build import build, source_of
    from watersmeet.spark.session import session
    from watersmeet.spark.sources.columnar import find_files
    from watersmeet.spark.sources.malformed import looked_at, readable
    from watersmeet.spark.sources.reading import read_sources

    script = with_columns(read_script(text, given=frames))
    _check_one_query(script)
    check_choice("malformed", malformed, ("fail", "drop"))
    spark = spark or (next(iter(frames.values())).sparkSession if frames else session(formats=formats_in(script)))
    extra = {name: _as_table(source_of(name, frame), frame, frames) for name, frame in frames.items()}
    check_references(script)
    opened = script.resolved()
    looked = looked_at(opened, read_sources(spark, opened, frames), malformed)
    sources = {name: readable(frame) for name, frame in looked.items()}
    files = find_files(spark, opened, frames)
    return build(spark, script, sources, extra=extra, marks=marks, files=files)[0].compiled.result


def jars(*formats: str) -> str:
    """The files that bring formats to Spark, as ``spark.jars`` takes them; fetched once.

    Example::

        SparkSession.builder.config("spark.jars", ws.jars("kafka")).getOrCreate()
    """
    from watersmeet.spark.session.connectors import connector_jars

    return ",".join(map(str, connector_jars(formats, {}, os.environ)))


def substrait(plan: bytes | str, *, marks: DataFrame | None = None, **frames: DataFrame) -> DataFrame:
    """The result of a Substrait plan, in its binary form or as JSON, over DataFrames by the names of its tables.

    A result that changes has a last column ``_change``: ``+`` for a row that comes, ``-`` for one that goes.

    Example::

        ws.substrait(Path("plan.substrait").read_bytes(), orders=orders, customers=customers)
    """
    from watersmeet.language.substrait.plans import read_substrait
    from watersmeet.spark.compile.build import build
    from watersmeet.spark.sources.reading import read_sources

    script = read_substrait(plan)
    if not frames:
        hint = "give a DataFrame for every table that the plan reads: `ws.substrait(plan, orders=orders)`."
        raise refuse("WRONG_ARGUMENT", argument="frames", value="nothing", reason="a plan has no rows", hint=hint)
    spark = next(iter(frames.values())).sparkSession
    return build(spark, script, read_sources(spark, script, frames), marks=marks)[0].compiled.result


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
    from watersmeet.spark.compile.build import source_of

    if isinstance(query, str):
        script = with_columns(read_script(query, given=frames))
        sources = {name: _as_table(source_of(name, frame), frame, frames) for name, frame in frames.items()}
    else:
        if right is None:
            hint = 'write `ws.explain(left, right, on="id", within="1 hour")`.'
            raise refuse("WRONG_ARGUMENT", argument="right", value=None, reason="a join has two sides", hint=hint)
        times = (EventTime(left_time, left_lag), EventTime(right_time, right_lag))
        script, sources = interval_call(query, right, on, within, how, times)
        frames = {LEFT: query, RIGHT: right}
    inputs = "batches" if frames and not any(frame.isStreaming for frame in frames.values()) else "streams"
    return "\n\n".join(
        render(one, plan_query(one, OPERATORS), OPERATORS) for one in analyze(script, sources, inputs=inputs)
    )


def _result(
    call: Call,
    frames: Mapping[str, DataFrame],
    late: LateRows,
    limits: Limits | None,
    shards: int | None,
    marks: DataFrame | None,
) -> DataFrame:
    """The DataFrame of the one query that a call stands for."""
    from watersmeet.spark.compile.build import build

    check_choice("late", late, ("counted", "kept"))
    script, sources = call
    spark = next(iter(frames.values())).sparkSession
    (built,) = build(
        spark, script, frames, extra=sources, marks=marks, late=late, limits=limits, shards=positive("shards", shards)
    )
    return built.compiled.result


def _as_table(source: Source, frame: DataFrame, frames: Mapping[str, DataFrame]) -> Source:
    """A DataFrame that is no stream, beside others that are: a table."""
    is_beside = not frame.isStreaming and any(other.isStreaming for other in frames.values())
    return replace(source, kind="table") if is_beside else source


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
