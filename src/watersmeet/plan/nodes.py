"""What was asked: frozen nodes, before anything is known about columns or types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from watersmeet.catalog import NOWHERE, Amount, Sink, Source, Span
from watersmeet.errors import Place
from watersmeet.plan.expressions import Expr

JoinKind = Literal["inner", "left", "right", "full"]
"""Which side is preserved: ``left`` pads the left row that dies alone, ``full`` both."""


@dataclass(frozen=True)
class Scan:
    """A source under an alias."""

    source: str
    alias: str
    span: Span = NOWHERE


@dataclass(frozen=True)
class Within:
    """``WITHIN d``: the event times of both sides differ by at most ``amount``."""

    amount: Amount
    span: Span = NOWHERE


@dataclass(frozen=True)
class Join:
    """Two relations and the condition under which their rows meet. ``span``: from JOIN to the right side."""

    left: Relation
    right: Relation
    kind: JoinKind
    on: Expr | None = None
    using: tuple[str, ...] = ()
    within: Within | None = None
    span: Span = NOWHERE


Relation = Scan | Join


@dataclass(frozen=True)
class Star:
    """``*`` or ``alias.*`` in a projection."""

    alias: str | None = None
    span: Span = NOWHERE


@dataclass(frozen=True)
class Item:
    """One expression of a projection; ``name`` is what AS gives it."""

    expr: Expr
    name: str | None = None


@dataclass(frozen=True)
class Query:
    """SELECT, and INSERT INTO if it has a target. ``span`` covers the whole statement."""

    relation: Relation
    items: tuple[Item | Star, ...]
    where: Expr | None = None
    into: str | None = None
    into_span: Span = NOWHERE
    span: Span = NOWHERE


@dataclass(frozen=True)
class Setting:
    """``SET name = value``."""

    name: str
    value: str
    span: Span = NOWHERE


@dataclass(frozen=True)
class Script:
    """A text and the statements read from it."""

    name: str
    text: str
    sources: tuple[Source, ...] = ()
    sinks: tuple[Sink, ...] = ()
    settings: tuple[Setting, ...] = ()
    queries: tuple[Query, ...] = ()

    def place(self, span: Span) -> Place | None:
        """The span as a place that an error can show; None for what no text says."""
        return None if span == NOWHERE else Place(self.name, self.text, span.start, span.end)


def scans(relation: Relation) -> tuple[Scan, ...]:
    """The sources of a relation from left to right.

    >>> [scan.alias for scan in scans(Join(Scan("orders", "o"), Scan("deliveries", "d"), "left"))]
    ['o', 'd']
    """
    if isinstance(relation, Scan):
        return (relation,)
    return scans(relation.left) + scans(relation.right)
