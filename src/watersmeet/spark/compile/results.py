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

from watersmeet.catalog import NOWHERE, Source, Span, Watermark
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.logical.nodes import Scan, Script, Setting, View
from watersmeet.logical.passes import Inputs
from watersmeet.logical.passes.views import as_source
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.physical import Limits, QueryPlan, limits_of


@dataclass(frozen=True)
class QueryRequest:
    """One query over DataFrames, as a call describes it.

    ``frames`` and ``sources`` go by the names that the script reads; ``files`` are the paths of sources that workers
    may read themselves. ``has_watermarks``: something from outside moves its watermarks, under names that only it
    knows.
    """

    script: Script
    frames: Mapping[str, DataFrame]
    sources: Mapping[str, Source]
    files: Mapping[str, DataFrame] = field(default_factory=dict[str, DataFrame])
    limits: Limits | None = None
    shards: int | None = None
    has_watermarks: bool = False

    @property
    def inputs(self) -> Inputs:
        """The kind of input of the query: batches or streams."""
        is_batch = self.frames and not any(frame.isStreaming for frame in self.frames.values())
        return "batches" if is_batch else "streams"

    @property
    def effective_limits(self) -> Limits | None:
        """The limit on the state, from any of the calls."""
        return limits_of(self.script) or self.limits


@dataclass(frozen=True)
class QueryResult:
    """The query behind a DataFrame, and the way it runs. ``request`` is None if the frame shows more than its rows."""

    query: AnalyzedQuery
    plan: QueryPlan
    request: QueryRequest | None

    @property
    def watermarks(self) -> tuple[Watermark, ...]:
        """The watermarks of its columns."""
        return as_source("", self.query, NOWHERE).watermarks


_results: WeakKeyDictionary[DataFrame, QueryResult] = WeakKeyDictionary()


def remember(frame: DataFrame, result: QueryResult) -> None:
    """Know a DataFrame as a result from now on."""
    _results[frame] = result


def result_of(frame: DataFrame) -> QueryResult | None:
    """The query behind a DataFrame that a Watersmeet call returned; None for any other DataFrame."""
    return _results.get(frame)


def is_inlined(frame: DataFrame) -> bool:
    """Whether a DataFrame becomes part of the query that reads it; batches have no watermarks that travel."""
    result = result_of(frame)
    return result is not None and result.request is not None and frame.isStreaming


def inline_results(request: QueryRequest) -> QueryRequest:
    """The query with the queries of all results among its DataFrames in it, each as a view of the name it has there."""
    declared = {source.name.lower() for source in request.script.sources}
    for name, frame in request.frames.items():
        result = result_of(frame) if is_inlined(frame) and name.lower() not in declared else None
        if result is not None and result.request is not None:
            request = _inline(request, name, result.request)
    return request


def _inline(outer: QueryRequest, name: str, inner: QueryRequest) -> QueryRequest:
    if inner.has_watermarks:
        hint = "pass watermarks to the outermost call only: it names every column as ws.explain shows it."
        raise _conflict("watermarks", name, "watermarks", hint)
    if outer.effective_limits != inner.effective_limits:
        raise _conflict("max_rows", name, inner.effective_limits, "pass the same max_rows and overflow to both calls.")
    if None not in (outer.shards, inner.shards) and outer.shards != inner.shards:
        raise _conflict("shards", name, inner.shards, "pass the same number to both calls.")
    script = outer.script
    [query] = inner.script.queries
    views = (*inner.script.views, View("", query))
    nested_views = tuple(
        _nest(replace(view, query=replace(view.query, into=None, late_into=None)), name) for view in views
    )
    script = replace(
        script,
        sources=(*script.sources, *_nest(inner.script.sources, name)),
        views=(*nested_views, *script.views),
        heartbeats=(
            *script.heartbeats,
            *((_qualify_name(name, source), _nest(condition, name)) for source, condition in inner.script.heartbeats),
        ),
        settings=_settings(script.settings, inner.script.settings, name),
    )
    frames = {other: frame for other, frame in outer.frames.items() if other != name}
    sources = {other: source for other, source in outer.sources.items() if other != name}
    return replace(
        outer,
        script=script,
        frames={**frames, **{_qualify_name(name, n): frame for n, frame in inner.frames.items()}},
        sources={**sources, **{_qualify_name(name, n): _nest(source, name) for n, source in inner.sources.items()}},
        files={**outer.files, **{_qualify_name(name, n): paths for n, paths in inner.files.items()}},
        shards=outer.shards or inner.shards,
    )


def _settings(outer: tuple[Setting, ...], inner: tuple[Setting, ...], name: str) -> tuple[Setting, ...]:
    merged = {setting.name.lower(): setting for setting in outer}
    for setting in inner:
        other = merged.setdefault(setting.name.lower(), replace(setting, span=NOWHERE))
        if other.value != setting.value:
            raise _conflict(setting.name, name, setting.value, "pass the same value to both calls.")
    return tuple(merged.values())


def _conflict(argument: str, name: str, value: object, hint: str) -> WatersmeetError:
    reason = f"{name} has this value and becomes part of this query, which has another one"
    return refuse("WRONG_ARGUMENT", argument=argument, value=value, reason=reason, hint=hint)


def _qualify_name(name: str, inner: str) -> str:
    """The name of a part of a query inside another query; the result itself has the name of the query there."""
    return inner if inner.startswith("#") else f"{name}.{inner}" if inner else name


def _nest(node: Any, name: str) -> Any:
    """Whatever is part of a script as part of another one: under other names, and at no place of its text."""
    if isinstance(node, tuple):
        return tuple(_nest(part, name) for part in cast("tuple[Any, ...]", node))
    if isinstance(node, Span):
        return NOWHERE
    if not is_dataclass(node) or isinstance(node, type):
        return node
    changed = {f.name: _nest(getattr(node, f.name), name) for f in fields(node)}
    if isinstance(node, Scan):
        changed["source"] = _qualify_name(name, node.source)
    elif isinstance(node, View | Source):
        changed["name"] = _qualify_name(name, node.name)
    return replace(node, **changed)
