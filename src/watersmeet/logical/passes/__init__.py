"""The analysis of a query: an ordered tuple of passes, each a function from a draft to a better draft.

A pass adds its results and refusals; it never stops the ones after it, so that a script with several mistakes reports
them all. Only here a query is refused; otherwise the bound on its state is known: time, the number of keys, or a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from watersmeet.catalog import Source
from watersmeet.errors import Refusal, WatersmeetError, unique_refusals
from watersmeet.logical.expressions import aggregates_in
from watersmeet.logical.nodes import Item, Query, Script, View, scans
from watersmeet.logical.passes.build_relation import build_relation, move_conditions
from watersmeet.logical.passes.check_declarations import check_declarations, check_determinism
from watersmeet.logical.passes.comparisons import check_collations, check_comparisons
from watersmeet.logical.passes.conditions import apply_hints, move_filters, split_condition
from watersmeet.logical.passes.draft import Draft, Inputs
from watersmeet.logical.passes.family import FamilyAnalysis
from watersmeet.logical.passes.group import group, top
from watersmeet.logical.passes.over import over
from watersmeet.logical.passes.resolve import expand, resolve
from watersmeet.logical.passes.settings import check_settings
from watersmeet.logical.passes.sinks import (
    check_result,
    check_static_tables,
    check_table_sinks,
    check_targets,
    key_formats,
    with_record_key,
)
from watersmeet.logical.passes.views import as_source, check_view, count_unions, make_aliases_unique
from watersmeet.logical.passes.watermarks import assume_watermarks
from watersmeet.logical.query import AnalyzedQuery

__all__ = ["PASSES", "FamilyAnalysis", "Inputs", "analyze", "find_refusals", "sort_refusals"]

PASSES = (
    resolve,
    expand,
    move_conditions,
    assume_watermarks,
    build_relation,
    split_condition,
    apply_hints,
    move_filters,
    over,
    group,
    top,
    check_result,
    key_formats,
    check_table_sinks,
    check_static_tables,
    check_comparisons,
    check_collations,
    check_determinism,
)
"""The passes that every query goes through, in this order."""


def analyze(
    script: Script,
    extra_sources: Mapping[str, Source] | None = None,
    *,
    families: tuple[FamilyAnalysis, ...],
    inputs: Inputs = "streams",
) -> tuple[AnalyzedQuery, ...]:
    """The queries of a script as they may run; raises one error with everything that is wrong in it.

    ``extra_sources`` are those that no text declares, by name. A declaration of the same name goes before.
    ``families`` are those that joins may be of.

    >>> from watersmeet.catalog import Field
    >>> from watersmeet.logical.nodes import Query, Scan, Star
    >>> script = Script("example", "", queries=(Query(Scan("orders", "o"), (Star(),)),))
    >>> [query] = analyze(script, {"orders": Source("orders", (Field("id", "BIGINT"),))}, families=())
    >>> [output.name for output in query.outputs]
    ['id']
    """
    drafts, refusals = _drafts(script, extra_sources or {}, families, inputs)
    if refusals:
        raise WatersmeetError(sort_refusals(refusals))
    return tuple(make_aliases_unique(count_unions(draft.finish())) for draft in drafts)


def find_refusals(script: Script, *, families: tuple[FamilyAnalysis, ...]) -> list[Refusal]:
    """The refusals in a script with unknown parts: statements that do not parse, or columns of data."""
    return sort_refusals(_drafts(_drop_unknown_sources(script), {}, families, "streams")[1])


def _drop_unknown_sources(script: Script) -> Script:
    """The script without what speaks of columns that should have been read from data and were not.

    Whatever was refused there would only follow from that.
    """
    unknown = {source.name.lower() for source in script.sources if source.format is not None and not source.fields}
    views = list[View]()
    for view in script.views:
        if _reads(view.query).isdisjoint(unknown):
            views.append(view)
        else:
            unknown.add(view.name.lower())
    sources = tuple(
        replace(source, watermarks=(), primary_key=(), order=None, history=None)
        if source.name.lower() in unknown
        else source
        for source in script.sources
    )
    queries = tuple(query for query in script.queries if _reads(query).isdisjoint(unknown))
    heartbeats = tuple(heartbeat for heartbeat in script.heartbeats if heartbeat[0].lower() not in unknown)
    return replace(script, sources=sources, queries=queries, views=tuple(views), heartbeats=heartbeats)


def _reads(query: Query) -> set[str]:
    """The names of all that a query reads, itself and through its own views, in small letters."""
    inside = (name for view in query.views for name in _reads(view.query))
    return {*(scan.source.lower() for scan in scans(query.relation)), *inside}


def _drafts(
    script: Script, extra: Mapping[str, Source], families: tuple[FamilyAnalysis, ...], inputs: Inputs
) -> tuple[list[Draft], list[Refusal]]:
    """The queries after all passes, and all that is refused."""
    sources = _sources(script, extra)
    refusals = [
        *check_declarations(script, sources),
        *check_settings(script, (family.settings for family in families)),
        *check_targets(script, sources),
    ]
    context = AnalysisContext(sources, families, inputs)
    for view in script.views:
        context, more = _with_view(script, view, context)
        refusals += more
    drafts: list[Draft] = []
    for query in script.queries:
        draft, more = _apply_passes(script, query, context)
        drafts.append(draft)
        refusals += more
    return drafts, refusals


@dataclass(frozen=True)
class AnalysisContext:
    """The names that a query can read: sources, including views, and the queries of the views."""

    sources: Mapping[str, Source]
    families: tuple[FamilyAnalysis, ...]
    inputs: Inputs
    views: Mapping[str, AnalyzedQuery] = field(default_factory=dict[str, AnalyzedQuery])


def _apply_passes(script: Script, query: Query, context: AnalysisContext) -> tuple[Draft, list[Refusal]]:
    """A query after all passes, and the refusals in it and in its own views."""
    refusals = list[Refusal]()
    for view in query.views:
        context, more = _with_view(script, view, context)
        refusals += more
    draft = Draft(script, query, context.sources, context.inputs, context.families, context.views)
    for improve in PASSES:
        draft = improve(draft)
    return draft, [*refusals, *draft.refusals]


def _with_view(script: Script, view: View, context: AnalysisContext) -> tuple[AnalysisContext, list[Refusal]]:
    """The context after a view; a refused view has no columns, so that it causes no further refusals."""
    draft, refusals = _apply_passes(script, view.query, context)
    refusals = [_explain_correlation(refusal, view.query) for refusal in refusals]
    refusals += check_view(draft, view, context.sources)
    name = view.name.lower()
    if refusals or not draft.is_bounded:
        return replace(context, sources={**context.sources, name: Source(view.name, (), span=view.span)}), refusals
    query = draft.finish()
    source = as_source(view.name, query, view.span, view.query.store)
    return replace(context, sources={**context.sources, name: source}, views={**context.views, name: query}), []


def _explain_correlation(refusal: Refusal, query: Query) -> Refusal:
    """The refusal of a name, with what to write where a subquery names the query around it."""
    alias, _, name = refusal.parameters.get("column", "").partition(".")
    outer = {one.lower() for one in query.outer}
    if refusal.condition != "UNKNOWN_COLUMN" or not name or alias.lower() not in outer:
        return refusal
    is_scalar = not query.group_by and any(isinstance(i, Item) and any(aggregates_in(i.expr)) for i in query.items)
    hint = (
        (
            f"a scalar subquery cannot name `{alias}`, which is around it: group it by the column that is compared, and"
            f" write `LEFT JOIN (SELECT k, max(x) AS x FROM b GROUP BY k) AS q ON q.k = {alias}.{name}`."
        )
        if is_scalar
        else (
            f"a subquery that joins, groups or has a LIMIT cannot name `{alias}`, which is around it: make a view v of"
            f" it, which shows the columns that are compared, and write `EXISTS (SELECT * FROM v WHERE v.x ="
            f" {alias}.{name})`."
        )
    )
    return replace(refusal, parameters={**refusal.parameters, "suggestion": hint})


def _sources(script: Script, extra: Mapping[str, Source]) -> dict[str, Source]:
    frames = {name.lower(): replace(source, name=name) for name, source in extra.items()}
    sources = dict(frames)
    for declared in script.sources:
        frame = frames.get(declared.name.lower())
        # A DataFrame may bring the watermark that its declaration leaves out.
        watermarks = declared.watermarks or (frame.watermarks if frame else ())
        sources[declared.name.lower()] = with_record_key(replace(declared, watermarks=watermarks))
    return sources


def sort_refusals(refusals: list[Refusal]) -> list[Refusal]:
    """Refusals in the order of their places, each once."""
    return sorted(unique_refusals(refusals), key=lambda refusal: refusal.place.start if refusal.place else -1)
