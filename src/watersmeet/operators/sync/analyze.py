"""The sync join: joins rows that have the same time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self, cast

from watersmeet.catalog import NOWHERE, Source, Span
from watersmeet.errors import Refusal
from watersmeet.logical.nodes import Leaf, Relation, ResultKind, Star
from watersmeet.logical.passes.column_types import event_times, is_sound
from watersmeet.logical.passes.conditions import check_families
from watersmeet.logical.passes.draft import Draft, format_list
from watersmeet.logical.passes.family import BuildResult, FamilyAnalysis, Sources
from watersmeet.logical.passes.meaning import ResolvedRelation
from watersmeet.logical.passes.scope import Scope
from watersmeet.logical.passes.settings import SettingSpec, choice
from watersmeet.logical.passes.sinks import check_columns, wrong_output
from watersmeet.logical.passes.watermarks import watermark_hint, watermark_only_time
from watersmeet.logical.relation import AnalyzedJoin, AnalyzedLeaf, AnalyzedRelation, TimeColumn

Disorder = Literal["drop", "error"]
"""The policy of a SYNC JOIN for a row that is not later than those before it: drop and count it, or raise an error."""


@dataclass(frozen=True)
class ParsedSyncJoin(Relation):
    """``a SYNC JOIN b [SYNC JOIN c ...]``: rows of all ports that have the same event time."""

    ports: tuple[Leaf, ...]
    span: Span = NOWHERE

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return self.ports

    def with_inputs(self, inputs: Sequence[Relation]) -> Self:
        return replace(self, ports=cast("tuple[Leaf, ...]", tuple(inputs)))


@dataclass(frozen=True)
class AnalyzedSyncJoin(AnalyzedJoin):
    """Rows of two or more ports that have the same time; ``times`` holds the event time of each port."""

    family: ClassVar[str] = "sync"

    ports: tuple[AnalyzedLeaf, ...]
    times: tuple[TimeColumn, ...]
    disorder: Disorder = "drop"
    span: Span = NOWHERE

    @property
    def inputs(self) -> tuple[AnalyzedRelation, ...]:
        return self.ports

    def with_inputs(self, inputs: Sequence[AnalyzedRelation]) -> Self:
        return replace(self, ports=cast("tuple[AnalyzedLeaf, ...]", tuple(inputs)))


# Synchronising joins: every port has exactly one event time, and all of them count in the same unit.


DISORDER = "watersmeet.sync.disorder"


class SyncAnalysis(FamilyAnalysis):
    """The analysis of SYNC JOIN."""

    family = AnalyzedSyncJoin.family
    settings: ClassVar[Mapping[str, SettingSpec]] = {DISORDER: choice(DISORDER, ("drop", "error"), "error")}

    def claims(self, join: Relation, kinds: tuple[ResultKind, ...]) -> bool:
        return isinstance(join, ParsedSyncJoin)

    def excludes_tables(self, join: Relation) -> str | None:
        """Rows of a table have no time."""
        return "A SYNC JOIN with"

    def resolve_names(self, draft: Draft, join: Relation, scopes: tuple[Scope, ...]) -> ResolvedRelation:
        scope = Scope()
        for own in scopes:
            scope = scope.combine(own)
        return join, scope, []

    def assume_watermarks(self, draft: Draft, join: Relation, sources: Sources) -> Sources:
        for port in join.inputs:
            sources = watermark_only_time(port, sources)
        return sources

    def build(self, draft: Draft, join: Relation, inputs: tuple[AnalyzedRelation, ...]) -> BuildResult:
        ports = cast("tuple[AnalyzedLeaf, ...]", inputs)
        refusals = [*_check(draft, join, ports)] if all(is_sound(port.source) for port in ports) else []
        times = tuple(time.column for port in ports for time in event_times(port)[:1])
        disorder = "error" if draft.setting(DISORDER, "drop").lower() == "error" else "drop"
        return AnalyzedSyncJoin(ports, times, disorder, join.span), refusals

    def check_outputs(self, draft: Draft) -> Iterator[Refusal]:
        return _check_ports(draft) if any(output.of == "PORTS" for output in draft.query.side_outputs) else iter(())


def _check(draft: Draft, join: Relation, scans: tuple[AnalyzedLeaf, ...]) -> Iterator[Refusal]:
    if len(scans) < 2:
        yield draft.refuse_unsupported(join.span, "A SYNC JOIN of one source", "write `a SYNC JOIN b`.")
        return
    *most, last = scans
    named = [time.column.name for scan in scans for time in event_times(scan)]
    left, right = draft.names_of(scan.alias for scan in most), draft.name_of(last.alias)
    for scan in scans:
        side, times = draft.name_of(scan.alias), event_times(scan)
        if not times:
            names = {"kind": "SYNC", "left": left, "right": right, "side": side}
            yield draft.refusal("MISSING_WATERMARK", join.span, **names, hint=watermark_hint(scan, named))
        elif len(times) > 1:
            columns = format_list([str(time) for time in times])
            hint = f"keep one of them in the declaration of {scan.source.name}."
            yield draft.refusal("NEEDS_ONE_TIME", join.span, join="SYNC JOIN", side=side, columns=columns, hint=hint)
    times = [time for scan in scans for time in event_times(scan)[:1]]
    for time in times[1:]:
        refusal = check_families(draft, time, times[0], join.span)
        if refusal is not None:
            yield refusal


def _check_ports(draft: Draft) -> Iterator[Refusal]:
    query = draft.query
    sinks = [output for output in query.side_outputs if output.of == "PORTS"]
    span = sinks[0].span
    if not isinstance(query.relation, ParsedSyncJoin):
        construct, hint = "PORTS INTO without a SYNC JOIN", "write INSERT INTO: other joins have one output."
        yield draft.refuse_unsupported(span, construct, hint)
        return
    ports = query.relation.ports
    if len(ports) != len(sinks):
        reason = f"{len(ports)} ports need {len(ports)} sinks"
        hint = f"name {len(ports)} sinks, in the order of the sources."
        yield wrong_output(draft, span, "PORTS INTO", reason, f"{len(sinks)} named", hint)
    if query.into is not None:
        reason, hint = "its rows go to the sinks of the ports", "leave INSERT INTO out."
        yield wrong_output(draft, query.into_span, "The result", reason, "together with PORTS INTO", hint)
    if [item.alias if isinstance(item, Star) else "" for item in query.items] != [None]:
        reason, hint = "each port emits its rows unchanged", "write `SELECT STREAM *`."
        yield wrong_output(draft, span, "A projection of ports", reason, "PORTS INTO", hint)
    for port, output in zip(ports, sinks, strict=False):
        source = draft.scope.sources.get(port.alias, Source(port.alias, ()))
        yield from check_columns(draft, output.sink, output.span, f"The port {port.alias}", source)


ANALYZE = SyncAnalysis()
