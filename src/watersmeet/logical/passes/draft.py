"""A query between parsing and analysis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from watersmeet.catalog import Source, Span
from watersmeet.errors import Refusal
from watersmeet.formats import sink_format
from watersmeet.logical.expressions import Expr
from watersmeet.logical.nodes import Query, Relation, ResultKind, Scan, Script, Union
from watersmeet.logical.passes.scope import Scope, result_key, with_stored_key
from watersmeet.logical.query import AnalyzedGroup, AnalyzedQuery, AnalyzedTop, Output, QueryWarning
from watersmeet.logical.relation import AnalyzedJoin, AnalyzedRelation

if TYPE_CHECKING:
    from watersmeet.logical.passes.family import FamilyAnalysis

Inputs = Literal["streams", "batches"]
"""``streams``: rows keep coming, so state must be bounded. ``batches``: all rows are there, times need no watermark."""


@dataclass(frozen=True)
class Draft:
    """The state of a query's analysis.

    ``sources`` are all sources by their name in small letters, including views, whose queries ``views`` has;
    ``families`` are those of its joins; ``scope`` holds the names that the projection sees; ``relation`` is None until
    its conditions have been analyzed.
    """

    script: Script
    query: Query
    sources: Mapping[str, Source]
    inputs: Inputs
    families: tuple[FamilyAnalysis, ...]
    views: Mapping[str, AnalyzedQuery] = field(default_factory=dict[str, AnalyzedQuery])
    scope: Scope = field(default_factory=Scope)
    outputs: tuple[Output, ...] = ()
    relation: AnalyzedRelation | None = None
    where: tuple[Expr, ...] = ()
    group: AnalyzedGroup | None = None
    top: AnalyzedTop | None = None
    warnings: tuple[QueryWarning, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    def with_refusals(self, refusals: Iterable[Refusal]) -> Draft:
        """The draft with further refusals."""
        return replace(self, refusals=(*self.refusals, *refusals))

    def with_warnings(self, warnings: Iterable[QueryWarning]) -> Draft:
        """The draft with further warnings."""
        return replace(self, warnings=(*self.warnings, *warnings))

    def refusal(self, condition: str, span: Span, /, **parameters: object) -> Refusal:
        """A refusal at a place of the script."""
        return Refusal(condition, {name: str(value) for name, value in parameters.items()}, self.script.place(span))

    def refuse_unsupported(self, span: Span, construct: str, hint: str) -> Refusal:
        """The refusal of correct but unsupported syntax."""
        return self.refusal("UNSUPPORTED_STATEMENT", span, what=construct, hint=hint)

    def kind(self, relation: Relation) -> ResultKind:
        """Whether a parsed relation is a stream or a table."""
        if isinstance(relation, Scan | Union):
            first = relation.scans[0] if isinstance(relation, Union) else relation
            source = self.sources.get(first.source.lower())
            return "stream" if source is None else source.kind
        return "table" if all(self.kind(side) == "table" for side in relation.inputs) else "stream"

    def family(self, join: Relation, kinds: tuple[ResultKind, ...] | None = None) -> FamilyAnalysis:
        """The family that claims a join; ``kinds`` are those of its sides, where they are known better."""
        kinds = tuple(self.kind(side) for side in join.inputs) if kinds is None else kinds
        return next(family for family in self.families if family.claims(join, kinds))

    def family_of(self, join: AnalyzedJoin) -> FamilyAnalysis | None:
        """The family of an analyzed join; None for one that was refused."""
        return next((family for family in self.families if family.family == join.family), None)

    def name_of(self, alias: str) -> str:
        """The name of a side in messages: its source, or its alias where a source occurs twice."""
        if alias.startswith("#"):
            return "a subquery"
        source = self.scope.sources[alias].name
        twice = sum(other.name == source for other in self.scope.sources.values()) > 1
        # A subquery has a generated name.
        return alias if twice or source.startswith("#") else source

    def names_of(self, aliases: Iterable[str]) -> str:
        """The names of several sides as a list in a sentence."""
        return format_list([self.name_of(alias) for alias in aliases])

    @property
    def result_kind(self) -> ResultKind:
        """The kind of the result, whatever SELECT says: of groups and top-N a table, unless each comes out once."""
        stage = self.group or self.top
        if stage is not None:
            return "stream" if stage.emit == "final" else "table"
        return "stream" if self.relation is None else self.relation.result

    @property
    def is_bounded(self) -> bool:
        """False if a join has no bounds: it is refused for that, or the declaration of one of its sources is."""
        return self.relation is not None and _is_bounded(self.relation)

    @property
    def latest_key(self) -> tuple[Expr, ...]:
        """The key of a stream that is shown as the latest row of each key; empty for other queries and with mistakes.

        It is the key that was written, whatever it is stored as.
        """
        if self.refusals or not self.scope.is_whole or not self.is_bounded:
            return ()
        return self._query_with_key().latest_key

    def finish(self) -> AnalyzedQuery:
        """The query once every pass has gone over it without a refusal."""
        analyzed = self._query_with_key()
        sink = self.script.sink(self.query.into)
        in_records = analyzed.result == "stream" and sink is not None and sink_format(sink).has_text_keys
        return with_stored_key(analyzed, self.query.store, in_records=in_records)

    def _query_with_key(self) -> AnalyzedQuery:
        """The query with its key, before that is stored in a format."""
        assert self.relation is not None, "build_relation builds the relation of every query"
        assert _is_bounded(self.relation), "a join that is not bounded is refused by its family"
        query = self.query
        into, late = (self._sink(name) for name in (query.into, query.late_into))
        # Without INSERT INTO, the caller that runs the query handles these rows, and needs no sink.
        side_outputs = tuple(
            replace(side_output, sink=self._sink(side_output.sink) or side_output.sink)
            for side_output in query.side_outputs
        )
        is_stage = self.group is not None or self.top is not None
        result = self.result_kind if is_stage else query.result or self.relation.result
        analyzed = AnalyzedQuery(
            self.relation, self.outputs, self.where, into, self.warnings, query.span, late,
            side_outputs, result, self.group, top=self.top,
        )  # fmt: skip
        return replace(analyzed, key=result_key(analyzed, query.group_by))

    def setting(self, name: str, default: str) -> str:
        """The value of a setting in the script; the last SET counts."""
        values = [s.value.strip() for s in self.script.settings if s.name.lower() == name]
        return values[-1] if values else default

    def _sink(self, name: str | None) -> str | None:
        """The sink of that name as it was declared."""
        sink = self.script.sink(name)
        return None if sink is None else sink.name


def _is_bounded(relation: AnalyzedRelation) -> bool:
    is_bounded = not isinstance(relation, AnalyzedJoin) or relation.is_bounded
    return is_bounded and all(_is_bounded(side) for side in relation.inputs)


def format_list(names: Iterable[str], word: str = "and") -> str:
    """Names as a list in a sentence.

    >>> format_list(["a", "b", "c"])
    'a, b and c'
    """
    *most, last = names
    return f"{', '.join(most)} {word} {last}" if most else last
