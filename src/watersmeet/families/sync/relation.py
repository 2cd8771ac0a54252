"""The sync join: rows meet that have the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self, cast

from watersmeet.catalog import NOWHERE, Span
from watersmeet.plan.nodes import Leaf, Relation
from watersmeet.plan.relation import AnalyzedJoin, AnalyzedLeaf, AnalyzedRelation, TimeColumn

Disorder = Literal["drop", "error"]
"""What becomes of a row of a SYNC JOIN that is not later than those before it: dropped and counted, or an error."""


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
