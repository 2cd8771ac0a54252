"""Looking at a streaming query as it starts: which checkpoint it gets, and which joins of ours are in it.

Why: users start their queries themselves, with `DataFrame.writeStream`, perhaps far behind the join; PySpark has no
hook before a start, and a listener hears of it too late to refuse. Uses: the methods of `DataStreamWriter` are wrapped;
of the classic one its ``_df``, and the text and the leaves of ``_jdf``'s plan, of the one of Spark Connect
``_write_stream`` and its plan; and that a query copies the settings of its session while it is started.
Seen in: 4.0 to 4.3. Where something is missing nothing is seen: the query starts as ever, and its workers find a
foreign state when they open it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import wraps
from inspect import signature
from threading import RLock
from typing import Any

from pyspark.errors import PySparkException

from watersmeet.errors import refuse
from watersmeet.spark.private.transfer import IN_BATCHES, PythonTransfer, python_transfers

_TOKEN = re.compile(rb"watersmeet:[^\x00]{0,500}?#([0-9a-f]{16})\.")
_CHECKPOINT_LOCATION, _NAME, _SINK = "checkpointlocation", "#name", "#sink"
_NOTED = "_watersmeet_noted"
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
_starting = RLock()


def watch_starts(writer: type, before: BeforeStart, settings: Settings) -> None:
    """Have ``before`` called at every start of a query with our joins through that class of writers.

    ``settings`` returns the settings that the query gets.
    """
    if hasattr(writer, _NOTED):
        return
    setattr(writer, _NOTED, {})
    made: Any = writer
    for name in ("option", "options", "queryName", "format", "foreach", "foreachBatch"):
        setattr(made, name, _record_options(getattr(made, name)))
    for name in ("start", "toTable"):
        setattr(made, name, _intercept_start(getattr(made, name), before, settings))


def _record_options(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def wrapper(self: Any, *args: Any, **named: Any) -> Any:
        _note(self, method, args, named)
        return method(self, *args, **named)

    return wrapper


def _intercept_start(method: Callable[..., Any], before: BeforeStart, settings: Settings) -> Callable[..., Any]:
    @wraps(method)
    def wrapper(self: Any, *args: Any, **named: Any) -> Any:
        _note(self, method, args, named)
        session, tokens = _tokens(self)
        if not tokens:
            return method(self, *args, **named)
        _check_watermarks(self)
        checkpoint = _checkpoint(self, session)
        after = before(session, checkpoint, tokens, sources_of(self), getattr(self, _NOTED)) if checkpoint else None
        with _set(session, settings(session, checkpoint, tokens, _transfers(self, session, method.__name__))):
            query = method(self, *args, **named)
        if after is not None:
            after(query)
        return query

    return wrapper


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
