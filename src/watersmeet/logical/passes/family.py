"""The interface between the analysis and a family of joins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar

from watersmeet.catalog import Source
from watersmeet.errors import Refusal
from watersmeet.logical.nodes import ParsedJoin, Relation, ResultKind
from watersmeet.logical.passes.conditions import check_residual
from watersmeet.logical.passes.draft import Draft
from watersmeet.logical.passes.meaning import ResolvedRelation, resolve_condition
from watersmeet.logical.passes.scope import Scope
from watersmeet.logical.passes.settings import SettingSpec
from watersmeet.logical.query import QueryWarning
from watersmeet.logical.relation import AnalyzedRelation, ConditionalJoin

Sources = Mapping[str, Source]
"""Sources by their aliases."""

BuildResult = tuple[AnalyzedRelation, list[Refusal]]
"""A relation and its refusals; the condition of a join is not split yet."""


class FamilyAnalysis(ABC):
    """The analysis of a family's joins, with the defaults that most families share."""

    family: ClassVar[str]
    """Its name, which its analyzed joins have as well."""

    settings: ClassVar[Mapping[str, SettingSpec]] = {}
    """Its settings by name."""

    columns: ClassVar[Mapping[str, str]] = {}
    """The columns that only its joins have, each with the hint for a reference elsewhere."""

    @abstractmethod
    def claims(self, join: Relation, kinds: tuple[ResultKind, ...]) -> bool:
        """Whether a join is of this family, its sides being streams or tables as ``kinds`` says."""

    @abstractmethod
    def build(self, draft: Draft, join: Relation, inputs: tuple[AnalyzedRelation, ...]) -> BuildResult:
        """The join of these inputs, and its refusals."""

    def excludes_tables(self, join: Relation) -> str | None:
        """The beginning of "... the table t", where none of its sides may be a table; None: one may."""
        return None

    def resolve_names(self, draft: Draft, join: Relation, scopes: tuple[Scope, ...]) -> ResolvedRelation:
        """The join with its names resolved, given the scope of each of its sides."""
        assert isinstance(join, ParsedJoin), "a join of another form resolves its names itself"
        left, right = scopes
        return resolve_condition(draft, join, left, right)

    def assume_watermarks(self, draft: Draft, join: Relation, sources: Sources) -> Sources:
        """The sources with the watermarks that batches are taken to have, since the join compares these times."""
        return sources

    def check_clauses(self, draft: Draft) -> Iterator[Refusal]:
        """The refusals of the family's clauses in a query, wherever they are."""
        yield from ()

    def check_outputs(self, draft: Draft) -> Iterator[Refusal]:
        """The refusals of the side outputs."""
        yield from ()

    def check_condition(self, draft: Draft, join: ConditionalJoin) -> Iterator[Refusal]:
        """The refusals of a join whose condition has been split."""
        return check_residual(draft, join)

    def why_not_skewed(self, join: ConditionalJoin, port: int) -> str | None:
        """The reason why rows of a side cannot be spread by a hint; None: they can."""
        return "only a join of two streams within time bounds spreads the rows of a key"

    def comparison_scope(self, draft: Draft, join: ConditionalJoin) -> str | None:
        """The rows that each row is compared with in a join without a key; None: the join needs no key."""
        return None

    def warn(self, draft: Draft, relation: AnalyzedRelation) -> Iterator[QueryWarning]:
        """The warnings for a query."""
        yield from ()
