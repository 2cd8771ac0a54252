"""The Python API: DataFrames in, a DataFrame out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload

from watersmeet.arguments import (
    Duration,
    check_choice,
    check_frame,
    check_frames,
    check_options,
    check_plan,
    check_session,
    check_text,
    check_watermarks,
    hints_in_python,
    positive,
    values,
    wrong,
)
from watersmeet.arguments import share as given_share
from watersmeet.calls import (
    LEFT,
    OLD_VALUES,
    RIGHT,
    ROWS,
    Call,
    Direction,
    Emitted,
    EventTime,
    FirstBy,
    GroupOptions,
    On,
    PadWith,
    RowsOptions,
    StateOptions,
    StreamOptions,
    WindowJoinOptions,
    WindowOptions,
    WithinTime,
    asof_call,
    column_names,
    deduplicate_call,
    event_time,
    event_times,
    group_call,
    interval_call,
    limits,
    sync_call,
    top_call,
    window_call,
)
from watersmeet.catalog import NOWHERE, Source
from watersmeet.deprecation import accept_old_arguments
from watersmeet.errors import did_you_mean, refuse
from watersmeet.formats.base import MalformedPolicy
from watersmeet.formats.packages import formats_in
from watersmeet.locations import Storage, resolve_references
from watersmeet.logical.nodes import Script
from watersmeet.logical.passes.check_declarations import check_references
from watersmeet.metrics.progress import Totals
from watersmeet.operators import OPERATORS
from watersmeet.operators.core.operator import Overflow
from watersmeet.physical import ChainGroups, LateRows, may_chain, plan_query, read_chaining
from watersmeet.project import Project, has_local_storage, open_project, storage_folder, storage_location, with_columns
from watersmeet.queries import analyze, read_script
from watersmeet.tools.explain.query import Explanation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from watersmeet.spark.compile.frames import QueryRequest, QueryResult
    from watersmeet.spark.state.inspect import State
    from watersmeet.tools.advise.report import Advice
    from watersmeet.tools.trace.answer import Answer


@accept_old_arguments(OLD_VALUES, marks="watermarks")
def join(
    left: DataFrame,
    right: DataFrame,
    on: On,
    *,
    within: WithinTime | None = None,
    how: str = "inner",
    left_time: str | None = None,
    right_time: str | None = None,
    **options: Unpack[StreamOptions],
) -> DataFrame:
    """Join two streams by key, within a time bound.

    Two batch DataFrames give the result that the streams would have at their end.

    - ``on``: a condition on ``left`` and ``right`` (``"left.id = right.order_id"``), or names of common columns
    - ``within``: the longest time between two rows that match. A pair says how far the right row may be before and
      after the left one: ``("0s", "30 minutes")``. Without ``within``, the condition must bound the time both ways
    - ``left_time``, ``right_time``: the event time of a side. Default: the column of `withWatermark`

    Options:

    - ``left_lag``, ``right_lag``: how far rows may be out of order. Default: the delay of `withWatermark`
    - ``left_idle``, ``right_idle``: after this long without a row, a side no longer holds back the other one
    - ``late``: ``"counted"``, or ``"side_output"``: the result also has late rows, in the column ``_late``, which is
      NULL for all others
    - ``max_rows``, ``overflow``: the limit of rows in the state, and what happens beyond it: ``"fail"`` (the default)
      or ``"drop_oldest"``
    - ``shards``: the number of parts of the state. Default: the number of shuffle partitions
    - ``watermarks``: a stream of rows ``(column STRING, value BIGINT)`` that advance watermarks from outside. Its old
      name ``marks`` is deprecated

    Example::

        joined = ws.join(orders, deliveries, on="left.id = right.order_id", within="1 hour", how="left")
        joined.select("id", "item", "courier").show()

        +---+----+-------+
        | id|item|courier|
        +---+----+-------+
        |  1|lamp|  north|
        |  2| rug|   NULL|
        +---+----+-------+
    """
    check_options("join", options, StreamOptions)
    call = interval_call(left, right, on, within, how, event_times(left_time, right_time, options))
    with hints_in_python():
        return _result_of_call(call, {LEFT: left, RIGHT: right}, options)


@accept_old_arguments(OLD_VALUES)
def window_join(
    left: DataFrame,
    right: DataFrame,
    on: On = (),
    *,
    left_window: str,
    right_window: str,
    how: str = "inner",
    left_pad: PadWith = "nulls",
    right_pad: PadWith = "nulls",
    unmatched: Literal["padded", "side_output", "apart"] = "padded",
    **options: Unpack[WindowJoinOptions],
) -> DataFrame:
    """Join two windows: an arriving row is matched with the rows in the window of the other side.

    - ``on``: as for `join`. Without it, a row matches every row of the other window
    - ``left_window``: how long rows stay, in the syntax of ``WINDOW (...)``: ``"COUNT 100 PARTITION BY ticker"``,
      ``"TIME 10s"``, ``"DELTA price 5"``. ``"COUNT 0"`` keeps no rows
    - ``left_pad``: the left columns of a right row without a match: ``"nulls"``, ``"zeros"``, or values by column
    - ``unmatched="side_output"``: rows without a match are in the columns ``_unmatched_left`` and ``_unmatched_right``,
      which are NULL for all others

    Options, besides ``max_rows``, ``overflow`` and ``shards`` of `join`:

    - ``discarded="emitted"``: rows of discarded partitions are emitted like evicted rows
    - ``trigger="shown"``: the result has the columns ``_trigger``, ``_seq`` and ``_last``
    - ``order_by``: the column of both sides, or of each, that gives the order of arrival

    Example::

        ws.window_join(trades, quotes, on="ticker", left_window="COUNT 1 PARTITION BY ticker", right_window="COUNT 0")
    """
    check_choice("unmatched", unmatched, ("padded", "side_output"))
    check_options("window_join", options, WindowJoinOptions)
    discarded, trigger = options.get("discarded", "dropped"), options.get("trigger", "hidden")
    check_choice("discarded", discarded, ("dropped", "emitted"))
    check_choice("trigger", trigger, ("hidden", "shown"))
    choices = WindowOptions(left_pad, right_pad, unmatched, discarded, trigger, options.get("order_by"))
    call = window_call(left, right, on, (left_window, right_window), how, choices)
    return _result_of_call(call, {LEFT: left, RIGHT: right}, options)


@accept_old_arguments(OLD_VALUES, marks="watermarks")
def sync_join(
    *frames: DataFrame,
    time: str | None = None,
    lag: Duration | None = None,
    idle: Duration | None = None,
    disorder: Literal["drop", "error"] = "drop",
    late: LateRows | Literal["kept"] = "counted",
    max_rows: int | None = None,
    overflow: Overflow = "fail",
    shards: int | None = None,
    watermarks: DataFrame | None = None,
    **named: DataFrame,
) -> DataFrame:
    """Join rows of two or more streams that have the same event time.

    The inputs are called ``i1``, ``i2`` and so on, or by the names of their arguments. ``time``, ``lag`` and ``idle``
    apply to all of them; see `join`. Their default is `withWatermark`. The times of an input must increase: a row that
    is out of order is dropped and counted as late, or stops the query with ``disorder="error"``.

    Example::

        ws.sync_join(temperature=temperature, pressure=pressure, time="second").show()

        +------------------+-------+---------------+-------+
        |temperature_second|degrees|pressure_second|pascals|
        +------------------+-------+---------------+-------+
        |                 1|     20|              1|    990|
        +------------------+-------+---------------+-------+
    """
    check_choice("disorder", disorder, ("drop", "error"))
    check_frames(named, ("time", "lag", "idle", "disorder", "late", "max_rows", "overflow", "shards", "watermarks"))
    ports = {f"i{number}": frame for number, frame in enumerate(frames, 1)}
    for name in named.keys() & ports.keys():
        hint = "give it another name, or name all of them."
        raise wrong(name, named[name], "an unnamed DataFrame already has this name", hint)
    ports |= named
    if len(ports) < 2:
        raise wrong("frames", len(ports), "expected two or more DataFrames", "write `ws.sync_join(a, b)`.")
    call = sync_call(ports, EventTime(time, lag, idle), disorder)
    options = StreamOptions(late=late, max_rows=max_rows, overflow=overflow, shards=shards, watermarks=watermarks)
    return _result_of_call(call, ports, options)


@accept_old_arguments(OLD_VALUES, marks="watermarks")
def asof_join(
    left: DataFrame,
    right: DataFrame,
    on: On = (),
    *,
    how: str = "left",
    direction: Direction = "backward",
    exact: Literal["allowed", "excluded"] = "allowed",
    tolerance: Duration | None = None,
    default: Mapping[str, Any] | None = None,
    left_time: str | None = None,
    right_time: str | None = None,
    **options: Unpack[StreamOptions],
) -> DataFrame:
    """Join each left row with the version of the right side that is valid at its time.

    - ``on``: the key of a version: equalities, or names of common columns. Without it, all versions have one key
    - ``direction``: ``"backward"``, ``"forward"`` or ``"nearest"``. With ``exact="excluded"``, equal times do not match
    - ``tolerance``: how far away a version may be. On streams, ``"forward"`` and ``"nearest"`` need it
    - ``how``: ``"left"`` or ``"inner"``
    - ``default``: values of the right columns for rows without a version

    The other arguments and options are those of `join`.

    Example::

        ws.asof_join(trades, quotes, on="ticker", left_time="t", right_time="t").show()

        +------+------+------+-------+---+
        |ticker|left_t|pieces|right_t|bid|
        +------+------+------+-------+---+
        |  ACME|     5|   100|      3| 70|
        |  ACME|     9|    50|      8| 72|
        +------+------+------+-------+---+
    """
    check_options("asof_join", options, StreamOptions)
    check_choice("direction", direction, ("backward", "forward", "nearest"))
    check_choice("exact", exact, ("allowed", "excluded"))
    times = event_times(left_time, right_time, options)
    call = asof_call(left, right, on, how, (direction, exact), tolerance, {} if default is None else default, times)
    return _result_of_call(call, {LEFT: left, RIGHT: right}, options)


def deduplicate(
    frame: DataFrame,
    on: str | Sequence[str],
    within: Duration,
    *,
    first: FirstBy = "arrival",
    duplicates: Literal["dropped", "side_output"] = "dropped",
    **options: Unpack[RowsOptions],
) -> DataFrame:
    """Leave out rows that repeat another within a time: the first row of each key comes out, once and unchanged.

    - ``on``: the name or names of the columns that make rows equal; NULL is equal to NULL
    - ``within``: a row is left out if a row of its key has come out whose event time is at most this far from its own
    - ``first``: ``"arrival"``: the first row to arrive comes out at once; ``"time"``: the first by event time, once the
      watermark has passed it. Then the order of arrival makes no difference
    - ``duplicates="side_output"``: rows that are left out are in the column ``_duplicates``, a struct of all columns,
      and have NULL in the others. For all other rows it is NULL
    - ``time``, ``lag``, ``idle``: the event time. Default: that of `withWatermark`

    Rows without an event time, and rows that are left out, are counted as dropped.

    Example::

        ws.deduplicate(clicks, on="click_id", within="10 minutes").show()

        +--------+-----+-------------------+
        |click_id| page|                  t|
        +--------+-----+-------------------+
        |       1| home|2026-03-02 08:40:00|
        |       2|basket|2026-03-02 08:41:00|
        +--------+-----+-------------------+
    """
    check_options("deduplicate", options, RowsOptions)
    check_choice("first", first, ("arrival", "time"))
    check_choice("duplicates", duplicates, ("dropped", "side_output"))
    call = deduplicate_call(frame, on, within, first, event_time(options), shows_duplicates=duplicates == "side_output")
    with hints_in_python():
        return _result_of_call(call, {ROWS: frame}, options)


def group(
    frame: DataFrame,
    by: str | Sequence[str] = (),
    *,
    aggregates: Mapping[str, str],
    having: str | None = None,
    window: Duration | None = None,
    slide: Duration | None = None,
    gap: Duration | None = None,
    emit: Emitted | None = None,
    **options: Unpack[RowsOptions],
) -> DataFrame:
    """Group the rows of a stream or table, in windows of event time if you name one.

    - ``by``: the name or names of columns
    - ``aggregates``: the columns of the result by name, in SQL: ``{"n": "count(*)", "total": "sum(amount)"}``
    - ``having``: a condition on the groups, in SQL
    - ``window``: the length of a window, ``"1 hour"``; ``slide``: the time between the starts of two windows; ``gap``:
      instead, the time without rows that ends a session. The result has ``window_start`` and ``window_end``
    - ``emit``: ``"stream"``: each group comes out once, when its window has closed, which is the default with a window;
      ``"table"``: the changes of all groups
    - ``time``, ``lag``, ``idle``: the event time. Default: that of `withWatermark`

    Example::

        ws.group(clicks, "page", aggregates={"n": "count(*)"}, window="1 hour").show()

        +-------------------+-------------------+------+---+
        |       window_start|         window_end|  page|  n|
        +-------------------+-------------------+------+---+
        |2026-03-02 08:00:00|2026-03-02 09:00:00|  home|  2|
        |2026-03-02 08:00:00|2026-03-02 09:00:00|basket|  1|
        +-------------------+-------------------+------+---+
    """
    check_options("group", options, RowsOptions)
    if emit is not None:
        check_choice("emit", emit, ("stream", "table"))
    texts = values("aggregates", aggregates)
    for name, text in texts.items():
        check_text(f"aggregates[{name!r}]", text, '"count(*)"')
    if having is not None:
        check_text("having", having, '"count(*) > 1"')
    with hints_in_python():
        grouping = GroupOptions(column_names("by", by), texts, having, window, slide, gap, emit)
        return _result_of_call(group_call(frame, grouping, event_time(options)), {ROWS: frame}, options)


def top(
    frame: DataFrame,
    n: int,
    order: str,
    *,
    by: str | Sequence[str] = (),
    ties: Literal["cut", "shown"] = "cut",
    emit: Emitted = "table",
    **options: Unpack[RowsOptions],
) -> DataFrame:
    """Show the first rows in an order, of each group if you name one.

    - ``order``: as in SQL: ``"amount DESC, id"``
    - ``by``: the name or names of the columns of a group
    - ``ties``: ``"shown"``: rows that are equal in the order are all shown or none, as by RANK
    - ``emit``: ``"table"``: the changes of the first rows; ``"stream"``: the first rows of each group once, when it is
      closed: then ``by`` has the bound of a window
    - ``time``, ``lag``, ``idle``: the event time. Default: that of `withWatermark`

    Example::

        hourly = ws.group(clicks, "page", aggregates={"n": "count(*)"}, window="1 hour")
        ws.top(hourly, 1, "n DESC", by="window_end", emit="stream").show()

        +-------------------+-------------------+----+---+
        |       window_start|         window_end|page|  n|
        +-------------------+-------------------+----+---+
        |2026-03-02 08:00:00|2026-03-02 09:00:00|home|  2|
        +-------------------+-------------------+----+---+
    """
    check_options("top", options, RowsOptions)
    check_choice("ties", ties, ("cut", "shown"))
    check_choice("emit", emit, ("stream", "table"))
    check_text("order", order, '"amount DESC"')
    first = positive("n", n)
    if first is None:
        raise wrong("n", n, "expected a number above 0", "write ws.top(rows, 10, ...).")
    with hints_in_python():
        call = top_call(frame, first, order, column_names("by", by), ties, emit, event_time(options))
        return _result_of_call(call, {ROWS: frame}, options)


def input_end(folder: str | os.PathLike[str] | None = None, spark: SparkSession | None = None) -> DataFrame:
    """Watermarks that say nothing until `finish` declares the end of input; pass them as ``watermarks`` to a call.

    - ``folder``: where the declaration is written. Default: a temporary folder, where Spark runs on this machine

    Example::

        end = ws.input_end()
        joined = ws.join(orders, deliveries, on="left.id = right.order_id", within="1 hour", how="left", watermarks=end)
        ws.finish(joined.writeStream.format("parquet").option("path", "out").option("checkpointLocation", "ckpt"), end)
    """
    from watersmeet.spark.run.watching import make_input_end
    from watersmeet.spark.session import session

    check_session("spark", spark)
    return make_input_end(spark or session(), None if folder is None else os.fspath(folder))


def finish(query: StreamingQuery | DataStreamWriter, end: DataFrame) -> None:
    """Process all available input of a query, then declare that its input has ended, and process what follows.

    The last windows, padded rows and groups come out. Rows that arrive later are late.

    - ``query``: a running query, which is stopped at the end; or a writer with all its options, which is started
    - ``end``: what `input_end` has returned, and the call behind the query has as ``watermarks``
    """
    from watersmeet.spark.run.watching import finish_input

    check_frame("end", end)
    finish_input(query, end)


@accept_old_arguments(marks="watermarks")
def sql(
    text: str,
    *,
    spark: SparkSession | None = None,
    watermarks: DataFrame | None = None,
    malformed: MalformedPolicy = "fail",
    **frames: DataFrame,
) -> DataFrame:
    """Run a script with one query, on DataFrames that you pass by name or on sources that the script declares.

    ``malformed`` is the default for sources without such an option: a row that cannot be read stops the query
    (``"fail"``), or is counted and dropped (``"drop"``).

    Example::

        ws.sql("SELECT STREAM o.id, o.item, d.courier "
               "FROM orders o LEFT JOIN deliveries d WITHIN 1h ON o.id = d.order_id",
               orders=orders, deliveries=deliveries).show()

        +---+----+-------+
        | id|item|courier|
        +---+----+-------+
        |  1|lamp|  north|
        |  2| rug|   NULL|
        +---+----+-------+
    """
    from watersmeet.spark.compile.frames import QueryRequest
    from watersmeet.spark.connectors.malformed import observe_malformed, readable_rows
    from watersmeet.spark.connectors.reading import find_unread, read_sources, resolve_options
    from watersmeet.spark.session import session

    check_text("text", text, '"SELECT STREAM ..."')
    check_choice("malformed", malformed, ("fail", "drop"))
    check_session("spark", spark)
    check_watermarks(watermarks)
    check_frames(frames, ("spark", "watermarks", "malformed"))
    script = with_columns(read_script(text, external_names=frames))
    _check_one_query(script)
    spark = spark or (next(iter(frames.values())).sparkSession if frames else session(formats=formats_in(script)))
    extra = _frame_sources(script, frames)
    check_references(script)
    opened = resolve_options(script)
    looked = observe_malformed(opened, read_sources(spark, opened, frames), malformed)
    sources = {name: readable_rows(frame) for name, frame in looked.items()}
    unread = find_unread(spark, opened, frames, with_records=malformed == "fail")
    request = QueryRequest(script, sources, extra, unread, has_watermarks=watermarks is not None)
    return _result(spark, request, watermarks)


def jars(*formats: str) -> str:
    """The jar files that Spark needs for some formats, as a value of ``spark.jars``. They are downloaded once.

    Example::

        SparkSession.builder.config("spark.jars", ws.jars("kafka")).getOrCreate()
    """
    from watersmeet.spark.session.java import connector_jars

    return ",".join(map(str, connector_jars(formats, {}, os.environ)))


@accept_old_arguments(marks="watermarks")
def substrait(plan: bytes | str, *, watermarks: DataFrame | None = None, **frames: DataFrame) -> DataFrame:
    """Run a Substrait plan, in binary form or as JSON, on DataFrames that have the names of its tables.

    If the result is a changelog, its last column is ``_change``: ``+`` for an insert, ``-`` for a retraction.

    Example::

        ws.substrait(Path("plan.substrait").read_bytes(), orders=orders, customers=customers)
    """
    from watersmeet.spark.compile.frames import QueryRequest
    from watersmeet.spark.connectors.reading import read_sources
    from watersmeet.tools.substrait.relations import read_substrait

    check_plan(plan)
    check_watermarks(watermarks)
    check_frames(frames, ("plan", "watermarks"))
    script = read_substrait(plan)
    if not frames:
        hint = "give a DataFrame for every table that the plan reads: `ws.substrait(plan, orders=orders)`."
        raise wrong("frames", None, "a plan does not contain rows", hint)
    spark = next(iter(frames.values())).sparkSession
    sources = read_sources(spark, script, frames)
    return _result(spark, QueryRequest(script, sources, {}, has_watermarks=watermarks is not None), watermarks)


def explain(
    query: str | DataFrame,
    right: DataFrame | None = None,
    on: On = (),
    *,
    within: WithinTime | None = None,
    how: str = "inner",
    left_time: str | None = None,
    right_time: str | None = None,
    left_lag: Duration | None = None,
    right_lag: Duration | None = None,
    **frames: DataFrame,
) -> Explanation:
    """Explain how a query would run, and why.

    Pass the result of a call, a script with its DataFrames, or the arguments of `join`. The explanation is a string; a
    notebook shows it as a drawing.

    Example::

        ws.explain(ws.asof_join(trades, quotes, on="ticker"))
    """
    from pyspark.sql import DataFrame

    from watersmeet.spark.compile.frames import QueryRequest, inline_results
    from watersmeet.spark.session.workers import shard_notes

    # Values that are not DataFrames are refused below.
    sessions = [value.sparkSession for value in (query, right, *frames.values()) if isinstance(value, DataFrame)]
    shards = shard_notes(sessions[0] if sessions else None)
    result = None if isinstance(query, str) or right is not None else _find_result(query)
    if result is not None:
        return Explanation.of([(result.query, result.plan)], OPERATORS, shards)
    if isinstance(query, str):
        check_frames(frames, ())
        script = with_columns(read_script(query, external_names=frames))
        request = QueryRequest(script, frames, _frame_sources(script, frames))
    else:
        if right is None:
            hint = 'pass the result of a ws call unchanged, or `ws.explain(left, right, on="id", within="1 hour")`.'
            raise wrong("query", query, "it is not the result of a ws call", hint)
        times = (EventTime(left_time, left_lag), EventTime(right_time, right_lag))
        script, sources = interval_call(query, right, on, within, how, times)
        request = QueryRequest(script, {LEFT: query, RIGHT: right}, sources)
    request = inline_results(request)
    queries = analyze(request.script, request.sources, inputs=request.inputs)
    chains = _chains(request)
    plans = [(analyzed, plan_query(analyzed, OPERATORS, chains=chains)) for analyzed in queries]
    return Explanation.of(plans, OPERATORS, shards)


def advise(
    left: DataFrame,
    right: DataFrame,
    on: On = (),
    *,
    left_time: str | None = None,
    right_time: str | None = None,
    sample: int = 1_000_000,
    keep: float = 0.999,
) -> Advice:
    """Propose bounds, lags and a key for a join of two DataFrames, from their rows.

    - ``on``: as for `join`. Default: the columns that look most like keys of each other
    - ``left_time``: the event time. Default: the column of `withWatermark`, or else the time column in best order
    - ``sample``: the number of rows to read from each side. For a stream, they are rows that exist now
    - ``keep``: the share of pairs and rows that a proposal must keep

    The advice is a string; a notebook shows it as a picture. ``sql`` is the SQL to paste, ``data`` has the numbers.

    Example::

        found = ws.advise(orders, deliveries, on="left.id = right.order_id", left_time="ordered")
        print(found.sql)
    """
    from watersmeet.tools.advise.arrivals import join_pairs, sample_frame
    from watersmeet.tools.advise.pair import AdviceRequest, advise_pair
    from watersmeet.tools.advise.report import Advice

    share = given_share("keep", keep)
    rows = positive("sample", sample) or 1
    script, sources = interval_call(left, right, on, None, "inner", (EventTime(left_time), EventTime(right_time)))
    for side, named, time in ((LEFT, left, left_time), (RIGHT, right, right_time)):
        if time is not None and sources[side].field(time) is None:
            raise wrong(f"{side}_time", time, "the side has no such column", did_you_mean(time, named.columns))
    [pair] = join_pairs(replace(script, sources=tuple(sources.values())))
    if on and (not pair.keys or pair.unread):
        hint = 'name columns that both have, on="id", or write on="left.id = right.order_id".'
        raise wrong("on", on, "it is not an equality between columns of both sides", hint)
    sides = [sample_frame(frame, sources[name], rows) for name, frame in ((LEFT, left), (RIGHT, right))]
    advice = advise_pair(AdviceRequest(sides[0], sides[1], pair.keys, aliases=(LEFT, RIGHT)), share)
    if advice is None:
        empty = [side.name for side in sides if not side.rows.num_rows]
        reason = "it has no rows" if empty else "a side has no column that could be an event time"
        hint = 'name the event times: left_time="ts", right_time="ts".' if not empty else "pass a DataFrame with rows."
        raise wrong(empty[0] if empty else "left_time", None if not empty else "no rows", reason, hint)
    return Advice.of([advice])


def state(checkpoint: str | os.PathLike[str], spark: SparkSession | None = None) -> State:
    """Read the state of a query as DataFrames, as it was after its last batch.

    - ``summary``: a row per operator, side and shard, with rows, bytes, times, watermarks and what expires next
    - ``rows(side)``: the rows in the state of a side, with ``_matched``, ``_until`` and ``_until_of``
    - ``problems``: a row per problem; no rows if the state is consistent

    ``checkpoint`` is the checkpoint of a stopped query, or a copy of the checkpoint of a running one.

    Example::

        kept = ws.state("storage/checkpoints/joined")
        kept.rows("orders").where("NOT _matched").show()
    """
    from watersmeet.spark.session import session
    from watersmeet.spark.state.inspect import open_state as looked_into

    check_session("spark", spark)
    return looked_into(checkpoint if isinstance(checkpoint, str) else Path(checkpoint), spark or session())


def why(
    text: str,
    source: str,
    row: Mapping[str, Any],
    *,
    checkpoint: str | Path | None = None,
    spark: SparkSession | None = None,
    **frames: DataFrame,
) -> Answer:
    """Explain what happened to rows of a source: which rows they matched, or why they matched none.

    ``row`` has the values that identify the rows. With batch DataFrames, the answer is about a run over all of their
    rows. With the ``checkpoint`` of a query, whose sources the text declares, it is about the batches of that query.

    Example::

        print(ws.why("SELECT STREAM o.id, d.courier "
                     "FROM orders o LEFT JOIN deliveries d WITHIN 1h ON o.id = d.order_id",
                     "orders", {"id": 2}, orders=orders, deliveries=deliveries))

        the query: 1 row of orders has id 2.

        o (id 2, item 'rug', at 2026-03-02 08:10:00)
          arrived    batch 0
          padded     batch 0: The input of d has ended: nothing more can match it.
          why        No row of d has the key 2.
    """
    from watersmeet.spark.connectors.reading import read_sources, resolve_options
    from watersmeet.spark.private.files import open_storage
    from watersmeet.spark.session import session
    from watersmeet.tools.trace.live import answer_from_checkpoint, answer_of_frames, find_checkpoint_query
    from watersmeet.tools.trace.questions import Question, convert_values, find_source

    check_text("text", text, '"SELECT STREAM ..."')
    check_text("source", source, '"orders"')
    check_session("spark", spark)
    check_frames(frames, ("row", "checkpoint", "spark"))
    for name, frame in frames.items():
        if frame.isStreaming or checkpoint is not None:
            hint = "declare it in the text, CREATE STREAM ... USING ..., and name the checkpoint of the query."
            raise wrong(name, frame, "the batches in which a DataFrame was read are not known", hint)
    script = with_columns(read_script(text, external_names=frames))
    _check_one_query(script)
    extra = _frame_sources(script, frames)
    [query] = analyze(script, extra, inputs="streams" if checkpoint is not None else "batches")
    check_references(script)
    opened = resolve_options(script)
    subject = find_source([*opened.sources, *extra.values()], source)
    question = Question(subject, convert_values(subject, row))
    spark = spark or (next(iter(frames.values())).sparkSession if frames else session(formats=formats_in(script)))
    if checkpoint is not None:
        return answer_from_checkpoint(
            spark, find_checkpoint_query(opened, query, open_storage(spark, os.fspath(checkpoint))), question
        )
    return answer_of_frames(spark, opened, query, read_sources(spark, opened, frames), question)


@overload
def progress(query: StreamingQuery) -> Totals: ...


@overload
def progress(query: str | Path) -> dict[str, Totals]: ...


def progress(query: StreamingQuery | str | Path) -> Totals | dict[str, Totals]:
    """Report what a streaming query with Watersmeet joins has done so far.

    The totals cover the batches that Spark remembers: the latest hundred, or
    ``spark.sql.streaming.numRecentProgressUpdates``. State and watermarks are those of the latest batch.

    With the folder of a project, or its SQL file, you get the totals of each query in all runs of ``watersmeet run``,
    by name. They come from the histories in its storage.

    Example::

        so_far = ws.progress(query)
        so_far.rows_in, so_far.late, so_far.state_rows, so_far.watermarks, so_far.lags()
        ws.progress("shop")["joined"].rows_out
    """
    if isinstance(query, str | Path):
        from watersmeet.metrics.history import queries_of, read_history

        storage = _storage_of(open_project(Path(query)))
        return {name: read_history(storage, name).totals for name in queries_of(storage)}
    from watersmeet.spark.run.watching import totals_of

    if not hasattr(query, "recentProgress"):
        hint = "pass what `writeStream...start()` returned, or the folder of a project."
        raise wrong("query", query, "it is not a streaming query", hint)
    return totals_of(query)


def _storage_of(project: Project) -> Storage:
    """The storage of a project: one that is not on this machine is reached by a session."""
    if has_local_storage(project):
        return storage_folder(project)
    from watersmeet.spark.private.files import open_storage
    from watersmeet.spark.session import session

    return open_storage(session(conf=resolve_references(project.settings_from_root)), storage_location(project))


def _find_result(frame: DataFrame) -> QueryResult | None:
    """The query behind a DataFrame that a Watersmeet call returned; None for any other DataFrame."""
    from watersmeet.spark.compile.frames import result_of

    check_frame("query", frame)
    return result_of(frame)


def _result_of_call(call: Call, frames: Mapping[str, DataFrame], options: StateOptions) -> DataFrame:
    """The DataFrame that a call stands for."""
    from watersmeet.spark.compile.frames import QueryRequest

    stream_options = cast("StreamOptions", options)
    late = cast("LateRows", stream_options.get("late", "counted"))
    watermarks = stream_options.get("watermarks")
    check_choice("late", late, ("counted", "side_output"))
    check_watermarks(watermarks)
    script, sources = call
    request = QueryRequest(
        script, frames, sources, limits=limits(options), shards=positive("shards", options.get("shards")),
        has_watermarks=watermarks is not None,
    )  # fmt: skip
    return _result(next(iter(frames.values())).sparkSession, request, watermarks, late)


def _result(
    spark: SparkSession, request: QueryRequest, watermarks: DataFrame | None, late: LateRows = "counted"
) -> DataFrame:
    """The DataFrame of the one query that is asked for; other calls know it again."""
    from watersmeet.spark.compile.frames import QueryResult, inline_results, remember
    from watersmeet.spark.run.build import Built, build
    from watersmeet.spark.run.starts import watch_chains
    from watersmeet.spark.run.watching import note_input_times

    request = inline_results(request)

    def build_chained(chains: ChainGroups | None) -> Built:
        (built,) = build(
            spark, request.script, request.frames, extra=request.sources, watermarks=watermarks, late=late,
            limits=request.limits, shards=request.shards, files=request.files, chaining=chains,
        )  # fmt: skip
        return built

    built = build_chained(_chains(request))
    result = built.compiled.result
    if may_chain(built.plan):
        watch_chains(result, built.compiler.token, lambda chains: build_chained(chains).compiled.result)
    if watermarks is not None:
        note_input_times(watermarks, built.plan)
    [query] = request.script.queries
    shows_more = late == "side_output" or query.late_into is not None or bool(query.side_outputs)
    remember(result, QueryResult(built.query, built.plan, None if shows_more else request))
    return result


def _chains(request: QueryRequest) -> ChainGroups | None:
    """The joins of a query that run in one operator; None: all that may.

    A start changes the chains if its checkpoint began with others; of Spark Connect it cannot change the frame.
    """
    from pyspark.sql import is_remote

    from watersmeet.spark.run.build import chain_groups

    frame = next(iter(request.frames.values()), None)
    default = "off" if request.inputs == "streams" and is_remote() else "on"
    return (
        read_chaining(request.script, default)
        if frame is None
        else chain_groups(request.script, frame.sparkSession, default)
    )


def _frame_sources(script: Script, frames: Mapping[str, DataFrame]) -> dict[str, Source]:
    """DataFrames as sources of a script. What a declaration says of a result goes before what its query has."""
    from watersmeet.spark.compile.frames import is_inlined
    from watersmeet.spark.run.build import source_of

    sources = {name: _as_table(source_of(name, frame), frame, frames) for name, frame in frames.items()}
    declared = {source.name.lower() for source in script.sources}
    plain = {name for name, frame in frames.items() if name.lower() in declared and is_inlined(frame)}
    return {name: replace(source, watermarks=()) if name in plain else source for name, source in sources.items()}


def _as_table(source: Source, frame: DataFrame, frames: Mapping[str, DataFrame]) -> Source:
    """A batch DataFrame next to streams: a table."""
    is_table = not frame.isStreaming and any(other.isStreaming for other in frames.values())
    return replace(source, kind="table") if is_table else source


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
