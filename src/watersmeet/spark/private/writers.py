"""Looking at a streaming query as it starts: which checkpoint it gets, and which joins of ours are in it.

Why: users start their queries themselves, with `DataFrame.writeStream`, perhaps far behind the join; PySpark has no
hook before a start, and a listener hears of it too late to refuse. Uses: the methods of `DataStreamWriter` are wrapped;
of the classic one its ``_df``, and the text and the leaves of ``_jdf``'s plan, of the one of Spark Connect
``_write_stream`` and its plan; and that a query copies the settings of its session while it is started.
Where something is missing nothing is seen: the query starts as ever, and its workers find a foreign state when they
open it.

A result of ours in a frame is replaced by another with the same columns. Why: whether joins are chained depends on the
checkpoint, which only the start names, and frames cannot be changed. Uses: the analyzed plan of a classic frame, whose
nodes get other children, the constructors of ``Project`` and ``Alias``, and ``Dataset.ofRows``; the calls of the writer
are repeated on the one of the new frame. Where something is missing the frame stays as it is, and a checkpoint that
began otherwise is refused.

Seen in: 4.0 to 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import wraps
from inspect import signature
from threading import RLock
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from watersmeet.errors import refuse
from watersmeet.spark.private.transfer import IN_BATCHES, PythonTransfer, python_transfers

_TOKEN = re.compile(rb"watersmeet:[^\x00]{0,500}?#([0-9a-f]{16})\.")
_CHECKPOINT_LOCATION, _NAME, _SINK = "checkpointlocation", "#name", "#sink"
_NOTED, _CALLS = "_watersmeet_noted", "_watersmeet_calls"
FORMAT = "#format"
"""Among the options of a source: its format, where that is seen."""

Started = Callable[[Any], None]
"""Called with the query once it runs."""
Sources = list[tuple[int, dict[str, str]]]
"""Of every source of a query, in the order of their offsets: the number of its folder in a checkpoint, its options."""
BeforeStart = Callable[[Any, str, tuple[str, ...], Sources, Mapping[str, str]], Started]
"""Called before a start with the session, the checkpoint, the tokens of the joins, the sources, and the options of the
writer by their names in small letters; it may refuse."""
Settings = Callable[[Any, str | None, tuple[str, ...], tuple[PythonTransfer, ...] | None], Mapping[str, str]]
"""Asked before a start for settings that the session does not have and the query is to get, with the session, the
checkpoint if it is known, the tokens, and what crosses to Python if that is known."""
Replacement = tuple[Any, Any]
"""The analyzed plan of a result, and the frame that replaces it."""
Choose = Callable[[Any, str, tuple[str, ...]], Sequence[Replacement]]
"""Asked before a start which results are to be replaced, with the session, the checkpoint and the tokens."""
_starting = RLock()


def watch_starts(writer: type, before: BeforeStart, settings: Settings, choose: Choose) -> None:
    """Have ``before`` called at every start of a query with our joins through that class of writers.

    ``settings`` returns the settings that the query gets, and ``choose`` the results that are replaced in it.
    """
    if hasattr(writer, _NOTED):
        return
    setattr(writer, _NOTED, {})
    setattr(writer, _CALLS, ())
    made: Any = writer
    for name in ("option", "options", "queryName", "format", "foreach", "foreachBatch"):
        setattr(made, name, _record_options(getattr(made, name)))
    for name in ("trigger", "outputMode", "partitionBy", "clusterBy"):
        if hasattr(made, name):
            setattr(made, name, _record_call(getattr(made, name)))
    for name in ("start", "toTable"):
        setattr(made, name, _intercept_start(getattr(made, name), before, settings, choose))


def _record_options(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def wrapper(self: Any, *args: Any, **named: Any) -> Any:
        _note(self, method, args, named)
        setattr(self, _CALLS, (*getattr(self, _CALLS), (method, args, named)))
        return method(self, *args, **named)

    return wrapper


def _record_call(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def wrapper(self: Any, *args: Any, **named: Any) -> Any:
        setattr(self, _CALLS, (*getattr(self, _CALLS), (method, args, named)))
        return method(self, *args, **named)

    return wrapper


def _intercept_start(
    method: Callable[..., Any], before: BeforeStart, settings: Settings, choose: Choose
) -> Callable[..., Any]:
    @wraps(method)
    def wrapper(self: Any, *args: Any, **named: Any) -> Any:
        _note(self, method, args, named)
        session, tokens = _tokens(self)
        if not tokens:
            return method(self, *args, **named)
        _check_watermarks(self)
        checkpoint = _checkpoint(self, session)
        writer = replace_results(self, choose(session, checkpoint, tokens)) if checkpoint else self
        tokens = tokens if writer is self else _tokens(writer)[1]
        after = before(session, checkpoint, tokens, sources_of(writer), getattr(self, _NOTED)) if checkpoint else None
        with _set(session, settings(session, checkpoint, tokens, _transfers(writer, session, method.__name__))):
            query = method(writer, *args, **named)
        if after is not None:
            after(query)
        return query

    return wrapper


def plan_of(frame: Any) -> Any:
    """The analyzed plan of a frame, to find it in frames that are made of it; None: it is not seen."""
    return frame._jdf.queryExecution().analyzed() if hasattr(frame, "_jdf") else None


def replace_results(writer: Any, replacements: Sequence[Replacement]) -> Any:
    """A writer with the same calls whose frame has other results in it; the writer itself where that cannot be done."""
    if not replacements or not hasattr(writer, "_df"):
        return writer
    session, noted = writer._df.sparkSession, getattr(writer, _NOTED)
    try:
        plan = plan_of(writer._df)
        for result, frame in replacements:
            plan = _replace_in_plan(session._jvm, plan, result, plan_of(frame))
        jvm = session._jvm
        made = type(writer._df)(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)
    except (AttributeError, TypeError, Py4JError):
        return writer
    replaced = made.writeStream
    if len(_tokens(replaced)[1]) != len(_tokens(writer)[1]):
        # Spark has renumbered the columns of a second copy of the result.
        return writer
    for method, args, named in getattr(writer, _CALLS):
        method(replaced, *args, **named)
    setattr(replaced, _NOTED, noted)
    return replaced


def _replace_in_plan(jvm: Any, plan: Any, result: Any, other: Any) -> Any:
    """A plan in which another one takes the place of a result, under the names and numbers of its columns."""
    lists = jvm.scala.jdk.javaapi.CollectionConverters
    logical = jvm.org.apache.spark.sql.catalyst.plans.logical
    alias = jvm.org.apache.spark.sql.catalyst.expressions.Alias

    def sequence(values: Sequence[Any]) -> Any:
        array = jvm.java.util.ArrayList()
        for value in values:
            array.add(value)
        return lists.asScala(array).toSeq()

    if not result.schema().equals(other.schema()):
        return plan
    columns = [
        alias(mine, column.name(), column.exprId(), column.qualifier(), jvm.scala.Option.apply(None), sequence(()))
        for column, mine in zip(lists.asJava(result.output()), lists.asJava(other.output()), strict=True)
    ]
    projected = logical.Project(sequence(columns), other)

    def walk(node: Any) -> Any:
        if node.equals(result):
            return projected
        children = list(lists.asJava(node.children()))
        walked = [walk(child) for child in children]
        is_same = all(before is after for before, after in zip(children, walked, strict=True))
        return node if is_same else node.withNewChildren(sequence(walked))

    return walk(plan)


@contextmanager
def _set(session: Any, settings: Mapping[str, str]) -> Generator[None]:
    """Let a session have settings meanwhile, for a query that is started to copy; it may refuse them."""
    with _starting if settings else nullcontext(), ExitStack() as undo:
        for name, value in settings.items():
            with suppress(PySparkException):
                session.conf.set(name, value)
                undo.callback(session.conf.unset, name)
        yield


def _note(writer: Any, method: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Note the options that a call gives, and the name of the query."""
    arguments = signature(method).bind(writer, *args, **named).arguments
    options: dict[str, Any] = {**arguments.get("options", {}), _NAME: arguments.get("queryName")}
    options[_SINK] = arguments.get("source") or arguments.get("format")
    if "func" in arguments or "f" in arguments:
        options[_SINK] = IN_BATCHES + str(getattr(arguments.get("func"), "__module__", ""))
    if "key" in arguments:
        options[arguments["key"]] = arguments["value"]
    noted = {name.lower(): str(value) for name, value in options.items() if value is not None}
    setattr(writer, _NOTED, {**getattr(writer, _NOTED), **noted})


def _tokens(writer: Any) -> tuple[Any, tuple[str, ...]]:
    """The session of a writer, and the tokens of the joins of ours that it writes, each once."""
    try:
        if hasattr(writer, "_write_stream"):
            session = writer._session
            plan = writer._write_stream._child.plan(session.client).SerializeToString()
        else:
            session = writer._df.sparkSession
            plan = writer._df._jdf.queryExecution().analyzed().toString().encode()
    except AttributeError:
        return None, ()
    return session, tuple(dict.fromkeys(token.decode() for token in _TOKEN.findall(plan)))


_WATERMARK = re.compile(r"EventTimeWatermark\b.*?[\s'`]([A-Za-z_][\w.]*)`?(?:#\d+)?(?::[^,]*)?, [^,]*$")


def find_redefined_watermark(plan: str) -> str | None:
    r"""Find the watermark of Spark's behind a join of ours whose input has one, too, and return its column.

    Spark refuses that, but only in the second batch.

    >>> join = "+- CollectMetrics watersmeet:join#0123456789abcdef.x"
    >>> plan = f"EventTimeWatermark a1b2-3c, t#1: timestamp, 1 hours\n{join}"
    >>> find_redefined_watermark(plan) is None
    True
    >>> find_redefined_watermark(f"{plan}\n   +- EventTimeWatermark b1-2, u#2: timestamp, 1 hours")
    't'
    """
    lines = plan.splitlines()
    depths = [len(line) - len(line.lstrip(" :+-")) for line in lines]
    for number, line in enumerate(lines):
        match = _WATERMARK.search(line)
        if match is None:
            continue
        below = [
            other
            for place, other in enumerate(lines[number + 1 :], number + 1)
            if all(depth > depths[number] for depth in depths[number + 1 : place + 1])
        ]
        if any("EventTimeWatermark" in other for other in below) and _TOKEN.search("\n".join(below).encode()):
            return match[1]
    return None


def _check_watermarks(writer: Any) -> None:
    """Refuse a query that Spark would stop in its second batch."""
    if not hasattr(writer, "_df"):
        return
    column = find_redefined_watermark(writer._df._jdf.queryExecution().analyzed().toString())
    if column is not None:
        raise refuse("WATERMARK_BEHIND_RESULT", column=column)


def _transfers(writer: Any, session: Any, method: str) -> tuple[PythonTransfer, ...] | None:
    """The transfers to Python when the frame is written; None: unknown, for example for a table of any format."""
    if method == "toTable" or not hasattr(writer, "_df"):
        return None
    sink = getattr(writer, _NOTED).get(_SINK) or session.conf.get("spark.sql.sources.default", "")
    return python_transfers(writer._df, sink)


def sources_of(writer: Any) -> Sources:
    """The sources of a written query; empty if they are not visible. Equal sources share a folder in Spark."""
    if not hasattr(writer, "_df"):
        return []
    jvm = writer._df.sparkSession._jvm
    leaves = jvm.scala.jdk.javaapi.CollectionConverters.asJava(
        writer._df._jdf.queryExecution().analyzed().collectLeaves()
    )
    streams = [leaf for leaf in leaves if leaf.isStreaming()]
    folders = [next(n for n, other in enumerate(streams) if other.equals(leaf)) for leaf in streams]
    return [(sorted(set(folders)).index(n), _options(jvm, leaf)) for n, leaf in zip(folders, streams, strict=True)]


def _options(jvm: Any, leaf: Any) -> dict[str, str]:
    """The options of a source of files, or of one of the second kind with its format; others do not show them."""
    kind = leaf.getClass().getSimpleName()
    if kind == "StreamingRelationV2":
        return {**dict(leaf.extraOptions().asCaseSensitiveMap()), FORMAT: str(leaf.sourceName())}
    if kind != "StreamingRelation":
        return {}
    return dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(leaf.dataSource().options()))


def _checkpoint(writer: Any, session: Any) -> str | None:
    """The checkpoint location of the query, if one is set."""
    noted: dict[str, str] = getattr(writer, _NOTED)
    if _CHECKPOINT_LOCATION in noted:
        return noted[_CHECKPOINT_LOCATION]
    folder = session.conf.get("spark.sql.streaming.checkpointLocation", None)
    return f"{folder}/{noted[_NAME]}" if folder and _NAME in noted else None
