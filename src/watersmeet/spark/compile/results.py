"""Results of ours as inputs of other calls: what a DataFrame was made of becomes part of the query that reads it.

The watermarks of a join travel with its rows, in records that no DataFrame shows. So a call that gets the result of
another one does not read that DataFrame: it takes the query behind it as a view of its own. What Spark makes of a
result (`select`, `where`, ...) is another DataFrame, which has rows and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, cast
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame

from watersmeet.analyze import Inputs
from watersmeet.analyze.views import seen
from watersmeet.catalog import NOWHERE, Source, Span, Watermark
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.physical import Limits, QueryPlan, limits_of
from watersmeet.plan.nodes import Query, Scan, Script, Setting, View
from watersmeet.plan.query import AnalyzedQuery


@dataclass(frozen=True)
class Asked:
    """One query over DataFrames, as a call describes it.

    ``frames`` and ``sources`` go by the names that the script reads; ``files`` are the paths of sources that workers
    may read themselves. ``has_marks``: something from outside moves its watermarks, under names that only it knows.
    """

    script: Script
    frames: Mapping[str, DataFrame]
    sources: Mapping[str, Source]
    files: Mapping[str, DataFrame] = field(default_factory=dict[str, DataFrame])
    limits: Limits | None = None
    shards: int | None = None
    has_marks: bool = False

    @property
    def inputs(self) -> Inputs:
        """What the query is fed by."""
        is_batch = self.frames and not any(frame.isStreaming for frame in self.frames.values())
        return "batches" if is_batch else "streams"

    @property
    def said_limits(self) -> Limits | None:
        """The limit on the state, whoever says it."""
        return limits_of(self.script) or self.limits


@dataclass(frozen=True)
class Result:
    """What a DataFrame of ours is: the query, and how it runs. ``asked`` is None if it shows more than its rows."""

    query: AnalyzedQuery
    plan: QueryPlan
    asked: Asked | None

    @property
    def watermarks(self) -> tuple[Watermark, ...]:
        """The watermarks of its columns."""
        return seen("", self.query, NOWHERE).watermarks


_made: WeakKeyDictionary[DataFrame, Result] = WeakKeyDictionary()


def remember(frame: DataFrame, result: Result) -> None:
    """Know a DataFrame as a result from now on."""
    _made[frame] = result


def result_of(frame: DataFrame) -> Result | None:
    """What a DataFrame is, if a call of ours gave it."""
    return _made.get(frame)


def is_taken_in(frame: DataFrame) -> bool:
    """Whether a DataFrame becomes part of the query that reads it; batches have no watermarks that travel."""
    result = result_of(frame)
    return result is not None and result.asked is not None and frame.isStreaming


def with_results(asked: Asked) -> Asked:
    """The query with the queries of all results among its DataFrames in it, each as a view of the name it has there."""
    declared = {source.name.lower() for source in asked.script.sources}
    for name, frame in asked.frames.items():
        result = result_of(frame) if is_taken_in(frame) and name.lower() not in declared else None
        if result is not None and result.asked is not None:
            asked = _with(asked, name, result.asked)
    return asked


def _with(outer: Asked, name: str, inner: Asked) -> Asked:
    if inner.has_marks:
        hint = "give marks to the outermost call alone: it names every column as ws.explain shows it."
        raise _differing("marks", name, "marks", hint)
    if outer.said_limits != inner.said_limits:
        raise _differing("max_rows", name, inner.said_limits, "give both calls the same max_rows and overflow.")
    if None not in (outer.shards, inner.shards) and outer.shards != inner.shards:
        raise _differing("shards", name, inner.shards, "give both calls the same number.")
    script = outer.script
    [query] = inner.script.queries
    views = (*inner.script.views, View("", query))
    moved = tuple(_moved(replace(view, query=_without_sinks(view.query)), name) for view in views)
    script = replace(
        script,
        sources=(*script.sources, *_moved(inner.script.sources, name)),
        views=(*moved, *script.views),
        heartbeats=(
            *script.heartbeats,
            *((_inside(name, source), _moved(condition, name)) for source, condition in inner.script.heartbeats),
        ),
        settings=_settings(script.settings, inner.script.settings, name),
    )
    frames = {other: frame for other, frame in outer.frames.items() if other != name}
    sources = {other: source for other, source in outer.sources.items() if other != name}
    return replace(
        outer,
        script=script,
        frames={**frames, **{_inside(name, n): frame for n, frame in inner.frames.items()}},
        sources={**sources, **{_inside(name, n): _moved(source, name) for n, source in inner.sources.items()}},
        files={**outer.files, **{_inside(name, n): paths for n, paths in inner.files.items()}},
        shards=outer.shards or inner.shards,
    )


def _without_sinks(query: Query) -> Query:
    """The query as something that is read: it writes nowhere."""
    return replace(query, into=None, late_into=None)


def _settings(outer: tuple[Setting, ...], inner: tuple[Setting, ...], name: str) -> tuple[Setting, ...]:
    known = {setting.name.lower(): setting for setting in outer}
    for setting in inner:
        other = known.setdefault(setting.name.lower(), replace(setting, span=NOWHERE))
        if other.value != setting.value:
            raise _differing(setting.name, name, setting.value, "give both calls the same.")
    return tuple(known.values())


def _differing(argument: str, name: str, value: object, hint: str) -> WatersmeetError:
    reason = f"{name} has it and becomes part of this query, which would have another"
    return refuse("WRONG_ARGUMENT", argument=argument, value=value, reason=reason, hint=hint)


def _inside(name: str, inner: str) -> str:
    """What a name of a query is called where it is part of another one; the result itself by its name there."""
    return inner if inner.startswith("#") else f"{name}.{inner}" if inner else name


def _moved(node: Any, name: str) -> Any:
    """Whatever is part of a script as part of another one: under other names, and at no place of its text."""
    if isinstance(node, tuple):
        return tuple(_moved(part, name) for part in cast("tuple[Any, ...]", node))
    if isinstance(node, Span):
        return NOWHERE
    if not is_dataclass(node) or isinstance(node, type):
        return node
    changed = {f.name: _moved(getattr(node, f.name), name) for f in fields(node)}
    if isinstance(node, Scan):
        changed["source"] = _inside(name, node.source)
    elif isinstance(node, View | Source):
        changed["name"] = _inside(name, node.name)
    return replace(node, **changed)
