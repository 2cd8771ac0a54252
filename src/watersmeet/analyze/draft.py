"""A query on its way from what was asked to what may run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from watersmeet.analyze.scope import Scope
from watersmeet.catalog import Source, Span
from watersmeet.errors import Refusal
from watersmeet.plan.analyzed import AnalyzedQuery, AnalyzedRelation, AnalyzedScan, Output, Warned, aliases
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import Query, Script

Inputs = Literal["streams", "batches"]
"""``streams``: rows keep coming, so state must be bounded. ``batches``: all rows are there, times need no watermark."""


@dataclass(frozen=True)
class Draft:
    """What is known of a query so far.

    ``sources`` are all sources by their name in small letters; ``scope`` the names that the projection sees;
    ``relation`` is None until its conditions have been looked at.
    """

    script: Script
    query: Query
    sources: Mapping[str, Source]
    inputs: Inputs
    scope: Scope = field(default_factory=Scope)
    outputs: tuple[Output, ...] = ()
    relation: AnalyzedRelation | None = None
    where: tuple[Expr, ...] = ()
    warnings: tuple[Warned, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    def refusing(self, refusals: Iterable[Refusal]) -> Draft:
        """The draft with further refusals."""
        return replace(self, refusals=(*self.refusals, *refusals))

    def warning(self, warnings: Iterable[Warned]) -> Draft:
        """The draft with further warnings."""
        return replace(self, warnings=(*self.warnings, *warnings))

    def refusal(self, condition: str, span: Span, /, **parameters: object) -> Refusal:
        """A refusal at a place of the script."""
        return Refusal(condition, {name: str(value) for name, value in parameters.items()}, self.script.place(span))

    def name_of(self, alias: str) -> str:
        """What to call a side when speaking to its author: its source, or its alias where a source occurs twice."""
        source = self.scope.sources[alias].name
        twice = sum(other.name == source for other in self.scope.sources.values()) > 1
        return alias if twice else source

    def names_of(self, aliases: Iterable[str]) -> str:
        """The names of several sides as a list in a sentence."""
        return listed([self.name_of(alias) for alias in aliases])

    def finished(self) -> AnalyzedQuery:
        """The query once every pass has gone over it without a refusal."""
        assert self.relation is not None, "find_bounds builds the relation of every query"
        assert _is_bounded(self.relation), "find_bounds refuses a join without bounds in both directions"
        into, late = (self._sink(name) for name in (self.query.into, self.query.late_into))
        return AnalyzedQuery(self.relation, self.outputs, self.where, into, self.warnings, self.query.span, late)

    def _sink(self, name: str | None) -> str | None:
        """The sink of that name as it was declared."""
        return next((s.name for s in self.script.sinks if name is not None and s.name.lower() == name.lower()), None)


def _is_bounded(relation: AnalyzedRelation) -> bool:
    if isinstance(relation, AnalyzedScan):
        return True
    bounded = {bound.column.alias for bound in relation.bounds}
    sides = (relation.left, relation.right)
    return all(bounded.intersection(aliases(side)) and _is_bounded(side) for side in sides)


def listed(names: Iterable[str], word: str = "and") -> str:
    """Names as a list in a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    *most, last = names
    return f"{', '.join(most)} {word} {last}" if most else last
