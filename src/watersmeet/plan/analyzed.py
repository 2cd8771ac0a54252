"""What is known of a query once it may run: every name resolved, every condition in its place, every bound found."""

from __future__ import annotations

from dataclasses import dataclass

from watersmeet.catalog import NOWHERE, Source, Span
from watersmeet.plan.expressions import Expr
from watersmeet.plan.nodes import LEFT_ONLY, JoinKind


@dataclass(frozen=True)
class TimeColumn:
    """A watermarked column of a source in the query."""

    alias: str
    name: str

    def __str__(self) -> str:
        return f"{self.alias}.{self.name}"


@dataclass(frozen=True)
class TimeBound:
    """``column >= other - constant`` (``>`` if strict), between watermarked columns of the two sides (HZ-7).

    The constant is in the unit of the event times: microseconds for TIMESTAMP and DATE, plain numbers for integers.
    It is the postpone time of HZ-11: rows of ``column``'s side are kept that long behind the watermark of ``other``.
    """

    column: TimeColumn
    other: TimeColumn
    constant: int
    strict: bool = False
    span: Span = NOWHERE


@dataclass(frozen=True)
class AnalyzedScan:
    """A source under an alias, with the parts of WHERE that may be applied to it before any join.

    ``parts``: for a union, the sources it is made of, whose columns are those of ``source`` by position; ``source``
    then has the alias as its name and the watermarks that all parts have.
    ``heartbeat``: a row of which this is true advances time and is no row.
    """

    alias: str
    source: Source
    filters: tuple[Expr, ...] = ()
    parts: tuple[Source, ...] = ()
    heartbeat: Expr | None = None


@dataclass(frozen=True)
class AnalyzedJoin:
    """A join whose condition is taken apart; all parts together are the whole condition (HZ-24).

    - ``keys``: equalities, each an expression over the left side and one over the right
    - ``bounds``: time bounds, in both directions; a conjunct that is a bound is exactly expressed by its bounds
    - ``left_only``, ``right_only``: conjuncts over one side (HZ-25)
    - ``residual``: conjuncts over both sides that are none of these
    """

    left: AnalyzedRelation
    right: AnalyzedRelation
    kind: JoinKind
    keys: tuple[tuple[Expr, Expr], ...]
    bounds: tuple[TimeBound, ...]
    left_only: tuple[Expr, ...] = ()
    right_only: tuple[Expr, ...] = ()
    residual: tuple[Expr, ...] = ()
    span: Span = NOWHERE


AnalyzedRelation = AnalyzedScan | AnalyzedJoin


@dataclass(frozen=True)
class Output:
    """A column of the result."""

    name: str
    expr: Expr


@dataclass(frozen=True)
class Warned:
    """Something that works but that its author should know, with the place that causes it."""

    message: str
    span: Span = NOWHERE


@dataclass(frozen=True)
class AnalyzedQuery:
    """A query that may run. ``where`` holds the conjuncts of WHERE that stay behind the last join.

    ``late_into`` is the sink of the rows that came too late.
    """

    relation: AnalyzedRelation
    outputs: tuple[Output, ...]
    where: tuple[Expr, ...] = ()
    into: str | None = None
    warnings: tuple[Warned, ...] = ()
    span: Span = NOWHERE
    late_into: str | None = None


def aliases(relation: AnalyzedRelation) -> tuple[str, ...]:
    """The aliases whose columns a relation shows, from left to right: a SEMI or ANTI JOIN shows its left side only."""
    if isinstance(relation, AnalyzedScan):
        return (relation.alias,)
    if relation.kind in LEFT_ONLY:
        return aliases(relation.left)
    return aliases(relation.left) + aliases(relation.right)
