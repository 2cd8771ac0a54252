"""What was asked: frozen nodes, before anything is known about columns or types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from watersmeet.catalog import NOWHERE, Amount, Sink, Source, Span
from watersmeet.errors import Place
from watersmeet.plan.expressions import Expr

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]
"""Which side is preserved: ``left`` pads the left row that dies alone, ``full`` both.

``semi`` and ``anti`` show the left side only: a left row once, at its first match; a left row that dies alone.
"""

LEFT_ONLY: frozenset[JoinKind] = frozenset({"semi", "anti"})
"""The kinds whose result has no columns of the right side."""


@dataclass(frozen=True)
class Scan:
    """A source under an alias."""

    source: str
    alias: str
    span: Span = NOWHERE


@dataclass(frozen=True)
class Union:
    """The rows of several sources under one alias: ``(SELECT STREAM * FROM a UNION ALL SELECT STREAM * FROM b) u``."""

    scans: tuple[Scan, ...]
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


Relation = Scan | Union | Join


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
    """SELECT, and INSERT INTO if it has a target. ``span`` covers the whole statement.

    ``late_into`` is the sink of the rows that came too late.
    """

    relation: Relation
    items: tuple[Item | Star, ...]
    where: Expr | None = None
    into: str | None = None
    into_span: Span = NOWHERE
    span: Span = NOWHERE
    late_into: str | None = None
    late_into_span: Span = NOWHERE


@dataclass(frozen=True)
class Setting:
    """``SET name = value``."""

    name: str
    value: str
    span: Span = NOWHERE


@dataclass(frozen=True)
class Script:
    """A text and the statements read from it.

    ``heartbeats``: the name of a source and the condition under which its rows advance time and are no rows.
    """

    name: str
    text: str
    sources: tuple[Source, ...] = ()
    sinks: tuple[Sink, ...] = ()
    settings: tuple[Setting, ...] = ()
    queries: tuple[Query, ...] = ()
    heartbeats: tuple[tuple[str, Expr], ...] = ()

    def place(self, span: Span) -> Place | None:
        """The span as a place that an error can show; None for what no text says."""
        return None if span == NOWHERE else Place(self.name, self.text, span.start, span.end)


def scans(relation: Relation) -> tuple[Scan, ...]:
    """The sources of a relation from left to right, those inside a union too.

    >>> [scan.alias for scan in scans(Join(Scan("orders", "o"), Scan("deliveries", "d"), "left"))]
    ['o', 'd']
    """
    return tuple(scan for leaf in leaves(relation) for scan in (leaf.scans if isinstance(leaf, Union) else (leaf,)))


def leaves(relation: Relation) -> tuple[Scan | Union, ...]:
    """Whatever has an alias in a relation, from left to right.

    >>> [leaf.alias for leaf in leaves(Join(Scan("a", "a"), Union((Scan("b", "b"), Scan("c", "c")), "u"), "inner"))]
    ['a', 'u']
    """
    if isinstance(relation, Join):
        return leaves(relation.left) + leaves(relation.right)
    return (relation,)
